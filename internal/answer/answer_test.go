package answer

import (
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// TestFor: the Content-Type chooses the protocol, and two more signs choose Connect.
func TestFor(t *testing.T) {
	for _, c := range []struct {
		contentType string
		want        Protocol
	}{
		{"application/grpc", GRPC},
		{"application/grpc+proto", GRPC},
		{"Application/GRPC+json; charset=utf-8", GRPC},
		{" application/grpc ;x", GRPC},
		{"application/grpc;" + strings.Repeat("x", 1<<20), GRPC},
		{"application/grpc+" + strings.Repeat("x", 1<<20), HTTP},
		{"application/grpc-web", Web},
		{"application/grpc-web+proto", Web},
		{"application/grpc-web-text", WebText},
		{"application/grpc-web-text+proto", WebText},
		{"application/connect+proto", ConnectStream},
		{"application/connect+json", ConnectStream},
		{"application/connect", HTTP},
		{"application/proto", ConnectUnary},
		{"application/proto+x", HTTP},
		{"application/json", HTTP}, // ConnectUnary with Connect-Protocol-Version
		{"application/grpcx", HTTP},
		{"application/grpc-", HTTP},
		{"application/x-grpc", HTTP},
		{"text/grpc", HTTP},
		{"application/", HTTP},
		{"grpc", HTTP},
		{"", HTTP},
	} {
		r := httptest.NewRequest("POST", "/a.B/C", strings.NewReader("x"))
		r.ProtoMajor = 2
		r.Header.Set("Content-Type", c.contentType)
		if got := ProtocolOf(r); got != c.want {
			t.Errorf("%.80q: got %d, want %d", c.contentType, got, c.want)
		}
		r.Header.Set("Connect-Protocol-Version", "1")
		if c.contentType == "application/json" {
			c.want = ConnectUnary
		}
		if got := ProtocolOf(r); got != c.want {
			t.Errorf("%.80q with Connect-Protocol-Version: got %d, want %d", c.contentType, got, c.want)
		}
	}
	for target, want := range map[string]Protocol{
		"/a.B/C?connect=v1&encoding=json&message=%7B%7D": ConnectUnary,
		"/a.B/C?encoding=json&connect=v1":                ConnectUnary,
		"/a.B/C?xconnect=v1":                             HTTP,
		"/a.B/C?connect=v12":                             HTTP,
		"/a.B/C":                                         HTTP,
	} {
		if got := ProtocolOf(httptest.NewRequest("GET", target, nil)); got != want {
			t.Errorf("GET %s: got %d, want %d", target, got, want)
		}
		if got := ProtocolOf(httptest.NewRequest("DELETE", target, nil)); got != HTTP {
			t.Errorf("DELETE %s: got %d, want %d", target, got, HTTP)
		}
	}
}

// TestQuestions: a question of a proxy about a request, which has its header fields and no body, is
// not refused with the status 200, because the proxy would let the request pass. gRPC over HTTP/1.1
// is no gRPC.
func TestQuestions(t *testing.T) {
	for _, contentType := range []string{"application/grpc", "application/grpc+proto", "application/grpc-web", "application/grpc-web-text", "application/connect+proto", "application/proto"} {
		for name, change := range map[string]func(r *http.Request){
			"the call itself": func(*http.Request) {},
			"GET":             func(r *http.Request) { r.Method = "GET" },
			"no body":         func(r *http.Request) { r.Body, r.ContentLength = http.NoBody, 0 },
			"announced body": func(r *http.Request) {
				r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, 0, []string{"chunked"}
			},
			"bounded body": func(r *http.Request) { r.Body, r.ContentLength = http.MaxBytesReader(nil, http.NoBody, 9), 0 },
			"nil body":     func(r *http.Request) { r.Body = nil },
			"HTTP/1.1":     func(r *http.Request) { r.ProtoMajor = 1 },
		} {
			r := httptest.NewRequest("POST", "/a.B/C", strings.NewReader("x"))
			r.ProtoMajor = 2
			r.Header.Set("Content-Type", contentType)
			change(r)
			w := httptest.NewRecorder()
			if p := ProtocolOf(r); p != HTTP {
				p.write(w, r, 429, "")
			} else {
				w.WriteHeader(429)
			}
			call := name == "the call itself" || name == "HTTP/1.1" && !strings.HasPrefix(contentType, "application/grpc+") && contentType != "application/grpc"
			if want := call && contentType != "application/proto"; want != (w.Code == 200) {
				t.Errorf("%s, %s: got %d", contentType, name, w.Code)
			}
		}
	}
}

// TestEscaped: a page shows a Retry-After that is not ours as text.
func TestEscaped(t *testing.T) {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
	w.Header().Set("Retry-After", "<b>")
	r.Header.Set("Accept", "text/html")
	QuotaExceeded.Write(w, r, false)
	if body := w.Body.String(); !strings.Contains(body, "in &lt;b&gt; seconds") {
		t.Errorf("got %s", body)
	}
}

// TestPushback: a retry policy waits for up to a minute, and does not retry after a longer wait.
func TestPushback(t *testing.T) {
	for after, want := range map[string]string{"": "", "1": "1000", "60": "60000", "61": "-1", "86400": "-1"} {
		w := httptest.NewRecorder()
		w.Header().Set("Retry-After", after)
		GRPC.write(w, httptest.NewRequest("POST", "/a.B/C", nil), 429, "")
		if got := w.Header().Get("Grpc-Retry-Pushback-Ms"); got != want {
			t.Errorf("Retry-After %q: got %q, want %q", after, got, want)
		}
	}
}

// FuzzFor compares For with a regular expression for each protocol.
func FuzzFor(f *testing.F) {
	for _, s := range []string{"application/grpc", "application/grpc-web+proto", "application/grpc-web-text", "application/connect+json", "application/proto", "application/json;a", "", " "} {
		f.Add("POST", s, true, "")
	}
	f.Add("GET", "", false, "a=b&connect=v1")
	is := map[Protocol]*regexp.Regexp{
		GRPC:          regexp.MustCompile(`(?is)^application/grpc(\+.*)?$`),
		Web:           regexp.MustCompile(`(?is)^application/grpc-web(\+.*)?$`),
		WebText:       regexp.MustCompile(`(?is)^application/grpc-web-text(\+.*)?$`),
		ConnectStream: regexp.MustCompile(`(?is)^application/connect\+.+$`),
		ConnectUnary:  regexp.MustCompile(`(?is)^application/(proto|json)\+?$`),
	}
	f.Fuzz(func(t *testing.T, method, contentType string, connects bool, query string) {
		r := &http.Request{Method: method, Header: http.Header{}, URL: &url.URL{Path: "/", RawQuery: query}, ProtoMajor: 2, Body: io.NopCloser(strings.NewReader("x")), ContentLength: -1}
		if contentType != "" {
			r.Header["Content-Type"] = []string{contentType}
		}
		if connects {
			r.Header["Connect-Protocol-Version"] = []string{"1"}
		}
		p := ProtocolOf(r)
		if contentType == "" {
			if want := method == "GET" && strings.Contains("&"+query+"&", "&connect=v1&"); want != (p == ConnectUnary) || !want && p != HTTP {
				t.Fatalf("%s ?%q: got %d", method, query, p)
			}
			return
		}
		media, _, _ := strings.Cut(contentType, ";")
		media = strings.TrimSpace(media)
		want := HTTP
		for protocol, re := range is {
			if re.MatchString(media) && len(media) <= 64 {
				want = protocol
			}
		}
		if want == ConnectUnary && strings.Contains(strings.ToLower(media), "json") && !connects {
			want = HTTP
		}
		if method != "POST" && want != ConnectUnary {
			want = HTTP
		}
		if p != want {
			t.Fatalf("%q, Connect-Protocol-Version %v: got %d, want %d", contentType, connects, p, want)
		}
		if p == HTTP {
			return
		}
		w := httptest.NewRecorder()
		w.Header().Set("Retry-After", query)
		p.write(w, r, 429, "Too many requests.")
		size := w.Body.Len()
		for name, values := range w.Header() {
			if name != "Retry-After" {
				size += len(name) + len(strings.Join(values, ""))
			}
		}
		if size > 600 {
			t.Fatalf("%q: an answer of %d bytes", contentType, size)
		}
	})
}
