package weir_test

import (
	"bytes"
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// everyRule returns rules that use every part of the way of a request.
func everyRule() []weir.Rule {
	return []weir.Rule{
		{Name: "tier", Key: weir.ByHeader("Key"), Policy: func(r *http.Request) weir.Policy {
			switch r.Header.Get("Tier") {
			case "denied":
				return weir.Denied()
			case "broken":
				return weir.Limited(weir.Limit{})
			}
			return weir.Limited(algorithms.GCRA(8, time.Minute))
		}},
		{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.SlidingLog(9, time.Minute), algorithms.FixedWindow(30, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(6, time.Hour), Duration: 5 * time.Minute}},
		{Name: "tokens", Unit: "tokens", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.TokenBucket(100, 100, time.Minute)},
			Cost: func(*http.Request) int64 { return 20 }, Settle: func(o weir.Outcome) int64 { return o.Used }},
		{Name: "busy", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.InFlight(2, time.Minute)}},
		{Name: "tried", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.GCRA(3, time.Minute)}, Enforce: weir.Percent(0)},
		{Name: "named", Key: weir.ByHeader("User"), NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.GCRA(20, time.Minute)}},
	}
}

// TestAdmitIsHandler: whatever is requested, in whatever order requests begin and end, Admit decides,
// reports and settles as Handler does: two limiters over stores of their own, one asked by each, give
// the same answers, events and fields.
func TestAdmitIsHandler(t *testing.T) {
	for seed := range uint64(30) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 1))
			var events [2][]string
			observed := func(side int) func(weir.Event) {
				return func(e weir.Event) {
					events[side] = append(events[side], fmt.Sprint(e.Refusal, e.Key, e.Shadow, e.Passed, e.BanBegan, e.Err, e.Transaction.Decisions))
				}
			}
			var limiters [2]*weir.Limiter
			for side := range limiters {
				limiters[side] = must(t, memory(), weir.Options{Rules: everyRule(), Headers: headers.IETF | headers.OpenAI, Observe: observed(side),
					Logger: slog.New(slog.DiscardHandler), OnError: weir.FailClosed})
			}
			type running struct {
				used int64
				done [2]func()
			}
			var open []running
			end := func(i int) {
				for _, done := range open[i].done {
					done()
				}
				open = append(open[:i], open[i+1:]...)
			}
			for range 120 {
				time.Sleep(time.Duration(r.IntN(8000)) * time.Millisecond)
				if n := len(open); n > 0 && r.IntN(2) == 0 {
					end(r.IntN(n))
					continue
				}
				q := running{used: r.Int64N(40)}
				fields := []string{"Key", fmt.Sprint(r.IntN(3)), "User", "u", "Tier", []string{"", "", "", "", "", "denied", "broken"}[r.IntN(7)]}
				if r.IntN(10) == 0 {
					fields = fields[:2]
				}
				byHandler := make(chan *weir.Admission)
				finish := make(chan bool)
				w := httptest.NewRecorder()
				h := limiters[0].Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
					byHandler <- weir.FromContext(r.Context())
					<-finish
					weir.ReportUsage(r.Context(), "tokens", q.used)
				}))
				go func() {
					h.ServeHTTP(w, ask("/", "", fields...))
					close(byHandler)
				}()
				a := <-byHandler
				q.done[0] = func() { close(finish); <-byHandler }
				b, err := limiters[1].Admit(ask("/", "", fields...))
				if (a != nil) != (err == nil) {
					t.Fatalf("seed %d: Handler gives %v, Admit %v", seed, a, err)
				}
				h2 := http.Header{}
				if err == nil {
					b.WriteHeaders(h2)
					if !reflect.DeepEqual(a.Decisions, b.Decisions) || a.Refusal != b.Refusal || a.Wait != b.Wait {
						t.Fatalf("seed %d: Handler gives %v, Admit %v", seed, a, b)
					}
					inContext := weir.FromContext(b.Context())
					if !reflect.DeepEqual(inContext.Charges, b.Charges) || !reflect.DeepEqual(inContext.Decisions, b.Decisions) || inContext.At != b.At {
						t.Fatalf("seed %d: the context has %v, want %v", seed, inContext, b)
					}
					inContext.Done(weir.Outcome{}) // does nothing
					q.done[1] = func() {
						weir.ReportUsage(b.Context(), "tokens", q.used)
						b.Done(weir.Outcome{})
						b.Done(weir.Outcome{}) // does nothing
					}
					open = append(open, q)
				} else {
					refused := (*weir.RefusedError)(nil)
					if !errors.As(err, &refused) {
						t.Fatal(err)
					}
					refused.Admission.Done(weir.Outcome{}) // does nothing
					refused.Admission.WriteHeaders(h2)
					w2 := httptest.NewRecorder()
					weir.Refuse(w2, ask("/", "").WithContext(refused.Admission.Context()))
					if w.Code != w2.Code || w.Body.String() != w2.Body.String() {
						t.Fatalf("seed %d: Handler answers %d %s, Refuse %d %s", seed, w.Code, w.Body, w2.Code, w2.Body)
					}
				}
				for name, want := range w.Header() {
					if got := h2[name]; !reflect.DeepEqual(got, want) && (strings.Contains(strings.ToLower(name), "rate") || name == "Retry-After") {
						t.Fatalf("seed %d: Handler sets %s to %q, Admit to %q", seed, name, want, got)
					}
				}
			}
			for len(open) > 0 {
				end(0)
			}
			if !reflect.DeepEqual(events[0], events[1]) {
				t.Errorf("seed %d: Handler's events\n%s\nAdmit's events\n%s", seed, strings.Join(events[0], "\n"), strings.Join(events[1], "\n"))
			}
		})
	}
}

// TestAdmitWaits: Admit waits for the slot of the request. If the context ends before, its units are
// refunded, and Admit returns the error of the context.
func TestAdmitWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(t, memory(), weir.Options{MaxWait: time.Minute, Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, 10*time.Second)}}}})
		begun := time.Now()
		admit := func(ctx context.Context) error {
			_, err := l.Admit(ask("/", "").WithContext(ctx))
			return err
		}
		if err := admit(t.Context()); err != nil || time.Since(begun) != 0 {
			t.Errorf("the first: %v after %v", err, time.Since(begun))
		}
		gone, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDown)
		defer cancel()
		go func() { time.Sleep(time.Millisecond) }()
		hungUp, hangUp := context.WithCancel(t.Context())
		go func() { time.Sleep(time.Second); hangUp() }()
		if err := admit(hungUp); err != context.Canceled {
			t.Errorf("whose client hangs up: %v", err)
		}
		if err := admit(gone); !errors.Is(err, context.DeadlineExceeded) && !errors.As(err, new(*weir.RefusedError)) {
			t.Errorf("that is too late: %v", err)
		}
		if err := admit(t.Context()); err != nil || time.Since(begun) != 10*time.Second {
			t.Errorf("the next: %v after %v, want 10s", err, time.Since(begun))
		}
	})
}

// TestAdmitUndecided: OnError decides about Admit as about Handler. OnLimited answers a refusal
// after an error with a Refusal that says so.
func TestAdmitUndecided(t *testing.T) {
	for _, c := range []struct {
		name    string
		err     error
		onError func(*http.Request, error) error
		passes  bool
		retry   string
	}{
		{"outage", errDown, nil, true, ""},
		{"busy", quota.ErrBusy, nil, false, "1"},
		{"closed", errDown, weir.FailClosed, false, ""},
	} {
		var passed []bool
		limited := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Reason", weir.FromContext(r.Context()).Refusal.Reason.String())
			w.WriteHeader(503)
		})
		l := must(t, failing{c.err}, weir.Options{OnError: c.onError, OnLimited: limited, Logger: slog.New(slog.DiscardHandler),
			Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), RetryJitter: time.Hour, Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
			Observe: func(e weir.Event) { passed = append(passed, e.Passed) }})
		a, err := l.Admit(ask("/", ""))
		refused := (*weir.RefusedError)(nil)
		if c.passes != (err == nil) || err == nil == errors.As(err, &refused) || fmt.Sprint(passed) != fmt.Sprint([]bool{c.passes}) {
			t.Errorf("%s: got %v, observed passed=%v", c.name, err, passed)
			continue
		}
		h := http.Header{}
		if err == nil {
			a.WriteHeaders(h)
			a.Done(weir.Outcome{})
		} else {
			refused.Admission.WriteHeaders(h)
			if got := refused.Admission.Refusal.Reason; got != weir.ReasonError || refused.Error() != `weir: rule "api" could not decide` {
				t.Errorf("%s: the reason is %v, the error %v", c.name, got, refused)
			}
			if res := do(l.Handler(served), ask("/", "")); res.StatusCode != 503 || res.Header.Get("Reason") != "error" || res.Header.Get("Retry-After") != c.retry {
				t.Errorf("%s: Handler answers %d %v", c.name, res.StatusCode, res.Header)
			}
		}
		if h.Get("Retry-After") != c.retry || len(h) > 1 {
			t.Errorf("%s: fields %v, want Retry-After %q alone", c.name, h, c.retry)
		}
	}
}

// TestDecision: one line reads what is left under a rule, also if nothing was decided.
func TestDecision(t *testing.T) {
	var got []int64
	var wait time.Duration
	read := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		a := weir.FromContext(r.Context())
		got, wait = nil, a.Decision("account").RetryAfter
		for _, rule := range []string{"all", "account", "other", ""} {
			got = append(got, a.Decision(rule).Remaining)
		}
	})
	synctest.Test(t, func(t *testing.T) {
		h := must(t, memory(), weir.Options{OnLimited: read, Rules: []weir.Rule{
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(100, time.Second)}},
			{Name: "account", Key: weir.ByHeader("Account"), Limits: []weir.Limit{algorithms.GCRA(90, time.Hour), algorithms.GCRA(2, time.Minute)}},
		}}).Handler(read)
		for _, c := range []struct {
			account, want string
			wait          time.Duration
		}{
			{"a", "[99 1 -1 1]", 0}, {"", "[98 -1 -1 98]", 0}, {"a", "[97 0 -1 0]", 0}, {"a", "[97 0 -1 0]", 30 * time.Second},
		} {
			if do(h, ask("/", "", "Account", c.account)); fmt.Sprint(got) != c.want || wait != c.wait {
				t.Errorf("account %q: got %v and %v, want %s and %v", c.account, got, wait, c.want, c.wait)
			}
		}
	})
	if read(nil, ask("/", "")); fmt.Sprint(got) != "[-1 -1 -1 -1]" {
		t.Errorf("outside of a limiter: got %v", got)
	}
}

// TestNilAdmission: no method of a nil Admission, which FromContext returns outside of a limiter,
// panics.
func TestNilAdmission(t *testing.T) {
	a := weir.FromContext(context.Background())
	a.Done(weir.Outcome{})
	a.WriteHeaders(http.Header{})
	a.WriteMetadata(http.Header{})
	if a.Allowed() || a.RetryAfter() != 0 || a.Context() != nil || !a.Decision("").Allowed {
		t.Errorf("got %v, %v, %v, %+v of a nil Admission", a.Allowed(), a.RetryAfter(), a.Context(), a.Decision(""))
	}
}

// busy returns a Limiter that admits one request at a time.
func busy(t *testing.T, log io.Writer) *weir.Limiter {
	return must(t, memory(), weir.Options{Logger: slog.New(slog.NewTextHandler(log, nil)), Rules: []weir.Rule{
		{Name: "busy", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, time.Hour)}}}})
}

// collect collects garbage until admitted reports that the unit in flight has become free.
func collect(t *testing.T, admitted func() bool) {
	t.Helper()
	for i := 0; !admitted(); i++ {
		if i == 10_000 {
			t.Fatal("the unit in flight does not become free")
		}
		runtime.GC()
		time.Sleep(time.Millisecond)
	}
}

// TestDropped: an Admission that nobody ends is logged, and its unit in flight becomes free.
func TestDropped(t *testing.T) {
	var log weirtest.Log
	l := busy(t, &log)
	a, err := l.Admit(ask("/", ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Admit(ask("/", "")); err == nil {
		t.Fatal("a second request was admitted")
	}
	runtime.KeepAlive(a)
	a = nil
	collect(t, func() bool {
		b, err := l.Admit(ask("/", ""))
		b.Done(weir.Outcome{})
		return err == nil
	})
	if !strings.Contains(log.String(), "dropped without Done") || !strings.Contains(log.String(), "rule=busy") {
		t.Errorf("got the log %q", log.String())
	}
	for range 3 {
		runtime.GC()
	}
	if n := strings.Count(log.String(), "dropped"); n != 1 {
		t.Errorf("%d lines, want 1: %s", n, log.String())
	}
}

// TestReportUsageUnits: each rule is settled by what was reported in its own unit, by
// concurrent calls, through limiters around each other. A unit that no rule settles is logged once.
func TestReportUsageUnits(t *testing.T) {
	var log bytes.Buffer
	store := memory()
	rule := func(unit string) weir.Rule {
		return weir.Rule{Name: unit, Unit: unit, Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1000, 1000*time.Hour)},
			Cost: func(*http.Request) int64 { return 100 }, Settle: func(o weir.Outcome) int64 { return o.Used }}
	}
	o := weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}
	o.Rules = []weir.Rule{rule("input-tokens"), rule("output-tokens")}
	inner := must(t, store, o)
	o.Rules = []weir.Rule{rule("cents"), {Name: "plain", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1000, 1000*time.Hour)}}}
	outer := must(t, store, o)
	h := outer.Handler(inner.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		together(10, func(int) {
			weir.ReportUsage(r.Context(), "input-tokens", 2)
			weir.ReportUsage(r.Context(), "output-tokens", 30)
			weir.ReportUsage(r.Context(), "cents", 1)
			weir.ReportUsage(r.Context(), "dollars", 7)
		})
	})))
	do(h, ask("/", ""))
	for unit, want := range map[string]int64{"input-tokens": 980, "output-tokens": 700, "cents": 990, "plain": 999} {
		if got := peek(t, store, quota.Charge{Rule: unit, Limit: algorithms.FixedWindow(1000, 1000*time.Hour)}).Decisions[0].Remaining; got != want {
			t.Errorf("%s: %d are left, want %d", unit, got, want)
		}
	}
	if strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "unit=dollars") {
		t.Errorf("got the log %q, want one line about dollars", &log)
	}
}

// TestAdmissionFellBack: the units of an Admission are refunded in the store that has spent them, also if
// the first store works again by then.
func TestAdmissionFellBack(t *testing.T) {
	down, first, second := true, memory(), memory()
	store := quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if down {
			return errDown
		}
		return first.Take(ctx, tx)
	}), second, quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
	limit := algorithms.SlidingWindow(10, time.Hour)
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "r", Key: weir.Global(), Limits: []weir.Limit{limit}}}})
	admit := func() *weir.Admission {
		t.Helper()
		a, err := l.Admit(ask("/", "192.0.2.1:1"))
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	fellBack := admit()
	down = false
	admit()
	for _, a := range []*weir.Admission{fellBack, weir.FromContext(fellBack.Context())} {
		if !a.FellBack() {
			t.Error("got FellBack false of a decision of the second store")
		}
	}
	if err := quota.Refund(t.Context(), store, &fellBack.Transaction); err != nil {
		t.Fatal(err)
	}
	for i, want := range []int64{9, 10} {
		charge := quota.Charge{Rule: "r", Limit: limit.Named("1h")}
		if got := weirtest.Peek(t, []quota.Store{first, second}[i], charge).Decisions[0].Remaining; got != want {
			t.Errorf("store %d: got %d left, want %d", i, got, want)
		}
	}
}

// TestDoneOnce: concurrent calls of Done settle once, and the client's hang-up reaches Settle.
func TestDoneOnce(t *testing.T) {
	var settled atomic.Int64
	var outcome weir.Outcome
	l := must(t, memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(10, 1000*time.Hour)},
		Settle: func(o weir.Outcome) int64 { settled.Add(1); outcome = o; return 0 }}}})
	ctx, hangUp := context.WithCancel(t.Context())
	r := ask("/", "").WithContext(ctx)
	a, err := l.Admit(r)
	if err != nil {
		t.Fatal(err)
	}
	hangUp()
	together(20, func(int) { a.Done(weir.Outcome{Panicked: true}) })
	if settled.Load() != 1 || !outcome.HungUp || outcome.Status != 500 || outcome.Cost != 1 || outcome.Request != r {
		t.Errorf("settled %d times, by %+v", settled.Load(), outcome)
	}
}

// TestAdmitOutside: the fields of a Limiter inside of an Admission's context also tell of its
// limits.
func TestAdmitOutside(t *testing.T) {
	rule := func(name string, quota int64) []weir.Rule {
		return []weir.Rule{{Name: name, Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(quota, 1000*time.Hour)}}}
	}
	outer, inner := must(t, memory(), weir.Options{Rules: rule("a", 2)}), must(t, memory(), weir.Options{Rules: rule("b", 5)})
	r := ask("/", "")
	a, err := outer.Admit(r)
	if err != nil {
		t.Fatal(err)
	}
	if got := do(inner.Handler(served), r.WithContext(a.Context())).Header.Get("X-RateLimit-Remaining"); got != "1" {
		t.Errorf("%s are left, want 1", got)
	}
}

// The messages of a connection are charged under the rules of the request that has opened it.
func ExampleLimiter_Admit() {
	messages, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "messages", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	r := httptest.NewRequest("GET", "/socket", nil)
	r.Header.Set("User", "ann")
	for _, message := range []string{"hello", "is anybody there?", "hello!"} {
		a, err := messages.Admit(r)
		if err != nil {
			fmt.Println("refused:", message)
			continue
		}
		fmt.Println("received:", message)
		a.Done(weir.Outcome{})
	}
	// Output:
	// received: hello
	// received: is anybody there?
	// refused: hello!
}

// A refusal has the header fields and the answer that Handler would give.
func ExampleAdmission_WriteHeaders() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	serve := func(w http.ResponseWriter, r *http.Request) {
		a, err := limiter.Admit(r)
		if refused := (*weir.RefusedError)(nil); errors.As(err, &refused) {
			refused.Admission.WriteHeaders(w.Header())
			weir.Refuse(w, r.WithContext(refused.Admission.Context()))
			return
		} else if err != nil {
			return // the client has hung up
		}
		defer a.Done(weir.Outcome{})
		a.WriteHeaders(w.Header())
		fmt.Fprint(w, "served")
	}
	for range 2 {
		w := httptest.NewRecorder()
		serve(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 0
	// 429 0
}

// BenchmarkAdmit compares Admit with Handler, which serves nothing.
func BenchmarkAdmit(b *testing.B) {
	for _, quota := range []int64{1, 1 << 30} {
		name := map[bool]string{true: "denied", false: "allowed"}[quota == 1]
		l := must(b, memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(quota, 1000*time.Hour)}}}})
		r := ask("/", "", "Key", "k")
		b.Run("Handler/"+name, func(b *testing.B) {
			b.ReportAllocs()
			h := l.Handler(served)
			w := &nullWriter{h: http.Header{}}
			for b.Loop() {
				clear(w.h)
				h.ServeHTTP(w, r)
			}
		})
		b.Run("Admit/"+name, func(b *testing.B) {
			b.ReportAllocs()
			h := http.Header{}
			for b.Loop() {
				clear(h)
				a, err := l.Admit(r)
				if err != nil {
					err.(*weir.RefusedError).Admission.WriteHeaders(h)
					continue
				}
				a.WriteHeaders(h)
				a.Done(weir.Outcome{})
			}
		})
	}
}

// A moment says when the client of a request hangs up.
type moment string

const (
	beforeAsking   moment = "gone before the limiter"
	beforeDeciding moment = "gone before the decision"
	afterDeciding  moment = "gone before the store answers"
	whileServed    moment = "gone while it is served"
)

var moments = []moment{beforeAsking, beforeDeciding, afterDeciding, whileServed}

// goneKey is the context key of a channel that is closed when the client is gone.
type goneKey struct{}

func untilGone(ctx context.Context, at, now moment) {
	if gone, ok := ctx.Value(goneKey{}).(<-chan struct{}); ok && at == now {
		<-gone
	}
}

// A patient store waits until the client has hung up. The field when says whether it waits
// before or after it decides, or not at all.
type patient struct {
	next quota.Store
	when moment
}

func (p patient) Take(ctx context.Context, t *quota.Transaction) error {
	untilGone(ctx, beforeDeciding, p.when)
	err := p.next.Take(ctx, t)
	untilGone(ctx, afterDeciding, p.when)
	return err
}

func (p patient) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	return p.next.(optional.Batcher).TakeEach(ctx, ts)
}

// A protocol is a way to send n requests whose client hangs up on each.
type protocol struct {
	name     string
	connects bool // every request takes a new connection
	send     func(t *testing.T, addr string, n int)
}

var protocols = []protocol{
	{"HTTP/1.1 and a close", true, func(t *testing.T, addr string, n int) {
		slots := make(chan struct{}, 32)
		var wg sync.WaitGroup
		for range n {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				conn := dial(t, addr)
				io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				conn.Close()
			})
		}
		wg.Wait()
	}},
	{"HTTP/2 and RST_STREAM", false, func(t *testing.T, addr string, n int) {
		const streams = 50 // requests of one connection; servers close a connection that resets many more requests
		for ; n > 0; n -= streams {
			conn := dial(t, addr)
			go io.Copy(io.Discard, conn)
			io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(4, 0, 0, ""))
			for i := range uint32(min(n, streams)) {
				const get = "\x82\x86\x84\x01\x01x"                                                  // GET, http, /, authority x
				io.WriteString(conn, frame(1, 5, 2*i+1, get)+frame(3, 0, 2*i+1, "\x00\x00\x00\x08")) // CANCEL
			}
			t.Cleanup(func() { conn.Close() })
		}
	}},
}

func dial(t *testing.T, addr string) net.Conn {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return &net.TCPConn{}
	}
	return conn
}

// frame returns a frame of HTTP/2 (RFC 9113, 4.1).
func frame(kind, flags byte, stream uint32, payload string) string {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return string(binary.BigEndian.AppendUint32(append(head, flags), stream)) + payload
}

// serveGone serves n requests, whose clients hang up at the given moment. It returns how
// often the handler ran and how often OnError was called.
func serveGone(t *testing.T, store quota.Store, limit quota.Limit, p protocol, when moment, n int) (ran, failed int64) {
	t.Helper()
	var handled, errs atomic.Int64
	l := must(t, store, weir.Options{
		Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []quota.Limit{limit}}},
		OnError: func(*http.Request, error) error {
			errs.Add(1)
			return nil // as the default OnError does
		},
	})
	limited := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handled.Add(1)
		untilGone(r.Context(), whileServed, when)
	}))
	var all sync.WaitGroup
	all.Add(n)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer all.Done()
		ctx := context.WithValue(r.Context(), goneKey{}, r.Context().Done())
		untilGone(ctx, beforeAsking, when)
		limited.ServeHTTP(w, r.WithContext(ctx))
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	p.send(t, server.Listener.Addr().String(), n)
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("requests were lost on the way")
	}
	return handled.Load(), errs.Load()
}

// TestGone: a request whose client hangs up is charged, over both protocols and at every
// moment of the decision. The handler runs only for requests that the limit allows.
func TestGone(t *testing.T) {
	forever := func(units int64) quota.Limit { return algorithms.FixedWindow(units, 1000*time.Hour) }
	same := func(s quota.Store) quota.Store { return s }
	memory := func() quota.Store { return memstore.New(memstore.Options{}) }
	type wrap = func(quota.Store) quota.Store
	type redis = func() quota.Store
	for _, c := range []struct {
		name  string
		want  int64 // how often the handler runs
		store func(t *testing.T, base wrap, redis redis) quota.Store
	}{
		{"memory", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return base(memory()) }},
		{"Redis", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return base(redis()) }},
		{"Hybrid", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Hybrid(base(memory()), quota.HybridOptions{})
		}},
		{"Coalesce", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return quota.Coalesce(base(memory())) }},
		{"Lease", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return leasing(t, base(memory())) }},
		{"Breaker and Fallback", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Fallback(quota.Breaker(base(memory()), quota.BreakerOptions{}), memory(), quota.FallbackOptions{})
		}},
		{"Share", 2, func(t *testing.T, base wrap, redis redis) quota.Store { return quota.Share(base(memory()), 2) }},
		{"the README's", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Fallback(quota.Hybrid(quota.Breaker(base(redis()), quota.BreakerOptions{}), quota.HybridOptions{MaxKeys: 100_000}), quota.Share(memory(), 4), quota.FallbackOptions{})
		}},
		{"the README's with leases", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Fallback(quota.Breaker(leasing(t, quota.Coalesce(base(redis()))), quota.BreakerOptions{}), memory(), quota.FallbackOptions{})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := ""
			redis := func() quota.Store {
				if addr == "" {
					addr = redistest.Server(t).Addr()
				}
				return redisAt(t, addr, 20*time.Second)
			}
			for _, p := range protocols {
				n := goneRequests(c.name, p)
				for _, when := range moments {
					waits := func(s quota.Store) quota.Store { return patient{s, when} }
					limit := forever(5).Named(p.name + ", " + string(when))
					store := c.store(t, same, redis)
					checkGone(t, waits(store), store, limit, p, when, n, c.want) // the client hangs up while the outermost store is asked
					if when == beforeDeciding || when == afterDeciding {
						store := c.store(t, waits, redis)
						checkGone(t, store, store, limit.Named(limit.Name+", inside"), p, when, n, c.want) // the client hangs up while the innermost store is asked
					}
				}
			}
		})
	}
}

// checkGone sends n requests, whose clients hang up, to a Limiter with the first of two
// stores. It expects that the handler runs want times, and that the quota is then used up in
// the second store.
func checkGone(t *testing.T, front, store quota.Store, limit quota.Limit, p protocol, when moment, n int, want int64) {
	t.Helper()
	ran, failed := serveGone(t, front, limit, p, when, n)
	if ran != want || failed > 0 {
		t.Errorf("%s: the handler ran %d times of %d and %d failed, want %d and 0", limit.Name, ran, n, failed, want)
	}
	if err := quota.Wait(t.Context(), store, 0, quota.Charge{Rule: "api", Key: "127.0.0.1", Limit: limit, Cost: 1}); !errors.As(err, new(*quota.LimitedError)) {
		t.Errorf("%s: afterwards got %v, want the quota used up", limit.Name, err)
	}
}

// goneRequests returns how many requests TestGone sends to a store over the protocol p.
func goneRequests(store string, p protocol) int {
	if store != "memory" && p.connects { // a machine has only 28,000 ports for connections
		return min(rounds.N(50, 200), 200)
	}
	return rounds.N(50, 1000)
}

func leasing(t testing.TB, next quota.Store) *lease.Store {
	l := lease.New(next, lease.Options{})
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// TestGoneWhileTheStoreFails: an error of the store reaches the log, OnError, Observe and a
// breaker even if the client has hung up.
func TestGoneWhileTheStoreFails(t *testing.T) {
	for _, failure := range []error{errors.New("away"), context.Canceled, context.DeadlineExceeded} {
		for _, when := range moments[:3] {
			ctx, hangUp := context.WithCancel(t.Context())
			breaker := quota.Breaker(storeFunc(func(ctx context.Context, _ *quota.Transaction) error {
				if when != beforeAsking {
					hangUp()
				}
				return failure
			}), quota.BreakerOptions{Failures: 1, Cooldown: time.Hour})
			var out bytes.Buffer
			var told, seen error
			h := must(t, breaker, weir.Options{
				Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []quota.Limit{algorithms.GCRA(1, time.Hour)}}},
				Logger:  slog.New(slog.NewTextHandler(&out, nil)),
				Observe: func(e weir.Event) { seen = e.Err },
				OnError: func(_ *http.Request, err error) error { told = err; return err },
			}).Handler(served)
			if when == beforeAsking {
				hangUp()
			}
			do(h, ask("/", "").WithContext(ctx))
			if told != failure || seen != failure || !strings.Contains(out.String(), failure.Error()) || !isOpen(breaker) {
				t.Errorf("%s, store fails with %q: OnError got %v, Observe %v, the log %q, the breaker is open: %v",
					when, failure, told, seen, out.String(), isOpen(breaker))
			}
			hangUp()
		}
	}
}

// TestGoneLookup: the context that Policy gets does not end when the client hangs up.
func TestGoneLookup(t *testing.T) {
	ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), quotaKey{}, "gold"))
	hangUp()
	h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Policy: func(r *http.Request) weir.Policy {
		if r.Context().Err() != nil || r.Context().Value(quotaKey{}) != "gold" {
			return weir.Unlimited()
		}
		return weir.Limited(algorithms.GCRA(1, time.Hour))
	}}}}).Handler(served)
	for _, want := range []int{200, 429} {
		if got := do(h, ask("/", "").WithContext(ctx)).StatusCode; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}

type goneCase struct {
	when moment
	used int64 // units that are spent before the request
	err  error
	left time.Duration // how long the next request must then wait
	sent bool
}

// waysToWait has functions that send a request. A charge of the rule jobs may delay the
// request by up to an hour.
var waysToWait = []struct {
	name string
	send func(ctx context.Context, t *testing.T, store quota.Store, c quota.Charge) (sent bool, err error)
}{
	{"Wait", func(ctx context.Context, _ *testing.T, store quota.Store, c quota.Charge) (bool, error) {
		err := quota.Wait(ctx, store, time.Hour, c)
		return err == nil, err
	}},
	{"RoundTrip", func(ctx context.Context, t *testing.T, store quota.Store, c quota.Charge) (sent bool, err error) {
		l := must(t, store, weir.Options{MaxWait: time.Hour, Rules: []weir.Rule{{Name: "jobs", Key: func(*http.Request) (string, bool) { return "", true }, Limits: []quota.Limit{c.Limit}}}})
		_, err = transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { sent = true; return response(200), nil })}).RoundTrip(ask("/", "").WithContext(ctx))
		return sent, err
	}},
}

// TestGoneByHand: if the context of the caller ends before the call, or before the slot of
// the request, Wait and RoundTrip return the error of the context and leave no unit spent.
// If the context ends during the decision, but the request need not wait, the request is
// sent. The limit is 2 an hour, and 1 or 2 units are spent before the request.
func TestGoneByHand(t *testing.T) {
	for _, c := range []goneCase{
		{beforeAsking, 1, context.Canceled, 0, false},
		{beforeAsking, 2, context.Canceled, 30 * time.Minute, false},
		{beforeDeciding, 1, nil, 30 * time.Minute, true},
		{beforeDeciding, 2, context.Canceled, 30 * time.Minute, false},
		{afterDeciding, 1, nil, 30 * time.Minute, true},
		{afterDeciding, 2, context.Canceled, 30 * time.Minute, false},
	} {
		for _, way := range waysToWait {
			synctest.Test(t, func(t *testing.T) {
				memory := memstore.New(memstore.Options{})
				limit := algorithms.GCRA(2, time.Hour)
				charge := quota.Charge{Rule: "jobs", Limit: limit, Cost: c.used}
				reserve(t, memory, 0, charge)
				ctx, hangUp := context.WithCancel(t.Context())
				hangUpIf := func(now moment) {
					if c.when == now {
						hangUp()
					}
				}
				store := storeFunc(func(ctx context.Context, t *quota.Transaction) error {
					hangUpIf(beforeDeciding)
					defer hangUpIf(afterDeciding)
					return memory.Take(ctx, t)
				})
				charge.Cost = 1
				hangUpIf(beforeAsking)
				sent, err := way.send(ctx, t, store, charge)
				if !errors.Is(err, c.err) || sent != c.sent {
					t.Errorf("%s, %s, %d spent: got %v, sent: %v; want %v, %v", way.name, c.when, c.used, err, sent, c.err, c.sent)
				}
				if r := reserve(t, memory, time.Hour, charge); r.Delay() != c.left {
					t.Errorf("%s, %s, %d spent: the next waits %v, want %v", way.name, c.when, c.used, r.Delay(), c.left)
				}
			})
		}
	}
}

// TestHangUpsEverywhere: if clients hang up at random instants, exactly as many requests are
// served as the limit allows, and each refusal is a strike, through every decorator, with
// MaxWait and without. A request costs two units and gets one back, so the limit allows a
// request as long as two units are left. The test is for the race detector too.
func TestHangUpsEverywhere(t *testing.T) {
	memory := func() quota.Store { return memstore.New(memstore.Options{}) }
	for _, c := range []struct {
		name  string
		store func(leases func(next quota.Store) quota.Store) quota.Store
	}{
		{"memory", func(func(quota.Store) quota.Store) quota.Store { return memory() }},
		{"Hybrid", func(func(quota.Store) quota.Store) quota.Store { return quota.Hybrid(memory(), quota.HybridOptions{}) }},
		{"Coalesce", func(func(quota.Store) quota.Store) quota.Store { return quota.Coalesce(memory()) }},
		{"Coalesce, joined", func(func(quota.Store) quota.Store) quota.Store { // calls that take a while are shared
			slow := &distant{Store: memory()}
			slow.Trip.Store(int64(20 * time.Microsecond))
			return quota.Coalesce(slow)
		}},
		{"Lease", func(lease func(quota.Store) quota.Store) quota.Store { return lease(memory()) }},
		{"Breaker", func(func(quota.Store) quota.Store) quota.Store {
			return quota.Breaker(memory(), quota.BreakerOptions{})
		}},
		{"Fallback", func(func(quota.Store) quota.Store) quota.Store {
			return quota.Fallback(failing{errors.New("away")}, memory(), quota.FallbackOptions{})
		}},
		{"Share", func(func(quota.Store) quota.Store) quota.Store { return quota.Share(memory(), 1) }},
		{"all", func(lease func(quota.Store) quota.Store) quota.Store {
			return quota.Fallback(quota.Breaker(lease(quota.Hybrid(quota.Coalesce(memory()), quota.HybridOptions{})), quota.BreakerOptions{}), quota.Share(memory(), 4), quota.FallbackOptions{})
		}},
	} {
		for _, wait := range []time.Duration{0, time.Millisecond, time.Hour} {
			var leases *lease.Store
			store := c.store(func(next quota.Store) quota.Store {
				leases = lease.New(next, lease.Options{})
				return leases
			})
			checkHangUps(t, c.name, wait, store, leases)
		}
	}
}

// The quota of TestHangUpsEverywhere, and the number of strikes that begins a ban.
const hangUpQuota, hangUpStrikes = 100, 700

// checkHangUps sends requests whose clients hang up, and checks how many were served and refused.
func checkHangUps(t *testing.T, name string, wait time.Duration, store quota.Store, leases *lease.Store) {
	t.Helper()
	const clients, each = 8, 75
	var n hangUpCounts
	h := n.handler(t, store, wait)
	together(clients, func(int) { hangUpAtRandom(t, h, each) })
	if leases != nil { // leased units that are left are refunded
		if err := leases.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for n.banned.Load() == 0 && n.refused.Load() < hangUpStrikes { // units that were refunded are spent, and then each request is a strike
		do(h, ask("/", "192.0.2.1:4"))
	}
	if n.ran.Load() != hangUpQuota-1 || n.failed.Load() > 0 {
		t.Errorf("%s, MaxWait %v: the handler ran %d times and %d failed, want %d and 0", name, wait, n.ran.Load(), n.failed.Load(), hangUpQuota-1)
	}
	if n.refused.Load() != hangUpStrikes-1 || n.banned.Load() != 1 {
		t.Errorf("%s, MaxWait %v: the limit refused %d times before a ban, and %d bans refused, want %d and 1", name, wait, n.refused.Load(), n.banned.Load(), hangUpStrikes-1)
	}
}

// hangUpCounts has the numbers of requests that ran, that failed, and that a limit or a ban
// refused.
type hangUpCounts struct{ ran, failed, refused, banned atomic.Int64 }

// handler returns a limited handler that counts in n what happens to its requests.
func (n *hangUpCounts) handler(t *testing.T, store quota.Store, wait time.Duration) http.Handler {
	t.Helper()
	return must(t, store, weir.Options{
		Rules: []weir.Rule{{
			Name: "api", Key: weir.ByIP(), Limits: []quota.Limit{algorithms.FixedWindow(hangUpQuota, 1000*time.Hour)},
			Cost: func(*http.Request) int64 { return 2 }, Settle: func(o weir.Outcome) int64 { return o.Cost - 1 },
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(hangUpStrikes, 1000*time.Hour), Duration: time.Hour},
		}},
		MaxWait: wait,
		OnError: func(_ *http.Request, err error) error { n.failed.Add(1); return err },
		Observe: n.observe,
	}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.ran.Add(1) }))
}

// observe counts the refusals of the limit and of bans.
func (n *hangUpCounts) observe(e weir.Event) {
	switch e.Refusal.Reason {
	case weir.ReasonLimit:
		n.refused.Add(1)
	case weir.ReasonBan:
		n.banned.Add(1)
	}
}

// hangUpAtRandom sends n requests. The client of every fourth request hangs up before the
// request is sent, and the other clients hang up at random instants.
func hangUpAtRandom(t *testing.T, h http.Handler, n int) {
	for i := range n {
		ctx, hangUp := context.WithCancel(t.Context())
		if i%4 == 0 {
			hangUp()
		}
		go hangUp()
		do(h, ask("/", "192.0.2.1:4").WithContext(ctx))
	}
}

// An instantFailure fails in memory, so that a Limiter serves its requests by serveSingle.
type instantFailure struct{ failing }

func (f *instantFailure) Instant() weir.Store { return f }

// TestPassed: the event and the log line of a request that could not be decided say whether
// the request passes. There is one event, and it comes before the request goes on.
func TestPassed(t *testing.T) {
	passes := func(*http.Request, error) error { return nil }
	refuses := func(*http.Request, error) error { return errDown }
	panics := func(*http.Request, error) error { panic(http.ErrAbortHandler) }
	limits := []weir.Limit{algorithms.GCRA(1, time.Hour)}
	uncountable := func(*http.Request) weir.Policy { return weir.Limited(algorithms.GCRA(0, time.Hour)) }
	for _, c := range []struct {
		name    string
		err     error
		rule    weir.Rule
		onError func(*http.Request, error) error
		want    string // what happens, in order
		log     string
	}{
		{"open by default", errDown, weir.Rule{}, nil, "error passed=true, next", "level=WARN, cause=error passed=true"},
		{"busy", quota.ErrBusy, weir.Rule{}, nil, "error passed=false", "level=WARN, cause=busy passed=false"},
		{"unusable", quota.ErrUnusable, weir.Rule{}, nil, "error passed=false", "level=ERROR, cause=unusable passed=false"},
		{"unusable, and open", quota.ErrUnusable, weir.Rule{}, passes, "error passed=true, next", "level=ERROR, cause=unusable passed=true"},
		{"FailClosed", errDown, weir.Rule{}, weir.FailClosed, "error passed=false", "level=WARN, cause=error passed=false"},
		{"refused", errDown, weir.Rule{}, refuses, "error passed=false", "level=WARN, cause=error passed=false"},
		{"a panic", errDown, weir.Rule{}, panics, "error passed=false", "level=WARN, cause=error passed=false"},
		{"Policy", nil, weir.Rule{Policy: uncountable}, nil, "error passed=false", "level=WARN, cause=limit passed=false"},
		{"shadow", errDown, weir.Rule{Enforce: weir.Percent(0)}, nil, "error in shadow passed=false, next", "level=WARN, cause=error shadow=true"},
	} {
		for _, store := range []weir.Store{failing{c.err}, &instantFailure{failing{c.err}}} {
			var log bytes.Buffer
			var got []string
			if c.rule.Name, c.rule.Key = "api", weir.Global(); c.rule.Policy == nil {
				c.rule.Limits = limits
			}
			h := must(t, store, weir.Options{OnError: c.onError, Rules: []weir.Rule{c.rule}, Logger: slog.New(slog.NewTextHandler(&log, nil)), Observe: func(e weir.Event) {
				shadow := map[bool]string{true: " in shadow"}[e.Shadow]
				got = append(got, fmt.Sprintf("error%s passed=%v", shadow, e.Passed))
			}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { got = append(got, "next") }))
			func() {
				defer func() { recover() }()
				do(h, ask("/", ""))
			}()
			if got := strings.Join(got, ", "); got != c.want {
				t.Errorf("%s, %T: got %q, want %q", c.name, store, got, c.want)
			}
			for _, want := range strings.Split(c.log, ", ") {
				if !strings.Contains(strings.ReplaceAll(log.String(), "\n", " "), want+" ") {
					t.Errorf("%s, %T: the log lacks %s: %s", c.name, store, want, log.String())
				}
			}
		}
	}
}

// TestPassedOut: an event says whether Transport sends a request that could not be decided.
func TestPassedOut(t *testing.T) {
	gone, hangUp := context.WithCancel(t.Context())
	for _, c := range []struct {
		name  string
		ctx   context.Context
		fails func()
		rule  weir.Rule
		want  string
	}{
		{"sent", t.Context(), func() {}, weir.Rule{Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}, "[true]"},
		{"hung up meanwhile", gone, hangUp, weir.Rule{Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}, "[false]"},
		{"an invalid limit", t.Context(), func() {}, weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Limited(weir.Limit{}) }}, "[false]"},
	} {
		var got []bool
		c.rule.Name, c.rule.Key = "api", weir.Global()
		store := storeFunc(func(context.Context, *quota.Transaction) error { c.fails(); return errDown })
		l := must(t, store, weir.Options{Rules: []weir.Rule{c.rule}, Logger: slog.New(slog.DiscardHandler), Observe: func(e weir.Event) { got = append(got, e.Passed) }})
		r, _ := http.NewRequestWithContext(c.ctx, "GET", "http://example.com/", nil)
		transport(t, l, weir.TransportOptions{Base: &partner{answer: func(int, *http.Request) *http.Response { return response(200) }}}).RoundTrip(r)
		if fmt.Sprint(got) != c.want {
			t.Errorf("%s: observed %v, want %s", c.name, got, c.want)
		}
	}
}

// TestKeptCharges: a Limiter reuses the memory of the charges of earlier requests. It still
// decides each request as a new Limiter would, whichever rules apply and whichever limits a
// key has, and also if a ban or a deny leaves out charges.
func TestKeptCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		own := map[string]weir.Policy{
			"large":   weir.Limited(algorithms.GCRA(50, time.Hour)),
			"several": weir.Limited(algorithms.GCRA(9, time.Minute).Named("a"), algorithms.FixedWindow(30, time.Hour).Named("b")),
		}
		limiter := func(store weir.Store, got *[]weir.Event) http.Handler {
			l, err := weir.New(store, weir.Options{
				Rules: []weir.Rule{
					{Name: "first", Key: weir.ByHeader("A"), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)},
						ForKey: func(key string) weir.Policy { return own[key] }},
					{Name: "second", Key: weir.ByHeader("B"), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)},
						ForKey: weir.When(func(key string) bool { return key == "denied" }, weir.Denied()), Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(3, time.Hour), Duration: time.Minute}},
					{Name: "third", Key: weir.ByHeader("C"), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)}},
				},
				Observe: func(e weir.Event) {
					e = copied(e)
					e.Request, e.Transaction.At, e.Transaction.Undo = nil, time.Time{}, nil
					*got = append(*got, e)
				},
			})
			if err != nil {
				t.Fatal(err)
			}
			return l.Handler(http.NotFoundHandler())
		}
		var got, want []weir.Event
		store := memstore.New(memstore.Options{})
		kept := limiter(memstore.New(memstore.Options{}), &got)
		keys := map[string][]string{"A": {"", "small", "large", "several"}, "B": {"", "", "x", "denied"}, "C": {"", "x", "y"}}
		r := rand.New(rand.NewPCG(1, 1))
		for i := range 5000 {
			req := httptest.NewRequest([]string{"GET", "GET", "OPTIONS"}[r.IntN(3)], "/", nil)
			if req.Method == "OPTIONS" {
				req.Header.Set("Origin", "https://example.com")
				req.Header.Set("Access-Control-Request-Method", "GET")
			}
			for _, name := range []string{"A", "B", "C"} {
				if key := keys[name][r.IntN(len(keys[name]))]; key != "" {
					req.Header.Set(name, key)
				}
			}
			time.Sleep(time.Duration(11+r.IntN(100)) * time.Second) // after 10 s a process calls the store about a ban again, as a new Limiter does
			got, want = nil, nil
			kept.ServeHTTP(httptest.NewRecorder(), req)
			limiter(store, &want).ServeHTTP(httptest.NewRecorder(), req)
			if !reflect.DeepEqual(got, want) {
				t.Fatalf("request %d, %s %v:\ngot  %+v\nwant %+v", i, req.Method, req.Header, got, want)
			}
		}
	})
}

// TestKeptRefusal: a RefusedError does not change when the Limiter refuses later requests.
func TestKeptRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
			{Name: "api", Key: weir.ByHeader("A"), NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		refuse := func(key string) *weir.RefusedError {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("A", key)
			var refused *weir.RefusedError
			for range 2 {
				_, err := l.Admit(r)
				errors.As(err, &refused)
			}
			return refused
		}
		first := refuse("x")
		for range 100 { // each may get the memory of an earlier one
			refuse("")
		}
		h := http.Header{}
		if first.Admission.WriteHeaders(h); h.Get("Retry-After") != "3600" || first.Admission.Refusal.Reason != weir.ReasonLimit {
			t.Errorf("got Retry-After %q and the reason %v, want 3600 and limit", h.Get("Retry-After"), first.Admission.Refusal.Reason)
		}
	})
}

// copied returns the event with a copy of its Transaction, which is reused after Observe returns.
func copied(e weir.Event) weir.Event {
	t := e.Transaction
	e.Transaction = &quota.Transaction{Charges: append([]quota.Charge{}, t.Charges...), Within: t.Within, Mode: t.Mode, Result: t.Result}
	e.Transaction.Decisions = append([]quota.Decision{}, t.Decisions...)
	return e
}

// TestEventsAreReused: the Transaction of an Event is reused after Observe returns, also of requests
// that Transport sends, so whoever keeps it sees another request.
func TestEventsAreReused(t *testing.T) {
	var kept []*quota.Transaction
	l := must(t, memory(), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.GCRA(50, time.Hour)}}},
		Observe: func(e weir.Event) { kept = append(kept, e.Transaction) },
	})
	h, rt := l.Handler(served), transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil })})
	for name, send := range map[string]func(r *http.Request){
		"Handler":   func(r *http.Request) { do(h, r) },
		"Admit":     func(r *http.Request) { l.Admit(r) },
		"Transport": func(r *http.Request) { rt.RoundTrip(r) },
	} {
		kept = nil
		for range 100 { // half of them are refused
			send(ask("/", "", "User", name))
		}
		slices.SortFunc(kept, func(a, b *quota.Transaction) int { return cmp.Compare(fmt.Sprintf("%p", a), fmt.Sprintf("%p", b)) })
		if n := len(slices.Compact(kept)); n > 20 && !race { // the race detector empties pools at random
			t.Errorf("%s: got %d transactions of 100 requests, want a few", name, n)
		}
	}
}

// FuzzReusedCharges: a Limiter reuses the memory of earlier requests. Whatever the rules say of one
// request after another, in whatever order nested requests end, it decides, observes and answers
// each as a new Limiter would that has the same store.
func FuzzReusedCharges(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 12 {
		data := make([]byte, 400)
		for i := range data {
			data[i] = byte(r.Uint32())
		}
		f.Add(data)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 2 || len(data) > 2000 {
			return
		}
		var results [2][]string
		for i := range results {
			synctest.Test(t, func(t *testing.T) { // which begins at the same time
				u := newReuser(t, data[0], i == 0)
				for data := data[1:]; len(data) >= 5; data = data[5:] {
					results[i] = append(results[i], u.send(data[:5], 0))
				}
			})
		}
		for i, got := range results[0] {
			if want := results[1][i]; got != want {
				t.Fatalf("request %d, %v:\ngot  %s\nwant %s", i, data[1+5*i:][:5], got, want)
			}
		}
	})
}

// A reuser is a Limiter that is used again, or a new one for each request.
type reuser struct {
	t       *testing.T
	store   weir.Store
	reuses  bool
	options weir.Options
	limiter *weir.Limiter
	log     strings.Builder
}

func newReuser(t *testing.T, kind byte, reuses bool) *reuser {
	u := &reuser{t: t, store: memstore.New(memstore.Options{}), reuses: reuses}
	if next := u.store; kind&1 != 0 { // no store that decides in memory, as far as the Limiter knows
		u.store = storeFunc(func(ctx context.Context, t *quota.Transaction) error { return next.Take(ctx, t) })
	}
	byKey := func(key string) weir.Policy { return somePolicy(key[len(key)-1]) }
	byTier := func(r *http.Request) weir.Policy { return somePolicy(r.Header.Get("Tier")[0]) }
	cost := func(r *http.Request) int64 { return int64(len(r.URL.Path)) - 2 }
	u.options = weir.Options{
		Headers: []headers.Dialect{headers.XRateLimit, headers.IETF | headers.GitHub}[kind>>1&1],
		Logger:  slog.New(slog.DiscardHandler),
		Rules: []weir.Rule{
			{Name: "a", Key: weir.ByHeader("A"), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}, ForKey: byKey, PartitionKey: func(key string) string { return key },
				Class: weir.ByHeader("Tier"), Headroom: map[string]int{"1": 20, "4": 70}},
			{Name: "b", Key: weir.ByHeader("B"), Policy: byTier, Cost: cost, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(2, time.Hour), Duration: time.Minute}},
			{Name: "c", Key: weir.ByHeader("C"), Limits: []weir.Limit{algorithms.FixedWindow(20, time.Hour)}, Policy: byTier, ForKey: byKey, Enforce: weir.Percent(50)},
			{Name: "d", Key: weir.ByHeader("A"), Limits: []weir.Limit{algorithms.SlidingLog(30, time.Hour)}, Settle: func(o weir.Outcome) int64 { return o.Cost - int64(o.Status%2) }},
		},
		Observe: func(e weir.Event) {
			fmt.Fprintln(&u.log, e.Transaction.Charges, e.Transaction.Decisions, e.Refusal, e.Key, e.Err, e.Passed, e.Shadow, e.BanBegan)
		},
	}
	if kind&4 != 0 {
		u.options.MaxWait = time.Minute
	}
	return u
}

// somePolicy returns one of several policies.
func somePolicy(b byte) weir.Policy {
	switch b % 10 {
	case 0:
		return weir.Limited(algorithms.GCRA(5, time.Hour))
	case 1:
		return weir.Limited(algorithms.GCRA(5, time.Minute).Named("x"), algorithms.FixedWindow(30, time.Hour).Named("y"))
	case 2:
		return weir.Unlimited()
	case 3:
		return weir.Denied()
	case 4:
		return weir.Allowed()
	case 5:
		return weir.Limited(weir.Limit{Name: "x", Quota: 4}) // invalid if it replaces none
	case 6:
		return weir.Limited(algorithms.GCRA(7, time.Hour), algorithms.InFlight(2, 10*time.Hour).Named("busy"))
	case 7: // an algorithm that cannot be compared
		return weir.Limited(weir.Limit{Algorithm: uncomparable{algorithms.GCRA(1, time.Hour).Algorithm, nil}, Quota: 6, Period: time.Hour})
	}
	return weir.Policy{}
}

type uncomparable struct {
	quota.Algorithm
	_ []int
}

// send sends a request that data describes, whose handler may send another, and returns all that can
// be seen of them.
func (u *reuser) send(data []byte, depth int) string {
	if depth == 0 {
		u.log.Reset()
	}
	time.Sleep(time.Duration(11+int(data[0])) * time.Second) // known bans are looked up again, as a new Limiter does
	if u.limiter == nil || !u.reuses {
		u.limiter = must(u.t, u.store, u.options)
	}
	r := ask("/"+strings.Repeat("x", int(data[1]%8)), "", "Tier", string('0'+data[1]%10))
	for i, name := range []string{"A", "B", "C"} {
		if b := data[2+i]; b >= 60 {
			r.Header.Set(name, fmt.Sprint("key ", b>>6, string('0'+b%10)))
		}
	}
	res := do(u.limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		before := weir.FromContext(r.Context())
		if depth < 2 && data[1] >= 128 {
			u.send([]byte{0, data[1] - 128 + byte(depth)*64, data[4], data[2], data[3]}, depth+1)
		}
		if after := weir.FromContext(r.Context()); before != nil {
			fmt.Fprintln(&u.log, before.Charges, before.Decisions, reflect.DeepEqual(before, after))
		}
		w.WriteHeader(200 + int(data[1]%2))
	})), r)
	body, _ := io.ReadAll(res.Body)
	fmt.Fprintf(&u.log, "%d %v %s\n", res.StatusCode, res.Header, body)
	return u.log.String()
}
