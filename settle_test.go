package weir_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/credit"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestSettle: Settle returns the final cost of a request, and the key is charged exactly
// that cost. The table has what is left of 100 units after one request of cost 10.
func TestSettle(t *testing.T) {
	hangUp := func(r *http.Request) { r.Context().Value(hangUpKey{}).(context.CancelFunc)() }
	answer := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(status) }
	}
	used := func(o weir.Outcome) int64 { return o.Used }
	for _, tt := range []struct {
		name    string
		settle  func(weir.Outcome) int64
		handler http.HandlerFunc
		want    int64
	}{
		{"no settle", nil, answer(200), 90},
		{"failed login", weir.ChargeOnly(401, 403), answer(401), 90},
		{"login", weir.ChargeOnly(401, 403), answer(200), 100},
		{"login, implicit status", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "hello") }, 100},
		{"login, nothing written", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) {}, 100},
		{"early hints, then a failed login", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(103); w.WriteHeader(401) }, 90},
		{"login hung up on", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { hangUp(r) }, 90},
		{"login panics", weir.ChargeOnly(401), func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 90},
		{"our fault", weir.RefundErrors, answer(502), 100},
		{"not our fault", weir.RefundErrors, answer(404), 90},
		{"panics", weir.RefundErrors, func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) }, 100},
		{"fails as its client hangs up", weir.RefundErrors, func(w http.ResponseWriter, r *http.Request) { hangUp(r); w.WriteHeader(502) }, 90},
		{"panics as its client hangs up", weir.RefundErrors, func(w http.ResponseWriter, r *http.Request) { hangUp(r); panic(http.ErrAbortHandler) }, 90},
		{"bytes", func(o weir.Outcome) int64 { return o.Bytes }, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "seven b") }, 93},
		{"tokens", used, func(w http.ResponseWriter, r *http.Request) {
			weir.ReportUsage(r.Context(), "requests", 1)
			weir.ReportUsage(r.Context(), "requests", 3)
		}, 96},
		{"more tokens than reserved", used, func(w http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "requests", 60) }, 40},
		{"more tokens than there are", used, func(w http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "requests", 1e9) }, 0},
		{"by a field", func(o weir.Outcome) int64 { fmt.Sscan(o.Header.Get("Cost"), &o.Cost); return o.Cost },
			func(w http.ResponseWriter, r *http.Request) { w.Header().Set("Cost", "2"); w.WriteHeader(200) }, 98},
		{"negative", func(o weir.Outcome) int64 { return -5 }, answer(200), 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, limit := range []weir.Limit{algorithms.FixedWindow(100, 1000*time.Hour), algorithms.SlidingLog(100, time.Hour), algorithms.GCRA(100, 10_000*time.Hour)} {
				store := memstore.New(memstore.Options{})
				h := must(t, store, weir.Options{Rules: []weir.Rule{
					{Name: "other", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(7, 1000*time.Hour)}},
					{Name: "api", Key: weir.Global(), Limits: []weir.Limit{limit.Named("a"), limit.Named("b")}, ForKey: noPolicy,
						Cost: func(*http.Request) int64 { return 10 }, Settle: tt.settle},
				}}).Handler(tt.handler)
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				ctx = context.WithValue(ctx, hangUpKey{}, cancel)
				func() {
					defer func() { _ = recover() }()
					h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4").WithContext(ctx))
				}()
				look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "api", Limit: limit.Named("a")}, quota.Charge{Rule: "api", Limit: limit.Named("b")},
					quota.Charge{Rule: "other", Limit: algorithms.FixedWindow(7, 1000*time.Hour)})
				if err != nil {
					t.Fatal(err)
				}
				for i, want := range []int64{tt.want, tt.want, 6} {
					if got := look.Decisions[i].Remaining; got != want {
						t.Errorf("%v: %s: got %d left, want %d", limit, look.Charges[i].Rule, got, want)
					}
				}
			}
		})
	}
}

type hangUpKey struct{}

// TestSettleConcurrently: with concurrent requests over TCP, panics and clients that hang
// up, no more units than the limit are reserved or spent at a time, and in the end exactly
// the final costs are spent.
func TestSettleConcurrently(t *testing.T) {
	const limit, clients, requests = 20, 16, 100
	store := memstore.New(memstore.Options{})
	charge := quota.Charge{Rule: "api", Limit: algorithms.FixedWindow(limit, 10_000*time.Hour)}
	// owed counts the units that handlers hold and the units that Settle has kept. It rises
	// after the store has spent a unit, and falls before the store gets a unit back.
	var owed, kept, most atomic.Int64
	mux := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{charge.Limit},
		Settle: func(o weir.Outcome) int64 {
			if o.Status == 401 {
				kept.Add(1)
				return 1
			}
			owed.Add(-1)
			return 0
		}}}}).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := owed.Add(1)
		raise(&most, n)
		switch r.URL.Path {
		case "/fail":
			w.WriteHeader(401)
		case "/panic":
			panic(http.ErrAbortHandler)
		case "/slow":
			<-r.Context().Done()
		}
	}))
	server := httptest.NewServer(mux)
	defer server.Close()
	paths := []string{"/ok", "/ok", "/panic", "/slow", "/ok", "/fail"}
	var failed atomic.Int64
	together(clients, func(c int) {
		for i := range requests {
			path, patience := paths[(c+i)%len(paths)], time.Minute
			if path == "/fail" && failed.Add(1) > limit/2 {
				path = "/ok"
			}
			if path == "/slow" {
				patience = 5 * time.Millisecond
			}
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			r, _ := http.NewRequestWithContext(ctx, "GET", server.URL+path, nil)
			if res, err := http.DefaultClient.Do(r); err == nil {
				io.Copy(io.Discard, res.Body)
				res.Body.Close()
			}
			cancel()
		}
	})
	server.Close() // waits for handlers
	if most.Load() > limit {
		t.Errorf("got %d held and kept at once, want at most %d", most.Load(), limit)
	}
	look, err := quota.Peek(t.Context(), store, charge)
	if err != nil {
		t.Fatal(err)
	}
	if got, want := limit-look.Decisions[0].Remaining, kept.Load(); got != want || want == 0 || owed.Load() != want {
		t.Errorf("got %d spent and %d held; want %d spent, one for each request that failed, and 0 held", got, owed.Load()-want, want)
	}
}

// raise sets most to n if n is larger.
func raise(most *atomic.Int64, n int64) {
	for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
	}
}

// TestSettleFails: if the store fails when the handler has returned, the whole Cost stays
// spent, and the response does not change.
func TestSettleFails(t *testing.T) {
	store := memstore.New(memstore.Options{})
	gone := false
	h := must(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if gone {
			return errors.New("gone")
		}
		return store.Take(ctx, tx)
	}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(9, 1000*time.Hour)}, Settle: weir.ChargeOnly(401)}}}).
		Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { gone = true; w.WriteHeader(204) }))
	if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode != 204 {
		t.Errorf("got %d, want 204", res.StatusCode)
	}
	look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "api", Limit: algorithms.FixedWindow(9, 1000*time.Hour)})
	if err != nil || look.Decisions[0].Remaining != 8 {
		t.Errorf("got %v, %v, want 8 left", look.Decisions, err)
	}
}

// TestSettleOutage: a request is settled in the store that has charged it, also if another one decides by
// then. None of the units of others there is refunded.
func TestSettleOutage(t *testing.T) {
	for _, paid := range []bool{false, true} { // with granted units
		for _, enforce := range []weir.Enforcement{weir.Percent(100), weir.Percent(0)} {
			for _, outage := range []bool{false, true} { // at the beginning of the request; at its end it is the other way round
				synctest.Test(t, func(t *testing.T) {
					var down atomic.Bool
					one, two := memory(), memory()
					var store quota.Store = quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
						if down.Load() {
							return errDown
						}
						return one.Take(ctx, tx)
					}), two, quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
					limit := algorithms.FixedWindow(20, time.Hour)
					c := quota.Charge{Rule: "r", Limit: limit.Named("1h"), Cost: 7}
					left := func(s quota.Store) int64 { return weirtest.Peek(t, s, c).Decisions[0].Remaining }
					if paid {
						if enforce != weir.Percent(100) {
							return
						}
						for _, s := range []quota.Store{one, two} {
							if err := credit.Grant(t.Context(), s, "r", "", 50, time.Hour); err != nil {
								t.Fatal(err)
							}
							left = func(s quota.Store) int64 { n, _, _ := credit.Left(t.Context(), s, "r", ""); return n }
							spend := c
							spend.Cost = 20
							take(t, s, 0, spend)
						}
						store = credit.New(store, credit.Options{Rules: []string{"r"}})
					}
					take(t, store, 0, quota.Charge{Rule: "other", Limit: limit, Cost: 1})
					if !paid {
						take(t, one, 0, c)
						take(t, two, 0, c)
					}
					l := must(t, store, weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{{Name: "r", Key: weir.Global(),
						Limits: []weir.Limit{limit}, Cost: func(*http.Request) int64 { return 5 }, Enforce: enforce,
						Settle: func(weir.Outcome) int64 { return 1 }}}})
					before := [2]int64{left(one), left(two)}
					down.Store(outage)
					do(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { down.Store(!outage) })), ask("/", "192.0.2.1:1"))
					want := [2]int64{before[0] - 5, before[1]} // the store that is down cannot refund
					if outage {
						want = [2]int64{before[0], before[1] - 1}
					}
					if got := [2]int64{left(one), left(two)}; got != want {
						t.Errorf("paid %v, enforced %v, outage at first %v: got %v left, want %v", paid, enforce, outage, got, want)
					}
				})
			}
		}
	}
}

// TestSettleDecorator: a decorator that answers by itself, and knows no Decision.FellBack, does not leave
// that of an earlier request there: its units are refunded in the first store.
func TestSettleDecorator(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		first, second, own := memory(), memory(), false
		fallback := quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if own {
				return first.Take(ctx, tx)
			}
			return errDown
		}), second, quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if tx.Charges[0].Cost < 0 || !own {
				return fallback.Take(ctx, tx)
			}
			copied := quota.Transaction{Charges: tx.Charges}
			err := first.Take(ctx, &copied)
			tx.Decisions, tx.At = copied.Decisions, copied.At
			return err
		})
		limit := algorithms.FixedWindow(20, time.Hour)
		l := must(t, store, weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{{Name: "r", Key: weir.Global(),
			Limits: []weir.Limit{limit}, Cost: func(*http.Request) int64 { return 5 }, Settle: func(weir.Outcome) int64 { return 1 }}}})
		left := func(s quota.Store) int64 {
			return weirtest.Peek(t, s, quota.Charge{Rule: "r", Limit: limit.Named("1h")}).Decisions[0].Remaining
		}
		for _, own = range []bool{false, true} {
			do(l.Handler(served), ask("/", "192.0.2.1:1"))
		}
		if got, want := [2]int64{left(first), left(second)}, [2]int64{19, 19}; got != want {
			t.Errorf("got %v left, want %v", got, want)
		}
	})
}

// TestSettleUnwraps: a handler behind Settle can flush by http.ResponseController.
func TestSettleUnwraps(t *testing.T) {
	h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}, Settle: weir.RefundErrors}}}).
		Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, ask("/", "192.0.2.1:4"))
	if !w.Flushed {
		t.Error("got nothing flushed")
	}
}

func ExampleOutcome() {
	login, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "login", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(2, time.Minute)},
		Settle: weir.ChargeOnly(http.StatusUnauthorized),
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := login.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "open sesame" {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	for _, word := range []string{"open sesame", "open sesame", "open barley", "open sesame", "open wheat", "open sesame"} {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("Authorization", word)
		h.ServeHTTP(w, r)
		fmt.Println(word, w.Code)
	}
	// Output:
	// open sesame 200
	// open sesame 200
	// open barley 401
	// open sesame 200
	// open wheat 401
	// open sesame 429
}

func ExampleReportUsage() {
	model, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "model", Unit: "tokens", Key: weir.ByHeader("Authorization"), Limits: []weir.Limit{algorithms.TokenBucket(10_000, 1_000, time.Minute)},
		Cost:   func(*http.Request) int64 { return 4_000 }, // the most an answer may take
		Settle: func(o weir.Outcome) int64 { return o.Used },
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := model.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Println("left while it answers:", weir.FromContext(r.Context()).Decisions[0].Remaining)
		weir.ReportUsage(r.Context(), "tokens", 250)
	}))
	for range 2 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Authorization", "Bearer 1")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	// Output:
	// left while it answers: 6000
	// left while it answers: 5750
}

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

// TestDrawRefunds: what was reserved or taken in advance and was not sent is free again, however
// a request ends.
func TestDrawRefunds(t *testing.T) {
	eachDrawn(t, func(t *testing.T, store weir.Store, rule weir.Rule) {
		for _, reserved := range []int64{1, 10, 30} {
			rule.Cost = costs(reserved)
			l := must(t, store, weir.Options{Rules: []weir.Rule{rule}})
			for _, path := range []string{"/", "/panic", "/hang-up"} {
				if _, err := quota.Reset(t.Context(), store, quota.Charge{Rule: rule.Name, Limit: rule.Limits[0]}); err != nil {
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
			t.Errorf("next to a limit in flight: got %d, %v, want 9", got, err)
		}
	})), ask("/", "192.0.2.1:4"))
}

// TestDrawRefunded: drawn units are refunded at the instants at which they were spent, which are not
// the instant at which Cost was charged.
func TestDrawRefunded(t *testing.T) {
	for _, c := range []struct {
		limit weir.Limit
		pause time.Duration // before each Draw
	}{
		{algorithms.GCRA(60, time.Minute), 3 * time.Second},
		{algorithms.TokenBucket(60, 60, time.Minute), 3 * time.Second},
		{algorithms.FixedWindow(60, time.Minute), 61 * time.Second},
		{algorithms.AnchoredWindow(60, time.Minute), 61 * time.Second},
		{algorithms.SlidingWindow(60, time.Minute), 61 * time.Second},
		{algorithms.SlidingLog(60, time.Minute), time.Microsecond},
	} {
		for _, tt := range []struct {
			name   string
			status int
			settle func(weir.Outcome) int64
			used   int64 // of 32
			want   int64
		}{
			{"RefundErrors", 500, weir.RefundErrors, 30, 60},
			{"a part of what was drawn", 200, func(weir.Outcome) int64 { return 20 }, 30, 60 - 20},
		} {
			t.Run(fmt.Sprint(c.limit, tt.name), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute)))
					store := memory()
					l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "tokens", Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{c.limit}, Cost: costs(2), Settle: tt.settle}}})
					left := int64(0)
					h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
						time.Sleep(c.pause)
						left = remains(t, store, l)[0]
						if n, err := weir.Draw(r.Context(), "tokens", tt.used); n != tt.used || err != nil {
							t.Errorf("Draw: got %d, %v", n, err)
						}
						w.WriteHeader(tt.status)
					}))
					do(h, ask("/", ""))
					want := tt.want
					if tt.status == 200 { // what Cost has charged has partly expired by itself
						want = left - 18
					}
					if got := remains(t, store, l)[0]; got != want {
						t.Errorf("%v, %s: got %d left, want %d", c.limit, tt.name, got, want)
					}
				})
			})
		}
	}

	// Nested Limiters: the inner one drew 60, of which the outer one has 11.
	t.Run("nested", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			store := memory()
			limiter := func(name string, n int64) *weir.Limiter {
				return must(t, store, weir.Options{Rules: []weir.Rule{{Name: name, Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{algorithms.SlidingLog(n, time.Hour)}, Settle: weir.ChargeUsed}}})
			}
			outer, inner := limiter("outer", 11), limiter("inner", 100)
			do(outer.Handler(inner.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				time.Sleep(time.Second)
				if n, err := weir.Draw(r.Context(), "tokens", 60); n != 11 || err != nil {
					t.Errorf("got %d, %v, want 11", n, err)
				}
				if left := remains(t, store, inner)[0]; left != 100-11 {
					t.Errorf("while the request is served: got %d left, want 89", left)
				}
			}))), ask("/", ""))
			if a, b := remains(t, store, outer)[0], remains(t, store, inner)[0]; a != 0 || b != 100-11 {
				t.Errorf("left: %d and %d, want 0 and 89", a, b)
			}
		})
	})
}

// TestDrawGranted: granted units that have paid for a request are granted again, and drawn units of
// the limit are refunded to the limit.
func TestDrawGranted(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, limit := memory(), algorithms.FixedWindow(60, 1000*time.Hour)
		store := credit.New(next, credit.Options{Rules: []string{"tokens"}})
		if err := credit.Grant(t.Context(), store, "tokens", "", 5, 100*time.Hour); err != nil {
			t.Fatal(err)
		}
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "tokens", Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{limit}, Cost: costs(2), Settle: weir.RefundErrors}}})
		spent := quota.Charge{Rule: "tokens", Limit: limit, Cost: 60}
		if d, err := quota.Allow(t.Context(), next, spent); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		do(l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if _, err := quota.Reset(t.Context(), next, spent); err != nil {
				t.Error(err)
			}
			if n, err := weir.Draw(r.Context(), "tokens", 42); n != 42 || err != nil {
				t.Errorf("Draw: got %d, %v", n, err)
			}
			w.WriteHeader(500)
		})), ask("/", ""))
		granted, _, err := credit.Left(t.Context(), store, "tokens", "")
		if left := peek(t, next, spent).Decisions[0].Remaining; err != nil || granted != 5 || left != 60 {
			t.Errorf("got %d granted and %d left, %v; want 5 and 60", granted, left, err)
		}
	})
}

// TestDrawHungUp: a handler that calls Draw has reported its usage, although Draw gives it nothing
// because the client has hung up.
func TestDrawHungUp(t *testing.T) {
	store := memory()
	rule := weir.Rule{Name: "tokens", Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(100, 10_000*time.Hour)}, Cost: costs(50), Settle: weir.ChargeUsed}
	l := must(t, store, weir.Options{Rules: []weir.Rule{rule}})
	ctx, cancel := context.WithCancel(t.Context())
	l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		cancel()
		if n, err := weir.Draw(r.Context(), "tokens", 10); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("got %d, %v", n, err)
		}
	})).ServeHTTP(httptest.NewRecorder(), ask("/", "").WithContext(ctx))
	if left := remains(t, store, l)[0]; left != 100 {
		t.Errorf("got %d left, want 100: nothing was drawn", left)
	}
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

// TestDrawUnlimitedOutside: an outer Limiter whose rule of the unit does not charge the request limits
// nothing, while an inner Limiter settles another unit. A unit that no rule has is still an error.
func TestDrawUnlimitedOutside(t *testing.T) {
	free := unit("tokens", 1)
	free.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
	failing := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return errDown })
	log := new(weirtest.Log)
	o := weir.Options{Logger: slog.New(slog.NewTextHandler(log, nil))}
	limiter := func(store weir.Store, r weir.Rule) *weir.Limiter {
		o.Rules = []weir.Rule{r}
		return must(t, store, o)
	}
	inner := limiter(memory(), unit("requests", 1))
	for name, outer := range map[string]*weir.Limiter{"unlimited": limiter(memory(), free), "outage": limiter(failing, unit("tokens", 1))} {
		use := func(ctx context.Context) {
			if got, err := weir.Draw(ctx, "tokens", 7); got != 7 || err != nil {
				t.Errorf("%s: got %d, %v, want 7", name, got, err)
			}
			weir.ReportUsage(ctx, "tokens", 7)
			if got, err := weir.Draw(ctx, "bytes", 7); got != 0 || err == nil {
				t.Errorf("%s: got %d bytes, %v, want an error", name, got, err)
			}
		}
		do(outer.Handler(inner.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { use(r.Context()) }))), ask("/", "192.0.2.1:4"))
		a, err := outer.Admit(ask("/", "192.0.2.1:4"))
		if err != nil {
			t.Fatal(err)
		}
		do(inner.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { use(r.Context()) })), ask("/", "192.0.2.1:4").WithContext(a.Context()))
	}
	if strings.Contains(log.String(), "usage reported") {
		t.Errorf("logged %q", log)
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
			t.Errorf("%s: got %+v, want the units refunded", name, o)
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

// unwrapped is a ResponseWriter of middleware, which http.ResponseController looks through.
type unwrapped struct{ http.ResponseWriter }

func (w unwrapped) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// TestUnwrapped: what a handler does by http.ResponseController, through a wrapper that has nothing but
// Unwrap, is recorded like what it does directly.
func TestUnwrapped(t *testing.T) {
	around := func(h http.Handler) *httptest.Server {
		return httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { h.ServeHTTP(unwrapped{w}, r) }))
	}
	h, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		conn.Close()
		panic(http.ErrAbortHandler)
	}))
	server := around(h)
	defer server.Close()
	if res, err := http.Get(server.URL); err == nil {
		res.Body.Close()
	}
	if o := <-outcomes; o.Status != 101 || !o.HungUp {
		t.Errorf("hijacked: got %+v, want status 101, and HungUp because the handler panicked", o)
	}
	limited := must(t, memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Denied() }}},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if err := http.NewResponseController(w).Flush(); err != nil {
				t.Error(err)
			}
		})})
	server = around(limited.Handler(served))
	defer server.Close()
	if res, err := http.Get(server.URL); err != nil || res.StatusCode != 429 {
		t.Errorf("flushed before the status of a refusal: got %v, %v; want 429", res, err)
	} else {
		res.Body.Close()
	}
	h, outcomes = settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if http.NewResponseController(w).Flush() == nil {
			t.Error("plain: got a Flush, want an error")
		}
		w.WriteHeader(401)
	}))
	h.ServeHTTP(unwrapped{plainWriter{httptest.NewRecorder()}}, ask("/", "192.0.2.1:4"))
	if o := <-outcomes; o.Status != 401 {
		t.Errorf("a Flush that is not supported: got status %d, want 401", o.Status)
	}
}

// TestRecorderAbilities: behind Settle, the ResponseWriter has the optional interfaces of the servers
// of net/http and of usual wrappers, and none that it lacks without Settle.
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
	for _, c := range []struct {
		writer http.ResponseWriter
		want   string
	}{
		{plain, ""},
		{struct {
			w
			f
		}{w: plain}, "f"},
		{struct {
			w
			h
		}{w: plain}, "h"},
		{struct {
			w
			f
			h
		}{w: plain}, "fh"},
		{struct { // HTTP/1
			w
			f
			h
			r
		}{w: plain}, "fhr"},
		{struct { // HTTP/2
			w
			f
			p
		}{w: plain}, "fp"},
		{struct { // gin
			w
			f
			h
			p
		}{w: plain}, "fh"},
		{struct {
			w
			r
			p
		}{w: plain}, ""},
	} {
		var got string
		handler, outcomes := settled(t, algorithms.FixedWindow(5, time.Hour), http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { got = abilities(w) }))
		handler.ServeHTTP(c.writer, ask("/", "192.0.2.1:4"))
		<-outcomes
		if got != c.want {
			t.Errorf("around a writer with %q: got one with %q, want %q", abilities(c.writer), got, c.want)
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

// A copyWriter can flush, be hijacked, and read from a source, as the ResponseWriter of HTTP/1. It
// counts the calls of ReadFrom, which lets net/http use sendfile.
type copyWriter struct {
	*httptest.ResponseRecorder
	http.Hijacker
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

// TestReportAtLeast: usage that may not be all refunds nothing, and is charged if it is more than
// what was reserved.
func TestReportAtLeast(t *testing.T) {
	for _, c := range []struct{ reported, atLeast, drawn, want int64 }{
		{30, -1, 0, 30},
		{0, 30, 0, 100},
		{0, 500, 0, 500},
		{30, 80, 0, 110},
		{0, 0, 130, 130},
		{0, 300, 130, 430},
	} {
		store, limit := memory(), algorithms.FixedWindow(1000, 1000*time.Hour)
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "tokens", Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{limit},
			Cost: func(*http.Request) int64 { return 100 }, Settle: weir.ChargeUsed}}})
		do(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if c.reported > 0 {
				weir.ReportUsage(r.Context(), "tokens", c.reported)
			}
			if c.atLeast >= 0 {
				weir.ReportAtLeast(r.Context(), "tokens", c.atLeast)
			}
			if _, err := weir.Draw(r.Context(), "tokens", c.drawn); err != nil {
				t.Error(err)
			}
		})), ask("/", ""))
		if left := peek(t, store, quota.Charge{Rule: "tokens", Limit: limit}).Decisions[0].Remaining; left != 1000-c.want {
			t.Errorf("%+v: %d charged, want %d", c, 1000-left, c.want)
		}
	}
}

// TestDoneWithoutDecision: if the store fails and OnError allows the request, Done settles nothing,
// and neither ReportUsage nor Draw fails.
func TestDoneWithoutDecision(t *testing.T) {
	calls := 0
	store := storeFunc(func(context.Context, *quota.Transaction) error { calls++; return errDown })
	l := must(t, store, weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{
		{Name: "api", Key: weir.Global(), Unit: "tokens", Limits: []weir.Limit{algorithms.GCRA(10, time.Minute), algorithms.InFlight(2, time.Minute).Named("busy")}, Settle: weir.ChargeUsed},
	}})
	a, err := l.Admit(ask("/", ""))
	if err != nil || len(a.Charges) != 0 || a.Refusal.Reason != weir.ReasonError {
		t.Fatalf("got %+v, %v; want an Admission without charges that says that there was no decision", a, err)
	}
	weir.ReportUsage(a.Context(), "tokens", 3)
	if n, err := weir.Draw(a.Context(), "tokens", 5); n != 5 || err != nil {
		t.Errorf("Draw: got %d, %v; want 5, because nothing limits the tokens", n, err)
	}
	a.Done(weir.Outcome{})
	a.Done(weir.Outcome{})
	h := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { weir.ReportUsage(r.Context(), "tokens", 3) }))
	if got := do(h, ask("/", "")).StatusCode; got != 200 || calls != 2 {
		t.Errorf("Handler: got %d after %d calls of the store in all, want 200 after 2", got, calls)
	}
}

// TestDoneWithUsage: Done charges the usage in the Outcome if the request has reported none.
func TestDoneWithUsage(t *testing.T) {
	limit := algorithms.FixedWindow(100, 1000*time.Hour)
	for _, c := range []struct {
		reported int64 // -1: not at all
		o        weir.Outcome
		want     int64 // units left
	}{
		{-1, weir.Outcome{}, 90},
		{-1, weir.Outcome{Used: 4}, 90},
		{-1, weir.Outcome{Used: 4, Reported: true}, 96},
		{3, weir.Outcome{}, 97},
		{3, weir.Outcome{Used: 4, Reported: true}, 97},
	} {
		store := memory()
		l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{limit}, Cost: costs(10), Settle: weir.ChargeUsed}}})
		a, err := l.Admit(ask("/", ""))
		if err != nil {
			t.Fatal(err)
		}
		if c.reported >= 0 {
			weir.ReportUsage(a.Context(), "requests", c.reported)
		}
		a.Done(c.o)
		if got := left(t, store, "api", limit); got != c.want {
			t.Errorf("%d reported, %+v: got %d left, want %d", c.reported, c.o, got, c.want)
		}
	}
}

// TestOneBudget: all calls of the store for one request share a budget. A limiter that calls the store
// once sets none.
func TestOneBudget(t *testing.T) {
	const timeout, each = 50 * time.Millisecond, 20 * time.Millisecond
	memory, left := memstore.New(memstore.Options{}), []time.Duration(nil)
	store := weirtest.StoreFunc(func(ctx context.Context, tx *quota.Transaction) error {
		left = append(left, quota.BudgetOf(ctx).Left(timeout))
		quota.BudgetOf(ctx).Spend(each)
		return memory.Take(ctx, tx)
	})
	free := func(weir.Outcome) int64 { return 0 }
	rule := weir.Rule{Name: "r", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, 240*time.Hour)}}
	full := rule
	full.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Hour), Duration: time.Hour}
	shadow := rule
	shadow.Name, shadow.Settle, shadow.Enforce = "s", free, weir.Percent(0)
	const ms = time.Millisecond
	for _, c := range []struct {
		name  string
		rules []weir.Rule
		want  [][]time.Duration // for each request
	}{
		{"one call", []weir.Rule{rule}, [][]time.Duration{{50 * ms}, {50 * ms}}},
		{"shadow, Settle, strikes", []weir.Rule{full, shadow}, [][]time.Duration{{50 * ms, 30 * ms, 10 * ms}, {50 * ms, 30 * ms}}},
	} {
		l, err := weir.New(store, weir.Options{Rules: c.rules})
		if err != nil {
			t.Fatal(err)
		}
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		memory = memstore.New(memstore.Options{})
		for i, want := range c.want {
			left = nil
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
			if !slices.Equal(left, want) {
				t.Errorf("%s, request %d: the calls had %v left, want %v", c.name, i, left, want)
			}
		}
	}
}
