package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A partner is the server to which requests go out: it records when they arrive, and
// responds.
type partner struct {
	mu       sync.Mutex
	start    time.Time
	arrivals []string // "at: body"
	answer   func(n int, r *http.Request) *http.Response
}

func (p *partner) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals = append(p.arrivals, strings.TrimSuffix(fmt.Sprintf("%v %s", time.Since(p.start), body), " "))
	if p.answer != nil {
		if res := p.answer(len(p.arrivals), r); res != nil {
			return res, nil
		}
	}
	return response(200), nil
}

func response(status int, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("body"))}
}

func outbound(t *testing.T, store weir.Store, p http.RoundTripper, o weir.Options, limit weir.Limit) *http.Client {
	t.Helper()
	return outboundWith(t, store, weir.TransportOptions{Base: p}, o, limit)
}

func outboundWith(t *testing.T, store weir.Store, to weir.TransportOptions, o weir.Options, limit weir.Limit) *http.Client {
	t.Helper()
	o.Rules = []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{limit}}}
	return &http.Client{Transport: transport(t, must(t, store, o), to)}
}

// checkGet expects 200 from the partner.
func checkGet(t *testing.T, client *http.Client, limit weir.Limit) {
	t.Helper()
	if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != 200 {
		t.Errorf("%v: got %v, %v", limit, res, err)
	}
}

// TestTransport: requests wait for their turns, and each host has a queue of its own. A
// request whose turn is later than MaxWait gets a LimitedError.
func TestTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &partner{start: time.Now()}
		client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: 2 * time.Second}, algorithms.GCRA(1, time.Second))
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				_, err := client.Get("http://example.com/")
				var limited *weir.RefusedError
				if (i == 3) != errors.As(err, &limited) || i == 3 && limited.RetryAfter() != 3*time.Second {
					t.Errorf("request %d: got %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if _, err := client.Get("http://example.org/"); err != nil {
			t.Errorf("another host: %v", err)
		}
		if want := []string{"0s", "1s", "2s", "2s"}; !slices.Equal(p.arrivals, want) {
			t.Errorf("arrivals at %v, want %v", p.arrivals, want)
		}
	})
}

// TestTransportPauses: a response to one replica pauses the key in the other replica too.
func TestTransportPauses(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer *http.Response
		want   string
	}{
		{"nothing", nil, "1s"},
		{"Retry-After", response(429, "Retry-After", "30"), "30s"},
		{"a date", response(503, "Retry-After", "Sat, 01 Jan 2000 00:01:00 GMT"), "1m0s"},
		{"nothing remains", response(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684820"), "20s"},
		{"nothing remains, IETF", response(200, "RateLimit", `"default";r=0;t=7`), "7s"},
		{"some remains", response(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684820"), "1s"},
		{"Retry-After of another status", response(200, "Retry-After", "30"), "1s"},
	} {
		for _, limit := range []weir.Limit{algorithms.GCRA(1, time.Second), algorithms.SlidingLog(1, time.Second), algorithms.LeakyBucket(100, 1, time.Second)} {
			synctest.Test(t, func(t *testing.T) {
				store, start := memstore.New(memstore.Options{}), time.Now()
				told := &partner{start: start, answer: func(int, *http.Request) *http.Response { return c.answer }}
				other := &partner{start: start}
				o := weir.Options{MaxWait: time.Hour}
				one := outbound(t, store, told, weir.Options{}, limit)
				two := outbound(t, store, other, o, limit)
				res, err := one.Get("http://example.com/")
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if _, err := two.Get("http://example.com/"); err != nil {
					t.Fatal(err)
				}
				if got := other.arrivals[0]; got != c.want {
					t.Errorf("%s, %v: the other replica sends at %s, want %s", c.name, limit, got, c.want)
				}
			})
		}
	}
}

// TestTransportPausedLines: under several algorithms, requests wait during a pause and are
// then sent as their limit allows, even if other processes ask the store while the pause is
// being made.
func TestTransportPausedLines(t *testing.T) {
	for _, c := range []struct {
		limit weir.Limit
		want  []string
	}{
		{algorithms.SlidingLog(1, time.Second), []string{"0s", "6s", "7s", "8s"}},
		{algorithms.GCRA(1, time.Second), []string{"0s", "6s", "7s", "8s"}},
		{algorithms.TokenBucket(1, 1, time.Second), []string{"0s", "6s", "7s", "8s"}},
		{algorithms.FixedWindow(1, time.Second), []string{"0s", "6s", "7s", "8s"}},
		{algorithms.AnchoredWindow(1, time.Second), []string{"0s", "6s", "7s", "8s"}},
		{algorithms.SlidingLog(2, time.Second), []string{"0s", "6s", "6s", "7s"}},
		{algorithms.LeakyBucket(3, 1, time.Second), []string{"0s", "6s", "7s", "8s"}},
		{algorithms.LeakyBucket(100, 1, time.Second), []string{"0s", "6s", "7s", "8s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			memory := memstore.New(memstore.Options{})
			p := &partner{start: time.Now(), answer: func(n int, r *http.Request) *http.Response {
				if n == 1 {
					return response(503, "Retry-After", "6")
				}
				return nil
			}}
			o := weir.Options{MaxWait: 20 * time.Second}
			other := outbound(t, memory, p, o, c.limit)
			var wg sync.WaitGroup
			ask := func() { checkGet(t, other, c.limit) }
			asks := 0
			one := outbound(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				err := memory.Take(ctx, tx)
				if asks++; asks > 1 && asks <= 4 { // the first call is for the request, and the other calls make the pause
					wg.Go(ask)
					synctest.Wait()
				}
				return err
			}), p, o, c.limit)
			one.Get("http://example.com/")
			for ; asks < 4; asks++ {
				wg.Go(ask)
				synctest.Wait()
			}
			wg.Wait()
			if !slices.Equal(p.arrivals, c.want) {
				t.Errorf("%v: arrivals at %v, want %v", c.limit, p.arrivals, c.want)
			}
		})
	}
}

type pauseCase struct {
	name     string
	maxPause time.Duration
	answer   *http.Response
	want     string // when the next request is sent
	logged   string // the pause of the answer, if MaxPause cuts it
}

// TestMaxPause: a pause lasts at most MaxPause, the first pause that is cut is logged, and
// a request is not retried if its response asks for a longer pause.
func TestMaxPause(t *testing.T) {
	for _, c := range []pauseCase{
		{"a foreign 200", 0, response(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "86400"), "1m0s", "24h0m0s"},
		{"a day", 0, response(429, "Retry-After", "86400"), "1m0s", "24h0m0s"},
		{"for good", 0, response(503, "Retry-After", "99999999999999999999"), "1m0s", "24h0m0s"},
		{"a minute", 0, response(503, "Retry-After", "60"), "1m0s", ""},
		{"an hour", time.Hour, response(503, "Retry-After", "3600"), "1h0m0s", ""},
		{"a second", time.Second, response(503, "Retry-After", "5"), "1s", "5s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			checkMaxPause(t, c)
		})
	}
}

// checkMaxPause sends two requests, to which the partner responds by asking for a pause.
func checkMaxPause(t *testing.T, c pauseCase) {
	var lines bytes.Buffer
	p := &partner{start: time.Now(), answer: func(n int, r *http.Request) *http.Response {
		if n <= 2 {
			return c.answer
		}
		return nil
	}}
	client := outboundWith(t, memstore.New(memstore.Options{}), weir.TransportOptions{Base: p, MaxPause: c.maxPause}, weir.Options{
		MaxWait: 2 * time.Hour, Logger: slog.New(slog.NewTextHandler(&lines, nil)),
	}, algorithms.GCRA(100, time.Second))
	for range 2 {
		if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != c.answer.StatusCode {
			t.Errorf("%s: got %v, %v, want the response of the partner", c.name, res, err)
		}
	}
	if len(p.arrivals) < 2 || p.arrivals[1] != c.want {
		t.Errorf("%s: arrivals at %v, want the second at %s", c.name, p.arrivals, c.want)
	}
	want := 0
	if c.logged != "" {
		want = 1
	}
	if got := strings.Count(lines.String(), "asked="+c.logged+" "); got != want || strings.Count(lines.String(), "\n") != want {
		t.Errorf("%s: logged %q, want one line for two pauses that were cut", c.name, lines.String())
	}
}

// TestUnpause: Unpause ends the pause of one key of one rule, in all processes.
func TestUnpause(t *testing.T) {
	store := memstore.New(memstore.Options{})
	rules := []weir.Rule{
		{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour), algorithms.SlidingLog(10, time.Hour).Named("log")}},
		{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.LeakyBucket(99, 9, time.Hour)}},
	}
	var events []weir.Event
	replica := func(answer *http.Response) (*weir.Limiter, *http.Client) {
		l := must(t, store, weir.Options{Rules: rules, Observe: func(e weir.Event) { events = append(events, e) }})
		return l, &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return answer, nil })})}
	}
	told, one := replica(response(429, "Retry-After", "30"))
	_, two := replica(response(200))
	get := func(client *http.Client, host string) string {
		res, err := client.Get("http://" + host + "/")
		var limited *weir.RefusedError
		switch {
		case errors.As(err, &limited):
			return checkPauseError(t, host, limited)
		case err != nil:
			return err.Error()
		}
		return res.Status + fmt.Sprint(res.StatusCode)
	}
	unpause := func(rule, key string) {
		t.Helper()
		if err := told.Unpause(t.Context(), rule, key); err != nil {
			t.Error(err)
		}
	}
	check := func(host, want string) {
		t.Helper()
		if got := get(two, host); got != want {
			t.Errorf("%s: got %s, want %s", host, got, want)
		}
	}
	if got := get(one, "a"); got != "429" {
		t.Errorf("got %s, want 429", got)
	}
	check("b", "pause by all") // the rule all has one key for all hosts
	unpause("all", "")
	check("b", "200")
	check("a", "pause by partner")
	unpause("partner", "b")
	check("a", "pause by partner")
	unpause("partner", "a")
	check("a", "200")
	if err := told.Unpause(t.Context(), "partners", "a"); err == nil || err.Error() != `weir: there is no rule "partners"` {
		t.Errorf("got %v", err)
	}
	for _, e := range events {
		if len(e.Transaction.Charges) != 3 || len(e.Transaction.Decisions) != 3 {
			t.Errorf("observed %v, want the charges of the rules and no others", e.Transaction.Charges)
		}
	}
}

// checkPauseError checks the LimitedError of a request that a pause of 30 s refuses, and
// returns the reason and the rule.
func checkPauseError(t *testing.T, host string, limited *weir.RefusedError) string {
	t.Helper()
	for i, d := range limited.Admission.Decisions {
		if len(limited.Admission.Decisions) != 3 || !d.Allowed {
			t.Errorf("%s: charge %v: got %+v, want the three charges of the rules, which all fit", host, limited.Admission.Charges[i], d)
		}
	}
	if limited.Admission.Allowed() {
		t.Error("got a refusal that says allowed")
	}
	f := limited.Admission.Refusal
	if rest := f.RetryAfter; rest <= 29*time.Second || rest > 30*time.Second || limited.RetryAfter() != rest {
		t.Errorf("%s: got %v and %v, want 30s", host, f.RetryAfter, limited.RetryAfter())
	}
	if want := fmt.Sprintf("weir: rule %q has paused the key, retry after %v", f.Rule, f.RetryAfter); limited.Error() != want {
		t.Errorf("got %q, want %q", limited.Error(), want)
	}
	return f.Reason.String() + " by " + f.Rule
}

// TestPauseIsNoStrike: requests that a pause refuses do not count as strikes.
func TestPauseIsNoStrike(t *testing.T) {
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "partner", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)},
		Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(2, 1000*time.Hour), Duration: time.Hour},
	}}})
	client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return response(503, "Retry-After", "30"), nil })})}
	for range 5 {
		client.Get("http://example.com/")
	}
	if d, err := l.Banned(t.Context(), "partner", ""); d != 0 || err != nil {
		t.Errorf("got banned for %v, %v", d, err)
	}
}

// A dripping body returns one byte per second until it is closed.
type dripping struct{ closed chan struct{} }

func (d dripping) Read(p []byte) (int, error) {
	select {
	case <-time.After(time.Second):
		return 1, nil
	case <-d.closed:
		return 0, errors.New("closed")
	}
}

func (d dripping) Close() error {
	select {
	case <-d.closed:
	default:
		close(d.closed)
	}
	return nil
}

// TestTransportDrips: if the body of a 429 never ends, the request is delayed no longer than
// by the pause that the 429 asks for, and the body is closed.
func TestTransportDrips(t *testing.T) {
	for _, c := range []struct {
		name    string
		pause   string // in seconds
		maxWait time.Duration
		cancel  time.Duration // the request is cancelled after this time
		want    string        // when RoundTrip returns, and the result
	}{
		{"sent again", "2", 3 * time.Second, time.Hour, "2s 200"},
		{"sent again at once", "0.1", 3 * time.Second, time.Hour, "100ms 200"},
		{"cancelled while the body drips", "2", 3 * time.Second, 500 * time.Millisecond, "500ms context canceled"},
		{"cancelled while it waits", "2", 3 * time.Second, 1500 * time.Millisecond, "1.5s context canceled"},
		{"not sent again", "5", 3 * time.Second, time.Hour, "0s 429"},
	} {
		synctest.Test(t, func(t *testing.T) {
			start, closed := time.Now(), make(chan struct{})
			p := &partner{start: start, answer: func(n int, r *http.Request) *http.Response {
				if n == 1 {
					res := response(429, "Retry-After", c.pause)
					res.Body = dripping{closed}
					return res
				}
				return nil
			}}
			client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: c.maxWait}, algorithms.GCRA(100, time.Second))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			defer time.AfterFunc(c.cancel, cancel).Stop()
			r, _ := http.NewRequestWithContext(ctx, "GET", "http://example.com/", nil)
			res, err := client.Transport.RoundTrip(r)
			got := time.Since(start).String() + " "
			if err != nil {
				got += err.Error()
			} else {
				got += fmt.Sprint(res.StatusCode)
				res.Body.Close()
			}
			if got != c.want {
				t.Errorf("%s: got %s, want %s", c.name, got, c.want)
			}
			select {
			case <-closed:
			default:
				t.Errorf("%s: the body was not closed", c.name)
			}
		})
	}
}

// TestTransportKeepsConnections: the retry of a 429 uses the same connection, unless the
// body of the 429 drips. Server and client are those of net/http.
func TestTransportKeepsConnections(t *testing.T) {
	for drips, connections := range map[bool]int{false: 1, true: 2} {
		synctest.Test(t, func(t *testing.T) {
			asked := 0
			server := &http.Server{Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if asked++; asked == 1 {
					answer429(w, r, drips)
				}
			})}
			listener := &pipes{conns: make(chan net.Conn)}
			go server.Serve(listener)
			dials := 0
			base := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) {
				dials++
				here, there := net.Pipe()
				listener.conns <- there
				return here, nil
			}}
			client := outbound(t, memstore.New(memstore.Options{}), base, weir.Options{MaxWait: 3 * time.Second}, algorithms.GCRA(100, time.Second))
			start := time.Now()
			res, err := client.Get("http://example.com/")
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			if took := time.Since(start); took != 2*time.Second || res.StatusCode != 200 {
				t.Errorf("drips %v: got %d after %v, want 200 after the pause of 2s", drips, res.StatusCode, took)
			}
			if dials != connections {
				t.Errorf("drips %v: %d connections, want %d", drips, dials, connections)
			}
			base.CloseIdleConnections()
			server.Close()
		})
	}
}

// answer429 asks for a pause of 2 s. A body that drips goes on until the request ends.
func answer429(w http.ResponseWriter, r *http.Request, drips bool) {
	w.Header().Set("Retry-After", "2")
	w.WriteHeader(429)
	io.WriteString(w, "too many")
	for drips && http.NewResponseController(w).Flush() == nil {
		select {
		case <-time.After(100 * time.Millisecond):
		case <-r.Context().Done():
			return
		}
		io.WriteString(w, ".")
	}
}

// pipes is a net.Listener whose connections are in memory.
type pipes struct {
	conns chan net.Conn
	once  sync.Once
}

func (p *pipes) Accept() (net.Conn, error) {
	if c, ok := <-p.conns; ok {
		return c, nil
	}
	return nil, net.ErrClosed
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.conns) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.UnixAddr{} }

// TestTransportBases: the caller gets what the base RoundTripper returns, or its panic. The
// request stays charged if the base panics, or returns an error, nothing, or a response
// without a body. Whatever the base does, its request no longer counts for MaxWaiting.
func TestTransportBases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, start := memstore.New(memstore.Options{}), time.Now()
		limit := algorithms.GCRA(1, time.Second)
		var base roundTripper
		client := outbound(t, store, roundTripper(func(r *http.Request) (*http.Response, error) { return base(r) }), weir.Options{MaxWait: time.Second, MaxWaiting: 1}, limit)
		refused := errors.New("refused")
		noBody := &http.Response{StatusCode: 429, Header: http.Header{"Retry-After": {"1"}}}
		for i, want := range []tripResult{{}, {panics: "base"}, {err: refused}, {res: noBody}} {
			base = want.answer
			if got := tripOnce(client.Transport); got != want {
				t.Errorf("base %d: got %v, %v, panic %v; want %v, %v, panic %v", i, got.res, got.err, got.panics, want.res, want.err, want.panics)
			}
			if got, want := time.Since(start), time.Duration(i)*time.Second; got != want { // all but the first wait
				t.Errorf("base %d: sent after %v, want %v", i, got, want)
			}
			look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "partner", Key: "example.com", Limit: limit})
			if err != nil || look.Decisions[0].Remaining != 0 {
				t.Errorf("base %d: got %+v, %v, want it charged", i, look.Decisions, err)
			}
		}
		base = func(*http.Request) (*http.Response, error) { return response(200), nil }
		checkOnePlace(t, client.Transport)
	})
}

// A tripResult is what RoundTrip returns, or the value with which it panics.
type tripResult struct {
	res    *http.Response
	err    error
	panics any
}

// answer is a RoundTripper that has the result want.
func (want tripResult) answer(*http.Request) (*http.Response, error) {
	if want.panics != nil {
		panic(want.panics)
	}
	return want.res, want.err
}

// tripOnce sends a request to example.com and recovers from a panic.
func tripOnce(p http.RoundTripper) (got tripResult) {
	defer func() { got.panics = recover() }()
	got.res, got.err = p.RoundTrip(httptest.NewRequest("GET", "http://example.com/", nil))
	return got
}

// checkOnePlace expects that of two requests that come together one is sent and one is refused.
func checkOnePlace(t *testing.T, p http.RoundTripper) {
	t.Helper()
	var limited, sent atomic.Int64
	together(2, func(int) {
		if got := tripOnce(p); errors.As(got.err, new(*weir.RefusedError)) {
			limited.Add(1)
		} else if got.err == nil {
			sent.Add(1)
		}
	})
	if limited.Load() != 1 || sent.Load() != 1 {
		t.Errorf("got %d requests refused and %d sent, want 1 and 1", limited.Load(), sent.Load())
	}
}

// TestTransportRetries: a request that gets a 429 is sent again with its body when the
// pause is over, if the pause is short enough and the body can be sent again.
func TestTransportRetries(t *testing.T) {
	again := func(n int, r *http.Request) *http.Response {
		if n < 3 {
			return response(429, "Retry-After", "10")
		}
		return nil
	}
	for _, c := range []struct {
		name    string
		maxWait time.Duration
		body    io.Reader
		status  int
		want    []string
	}{
		{"no body", time.Minute, nil, 200, []string{"0s", "10s", "20s"}},
		{"a body", time.Minute, bytes.NewReader([]byte("order")), 200, []string{"0s order", "10s order", "20s order"}},
		{"a body that can't be sent again", time.Minute, io.MultiReader(strings.NewReader("order")), 429, []string{"0s order"}},
		{"too long", 15 * time.Second, nil, 429, []string{"0s", "10s"}},
		{"no waiting", 0, nil, 429, []string{"0s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{start: time.Now(), answer: again}
			client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: c.maxWait}, algorithms.GCRA(100, time.Second))
			res, err := client.Post("http://example.com/", "text/plain", c.body)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != c.status || !slices.Equal(p.arrivals, c.want) {
				t.Errorf("%s: got %d, arrivals %q; want %d, %q", c.name, res.StatusCode, p.arrivals, c.status, c.want)
			}
		})
	}
}

// TestTransportPausesTheLine: requests that already wait for their turns are not sent
// during a pause.
func TestTransportPausesTheLine(t *testing.T) {
	for _, limit := range []weir.Limit{algorithms.GCRA(5, time.Second).WithBurst(1), algorithms.SlidingLog(5, time.Second), algorithms.FixedWindow(5, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			pauseTheLine(t, limit)
		})
	}
}

// pauseTheLine sends 20 requests from two replicas to a partner that responds to the third
// by asking for a pause of 20 s.
func pauseTheLine(t *testing.T, limit weir.Limit) {
	start := time.Now()
	p := &partner{start: start, answer: func(n int, r *http.Request) *http.Response {
		if n == 3 {
			return response(429, "Retry-After", "20")
		}
		return nil
	}}
	store := memstore.New(memstore.Options{})
	var wg sync.WaitGroup
	for range 2 { // two replicas
		client := outbound(t, store, p, weir.Options{MaxWait: time.Minute}, limit)
		for range 10 {
			wg.Go(func() {
				checkGet(t, client, limit)
			})
		}
	}
	wg.Wait()
	if len(p.arrivals) != 21 {
		t.Fatalf("%v: %d arrivals, want 21: 20 requests, of which one is sent twice", limit, len(p.arrivals))
	}
	paused, _ := time.ParseDuration(p.arrivals[2])
	for i, s := range p.arrivals[3:] {
		at, _ := time.ParseDuration(s)
		if paused < at && at < paused+20*time.Second {
			t.Errorf("%v: arrival %d at %v, in the pause that began at %v", limit, 3+i, at, paused)
		}
	}
}

// TestTransportPausedTurns: a waiting request that meets a pause gives its turn back before
// it takes a later turn, so no units are lost.
func TestTransportPausedTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var sent []time.Duration
		p := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			sent = append(sent, time.Since(start))
			first := len(sent) == 1
			mu.Unlock()
			if first {
				time.Sleep(30 * time.Second)
				return response(503, "Retry-After", "40"), nil
			}
			return response(200), nil
		})
		client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: time.Hour}, algorithms.SlidingLog(2, time.Minute))
		var wg sync.WaitGroup
		for range 4 {
			wg.Go(func() {
				if _, err := client.Get("http://example.com/"); err != nil {
					t.Error(err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if want := []time.Duration{0, 0, 70 * time.Second, 70 * time.Second}; !slices.Equal(sent, want) {
			t.Errorf("sent at %v, want %v", sent, want)
		}
	})
}

// TestTransportPausesOnce: fifty responses that ask for the same pause cause one pause, not
// fifty in a row.
func TestTransportPausesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		start := time.Now()
		p := &partner{start: start, answer: func(n int, r *http.Request) *http.Response {
			if time.Since(start) < 10*time.Second {
				return response(429, "Retry-After", "10")
			}
			return nil
		}}
		client := outbound(t, store, p, weir.Options{MaxWait: time.Minute}, algorithms.GCRA(50, time.Second))
		together(50, func(int) {
			if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != 200 {
				t.Errorf("got %v, %v", res, err)
			}
		})
		if took := time.Since(p.start); took > 12*time.Second {
			t.Errorf("took %v, want about ten seconds", took)
		}
	})
}

// TestTransportBuffer: if requests are delayed on their way by different times up to
// Buffer, the receiver sees no period with more requests than the limit.
func TestTransportBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jitter = 50 * time.Millisecond
		var arrivals []time.Time
		var mu sync.Mutex
		late := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			n := len(arrivals)
			mu.Unlock()
			time.Sleep(time.Duration(n*7919%51) * time.Millisecond) // 0 to 50 ms
			mu.Lock()
			defer mu.Unlock()
			arrivals = append(arrivals, time.Now())
			return response(200), nil
		})
		client := outboundWith(t, memstore.New(memstore.Options{}), weir.TransportOptions{Base: late, Buffer: jitter}, weir.Options{MaxWait: time.Hour}, algorithms.SlidingLog(20, time.Second))
		var wg sync.WaitGroup
		start := time.Now()
		for range 400 {
			wg.Go(func() { client.Get("http://example.com/") })
		}
		wg.Wait()
		slices.SortFunc(arrivals, time.Time.Compare)
		for i := 20; i < len(arrivals); i++ {
			if span := arrivals[i].Sub(arrivals[i-20]); span < time.Second {
				t.Fatalf("21 arrivals within %v", span)
			}
		}
		if took, most := time.Since(start), 19*1050*time.Millisecond+jitter; took > most {
			t.Errorf("400 at 20 a second took %v, want %v at most", took, most)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestTransportErrors: if the store fails, the request is sent. If the context of the
// request ends during the wait, the turn is given back and the body is closed.
func TestTransportErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
		p := &partner{start: time.Now()}
		away := outbound(t, failing{errors.New("away")}, p, weir.Options{Logger: quiet}, algorithms.GCRA(1, time.Second))
		if _, err := away.Get("http://example.com/"); err != nil {
			t.Errorf("the store is away: got %v, want the request sent", err)
		}

		client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: time.Hour}, algorithms.GCRA(1, time.Minute))
		client.Get("http://example.com/")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		closed := make(chan bool, 1)
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://example.com/", &closing{closed})
		go func() { time.Sleep(time.Second); cancel() }()
		if _, err := client.Do(r); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while waiting: got %v", err)
		}
		if !<-closed {
			t.Error("the body was not closed")
		}
		before := time.Now()
		client.Get("http://example.com/")
		if waited := time.Since(before); waited != 59*time.Second {
			t.Errorf("the next waits %v, want the 59s of the turn that was given back", waited)
		}
	})
}

type closing struct{ closed chan bool }

func (c *closing) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closing) Close() error {
	select {
	case c.closed <- true:
	default:
	}
	return nil
}

// A program that must not exceed a partner's limit sends nothing while the store is down. It
// waits for the store for up to MaxWait, as for its turn.
func ExampleLimiter_Transport() {
	partner, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(100, time.Second)}}},
		MaxWait: 10 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := partner.Transport(weir.TransportOptions{
		Base:    roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil }),
		OnError: func(_ *http.Request, err error) error { return err },
		Buffer:  20 * time.Millisecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	res, err := client.Get("http://partner.example/orders")
	fmt.Println(res.StatusCode, err)
	// Output: 200 <nil>
}

func ExampleLimiter_Unpause() {
	partner, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(100, time.Second)}}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	maintenance := response(http.StatusServiceUnavailable, "Retry-After", "3600")
	transport, err := partner.Transport(weir.TransportOptions{
		Base:     roundTripper(func(*http.Request) (*http.Response, error) { return maintenance, nil }),
		MaxPause: time.Hour,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: transport}
	res, _ := client.Get("http://partner.example/orders")
	fmt.Println(res.StatusCode)

	_, err = client.Get("http://partner.example/orders")
	var limited *weir.RefusedError
	if errors.As(err, &limited) {
		fmt.Println(limited.Admission.Refusal.Reason, limited.RetryAfter().Round(time.Minute))
	}

	if err := partner.Unpause(context.Background(), "partner", "partner.example"); err != nil {
		fmt.Println(err)
	}
	res, _ = client.Get("http://partner.example/orders")
	fmt.Println(res.StatusCode)
	// Output:
	// 503
	// pause 1h0m0s
	// 503
}
