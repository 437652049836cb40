package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
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
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestWait: ten workers share a limit of one unit per second. They get their slots in the
// order in which they come, and a worker whose slot would be too late is refused at once.
func TestWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, start := memstore.New(memstore.Options{}), time.Now()
		charge := quota.Charge{Rule: "jobs", Key: "k", Limit: algorithms.GCRA(1, time.Second), Cost: 1}
		var mu sync.Mutex
		var slots []string
		for i := range 10 {
			time.Sleep(time.Millisecond)
			go func() {
				err := quota.Wait(t.Context(), store, 5*time.Second, charge)
				mu.Lock()
				defer mu.Unlock()
				var limited *quota.LimitedError
				switch {
				case err == nil:
					slots = append(slots, fmt.Sprintf("%d at %v", i, time.Since(start).Round(time.Second)))
				case errors.As(err, &limited):
					slots = append(slots, fmt.Sprintf("%d not before %v", i, (time.Since(start)+limited.RetryAfter()).Round(time.Second)))
				default:
					t.Error(err)
				}
			}()
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		want := []string{"6 not before 6s", "7 not before 6s", "8 not before 6s", "9 not before 6s",
			"0 at 0s", "1 at 1s", "2 at 2s", "3 at 3s", "4 at 4s", "5 at 5s"}
		slices.SortStableFunc(slots, func(a, b string) int { // refusals come while others wait
			return strings.Compare(fmt.Sprint(strings.Contains(b, "not")), fmt.Sprint(strings.Contains(a, "not")))
		})
		if !slices.Equal(slots, want) {
			t.Errorf("got %q, want %q", slots, want)
		}
	})
}

// TestWaitRefunds: if the context of a waiting caller ends, its slot is free for the next
// caller.
func TestWaitRefunds(t *testing.T) {
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
				t.Errorf("%v: the next waits %v, want %v: the slot that was refunded", limit, got, want)
			}
		})
	}
}

// TestReserve: Reserve returns the next free slot. Cancel refunds its units only once, and
// only before the slot has come. Slots after the deadline and costs above the capacity are
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
			cancelSlot(t, second)
		}
		if r := reserve(t, store, time.Hour, charge); r.Delay() != time.Second {
			t.Errorf("after two calls of Cancel: delay %v, want 1s", r.Delay())
		}
		time.Sleep(time.Second)
		first.Cancel(t.Context()) // its slot has come, so Cancel does nothing
		if r := reserve(t, store, time.Hour, charge); r.Delay() != time.Second {
			t.Errorf("after a slot that had come was cancelled: delay %v, want 1s", r.Delay())
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

// TestHangUp: a client that hangs up while it waits is not served, and its slot goes to the
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

// TestCancelRefundsItsOwn: if the caller overwrites its charges after Reserve, Cancel
// still refunds the reserved units, and no units of another key.
func TestCancelRefundsItsOwn(t *testing.T) {
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
	for key, slots := range map[string]int64{"a": 1, "b": 2} {
		charges[0].Key, charges[0].Cost = key, 0
		d := take(t, store, 0, charges...).Decisions[0]
		if got := int64((d.ResetAfter + time.Hour) / (1000 * time.Hour)); got != slots {
			t.Errorf("%s: got a ResetAfter of %v, want %d periods", key, d.ResetAfter, slots)
		}
	}
}

// a bulkhead is a handler behind a limiter, whose requests end when the test says so.
type bulkhead struct {
	t    *testing.T
	h    http.Handler
	mu   sync.Mutex
	log  []string
	ends map[string]chan bool
}

func newBulkhead(t *testing.T, store weir.Store, o weir.Options) *bulkhead {
	b := &bulkhead{t: t, ends: map[string]chan bool{}}
	b.h = must(t, store, o).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		b.note(r.URL.Path)
		b.mu.Lock()
		end := b.ends[r.URL.Path]
		b.mu.Unlock()
		if !<-end {
			panic(http.ErrAbortHandler)
		}
	}))
	return b
}

func (b *bulkhead) note(what string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.log = append(b.log, what)
}

// send sends a request with that path and address, and returns what hangs up.
func (b *bulkhead) send(path, ip string) (hangUp func()) {
	ctx, cancel := context.WithCancel(b.t.Context())
	b.mu.Lock()
	b.ends[path] = make(chan bool)
	b.mu.Unlock()
	go func() {
		defer func() { _ = recover() }()
		start := time.Now()
		if res := do(b.h, ask(path, ip+":4").WithContext(ctx)); res.StatusCode != 200 {
			b.note(fmt.Sprintf("%s %d after %v %s", path, res.StatusCode, time.Since(start), res.Header.Get("Retry-After")))
		}
	}()
	synctest.Wait()
	return func() { cancel(); synctest.Wait() }
}

// end lets the handler of a request return, or panic.
func (b *bulkhead) end(path string, returns bool) { b.ends[path] <- returns; synctest.Wait() }

func (b *bulkhead) wants(want ...string) {
	b.t.Helper()
	synctest.Wait()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.log, want) {
		b.t.Errorf("got %q, want %q", b.log, want)
	}
	b.log = nil
}

// TestWaitForUnit: with MaxWait, requests wait for units in flight in the order in which they
// came, while they spend nothing of a rate and hold nothing. Who hangs up, or waits for MaxWait,
// leaves the line; a handler that panics makes room too. At the end no goroutine is left.
func TestWaitForUnit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, unit := memory(), algorithms.InFlight(1, time.Minute)
		rate := algorithms.FixedWindow(100, 1000*time.Hour)
		var events []string
		var mu sync.Mutex
		b := newBulkhead(t, store, weir.Options{MaxWait: 10 * time.Second, MaxWaiting: 4, Rules: []weir.Rule{
			{Name: "slow", Key: weir.ByIP(), Limits: []weir.Limit{unit}},
			{Name: "rate", Key: weir.Global(), Limits: []weir.Limit{rate}},
		}, Observe: func(e weir.Event) {
			mu.Lock()
			defer mu.Unlock()
			events = append(events, fmt.Sprint(e.Request.URL.Path, " ", e.Refusal.Rule, " ", e.Transaction.Wait, " ", len(e.Transaction.Decisions)))
		}})
		const ip = "192.0.2.1"
		b.send("/a", ip)
		b.send("/b", ip)
		hangUp := b.send("/c", ip)
		b.send("/d", ip)
		b.send("/other", "192.0.2.2")
		b.wants("/a", "/other")
		time.Sleep(4 * time.Second)
		b.send("/e", ip)
		b.send("/f", ip) // MaxWaiting wait
		b.wants("/f 429 after 0s ")
		if left, want := left(t, store, "rate", rate), int64(98); left != want {
			t.Errorf("while requests wait: got %d left of the rate, want %d", left, want)
		}
		hangUp()
		b.wants("/c 499 after 4s ")
		b.end("/a", false) // panics
		b.wants("/b")
		time.Sleep(6 * time.Second)
		b.wants("/d 429 after 10s ")
		b.end("/b", true)
		b.wants("/e")
		b.end("/e", true)
		b.end("/other", true)
		if left, want := left(t, store, "rate", rate), int64(96); left != want {
			t.Errorf("at the end: got %d left of the rate, want %d", left, want)
		}
		mu.Lock()
		defer mu.Unlock()
		want := []string{"/a  0s 2", "/other  0s 2", "/f slow 0s 2", "/c slow 0s 2", "/b  4s 2", "/d slow 0s 2", "/e  6s 2"}
		if !slices.Equal(events, want) {
			t.Errorf("got the events %q, want %q", events, want)
		}
	})
}

// TestWaitForUnitPerKey: one client takes a tenth of the places of MaxWaiting, but at least 10, and
// others still wait. A key that all share has all places, and places are free again.
func TestWaitForUnitPerKey(t *testing.T) {
	for _, c := range []struct {
		maxWaiting, most int
		key              weir.KeyFunc
	}{{50, 10, weir.ByIP()}, {200, 20, weir.ByIP()}, {8, 8, weir.ByIP()}, {50, 50, weir.Global()}} {
		synctest.Test(t, func(t *testing.T) {
			l := must(t, memory(), weir.Options{MaxWait: time.Minute, MaxWaiting: c.maxWaiting, Rules: []weir.Rule{{
				Name: "slow", Key: c.key, Limits: []weir.Limit{algorithms.InFlight(1, time.Hour)}}}})
			end := make(chan bool)
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-end }))
			var refused, other atomic.Int32
			for range 3 {
				refused.Store(0)
				for range 1 + c.most + 3 {
					go func() {
						if do(h, ask("/", "192.0.2.1:4")).StatusCode == 429 {
							refused.Add(1)
						}
					}()
					synctest.Wait()
				}
				if got := refused.Load(); got != 3 {
					t.Errorf("%+v: got %d refused while %d wait, want 3", c, got, c.most)
				}
				if c.most < c.maxWaiting {
					for range 2 { // the second waits for the first
						go func() {
							if do(h, ask("/", "198.51.100.1:4")).StatusCode == 200 {
								other.Add(1)
							}
						}()
						synctest.Wait()
					}
				}
				for range 1 + c.most + 2 {
					select {
					case end <- true:
					default:
					}
					synctest.Wait()
				}
			}
			if got := other.Load(); c.most < c.maxWaiting && got != 6 {
				t.Errorf("%+v: another client got %d of 6 requests", c, got)
			}
		})
	}
}

// TestWaitForUnitRiders: a request that waits for a unit strikes once, if it is refused, and a ban
// that begins meanwhile refuses it when its slot comes. A rule in shadow holds its unit, and
// delays nothing. A limit of a Policy is waited for too.
func TestWaitForUnitRiders(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, unit := memory(), algorithms.InFlight(1, time.Minute)
		shadow := algorithms.InFlight(5, time.Minute).Named("shadow")
		o := weir.Options{MaxWait: time.Second, Rules: []weir.Rule{
			{Name: "api", Key: weir.ByIP(), Policy: func(*http.Request) weir.Policy { return weir.Limited(unit) },
				Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(3, 1000*time.Hour), Duration: time.Hour}},
			{Name: "shadow", Key: weir.Global(), Limits: []weir.Limit{shadow}, Enforce: weir.Percent(0)},
		}}
		b := newBulkhead(t, store, o)
		const ip = "192.0.2.1"
		b.send("/a", ip)
		for _, path := range []string{"/b", "/c"} {
			b.send(path, ip)
			time.Sleep(time.Second)
			b.wants(append(map[string][]string{"/b": {"/a"}}[path], path+" 429 after 1s ")...)
		}
		if got := left(t, store, "shadow", shadow); got != 4 {
			t.Errorf("got %d left of the rule in shadow, want 4", got)
		}
		b.send("/x", ip)()
		b.wants("/x 499 after 0s ") // a hang-up is no strike: the third would ban
		b.send("/d", ip)
		ban(t, must(t, store, weir.Options{Rules: o.Rules[:1]}), ip, time.Hour) // by another process
		b.end("/a", true)
		b.wants("/d 429 after 0s 3600")
		if got := held(t, store, "api", ip, unit); got != 0 {
			t.Errorf("after the ban: got %d in flight, want 0", got)
		}
		if got := left(t, store, "shadow", shadow); got != 5 {
			t.Errorf("at the end: got %d left of the rule in shadow, want 5", got)
		}
	})
}

func held(t *testing.T, store weir.Store, rule, key string, l weir.Limit) int64 {
	t.Helper()
	return l.Quota - take(t, store, 0, quota.Charge{Rule: rule, Key: key, Limit: l}).Decisions[0].Remaining
}

// TestWaitForUnitAdmit: Admit waits for a unit, and Done reports the next. An error of the store
// while a request waits goes to OnError. A deadline of the request ends the wait with a refusal.
func TestWaitForUnitAdmit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, fails := memory(), atomic.Bool{}
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if fails.Load() {
				return errDown
			}
			return next.Take(ctx, tx)
		})
		l := must(t, store, weir.Options{Rules: inFlight(1, time.Minute), MaxWait: time.Minute})
		admit := func(ctx context.Context) <-chan string {
			done := make(chan string, 1)
			start := time.Now()
			go func() {
				a, err := l.Admit(ask("/", "192.0.2.1:4").WithContext(ctx))
				var refused *weir.RefusedError
				switch {
				case errors.As(err, &refused):
					done <- fmt.Sprint(refused.Admission.Refusal.Rule, " refuses after ", time.Since(start))
				case err != nil:
					done <- err.Error()
				default:
					done <- fmt.Sprint("admitted after ", time.Since(start).Round(time.Second), ", waited ", a.Wait.Round(time.Second))
					time.Sleep(10 * time.Second)
					a.Done(weir.Outcome{})
				}
			}()
			synctest.Wait()
			return done
		}
		timed, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		gone, hangUp := context.WithCancel(t.Context())
		calls := []<-chan string{admit(t.Context()), admit(timed), admit(gone), admit(t.Context())}
		hangUp()
		for i, want := range []string{"admitted after 0s, waited 0s", "api refuses after 5s", "context canceled", "admitted after 10s, waited 10s"} {
			if got := <-calls[i]; got != want {
				t.Errorf("call %d: got %s, want %s", i, got, want)
			}
		}
		last := admit(t.Context())
		fails.Store(true)
		if got := <-last; got != "admitted after 0s, waited 0s" { // OnError lets it pass
			t.Errorf("while the store fails: got %s", got)
		}
		fails.Store(false)
		time.Sleep(time.Hour)
	})
}

// TestWaitForUnitOutbound: an outgoing request waits for a unit, which is free when the body of an
// earlier response is closed.
func TestWaitForUnitOutbound(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(t, memory(), weir.Options{MaxWait: 10 * time.Second, Rules: []weir.Rule{{Name: "partner", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, time.Minute)}}}})
		var sent atomic.Int64
		rt := transport(t, l, weir.TransportOptions{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
			sent.Add(1)
			return &http.Response{StatusCode: 200, Body: io.NopCloser(strings.NewReader(""))}, nil
		})})
		start := time.Now()
		send := func(ctx context.Context) func() string {
			var what string
			var wg sync.WaitGroup
			wg.Go(func() {
				res, err := rt.RoundTrip(httptest.NewRequest("GET", "/", nil).WithContext(ctx))
				what = fmt.Sprintf("%v after %v", err, time.Since(start))
				if err == nil {
					time.Sleep(6 * time.Second)
					res.Body.Close()
				}
			})
			synctest.Wait()
			return func() string { wg.Wait(); return what }
		}
		gone, hangUp := context.WithCancel(t.Context())
		a, b, c, d := send(t.Context()), send(gone), send(t.Context()), send(t.Context())
		if sent.Load() != 1 {
			t.Errorf("got %d requests sent, want 1", sent.Load())
		}
		hangUp()
		if got, want := a()+"; "+b()+"; "+c(), "<nil> after 0s; context canceled after 0s; <nil> after 6s"; got != want {
			t.Errorf("got %s, want %s", got, want)
		}
		if got := d(); !strings.HasPrefix(got, "quota: rule \"partner\" has as many requests in flight") || !strings.HasSuffix(got, " after 10s") {
			t.Errorf("a wait of more than MaxWait: got %s", got)
		}
	})
}

// TestWaitForUnitRedis: with Redis, 40 goroutines of two limiters wait for 5 units. All are served,
// at most 5 at a time, and nothing stays held.
func TestWaitForUnitRedis(t *testing.T) {
	addr := redistest.Server(t).Addr()
	rules := []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(5, time.Minute), algorithms.SlidingLog(1000, time.Hour)}}}
	var mu sync.Mutex
	now, most, served := 0, 0, 0
	add := func(n int) {
		mu.Lock()
		defer mu.Unlock()
		now += n
		most, served = max(most, now), served+max(0, n)
	}
	var handlers []http.Handler
	for range 2 {
		handlers = append(handlers, must(t, redisAt(t, addr, 10*time.Second), weir.Options{Rules: rules, MaxWait: time.Minute, OnError: weir.FailClosed}).
			Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
				add(1)
				time.Sleep(time.Millisecond)
				add(-1)
			})))
	}
	together(40, func(i int) {
		for range 10 {
			if res := do(handlers[i%2], ask("/", "192.0.2.1:4")); res.StatusCode != 200 {
				t.Errorf("got status %d", res.StatusCode)
			}
		}
	})
	store := redisAt(t, addr, 10*time.Second)
	flying, logged := held(t, store, "api", "", rules[0].Limits[0]), held(t, store, "api", "", rules[0].Limits[1])
	if most > 5 || served != 400 || flying != 0 || logged != 400 {
		t.Errorf("got %d at a time, %d served, %d in flight at the end and %d spent, want at most 5, 400, 0 and 400", most, served, flying, logged)
	}
}

func inFlight(n int64, lease time.Duration) []weir.Rule {
	return []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.InFlight(n, lease)}}}
}

// TestInFlight: a request holds its unit until its handler returns or panics, even if that
// takes longer than the lease or the client hangs up, through every decorator.
func TestInFlight(t *testing.T) {
	for name, around := range map[string]func(weir.Store) weir.Store{
		"alone":    func(s weir.Store) weir.Store { return s },
		"hybrid":   func(s weir.Store) weir.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"breaker":  func(s weir.Store) weir.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"fallback": func(s weir.Store) weir.Store { return quota.Fallback(s, memory(), quota.FallbackOptions{}) },
		"coalesce": func(s weir.Store) weir.Store { return quota.Coalesce(s) },
		"share":    func(s weir.Store) weir.Store { return quota.Share(s, 1) },
		"lease":    func(s weir.Store) weir.Store { return lease.New(s, lease.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := around(memory())
				done := make(chan func())
				h := must(t, store, weir.Options{Headers: headers.IETF, Rules: inFlight(2, time.Minute)}).
					Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (<-done)() }))
				start := func(ctx context.Context) {
					go func() {
						defer func() { _ = recover() }()
						h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4").WithContext(ctx))
					}()
					synctest.Wait()
				}
				held := func(want int64) {
					t.Helper()
					look := take(t, store, 0, quota.Charge{Rule: "api", Key: "192.0.2.1", Limit: algorithms.InFlight(2, time.Minute)})
					if got := 2 - look.Decisions[0].Remaining; got != want {
						t.Errorf("after %v: got %d in flight, want %d", time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), got, want)
					}
				}
				end := func(f func()) { done <- f; synctest.Wait() }
				gone, hangUp := context.WithCancel(t.Context())

				start(t.Context())
				start(gone)
				held(2)
				res := do(h, ask("/", "192.0.2.1:4"))
				if got := fmt.Sprint(res.StatusCode, res.Header["Ratelimit-Policy"], res.Header["Ratelimit"], res.Header["Retry-After"]); got != `429 ["api";q=2;qu="concurrent-requests"] ["api";r=0] []` {
					t.Errorf("a third request: got %s", got)
				}
				hangUp() // the handler still runs
				held(2)
				end(func() {})
				held(1)
				start(t.Context())
				end(func() { panic(http.ErrAbortHandler) })
				held(1)
				for range 20 { // for ten times the lease, so the unit is renewed
					time.Sleep(31 * time.Second)
					held(1)
				}
				end(func() {})
				held(0)
				time.Sleep(time.Hour) // a timer that is left would renew the units
				held(0)
			})
		})
	}
}

// TestInFlightModel: in random schedules of requests that begin and end, the store counts
// exactly the requests in flight.
func TestInFlightModel(t *testing.T) {
	schedules := rounds.N(3000, 40_000)
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 8))
	for schedules > 0 {
		synctest.Test(t, func(t *testing.T) {
			store := memory()
			for range 500 { // several schedules in one bubble of synctest, because making a bubble takes longer than a schedule
				schedules--
				newFlights(t, r, store, strconv.Itoa(schedules)).run(t, seed)
			}
		})
	}
}

// flights has a limit of requests in flight, and the requests of its key that are in
// flight.
type flights struct {
	r     *rand.Rand
	store weir.Store
	key   string
	n     int64
	limit weir.Limit
	h     http.Handler
	enter chan chan bool // receives the channel of each request that begins
	held  []chan bool    // a value that is sent to one of them ends its request; true makes the handler panic
}

func newFlights(t *testing.T, r *rand.Rand, store weir.Store, key string) *flights {
	f := &flights{r: r, store: store, key: key, n: 1 + r.Int64N(4), enter: make(chan chan bool, 1)}
	f.limit = algorithms.InFlight(f.n, time.Duration(2+r.IntN(100))*time.Millisecond)
	limits := []weir.Limit{f.limit}
	if r.IntN(2) == 0 { // with a second limit, which refuses some requests
		limits = append(limits, algorithms.FixedWindow(8, 1000*time.Hour))
	}
	f.h = must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: limits}}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		leave := make(chan bool)
		f.enter <- leave
		if <-leave {
			panic(http.ErrAbortHandler)
		}
	}))
	return f
}

// run takes twelve steps. After each step it compares what the store counts with the
// requests in flight.
func (f *flights) run(t *testing.T, seed uint64) {
	t.Helper()
	for range 12 {
		f.step()
		synctest.Wait()
		select {
		case leave := <-f.enter:
			f.held = append(f.held, leave)
		default:
		}
		if int64(len(f.held)) > f.n {
			t.Fatalf("seed %d: %d in flight, want at most %d", seed, len(f.held), f.n)
		}
		look := take(t, f.store, 0, quota.Charge{Rule: "api", Key: f.key, Limit: f.limit})
		if got := f.n - look.Decisions[0].Remaining; got != int64(len(f.held)) {
			t.Fatalf("seed %d: the store counts %d of %d in flight", seed, got, len(f.held))
		}
	}
	for _, leave := range f.held {
		leave <- false
	}
	synctest.Wait()
}

// step ends a request, sleeps, or sends a request.
func (f *flights) step() {
	switch k := f.r.IntN(4); {
	case k == 0 && len(f.held) > 0:
		i := f.r.IntN(len(f.held))
		f.held[i] <- f.r.IntN(3) == 0
		f.held = slices.Delete(f.held, i, i+1)
	case k == 1:
		time.Sleep(time.Duration(f.r.Int64N(int64(2 * f.limit.Period))))
	default:
		go func() {
			defer func() { _ = recover() }()
			f.h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4", "Key", f.key))
		}()
	}
}

// TestInFlightRefused: a request that is refused holds no unit, not even of a rule in
// shadow.
func TestInFlightRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		flight := algorithms.InFlight(3, time.Hour)
		api := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{flight}, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(1, time.Hour), Duration: time.Hour}}
		shadow := weir.Rule{Name: "shadow", Key: weir.Global(), Limits: []weir.Limit{flight}, Enforce: weir.Percent(0)}
		other := weir.Rule{Name: "other", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)}}
		l := must(t, store, weir.Options{Rules: []weir.Rule{api, shadow, other}})
		again := must(t, store, weir.Options{Rules: []weir.Rule{api}}) // another process, which has not learned of the ban
		var during int64
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { during = left(t, store, "shadow", flight) }))
		for i, want := range []int{200, 429, 200} {
			if i == 2 {
				if err := l.Ban(t.Context(), "api", "", time.Hour); err != nil {
					t.Fatal(err)
				}
				h, want = again.Handler(served), 429 // the call that finds the ban has also charged the request, so the unit is refunded
			}
			if got := do(h, ask("/", "192.0.2.1:4")).StatusCode; got != want {
				t.Errorf("request %d: got %d, want %d", i, got, want)
			}
			if a, b := left(t, store, "api", flight), left(t, store, "shadow", flight); a != 3 || b != 3 || during != 2 {
				t.Errorf("request %d: got %d and %d left, want 3 and 3; during the first request %d, want 2", i, a, b, during)
			}
		}
	})
	_, err := quota.Reserve(t.Context(), memory(), time.Hour, quota.Charge{Rule: "api", Limit: algorithms.InFlight(1, time.Minute), Cost: 2})
	var limited *quota.LimitedError
	if !errors.As(err, &limited) || limited.RetryAfter() != quota.Never {
		t.Errorf("got %v, want a LimitedError", err)
	}
}

func left(t *testing.T, store weir.Store, rule string, l weir.Limit) int64 {
	t.Helper()
	return take(t, store, 0, quota.Charge{Rule: rule, Limit: l}).Decisions[0].Remaining
}

// TestInFlightOutbound: an outgoing request is in flight until the body of its response is
// closed.
func TestInFlightOutbound(t *testing.T) {
	store, flight := memory(), algorithms.InFlight(1, time.Minute)
	fail := false
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "partner", Key: weir.Global(), Limits: []weir.Limit{flight}}}})
	rt := transport(t, l, weir.TransportOptions{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		if fail {
			return nil, errDown
		}
		return httptest.NewRecorder().Result(), nil
	})})
	send := func() (*http.Response, error) { return rt.RoundTrip(httptest.NewRequest("GET", "/", nil)) }
	res, err := send()
	if err != nil || left(t, store, "partner", flight) != 0 {
		t.Fatalf("got %v, and %d left, want none", err, left(t, store, "partner", flight))
	}
	if _, err := send(); !errors.As(err, new(*quota.LimitedError)) {
		t.Errorf("a second: got error %v", err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	res.Body.Close()
	fail = true
	if _, err := send(); !errors.Is(err, errDown) || left(t, store, "partner", flight) != 1 {
		t.Errorf("got %v, and %d left, want 1", err, left(t, store, "partner", flight))
	}
}

// TestInFlightProcesses: three processes with 64 goroutines each never have more than 10
// requests in flight together. If a process is killed with 10 requests in flight, its units
// are free after the lease.
func TestInFlightProcesses(t *testing.T) {
	rounds.Slow(t, "six processes, and a lease that expires")
	addr := redistest.Server(t).Addr()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	process := func(lease time.Duration, job string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestInFlightProcess$")
		cmd.Env = append(os.Environ(), "WEIR_IN_FLIGHT="+addr, "WEIR_LEASE="+lease.String(), "WEIR_JOB="+job)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd
	}
	var all []*exec.Cmd
	for range 3 {
		all = append(all, process(time.Minute, "work"))
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
	}
	ctx := t.Context()
	most, _ := rdb.Get(ctx, "most").Int()
	served, _ := rdb.Get(ctx, "served").Int()
	if most > 10 || served < 100 {
		t.Errorf("got %d in flight at once, want at most 10; %d were served", most, served)
	}

	const lease = 2 * time.Second
	store := redisAt(t, addr, 5*time.Second)
	look := func() quota.Decision {
		return take(t, store, 0, quota.Charge{Rule: "api", Key: "hang", Limit: algorithms.InFlight(10, lease)}).Decisions[0]
	}
	hangs := process(lease, "hang")
	until(t, func() bool { return rdb.Get(ctx, "hanging").Val() == "10" && look().Remaining == 0 })
	time.Sleep(2 * lease)
	until(t, func() bool { return look().Remaining == 0 }) // the units are renewed
	if err := hangs.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = hangs.Wait()
	killed := look()
	until(t, func() bool { return look().Remaining == 10 })
	if killed.ResetAfter > lease { // the server measures this, because a busy machine may notice the end late
		t.Errorf("when the process was killed: got %+v, want all free after %v", killed, lease)
	}
}

// until waits for a condition that depends on another process, for at most 30 s.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("got nothing after 30 seconds")
}

// TestInFlightProcess is one of the processes that TestInFlightProcesses starts.
func TestInFlightProcess(t *testing.T) {
	addr, job := os.Getenv("WEIR_IN_FLIGHT"), os.Getenv("WEIR_JOB")
	if addr == "" {
		t.Skip("only TestInFlightProcesses starts it")
	}
	lease, err := time.ParseDuration(os.Getenv("WEIR_LEASE"))
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 16})
	ctx := context.Background()
	count := redis.NewScript(`
local n = redis.call('INCRBY', 'now', ARGV[1])
if n > tonumber(redis.call('GET', 'most') or 0) then redis.call('SET', 'most', n) end
if ARGV[1] == '1' then redis.call('INCR', 'served') end`)
	add := func(n int) {
		if err := count.Run(ctx, rdb, nil, n).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
	}
	var unknown atomic.Int64
	h := must(t, redisAt(t, addr, 10*time.Second), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.InFlight(10, lease)}}},
		OnError: func(_ *http.Request, err error) error { unknown.Add(1); return err },
	}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if job == "hang" {
			rdb.Incr(ctx, "hanging")
			time.Sleep(time.Hour)
		}
		add(1)
		time.Sleep(time.Millisecond)
		add(-1)
	}))
	together(64, func(int) {
		for range 40 {
			h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4", "Key", job))
		}
	})
	if unknown.Load() > 0 {
		t.Logf("%d requests were not decided", unknown.Load())
	}
}

// TestInFlightPanics: if the store panics while a unit is renewed, the panic is logged as
// an error.
func TestInFlightPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := memstore.New(memstore.Options{})
		var log bytes.Buffer
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if tx.Mode == quota.ModeForce {
				panic("a mistake")
			}
			return next.Take(ctx, tx)
		})
		l := must(t, store, weir.Options{Rules: inFlight(2, time.Minute), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		do(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(40 * time.Second) })), ask("/", ""))
		if !strings.Contains(log.String(), "the store panicked: a mistake") {
			t.Errorf("got the log %q", &log)
		}
	})
}

// TestBanReleasesOnce: a ban refuses a request that has reserved a slot and a unit in flight. The
// request releases its own unit, and not that of a request with the same slot.
func TestBanReleasesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		time.Sleep(time.Second) // the window has begun
		store, flying := memory(), algorithms.InFlight(9, 10*time.Minute).Named("flying")
		limiter := func() *weir.Limiter {
			return must(t, store, weir.Options{MaxWait: 5 * time.Minute, Rules: []weir.Rule{
				{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Minute)},
					Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Hour), Duration: time.Hour}},
				{Name: "all", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Limited(flying) }},
			}})
		}
		release := make(chan bool)
		h := limiter().Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release }))
		send := func(ip string) { go h.ServeHTTP(httptest.NewRecorder(), ask("/", ip+":4")); synctest.Wait() }
		held := func(when string, want int64) {
			t.Helper()
			if got := 9 - take(t, store, 0, quota.Charge{Rule: "all", Limit: flying}).Decisions[0].Remaining; got != want {
				t.Errorf("%s: got %d in flight, want %d", when, got, want)
			}
		}
		send("192.0.2.1")
		send("192.0.2.2")
		held("served", 2)
		send("192.0.2.1")
		ban(t, limiter(), "192.0.2.2", time.Hour) // by another process
		send("192.0.2.2")
		time.Sleep(time.Minute) // its slot has come
		held("banned", 3)
		time.Sleep(time.Minute)
		for range 3 {
			release <- true
		}
	})
}

// TestPauseReleasesNothing: a pause, with or without a ban, that refuses what a concurrency limit
// would admit releases no unit: the request has taken none, and the units of that instant are those
// of another.
func TestPauseReleasesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, banned := range []bool{false, true} {
			store, flight := memory(), algorithms.InFlight(2, time.Hour)
			process := func(answer *http.Response) (*weir.Limiter, http.RoundTripper) {
				l := must(t, store, weir.Options{Rules: []weir.Rule{{
					Name: "partner", Key: weir.Global(), Limits: []weir.Limit{flight},
					Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Minute), Duration: time.Minute},
				}}})
				return l, transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return answer, nil })})
			}
			_, one := process(response(200))
			other, pauses := process(response(503, "Retry-After", "30"))
			inFlight, err := one.RoundTrip(ask("/", "")) // its body stays open
			if err != nil {
				t.Fatal(err)
			}
			if res, err := pauses.RoundTrip(ask("/", "")); err != nil || res.Body.Close() != nil {
				t.Fatal(err)
			}
			want := weir.ReasonPause
			if banned {
				want = weir.ReasonBan
				if err := other.Ban(t.Context(), "partner", "", time.Hour); err != nil { // of which the first process does not know
					t.Fatal(err)
				}
			}
			var refused *weir.RefusedError
			if _, err := one.RoundTrip(ask("/", "")); !errors.As(err, &refused) || refused.Admission.Refusal.Reason != want {
				t.Fatalf("got %v, want a refusal with reason %s", err, want)
			}
			if got := left(t, store, "partner", flight); got != 1 {
				t.Errorf("%s: got %d units left while one request is in flight, want 1", want, got)
			}
			inFlight.Body.Close()
			if got := left(t, store, "partner", flight); got != 2 {
				t.Errorf("%s: got %d units left at the end, want 2", want, got)
			}
		}
	})
}

// A ledger is the slow definition of a limit: it keeps every charge of a key.
type ledger struct {
	limit weir.Limit
	held  []*holding
}

// A holding is n units that were charged at an instant. gone counts the units of a slot
// that was cancelled although it was not the last slot: the limit may count these units or
// not.
type holding struct{ at, n, gone int64 }

// used returns the least and the most units that may count at the instant t.
func (g *ledger) used(t int64) (least, most int64) {
	period := g.limit.Period.Microseconds()
	for _, h := range g.held {
		counts := h.at > t-period && h.at <= t
		if g.limit.Algorithm.Name() == "fixed-window" {
			counts = h.at/period == t/period
		}
		if counts {
			least, most = least+h.n, most+h.n+h.gone
		}
	}
	return least, most
}

// fits reports whether n units may fit at the instant t, and whether they must.
func (g *ledger) fits(t, n int64) (may, must bool) {
	least, most := g.used(t)
	may, must = least+n <= g.limit.Quota, most+n <= g.limit.Quota
	for _, h := range g.held { // no charge overtakes a reserved slot
		may = may && (h.at <= t || h.n == 0)
		must = must && h.at <= t
	}
	return may, must
}

// free returns the fewest and the most units that may be left at the instant t.
func (g *ledger) free(t int64) (least, most int64) {
	for n := int64(1); n <= g.limit.Quota; n++ {
		may, must := g.fits(t, n)
		if may {
			most = n
		}
		if must {
			least = n
		}
	}
	return least, most
}

// A book has one ledger for each limit of a key.
type book []*ledger

func (b book) fits(t, n int64) (may, must bool) {
	may, must = true, true
	for _, g := range b {
		can, has := g.fits(t, n)
		may, must = may && can, must && has
	}
	return may, must
}

// earliest returns the first instant at which n units may fit, and the first at which they
// must.
func (b book) earliest(now, n int64) (may, must int64) {
	instants := []int64{now}
	for _, g := range b {
		period := g.limit.Period.Microseconds()
		for _, h := range g.held {
			instants = append(instants, h.at, h.at+period, (h.at/period+1)*period)
		}
	}
	slices.Sort(instants)
	may, must = -1, -1
	for _, at := range instants {
		if at < now {
			continue
		}
		can, has := b.fits(at, n)
		if can && may < 0 {
			may = at
		}
		if has && must < 0 {
			must = at
		}
	}
	return may, must
}

func (b book) spend(at, n int64) (hs []*holding) {
	for _, g := range b {
		h := &holding{at: at, n: n}
		g.held = append(g.held, h)
		hs = append(hs, h)
	}
	return hs
}

// A world is a store under random use, with books of what the store may and must do.
type world struct {
	*testing.T
	r         *rand.Rand
	plain     *memstore.Store
	limits    []weir.Limit
	books     map[string]book
	decisions int
	log       []string
	mu        sync.Mutex // guards what concurrent requests use
}

func newWorld(t *testing.T, r *rand.Rand, limits ...weir.Limit) *world {
	w := &world{T: t, r: r, plain: memstore.New(memstore.Options{}), limits: limits, books: map[string]book{}}
	for _, key := range []string{"a", "b"} {
		for _, l := range limits {
			w.books[key] = append(w.books[key], &ledger{limit: l})
		}
	}
	return w
}

func now() int64 { return time.Now().UnixMicro() }

func (w *world) key() string { return []string{"a", "b"}[w.r.IntN(2)] }

func (w *world) note(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf("%d ", now()%1e10)+fmt.Sprintf(format, args...))
}

func (w *world) fail(format string, args ...any) {
	w.Helper()
	w.Fatalf("%v\n%s\n%d: %s", w.limits, strings.Join(w.log[max(0, len(w.log)-40):], "\n"), now()%1e10, fmt.Sprintf(format, args...))
}

func (w *world) charges(key string, cost int64) (charges []quota.Charge) {
	for _, l := range w.limits {
		charges = append(charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: cost})
	}
	return charges
}

// sleep sleeps for a short or a long time, or until a window ends.
func (w *world) sleep() {
	period := w.limits[w.r.IntN(len(w.limits))].Period
	steps := []time.Duration{0, 0, time.Microsecond, time.Duration(w.r.Int64N(int64(period))), period / 7, period - time.Microsecond, period,
		time.Duration(period.Microseconds()-now()%period.Microseconds()) * time.Microsecond}
	time.Sleep(steps[w.r.IntN(len(steps))].Truncate(time.Microsecond))
	synctest.Wait()
}

// remains compares the Remaining that the store returns with the books.
func (w *world) remains() {
	w.Helper()
	for key, b := range w.books {
		t, err := quota.Peek(context.Background(), w.plain, w.charges(key, 0)...)
		if err != nil {
			w.fail("%v", err)
		}
		for i, g := range b {
			if least, most := g.free(now()); t.Decisions[i].Remaining < least || t.Decisions[i].Remaining > most {
				w.fail("%s, %v: got %d remaining, want %d to %d", key, g.limit, t.Decisions[i].Remaining, least, most)
			}
		}
	}
}

// idle sleeps until no unit counts any more, and expects that all units are free.
func (w *world) idle() {
	w.Helper()
	longest, last := time.Duration(0), now()
	for _, l := range w.limits {
		longest = max(longest, l.Period)
	}
	for _, b := range w.books {
		for _, g := range b {
			for _, h := range g.held {
				last = max(last, h.at)
			}
		}
	}
	time.Sleep(time.Until(time.UnixMicro(last)) + longest)
	w.remains()
}

// exactLimits returns a sliding log, a fixed window or both, with random numbers: the
// limits that a ledger defines.
func exactLimits(r *rand.Rand) []weir.Limit {
	period := func() time.Duration { return time.Duration(1+r.Int64N(20)) * time.Second }
	limits := []weir.Limit{algorithms.SlidingLog(1+r.Int64N(12), period()).Named("log"), algorithms.FixedWindow(1+r.Int64N(12), period()).Named("window")}
	if i := r.IntN(3); i < 2 {
		limits = limits[i : i+1]
	}
	return limits
}

// A slot is a reservation for a key, with its holdings in the books.
type slot struct {
	key string
	*quota.Reservation
	hs    []*holding
	after int // how many slots of the key had been cancelled out of order when it was reserved
}

// A slotWorld is a world with slots that are reserved and cancelled.
type slotWorld struct {
	*world
	line      []slot
	cancelled map[string]int // how many slots were cancelled out of order, by key
}

// slots reserves slots and cancels some of them. Each request must wait exactly as long as
// the books say. If earlier slots were cancelled out of order, the request may wait longer,
// but no longer than if those slots had been kept.
func slots(t *testing.T, r *rand.Rand) int {
	w := &slotWorld{world: newWorld(t, r, exactLimits(r)...), cancelled: map[string]int{}}
	for range 60 {
		w.sleep()
		if len(w.line) > 0 && r.IntN(3) == 0 {
			w.cancelOne()
		} else {
			w.reserveOne()
		}
	}
	w.idle()
	return w.decisions
}

// cancelOne cancels the last slot or, once in three times, any slot.
func (w *slotWorld) cancelOne() {
	w.Helper()
	i := len(w.line) - 1
	if w.r.IntN(3) == 0 {
		i = w.r.IntN(len(w.line))
	}
	c := w.line[i]
	last := c.after == w.cancelled[c.key] && !slices.ContainsFunc(w.line[i+1:], func(d slot) bool { return d.key == c.key })
	w.line = slices.Delete(w.line, i, i+1)
	if c.Delay() == 0 {
		return
	}
	w.note("cancel %s of %d, last %v", c.key, c.hs[0].at%1e10, last)
	if err := c.Cancel(w.Context()); err != nil {
		w.fail("%v", err)
	}
	if !last {
		w.cancelled[c.key]++
	}
	for _, h := range c.hs {
		if last { // as if the slot had never been reserved
			h.at = 0
		} else {
			h.gone = h.n
		}
		h.n = 0
	}
}

// reserveOne reserves a slot, and compares its wait, or the RetryAfter of its refusal, with
// the books.
func (w *slotWorld) reserveOne() {
	w.Helper()
	w.decisions++
	key, cost, within := w.key(), 1+w.r.Int64N(4), time.Duration(w.r.Int64N(60e6))*time.Microsecond
	for _, l := range w.limits {
		cost = min(cost, l.Quota)
	}
	may, must := w.books[key].earliest(now(), cost)
	res, err := quota.Reserve(w.Context(), w.plain, within, w.charges(key, cost)...)
	var wait time.Duration
	var limited *quota.LimitedError
	switch {
	case err == nil:
		wait = res.Delay()
		w.note("%s: %d wait %v", key, cost, wait)
		w.line = append(w.line, slot{key, res, w.books[key].spend(now()+wait.Microseconds(), cost), w.cancelled[key]})
	case errors.As(err, &limited):
		wait = limited.RetryAfter()
		w.note("%s: %d refused within %v, retry after %v", key, cost, within, wait)
		if wait <= within {
			w.fail("refused")
		}
	default:
		w.fail("%v", err)
	}
	if at := now() + wait.Microseconds(); at < may || at > must {
		w.fail("%s waits %v, want %d to %d µs", key, wait, may-now(), must-now())
	}
}

// settlements serves requests whose final costs are known when they have ended. A request
// must be served if and only if its Cost fits, and Remaining must follow from the final
// costs.
func settlements(t *testing.T, r *rand.Rand) int { return settling(t, r, exactLimits(r), false) }

// leasedSettlements does what settlements does, through package lease, which may refuse
// more requests until the leases end.
func leasedSettlements(t *testing.T, r *rand.Rand) int {
	return settling(t, r, []weir.Limit{algorithms.FixedWindow(100+r.Int64N(300), time.Duration(1+r.Int64N(5))*time.Second).Named("l")}, true)
}

// A request of a settleWorld ends when finish receives the units that it has used.
type request struct {
	key    string
	hs     []*holding
	finish chan int64
	served bool
}

// A settleWorld is a world with requests that reserve settledCost units until they end.
type settleWorld struct {
	*world
	h       http.Handler
	leased  bool
	running []*request
}

const settledCost = 3

func settling(t *testing.T, r *rand.Rand, limits []weir.Limit, leased bool) int {
	w := &settleWorld{world: newWorld(t, r, limits...), leased: leased}
	var store weir.Store = w.plain
	var leases *lease.Store
	if leased {
		leases = lease.New(w.plain, lease.Options{})
		store = leases
	}
	w.h = must(t, store, weir.Options{Rules: []weir.Rule{{Name: "r", Key: weir.ByHeader("Key"), Limits: limits,
		Cost:   func(*http.Request) int64 { return settledCost },
		Settle: func(o weir.Outcome) int64 { return o.Used },
	}}}).Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		q := r.Context().Value(inWorld{}).(*request)
		q.served = true
		weir.ReportUsage(r.Context(), "requests", <-q.finish)
	}))
	for range 60 {
		w.sleep()
		if n := len(w.running); n > 0 && r.IntN(2) == 0 {
			w.finish(r.IntN(n))
			if !leased {
				w.remains()
			}
			continue
		}
		w.burst(w.key())
	}
	for len(w.running) > 0 {
		w.finish(0)
	}
	if leased {
		if err := leases.Close(t.Context()); err != nil {
			w.fail("%v", err)
		}
		hits += leases.Stats().Hits
	}
	w.remains()
	w.idle()
	return w.decisions
}

// burst sends one request, or up to 60 if there are leases.
func (w *settleWorld) burst(key string) {
	w.Helper()
	if !w.leased {
		w.send(key)
		return
	}
	for range 1 + w.r.IntN(60) {
		w.send(key)
		time.Sleep(time.Duration(w.r.Int64N(1000)) * time.Microsecond)
	}
}

// send sends a request, and checks with the books whether it must be served.
func (w *settleWorld) send(key string) {
	w.Helper()
	w.decisions++
	q := &request{key: key, finish: make(chan int64)}
	_, want := w.books[key].fits(now(), settledCost)
	req := ask("/", "192.0.2.1:4", "Key", key)
	go w.h.ServeHTTP(httptest.NewRecorder(), req.WithContext(context.WithValue(req.Context(), inWorld{}, q)))
	synctest.Wait()
	w.note("%s: %v", key, q.served)
	if q.served && !want || !w.leased && !q.served && want {
		w.fail("%s: served %v, want %v", key, q.served, want)
	}
	if q.served {
		q.hs = w.books[key].spend(now(), settledCost)
		w.running = append(w.running, q)
	}
}

// finish ends a request. It has used at most its cost or, if there are no leases, perhaps
// more.
func (w *settleWorld) finish(i int) {
	q := w.running[i]
	w.running = slices.Delete(w.running, i, i+1)
	used := w.r.Int64N(settledCost + 1)
	if !w.leased {
		used = w.r.Int64N(2 * settledCost)
	}
	w.note("%s: %d of %d used", q.key, used, q.hs[0].at%1e10)
	excess := used - settledCost
	if excess > 0 {
		w.books[q.key].spend(now(), excess)
	} else {
		for _, h := range q.hs {
			h.n += excess
		}
	}
	q.finish <- used
	synctest.Wait()
}

type inWorld struct{}

var hits int64 // decisions from leased units, in all worlds

// replicas simulates two processes that lease units, and one process without leases.
// Together they must never use more than the books allow. After the lease stores are closed,
// no units may be missing.
func replicas(t *testing.T, r *rand.Rand) int {
	w := newWorld(t, r, algorithms.FixedWindow(100+r.Int64N(1000), time.Duration(100+r.Int64N(400))*time.Millisecond).Named("l"))
	stores := []weir.Store{w.plain}
	for range 2 {
		stores = append(stores, lease.New(w.plain, lease.Options{Fraction: []float64{0, 0.5, 1}[r.IntN(3)]}))
	}
	for range 20 {
		w.sleep()
		key, i := w.key(), 1+r.IntN(len(stores)-1)
		for range 1 + r.IntN(200) {
			w.decisions++
			time.Sleep(time.Duration(r.Int64N(2000)) * time.Microsecond)
			store, cost := stores[i], 1+r.Int64N(2)
			if r.IntN(20) == 0 { // the process without leases takes all units that are left
				store, cost = w.plain, max(1, take(t, w.plain, 0, w.charges(key, 0)...).Decisions[0].Remaining)
			}
			may, _ := w.books[key].fits(now(), cost)
			tx := take(t, store, 0, w.charges(key, cost)...)
			if tx.Allowed() {
				w.books[key].spend(now(), cost)
			}
			if tx.Allowed() && !may {
				w.fail("%s: allowed beyond the limit", key)
			}
		}
	}
	for _, s := range stores[1:] {
		if err := s.(*lease.Store).Close(t.Context()); err != nil {
			w.fail("%v", err)
		}
		hits += s.(*lease.Store).Stats().Hits
	}
	w.remains()
	w.idle()
	return w.decisions
}

// A pauseWorld sends requests to a partner whose answers pause some keys.
type pauseWorld struct {
	*world
	client        *http.Client
	paused, since map[string]int64 // until when and since when a key is paused
	underWay      map[string]int   // requests that have not returned, by key
	patient       bool             // no caller gives up; a slot that was given up may delay others until its instant
	cancels       []context.CancelFunc
	wg            sync.WaitGroup
}

// pauses sends requests whose responses pause the keys, and whose callers sometimes give
// up. No request may be sent beyond the limit or during a pause, a request that fits must
// be sent at once, and no units may be lost.
func pauses(t *testing.T, r *rand.Rand) int {
	const most = 40 * time.Second
	w := &pauseWorld{world: newWorld(t, r, exactLimits(r)...), paused: map[string]int64{}, since: map[string]int64{}, underWay: map[string]int{}}
	l := must(t, w.plain, weir.Options{MaxWait: most, Rules: []weir.Rule{{Name: "r", Key: weir.ByHeader("Key"), Limits: w.limits, ForKey: noPolicy}}})
	w.client = &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTrip(w.answer), MaxPause: 30 * time.Second})}
	w.patient = r.IntN(2) == 0
	for range 40 {
		w.step()
	}
	w.wg.Wait()
	for _, cancel := range w.cancels {
		cancel()
	}
	w.idle()
	time.Sleep(most + 20*time.Second)
	w.remains()
	return w.decisions
}

// answer responds as the partner. It compares each request with the books, and asks for a
// pause once in six times.
func (w *pauseWorld) answer(q *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	key := q.Header.Get("Key")
	w.note("%s: sent", key)
	w.decisions++
	if may, _ := w.books[key].fits(now(), 1); !may || now() > w.since[key] && now() < w.paused[key] {
		w.Errorf("%v\n%s\n%s is sent, fits %v, %d µs before the pause is over", w.limits, strings.Join(w.log, "\n"), key, may, w.paused[key]-now())
	}
	w.books[key].spend(now(), 1)
	res := &http.Response{StatusCode: 200, Header: http.Header{}, Body: http.NoBody, Request: q}
	if w.r.IntN(6) == 0 {
		wait := 1 + w.r.Int64N(40)
		res.StatusCode = []int{429, 503}[w.r.IntN(2)]
		res.Header.Set("Retry-After", strconv.FormatInt(wait, 10))
		if end := now() + min(wait, 30)*1e6; end > w.paused[key] {
			w.paused[key], w.since[key] = end, now() // requests that are sent at this instant may have been sent before the pause
		}
		w.note("%s: paused for %d s", key, wait)
	}
	return res, nil
}

// step may make a caller give up. Then it sends a request, and checks that the request goes
// out at once if it must.
func (w *pauseWorld) step() {
	w.Helper()
	w.mu.Lock()
	d := time.Duration(w.r.Int64N(3e6)) * time.Microsecond
	key, giveUp := w.key(), !w.patient && w.r.IntN(4) == 0
	w.mu.Unlock()
	time.Sleep(d)
	if giveUp && len(w.cancels) > 0 {
		w.mu.Lock() // guards r, which the answer to another request may use meanwhile
		abandon := w.cancels[w.r.IntN(len(w.cancels))]
		w.mu.Unlock()
		abandon()
	}
	synctest.Wait()
	ctx, cancel := context.WithCancel(w.Context())
	w.cancels = append(w.cancels, cancel)
	_, must := w.books[key].fits(now(), 1)
	if w.underWay[key] == 0 && len(w.limits) == 1 && w.limits[0].Name == "log" { // a fixed window in which slots were reserved may have fewer units left
		least, _ := w.books[key][0].free(now())
		if left := take(w, w.plain, 0, w.charges(key, 0)...).Decisions[0].Remaining; left != least && left > 0 { // Remaining is 0 until the instant of a cancelled slot
			w.fail("%s: got %d remaining, want %d", key, left, least)
		}
	}
	must = must && w.patient && w.underWay[key] == 0 && now() >= w.paused[key]
	w.underWay[key]++
	before := w.decisions
	w.wg.Go(func() { w.send(ctx, key) })
	synctest.Wait()
	w.mu.Lock()
	sent := w.decisions > before
	w.mu.Unlock()
	if must && !sent {
		w.fail("%s is not sent although it fits", key)
	}
}

// send sends a request for a caller, which may give up or be refused.
func (w *pauseWorld) send(ctx context.Context, key string) {
	defer func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.underWay[key]--
	}()
	q, _ := http.NewRequestWithContext(ctx, "GET", "http://192.0.2.1/", nil)
	q.Header.Set("Key", key)
	if res, err := w.client.Do(q); err == nil {
		res.Body.Close()
	} else if limited := new(quota.LimitedError); !errors.As(err, &limited) && !errors.Is(err, context.Canceled) {
		w.Errorf("%v", err)
	}
}

// TestLayers does for reservations, settled costs, leases and pauses what TestOracle does
// for algorithms: it compares the decisions of random schedules with a slow definition,
// books of what was spent and when. A layer with leases goes on until a lease was used, for at
// most five times its part of the decisions.
func TestLayers(t *testing.T) {
	decisions := rounds.N(10_000, 50_000)
	for _, layer := range []struct {
		name string
		run  func(*testing.T, *rand.Rand) int
	}{
		{"slots", slots}, {"settle", settlements}, {"lease", replicas}, {"settle over lease", leasedSettlements}, {"transport", pauses},
	} {
		t.Run(layer.name, func(t *testing.T) {
			hits = 0
			lease := strings.Contains(layer.name, "lease")
			for n := 0; n < decisions/5 || lease && hits == 0 && n < decisions; {
				seed := rand.Uint64()
				synctest.Test(t, func(t *testing.T) {
					time.Sleep(time.Duration(seed%3600e6) * time.Microsecond)
					n += layer.run(t, rand.New(rand.NewPCG(seed, 15)))
				})
				if t.Failed() {
					t.Fatalf("seed %d", seed)
				}
			}
			if lease && hits == 0 {
				t.Error("no lease was used")
			}
		})
	}
}

// A panickingLog panics at each line.
type panickingLog struct{ slog.Handler }

func (l panickingLog) Handle(context.Context, slog.Record) error { panic("logger") }

// TestHooksPanic: after a panic in any function of the user no unit is in flight, in shadow neither,
// and the one place of MaxWaiting is free.
func TestHooksPanic(t *testing.T) {
	armed := false
	boom := func() {
		if armed {
			panic("boom")
		}
	}
	inShadow := func(e weir.Event) {
		if e.Shadow {
			boom()
		}
	}
	type setup func(o *weir.Options, busy, tokens *weir.Rule)
	for name, hook := range map[string]setup{
		"Observe":           func(o *weir.Options, _, _ *weir.Rule) { o.Observe = func(weir.Event) { boom() } },
		"Observe of shadow": func(o *weir.Options, _, _ *weir.Rule) { o.Observe = inShadow },
		"PartitionKey": func(o *weir.Options, busy, _ *weir.Rule) {
			o.Headers = headers.IETF
			busy.PartitionKey = func(string) string { boom(); return "" }
		},
		"Key": func(_ *weir.Options, _, tokens *weir.Rule) {
			tokens.Key = func(*http.Request) (string, bool) { boom(); return "k", true }
		},
		"Policy": func(_ *weir.Options, _, tokens *weir.Rule) {
			tokens.Policy = func(*http.Request) weir.Policy { boom(); return weir.Policy{} }
		},
		"ForKey": func(_ *weir.Options, _, tokens *weir.Rule) {
			tokens.ForKey = func(string) weir.Policy { boom(); return weir.Policy{} }
		},
		"Cost": func(_ *weir.Options, _, tokens *weir.Rule) {
			tokens.Cost = func(*http.Request) int64 { boom(); return 1 }
		},
		"Settle": func(_ *weir.Options, _, tokens *weir.Rule) {
			tokens.Settle = func(weir.Outcome) int64 { boom(); return 1 }
		},
		"Settle, PartitionKey": func(o *weir.Options, busy, tokens *weir.Rule) {
			o.Headers = headers.IETF
			busy.PartitionKey = func(string) string { boom(); return "" }
			tokens.Settle = weir.RefundErrors
		},
		"OnError": func(o *weir.Options, _, tokens *weir.Rule) {
			tokens.Policy = func(*http.Request) weir.Policy {
				if armed {
					return weir.Limited(weir.Limit{})
				}
				return weir.Policy{}
			}
			o.OnError = func(*http.Request, error) error { boom(); return nil }
		},
		"OnLimited": func(o *weir.Options, _, tokens *weir.Rule) {
			tokens.Policy = func(*http.Request) weir.Policy {
				if armed {
					return weir.Denied()
				}
				return weir.Policy{}
			}
			o.OnLimited = http.HandlerFunc(func(http.ResponseWriter, *http.Request) { boom() })
		},
	} {
		for way, serve := range map[string]func(l *weir.Limiter) error{
			"Handler": func(l *weir.Limiter) error {
				w := do(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), ask("/", ""))
				if w.StatusCode != 200 {
					return errors.New(w.Status)
				}
				return nil
			},
			"Admit": func(l *weir.Limiter) error {
				a, err := l.Admit(ask("/", ""))
				if err == nil {
					defer a.Done(weir.Outcome{})
					a.WriteHeaders(http.Header{})
				}
				return err
			},
			"Transport": func(l *weir.Limiter) error {
				p, err := l.Transport(weir.TransportOptions{Base: roundTripper(tripResult{res: &http.Response{StatusCode: 200, Body: http.NoBody}}.answer)})
				if err != nil {
					t.Fatal(err)
				}
				res, err := p.RoundTrip(ask("/", ""))
				if err == nil {
					res.Body.Close()
				}
				return err
			},
		} {
			t.Run(way+", "+name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					store, lease := memory(), time.Hour
					busy := weir.Rule{Name: "busy", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, lease)}}
					shadow := weir.Rule{Name: "shadow", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(1, lease)}, Enforce: weir.Percent(0)}
					tokens := weir.Rule{Name: "tokens", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(100, time.Hour)}}
					o := weir.Options{MaxWait: time.Minute, MaxWaiting: 1, Logger: slog.New(slog.DiscardHandler)}
					hook(&o, &busy, &tokens)
					o.Rules = []weir.Rule{busy, shadow, tokens}
					l := must(t, store, o)
					for range 3 {
						func() {
							defer func() { armed = false; _ = recover() }()
							armed = true
							_ = serve(l)
						}()
					}
					for _, rule := range []string{"busy", "shadow"} {
						peek, err := quota.Peek(t.Context(), store, quota.Charge{Rule: rule, Limit: algorithms.InFlight(1, lease)})
						if err != nil || peek.Decisions[0].Remaining != 1 {
							t.Errorf("%d left under %s, %v", peek.Decisions[0].Remaining, rule, err)
						}
					}
					a, err := l.Admit(ask("/", ""))
					if err != nil {
						t.Errorf("%v", err)
						return
					}
					time.AfterFunc(time.Second, func() { a.Done(weir.Outcome{}) })
					if err := serve(l); err != nil {
						t.Errorf("the next request cannot wait: %v", err)
					}
				})
			})
		}
	}
}

// TestLoggerPanics: a Logger that panics after a request was charged leaves nothing in flight.
func TestLoggerPanics(t *testing.T) {
	store := memory()
	busy := algorithms.InFlight(9, time.Hour)
	l := must(t, store, weir.Options{Logger: slog.New(panickingLog{slog.NewTextHandler(io.Discard, nil)}), Rules: []weir.Rule{
		{Name: "busy", Key: weir.Global(), Limits: []weir.Limit{busy}}}})
	h := l.Handler(l.Handler(http.NotFoundHandler())) // which is logged
	func() {
		defer func() {
			if recover() != "logger" {
				t.Error("nothing was logged")
			}
		}()
		h.ServeHTTP(httptest.NewRecorder(), ask("/", ""))
	}()
	if peek, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "busy", Limit: busy}); err != nil || peek.Decisions[0].Remaining != 9 {
		t.Errorf("%d left, %v", peek.Decisions[0].Remaining, err)
	}
}
