package docs_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
)

// An answer is a response of the server, with its time.
type answer struct {
	at         time.Time
	status     int
	retryAfter int // in seconds; 0 means that the answer has no Retry-After
}

// server starts a server that allows 2 requests a second and records its answers.
func server(t *testing.T, dialect headers.Dialect) (url string, answers func() []answer) {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(2, time.Second)}}},
		Headers: dialect,
	})
	if err != nil {
		t.Fatal(err)
	}
	h := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }))
	var mu sync.Mutex
	var list []answer
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		rec := httptest.NewRecorder()
		h.ServeHTTP(rec, r)
		seconds, _ := strconv.Atoi(rec.Header().Get("Retry-After"))
		list = append(list, answer{time.Now(), rec.Code, seconds})
		for name, values := range rec.Header() {
			w.Header()[name] = values
		}
		w.WriteHeader(rec.Code)
		w.Write(rec.Body.Bytes())
	}))
	t.Cleanup(s.Close)
	return s.URL + "/", func() []answer {
		mu.Lock()
		defer mu.Unlock()
		return list
	}
}

// command returns a command that runs the block b of docs/clients.md against the server at
// url. It skips the test if the block is no program, or if its interpreter is not
// installed.
func command(t *testing.T, b block, url string) *exec.Cmd {
	t.Helper()
	file := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(b.text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	has := func(program string) bool {
		_, err := exec.LookPath(program)
		return err == nil
	}
	var cmd *exec.Cmd
	switch {
	case b.info == "go":
		cmd = exec.Command("go", "run", file("main.go"), url)
	case b.info == "sh" && (has("curl") || os.Getenv("CI") != ""):
		const example = "http://localhost:8080/"
		if !strings.Contains(b.text, example) {
			t.Fatalf("%v: the program does not call %s", b, example)
		}
		// the page shows one request; the test needs five
		once := strings.ReplaceAll(b.text, example, url)
		cmd = exec.Command("sh", "-e", "-c", strings.Repeat(once+"\n", 5))
	case b.info == "python" && has("python3"):
		cmd = exec.Command("python3", file("client.py"), url)
	case b.info == "js" && has("node"):
		cmd = exec.Command("node", file("client.mjs"), url)
	default:
		t.Skipf("%s: nothing to run it with", b.info)
	}
	cmd.Dir = root
	return cmd
}

// TestClients runs each client of docs/clients.md against a server that allows 2 requests a
// second. Each client makes five requests. All of them must be served in the end, and no
// request may come before the Retry-After of an earlier answer has passed.
func TestClients(t *testing.T) {
	if testing.Short() {
		t.Skip("clients wait whole seconds")
	}
	blocks, _ := split(t, "docs/clients.md")
	ran := 0
	for _, b := range blocks {
		if b.info == "" {
			continue
		}
		ran++
		for name, dialect := range map[string]headers.Dialect{"ietf": headers.IETF, "retry-after": headers.None} {
			t.Run(fmt.Sprintf("%s/%d/%s", b.info, b.line, name), func(t *testing.T) {
				t.Parallel()
				runClient(t, b, dialect)
			})
		}
	}
	if ran < 5 {
		t.Errorf("ran %d clients, want more", ran)
	}
}

// runClient runs the client in b against a server that speaks a dialect, and checks when
// its requests come.
func runClient(t *testing.T, b block, dialect headers.Dialect) {
	t.Helper()
	url, answers := server(t, dialect)
	if out, err := command(t, b, url).CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", b, err, out)
	}
	served, refused, until := 0, 0, time.Time{}
	for _, a := range answers() {
		if a.at.Before(until) {
			t.Errorf("%v: a request came %v before Retry-After had passed", b, until.Sub(a.at))
		}
		switch a.status {
		case http.StatusOK:
			served++
		case http.StatusTooManyRequests:
			refused++
			until = a.at.Add(time.Duration(a.retryAfter) * time.Second)
		}
	}
	if served != 5 {
		t.Errorf("%v: served %d times, want 5", b, served)
	}
	// If the server sends the field RateLimit, clients that read it are never
	// refused. Other clients are refused at least once, unless they have a
	// limit of their own or start slowly.
	transport := strings.Contains(b.text, "Transport(")
	reads := transport || strings.Contains(b.text, `"RateLimit"`)
	switch {
	case reads && dialect == headers.IETF && refused > 0:
		t.Errorf("%v: refused %d times, although RateLimit said that nothing remained", b, refused)
	case !(reads && dialect == headers.IETF) && !transport && b.info != "sh" && refused == 0:
		t.Errorf("%v: never refused, so the test shows nothing", b)
	}
}
