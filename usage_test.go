package weir_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

func costs(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }

// unit returns a rule of a unit, of which 100 are left for hours, that reserves cost units.
func unit(name string, cost int64) weir.Rule {
	return weir.Rule{Name: name, Key: weir.Global(), Unit: name, Limits: []weir.Limit{algorithms.FixedWindow(100, 10_000*time.Hour)},
		Cost: costs(cost), Settle: weir.ChargeUsed}
}

// remains returns what is left under the rules of a Limiter.
func remains(t *testing.T, store weir.Store, l *weir.Limiter) (left []int64) {
	t.Helper()
	for _, r := range l.Rules() {
		left = append(left, peek(t, store, quota.Charge{Rule: r.Name, Limit: r.Limits[0]}).Decisions[0].Remaining)
	}
	return left
}

// TestSettledUnits: each rule is reserved and settled under its own unit, whoever admits the request, and
// a request that one of them refuses reserves nothing under the others.
func TestSettledUnits(t *testing.T) {
	report := func(ctx context.Context, units ...any) {
		for i := 0; i < len(units); i += 2 {
			weir.ReportUsage(ctx, units[i].(string), int64(units[i+1].(int)))
		}
	}
	for name, serve := range map[string]func(t *testing.T, l *weir.Limiter, units ...any) error{
		"handler": func(_ *testing.T, l *weir.Limiter, units ...any) error {
			if res := do(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { report(r.Context(), units...) })), ask("/", "192.0.2.1:4")); res.StatusCode != 200 {
				return errors.New(res.Status)
			}
			return nil
		},
		"admit": func(_ *testing.T, l *weir.Limiter, units ...any) error {
			a, err := l.Admit(ask("/", "192.0.2.1:4"))
			if err == nil {
				report(a.Context(), units...)
				a.Done(weir.Outcome{})
			}
			return err
		},
		"transport": func(t *testing.T, l *weir.Limiter, units ...any) error {
			server := httptest.NewServer(http.NotFoundHandler())
			defer server.Close()
			res, err := (&http.Client{Transport: transport(t, l, weir.TransportOptions{})}).Get(server.URL)
			if err == nil {
				report(res.Request.Context(), units...)
				res.Body.Close()
			}
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			store := memory()
			requests := unit("requests", 1)
			requests.Settle = nil
			l := must(t, store, weir.Options{Rules: []weir.Rule{requests, unit("input-tokens", 10), unit("output-tokens", 30), unit("micro-dollars", 50)}})
			for _, tt := range []struct {
				name     string
				units    []any
				admitted bool
				want     string
			}{
				{"all units", []any{"input-tokens", 8, "output-tokens", 20, "micro-dollars", 30, "output-tokens", 1}, true, "[99 92 79 70]"},
				{"nothing was used", []any{"input-tokens", 0, "output-tokens", 0, "micro-dollars", 0}, true, "[98 92 79 70]"},
				{"one unit is not reported", []any{"input-tokens", 2, "micro-dollars", 20}, true, "[97 90 49 50]"},
				{"more than was reserved", []any{"input-tokens", 12, "output-tokens", 0, "micro-dollars", 1}, true, "[96 78 49 49]"},
				{"money does not suffice", nil, false, "[96 78 49 49]"},
			} {
				err := serve(t, l, tt.units...)
				if got := fmt.Sprint(remains(t, store, l)); (err == nil) != tt.admitted || got != tt.want {
					t.Errorf("%s: %s are left, want %s; error %v", tt.name, got, tt.want, err)
				}
			}
		})
	}
}

// TestReservationEnds: what a process has reserved that dies before it settles is charged, and is
// free again at the same instant as if the request had used it all, and not earlier.
func TestReservationEnds(t *testing.T) {
	for _, tt := range []struct {
		limit weir.Limit
		after time.Duration // until 40 of 100 units are free again at the latest
	}{
		{algorithms.GCRA(100, time.Minute), 24 * time.Second},
		{algorithms.TokenBucket(100, 100, time.Minute), 24 * time.Second},
		{algorithms.LeakyBucket(100, 100, time.Minute), 24 * time.Second},
		{algorithms.FixedWindow(100, time.Minute), time.Minute},
		{algorithms.AnchoredWindow(100, time.Minute), time.Minute},
		{algorithms.SlidingLog(100, time.Minute), time.Minute},
		{algorithms.SlidingWindow(100, time.Minute), 2 * time.Minute},
		{algorithms.Calendar(100, algorithms.Day, time.UTC), 24 * time.Hour},
	} {
		t.Run(tt.limit.Algorithm.Name(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memory()
				rule := weir.Rule{Name: "tokens", Key: weir.Global(), Limits: []weir.Limit{tt.limit}, Cost: costs(40), Settle: weir.ChargeUsed}
				l := must(t, store, weir.Options{Rules: []weir.Rule{rule}})
				a, err := l.Admit(ask("/", "192.0.2.1:4"))
				if err != nil {
					t.Fatal(err)
				}
				d := a.Decisions[0]
				if d.ResetAfter > tt.after || d.Remaining != 60 {
					t.Fatalf("after a reservation of 40: %+v, want a ResetAfter of at most %v", d, tt.after)
				}
				time.Sleep(d.ResetAfter - time.Microsecond)
				if left := remains(t, store, l)[0]; left == 100 {
					t.Errorf("a microsecond before ResetAfter (%v), nothing is reserved", d.ResetAfter)
				}
				time.Sleep(time.Microsecond)
				if left := remains(t, store, l)[0]; left != 100 {
					t.Errorf("after %v, %d units are left of 100", d.ResetAfter, left)
				}
				a.Done(weir.Outcome{Reported: true}) // far too late: it must give nothing back
				if left := remains(t, store, l)[0]; left != 100 {
					t.Errorf("after Done, %d units are left of 100", left)
				}
			})
		})
	}
	t.Run("redis", func(t *testing.T) {
		server := redistest.Server(t)
		rule := weir.Rule{Name: "tokens", Key: weir.Global(), Limits: []weir.Limit{algorithms.AnchoredWindow(100, 300*time.Millisecond)}, Cost: costs(100), Settle: weir.ChargeUsed}
		for range 2 { // of two processes
			l := must(t, redisAt(t, server.Addr(), 5*time.Second), weir.Options{Rules: []weir.Rule{rule}})
			a, err := l.Admit(ask("/", "192.0.2.1:4"))
			if refused := new(weir.RefusedError); errors.As(err, &refused) {
				t.Fatalf("the reservation of a dead process holds for longer than the window: %v", err)
			} else if err != nil {
				t.Fatal(err)
			}
			time.Sleep(a.Decisions[0].ResetAfter)
		}
	})
}

// streaming returns a handler that streams want tokens, and counts those that it sends. A request
// of /panic panics, and one of /hang-up is aborted, after half of them.
func streaming(sent *atomic.Int64, want int64) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		for i := range want {
			n, err := weir.Draw(r.Context(), "tokens", 1)
			if n == 0 {
				fmt.Fprintln(w, "\n[stopped]", err)
				return
			}
			sent.Add(n)
			fmt.Fprint(w, "token ")
			switch {
			case i != want/2:
			case r.URL.Path == "/panic":
				panic(http.ErrAbortHandler)
			case r.URL.Path == "/hang-up":
				r.Context().Value(hangUpKey{}).(context.CancelFunc)()
			}
		}
	}
}

// eachDrawn calls f with limits of 100 tokens an hour, over memory and over Redis.
func eachDrawn(t *testing.T, f func(t *testing.T, store weir.Store, rule weir.Rule)) {
	for name, open := range map[string]func(t *testing.T) weir.Store{
		"memory": func(*testing.T) weir.Store { return memory() },
		"redis":  func(t *testing.T) weir.Store { return redisAt(t, redistest.Server(t).Addr(), 5*time.Second) },
	} {
		for _, limit := range []weir.Limit{algorithms.AnchoredWindow(100, time.Hour), algorithms.GCRA(100, 100_000*time.Hour), algorithms.SlidingLog(100, 10_000*time.Hour)} {
			t.Run(name+" "+limit.Algorithm.Name(), func(t *testing.T) {
				f(t, open(t), weir.Rule{Name: "tokens", Key: weir.Global(), Unit: "tokens", Limits: []weir.Limit{limit}, Settle: weir.ChargeUsed})
			})
		}
	}
}

// TestDrawTogether: five answers that are streamed at once under a limit of 100 tokens send 100
// tokens, and then each of them ends, whatever each of them has reserved.
func TestDrawTogether(t *testing.T) {
	eachDrawn(t, func(t *testing.T, store weir.Store, rule weir.Rule) {
		rule.Cost = costs(7)
		var sent, stopped atomic.Int64
		var admitted sync.WaitGroup
		admitted.Add(5)
		h := must(t, store, weir.Options{Rules: []weir.Rule{rule}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			admitted.Done()
			admitted.Wait()
			streaming(&sent, 1000)(w, r)
		}))
		together(5, func(int) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, ask("/", "192.0.2.1:4"))
			if rec.Code == 200 && strings.Contains(rec.Body.String(), "[stopped] quota: rule \"tokens\" is at its limit") {
				stopped.Add(1)
			}
		})
		if sent.Load() != 100 || stopped.Load() != 5 {
			t.Errorf("%d tokens were sent, want 100; %d answers ended at the limit, want 5", sent.Load(), stopped.Load())
		}
	})
}

// TestDrawGivesBack: what was reserved or taken in advance and was not sent is free again, however
// a request ends.
func TestDrawGivesBack(t *testing.T) {
	eachDrawn(t, func(t *testing.T, store weir.Store, rule weir.Rule) {
		for _, reserved := range []int64{1, 10, 30} {
			rule.Cost = costs(reserved)
			l := must(t, store, weir.Options{Rules: []weir.Rule{rule}})
			for _, path := range []string{"/", "/panic", "/hang-up"} {
				if err := quota.Reset(t.Context(), store, quota.Charge{Rule: rule.Name, Limit: rule.Limits[0]}); err != nil {
					t.Fatal(err)
				}
				var sent atomic.Int64
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				func() {
					defer func() { _ = recover() }()
					r := ask(path, "192.0.2.1:4").WithContext(context.WithValue(ctx, hangUpKey{}, cancel))
					l.Handler(streaming(&sent, 21)).ServeHTTP(httptest.NewRecorder(), r)
				}()
				want := map[string]int64{"/": 21, "/panic": 11, "/hang-up": 11}[path]
				if left := remains(t, store, l)[0]; sent.Load() != want || left != 100-want && left != 100-want-1 { // a unit may be draining
					t.Errorf("%s, of %d reserved: sent %d tokens, want %d; %d are left of 100", path, reserved, sent.Load(), want, left)
				}
			}
		}
	})
}

// TestDrawRules: Draw draws under all rules of its unit or under none, of several limiters too,
// and each of them is charged what was drawn.
func TestDrawRules(t *testing.T) {
	store := memory()
	limiter := func(rules ...weir.Rule) *weir.Limiter { return must(t, store, weir.Options{Rules: rules}) }
	named := func(name string, cost, quota int64) weir.Rule {
		r := unit("tokens", cost)
		r.Name, r.Limits = name, []weir.Limit{algorithms.FixedWindow(quota, 10_000*time.Hour)}
		return r
	}
	inFlight := named("slots", 1, 9)
	inFlight.Limits = append(inFlight.Limits, algorithms.InFlight(3, time.Minute))
	shadow := named("shadow", 1, 5)
	shadow.Enforce = weir.Percent(0)
	outer := limiter(named("tenant", 2, 30), unit("requests", 1))
	inner := limiter(named("model", 5, 100), named("user", 1, 20), shadow)
	var drawn []int64
	h := outer.Handler(inner.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, n := range []int64{0, 3, 9, 100, 1} {
			got, err := weir.Draw(r.Context(), "tokens", n)
			if drawn = append(drawn, got); (got == 0) != (err != nil) && n > 0 {
				t.Errorf("Draw(%d): got %d, %v", n, got, err)
			}
		}
	})))
	do(h, ask("/", "192.0.2.1:4"))
	if want := "[0 3 9 8 0]"; fmt.Sprint(drawn) != want {
		t.Errorf("drew %v, want %s: the rule user has 20", drawn, want)
	}
	if a, b := fmt.Sprint(remains(t, store, outer)), fmt.Sprint(remains(t, store, inner)); a != "[10 99]" || b != "[80 0 0]" {
		t.Errorf("left: %s and %s, want [10 99] and [80 0 0]", a, b)
	}

	// The outer limiter has fewer: the inner one is charged what was used.
	outer, inner = limiter(named("tenant 2", 2, 8)), limiter(named("model 2", 1, 100))
	do(outer.Handler(inner.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := weir.Draw(r.Context(), "tokens", 50); got != 8 || err != nil {
			t.Errorf("got %d, %v, want 8", got, err)
		}
		if got, err := weir.Draw(r.Context(), "tokens", 50); got != 0 || err == nil {
			t.Errorf("got %d, %v, want 0", got, err)
		}
	}))), ask("/", "192.0.2.1:4"))
	if a, b := remains(t, store, outer)[0], remains(t, store, inner)[0]; a != 0 || b != 92 {
		t.Errorf("left: %d and %d, want 0 and 92", a, b)
	}

	// A limit of requests in flight is not drawn from.
	l := limiter(inFlight)
	do(l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if got, err := weir.Draw(r.Context(), "tokens", 50); got != 9 || err != nil {
			t.Errorf("beside a limit in flight: got %d, %v, want 9", got, err)
		}
	})), ask("/", "192.0.2.1:4"))
}

// TestDrawErrors: what cannot be drawn is said, and nothing is drawn in silence.
func TestDrawErrors(t *testing.T) {
	down := false
	next := memory()
	store := storeFunc(func(ctx context.Context, t *quota.Transaction) error {
		if down {
			return errDown
		}
		return next.Take(ctx, t)
	})
	log := new(weirtest.Log)
	closed := false
	l := must(t, store, weir.Options{Rules: []weir.Rule{unit("tokens", 2)}, Logger: slog.New(slog.NewTextHandler(log, nil)),
		OnError: func(_ *http.Request, err error) error {
			if closed {
				return err
			}
			return nil
		}})
	a, err := l.Admit(ask("/", "192.0.2.1:4"))
	if err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithCancel(a.Context())
	end()
	draw := func(name string, ctx context.Context, unit string, n, want int64, wantErr bool) {
		t.Helper()
		if got, err := weir.Draw(ctx, unit, n); got != want || (err != nil) != wantErr {
			t.Errorf("%s: got %d, %v, want %d", name, got, err, want)
		}
	}
	draw("no limiter", t.Context(), "tokens", 5, 5, false)
	draw("an unknown unit", a.Context(), "tokns", 5, 0, true)
	draw("negative", a.Context(), "tokens", -5, 0, true)
	draw("after a hang-up", ended, "tokens", 5, 0, true)
	draw("what is reserved", a.Context(), "tokens", 2, 2, false)
	down = true
	draw("the store fails, open", a.Context(), "tokens", 5, 5, false)
	closed = true
	draw("the store fails, closed", a.Context(), "tokens", 5, 0, true)
	down = false
	draw("all", a.Context(), "tokens", math.MaxInt64, 98, false)
	a.Done(weir.Outcome{})
	draw("after Done", a.Context(), "tokens", 1, 0, true)
	if left := remains(t, next, l)[0]; left != 0 {
		t.Errorf("%d units are left", left)
	}
	if !strings.Contains(log.String(), "units not drawn") {
		t.Errorf("the failure of the store is not logged: %s", log)
	}
	if _, err := l.Admit(ask("/", "192.0.2.1:4")); err == nil {
		t.Error("5 units more were drawn than there are, and the next request is admitted")
	}
}

// TestReportAttacked: usage that is negative or overflows, and usage of many goroutines and of a
// request that is over, is charged as it should be.
func TestReportAttacked(t *testing.T) {
	for _, tt := range []struct {
		name string
		of   []int64
		want int64
	}{
		{"negative", []int64{-50}, 100},
		{"negative, in between", []int64{30, -50, 10}, 60},
		{"overflows", []int64{math.MaxInt64, math.MaxInt64, 1}, 0},
		{"the least integer", []int64{math.MinInt64}, 100},
	} {
		store := memory()
		log := new(weirtest.Log)
		l := must(t, store, weir.Options{Rules: []weir.Rule{unit("tokens", 10)}, Logger: slog.New(slog.NewTextHandler(log, nil))})
		a, err := l.Admit(ask("/", "192.0.2.1:4"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range tt.of {
			weir.ReportUsage(a.Context(), "tokens", n)
		}
		a.Done(weir.Outcome{})
		for range 2 {
			weir.ReportUsage(a.Context(), "tokens", 50)
		}
		a.Done(weir.Outcome{})
		if left := remains(t, store, l)[0]; left != tt.want {
			t.Errorf("%s: %d units are left, want %d", tt.name, left, tt.want)
		}
		if strings.Count(log.String(), "usage reported after its request was settled") != 1 {
			t.Errorf("%s: usage after Done: logged %q", tt.name, log)
		}
	}

	store := memory()
	l := must(t, store, weir.Options{Rules: []weir.Rule{unit("tokens", 10)}})
	do(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		together(8, func(i int) {
			for range 5 {
				if i%2 == 0 {
					weir.ReportUsage(r.Context(), "tokens", 1)
				} else if n, err := weir.Draw(r.Context(), "tokens", 1); n != 1 || err != nil {
					t.Errorf("got %d, %v", n, err)
				}
			}
		})
	})), ask("/", "192.0.2.1:4"))
	if left := remains(t, store, l)[0]; left != 60 {
		t.Errorf("8 goroutines used 40 of 100 units, and %d are left", left)
	}
}

// TestUnreported: a ChargeUsed of which no usage is ever reported is noticed.
func TestUnreported(t *testing.T) {
	for _, reports := range []bool{false, true} {
		log := new(weirtest.Log)
		r := unit("tokens", 1)
		r.Limits = []weir.Limit{algorithms.GCRA(1000, time.Hour)}
		h := must(t, memory(), weir.Options{Rules: []weir.Rule{r}, Logger: slog.New(slog.NewTextHandler(log, nil))}).
			Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if reports {
					weir.ReportUsage(r.Context(), "tokens", 1)
				}
			}))
		for range 400 {
			do(h, ask("/", "192.0.2.1:4"))
		}
		if n := strings.Count(log.String(), "no usage reported"); n > 1 || (n == 1) == reports {
			t.Errorf("reports %v: warned %d times", reports, n)
		}
	}
}

func ExampleDraw() {
	l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{{
		Name: "tokens", Key: weir.ByHeader("X-Tenant"), Unit: "tokens",
		Limits: []weir.Limit{algorithms.TokenBucket(5, 5, time.Hour)},
		Settle: weir.ChargeUsed,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	answer := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for _, token := range []string{"The ", "quick ", "brown ", "fox ", "jumps ", "over ", "the ", "dog."} {
			if n, _ := weir.Draw(r.Context(), "tokens", 1); n == 0 {
				fmt.Fprint(w, "[budget used up]")
				return
			}
			fmt.Fprint(w, token)
		}
	}))
	r := httptest.NewRequest(http.MethodPost, "/chat", nil)
	r.Header.Set("X-Tenant", "acme")
	w := httptest.NewRecorder()
	answer.ServeHTTP(w, r)
	fmt.Println(w.Body)
	// Output: The quick brown fox jumps [budget used up]
}

// TestDrawUncharged: Draw under rules that charge nothing for the request.
func TestDrawUncharged(t *testing.T) {
	shadow := unit("tokens", 1)
	shadow.Enforce = weir.Percent(0)
	free := unit("tokens", 1)
	free.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
	for name, rule := range map[string]weir.Rule{"shadow": shadow, "free": free} {
		l := must(t, memory(), weir.Options{Rules: []weir.Rule{rule, unit("requests", 1)}})
		a, err := l.Admit(ask("/", "192.0.2.1:4"))
		if err != nil {
			t.Fatal(err)
		}
		for _, n := range []int64{1, math.MaxInt64, math.MaxInt64} {
			if got, err := weir.Draw(a.Context(), "tokens", n); got != n || err != nil {
				t.Errorf("%s: Draw(%d): got %d, %v", name, n, got, err)
			}
		}
		a.Done(weir.Outcome{})
	}
}

// TestDrawUnsettled: a rule of the unit whose Settle was forgotten is named, instead of limiting
// nothing.
func TestDrawUnsettled(t *testing.T) {
	for name, want := range map[string]string{"tokens": `weir: Draw: rule "tokens" has the unit "tokens", but no Settle, so it would not limit what is drawn`, "requests": ""} {
		r := unit(name, 1)
		r.Settle = nil
		do(must(t, memory(), weir.Options{Rules: []weir.Rule{r}}).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			got, err := weir.Draw(r.Context(), "tokens", 1000)
			if want == "" && (got != 1000 || err != nil) || want != "" && (got != 0 || err == nil || err.Error() != want) {
				t.Errorf("a rule of %s: got %d, %v, want %q", name, got, err, want)
			}
		})), ask("/", "192.0.2.1:4"))
	}
}

// TestReportUnsettled: a rule of the unit whose Settle was forgotten is named once.
func TestReportUnsettled(t *testing.T) {
	for name, want := range map[string]int{"tokens": 1, "requests": 0} {
		r, log := unit(name, 1), new(weirtest.Log)
		r.Settle = nil
		l := must(t, memory(), weir.Options{Rules: []weir.Rule{r}, Logger: slog.New(slog.NewTextHandler(log, nil))})
		for range 3 {
			do(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "tokens", 7) })), ask("/", "192.0.2.1:4"))
		}
		if strings.Count(log.String(), "usage reported to a rule without Settle") != want || want > 0 && !strings.Contains(log.String(), "rule=tokens") {
			t.Errorf("a rule of %s: logged %q, want %d lines", name, log, want)
		}
	}
}
