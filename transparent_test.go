package weir_test

import (
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
)

// answering are handlers, by path, that use what a server of net/http offers. Each returns what it
// has seen.
var answering = map[string]func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any{
	"/nothing": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any { return nil },
	"/no-content": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.WriteHeader(204)
		_, err := io.WriteString(w, "body")
		return err
	},
	"/not-modified": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Content-Length", "10")
		w.WriteHeader(304)
		return nil
	},
	"/twice": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.WriteHeader(201)
		w.WriteHeader(202)
		return nil
	},
	"/interim": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Link", "</a>")
		w.WriteHeader(103)
		w.Header().Del("Link")
		_, err := io.WriteString(w, "body")
		return err
	},
	"/trailers": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		w.Header().Set("Trailer", "A")
		io.WriteString(w, "body")
		err := rc.Flush()
		w.Header().Set("A", "1")
		w.Header().Set(http.TrailerPrefix+"B", "2")
		return err
	},
	"/flush-first": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		err := rc.Flush()
		w.WriteHeader(500)
		return err
	},
	"/empty-write": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		_, err := w.Write(nil)
		w.WriteHeader(500)
		return err
	},
	"/too-much": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Content-Length", "3")
		_, err := io.WriteString(w, "body")
		return err
	},
	"/too-little": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		w.Header().Set("Content-Length", "30")
		_, err := io.WriteString(w, "body")
		return err
	},
	"/copy": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		n, err := io.Copy(w, io.MultiReader(strings.NewReader(strings.Repeat("x", 50)), errorReader{}))
		return fmt.Sprint(n, err)
	},
	"/file": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		http.ServeFile(w, r, "go.mod")
		return nil
	},
	"/abort": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		io.WriteString(w, "body")
		rc.Flush()
		panic(http.ErrAbortHandler)
	},
	"/read": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		b, err := io.ReadAll(r.Body)
		return fmt.Sprintf("%.20q %d %v %v", b, len(b), err, r.Trailer)
	},
	"/close": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any { return r.Body.Close() },
	"/full-duplex": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		err := rc.EnableFullDuplex()
		io.WriteString(w, "first")
		rc.Flush()
		b, _ := io.ReadAll(r.Body)
		return fmt.Sprint(err, len(b))
	},
	"/late": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		err := rc.SetReadDeadline(time.Now().Add(-time.Second))
		_, read := io.ReadAll(r.Body)
		return fmt.Sprint(err, read != nil)
	},
	"/timeout": func(w http.ResponseWriter, r *http.Request, _ *http.ResponseController) any {
		http.TimeoutHandler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { <-r.Context().Done() }),
			time.Millisecond, "slow").ServeHTTP(w, r)
		return nil
	},
	"/hijack": func(w http.ResponseWriter, r *http.Request, rc *http.ResponseController) any {
		conn, _, err := rc.Hijack()
		if err == nil {
			defer conn.Close()
			io.WriteString(conn, "HTTP/1.1 200 OK\r\n\r\nraw")
			_, err = io.WriteString(w, "late")
		}
		return err
	},
}

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("source") }

// TestTransparent: apart from the fields about limits, a client and the handlers around a Limiter
// see the same as without it, and so does the handler.
func TestTransparent(t *testing.T) {
	plain := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1e6, 10_000*time.Hour)}}
	settled, held, read := plain, plain, plain
	settled.Settle = weir.RefundErrors
	held.Limits = []weir.Limit{algorithms.InFlight(9, time.Hour)}
	read.Key, read.Settle = weir.ByJSON("user", 1000), weir.RefundErrors
	var running sync.WaitGroup
	var mu sync.Mutex
	var seen []string
	serve := func(limit func(http.Handler) http.Handler) *httptest.Server {
		inner := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			r.Pattern = fmt.Sprint(answering[r.URL.Path](w, r, http.NewResponseController(w)))
		}))
		server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			running.Add(1)
			defer running.Done()
			defer func() {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprint(r.Method, r.URL, r.Header, r.Pattern))
			}()
			inner.ServeHTTP(w, r)
		}))
		server.Config.ErrorLog = log.New(io.Discard, "", 0)
		server.Start()
		return server
	}
	exchange := func(server *httptest.Server, request string) string {
		conn := dial(t, server.Listener.Addr().String())
		defer conn.Close()
		go io.WriteString(conn, request+"HEAD /nothing HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
		answers, err := io.ReadAll(conn)
		running.Wait()
		text := ofTheServer.ReplaceAllString(fmt.Sprintf("%s%q %v", answers, seen, err != nil), "")
		seen = nil
		return text
	}
	without := serve(func(h http.Handler) http.Handler { return h })
	defer without.Close()
	for name, o := range map[string]weir.Options{
		"plain":         {Rules: []weir.Rule{plain}, Headers: headers.IETF},
		"NoFromContext": {Rules: []weir.Rule{plain}, NoFromContext: true},
		"Settle":        {Rules: []weir.Rule{settled}},
		"InFlight":      {Rules: []weir.Rule{held}, MaxWait: time.Second},
		"ByJSON":        {Rules: []weir.Rule{read}},
		"KeepHeaders":   {Rules: []weir.Rule{plain}},
	} {
		limit := must(t, memory(), o).Handler
		if name == "KeepHeaders" {
			limit = func(h http.Handler) http.Handler { return must(t, memory(), o).Handler(weir.KeepHeaders(h)) }
		}
		with := serve(limit)
		for path := range answering {
			for _, request := range []string{
				"GET %s HTTP/1.1\r\nHost: x\r\n\r\n",
				"HEAD %s HTTP/1.1\r\nHost: x\r\n\r\n",
				"GET %s HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
				"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n{\"user\":1",
				"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\nTrailer: A\r\n\r\n2\r\n{}\r\n0\r\nA: 1\r\n\r\n",
				"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: 300000\r\n\r\n" + strings.Repeat("a", 300_000),
				"POST %s HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n493e0\r\n" + strings.Repeat("a", 300_000) + "\r\n0\r\n\r\n",
			} {
				if len(request) > 1000 && path != "/close" && path != "/read" && path != "/nothing" {
					continue // the rest of the body may reset the connection before the answer arrives
				}
				request := fmt.Sprintf(request, path)
				if got, want := exchange(with, request), exchange(without, request); got != want {
					t.Errorf("%s, %.60q: got %q, want %q", name, request, got, want)
				}
			}
		}
		with.Close()
	}
}

// ofTheServer matches the lines that differ between two servers: fields about limits, and times.
var ofTheServer = regexp.MustCompile(`(X-)?Rate[lL]imit[^:]*:.*\r\n|(Date|Last-Modified):.*\r\n`)
