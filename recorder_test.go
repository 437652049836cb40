package weir_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// settled returns a handler under a limit that refunds errors. The channel gets the outcome
// of each admitted request, and the test must receive from it.
func settled(t *testing.T, limit weir.Limit, next http.Handler) (http.Handler, chan weir.Outcome) {
	t.Helper()
	outcomes := make(chan weir.Outcome, 1)
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Limits: []weir.Limit{limit},
		Settle: func(o weir.Outcome) int64 { outcomes <- o; return weir.RefundErrors(o) },
	}}})
	return l.Handler(next), outcomes
}

// A frontDoor is a server with a limit that refunds errors. Its channels tell what happens
// to each request.
type frontDoor struct {
	addr     string
	arrived  chan bool // the handler has begun
	refused  chan bool
	outcomes chan weir.Outcome
	reached  int // requests that the handler has begun
}

// openDoor starts a front door before the handler next, which sends to arrived when it
// begins.
func openDoor(t *testing.T, limit int64, next http.Handler, arrived chan bool) *frontDoor {
	d := &frontDoor{arrived: arrived, refused: make(chan bool), outcomes: make(chan weir.Outcome)}
	server := httptest.NewServer(must(t, memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{
			Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(limit, 10_000*time.Hour)},
			Settle: func(o weir.Outcome) int64 { d.outcomes <- o; return weir.RefundErrors(o) },
		}},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { d.refused <- true; weir.Refuse(w, r) }),
	}).Handler(next))
	t.Cleanup(server.Close)
	d.addr = server.Listener.Addr().String()
	return d
}

// hangUp connects and sends the first text. When the handler has begun, hangUp sends the
// second text or, if that is "", closes the connection.
func (d *frontDoor) hangUp(t *testing.T, before, after string) {
	t.Helper()
	conn := dial(t, d.addr)
	defer conn.Close()
	if _, err := io.WriteString(conn, before); err != nil {
		t.Fatal(err)
	}
	select {
	case <-d.refused: // the response would come only after the whole body, so do not wait for it
		return
	case <-d.arrived:
		d.reached++
	}
	if after == "" {
		conn.Close()
	} else if _, err := io.WriteString(conn, after); err != nil {
		t.Fatal(err)
	}
	checkHungUp(t, d.reached, <-d.outcomes)
}

func checkHungUp(t *testing.T, request int, o weir.Outcome) {
	t.Helper()
	if !o.HungUp {
		t.Errorf("request %d: got status %d and no hang-up", request, o.Status)
	}
}

// endless returns a handler that writes until a write fails, and then panics.
func endless(arrived chan<- bool, write func(w http.ResponseWriter) error) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		for write(w) == nil {
		}
		panic(http.ErrAbortHandler)
	})
}

// proxyTo returns a reverse proxy that answers 502 when the upstream fails.
func proxyTo(t *testing.T, upstream string) http.Handler {
	target, err := url.Parse(upstream)
	if err != nil {
		t.Fatal(err)
	}
	proxy := httputil.NewSingleHostReverseProxy(target)
	proxy.ErrorHandler = func(w http.ResponseWriter, r *http.Request, err error) { w.WriteHeader(http.StatusBadGateway) }
	return proxy
}

// TestHangUpsAreCharged: with RefundErrors, no more requests reach the handler than the
// limit allows, whatever a client does to make the handler fail.
func TestHangUpsAreCharged(t *testing.T) {
	const limit, clients = 5, 100
	arrived := make(chan bool)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		arrived <- true
		io.Copy(io.Discard, r.Body)
		<-r.Context().Done()
	}))
	defer upstream.Close()
	proxy := proxyTo(t, upstream.URL)
	writes := endless(arrived, func(w http.ResponseWriter) error {
		_, err := w.Write(make([]byte, 1<<16))
		return err
	})
	flushes := endless(arrived, func(w http.ResponseWriter) error {
		w.Write([]byte("data: 1\n\n"))
		err := http.NewResponseController(w).Flush()
		if err != nil {
			w.Header().Set("Failed", err.Error())
		}
		return err
	})
	copies := endless(arrived, func(w http.ResponseWriter) error {
		_, err := io.Copy(w, zeros{})
		return err
	})
	const get, post = "GET / HTTP/1.1\r\nHost: a\r\n", "POST / HTTP/1.1\r\nHost: a\r\n"
	for _, tt := range []struct {
		name    string
		handler http.Handler
		before  string // the client sends this first
		after   string // the client sends this when the handler has begun; if it is "", the client closes the connection
	}{
		{"closes", proxy, get + "\r\n", ""},
		{"half a body, then closes", proxy, post + "Content-Length: 100000\r\n\r\n" + strings.Repeat(".", 50_000), ""},
		{"half a chunked body, then closes", proxy, post + "Transfer-Encoding: chunked\r\n\r\n2710\r\n" + strings.Repeat(".", 10_000), ""},
		{"a malformed chunk", proxy, post + "Transfer-Encoding: chunked\r\n\r\n2710\r\n" + strings.Repeat(".", 10_000), "\r\nZZ\r\n"},
		{"a body that never comes, then closes while it is written to", writes, post + "Content-Length: 1\r\n\r\n", ""},
		{"the same, flushed", flushes, post + "Content-Length: 1\r\n\r\n", ""},
		{"the same, copied", copies, post + "Content-Length: 1\r\n\r\n", ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			door := openDoor(t, limit, tt.handler, arrived)
			for range clients {
				door.hangUp(t, tt.before, tt.after)
			}
			if door.reached != limit {
				t.Errorf("%d of %d requests reached the handler, want %d", door.reached, clients, limit)
			}
		})
	}
	t.Run("HTTP/2 reset", func(t *testing.T) {
		h, outcomes := settled(t, algorithms.FixedWindow(limit, 10_000*time.Hour), proxy)
		server, client := http2Server(t, h)
		reached := 0
		for range clients {
			ctx, hangUp := context.WithCancel(t.Context())
			status := make(chan int, 1)
			go func() { status <- statusOf(ctx, client, server.URL) }()
			select {
			case <-arrived:
				reached++
				hangUp()
				checkHungUp(t, reached, <-outcomes)
				<-status
			case s := <-status:
				if s != http.StatusTooManyRequests {
					t.Fatalf("got %d, want 429", s)
				}
			}
			hangUp()
		}
		if reached != limit {
			t.Errorf("%d of %d requests reached the upstream, want %d", reached, clients, limit)
		}
	})
}

// statusOf sends a GET request to url. It returns the status of the response, or 0 if there
// is none.
func statusOf(ctx context.Context, client *http.Client, url string) int {
	r, _ := http.NewRequestWithContext(ctx, "GET", url, nil)
	res, err := client.Do(r)
	if err != nil {
		return 0
	}
	res.Body.Close()
	return res.StatusCode
}

type zeros struct{}

func (zeros) Read(p []byte) (int, error) { return len(p), nil }

func http2Server(t *testing.T, h http.Handler) (*httptest.Server, *http.Client) {
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.StartTLS()
	t.Cleanup(server.Close)
	return server, server.Client()
}

// A readsBody is a request body that closes a channel when it is first read.
type readsBody struct {
	io.ReadCloser
	once   sync.Once
	begins chan struct{}
}

func (b *readsBody) Read(p []byte) (int, error) {
	b.once.Do(func() { close(b.begins) })
	return b.ReadCloser.Read(p)
}

type begins struct{} // the context key of the channel that a readsBody closes

// TestStalledBodies: a client that does not send its body until the handler gives up, as
// http.TimeoutHandler does, is charged although the answer is 503.
func TestStalledBodies(t *testing.T) {
	const limit, clients = 5, 20
	for _, protocol := range []string{"HTTP/1.1", "HTTP/2.0"} {
		h, outcomes := settled(t, algorithms.FixedWindow(limit, 10_000*time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			go io.Copy(io.Discard, r.Body)
			<-r.Context().Value(begins{}).(chan struct{}) // waits until the body is being read
			w.WriteHeader(http.StatusServiceUnavailable)
		}))
		returned := make(chan bool)
		server, client := http2Server(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() { returned <- true }()
			if r.Proto != protocol {
				t.Errorf("got %s, want %s", r.Proto, protocol)
			}
			body := &readsBody{ReadCloser: r.Body, begins: make(chan struct{})}
			r = r.WithContext(context.WithValue(r.Context(), begins{}, body.begins))
			r.Body = body
			h.ServeHTTP(w, r)
		}))
		if protocol == "HTTP/1.1" {
			client.Transport.(*http.Transport).TLSClientConfig.NextProtos = []string{"http/1.1"}
			client.Transport.(*http.Transport).ForceAttemptHTTP2 = false
		}
		reached := 0
		for range clients {
			postHeldBack(client, server.URL, returned)
			select {
			case o := <-outcomes:
				if reached++; !o.HungUp || o.Status != http.StatusServiceUnavailable {
					t.Errorf("%s: got %+v, want a hang-up answered 503", protocol, o)
				}
			default: // the request was refused
			}
		}
		if reached != limit {
			t.Errorf("%s: %d of %d requests reached the handler, want %d", protocol, reached, clients, limit)
		}
	}
}

// postHeldBack posts a body that it sends only after the handler has returned.
func postHeldBack(client *http.Client, url string, returned <-chan bool) {
	body, send := io.Pipe()
	answered := make(chan bool)
	go func() {
		defer close(answered)
		if res, err := client.Post(url, "text/plain", body); err == nil {
			res.Body.Close()
		}
	}()
	<-returned
	send.Close() // the response of HTTP/1.1 comes after the body has ended
	<-answered
}

// TestHandlersFaults: a mistake of the handler is not taken for a hang-up of the client, so
// RefundErrors gives the units back.
func TestHandlersFaults(t *testing.T) {
	for name, fault := range map[string]http.HandlerFunc{
		"answers": func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(503) },
		"panics":  func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) },
		"reads, and closes": func(w http.ResponseWriter, r *http.Request) {
			io.Copy(io.Discard, r.Body)
			r.Body.Close()
			w.WriteHeader(503)
		},
		"reads what it has closed": func(w http.ResponseWriter, r *http.Request) {
			r.Body.Close()
			r.Body.Read(make([]byte, 1))
			w.WriteHeader(503)
		},
		"writes more than it said": func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Length", "1")
			w.WriteHeader(503)
			io.WriteString(w, "two")
		},
	} {
		h, outcomes := settled(t, algorithms.FixedWindow(5, 10_000*time.Hour), fault)
		server := httptest.NewServer(h)
		res, err := http.Post(server.URL, "text/plain", strings.NewReader("hello"))
		if err == nil {
			res.Body.Close()
		}
		if o := <-outcomes; o.HungUp || weir.RefundErrors(o) != 0 {
			t.Errorf("%s: got %+v, want the units given back", name, o)
		}
		server.Close()
	}
}

// TestHijackedPanics: a request whose handler panics after a Hijack is charged, because the
// client may have closed the connection, which net/http does not report.
func TestHijackedPanics(t *testing.T) {
	h, outcomes := settled(t, algorithms.FixedWindow(5, 10_000*time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := w.(http.Hijacker).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		if _, err := conn.Read(make([]byte, 1)); err != nil {
			panic(http.ErrAbortHandler)
		}
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	for i := range 5 {
		conn := dial(t, server.Listener.Addr().String())
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		conn.Close()
		if o := <-outcomes; !o.HungUp || !o.Panicked || weir.RefundErrors(o) != 1 {
			t.Errorf("request %d: got %+v, want it charged", i, o)
		}
	}
}

// TestStatusOfTheAnswer: an Outcome has the status that the client got.
func TestStatusOfTheAnswer(t *testing.T) {
	for _, tt := range []struct {
		writes []int
		want   int
	}{
		{nil, 200}, {[]int{503}, 503}, {[]int{103, 503}, 503}, {[]int{102, 103}, 200}, {[]int{200, 503}, 200}, {[]int{503, 101}, 503}, {[]int{103, 101}, 101},
	} {
		h, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			for _, status := range tt.writes {
				w.WriteHeader(status)
			}
		}))
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		if o := <-outcomes; o.Status != tt.want {
			t.Errorf("writes %v: got %d, want %d", tt.writes, o.Status, tt.want)
		}
	}
}

type plainWriter struct{ http.ResponseWriter }

// TestRecorderAbilities: behind Settle, the ResponseWriter has the same optional interfaces
// as without it, and no others.
func TestRecorderAbilities(t *testing.T) {
	type (
		w = http.ResponseWriter
		f = http.Flusher
		h = http.Hijacker
		r = io.ReaderFrom
		p = http.Pusher
	)
	abilities := func(w http.ResponseWriter) (s string) {
		for _, a := range []struct {
			name string
			ok   bool
		}{{"f", is[f](w)}, {"h", is[h](w)}, {"r", is[r](w)}, {"p", is[p](w)}} {
			if a.ok {
				s += a.name
			}
		}
		return s
	}
	plain := plainWriter{httptest.NewRecorder()}
	for _, writer := range []http.ResponseWriter{
		plain,
		struct {
			w
			f
		}{w: plain},
		struct {
			w
			h
		}{w: plain},
		struct {
			w
			f
			h
		}{w: plain},
		struct {
			w
			r
		}{w: plain},
		struct {
			w
			f
			r
		}{w: plain},
		struct {
			w
			h
			r
		}{w: plain},
		struct {
			w
			f
			h
			r
		}{w: plain},
		struct {
			w
			p
		}{w: plain},
		struct {
			w
			f
			p
		}{w: plain},
		struct {
			w
			h
			p
		}{w: plain},
		struct {
			w
			f
			h
			p
		}{w: plain},
		struct {
			w
			r
			p
		}{w: plain},
		struct {
			w
			f
			r
			p
		}{w: plain},
		struct {
			w
			h
			r
			p
		}{w: plain},
		struct {
			w
			f
			h
			r
			p
		}{w: plain},
	} {
		var got string
		handler, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = abilities(w) }))
		handler.ServeHTTP(writer, ask("/", "192.0.2.1:4"))
		<-outcomes
		if want := abilities(writer); got != want {
			t.Errorf("got a writer with %q, want %q", got, want)
		}
	}
}

func is[T any](w http.ResponseWriter) bool { _, ok := w.(T); return ok }

// TestSettleHijack: a handler behind Settle can switch protocols, as WebSocket libraries
// do. Its request is settled when the handler returns.
func TestSettleHijack(t *testing.T) {
	for _, announced := range []bool{false, true} {
		h, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			echoHijacked(t, w, announced)
		}))
		server := httptest.NewServer(h)
		r, _ := http.NewRequest("GET", server.URL, nil)
		r.Header.Set("Connection", "Upgrade")
		r.Header.Set("Upgrade", "echo")
		res, err := http.DefaultTransport.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		if res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatalf("got %s, want 101", res.Status)
		}
		conn := res.Body.(io.ReadWriteCloser)
		line := make([]byte, 5)
		if _, err := io.WriteString(conn, "hello"); err != nil {
			t.Error(err)
		}
		if _, err := io.ReadFull(conn, line); err != nil || string(line) != "hello" {
			t.Errorf("got %q, %v, want an echo", line, err)
		}
		select {
		case o := <-outcomes:
			t.Errorf("settled while the connection was in use: %+v", o)
		default:
		}
		conn.Close()
		if o := <-outcomes; o.Status != http.StatusSwitchingProtocols || o.Panicked || o.HungUp {
			t.Errorf("got %+v, want status 101", o)
		}
		server.Close()
	}
}

// echoHijacked takes the connection over and echoes what it reads. If announced is true, it
// sends the status 101 by WriteHeader, and otherwise it writes the 101 to the connection.
func echoHijacked(t *testing.T, w http.ResponseWriter, announced bool) {
	hijacker, ok := w.(http.Hijacker)
	if !ok {
		http.Error(w, "response does not implement http.Hijacker", http.StatusInternalServerError) // the error of gorilla/websocket
		return
	}
	if announced {
		w.Header().Set("Upgrade", "echo")
		w.Header().Set("Connection", "Upgrade")
		w.WriteHeader(http.StatusSwitchingProtocols)
	}
	conn, rw, err := hijacker.Hijack()
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Close()
	if !announced {
		io.WriteString(rw, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: echo\r\nConnection: Upgrade\r\n\r\n")
		rw.Flush()
	}
	io.Copy(conn, rw)
}

// TestSettleFlush: server-sent events arrive when they are flushed, not when the
// handler returns.
func TestSettleFlush(t *testing.T) {
	for _, version := range []int{1, 2} {
		read := make(chan bool)
		h, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			flushThrice(t, w, read)
		}))
		server, client := httptest.NewServer(h), http.DefaultClient
		if version == 2 {
			server.Close()
			server, client = http2Server(t, h)
		}
		res, err := client.Get(server.URL)
		if err != nil {
			t.Fatal(err)
		}
		if res.ProtoMajor != version {
			t.Errorf("got %s, want HTTP/%d", res.Proto, version)
		}
		for range 3 {
			if _, err := io.ReadFull(res.Body, make([]byte, 9)); err != nil {
				t.Error(err)
			}
			read <- true
		}
		if o := <-outcomes; o.Status != 200 || o.Bytes != 27 || o.HungUp {
			t.Errorf("got %+v, want 200 and 27 bytes", o)
		}
		res.Body.Close()
		server.Close()
	}
}

// flushThrice flushes three events, and waits after each until the client has read it.
func flushThrice(t *testing.T, w http.ResponseWriter, read <-chan bool) {
	for range 3 {
		io.WriteString(w, "data: 1\n\n")
		f, ok := w.(http.Flusher)
		if !ok {
			t.Error("the writer is no Flusher")
			return
		}
		f.Flush()
		<-read
	}
}

// copyWriter counts the calls of ReadFrom, which lets net/http use sendfile.
type copyWriter struct {
	*httptest.ResponseRecorder
	reads int
}

func (w *copyWriter) ReadFrom(src io.Reader) (int64, error) {
	w.reads++
	return w.Body.ReadFrom(src)
}

// TestSettleReadFrom: behind Settle, io.Copy still uses ReadFrom of the ResponseWriter,
// and the bytes are counted.
func TestSettleReadFrom(t *testing.T) {
	name := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(name, make([]byte, 100_000), 0o600); err != nil {
		t.Fatal(err)
	}
	h, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f, err := os.Open(name)
		if err != nil {
			t.Error(err)
			return
		}
		defer f.Close()
		http.ServeContent(w, r, "", time.Time{}, f)
	}))
	w := &copyWriter{ResponseRecorder: httptest.NewRecorder()}
	h.ServeHTTP(w, ask("/", "192.0.2.1:4"))
	if o := <-outcomes; w.reads != 1 || o.Bytes != 100_000 || o.Status != 200 {
		t.Errorf("got %d calls of ReadFrom and %+v, want one, 100,000 bytes, 200", w.reads, o)
	}

	server := httptest.NewServer(h)
	defer server.Close()
	res, err := http.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	n, err := io.Copy(io.Discard, res.Body)
	if o := <-outcomes; err != nil || n != 100_000 || o.Bytes != n || o.HungUp {
		t.Errorf("got %d bytes, %v and %+v, want 100,000", n, err, o)
	}
}

// TestSettleResponseController: behind Settle, http.ResponseController finds every ability
// of the ResponseWriter.
func TestSettleResponseController(t *testing.T) {
	h, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c := http.NewResponseController(w)
		for name, err := range map[string]error{
			"SetReadDeadline":  c.SetReadDeadline(time.Now().Add(time.Hour)),
			"SetWriteDeadline": c.SetWriteDeadline(time.Now().Add(time.Hour)),
			"EnableFullDuplex": c.EnableFullDuplex(),
			"Flush":            c.Flush(),
		} {
			if err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
		conn, _, err := c.Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
	}))
	server := httptest.NewServer(h)
	defer server.Close()
	if res, err := http.Get(server.URL); err == nil {
		res.Body.Close()
	}
	if o := <-outcomes; o.Status != 200 {
		t.Errorf("flushed, and then hijacked: got %d, want the 200 that was sent", o.Status)
	}

	plain := plainWriter{httptest.NewRecorder()}
	h, outcomes = settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("a writer that can't flush: got %v, want %v", err, http.ErrNotSupported)
		}
	}))
	h.ServeHTTP(plain, ask("/", "192.0.2.1:4"))
	<-outcomes
}
