package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
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
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestWait: ten workers share a limit of one unit per second. They get their turns in the
// order in which they come, and a worker whose turn would be too late is refused at once.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, start := memstore.New(memstore.Options{}), time.Now()
		charge := quota.Charge{Rule: "jobs", Key: "k", Limit: algorithms.GCRA(1, time.Second), Cost: 1}
		var mu sync.Mutex
		var turns []string
		for i := range 10 {
			time.Sleep(time.Millisecond)
			go func() {
				err := quota.Wait(t.Context(), store, 5*time.Second, charge)
				mu.Lock()
				defer mu.Unlock()
				var limited *quota.LimitedError
				switch {
				case err == nil:
					turns = append(turns, fmt.Sprintf("%d at %v", i, time.Since(start).Round(time.Second)))
				case errors.As(err, &limited):
					turns = append(turns, fmt.Sprintf("%d not before %v", i, (time.Since(start)+limited.RetryAfter()).Round(time.Second)))
				default:
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"6 not before 6s", "7 not before 6s", "8 not before 6s", "9 not before 6s",
			"0 at 0s", "1 at 1s", "2 at 2s", "3 at 3s", "4 at 4s", "5 at 5s"}
		slices.SortStableFunc(turns, func(a, b string) int { // refusals come while others wait
			return strings.Compare(fmt.Sprint(strings.Contains(b, "not")), fmt.Sprint(strings.Contains(a, "not")))
		})
		if !slices.Equal(turns, want) {
			t.Errorf("got %q, want %q", turns, want)
		}
	})
}

// TestWaitGivesBack: if the context of a waiting caller ends, its turn is free for the next
// caller.
func TestWaitGivesBack(t *testing.T) {
	for _, limit := range []weir.Limit{
		algorithms.GCRA(1, time.Second), algorithms.TokenBucket(1, 1, time.Second), algorithms.LeakyBucket(9, 1, time.Second),
		algorithms.AnchoredWindow(1, time.Second), algorithms.SlidingLog(1, time.Second),
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			charges := []quota.Charge{
				{Rule: "a", Key: "k", Limit: limit, Cost: 1},
				{Rule: "b", Key: "all", Limit: limit, Cost: 1},
			}
			if err := quota.Wait(t.Context(), store, 0, charges...); err != nil {
				t.Fatal(err)
			}
			ctx, giveUp := context.WithTimeout(t.Context(), time.Hour)
			done := make(chan error)
			go func() { done <- quota.Wait(ctx, store, time.Minute, charges...) }()
			time.Sleep(time.Millisecond)
			giveUp()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("%v: got %v, want the error of the context", limit, err)
			}
			r := reserve(t, store, time.Minute, charges...)
			if got, want := r.Delay(), 999*time.Millisecond; got != want {
				t.Errorf("%v: the next waits %v, want %v: the turn that was given back", limit, got, want)
			}
		})
	}
}

// TestReserve: Reserve returns the next free turn. Cancel gives the turn back only once, and
// only before the turn has come. Turns after the deadline and costs above the capacity are
// refused.
func TestReserve(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		charge := quota.Charge{Rule: "jobs", Limit: algorithms.GCRA(1, time.Second), Cost: 1}
		first, second := reserve(t, store, 0, charge), reserve(t, store, time.Hour, charge)
		if first.Delay() != 0 || second.Delay() != time.Second {
			t.Errorf("delays %v and %v, want 0 and 1s", first.Delay(), second.Delay())
		}
		for range 2 {
			cancelTurn(t, second)
		}
		if r := reserve(t, store, time.Hour, charge); r.Delay() != time.Second {
			t.Errorf("after two calls of Cancel: delay %v, want 1s", r.Delay())
		}
		time.Sleep(time.Second)
		first.Cancel(t.Context()) // its turn has come, so Cancel does nothing
		if r := reserve(t, store, time.Hour, charge); r.Delay() != time.Second {
			t.Errorf("after a turn that had come was cancelled: delay %v, want 1s", r.Delay())
		}
		short, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
		defer cancel()
		var limited *quota.LimitedError
		if _, err := quota.Reserve(short, store, time.Hour, charge); !errors.As(err, &limited) || limited.RetryAfter() != 2*time.Second {
			t.Errorf("beyond the deadline: got %v, want a LimitedError of 2s", err)
		}
		charge.Cost = 2
		if err := quota.Wait(t.Context(), store, time.Hour, charge); !errors.As(err, &limited) || limited.RetryAfter() != quota.Never {
			t.Errorf("beyond the capacity: got %v, want a LimitedError of Never", err)
		}
		if err := quota.Wait(t.Context(), failing{errors.New("away")}, 0, charge); err == nil || err.Error() != "away" {
			t.Errorf("got %v, want the error of the store", err)
		}
	})
}

func waiting(t *testing.T, o weir.Options, limit weir.Limit) http.Handler {
	o.Rules = []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{limit}}}
	return must(t, memstore.New(memstore.Options{}), o).Handler(served)
}

// TestMaxWait: with MaxWait, a leaky bucket or GCRA delays requests as limit_req of nginx
// does. With rate=1r/s, of many requests at once:
//
//	burst=5            one passes at once, and five are delayed
//	burst=5 delay=2    three pass at once, and three are delayed
//	burst=5 nodelay    six pass at once
func TestMaxWait(t *testing.T) {
	for _, c := range []struct {
		nginx string
		limit weir.Limit
		wait  time.Duration
		want  string // when each of eight requests at once is served, in seconds; - means that it is refused
	}{
		{"burst=5", algorithms.LeakyBucket(6, 1, time.Second), 5 * time.Second, "0 1 2 3 4 5 - -"},
		{"burst=5 delay=2", algorithms.GCRA(1, time.Second).WithBurst(3), 3 * time.Second, "0 0 0 1 2 3 - -"},
		{"burst=5 nodelay", algorithms.GCRA(1, time.Second).WithBurst(6), 0, "0 0 0 0 0 0 - -"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h, start := waiting(t, weir.Options{MaxWait: c.wait}, c.limit), time.Now()
			got := make([]string, 8)
			var wg sync.WaitGroup
			for i := range got {
				wg.Go(func() {
					got[i] = "-"
					if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode == 200 {
						got[i] = fmt.Sprint(int(time.Since(start).Seconds()))
					}
				})
				synctest.Wait()
			}
			wg.Wait()
			if s := strings.Join(got, " "); s != c.want {
				t.Errorf("%s: got %s, want %s", c.nginx, s, c.want)
			}
		})
	}
}

// TestUnserved: if the context of a waiting request ends, the status is 499 or 503, and no
// cache stores the response.
func TestUnserved(t *testing.T) {
	for _, c := range []struct {
		name   string
		end    func(ctx context.Context, cancel context.CancelFunc) context.Context
		status int
		kind   string
	}{
		{"the client hangs up", func(ctx context.Context, cancel context.CancelFunc) context.Context {
			time.AfterFunc(time.Second, cancel)
			return ctx
		}, 499, ""},
		{"the client has hung up before", func(ctx context.Context, cancel context.CancelFunc) context.Context {
			cancel()
			return ctx
		}, 499, ""},
		{"a deadline that the context does not announce", func(ctx context.Context, cancel context.CancelFunc) context.Context {
			ctx, end := context.WithTimeout(ctx, time.Second)
			context.AfterFunc(ctx, end)
			return deadlineless{ctx}
		}, 503, "application/problem+json"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := waiting(t, weir.Options{MaxWait: time.Minute}, algorithms.GCRA(1, 10*time.Second))
			outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Cache-Control", "public")
				h.ServeHTTP(w, r)
			})
			do(outer, ask("/", "192.0.2.1:4"))
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			res := do(outer, ask("/", "192.0.2.1:4").WithContext(c.end(ctx, cancel)))
			if res.StatusCode != c.status || res.Header.Get("Cache-Control") != "no-store" || res.Header.Get("Content-Type") != c.kind {
				t.Errorf("%s: got %d, %v; want %d, no-store, %q", c.name, res.StatusCode, res.Header, c.status, c.kind)
			}
		})
	}
}

// deadlineless is a context that hides its deadline.
type deadlineless struct{ context.Context }

func (deadlineless) Deadline() (time.Time, bool) { return time.Time{}, false }

// TestHangUp: a client that hangs up while it waits is not served, and its turn goes to the
// next client.
func TestHangUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, start := waiting(t, weir.Options{MaxWait: time.Minute}, algorithms.GCRA(1, 10*time.Second)), time.Now()
		do(h, ask("/", "192.0.2.1:4"))
		ctx, hangUp := context.WithCancel(t.Context())
		go func() {
			if res := do(h, ask("/", "192.0.2.1:4").WithContext(ctx)); res.StatusCode != 499 || res.ContentLength > 0 {
				t.Errorf("a client that had hung up: got %d and %d bytes, want 499 and none", res.StatusCode, res.ContentLength)
			}
			if since := time.Since(start); since != time.Second {
				t.Errorf("left after %v, want 1s, when the client hung up", since)
			}
		}()
		time.Sleep(time.Second)
		hangUp()
		synctest.Wait()
		if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode != 200 || time.Since(start) != 10*time.Second {
			t.Errorf("the next: got %d after %v, want 200 after 10s", res.StatusCode, time.Since(start))
		}
	})
}

// TestMaxWaiting: while MaxWaiting requests wait, other requests are refused at once.
func TestMaxWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := waiting(t, weir.Options{MaxWait: time.Hour, MaxWaiting: 2}, algorithms.GCRA(1, time.Second))
		statuses := make([]int, 5)
		for i := range statuses {
			go func() { statuses[i] = do(h, ask("/", "192.0.2.1:4")).StatusCode }()
			synctest.Wait()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		if want := []int{200, 200, 200, 429, 429}; !slices.Equal(statuses, want) {
			t.Errorf("got %v, want %v", statuses, want)
		}
		if got := do(h, ask("/", "192.0.2.1:4")).StatusCode; got != 200 {
			t.Errorf("when all have gone: got %d, want 200", got)
		}
	})
}

// TestMaxWaitingQueue: beyond MaxWaiting, a leaky bucket admits a request only if its queue
// is empty, so requests still pass at even intervals.
func TestMaxWaitingQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var passed []time.Duration
		h := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.LeakyBucket(5, 1, time.Second)}}},
			MaxWait: time.Minute, MaxWaiting: 1,
		}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			passed = append(passed, time.Since(start))
		}))
		do(h, ask("/", ""))
		go do(h, ask("/", "")) // takes the only place of MaxWaiting
		synctest.Wait()
		for range 10 {
			do(h, ask("/", ""))
		}
		time.Sleep(time.Minute)
		mu.Lock()
		defer mu.Unlock()
		if want := []time.Duration{0, time.Second}; !slices.Equal(passed, want) {
			t.Errorf("got requests passed at %v, want %v", passed, want)
		}
	})
}

// TestMaxWaitingAtOnce: if many requests come while the store is slow, at most MaxWaiting
// of them wait. If the store panics, the place of the request becomes free.
func TestMaxWaitingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const most, units = 10, 5
		var waited, panics atomic.Int64
		memory := memstore.New(memstore.Options{})
		h := must(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			time.Sleep(20 * time.Millisecond)
			if panics.Load() > 0 {
				panics.Add(-1)
				panic("store")
			}
			return memory.Take(ctx, tx)
		}), weir.Options{
			Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Second).WithBurst(units)}}},
			MaxWait: time.Hour, MaxWaiting: most,
			Observe: func(e weir.Event) {
				if e.Transaction.Wait > 0 {
					waited.Add(1)
				}
			},
		}).Handler(served)
		for round := range 3 {
			waited.Store(0)
			var ok atomic.Int64
			together(3000, func(int) {
				if do(h, ask("/", "")).StatusCode == 200 {
					ok.Add(1)
				}
			})
			if waited.Load() > most || ok.Load() < most {
				t.Errorf("round %d: of 3000 at once %d waited and %d were served, want at most %d waiting, and no fewer served", round, waited.Load(), ok.Load(), most)
			}
			time.Sleep(time.Minute)
			panics.Store(2 * most)
			for range 2 * most {
				func() {
					defer func() { recover() }()
					do(h, ask("/", ""))
				}()
			}
		}
	})
}

// TestManyWaiting: each of 10,000 waiting requests takes at most 16 KiB. When the clients
// hang up, all goroutines end: otherwise synctest.Test would panic.
func TestManyWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 10_000
		h := waiting(t, weir.Options{MaxWait: 24 * time.Hour, MaxWaiting: n}, algorithms.GCRA(1, time.Second))
		ctx, hangUp := context.WithCancel(t.Context())
		memory := func() uint64 {
			runtime.GC()
			var m runtime.MemStats
			runtime.ReadMemStats(&m)
			return m.HeapAlloc + m.StackInuse
		}
		before := memory()
		for range n {
			go do(h, ask("/", "192.0.2.1:4").WithContext(ctx))
		}
		synctest.Wait()
		if each := int64(memory()-before) / n; each > 16<<10 {
			t.Errorf("a request that waits takes %d bytes, want at most 16 KiB", each)
		} else {
			t.Logf("a request that waits takes %d bytes, with its recorder and goroutine", each)
		}
		hangUp()
	})
}

// TestCostZero: Allow, Wait and Reserve return an error for a charge whose Cost is 0 or
// negative, and spend nothing.
func TestCostZero(t *testing.T) {
	store := memstore.New(memstore.Options{})
	limit := algorithms.GCRA(1, time.Hour)
	for _, cost := range []int64{0, -1} {
		charge := quota.Charge{Rule: "jobs", Limit: limit, Cost: cost}
		want := fmt.Sprintf(`quota: rule "jobs": Cost is %d; want at least 1, because a charge that spends nothing is never limited`, cost)
		d, allow := quota.Allow(t.Context(), store, charge)
		if d != (quota.Decision{}) {
			t.Errorf("Allow, cost %d: got %+v, want nothing allowed", cost, d)
		}
		_, reserve := quota.Reserve(t.Context(), store, time.Hour, quota.Charge{Rule: "other", Limit: limit, Cost: 1}, charge)
		for name, err := range map[string]error{"Allow": allow, "Reserve": reserve, "Wait": quota.Wait(t.Context(), store, 0, charge)} {
			if err == nil || err.Error() != want {
				t.Errorf("%s, cost %d: got %v, want %s", name, cost, err, want)
			}
		}
	}
	for _, charge := range []quota.Charge{{Rule: "jobs", Limit: limit, Cost: 1}, {Rule: "other", Limit: limit, Cost: 1}} {
		if d, err := quota.Allow(t.Context(), store, charge); err != nil || !d.Allowed {
			t.Errorf("%s: got %+v, %v, want it allowed: nothing was spent", charge.Rule, d, err)
		}
	}
}

// TestAllow: Allow spends a charge that fits. If the charge does not fit, Allow says when it
// will. An error of the store is returned.
func TestAllow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		charge := quota.Charge{Rule: "jobs", Key: "k", Limit: algorithms.GCRA(2, time.Minute), Cost: 2}
		for _, want := range []struct {
			allowed bool
			retry   time.Duration
		}{{true, 0}, {false, time.Minute}} {
			d, err := quota.Allow(t.Context(), store, charge)
			if err != nil || d.Allowed != want.allowed || d.RetryAfter != want.retry {
				t.Errorf("got %+v, %v, want %+v", d, err, want)
			}
		}
		if d, err := quota.Allow(t.Context(), failing{errors.New("away")}, charge); d.Allowed || err == nil || err.Error() != "away" {
			t.Errorf("got %+v, %v, want the error of the store", d, err)
		}
	})
}

// TestCancelGivesBackItsOwn: if the caller overwrites its charges after Reserve, Cancel
// still gives back the reserved units, and no units of another key.
func TestCancelGivesBackItsOwn(t *testing.T) {
	store := memory()
	charges := []quota.Charge{{Rule: "r", Limit: algorithms.SlidingLog(10, 1000*time.Hour), Cost: 10}}
	var line []*quota.Reservation
	for _, key := range []string{"a", "b"} {
		charges[0].Key = key
		take(t, store, 0, charges...)
		r, err := quota.Reserve(t.Context(), store, 10_000*time.Hour, charges...)
		if err != nil {
			t.Fatal(err)
		}
		line = append(line, r)
	}
	if err := line[0].Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
	for key, turns := range map[string]int64{"a": 1, "b": 2} {
		charges[0].Key, charges[0].Cost = key, 0
		d := take(t, store, 0, charges...).Decisions[0]
		if got := int64((d.ResetAfter + time.Hour) / (1000 * time.Hour)); got != turns {
			t.Errorf("%s: got a ResetAfter of %v, want %d periods", key, d.ResetAfter, turns)
		}
	}
}
