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

// demonstrate plays the upstream, the clients and the operator of a gateway on
// free ports. It is a proxy too, for it tells the gateway who the clients are.
func demonstrate(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "gateway")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	limits, limitsText := filepath.Join(dir, "limits.yaml"), limitsFile
	if err := os.WriteFile(limits, []byte(limitsText), 0o600); err != nil {
		return err
	}
	upstream, endUpstream := demo.Serve("localhost:0", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, "the upstream has served %s\n", r.URL.Path)
	}))
	defer endUpstream()
	to, err := url.Parse(upstream)
	if err != nil {
		return err
	}
	logged := make(reports, 1)
	g, err := newGateway(limits, memstore.New(memstore.Options{}), slog.New(slog.NewTextHandler(logged, nil)))
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
	edit := func(old, new string) func() error {
		return func() error {
			limitsText = strings.Replace(limitsText, old, new, 1)
			if err := os.WriteFile(limits, []byte(limitsText), 0o600); err != nil {
				return err
			}
			return logged.wait(ctx)
		}
	}
	for _, step := range []struct {
		say   string
		do    func() error
		ask   question
		times int
		want  int
	}{
		{say: "Each client has 5 requests a minute.", ask: ask(outside, "/a", first), times: 5, want: 200},
		{ask: ask(outside, "/a", first), want: 429},
		{say: "An address that the file denies is refused at once.", ask: ask(outside, "/a", denied), want: 429},
		{say: "The file is edited, 7 instead of 5: it holds at once, and what was spent stays spent.",
			do: edit("limit: 5,", "limit: 7,"), ask: ask(outside, "/a", first), times: 2, want: 200},
		{ask: ask(outside, "/a", first), want: 429},
		{say: "A mistake in the file changes nothing.", do: edit("limit: 7,", "limit: 0,"), ask: ask(outside, "/a", first), want: 429},
		{say: "A client reads its quota, free of charge.", ask: ask(outside, "/rate_limit", second), want: 200},
		{say: "The operator gives the first client its whole quota back.", ask: operate("POST", "/reset?rule=client&key="+first), want: 200},
		{ask: ask(outside, "/a", first), want: 200},
		{say: "Without the password that is refused.", ask: question{method: "POST", url: inside + "/admin/reset?rule=client&key=" + first}, want: 401},
		{say: "Caddy and Traefik ask whether a request may pass.", ask: auth("", second), times: 7, want: 200},
		{ask: auth("", second), want: 429},
		{say: "nginx asks too. It needs another status.", ask: auth("?refuse=403", second), want: 403},
		{say: "The metrics have counted all of it.", ask: question{method: "GET", url: inside + "/metrics"}, want: 200},
	} {
		if step.say != "" {
			fmt.Printf("\n%s\n", step.say)
		}
		if step.do != nil {
			if err := step.do(); err != nil {
				return err
			}
		}
		fmt.Printf("\n$ %s\n", step.ask.curl())
		for range max(1, step.times) {
			status, err := step.ask.send(ctx)
			if err != nil {
				return err
			}
			if status != step.want {
				return fmt.Errorf("status %d, want %d", status, step.want)
			}
		}
	}
	return nil
}

// reports is a log that says when the file was read again.
type reports chan bool

func (r reports) Write(line []byte) (int, error) {
	_, text, _ := strings.Cut(string(line), " ") // without the time
	fmt.Print(text)
	if strings.Contains(text, "reloaded") {
		select {
		case r <- true:
		default: // nobody waits
		}
	}
	return len(line), nil
}

func (r reports) wait(ctx context.Context) error {
	select {
	case <-r:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// A question is a request and how it is shown.
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

// send asks, and prints of the answer what matters.
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
