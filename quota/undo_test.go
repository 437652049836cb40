package quota_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// tens has a limit of ten units for each algorithm except in-flight.
var tens = []quota.Limit{
	algorithms.GCRA(10, 1000*time.Hour), algorithms.TokenBucket(10, 10, 1000*time.Hour), algorithms.LeakyBucket(10, 10, 1000*time.Hour),
	algorithms.FixedWindow(10, 1000*time.Hour), algorithms.AnchoredWindow(10, 1000*time.Hour), algorithms.SlidingWindow(10, 1000*time.Hour),
	algorithms.SlidingLog(10, 1000*time.Hour), algorithms.Calendar(10, algorithms.Month, time.UTC),
}

// big returns the largest cost of a turn that can wait behind five other units.
func big(limit quota.Limit) int64 {
	if limit.Algorithm.Name() == "leaky-bucket" {
		return 5 // the queue has room for five units
	}
	return 10
}

// undoStores runs a test with stores in memory and in Redis, alone and through decorators.
func undoStores(t *testing.T, f func(t *testing.T, name string, store quota.Store)) {
	for name, open := range map[string]func(t *testing.T) quota.Store{
		"memory": func(*testing.T) quota.Store { return memory() },
		"Redis":  func(t *testing.T) quota.Store { return redisAt(t, redistest.Server(t).Addr(), 10*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			base := open(t)
			for decorator, decorated := range map[string]func(quota.Store) quota.Store{
				"":           func(s quota.Store) quota.Store { return s },
				" Hybrid":    func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
				" Breaker":   func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
				" Fallback":  func(s quota.Store) quota.Store { return quota.Fallback(s, memory(), quota.FallbackOptions{}) },
				" secondary": func(s quota.Store) quota.Store { return quota.Fallback(failing{errDown}, s, quota.FallbackOptions{}) },
				" Share":     func(s quota.Store) quota.Store { return quota.Share(s, 1) },
				" Coalesce":  func(s quota.Store) quota.Store { return quota.Joined(quota.Coalesce(s)) },
				" Lease":     func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
			} {
				f(t, name+decorator, decorated(base))
			}
		})
	}
}

// TestCancelFreesTheKey: after big turns were reserved and cancelled, the five units that
// were free before can be spent at once.
func TestCancelFreesTheKey(t *testing.T) {
	undoStores(t, func(t *testing.T, name string, store quota.Store) {
		for _, limit := range tens {
			for _, turns := range []int{1, 3} {
				cancelBigTurns(t, name, store, limit, turns)
			}
		}
	})
}

// cancelBigTurns spends five units of ten, reserves big turns, cancels them from the last
// to the first, and expects that the other five units are free.
func cancelBigTurns(t *testing.T, name string, store quota.Store, limit quota.Limit, turns int) {
	t.Helper()
	charges := func(cost int64) []quota.Charge {
		return []quota.Charge{
			{Rule: name, Key: fmt.Sprint(turns), Limit: limit, Cost: cost},
			{Rule: name, Key: fmt.Sprint(turns), Limit: limit.Named("another"), Cost: cost},
			{Rule: name + "'s other rule", Key: fmt.Sprint(turns), Limit: algorithms.SlidingLog(100, 1000*time.Hour).Named(limit.Algorithm.Name()), Cost: cost},
		}
	}
	if tx := take(t, store, 0, charges(5)...); !tx.Allowed() {
		t.Fatalf("%s: %v: got %+v", name, limit, tx.Decisions)
	}
	var line []*quota.Reservation
	for range turns {
		r, err := quota.Reserve(t.Context(), store, 10_000*time.Hour, charges(big(limit))...)
		if err != nil && len(line) > 0 && big(limit) == 5 {
			break // the queue is full
		}
		if err != nil {
			t.Fatalf("%s: %v: %v", name, limit, err)
		}
		line = append(line, r)
	}
	take(t, store, 0, charges(1)...) // this is refused, and a decorator may remember the refusal
	for _, r := range slices.Backward(line) {
		cancelTurn(t, r)
	}
	for range 5 {
		if tx := take(t, store, 0, charges(1)...); !tx.Allowed() || tx.Wait != 0 {
			t.Errorf("%s: %v, %d turns cancelled: got %+v for a unit that is free", name, limit, len(line), tx.Decisions)
			break
		}
	}
	if tx := take(t, store, 0, charges(1)...); tx.Allowed() {
		t.Errorf("%s: %v: got a sixth unit of the five that were left: %+v", name, limit, tx.Decisions)
	}
}

// TestHangUpFreesTheKey: a client that waits for many units over HTTP and hangs up delays
// no later request.
func TestHangUpFreesTheKey(t *testing.T) {
	for _, limit := range tens {
		synctest.Test(t, func(t *testing.T) {
			h := must(t, memstore.New(memstore.Options{}), weir.Options{MaxWait: 10_000 * time.Hour, Rules: []weir.Rule{
				{Name: "api", Key: weir.Global(), Limits: []quota.Limit{limit.Named("a"), limit.Named("b")}, ForKey: func(string) weir.Policy { return weir.Policy{} }, Cost: costOf},
				{Name: "host", Key: weir.ByHeader("Host"), Limits: []quota.Limit{algorithms.SlidingLog(50, 1000*time.Hour)}, Cost: costOf},
			}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			begin := time.Now()
			get := func(ctx context.Context, cost string) int {
				r := ask("/", "192.0.2.1:4", "Cost", cost).WithContext(ctx)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Code
			}
			if got := get(t.Context(), "5"); got != 200 {
				t.Fatalf("%v: got %d", limit, got)
			}
			at := time.Since(begin)
			gone, hangUp := context.WithCancel(t.Context())
			done := make(chan int)
			go func() { done <- get(gone, fmt.Sprint(big(limit))) }()
			synctest.Wait()
			hangUp()
			if got := <-done; got == 200 {
				t.Errorf("%v: a request whose client hung up was served", limit)
			}
			want := at
			for range 5 {
				if big(limit) == 5 { // a unit leaves the queue every 100 hours, after the five units before it
					want = max(want+100*time.Hour, at+500*time.Hour)
				}
				if got := get(t.Context(), "1"); got != 200 || time.Since(begin) != want {
					t.Errorf("%v: got %d after %v, want 200 after %v", limit, got, time.Since(begin), want)
				}
			}
		})
	}
}

func costOf(r *http.Request) (n int64) {
	fmt.Sscan(r.Header.Get("Cost"), &n)
	return n
}

// TestCancelKeepsTheLog: when a turn of a sliding log is cancelled, units that would have
// left the window by the instant of the turn still count, even if part of the turn was
// given back before.
func TestCancelKeepsTheLog(t *testing.T) {
	undoStores(t, func(t *testing.T, name string, store quota.Store) {
		for _, gift := range []int64{0, 1, 100} {
			c := quota.Charge{Rule: name, Key: fmt.Sprint("log", gift), Limit: algorithms.SlidingLog(100, time.Hour), Cost: 60}
			take(t, store, 0, c)
			c.Cost = 100
			first, second := reserve(t, store, 3*time.Hour, c), reserve(t, store, 3*time.Hour, c)
			if c.Cost = -gift; gift > 0 {
				take(t, store, 0, c)
			}
			cancelTurn(t, second)
			cancelTurn(t, first)
			c.Cost = 0
			if d := take(t, store, 0, c).Decisions[0]; d.Remaining != 40 {
				t.Errorf("%s: %d given back in between: got %+v, want 40 left", name, gift, d)
			}
		}
	})
}

// TestBanGivesBackTheTurn: if the store gives a request a turn, but a ban that another
// process began refuses it, the turn is given back.
func TestBanGivesBackTheTurn(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(1, 10*time.Second), algorithms.SlidingLog(1, 10*time.Second), algorithms.FixedWindow(1, 10*time.Second),
		algorithms.SlidingWindow(1, 10*time.Second), algorithms.TokenBucket(1, 1, 10*time.Second), algorithms.LeakyBucket(10, 1, 10*time.Second),
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			var last weir.Event
			limiter := func() *weir.Limiter {
				return must(t, mem, weir.Options{MaxWait: time.Hour, Observe: func(e weir.Event) { last = e }, Rules: []weir.Rule{{
					Name: "api", Key: weir.ByHeader("Key"), Limits: []quota.Limit{limit},
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute},
				}}})
			}
			here, there := limiter(), limiter()
			h := here.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			do(h, ask("/", "192.0.2.1:4", "Key", "a"))
			if err := there.Ban(t.Context(), "api", "a", time.Minute); err != nil {
				t.Fatal(err)
			}
			charge := quota.Charge{Rule: "api", Key: "a", Limit: here.Rules()[0].Limits[0]}
			before := peek(t, mem, charge)
			start := time.Now()
			if res := do(h, ask("/", "192.0.2.1:4", "Key", "a")); res.StatusCode != 429 || time.Since(start) != 0 || last.Transaction.Wait != 0 {
				t.Errorf("%v: got %d after %v, and a wait of %v, want 429 at once", limit, res.StatusCode, time.Since(start), last.Transaction.Wait)
			}
			after := peek(t, mem, charge)
			if before.Decisions[0] != after.Decisions[0] {
				t.Errorf("%v: got %+v, want %+v", limit, after.Decisions[0], before.Decisions[0])
			}
		})
	}
}
