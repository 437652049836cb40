package weir_test

import (
	"context"
	"errors"
	"fmt"
	"io"
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
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

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

// TestWaitForUnitRiders: a request that waits for a unit strikes once, if it is refused, and a ban
// that begins meanwhile refuses it when its turn comes. A rule in shadow holds its unit, and
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

// TestWaitForUnitAdmit: Admit waits for a unit, and Done tells the next. An error of the store
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
