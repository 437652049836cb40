// Package demo runs the examples that serve HTTP. It listens on this machine, sends the
// requests of the example to itself, prints them as curl commands with their answers, and
// serves until Ctrl-C.
package demo

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/signal"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// A Request is a step of an example.
type Request struct {
	Say    string            // printed before the request
	Times  int               // 0 means once
	Method string            // "" means GET
	Path   string            // "/hello"
	Header map[string]string // fields to send
	Form   map[string]string // the body, if there is one
	Wait   bool              // before sending, wait as long as the last Retry-After said
	Want   int               // the expected status; 0 means 200. Run fails at any other status
}

// Run serves h on the address of the flag -addr, prints the argument about, and sends the
// requests to h. Then Run returns if the flag -once is set. Without -once it goes on serving
// until Ctrl-C.
func Run(about string, h http.Handler, requests ...Request) {
	addr := flag.String("addr", "localhost:8080", "`address` to listen on; localhost:0 is any free port")
	once := flag.Bool("once", false, "end after the demonstration")
	flag.Parse()
	log.SetFlags(0)

	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once

	base, end := Serve(*addr, h)
	fmt.Println(about)
	if err := show(ctx, base, requests); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
	if !*once && ctx.Err() == nil {
		fmt.Printf("\nThe server listens on %s until Ctrl-C. Try the curl commands above.\n", base)
		<-ctx.Done()
	}
	end()
}

// Serve serves h on addr until the caller calls the function end. base is the URL of the
// server. If the server fails, the program ends.
func Serve(addr string, h http.Handler) (base string, end func()) {
	ln, err := net.Listen("tcp", addr)
	if err != nil {
		log.Fatalf("Cannot listen on %s: %v.\nChoose another address: -addr localhost:0", addr, err)
	}
	srv := &http.Server{Handler: h, ReadHeaderTimeout: 5 * time.Second}
	go func() {
		if err := srv.Serve(ln); !errors.Is(err, http.ErrServerClosed) {
			log.Fatal(err)
		}
	}()
	return "http://" + ln.Addr().String(), func() {
		grace, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		if err := srv.Shutdown(grace); err != nil {
			log.Fatal(err)
		}
	}
}

// sleep waits for d. If ctx ends first, sleep returns the error of ctx.
func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func show(ctx context.Context, base string, requests []Request) error {
	last, refused := "", false
	var wait time.Duration
	for _, q := range requests {
		if q.Say != "" {
			fmt.Printf("\n%s\n", Bold(q.Say))
		}
		if !q.Wait {
			wait = 0
		}
		if err := sleep(ctx, wait); err != nil {
			return err
		}
		if line := q.curl(base); line != last || q.Say != "" {
			fmt.Printf("\n$ %s\n", line)
			last = line
		}
		for range max(q.Times, 1) {
			resp, body, err := q.send(ctx, base)
			if err != nil {
				return err
			}
			full := resp.StatusCode == http.StatusTooManyRequests && !refused // only the first refusal is printed in full
			printResponse(resp, body, full)
			refused = refused || full
			wait, _ = time.ParseDuration(resp.Header.Get("Retry-After") + "s")
			if want := max(q.Want, http.StatusOK); resp.StatusCode != want {
				return fmt.Errorf("%s %s: status %d, want %d", resp.Request.Method, q.Path, resp.StatusCode, want)
			}
		}
	}
	return nil
}

func (q *Request) form() string {
	form := url.Values{}
	for name, value := range q.Form {
		form.Set(name, value)
	}
	return form.Encode()
}

func (q *Request) curl(base string) string {
	line := "curl -i"
	if q.Method != "" && q.Form == nil {
		line += " -X " + q.Method
	}
	for _, name := range slices.Sorted(maps.Keys(q.Header)) {
		line += fmt.Sprintf(" -H '%s: %s'", name, q.Header[name])
	}
	if q.Form != nil {
		line += fmt.Sprintf(" -d '%s'", q.form())
	}
	return line + " " + base + q.Path
}

func (q *Request) send(ctx context.Context, base string) (*http.Response, string, error) {
	req, err := http.NewRequestWithContext(ctx, q.Method, base+q.Path, strings.NewReader(q.form()))
	if err != nil {
		return nil, "", err
	}
	if q.Form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	for name, value := range q.Header {
		req.Header.Set(name, value)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, "", err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, string(body), err
}

// printResponse prints a response: with the header fields of the limiter and the handler if
// full is set, and otherwise on one line.
func printResponse(resp *http.Response, body string, full bool) {
	status := Green(resp.Status)
	if resp.StatusCode >= 400 {
		status = Red(resp.Status)
	}
	body = strings.TrimSpace(body)
	if full {
		fmt.Println(resp.Proto, status)
		for _, name := range slices.Sorted(maps.Keys(resp.Header)) {
			if name != "Date" && name != "Content-Length" { // which are not the limiter's
				fmt.Printf("%s: %s\n", name, resp.Header.Get(name))
			}
		}
		fmt.Printf("\n%s\n", body)
		return
	}
	parts := []string{status}
	limit, err := strconv.Atoi(resp.Header.Get("X-Ratelimit-Limit"))
	if remaining, err2 := strconv.Atoi(resp.Header.Get("X-Ratelimit-Remaining")); err == nil && err2 == nil {
		parts = append(parts, fmt.Sprintf("%s %d of %d left", Bar(remaining, limit), remaining, limit))
	}
	for _, name := range []string{"Ratelimit", "Retry-After"} {
		if value := resp.Header.Get(name); value != "" {
			parts = append(parts, name+": "+value)
		}
	}
	if _, policies, ok := strings.Cut(body, `"violated-policies":`); ok { // the body has problem details
		body = `"violated-policies":` + strings.TrimSuffix(policies, "}")
	}
	fmt.Println(strings.Join(append(parts, body), " | "))
}
