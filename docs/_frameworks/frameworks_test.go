package frameworks

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	coder "github.com/coder/websocket"
	"github.com/gin-gonic/gin"
	gorilla "github.com/gorilla/websocket"
	"github.com/labstack/echo/v5"
	"github.com/labstack/echo/v5/middleware"
	wire "github.com/modelcontextprotocol/go-sdk/jsonrpc"
	"github.com/modelcontextprotocol/go-sdk/mcp"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/jsonrpc"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestPage: the page shows code of this package, which the other tests run. Its code about gRPC
// is of no file; TestGo of package docs compiles it.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../frameworks.md")
	if err != nil {
		t.Fatal(err)
	}
	files, code := []string{"gin.go", "echo.go", "gorilla.go", "coder.go", "mcp.go", "graphql.go"}, ""
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		code += string(b)
	}
	before, _, found := strings.Cut(string(page), "\n## gRPC\n")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(before, -1)
	if !found || len(blocks) < 2 {
		t.Errorf("the page has %d blocks of code, want those of WebSockets and MCP", len(blocks))
	}
	for _, b := range blocks {
		if !strings.Contains(code, b[1]) {
			t.Errorf("no file of this directory has\n%s", b[1])
		}
	}
}

// A framework makes a handler with routes /users/{id}, which answers with the status of the header
// field Want or panics, and a middleware of weir around them.
type framework struct {
	name  string
	route string // of users
	make  func(admit func(*http.Request) (*weir.Admission, error)) http.Handler
}

var frameworks = []framework{
	{"gin", "/users/:id", func(admit func(*http.Request) (*weir.Admission, error)) http.Handler {
		gin.SetMode(gin.ReleaseMode)
		e := gin.New()
		e.Use(gin.CustomRecoveryWithWriter(nil, func(c *gin.Context, _ any) { c.AbortWithStatus(500) }), Gin(admit))
		e.GET("/users/:id", func(c *gin.Context) {
			status := want(c.Request)
			weir.ReportUsage(c.Request.Context(), "tokens", 3)
			c.String(status, "served")
		})
		e.POST("/upload", func(c *gin.Context) { c.Status(upload(c.Request)) })
		e.GET("/fails", func(c *gin.Context) { c.AbortWithError(502, errors.New("x")) })
		return e
	}},
	{"echo", "/users/:id", func(admit func(*http.Request) (*weir.Admission, error)) http.Handler {
		e := echo.New()
		e.Use(middleware.Recover(), Echo(admit))
		e.GET("/users/:id", func(c *echo.Context) error {
			status := want(c.Request())
			weir.ReportUsage(c.Request().Context(), "tokens", 3)
			return c.String(status, "served")
		})
		e.POST("/upload", func(c *echo.Context) error { return c.NoContent(upload(c.Request())) })
		e.GET("/fails", func(c *echo.Context) error { return echo.NewHTTPError(502, "x") })
		return e
	}},
}

func want(r *http.Request) int {
	switch s := r.Header.Get("Want"); s {
	case "":
		return 200
	case "panic":
		panic(s)
	default:
		var status int
		fmt.Sscan(s, &status)
		return status
	}
}

func newLimiter(t *testing.T, store weir.Store, rules ...weir.Rule) *weir.Limiter {
	t.Helper()
	l, err := weir.New(store, weir.Options{Rules: rules})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func memory() weir.Store { return memstore.New(memstore.Options{}) }

func get(h http.Handler, target string, fields ...string) *httptest.ResponseRecorder {
	w, r := httptest.NewRecorder(), httptest.NewRequest("GET", target, nil)
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	h.ServeHTTP(w, r)
	return w
}

// TestRoutes: the keys of routes and path values work, and a refusal is that of net/http.
func TestRoutes(t *testing.T) {
	for _, f := range frameworks {
		t.Run(f.name, func(t *testing.T) {
			var routes []string
			byRoute := func(r *http.Request) (string, bool) {
				key, ok := weir.ByRoute()(r)
				routes = append(routes, key)
				return key, ok
			}
			h := f.make(newLimiter(t, memory(),
				weir.Rule{Name: "user", Key: weir.ByPathValue("id"), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)}},
				weir.Rule{Name: "route", Key: byRoute, Limits: []weir.Limit{algorithms.FixedWindow(5, 1000*time.Hour)}}).Admit)
			var got []int
			for _, target := range []string{"/users/ann", "/users/ann", "/users/ann", "/users/ben", "/users/eve", "/users/bob", "/users/dan", "/nowhere/1", "/nowhere/2"} {
				w := get(h, target)
				got = append(got, w.Code)
				if served := strings.Contains(w.Body.String(), "served"); served != (w.Code == 200) || w.Header().Get("X-Ratelimit-Limit") == "" {
					t.Errorf("%s: %d %s %v", target, w.Code, w.Body, w.Header())
				}
				if w.Code == 429 && (w.Header().Get("Content-Type") != "application/problem+json" || w.Header().Get("Retry-After") == "") {
					t.Errorf("%s: %s %v", target, w.Body, w.Header())
				}
			}
			if want := "[200 200 429 200 200 200 429 404 404]"; fmt.Sprint(got) != want {
				t.Errorf("got %v, want %s", got, want)
			}
			if want := fmt.Sprintf("[%[1]s %[1]s %[1]s %[1]s %[1]s %[1]s %[1]s unmatched unmatched]", f.route); fmt.Sprint(routes) != want {
				t.Errorf("routes %v, want %s", routes, want)
			}
		})
	}
}

// TestStatus: Settle sees the status that the client gets, also of errors and panics, and usage.
func TestStatus(t *testing.T) {
	for _, f := range frameworks {
		for _, c := range []struct {
			target, want string
			status       int
			panicked     bool
			used         int64
		}{
			{"/users/ann", "", 200, false, 3},
			{"/users/ann", "401", 401, false, 3},
			{"/users/ann", "503", 503, false, 3},
			{"/users/ann", "panic", 500, true, 0},
			{"/fails", "", 502, false, 0},
			{"/nowhere", "", 404, false, 0},
		} {
			store, limit := memory(), algorithms.FixedWindow(100, 1000*time.Hour)
			var o weir.Outcome
			h := f.make(newLimiter(t, store,
				weir.Rule{Name: "tokens", Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{limit}, Cost: func(*http.Request) int64 { return 10 },
					Settle: func(got weir.Outcome) int64 { o = got; return got.Used }},
				weir.Rule{Name: "busy", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, time.Hour)}}).Admit)
			var w *httptest.ResponseRecorder
			for range 2 { // the first has nothing in flight any more
				w = get(h, c.target, "Want", c.want)
			}
			if w.Code != c.status || o.Status != c.status || o.Panicked != c.panicked || o.HungUp {
				t.Errorf("%s %s, %s: the client gets %d, Settle %+v, want %d", f.name, c.target, c.want, w.Code, o, c.status)
			}
			d, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "tokens", Limit: limit})
			if err != nil || d.Decisions[0].Remaining != 100-2*c.used {
				t.Errorf("%s %s, %s: %d left, %v, want %d", f.name, c.target, c.want, d.Decisions[0].Remaining, err, 100-2*c.used)
			}
		}
	}
}

// TestUploads: net/http removes the files of an upload.
func TestUploads(t *testing.T) {
	for _, f := range frameworks {
		dir := t.TempDir()
		t.Setenv("TMPDIR", dir)
		server := httptest.NewServer(f.make(newLimiter(t, memory(), weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}).Admit))
		body := "--b\r\nContent-Disposition: form-data; name=f; filename=f\r\n\r\n" + strings.Repeat("x", 3<<20) + "\r\n--b--\r\n"
		res, err := http.Post(server.URL+"/upload", "multipart/form-data; boundary=b", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		server.Close() // waits for the handler
		if files, _ := os.ReadDir(dir); res.StatusCode != 200 || len(files) > 0 {
			t.Errorf("%s: %d, %v", f.name, res.StatusCode, files)
		}
	}
}

// TestSmuggling: the rest of a body that a handler closes early is not served as further requests.
func TestSmuggling(t *testing.T) {
	for _, f := range frameworks {
		server := httptest.NewServer(f.make(newLimiter(t, memory(), weir.Rule{Name: "user", Key: weir.ByJSON("user", 100), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}).Admit))
		conn, err := net.Dial("tcp", server.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		body := strings.Repeat("a", 100+256<<10) + strings.Repeat("GET / HTTP/1.1\r\nHost: x\r\n\r\n", 100)
		go fmt.Fprintf(conn, "POST /upload HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n", len(body), body)
		answers, _ := io.ReadAll(conn)
		if n := strings.Count(string(answers), "HTTP/1.1 "); n != 1 {
			t.Errorf("%s: got %d answers to a request", f.name, n)
		}
		conn.Close()
		server.Close()
	}
}

// upload parses a form, and returns the status.
func upload(r *http.Request) int {
	defer r.Body.Close()
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		return 500
	}
	return 200
}

// TestErrors: of 250 wrong passwords as many get an answer of the handler as ChargeOnly(401) allows,
// wherever the error becomes a 401: in echo's error handler, or in a middleware of gin on either side.
func TestErrors(t *testing.T) {
	wrong := errors.New("wrong password")
	ginErrors := func(c *gin.Context) {
		if c.Next(); len(c.Errors) > 0 {
			c.String(401, "wrong")
		}
	}
	for name, build := range map[string]func(admit func(*http.Request) (*weir.Admission, error)) http.Handler{
		"echo": func(admit func(*http.Request) (*weir.Admission, error)) http.Handler {
			e := echo.New()
			e.HTTPErrorHandler = func(c *echo.Context, err error) {
				if errors.Is(err, wrong) {
					c.String(401, "wrong")
				}
			}
			e.Use(Echo(admit))
			e.GET("/login", func(c *echo.Context) error { return wrong })
			return e
		},
		"gin, errors inside": func(admit func(*http.Request) (*weir.Admission, error)) http.Handler {
			e := gin.New()
			e.Use(Gin(admit), ginErrors)
			e.GET("/login", func(c *gin.Context) { c.Error(wrong) })
			return e
		},
		"gin, errors outside": func(admit func(*http.Request) (*weir.Admission, error)) http.Handler {
			e := gin.New()
			e.Use(ginErrors, Gin(admit))
			e.GET("/login", func(c *gin.Context) { c.Error(wrong) })
			return e
		},
	} {
		h := build(newLimiter(t, memory(), weir.Rule{Name: "login", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)}, Settle: weir.ChargeOnly(401)}).Admit)
		answered := 0
		for range 250 {
			if w := get(h, "/login"); w.Code == 401 && w.Body.String() == "wrong" {
				answered++
			} else if w.Code != 429 {
				t.Errorf("%s: %d %s", name, w.Code, w.Body)
			}
		}
		if answered != 2 {
			t.Errorf("%s: %d of 250 wrong passwords were tried, want 2", name, answered)
		}
	}
}

// TestTimeoutHandler: if it is around the limiter, a handler holds its unit until it returns. Inside,
// the unit is released at the timeout.
func TestTimeoutHandler(t *testing.T) {
	for name, want := range map[string]string{"around": "[503 503 429 429 429 429 429 429] 2", "inside": "[503 503 503 503 503 503 503 503] 8"} {
		synctest.Test(t, func(t *testing.T) {
			limit := newLimiter(t, memory(), weir.Rule{Name: "busy", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(2, time.Hour)}}).Handler
			begun, end := make(chan bool, 8), make(chan bool)
			defer close(end)
			var h http.Handler = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { begun <- true; <-end })
			if name == "around" {
				h = http.TimeoutHandler(limit(h), time.Second, "")
			} else {
				h = limit(http.TimeoutHandler(h, time.Second, ""))
			}
			var got []int
			for range 8 {
				got = append(got, get(h, "/").Code)
			}
			if got := fmt.Sprint(got, len(begun)); got != want {
				t.Errorf("%s: got %s running, want %s", name, got, want)
			}
		})
	}
}

// TestWebSockets: each message of a connection is charged under the key of its upgrade request, and
// one over the limit closes the connection with the wait.
func TestWebSockets(t *testing.T) {
	for name, handler := range map[string]func(*weir.Limiter) http.HandlerFunc{"gorilla": Gorilla, "coder": Coder} {
		t.Run(name, func(t *testing.T) {
			store := memory()
			messages := newLimiter(t, store,
				weir.Rule{Name: "messages", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(3, 3*time.Hour)}},
				weir.Rule{Name: "busy", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.InFlight(1, time.Hour)}})
			connections := newLimiter(t, store, weir.Rule{Name: "connections", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.InFlight(1, time.Hour)}})
			server := httptest.NewServer(connections.Handler(handler(messages)))
			defer server.Close()
			url := "ws" + strings.TrimPrefix(server.URL, "http")

			// A client of gorilla/websocket.
			conn, _, err := gorilla.DefaultDialer.Dial(url, http.Header{"X-User": {"ann"}})
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Close()
			if _, res, err := gorilla.DefaultDialer.Dial(url, http.Header{"X-User": {"ann"}}); err == nil || res.StatusCode != 429 {
				t.Errorf("a second connection: %v", err)
			}
			for i := range 4 {
				conn.WriteMessage(gorilla.TextMessage, []byte("hello"))
				_, text, err := conn.ReadMessage()
				switch closed := (*gorilla.CloseError)(nil); {
				case i < 3 && (err != nil || string(text) != "hello"):
					t.Fatalf("message %d: %s, %v", i, text, err)
				case i == 3 && (!errors.As(err, &closed) || closed.Code != 1013 || !regexp.MustCompile(`^too many messages, try again in 3[56]\d\d seconds$`).MatchString(closed.Text)):
					t.Errorf("message %d: %v", i, err)
				}
			}

			// A client of coder/websocket, with a quota of its own, that hangs up.
			for range 3 {
				ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
				c, _, err := coder.Dial(ctx, url, &coder.DialOptions{HTTPHeader: http.Header{"X-User": {"ben"}}})
				if err != nil {
					t.Fatal(err)
				}
				c.Write(ctx, coder.MessageText, []byte("hello"))
				if _, text, err := c.Read(ctx); string(text) != "hello" || err != nil {
					t.Errorf("%s, %v", text, err)
				}
				c.CloseNow()
				free(t, store, "connections", "ben")
				free(t, store, "busy", "ben")
				cancel()
			}
		})
	}
}

// free waits until nothing is in flight.
func free(t *testing.T, store weir.Store, rule, key string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		d, err := quota.Peek(t.Context(), store, quota.Charge{Rule: rule, Key: key, Limit: algorithms.InFlight(1, time.Hour)})
		if err == nil && d.Decisions[0].Remaining == 1 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%s: %v, %v", rule, d, err)
		}
	}
}

// TestMCP: the client of the SDK sees the refusal of a tool as the error of its call, with the wait,
// and its session goes on.
func TestMCP(t *testing.T) {
	h, err := MCP(memory(), weir.ByHeader("X-User"))
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close) // after the sessions, whose streams stay open
	session := connect(t, server.URL, "ann")
	call := func(s *mcp.ClientSession) error {
		res, err := s.CallTool(t.Context(), &mcp.CallToolParams{Name: "search", Arguments: map[string]any{"title": "weirs"}})
		if err == nil && res.Content[0].(*mcp.TextContent).Text != "found weirs" {
			t.Errorf("got %v", res.Content[0])
		}
		return err
	}
	refused := regexp.MustCompile(`^Too many requests\. Try again in 3[56]\d\d seconds\.\{"reason":"limit","retryAfter":3[56]\d\d}$`)
	for i := range 4 {
		err := call(session)
		if i < 2 {
			if err != nil {
				t.Errorf("call %d: %v", i, err)
			}
			continue
		}
		var e *wire.Error
		if !errors.As(err, &e) || e.Code != jsonrpc.CodeLimited || !refused.MatchString(e.Message+string(e.Data)) {
			t.Errorf("call %d: %v", i, err)
		}
	}
	if _, err := session.ListTools(t.Context(), nil); err != nil {
		t.Errorf("after a refusal: %v", err)
	}
	if err := call(connect(t, server.URL, "ben")); err != nil {
		t.Errorf("another user: %v", err)
	}
	// A batch, as in the protocol before 2025-06-18, hides no calls.
	id := ""
	post := func(body string) string {
		r, _ := http.NewRequest("POST", server.URL, strings.NewReader(body))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Accept": {"application/json, text/event-stream"}, "Mcp-Session-Id": {id}}
		if id == "" {
			r.Header.Del("Mcp-Session-Id")
		}
		res, err := (&http.Client{Transport: named("eve")}).Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		id = cmp.Or(id, res.Header.Get("Mcp-Session-Id"))
		answer, _ := io.ReadAll(res.Body)
		return string(answer)
	}
	post(`{"jsonrpc":"2.0","id":1,"method":"initialize","params":{"protocolVersion":"2025-03-26","capabilities":{},"clientInfo":{"name":"eve","version":"1"}}}`)
	post(`{"jsonrpc":"2.0","method":"notifications/initialized"}`)
	for range 3 {
		var calls []string
		for i := range 20 {
			calls = append(calls, fmt.Sprintf(`{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"search","arguments":{"title":"weirs"}}}`, 10+i))
		}
		if answer := post("[" + strings.Join(calls, ",") + "]"); strings.Contains(answer, "found") || !strings.Contains(answer, `"reason":"limit"`) {
			t.Errorf("a batch of 20: got %s, want it refused", answer)
		}
	}
}

// A named transport sends the name of its user.
type named string

func (n named) RoundTrip(r *http.Request) (*http.Response, error) {
	r = r.Clone(r.Context())
	r.Header.Set("X-User", string(n))
	return http.DefaultTransport.RoundTrip(r)
}

func connect(t *testing.T, url, user string) *mcp.ClientSession {
	t.Helper()
	client := mcp.NewClient(&mcp.Implementation{Name: "reader", Version: "1"}, nil)
	s, err := client.Connect(t.Context(), &mcp.StreamableClientTransport{Endpoint: url, HTTPClient: &http.Client{Transport: named(user)}}, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}
