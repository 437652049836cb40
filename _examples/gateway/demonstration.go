package main

import (
	"context"
	_ "embed"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/memstore"
)

//go:embed limits.yaml
var limitsFile string

// demonstrate runs a gateway on free ports, and plays its upstream, its clients and its
// operator. It sets X-Forwarded-For as a proxy in front of the gateway would.
func demonstrate(ctx context.Context) error {
	file, err := newLimits()
	if err != nil {
		return err
	}
	defer file.remove()
	upstream, endUpstream := demo.Serve("localhost:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "the upstream has served %s\n", r.URL.Path)
	}))
	defer endUpstream()
	to, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	g, err := newGateway(file.path, memstore.New(memstore.Options{}), slog.New(slog.NewTextHandler(file.reloaded, nil)))
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	watched := make(chan error)
	go func() { watched <- g.rules.Watch(ctx) }()
	defer func() { stop(); <-watched }()

	const password = "secret"
	outside, endOutside := demo.Serve("localhost:0", g.public(to))
	defer endOutside()
	inside, endInside := demo.Serve("localhost:0", g.internal(password))
	defer endInside()
	for _, s := range steps(outside, inside, password) {
		if err := s.run(ctx, file); err != nil {
			return err
		}
	}
	return nil
}

// A step is an edit of the file, if old is not "", and then requests that are answered
// with the status want.
type step struct {
	say      string
	old, new string
	ask      question
	times    int // 0 means once
	want     int
}

// steps are those of the demonstration. Clients ask outside; proxies, operators and
// Prometheus ask inside.
func steps(outside, inside, password string) []step {
	const first, second, denied = "198.51.100.1", "198.51.100.2", "203.0.113.66"
	ask := func(base, path, client string) question {
		return question{method: "GET", url: base + path, header: map[string]string{"X-Forwarded-For": client}}
	}
	auth := func(query, client string) question {
		q := ask(inside, "/auth"+query, client)
		q.header["X-Forwarded-Method"], q.header["X-Forwarded-Uri"] = "GET", "/b"
		return q
	}
	operate := func(method, path string) question {
		return question{method: method, url: inside + "/admin" + path, password: password}
	}
	return []step{
		{say: "Each client has 5 requests a minute.", ask: ask(outside, "/a", first), times: 5, want: 200},
		{ask: ask(outside, "/a", first), want: 429},
		{say: "An address that the file denies is refused at once.", ask: ask(outside, "/a", denied), want: 429},
		{say: "The file is edited, 7 instead of 5: it holds at once, and what was spent stays spent.",
			old: "limit: 5,", new: "limit: 7,", ask: ask(outside, "/a", first), times: 2, want: 200},
		{ask: ask(outside, "/a", first), want: 429},
		{say: "A mistake in the file changes nothing.", old: "limit: 7,", new: "limit: 0,", ask: ask(outside, "/a", first), want: 429},
		{say: "A client reads its quota, free of charge.", ask: ask(outside, "/rate_limit", second), want: 200},
		{say: "The operator gives the first client its whole quota back.", ask: operate("POST", "/reset?rule=client&key="+first), want: 200},
		{ask: ask(outside, "/a", first), want: 200},
		{say: "Without the password that is refused.", ask: question{method: "POST", url: inside + "/admin/reset?rule=client&key=" + first}, want: 401},
		{say: "Caddy and Traefik ask whether a request may pass.", ask: auth("", second), times: 7, want: 200},
		{ask: auth("", second), want: 429},
		{say: "nginx asks too. It needs another status.", ask: auth("?refuse=403", second), want: 403},
		{say: "The metrics have counted all of it.", ask: question{method: "GET", url: inside + "/metrics"}, want: 200},
	}
}

func (s *step) run(ctx context.Context, file *limits) error {
	if s.say != "" {
		fmt.Printf("\n%s\n", s.say)
	}
	if s.old != "" {
		if err := file.edit(ctx, s.old, s.new); err != nil {
			return err
		}
	}
	fmt.Printf("\n$ %s\n", s.ask.curl())
	for range max(1, s.times) {
		status, err := s.ask.send(ctx)
		if err != nil {
			return err
		}
		if status != s.want {
			return fmt.Errorf("status %d, want %d", status, s.want)
		}
	}
	return nil
}

// limits is a copy of limits.yaml that the demonstration edits.
type limits struct {
	path, text string
	reloaded   reloads
}

func newLimits() (*limits, error) {
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		return nil, err
	}
	l := &limits{path: filepath.Join(dir, "limits.yaml"), text: limitsFile, reloaded: make(reloads, 1)}
	return l, l.write()
}

func (l *limits) write() error { return os.WriteFile(l.path, []byte(l.text), 0o600) }
func (l *limits) remove()      { os.RemoveAll(filepath.Dir(l.path)) }

// edit changes the file, and waits until the gateway has read it.
func (l *limits) edit(ctx context.Context, old, new string) error {
	l.text = strings.Replace(l.text, old, new, 1)
	if err := l.write(); err != nil {
		return err
	}
	select {
	case <-l.reloaded:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// reloads prints the lines of a log, and receives a value when the file was read again.
type reloads chan bool

func (r reloads) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(string(line), " ") // without the time
	fmt.Print(text)
	if strings.Contains(text, "reloaded") {
		select {
		case r <- true:
		default: // edit does not wait
		}
	}
	return len(line), nil
}

// A question is a request that can be sent, and printed as a command.
type question struct {
	method, url, password string
	header                map[string]string
}

func (q question) curl() string {
	line := "curl -i"
	if q.password != "" {
		line += " -u :" + q.password
	}
	if q.method != "GET" {
		line += " -X " + q.method
	}
	for _, name := range []string{"X-Forwarded-For", "X-Forwarded-Method", "X-Forwarded-Uri"} {
		if value, ok := q.header[name]; ok {
			line += fmt.Sprintf(" -H '%s: %s'", name, value)
		}
	}
	return line + " '" + q.url + "'"
}

// send sends the request, and prints the important parts of the answer.
func (q question) send(ctx context.Context) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, q.method, q.url, nil)
	if err != nil {
		return 0, err
	}
	for name, value := range q.header {
		req.Header.Set(name, value)
	}
	if q.password != "" {
		req.SetBasicAuth("", q.password)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	fmt.Print(resp.Status)
	for _, name := range []string{"Retry-After", "Ratelimit"} {
		if value := resp.Header.Get(name); value != "" {
			fmt.Printf(" | %s: %s", name, value)
		}
	}
	if len(body) > 0 {
		fmt.Printf(" | %s", strings.TrimSpace(string(body)))
	}
	fmt.Println()
	return resp.StatusCode, err
}
