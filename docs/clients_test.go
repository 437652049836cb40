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
	"github.com/seed83679106/weir/internal/test/rounds"
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

// mains call the functions of the clients of docs/waiting.md five times, and print each status. The
// text of a client stands for %s.
var mains = []struct{ function, program string }{
	{"func newClient(", `package main

import (
	"fmt"
	"log"
	"net/http"
	"os"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

%s
func main() {
	client, err := newClient(memstore.New(memstore.Options{}))
	if err != nil {
		log.Fatal(err)
	}
	for range 5 {
		res, err := client.Get(os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		res.Body.Close()
		fmt.Println(res.Status)
	}
}
`},
	{"func get(", `package main

import (
	"context"
	"fmt"
	"log"
	"math/rand/v2"
	"net/http"
	"os"
	"time"

	"github.com/seed83679106/weir/headers"
)

%s
func main() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	for range 5 {
		res, err := get(ctx, os.Args[1])
		if err != nil {
			log.Fatal(err)
		}
		res.Body.Close()
		fmt.Println(res.Status)
	}
}
`},
	{"def get(", "import sys\n%s\nfor _ in range(5):\n    print(get(sys.argv[1]).status)\n"},
	{"async function get(", "%s\nfor (let i = 0; i < 5; i++) console.log((await get(process.argv[2])).status);\n"},
	{"curl ", "%[1]s\n%[1]s\n%[1]s\n%[1]s\n%[1]s\n"},
}

// program returns the client in b as a program, or "" if b is no client.
func program(b block) string {
	for _, m := range mains {
		if strings.Contains(b.text, m.function) {
			return fmt.Sprintf(m.program, b.text)
		}
	}
	return ""
}

// command returns a command that runs the client b of docs/waiting.md against the server at
// url. It skips the test if the client's interpreter is not installed.
func command(t *testing.T, b block, url string) *exec.Cmd {
	t.Helper()
	file := func(name string) string {
		path := filepath.Join(t.TempDir(), name)
		if err := os.WriteFile(path, []byte(program(b)), 0o644); err != nil {
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
		cmd = exec.Command("sh", "-e", "-c", strings.ReplaceAll(program(b), example, url))
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

// TestClients runs each client of docs/waiting.md against a server that allows 2 requests a
// second. Each client makes five requests. All of them must be served in the end, and no
// request may come before the Retry-After of an earlier answer has passed.
func TestClients(t *testing.T) {
	rounds.Slow(t, "clients wait whole seconds")
	blocks, _ := split(t, "docs/waiting.md")
	ran := 0
	for _, b := range blocks {
		if program(b) == "" {
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
	if ran != len(mains) {
		t.Errorf("ran %d clients, want %d", ran, len(mains))
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
	// If the server sends the field RateLimit, a client that reads it is never
	// refused. Other clients are refused at least once, unless they start slowly.
	reads := strings.Contains(b.text, "Transport(") && dialect == headers.IETF
	switch {
	case reads && refused > 0:
		t.Errorf("%v: refused %d times, although RateLimit said that nothing remained", b, refused)
	case !reads && b.info != "sh" && refused == 0:
		t.Errorf("%v: never refused, so the test shows nothing", b)
	}
}
