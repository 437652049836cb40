package e2e

import (
	"bufio"
	"context"
	"encoding/json"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/_examples/playground/server"
)

// stream opens a scene without a browser and returns its first event. end closes the scene.
func stream(t *testing.T, base, query string) (event, data string, end func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/scenes?"+query, nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	lines := bufio.NewReader(resp.Body)
	event, _ = lines.ReadString('\n')
	data, _ = lines.ReadString('\n')
	return strings.TrimPrefix(strings.TrimSpace(event), "event: "), strings.TrimPrefix(strings.TrimSpace(data), "data: "), func() {
		cancel()
		resp.Body.Close()
	}
}

// TestInput sends invalid links and commands, which no page sends. Each must be answered
// with the right text or status.
func TestInput(t *testing.T) {
	t.Parallel()
	base := serve(t)
	for _, test := range []struct{ query, want string }{
		{"quota=0", `quota: "0" is not a whole number from 1 to 1000000`},
		{"quota=1.5", `quota: "1.5" is not a whole number from 1 to 1000000`},
		{"period=2592001", `period: "2592001" is not a whole number from 1 to 2592000`},
		{"burst=-1", `burst: "-1" is not a whole number from 0 to 1000000`},
		{"rate=NaN", `rate: "NaN" is not a number from 0.00001 to 50`},
		{"speed=1e9", `speed: "1e9" is not a number from 0.1 to 259200`},
		{"pattern=x", `pattern: "x" is not one of none, steady, bursts, boundary, spammer`},
		{"store=disk", `store: "disk" is not one of memory, redis`},
		{"algorithms=gcra,gcra", `algorithms: "gcra" is unknown or appears twice`},
		{"algorithms=" + strings.Repeat("x", 60), `algorithms: "xxxxxxxxxxxxxxxxxxxx" is unknown or appears twice`},
	} {
		event, data, end := stream(t, base, test.query)
		end()
		var got string
		json.Unmarshal([]byte(data), &got)
		if want := "This link is not a scene. " + test.want + "."; event != "refused" || got != want {
			t.Errorf("%s: got %s %s, want %s", test.query, event, got, want)
		}
	}

	_, data, _ := stream(t, base, "")
	var scene struct{ ID string }
	if err := json.Unmarshal([]byte(data), &scene); err != nil {
		t.Fatal(err)
	}
	for _, test := range []struct {
		what, method, path string
		header             http.Header
		body               string
		want               int
	}{
		{"a hit", "POST", scene.ID, nil, "do=hit", 204},
		{"nothing", "POST", scene.ID, nil, "", 400},
		{"an unknown command", "POST", scene.ID, nil, "do=format", 400},
		{"settings out of range", "POST", scene.ID, nil, "do=set&quota=1000001", 400},
		{"a large body", "POST", scene.ID, nil, "do=hit&x=" + strings.Repeat("x", 5000), 400},
		{"another scene", "POST", "SOMEBODYELSES", nil, "do=hit", 404},
		{"another site", "POST", scene.ID, http.Header{"Origin": {"https://example.com"}}, "do=hit", 403},
		{"an unknown algorithm", "GET", scene.ID + "/lottery", nil, "", 404},
		{"an unknown dialect", "GET", scene.ID + "/gcra?headers=morse", nil, "", 400},
		{"a request from a terminal", "GET", scene.ID + "/gcra?headers=github", nil, "", 200},
	} {
		req, err := http.NewRequest(test.method, base+"/scenes/"+test.path, strings.NewReader(test.body))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		for name, values := range test.header {
			req.Header[name] = values
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body, _ := io.ReadAll(resp.Body)
		resp.Body.Close()
		if resp.StatusCode != test.want {
			t.Errorf("%s: status %d, want %d (%s)", test.what, resp.StatusCode, test.want, body)
		}
		if test.path == scene.ID+"/gcra?headers=github" && resp.Header.Get("X-RateLimit-Resource") != "api" {
			t.Errorf("%s: got %v", test.what, resp.Header)
		}
	}
}

// TestScenes opens as many scenes as are allowed, and one more, which must be refused.
// After a page is closed, a new scene must open.
func TestScenes(t *testing.T) {
	t.Parallel()
	base := serve(t)
	var leave func()
	for i := range 64 {
		event, data, end := stream(t, base, "paused=yes")
		if event != "scene" {
			t.Fatalf("scene %d: got %s %s", i, event, data)
		}
		leave = end
	}
	if event, data, _ := stream(t, base, ""); event != "refused" || !strings.Contains(data, "All 64 scenes are taken") {
		t.Errorf("scene 65: got %s %s", event, data)
	}
	leave()
	for i := 0; ; i++ { // until the server notices that a page was closed
		event, data, end := stream(t, base, "")
		if event == "scene" {
			break
		}
		end()
		if i == 3000 {
			t.Fatalf("after one page was closed: got %s %s", event, data)
		}
		time.Sleep(20 * time.Millisecond) // 50 a second, of the 100 that the playground allows
	}
}

// TestFlood sends 500 commands at one instant. The playground must let 100 through, which is its limit
// for a second.
func TestFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		playground, statuses := server.New(t.Context(), nil, nil), map[int]int{}
		for range 500 {
			r := httptest.NewRequest(http.MethodPost, "/scenes/unknown", strings.NewReader("do=hit"))
			w := httptest.NewRecorder()
			playground.ServeHTTP(w, r)
			statuses[w.Code]++
		}
		if want := map[int]int{http.StatusNotFound: 100, http.StatusTooManyRequests: 400}; !maps.Equal(statuses, want) {
			t.Errorf("500 commands at once: got the statuses %v, want %v", statuses, want)
		}
	})
}
