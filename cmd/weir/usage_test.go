package main

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"testing"
)

// TestUpstreamUsage: a rule with settle: used is charged what the upstream's response states, of a whole
// one and of a stream, and the most that a request may use if it states nothing. A file without such a
// rule leaves requests as they are.
func TestUpstreamUsage(t *testing.T) {
	const chat = `{"model":"a","max_tokens":%d,"stream":%v}`
	var asked string
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		asked = string(body)
		usage := `{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":7}}`
		switch {
		case strings.Contains(asked, `"stream":true`):
			w.Header().Set("Content-Type", "text/event-stream")
			fmt.Fprintf(w, "data: %s\n\ndata: [DONE]\n\n", usage)
		case r.URL.Path == "/silent":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{}`)
		default:
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, usage)
		}
	}))
	defer upstream.Close()
	limits := filepath.Join(t.TempDir(), "limits.yaml")
	rule := "limits: [{name: tokens, key: global, cost: llm-tokens, unit: tokens, settle: used, algorithm: fixed-window, config: [{limit: 1000, period: 100h}]}]\n"
	writeFile(t, limits, rule)
	s := startService(t, "-limits", limits, "-upstream", upstream.URL)
	post := func(path string, most int, stream bool) (status int, left string) {
		t.Helper()
		resp, err := http.Post(s.url("addr")+path, "application/json", strings.NewReader(fmt.Sprintf(chat, most, stream)))
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		io.Copy(io.Discard, resp.Body)
		return resp.StatusCode, resp.Header.Get("X-RateLimit-Remaining")
	}
	size := func(most int, stream bool) int { return len(fmt.Sprintf(chat, most, stream)) }
	spent := 0
	for _, tt := range []struct {
		path   string
		most   int
		stream bool
		status int
		used   int
	}{
		{"/v1/chat/completions", 500, false, 200, 10},
		{"/v1/chat/completions", 500, true, 200, 10},
		{"/v1/chat/completions", 2000, false, 429, 0},
		{"/silent", 100, false, 200, 100 + size(100, false)},
		{"/v1/messages", 500, false, 200, 10},
	} {
		reserved := tt.most + size(tt.most, tt.stream)
		status, left := post(tt.path, tt.most, tt.stream)
		want := fmt.Sprint(1000 - spent - reserved)
		if status == 429 {
			want = fmt.Sprint(1000 - spent)
		}
		if status != tt.status || left != want {
			t.Errorf("%s: got %d with %s left, want %d and %s", tt.path, status, left, tt.status, want)
		}
		spent += tt.used
		if tt.stream && !strings.Contains(asked, "include_usage") {
			t.Errorf("the stream was not made to state its usage: %s", asked)
		}
	}

	writeFile(t, limits, "limits: [{name: all, key: global, config: [{limit: 1000, period: 1h}]}]\n")
	eventually(t, "the new file is in force", func() bool {
		post("/v1/chat/completions", 1, true)
		return !strings.Contains(asked, "include_usage")
	})
}
