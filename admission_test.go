package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
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

// TestAdmitIsHandler: whatever is asked, in whatever order requests begin and end, Admit decides,
// tells and settles as Handler does: two limiters over stores of their own, one asked by each, give
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
					told := weir.FromContext(b.Context())
					if told != b {
						t.Fatalf("seed %d: the context has %v, want %v", seed, told, b)
					}
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

// TestAdmitWaits: Admit waits for the turn of the request. If the context ends before, it gives the
// turn back and returns the error of the context.
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

// TestAdmitUndecided: OnError decides about Admit as about Handler. OnLimited answers a refusal after
// an error with a Refusal that says so.
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

// TestDropped: an Admission that nobody ends is logged, and its unit in flight becomes free.
func TestDropped(t *testing.T) {
	var log weirtest.Log
	store := memstore.New(memstore.Options{})
	l := must(t, store, weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Rules: []weir.Rule{
		{Name: "busy", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, time.Hour)}}}})
	a, err := l.Admit(ask("/", ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.Admit(ask("/", "")); err == nil {
		t.Fatal("a second request was admitted")
	}
	runtime.KeepAlive(a)
	a = nil
	for i := 0; ; i++ {
		if i == 10_000 {
			t.Fatal("the unit in flight does not become free")
		}
		runtime.GC()
		if b, err := l.Admit(ask("/", "")); err == nil {
			b.Done(weir.Outcome{})
			break
		}
		time.Sleep(time.Millisecond)
	}
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

// TestReportUsageUnits: each rule is settled by what ReportUsage was told of its own unit, by concurrent calls,
// through limiters around each other. A unit that no rule settles is logged once.
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

// TestAdmitOutside: the fields of a Limiter inside of an Admission's context also tell of its limits.
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
