package weir_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/contrib/llm"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
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

// TestTransport: requests wait for their slots, and each host has a queue of its own. A
// request whose slot is later than MaxWait gets a LimitedError.
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
		{"a secondary limit of GitHub", response(403, "Retry-After", "30", "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "9"), "30s"},
		{"an overload of Anthropic", response(529, "Retry-After", "30"), "30s"},
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
		l := must(t, store, weir.Options{Rules: rules, Observe: func(e weir.Event) { events = append(events, copied(e)) }})
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

// TestCancelInPause: if the caller gives up while its request waits until the server's units are reset, Observe
// receives the refusal, once.
func TestCancelInPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reasons []weir.Reason
		rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: "tokens", Cost: costs(10), Limits: []weir.Limit{algorithms.FixedWindow(100, time.Hour)}}
		l := must(t, memory(), weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{rule}, Observe: func(e weir.Event) { reasons = append(reasons, e.Refusal.Reason) }})
		client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) {
			return response(200, "X-Ratelimit-Remaining-Tokens", "5", "X-Ratelimit-Reset-Tokens", "30s"), nil
		})})}
		if _, err := client.Get("http://example.com/"); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(10*time.Second, cancel)
		r, _ := http.NewRequestWithContext(ctx, http.MethodGet, "http://example.com/", nil)
		_, err := client.Do(r)
		if want := []weir.Reason{0, weir.ReasonPause}; !errors.Is(err, context.Canceled) || !slices.Equal(reasons, want) {
			t.Errorf("got %v and events with the reasons %v, want %v and %v", err, reasons, context.Canceled, want)
		}
	})
}

// TestUnpauseLongKey: Unpause also forgets what a server has last said of a key that the store keeps as a
// digest.
func TestUnpauseLongKey(t *testing.T) {
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "llm", Key: weir.ByHeader("Authorization"), Unit: "tokens", Cost: func(*http.Request) int64 { return 5 }, Limits: []weir.Limit{algorithms.GCRA(100, time.Hour)}},
	}})
	answer := response(200, "x-ratelimit-limit-tokens", "9", "x-ratelimit-remaining-tokens", "1", "x-ratelimit-reset-tokens", "30s")
	client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return answer, nil })})}
	for _, key := range []string{"short", strings.Repeat("long", 50)} {
		send := func() error {
			r, _ := http.NewRequest("GET", "http://llm.example/", nil)
			r.Header.Set("Authorization", key)
			_, err := client.Do(r)
			return err
		}
		if first, second := send(), send(); first != nil || second == nil {
			t.Errorf("%.9s: got %v and %v, want a refusal of the second request", key, first, second)
		}
		if err := l.Unpause(t.Context(), "llm", key); err != nil {
			t.Error(err)
		}
		if err := send(); err != nil {
			t.Errorf("%.9s: after Unpause: got %v, want no error", key, err)
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

// TestTransportPausesTheLine: requests that already wait for their slots are not sent
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

// TestTransportPausedSlots: a waiting request whose key is paused refunds its slot before
// it takes a later slot, so no units are lost.
func TestTransportPausedSlots(t *testing.T) {
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
		l := must(t, memstore.New(memstore.Options{}), weir.Options{MaxWait: time.Hour, Rules: []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(20, time.Second)}, Buffer: jitter}}})
		client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: late})}
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
// request ends during the wait, the slot is refunded and the body is closed.
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
			t.Errorf("the next waits %v, want the 59s of the slot that was refunded", waited)
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
// waits for the store for up to MaxWait, as for its slot.
func ExampleLimiter_Transport() {
	partner, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{
			Name: "partner", Key: weir.ByHeader("Host"),
			Limits: []weir.Limit{algorithms.SlidingLog(100, time.Second)}, Buffer: 20 * time.Millisecond,
		}},
		MaxWait: 10 * time.Second,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	transport, err := partner.Transport(weir.TransportOptions{
		Base:    roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil }),
		OnError: func(_ *http.Request, err error) error { return err },
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

// failsUntil returns a store that fails with err for the given time from now on.
func failsUntil(d time.Duration, err error) weir.Store {
	start, next := time.Now(), memory()
	return storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if time.Since(start) < d {
			return err
		}
		return next.Take(ctx, tx)
	})
}

// TestTransportOutage: a request waits for a store that is busy or down, for up to MaxWait.
// Then OnError decides. By default an outage sends the request, and the log says so. Nothing
// else sends a request that was not decided.
func TestTransportOutage(t *testing.T) {
	failsClosed := func(_ *http.Request, err error) error { return err }
	failsOpen := func(*http.Request, error) error { return nil }
	errOwn := errors.New("not now")
	unusable := fmt.Errorf("wrong password: %w", quota.ErrUnusable)
	type outcome struct {
		err          error
		at, atLatest time.Duration
		unlimited    bool
	}
	const s, forever = time.Second, time.Hour
	for _, c := range []struct {
		name    string
		err     error
		until   time.Duration
		maxWait time.Duration
		onError func(*http.Request, error) error
		want    outcome
	}{
		{"down", errDown, forever, 0, nil, outcome{nil, 0, 0, true}},
		{"down, fails closed", errDown, forever, 0, failsClosed, outcome{errDown, 0, 0, false}},
		{"busy", quota.ErrBusy, forever, 0, nil, outcome{quota.ErrBusy, 0, 0, false}},
		{"busy, fails open", quota.ErrBusy, forever, 0, failsOpen, outcome{nil, 0, 0, true}},
		{"another error", errDown, forever, 0, func(*http.Request, error) error { return errOwn }, outcome{errOwn, 0, 0, false}},
		{"unusable", unusable, forever, 10 * s, nil, outcome{quota.ErrUnusable, 0, 0, false}},
		{"unusable, fails open", unusable, forever, 10 * s, failsOpen, outcome{nil, 0, 0, true}},
		{"busy for a moment", quota.ErrBusy, 3 * s, 10 * s, nil, outcome{nil, 3 * s, 5 * s, false}},
		{"down for a moment", errDown, 3 * s, 10 * s, nil, outcome{nil, 3 * s, 5 * s, false}},
		{"down for a moment, fails closed", errDown, 3 * s, 10 * s, failsClosed, outcome{nil, 3 * s, 5 * s, false}},
		{"down until MaxWait is over", errDown, 10 * s, 10 * s, failsClosed, outcome{nil, 10 * s, 10 * s, false}},
		{"down for longer", errDown, forever, 10 * s, nil, outcome{nil, 10 * s, 10 * s, true}},
		{"down for longer, fails closed", errDown, forever, 10 * s, failsClosed, outcome{errDown, 10 * s, 10 * s, false}},
		{"busy for longer", quota.ErrBusy, forever, 10 * s, nil, outcome{quota.ErrBusy, 10 * s, 10 * s, false}},
		{"the caller gives up", errDown, forever, forever, failsClosed, outcome{context.Canceled, 20 * s, 20 * s, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			p := &partner{start: time.Now()}
			client := outboundWith(t, failsUntil(c.until, c.err), weir.TransportOptions{Base: p, OnError: c.onError},
				weir.Options{MaxWait: c.maxWait, Logger: slog.New(slog.NewTextHandler(&log, nil))}, algorithms.GCRA(1, time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(20*s, cancel).Stop()
			body := &closing{make(chan bool, 1)}
			r, _ := http.NewRequestWithContext(ctx, "POST", "http://example.com/", body)
			_, err := client.Do(r)
			if took := time.Since(p.start); !errors.Is(err, c.want.err) || took < c.want.at || took > c.want.atLatest {
				t.Errorf("%s: got %v after %v, want %+v", c.name, err, took, c.want)
			}
			if ours := "weir: request not sent, because rule \"partner\" could not decide: "; err != nil && c.want.err != context.Canceled &&
				!strings.HasPrefix(errors.Unwrap(err).Error(), ours) {
				t.Errorf("%s: the error is %q, as if the partner were down; want %s", c.name, err, ours)
			}
			if sent := len(p.arrivals) == 1; sent != (c.want.err == nil) {
				t.Errorf("%s: sent %v, error %v", c.name, sent, err)
			}
			if !<-body.closed {
				t.Errorf("%s: the body was not closed", c.name)
			}
			if strings.Contains(log.String(), "passed=true") != c.want.unlimited || !strings.Contains(log.String(), `msg="weir: request not decided" rule=partner err=`) {
				t.Errorf("%s: got the log %q, want a request without a limit: %v", c.name, &log, c.want.unlimited)
			}
		})
	}
}

// TestTransportAfterOutage: requests that have waited for the store together are sent as the
// limit allows, and not as a burst, even in the last moment of MaxWait.
func TestTransportAfterOutage(t *testing.T) {
	for _, c := range []struct {
		until, maxWait time.Duration
		want           int // requests that are sent
	}{
		{time.Second, time.Minute, 5},
		{time.Second, time.Second, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{start: time.Now()}
			client := outbound(t, failsUntil(c.until, quota.ErrBusy), p, weir.Options{MaxWait: c.maxWait, Logger: slog.New(slog.DiscardHandler)}, algorithms.LeakyBucket(5, 1, time.Second))
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if _, err := client.Get("http://example.com/"); err != nil && !errors.As(err, new(*weir.RefusedError)) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if len(p.arrivals) != c.want {
				t.Errorf("%v: arrivals at %v, want %d", c, p.arrivals, c.want)
			}
			for i := 1; i < len(p.arrivals); i++ {
				a, _ := time.ParseDuration(p.arrivals[i-1])
				b, _ := time.ParseDuration(p.arrivals[i])
				if b-a < time.Second-time.Microsecond { // stores count in whole microseconds
					t.Errorf("%v: arrivals at %v, want a second apart", c, p.arrivals)
				}
			}
		})
	}
}

// TestTransportWaitingForTheStore: a request that waits for the store is one of MaxWaiting,
// and a store that is away is asked seldom.
func TestTransportWaitingForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var mu sync.Mutex
		store := storeFunc(func(context.Context, *quota.Transaction) error {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return errDown
		})
		p := &partner{start: time.Now()}
		client := outbound(t, store, p, weir.Options{MaxWait: time.Minute, MaxWaiting: 3, Logger: slog.New(slog.DiscardHandler)}, algorithms.GCRA(1, time.Second))
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { checkGet(t, client, algorithms.GCRA(1, time.Second)) })
		}
		wg.Wait()
		if want := []string{"0s", "0s", "1m0s", "1m0s", "1m0s"}; !slices.Equal(p.arrivals, want) {
			t.Errorf("arrivals at %v, want %v", p.arrivals, want)
		}
		if asked < 5+3*30 || asked > 5+3*66 { // a pause is 1 to 2 s long, the first five are shorter
			t.Errorf("the store was asked %d times", asked)
		}
	})
}

// TestTransportOptions: Transport refuses invalid options, and names them.
func TestTransportOptions(t *testing.T) {
	l := must(t, memory(), weir.Options{Rules: []weir.Rule{{Name: "partner", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1_000_000, 24*time.Hour)}}}})
	same, err := l.Transport(weir.TransportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	other, err := must(t, memory(), weir.Options{Rules: []weir.Rule{{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}}}).Transport(weir.TransportOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    weir.TransportOptions
		want string
	}{
		{weir.TransportOptions{}, "<nil>"},
		{weir.TransportOptions{Base: other}, "<nil>"},
		{weir.TransportOptions{Base: same}, "weir: Transport: Base is a Transport of the same Limiter"},
		{weir.TransportOptions{MaxPause: -1}, "weir: MaxPause is -1ns; want at least 0"},
	} {
		rt, err := l.Transport(c.o)
		if !strings.HasPrefix(fmt.Sprint(err), c.want) || (rt == nil) != (err != nil) {
			t.Errorf("%+v: got %v, %v, want %s", c.o, rt, err, c.want)
		}
	}
}

// A sharedQuota is a limit that several replicas use up. They share only Redis, and each
// has its own connections.
type sharedQuota struct {
	limit    int
	period   time.Duration
	buffer   time.Duration
	replicas int
	requests int // how many requests all replicas send together, at once
}

// An arrival says when a request reached the receiver, and when its slot was. Redis runs on
// this machine, so both instants are on the same clock.
type arrival struct{ at, slot time.Time }

func (a arrival) late() time.Duration { return a.at.Sub(a.slot) }

const turnField = "Weir-Turn" // in µs since 1970

// TestTransportReplicas: a server that three replicas call sees every request, and no
// period with more requests than the limit. The test is a small form of _bench/throttle.
func TestTransportReplicas(t *testing.T) {
	q := sharedQuota{limit: 20, period: 500 * time.Millisecond, buffer: 40 * time.Millisecond, replicas: 3, requests: 60}
	server := redistest.Server(t)
	for range 5 {
		start := time.Now()
		seen := q.spend(t, server.Addr())
		took := time.Since(start)
		q.checkSlots(t, seen)
		if t.Failed() {
			return
		}
		late := func(a, b arrival) int { return int(a.late() - b.late()) }
		least, most := slices.MinFunc(seen, late).late(), slices.MaxFunc(seen, late).late()
		ideal := time.Duration((q.requests-1)/q.limit) * q.period
		t.Logf("%d requests took %v, %.3f × ideal; they arrived %v to %v after their slots", q.requests, took, took.Seconds()/ideal.Seconds(), least, most)

		over := q.windowsOver(seen)
		switch {
		case over == 0 && took > 10*ideal:
			t.Errorf("%d requests took %v, want less than ten times the ideal %v", q.requests, took, ideal)
			return
		case over == 0:
			return
		case most-least <= q.buffer:
			t.Errorf("%d windows of %v hold more than %d requests, although their delays, %v to %v, differ by no more than the buffer of %v",
				over, q.period, q.limit, least, most, q.buffer)
			return
		}
	}
	t.Skipf("this machine is too busy: it delays requests by more than the buffer of %v", q.buffer)
}

// spend sends the requests to a new receiver, and returns their arrivals in order.
func (q *sharedQuota) spend(t *testing.T, redisAddr string) (seen []arrival) {
	t.Helper()
	var mu sync.Mutex
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := time.Now()
		slot, err := strconv.ParseInt(r.Header.Get(turnField), 10, 64)
		if err != nil {
			t.Errorf("a request went out unlimited: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, arrival{at, time.UnixMicro(slot)})
	}))
	defer receiver.Close()

	var wg sync.WaitGroup
	for i := range q.replicas {
		client := q.replica(t, redisAddr)
		for range q.requests*(i+1)/q.replicas - q.requests*i/q.replicas {
			wg.Go(func() {
				res, err := client.Get(receiver.URL)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("got %s, %v, want 200", res.Status, err)
				}
			})
		}
	}
	wg.Wait()
	slices.SortFunc(seen, func(a, b arrival) int { return a.at.Compare(b.at) })
	return seen
}

// replica returns a client with its own Limiter.
func (q *sharedQuota) replica(t *testing.T, redisAddr string) *http.Client {
	t.Helper()
	const patience = 10 * time.Second // the time budget of Redis, for a busy machine
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(patience, redisAddr))
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	limiter := must(t, store, weir.Options{
		Rules: []weir.Rule{{
			Name:   "partner",
			Key:    weir.ByHeader("Host"),
			Limits: []weir.Limit{algorithms.SlidingLog(int64(q.limit), q.period)},
			Buffer: q.buffer,
		}},
		MaxWait: time.Minute,
		Observe: func(e weir.Event) {
			if e.Err != nil {
				t.Errorf("the store failed: %v", e.Err)
				return
			}
			slot := e.Transaction.At.Add(e.Transaction.Wait)
			e.Request.Header.Set(turnField, strconv.FormatInt(slot.UnixMicro(), 10))
		},
	})
	base := &http.Transport{MaxIdleConnsPerHost: q.requests}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: transport(t, limiter, weir.TransportOptions{Base: base})}
}

// checkSlots checks what does not depend on the speed of the machine: no request is lost, no
// request is sent before its slot, and no period that is longer by the buffer has more slots
// than the limit.
func (q *sharedQuota) checkSlots(t *testing.T, seen []arrival) {
	t.Helper()
	if len(seen) != q.requests {
		t.Errorf("%d requests arrived, want %d", len(seen), q.requests)
	}
	q.checkGaps(t, seen)
}

// checkGaps checks that no request arrives before its slot, and that no period that is longer
// by the buffer has more slots than the limit.
func (q *sharedQuota) checkGaps(t *testing.T, seen []arrival) {
	t.Helper()
	var slots []time.Time
	for _, a := range seen {
		if a.late() < 0 {
			t.Errorf("a request arrived %v before its slot", -a.late())
		}
		slots = append(slots, a.slot)
	}
	slices.SortFunc(slots, time.Time.Compare)
	for i := q.limit; i < len(slots); i++ {
		if gap := slots[i].Sub(slots[i-q.limit]); gap < q.period+q.buffer {
			t.Errorf("slots %d and %d are %v apart, want %v", i-q.limit, i, gap, q.period+q.buffer)
		}
	}
}

// windowsOver counts the periods that begin with an arrival and have more requests than the
// limit.
func (q *sharedQuota) windowsOver(seen []arrival) (n int) {
	for i := q.limit; i < len(seen); i++ {
		if seen[i].at.Sub(seen[i-q.limit].at) < q.period {
			n++
		}
	}
	return n
}

// TestTransportSlowRedis: three processes send 60 requests each while Redis does not answer.
// With MaxWait they wait for Redis and then for their slots. Without it a request is sent
// without a slot only by default, and the log says so. If the process itself is late, the
// store is busy instead, and the request is not sent.
func TestTransportSlowRedis(t *testing.T) {
	rounds.Slow(t, "waits while Redis does not answer")
	failsClosed := func(_ *http.Request, err error) error { return err }
	for _, c := range []struct {
		name      string
		maxWait   time.Duration
		onError   func(*http.Request, error) error
		unlimited bool // requests are sent without a slot
		all       bool // all requests are sent
	}{
		{"waits", time.Minute, nil, false, true},
		{"waits, fails closed", time.Minute, failsClosed, false, true},
		{"fails closed", 0, failsClosed, false, false},
		{"by default", 0, nil, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := sharedQuota{limit: 50, period: 250 * time.Millisecond, replicas: 3, requests: 180}
			server := redistest.Server(t)
			server.Pause()
			var failures, unlimited, busy atomic.Int64
			var mu sync.Mutex
			var slots []arrival
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				slot, err := strconv.ParseInt(r.Header.Get(turnField), 10, 64)
				if err != nil {
					unlimited.Add(1)
					return response(200), nil
				}
				mu.Lock()
				defer mu.Unlock()
				slots = append(slots, arrival{time.Now(), time.UnixMicro(slot)})
				return response(200), nil
			})
			var log bytes.Buffer
			o := weir.Options{
				Rules:   []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(int64(q.limit), q.period)}}},
				MaxWait: c.maxWait,
				Logger:  slog.New(slog.NewTextHandler(&log, nil)),
				Observe: func(e weir.Event) {
					if e.Err == nil && e.Refusal.Reason == 0 {
						e.Request.Header.Set(turnField, strconv.FormatInt(e.Transaction.At.Add(e.Transaction.Wait).UnixMicro(), 10))
					} else if e.Err != nil && failures.Add(1) == int64(q.requests) { // every request has failed once
						server.Resume()
					}
				},
			}
			var wg sync.WaitGroup
			for range q.replicas {
				client := &http.Client{Transport: transport(t, must(t, redisAt(t, server.Addr(), 50*time.Millisecond), o), weir.TransportOptions{Base: base, OnError: c.onError})}
				for range q.requests / q.replicas {
					wg.Go(func() {
						_, err := client.Get("http://example.com/")
						switch {
						case c.unlimited && errors.Is(err, quota.ErrBusy):
							busy.Add(1)
						case (err != nil) == c.all:
							t.Errorf("got %v", err)
						}
					})
				}
			}
			wg.Wait()
			q.checkGaps(t, slots)
			got := len(slots) + int(unlimited.Load()+busy.Load())
			if (unlimited.Load()+busy.Load() > 0) != c.unlimited || (got == q.requests) != c.all {
				t.Errorf("%d requests sent or refused as busy, %d sent without a slot, %d refused; want all: %v, some without a slot: %v", got, unlimited.Load(), busy.Load(), c.all, c.unlimited)
			}
			if strings.Contains(log.String(), "passed=true") != (unlimited.Load() > 0) {
				t.Errorf("got the log %q, want requests without a limit: %v", log.String(), c.unlimited)
			}
		})
	}
}

// TestTransportPausesEverywhere: a pause, and its end by Unpause, hold in another process
// that shares the store, through every decorator, even if the process has leased units.
func TestTransportPausesEverywhere(t *testing.T) {
	server := redistest.Server(t)
	memory := memstore.New(memstore.Options{})
	for _, shared := range []struct {
		name  string
		store func(t *testing.T) weir.Store
	}{
		{"memory", func(*testing.T) weir.Store { return memory }},
		{"Redis", func(t *testing.T) weir.Store { return redisAt(t, server.Addr(), 10*time.Second) }},
	} {
		for _, d := range []struct {
			name     string
			decorate func(weir.Store) weir.Store
		}{
			{"alone", func(s weir.Store) weir.Store { return s }},
			{"Hybrid", func(s weir.Store) weir.Store { return quota.Hybrid(s, quota.HybridOptions{MaxKeys: 100}) }},
			{"Coalesce", func(s weir.Store) weir.Store { return quota.Coalesce(s) }},
			{"Breaker", func(s weir.Store) weir.Store { return quota.Breaker(s, quota.BreakerOptions{}) }},
			{"Fallback", func(s weir.Store) weir.Store {
				return quota.Fallback(s, memstore.New(memstore.Options{}), quota.FallbackOptions{})
			}},
			{"Share", func(s weir.Store) weir.Store { return quota.Share(s, 3) }},
			{"Lease", func(s weir.Store) weir.Store {
				leases := lease.New(s, lease.Options{})
				t.Cleanup(func() { leases.Close(context.Background()) })
				return leases
			}},
		} {
			t.Run(shared.name+", "+d.name, func(t *testing.T) {
				status := http.StatusOK
				base := roundTripper(func(*http.Request) (*http.Response, error) { return response(status, "Retry-After", "50"), nil })
				replica := func() (*weir.Limiter, *http.Client) {
					l := must(t, d.decorate(shared.store(t)), weir.Options{Rules: []weir.Rule{{
						Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.GCRA(1000, time.Hour)},
					}}})
					return l, &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base})}
				}
				_, one := replica()
				limiter, two := replica()
				get := func(client *http.Client) string {
					return answerTo(client, "http://"+strings.ToLower(d.name)+".example/")
				}
				var got []string
				got = append(got, get(two))
				status = http.StatusServiceUnavailable
				got = append(got, get(one))
				status = http.StatusOK
				got = append(got, get(one), get(two))
				if err := limiter.Unpause(t.Context(), "partner", strings.ToLower(d.name)+".example"); err != nil {
					t.Error(err)
				}
				got = append(got, get(two))
				if want := []string{"200", "503", "pause", "pause", "200"}; !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}

// answerTo sends a GET request to url, and returns the status, the reason of a refusal or
// the error.
func answerTo(client *http.Client, url string) string {
	res, err := client.Get(url)
	var limited *weir.RefusedError
	if errors.As(err, &limited) {
		return limited.Admission.Refusal.Reason.String()
	}
	if err != nil {
		return err.Error()
	}
	return strconv.Itoa(res.StatusCode)
}

// A provider answers as the API of a language model does.
func provider(t *testing.T) *httptest.Server {
	var refused atomic.Bool
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		const usage = `"usage":{"prompt_tokens":5,"completion_tokens":7}`
		switch r.URL.Path {
		case "/json":
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{"model":"m","choices":[],`+usage+`}`)
		case "/stream", "/broken":
			w.Header().Set("Content-Type", "text/event-stream")
			for range 100 {
				fmt.Fprint(w, "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n\n")
			}
			_ = http.NewResponseController(w).Flush()
			if r.URL.Path == "/broken" {
				panic(http.ErrAbortHandler)
			}
			fmt.Fprint(w, "data: {"+usage+"}\n\ndata: [DONE]\n\n")
		case "/field":
			w.Header().Set("Tokens-Used", "12")
		case "/once": // refuses the first request
			if !refused.Swap(true) {
				w.Header().Set("Retry-After-Ms", "1")
				w.WriteHeader(429)
				return
			}
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprint(w, `{`+usage+`}`)
		default:
			status, _ := strconv.Atoi(r.URL.Path[1:])
			w.WriteHeader(status)
		}
	}))
	t.Cleanup(server.Close)
	return server
}

// TestTransportSettles: a request that goes out is charged what its answer says, once its body is
// closed, and as long as nobody knows, what it has reserved.
func TestTransportSettles(t *testing.T) {
	drain := func(b io.ReadCloser) { _, _ = io.Copy(io.Discard, b); b.Close() }
	sdk := func(b io.ReadCloser) { // stops at the last event
		for lines := bufio.NewScanner(b); lines.Scan() && lines.Text() != "data: [DONE]"; {
		}
		b.Close()
	}
	hangUp := func(b io.ReadCloser) { _, _ = io.CopyN(io.Discard, b, 100); b.Close() }
	for _, tt := range []struct {
		name, path string
		read       func(io.ReadCloser)
		settle     func(weir.Outcome) int64
		want       int64
	}{
		{"usage in a body", "/json", drain, weir.ChargeUsed, 88},
		{"usage in a stream", "/stream", drain, weir.ChargeUsed, 88},
		{"usage in a stream, of an SDK", "/stream", sdk, weir.ChargeUsed, 88},
		{"closed twice", "/stream", func(b io.ReadCloser) { drain(b); b.Close() }, weir.ChargeUsed, 88},
		{"hung up on", "/stream", hangUp, weir.ChargeUsed, 60},
		{"not read", "/json", func(b io.ReadCloser) { b.Close() }, weir.ChargeUsed, 60},
		{"never closed", "/json", func(io.ReadCloser) {}, weir.ChargeUsed, 60},
		{"broken off", "/broken", drain, weir.ChargeUsed, 0}, // after 100 events
		{"an error", "/500", drain, weir.ChargeUsed, 100},
		{"refused and sent again", "/once", drain, weir.ChargeUsed, 88},
		{"refused", "/429", drain, weir.ChargeUsed, 100},
		{"usage in a field", "/field", drain, func(o weir.Outcome) int64 { n, _ := strconv.ParseInt(o.Header.Get("Tokens-Used"), 10, 64); return n }, 88},
		{"no usage", "/204", drain, weir.ChargeUsed, 60},
		{"by status", "/503", drain, weir.RefundErrors, 100},
		{"no answer", "/", nil, weir.RefundErrors, 60},
	} {
		for _, reads := range []bool{true, false} { // whether the body is read, or the status alone must do
			base := http.RoundTripper(http.DefaultTransport)
			if reads {
				base = &llm.Transport{}
			} else if tt.path != "/once" && tt.path != "/429" {
				continue
			}
			want := tt.want
			if !reads && tt.path == "/once" {
				want = 60 // the second answer is not read
			}
			server := provider(t)
			if tt.read == nil {
				server.Close()
			}
			store := memory()
			rule := unit("tokens", 40)
			rule.Settle = tt.settle
			l := must(t, store, weir.Options{Rules: []weir.Rule{rule}, MaxWait: 10 * time.Second})
			res, err := (&http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base})}).Post(server.URL+tt.path, "application/json", strings.NewReader("{}"))
			if (err == nil) != (tt.read != nil) {
				t.Fatalf("%s: %v", tt.name, err)
			}
			if err == nil {
				if got := remains(t, store, l)[0]; got != 60 && got != 20 && !strings.HasPrefix(tt.path, "/once") {
					t.Errorf("%s: %d are left before the body is closed, want 60", tt.name, got)
				}
				tt.read(res.Body)
			}
			if got := remains(t, store, l)[0]; got != want {
				t.Errorf("%s: %d are left of 100, want %d", tt.name, got, want)
			}
			if err == nil {
				res.Body.Close()
			}
		}
	}
}

// TestTransportPanics: a Base that panics leaves the cost reserved, once.
func TestTransportPanics(t *testing.T) {
	store := memory()
	l := must(t, store, weir.Options{Rules: []weir.Rule{unit("tokens", 40)}})
	rt := transport(t, l, weir.TransportOptions{Base: roundTrip(func(*http.Request) (*http.Response, error) { panic("base") })})
	func() {
		defer func() { _ = recover() }()
		_, _ = rt.RoundTrip(ask("/", "192.0.2.1:4"))
	}()
	if got := remains(t, store, l)[0]; got != 60 {
		t.Errorf("%d are left of 100, want 60", got)
	}
}

// TestTransportRemaining: a request that costs more than the server has left is not sent, until
// more is left. The table has the fields of each response, and when the next request arrives.
func TestTransportRemaining(t *testing.T) {
	for _, tt := range []struct {
		name   string
		unit   string
		fields []string
		want   time.Duration // until a request of 20 units arrives after one of 10; a minute if MaxPause cuts it, which is logged
	}{
		{"nothing", "tokens", nil, 0},
		{"enough", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "30", "X-Ratelimit-Reset-Tokens", "10s"}, 0},
		{"too little", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "29", "X-Ratelimit-Reset-Tokens", "10s"}, 10 * time.Second},
		{"Anthropic", "output-tokens", []string{"Anthropic-Ratelimit-Output-Tokens-Remaining", "5", "Anthropic-Ratelimit-Output-Tokens-Reset", "2000-01-01T00:00:20Z"}, 20 * time.Second},
		{"the tightest", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "500", "X-Ratelimit-Reset-Tokens", "10s", "Ratelimit", `"day";r=3;t=7`, "Ratelimit-Policy", `"day";q=9;qu="tokens"`}, 7 * time.Second},
		{"another unit", "tokens", []string{"X-Ratelimit-Remaining-Images", "1", "X-Ratelimit-Reset-Images", "10s"}, 0},
		{"requests", "tokens", []string{"X-Ratelimit-Remaining", "1", "X-Ratelimit-Reset", "10"}, 0},
		{"no time", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "5"}, 0},
		{"negative", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "-5", "X-Ratelimit-Reset-Tokens", "10s"}, 0},
		{"a day", "tokens", []string{"X-Ratelimit-Remaining-Tokens", "5", "X-Ratelimit-Reset-Tokens", "24h"}, time.Minute},
		{"of a rule in shadow", "shadow", []string{"X-Ratelimit-Remaining-Shadow", "5", "X-Ratelimit-Reset-Shadow", "10s"}, 0},
	} {
		for _, maxWait := range []time.Duration{time.Hour, 0} {
			synctest.Test(t, func(t *testing.T) {
				p := &partner{start: time.Now(), answer: func(n int, _ *http.Request) *http.Response {
					if n == 1 {
						return response(200, tt.fields...)
					}
					return nil
				}}
				var log weirtest.Log
				refusals := 0 // a request that waits for the reset is not refused
				observe := func(e weir.Event) {
					if e.Refusal.Reason != 0 {
						refusals++
					}
				}
				rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: tt.unit, Limits: []weir.Limit{algorithms.FixedWindow(100, 1000*time.Hour)},
					Cost: func(r *http.Request) int64 { n, _ := strconv.ParseInt(r.URL.Query().Get("cost"), 10, 64); return n }}
				if tt.unit == "shadow" {
					rule.Enforce = weir.Percent(0)
				}
				client := &http.Client{Transport: transport(t, must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, MaxWait: maxWait, Observe: observe, Logger: slog.New(slog.NewTextHandler(&log, nil))}), weir.TransportOptions{Base: p})}
				var err error
				for _, cost := range []string{"10", "10", "20"} {
					if _, err = client.Get("http://example.com/?cost=" + cost); err != nil {
						break
					}
				}
				if want := err != nil; (refusals == 1) != want || refusals > 1 {
					t.Errorf("%s: Observe got %d refusals, and the last request %v", tt.name, refusals, err)
				}
				if cut := strings.Count(log.String(), `level=WARN msg="weir: answer of a server cut to MaxPause" rule=api part="reset of remaining units" asked=24h0m0s max_pause=1m0s`); cut != strings.Count(log.String(), "cut to MaxPause") || (cut == 1) != (tt.want == time.Minute) {
					t.Errorf("%s: got the log %q, want one line only if MaxPause cuts the reset", tt.name, log.String())
				}
				if cost10 := tt.want > 0 && len(p.arrivals) < 2; maxWait == 0 && tt.want > 0 {
					var refused *weir.RefusedError
					if !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause || refused.RetryAfter() != tt.want || cost10 && tt.name == "too little" {
						t.Errorf("%s: got %v, want a refusal for %v", tt.name, err, tt.want)
					}
					time.Sleep(tt.want)
					if _, err = client.Get("http://example.com/?cost=20"); err != nil {
						t.Errorf("%s: after RetryAfter: %v", tt.name, err)
					}
					return
				}
				if got := time.Since(p.start); err != nil || got != tt.want {
					t.Errorf("%s: the requests have taken %v, %v, want %v", tt.name, got, err, tt.want)
				}
			})
		}
	}
}

// TestTransportRemainingAtOnce: requests that are decided at the same time together send no more
// units than the server has left. The others wait for the reset, or are refused and give their
// units back: the limit has room for all requests, each sent once.
func TestTransportRemainingAtOnce(t *testing.T) {
	for _, maxWait := range []time.Duration{time.Hour, 0} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{start: time.Now(), answer: func(n int, _ *http.Request) *http.Response {
				if n == 1 {
					return response(200, "X-Ratelimit-Remaining-Tokens", "59", "X-Ratelimit-Reset-Tokens", "10s")
				}
				return nil
			}}
			rules := []weir.Rule{
				{Name: "api", Key: weir.Global(), Unit: "tokens", Limits: []weir.Limit{algorithms.FixedWindow(210, 1000*time.Hour), algorithms.FixedWindow(300, 10_000*time.Hour)},
					Cost: func(*http.Request) int64 { return 10 }},
				{Name: "other", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(21, 1000*time.Hour)}},
			}
			l := must(t, slowly{memory()}, weir.Options{Rules: rules, MaxWait: maxWait})
			client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: p})}
			get := func(n int) (sent int) {
				var wg sync.WaitGroup
				var ok atomic.Int32
				for range n {
					wg.Go(func() {
						_, err := client.Get("http://example.com/")
						var refused *weir.RefusedError
						if err == nil {
							ok.Add(1)
						} else if !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause || refused.RetryAfter() > 10*time.Second {
							t.Errorf("got %v, want a refusal for at most 10s", err)
						}
					})
				}
				wg.Wait()
				return int(ok.Load())
			}
			get(1)
			sent := get(20)
			early := 0
			for _, at := range p.arrivals[1:] {
				if d, _ := time.ParseDuration(at); d < 10*time.Second {
					early++
				}
			}
			if want := map[bool]int{true: 20, false: 5}[maxWait > 0]; early != 5 || sent != want {
				t.Errorf("MaxWait %v: %d of 20 requests were sent, %d of them before the reset, want %d and 5", maxWait, sent, early, want)
			}
			time.Sleep(10 * time.Second)
			if got := get(20 - sent); got != 20-sent {
				t.Errorf("MaxWait %v: after the reset %d requests were sent, want %d", maxWait, got, 20-sent)
			}
		})
	}
}

// slowly is a Store that takes 10 ms, in which many requests can be decided.
type slowly struct{ weir.Store }

func (s slowly) Take(ctx context.Context, t *quota.Transaction) error {
	time.Sleep(10 * time.Millisecond)
	return s.Store.Take(ctx, t)
}

// TestRetryBudget: a server that refuses everything gets a bounded share of requests again.
func TestRetryBudget(t *testing.T) {
	for budget, want := range map[float64]int{0: 500, 0.1: 119, 1: 209, 0.001: 110} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{answer: func(int, *http.Request) *http.Response { return response(429, "Retry-After", "1") }}
			client := outboundWith(t, memory(), weir.TransportOptions{Base: p, RetryBudget: budget}, weir.Options{MaxWait: 4500 * time.Millisecond}, algorithms.GCRA(1e6, time.Hour))
			for range 100 {
				if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != 429 {
					t.Fatalf("got %v, %v, want the answer of the server", res, err)
				}
				time.Sleep(time.Minute)
			}
			if got := len(p.arrivals); got != want {
				t.Errorf("a budget of %v: 100 requests were sent %d times, want %d", budget, got, want)
			}
		})
	}
	for _, budget := range []float64{-0.1, 1.1, 0 / zero} {
		if _, err := must(t, memory(), weir.Options{Rules: []weir.Rule{unit("tokens", 1)}}).Transport(weir.TransportOptions{RetryBudget: budget}); err == nil {
			t.Errorf("a budget of %v: got no error", budget)
		}
	}
}

var zero float64

// TestTransportSaysWhen: whatever refuses a request, the error says when the quota is free.
func TestTransportSaysWhen(t *testing.T) {
	const hour = time.Hour
	for _, tt := range []struct {
		name   string
		rule   weir.Rule
		before func(l *weir.Limiter, rt http.RoundTripper)
		reason weir.Reason
		want   time.Duration
	}{
		{"limit", weir.Rule{}, func(_ *weir.Limiter, rt http.RoundTripper) { send(rt) }, weir.ReasonLimit, hour},
		{"too large", weir.Rule{Cost: costs(2)}, nil, weir.ReasonLimit, quota.Never},
		{"ban", weir.Rule{Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: 2 * hour}},
			func(l *weir.Limiter, _ http.RoundTripper) { ban(t, l, "acme", 2*hour) }, weir.ReasonBan, 2 * hour},
		{"deny", weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Denied() }}, nil, weir.ReasonDeny, quota.Never},
		{"no key", weir.Rule{Key: weir.ByHeader("Missing"), NoKey: weir.NoKeyRefuse}, nil, weir.ReasonNoKey, quota.Never},
		{"pause", weir.Rule{Limits: []weir.Limit{algorithms.GCRA(1000, hour)}}, func(_ *weir.Limiter, rt http.RoundTripper) { send(rt) }, weir.ReasonPause, 40 * time.Second},
	} {
		synctest.Test(t, func(t *testing.T) {
			rule := tt.rule
			rule.Name = "api"
			if rule.Key == nil {
				rule.Key = weir.ByHeader("X-Tenant")
			}
			if rule.Limits == nil {
				rule.Limits = []weir.Limit{algorithms.AnchoredWindow(1, hour)}
			}
			l := must(t, memory(), weir.Options{Rules: []weir.Rule{rule}})
			rt := transport(t, l, weir.TransportOptions{Base: &partner{answer: func(int, *http.Request) *http.Response {
				if tt.reason == weir.ReasonPause {
					return response(503, "Retry-After", "40")
				}
				return nil
			}}})
			if tt.before != nil {
				tt.before(l, rt)
			}
			_, err := send(rt)
			var refused *weir.RefusedError
			if !errors.As(err, &refused) || refused.Admission.Refusal.Reason != tt.reason || refused.RetryAfter() != tt.want {
				t.Errorf("%s: got %v, want reason %v and a wait of %v", tt.name, err, tt.reason, tt.want)
			}
		})
	}
	rt := transport(t, must(t, storeFunc(func(context.Context, *quota.Transaction) error { return errDown }), weir.Options{Rules: []weir.Rule{unit("tokens", 1)}}),
		weir.TransportOptions{Base: &partner{}, OnError: weir.FailClosed})
	if _, err := send(rt); !errors.Is(err, errDown) {
		t.Errorf("FailClosed: got %v, want the error of the store", err)
	}
}

func send(rt http.RoundTripper) (*http.Response, error) {
	r, _ := http.NewRequest(http.MethodGet, "http://example.com/", nil)
	r.Header.Set("X-Tenant", "acme")
	return rt.RoundTrip(r)
}

// TestRemainingConcurrently: what a server has left is spent once by concurrent requests.
func TestRemainingConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &partner{start: time.Now(), answer: func(n int, _ *http.Request) *http.Response {
			if n == 1 {
				return response(200, "X-Ratelimit-Remaining-Tokens", "35", "X-Ratelimit-Reset-Tokens", "10s")
			}
			return nil
		}}
		rule := unit("tokens", 10)
		rule.Settle, rule.Limits = nil, []weir.Limit{algorithms.FixedWindow(1e6, 1000*time.Hour)}
		rt := transport(t, must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, MaxWait: time.Minute}), weir.TransportOptions{Base: p})
		var wg sync.WaitGroup
		for range 8 {
			if _, err := send(rt); err != nil {
				t.Error(err)
			}
		}
		wg.Wait()
		if got := strings.Join(p.arrivals, ", "); got != "0s, 0s, 0s, 0s, 10s, 10s, 10s, 10s" {
			t.Errorf("requests of 10 arrived at %s, of which the server had 35 left after the first", got)
		}
	})
}

// A router takes the next provider if the quota of one is used up, and reports its caller when the
// first of them is free again.
func ExampleLimiter_Transport_router() {
	serve := func(name string) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			fmt.Fprintf(w, `{"model":%q,"usage":{"prompt_tokens":200,"completion_tokens":500}}`, name)
		}))
	}
	anthropic, openai := serve("claude"), serve("gpt")
	defer anthropic.Close()
	defer openai.Close()
	providers := []string{anthropic.URL, openai.URL}

	l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{{
		Name: "tokens", Unit: "tokens", Key: func(r *http.Request) (string, bool) { return r.URL.Host, true },
		Limits: []weir.Limit{algorithms.TokenBucket(1000, 1000, time.Minute)},
		Cost:   llm.MaxTokens(1000, 1000), Settle: weir.ChargeUsed,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	rt, err := l.Transport(weir.TransportOptions{Base: &llm.Transport{}, OnError: weir.FailClosed})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: rt}

	route := func(body string) (answer string, retryAfter time.Duration) {
		retryAfter = quota.Never
		for _, url := range providers {
			res, err := client.Post(url, "application/json", strings.NewReader(body))
			if refused := new(weir.RefusedError); errors.As(err, &refused) {
				retryAfter = min(retryAfter, refused.RetryAfter())
				continue
			} else if err != nil {
				continue
			}
			defer res.Body.Close()
			var a struct{ Model string }
			_ = json.NewDecoder(res.Body).Decode(&a)
			return a.Model, 0
		}
		return "", retryAfter
	}
	for range 4 {
		answer, retryAfter := route(`{"max_tokens": 700}`)
		fmt.Println(answer, retryAfter.Round(time.Second))
	}
	// Output:
	// claude 0s
	// gpt 0s
	//  25s
	//  25s
}

// TestRemainingOfTwoLimits: a request under a rule of two limits spends its cost once of what the
// server says is left.
func TestRemainingOfTwoLimits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		arrived := 0
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			if arrived++; arrived == 1 {
				return response(200, "X-Ratelimit-Remaining-Tokens", "30", "X-Ratelimit-Reset-Tokens", "10s"), nil
			}
			return response(200), nil
		})
		rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: "tokens", Cost: costs(10),
			Limits: []weir.Limit{algorithms.FixedWindow(100, time.Minute).Named("minute"), algorithms.FixedWindow(1000, time.Hour).Named("hour")}}
		client := &http.Client{Transport: transport(t, must(t, memory(), weir.Options{Rules: []weir.Rule{rule}}), weir.TransportOptions{Base: base})}
		for i := range 4 {
			if _, err := client.Get("http://example.com/"); err != nil {
				t.Errorf("request %d: %v", i, err)
			}
		}
		if _, err := client.Get("http://example.com/"); err == nil {
			t.Error("the server has nothing left, and a request is sent")
		}
	})
}

// TestUnpauseRemaining: Unpause also ends a pause that this process has made because too few units
// were left.
func TestUnpauseRemaining(t *testing.T) {
	for _, left := range []string{"0", "5"} {
		first := true
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			if !first {
				return response(200), nil
			}
			first = false
			return response(200, "X-Ratelimit-Remaining-Tokens", left, "X-Ratelimit-Reset-Tokens", "30s"), nil
		})
		rule := weir.Rule{Name: "api", Key: weir.Global(), Unit: "tokens", Cost: costs(10), Limits: []weir.Limit{algorithms.FixedWindow(100, time.Hour)}}
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}})
		client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base})}
		_, err := client.Get("http://example.com/")
		if err != nil {
			t.Fatal(err)
		}
		var refused *weir.RefusedError
		if _, err = client.Get("http://example.com/"); !errors.As(err, &refused) || refused.Admission.Refusal.Reason != weir.ReasonPause {
			t.Errorf("%s left: got %v, want a pause", left, err)
		}
		if err := l.Unpause(t.Context(), "api", ""); err != nil {
			t.Fatal(err)
		}
		if _, err := client.Get("http://example.com/"); err != nil {
			t.Errorf("%s left, after Unpause: %v", left, err)
		}
	}
}

// TestRetryBudgetOfSent: requests that the rules refuse are not sent, so they give no retries.
func TestRetryBudgetOfSent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		sent := 0
		base := roundTripper(func(*http.Request) (*http.Response, error) {
			sent++
			return response(429, "Retry-After", "1"), nil
		})
		rule := weir.Rule{Name: "api", Key: weir.ByHeader("K"), NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.FixedWindow(1e6, time.Hour)}}
		l := must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, MaxWait: 5500 * time.Millisecond})
		client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base, RetryBudget: 0.1})}
		for range 20 {
			r, _ := http.NewRequest("GET", "http://example.com/", nil)
			r.Header.Set("K", "k")
			if _, err := client.Do(r); err != nil {
				t.Fatal(err)
			}
			for range 100 { // refused
				_, _ = client.Get("http://example.com/")
			}
			time.Sleep(time.Minute)
		}
		if sent > 20+10+2 {
			t.Errorf("20 requests were sent %d times, want 32 at most", sent)
		}
	})
}

// transport is Limiter.Transport, but fails the test after an error.
func transport(t *testing.T, l *weir.Limiter, o weir.TransportOptions) http.RoundTripper {
	t.Helper()
	rt, err := l.Transport(o)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// TestCloseIdleConnections: http.Client.CloseIdleConnections reaches the Base.
func TestCloseIdleConnections(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var closed atomic.Int64
	base := &http.Transport{DialContext: func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := new(net.Dialer).DialContext(ctx, network, addr)
		return countingConn{c, &closed}, err
	}}
	defer base.CloseIdleConnections()
	client := outboundWith(t, memory(), weir.TransportOptions{Base: base}, weir.Options{}, algorithms.GCRA(9, time.Second))
	res, err := client.Get(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	client.CloseIdleConnections()
	if closed.Load() == 0 {
		t.Error("the idle connection was not closed")
	}
	outboundWith(t, memory(), weir.TransportOptions{Base: roundTripper(nil)}, weir.Options{}, algorithms.GCRA(9, time.Second)).CloseIdleConnections()
}

type countingConn struct {
	net.Conn
	closed *atomic.Int64
}

func (c countingConn) Close() error { c.closed.Add(1); return c.Conn.Close() }

// TestGetBodyPanics: a GetBody that panics after a 429 leaves nothing in flight.
func TestGetBodyPanics(t *testing.T) {
	store, limit := memory(), algorithms.InFlight(1, time.Hour)
	base := roundTripper(func(*http.Request) (*http.Response, error) { return response(429, "Retry-After", "1"), nil })
	client := outboundWith(t, store, weir.TransportOptions{Base: base}, weir.Options{MaxWait: time.Minute}, limit)
	r, _ := http.NewRequest("POST", "http://example.com/", strings.NewReader("x"))
	r.GetBody = func() (io.ReadCloser, error) { panic("x") }
	func() {
		defer func() { _ = recover() }()
		client.Transport.RoundTrip(r)
	}()
	if l, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "partner", Key: "example.com", Limit: limit}); err != nil || l.Decisions[0].Remaining != 1 {
		t.Errorf("%+v left, %v", l.Decisions, err)
	}
}

// TestRewoundBodyIsClosed: GetBody may open a file, so its body is closed if the budget allows no
// retry.
func TestRewoundBodyIsClosed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		base := roundTripper(func(r *http.Request) (*http.Response, error) {
			r.Body.Close()
			return response(429, "Retry-After", "1"), nil
		})
		client := outboundWith(t, memory(), weir.TransportOptions{Base: base, RetryBudget: 0.001}, weir.Options{MaxWait: 5 * time.Second}, algorithms.GCRA(1e6, time.Hour))
		open := 0
		for range 10 {
			r, _ := http.NewRequest("POST", "http://example.com/", http.NoBody)
			r.GetBody = func() (io.ReadCloser, error) {
				open++
				return struct {
					io.Reader
					io.Closer
				}{strings.NewReader("x"), closer(func() { open-- })}, nil
			}
			r.Body, _ = r.GetBody()
			res, err := client.Transport.RoundTrip(r)
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
		}
		if open != 0 {
			t.Errorf("%d bodies are open", open)
		}
	})
}

type closer func()

func (c closer) Close() error { c(); return nil }

// TestTransportHeadroom: a request that must leave headroom does not wait, so after a 429 it is not sent
// again, and the caller gets the response.
func TestTransportHeadroom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for class, want := range map[string]string{"batch": "[429]", "people": "[429 200]"} {
			var sent []int
			base := roundTrip(func(r *http.Request) (*http.Response, error) {
				res := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: r}
				if len(sent) == 0 {
					res.StatusCode, res.Header = 429, http.Header{"Retry-After": {"2"}}
				}
				sent = append(sent, res.StatusCode)
				return res, nil
			})
			l := must(t, memory(), weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{{Name: "api", Key: weir.Global(),
				Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}, Class: weir.ByHeader("X-Class"), Headroom: map[string]int{"batch": 30}}}})
			r, _ := http.NewRequest("GET", "http://example.com/", nil)
			r.Header.Set("X-Class", class)
			res, err := transport(t, l, weir.TransportOptions{Base: base}).RoundTrip(r)
			if err != nil || fmt.Sprint(sent) != want || res.StatusCode != sent[len(sent)-1] {
				t.Errorf("%s: got %v, %v after %v, want %s", class, res, err, sent, want)
			}
		}
	})
}

// TestTransportHalfClosed: an upgraded connection whose client sends no more is still read to its end.
func TestTransportHalfClosed(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer conn.Close()
		io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		text, err := io.ReadAll(rw)
		fmt.Fprintf(conn, "got %s, %v", text, err)
	}))
	defer server.Close()
	l := must(t, memory(), weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{{Name: "partner", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, time.Minute)}}}})
	to, _ := url.Parse(server.URL)
	proxy := httptest.NewServer(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(to) }, Transport: transport(t, l, weir.TransportOptions{})})
	defer proxy.Close()
	for range 2 { // the second request waits for the end of the first connection
		conn, err := net.Dial("tcp", proxy.Listener.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		io.WriteString(conn, "GET / HTTP/1.1\r\nHost: example.com\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		in := bufio.NewReader(conn)
		if res, err := http.ReadResponse(in, nil); err != nil || res.StatusCode != http.StatusSwitchingProtocols {
			t.Fatal(res, err)
		}
		io.WriteString(conn, "ping")
		conn.(*net.TCPConn).CloseWrite()
		if text, err := io.ReadAll(in); err != nil || string(text) != "got ping, <nil>" {
			t.Errorf("got %q, %v", text, err)
		}
		conn.Close()
	}
}

// TestBodyNotClosed: responses whose bodies the caller reads and drops, but does not close, are logged
// once, and their units in flight are released.
func TestBodyNotClosed(t *testing.T) {
	var log weirtest.Log
	l := busy(t, &log)
	rt := transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil })})
	send := func(leave bool) error {
		res, err := rt.RoundTrip(ask("/", ""))
		if err != nil {
			return err
		}
		io.Copy(io.Discard, res.Body)
		if !leave {
			return res.Body.Close()
		}
		return nil
	}
	for _, leave := range []bool{true, true, false} {
		collect(t, func() bool { return send(leave) == nil })
	}
	for range 3 {
		runtime.GC()
	}
	if n := strings.Count(log.String(), "response dropped without closing its body\" rule=busy effect=\"its units in flight were held until now\"\n"); n != 1 {
		t.Errorf("%d lines, want 1: %s", n, log.String())
	}
}

// TestBodyClosed: no response whose body was closed is logged when it is collected.
func TestBodyClosed(t *testing.T) {
	var log weirtest.Log
	l := busy(t, &log)
	rt := transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil })})
	collected := make(chan struct{}, 100)
	for range 100 {
		res, err := rt.RoundTrip(ask("/", ""))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		runtime.AddCleanup(res, func(c chan struct{}) { c <- struct{}{} }, collected)
	}
	for i := 0; len(collected) < 90; i++ { // the last ones may still be on the stack
		if i == 10_000 {
			t.Fatalf("%d of 100 responses were collected", len(collected))
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
	if log.String() != "" {
		t.Errorf("got %s", log.String())
	}
}
