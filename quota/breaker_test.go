package quota_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestBreakerConforms: a closed breaker passes the tests of a store.
func TestBreakerConforms(t *testing.T) {
	conforms(t, func() quota.Store { return quota.Breaker(memory(), quota.BreakerOptions{}) })
}

type breakerStep struct {
	at     time.Duration
	ctx    context.Context
	tx     *quota.Transaction
	says   error // what the store returns if it is called
	called bool  // whether the store is called
	open   bool  // whether the breaker is open afterwards
	change string
}

// TestBreaker: a breaker opens, probes and closes as BreakerOptions says.
func TestBreaker(t *testing.T) {
	alive := t.Context()
	gone, hangUp := context.WithCancel(alive)
	hangUp()
	late, cancel := context.WithDeadline(alive, time.Now().Add(-time.Hour))
	defer cancel()
	limit := algorithms.GCRA(10, time.Second)
	good, bad := once(limit), once(quota.Limit{})
	const ms = time.Millisecond
	for _, c := range []struct {
		name     string
		failures int
		cooldown time.Duration
		steps    []breakerStep
	}{
		{"the default is 5 in a row and 1 s", 0, 0, []breakerStep{
			{0, alive, good, errDown, true, false, ""},
			{25 * ms, alive, good, errDown, true, false, ""},
			{50 * ms, alive, good, errDown, true, false, ""},
			{75 * ms, alive, good, errDown, true, false, ""},
			{80 * ms, alive, good, nil, true, false, ""}, // a success ends the row of failures
			{100 * ms, alive, good, errDown, true, false, ""},
			{125 * ms, alive, good, errDown, true, false, ""},
			{150*ms - 1, alive, good, errDown, true, false, ""}, // within 25 ms of the last failure, so it does not count
			{150 * ms, alive, good, errDown, true, false, ""},
			{175 * ms, alive, good, errDown, true, false, ""},
			{175 * ms, alive, good, errDown, true, false, ""},
			{200 * ms, alive, good, errDown, true, true, "open: " + errDown.Error()},
			{200 * ms, alive, good, nil, false, true, ""},
			{1200*ms - 1, alive, good, nil, false, true, ""},
			{1200 * ms, alive, good, nil, true, false, "closed"},
			{1200 * ms, alive, good, errDown, true, false, ""},
		}},
		{"a probe that fails begins another cooldown", 1, 100 * ms, []breakerStep{
			{0, alive, good, errDown, true, true, "open: " + errDown.Error()},
			{99 * ms, alive, good, nil, false, true, ""},
			{150 * ms, alive, good, errDown, true, true, ""},
			{249 * ms, alive, good, nil, false, true, ""},
			{250 * ms, alive, good, errDown, true, true, ""},
			{350 * ms, alive, good, nil, true, false, "closed"},
			{350 * ms, alive, good, errDown, true, true, "open: " + errDown.Error()},
		}},
		{"errors that say nothing about the store neither count nor end the row of failures", 2, 100 * ms, []breakerStep{
			{0, alive, good, errDown, true, false, ""},
			{0, gone, good, context.Canceled, true, false, ""},
			{0, gone, good, errDown, true, false, ""},
			{0, late, good, context.DeadlineExceeded, true, false, ""},
			{0, deadlineOnly{alive}, good, errDown, true, false, ""},
			{0, alive, bad, errDown, true, false, ""},
			{0, alive, good, fmt.Errorf("twice: %w", quota.ErrDuplicate), true, false, ""},
			{0, alive, good, fmt.Errorf("no Lua: %w", errors.ErrUnsupported), true, false, ""},
			{0, alive, good, fmt.Errorf("too much: %w", quota.ErrBusy), true, false, ""},
			{25 * ms, alive, good, context.DeadlineExceeded, true, true, "open: context deadline exceeded"}, // the deadline of the store, not the caller's
		}},
		{"a success counts, whatever the context", 2, 100 * ms, []breakerStep{
			{0, alive, good, errDown, true, false, ""},
			{0, gone, good, nil, true, false, ""},
			{0, alive, good, errDown, true, false, ""},
			{25 * ms, alive, good, errDown, true, true, "open: " + errDown.Error()},
			{125 * ms, gone, good, nil, true, false, "closed"},
		}},
		{"a probe that says nothing lets the next request probe", 1, 100 * ms, []breakerStep{
			{0, alive, good, errDown, true, true, "open: " + errDown.Error()},
			{100 * ms, gone, good, context.Canceled, true, true, ""},
			{100 * ms, late, good, context.DeadlineExceeded, true, true, ""},
			{100 * ms, deadlineOnly{alive}, good, errDown, true, true, ""},
			{100 * ms, alive, bad, errDown, true, true, ""},
			{100 * ms, alive, good, quota.ErrDuplicate, true, true, ""},
			{100 * ms, alive, good, nil, true, false, "closed"},
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				walkBreaker(t, quota.BreakerOptions{Failures: c.failures, Cooldown: c.cooldown}, c.steps)
			})
		})
	}
}

// walkBreaker sends the request of each step to a breaker, and compares what the breaker
// does with what the step wants.
func walkBreaker(t *testing.T, o quota.BreakerOptions, steps []breakerStep) {
	var (
		says   error
		called bool
		change string
	)
	o.OnChange = func(open bool, err error) {
		if change = "closed"; open {
			change = fmt.Sprint("open: ", err)
		} else if err != nil {
			t.Errorf("OnChange(false, %v), want nil", err)
		}
	}
	b := quota.Breaker(storeFunc(func(context.Context, *quota.Transaction) error { called = true; return says }), o)
	start := time.Now()
	var cause error
	var refused int64
	for i, s := range steps {
		time.Sleep(s.at - time.Since(start))
		says, called, change = s.says, false, ""
		err := b.Take(s.ctx, s.tx)
		if called != s.called || isOpen(b) != s.open || change != s.change {
			t.Errorf("step %d at %v: called %v, open %v, change %q; want %v, %v, %q", i, s.at, called, isOpen(b), change, s.called, s.open, s.change)
		}
		if s.called && err != s.says {
			t.Errorf("step %d at %v: got %v, want the store's %v", i, s.at, err, s.says)
		}
		if s.called && s.open && s.says != nil {
			cause = s.says
		}
		if s.called {
			continue
		}
		refused++
		if !errors.Is(err, quota.ErrOpen) || !errors.Is(err, cause) {
			t.Errorf("step %d at %v: got %v, want ErrOpen for %v", i, s.at, err, cause)
		}
	}
	if got := b.Stats().Refused; got != refused {
		t.Errorf("Refused: got %d, want %d", got, refused)
	}
}

// deadlineOnly is a context whose deadline has passed but whose Err is still nil.
type deadlineOnly struct{ context.Context }

func (deadlineOnly) Deadline() (time.Time, bool) { return time.Now(), true }

// A slowStore takes 50 ms to answer or to fail, and counts its calls.
type slowStore struct {
	called, inside, most atomic.Int64
	down                 atomic.Bool
}

func (s *slowStore) Take(ctx context.Context, _ *quota.Transaction) error {
	s.called.Add(1)
	s.most.Store(max(s.most.Load(), s.inside.Add(1)))
	defer s.inside.Add(-1)
	select {
	case <-time.After(50 * time.Millisecond):
	case <-ctx.Done():
		return ctx.Err()
	}
	if s.down.Load() {
		return errDown
	}
	return nil
}

// TestBreakerProbe: if many requests come at once after the cooldown of an open breaker,
// exactly one of them is the probe. The same holds after a probe whose caller hung up.
func TestBreakerProbe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var refused, changes atomic.Int64
		var behind slowStore
		behind.down.Store(true)
		b := quota.Breaker(&behind, quota.BreakerOptions{Failures: 1, OnChange: func(bool, error) { changes.Add(1) }})
		flood := func(ctx context.Context) (n int64) {
			behind.called.Store(0)
			behind.inside.Store(0)
			behind.most.Store(0)
			refused.Store(0)
			together(64, func(int) {
				if errors.Is(b.Take(ctx, once(algorithms.GCRA(10, time.Second))), quota.ErrOpen) {
					refused.Add(1)
				}
			})
			return behind.called.Load()
		}
		check := func(what string, ctx context.Context, wantCalled, wantChanges int64, open bool) {
			t.Helper()
			changes.Store(0)
			if got := flood(ctx); got != wantCalled || refused.Load() != 64-wantCalled {
				t.Errorf("%s: %d called, %d refused; want %d, %d", what, got, refused.Load(), wantCalled, 64-wantCalled)
			}
			if changes.Load() != wantChanges || isOpen(b) != open {
				t.Errorf("%s: %d changes, open %v; want %d, %v", what, changes.Load(), isOpen(b), wantChanges, open)
			}
			if wantCalled == 1 && behind.most.Load() != 1 {
				t.Errorf("%s: %d probes at once, want 1", what, behind.most.Load())
			}
		}
		check("closed", t.Context(), 64, 1, true)
		check("open", t.Context(), 0, 0, true)
		time.Sleep(time.Second)
		check("probe fails", t.Context(), 1, 0, true)
		time.Sleep(time.Second)
		brief, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		check("probe's caller hangs up", brief, 1, 0, true)
		behind.down.Store(false)
		check("probe succeeds", t.Context(), 1, 1, false)
		check("closed again", t.Context(), 64, 0, false)
	})
}

// TestBreakerLate: the result of a call that began before the breaker changed does not
// count after the change.
func TestBreakerLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		// The rule of a request says how long the store takes and what it returns.
		script := map[string]struct {
			takes time.Duration
			says  error
		}{
			"fails":        {0, errDown},
			"is well":      {0, nil},
			"well at 10 s": {10 * time.Second, nil},
			"down at 10 s": {10 * time.Second, errDown},
			"down at 40 s": {40 * time.Second, errDown},
		}
		b := quota.Breaker(storeFunc(func(_ context.Context, tx *quota.Transaction) error {
			s := script[tx.Charges[0].Rule]
			time.Sleep(s.takes)
			return s.says
		}), quota.BreakerOptions{Failures: 2, Cooldown: 20 * time.Second})
		ask := func(rule string) {
			tx := once(algorithms.GCRA(10, time.Second))
			tx.Charges[0].Rule = rule
			b.Take(t.Context(), tx)
		}
		var wg sync.WaitGroup
		for _, rule := range []string{"well at 10 s", "down at 10 s", "down at 40 s", "down at 40 s"} {
			wg.Go(func() { ask(rule) })
		}
		synctest.Wait()
		ask("fails")
		time.Sleep(25 * time.Millisecond)
		ask("fails")
		time.Sleep(15 * time.Second)
		if !isOpen(b) {
			t.Error("a success that began before the breaker opened has closed it")
		}
		time.Sleep(5 * time.Second)
		ask("is well")
		if isOpen(b) {
			t.Error("after 20 s the probe did not close the breaker: a late failure began another cooldown")
		}
		wg.Wait()
		if isOpen(b) {
			t.Error("failures that began before the breaker closed have opened it")
		}
	})
}

// TestBreakerPanic: after a probe that panics or ends its goroutine, the next request is
// the probe.
func TestBreakerPanic(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		trouble := func() error { return errDown }
		b := quota.Breaker(storeFunc(func(context.Context, *quota.Transaction) error { return trouble() }), quota.BreakerOptions{Failures: 1})
		tx := once(algorithms.GCRA(10, time.Second))
		b.Take(t.Context(), tx)
		time.Sleep(time.Second)
		for _, trouble = range []func() error{func() error { panic("a bug") }, func() error { runtime.Goexit(); return nil }} {
			var wg sync.WaitGroup
			wg.Go(func() {
				defer func() { recover() }()
				b.Take(t.Context(), tx)
			})
			wg.Wait()
		}
		trouble = func() error { return nil }
		if err := b.Take(t.Context(), tx); err != nil || isOpen(b) {
			t.Errorf("after two probes that did not return: got %v, open %v; want a probe that closes", err, isOpen(b))
		}
	})
}

// TestBreakerHook: OnChange may call methods of the breaker.
func TestBreakerHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b quota.Store
		var says error
		var seen []string
		tx := once(algorithms.GCRA(10, time.Second))
		b = quota.Breaker(storeFunc(func(context.Context, *quota.Transaction) error { return says }), quota.BreakerOptions{
			Failures: 1,
			OnChange: func(open bool, _ error) { seen = append(seen, fmt.Sprint(open, isOpen(b), b.Take(t.Context(), tx))) },
		})
		says = errDown
		b.Take(t.Context(), tx)
		says = nil
		time.Sleep(time.Second)
		b.Take(t.Context(), tx)
		want := []string{"true true quota: the breaker is open: " + errDown.Error(), "false false <nil>"}
		if strings.Join(seen, "\n") != strings.Join(want, "\n") {
			t.Errorf("got %q, want %q", seen, want)
		}
	})
}

// TestBreakerBlip: a store that fails for 60 ms costs no Cooldown: requests are decided
// again when it recovers, however many have failed.
func TestBreakerBlip(t *testing.T) {
	for name, takes := range map[string]time.Duration{"stalls": 50 * time.Millisecond, "refuses": 0} {
		synctest.Test(t, func(t *testing.T) {
			b := quota.Breaker(failsFor60ms(takes), quota.BreakerOptions{})
			var wg sync.WaitGroup
			var undecided atomic.Int64
			for range 2000 {
				wg.Go(func() {
					if b.Take(t.Context(), once(algorithms.GCRA(10, time.Second))) != nil {
						undecided.Add(1)
					}
				})
				time.Sleep(time.Millisecond)
			}
			wg.Wait()
			if got := undecided.Load(); got > 60 {
				t.Errorf("a store that %s for 60 ms: got %d undecided of 1,000 a second, want 60 at most", name, got)
			}
		})
	}
}

// failsFor60ms returns a store that is down for 60 ms, beginning 500 ms from now. A call in
// these 60 ms takes the given time and fails. If the store recovers during the call, the
// call succeeds at that instant.
func failsFor60ms(takes time.Duration) storeFunc {
	const ms = time.Millisecond
	start := time.Now()
	return func(context.Context, *quota.Transaction) error {
		since := time.Since(start)
		if since < 500*ms || since >= 560*ms {
			return nil
		}
		if left := 560*ms - since; takes > left { // the store recovers before the call would fail
			time.Sleep(left)
			return nil
		}
		time.Sleep(takes)
		return errDown
	}
}

// TestDegradingIsSaid: Breaker and Fallback log one line when an outage begins, with the
// cause, and one line when the outage ends, however many requests there are.
func TestDegradingIsSaid(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var b strings.Builder
		logger := slog.New(slog.NewTextHandler(&b, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		}}))
		var says error
		store := quota.Fallback(
			quota.Breaker(storeFunc(func(context.Context, *quota.Transaction) error { return says }), quota.BreakerOptions{Logger: logger}),
			memory(), quota.FallbackOptions{Logger: logger})
		for _, says = range []error{nil, errDown, nil, errDown, nil} {
			for range 500 { // 5 s
				if err := store.Take(t.Context(), once(algorithms.GCRA(1000, time.Second))); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
		}
		outage := `level=WARN msg="quota: primary store failed" err="dial tcp 127.0.0.1:6379: connection refused" cause=error effect="the secondary store is used"
level=WARN msg="quota: breaker opened" err="dial tcp 127.0.0.1:6379: connection refused" cause=error effect="the store is called again after Cooldown"
level=INFO msg="quota: breaker closed" after=5s refused=495
level=INFO msg="quota: primary store works again" after=6.11s decided=512
`
		if want := outage + outage; b.String() != want {
			t.Errorf("got\n%swant\n%s", b.String(), want)
		}
	})
}

// TestConstructorsRefuse: the decorators panic on bad arguments, with a message that names
// the mistake.
func TestConstructorsRefuse(t *testing.T) {
	same := memory()
	var unset *memstore.Store // a variable that was declared, and never set
	for _, c := range []struct {
		want string
		f    func()
	}{
		{"quota: Breaker: the store is nil", func() { quota.Breaker(nil, quota.BreakerOptions{}) }},
		{"quota: Breaker: Failures is -1; want at least 0", func() { quota.Breaker(memory(), quota.BreakerOptions{Failures: -1}) }},
		{"quota: Breaker: Cooldown is -1s; want at least 0", func() { quota.Breaker(memory(), quota.BreakerOptions{Cooldown: -time.Second}) }},
		{"quota: Hybrid: the store is nil", func() { quota.Hybrid(nil, quota.HybridOptions{}) }},
		{"quota: Hybrid: MaxKeys is -1; want at least 0", func() { quota.Hybrid(memory(), quota.HybridOptions{MaxKeys: -1}) }},
		{"quota: Coalesce: the store is nil", func() { quota.Coalesce(nil) }},
		{"quota: Fallback: primary is nil", func() { quota.Fallback(nil, memory(), quota.FallbackOptions{}) }},
		{"quota: Fallback: secondary is nil", func() { quota.Fallback(memory(), nil, quota.FallbackOptions{}) }},
		{"quota: Fallback: secondary is primary; want another store", func() { quota.Fallback(same, same, quota.FallbackOptions{}) }},
		{"quota: Share: the store is nil", func() { quota.Share(nil, 2) }},
		{"quota: Breaker: the store is nil", func() { quota.Breaker(unset, quota.BreakerOptions{}) }},
		{"quota: Hybrid: the store is nil", func() { quota.Hybrid(unset, quota.HybridOptions{}) }},
		{"quota: Coalesce: the store is nil", func() { quota.Coalesce(unset) }},
		{"quota: Fallback: primary is nil", func() { quota.Fallback(unset, memory(), quota.FallbackOptions{}) }},
		{"quota: Fallback: secondary is nil", func() { quota.Fallback(memory(), unset, quota.FallbackOptions{}) }},
		{"quota: Share: the store is nil", func() { quota.Share(unset, 2) }},
		{"quota: Share: replicas is 0; want at least 1", func() { quota.Share(memory(), 0) }},
	} {
		func() {
			defer func() {
				if got := recover(); got != c.want {
					t.Errorf("got panic %v, want %q", got, c.want)
				}
			}()
			c.f()
		}()
	}
}

// decorated returns a store that does nothing, which is the baseline, and stores that
// Breaker, Fallback and Share make.
func decorated() []struct {
	name  string
	store quota.Store
} {
	well := storeFunc(func(context.Context, *quota.Transaction) error { return nil })
	down := storeFunc(func(context.Context, *quota.Transaction) error { return errDown })
	open := quota.Breaker(down, quota.BreakerOptions{Failures: 1, Cooldown: time.Hour})
	open.Take(context.Background(), once(algorithms.GCRA(10, time.Second)))
	return []struct {
		name  string
		store quota.Store
	}{
		{"baseline", well},
		{"closed", quota.Breaker(well, quota.BreakerOptions{})},
		{"open", open},
		{"primary", quota.Fallback(well, down, quota.FallbackOptions{})},
		{"secondary", quota.Fallback(open, well, quota.FallbackOptions{})},
		{"share", quota.Share(well, 4)},
		{"share of memory", quota.Share(memory(), 4)},
	}
}

// TestDecoratedAllocations: Breaker, Fallback and Share allocate no memory for a decision.
func TestDecoratedAllocations(t *testing.T) {
	tx := once(algorithms.GCRA(1000, time.Second))
	for _, d := range decorated() {
		d.store.Take(t.Context(), tx)
		if got := testing.AllocsPerRun(1000, func() { d.store.Take(t.Context(), tx) }); got != 0 && !weirtest.Race { // the race detector empties pools at random
			t.Errorf("%s: got %v allocations, want 0", d.name, got)
		}
	}
}

// BenchmarkDecorated measures Breaker, Fallback and Share. The baseline is a store that does
// nothing.
func BenchmarkDecorated(b *testing.B) {
	for _, d := range decorated() {
		b.Run(d.name, func(b *testing.B) {
			tx, ctx := once(algorithms.GCRA(1000, time.Second)), context.Background()
			b.ReportAllocs()
			for b.Loop() {
				d.store.Take(ctx, tx)
			}
		})
		b.Run(d.name+"/parallel", func(b *testing.B) {
			b.ReportAllocs()
			b.RunParallel(func(pb *testing.PB) {
				tx, ctx := once(algorithms.GCRA(1000, time.Second)), context.Background()
				for pb.Next() {
					d.store.Take(ctx, tx)
				}
			})
		})
	}
}

// Failures is 1, so the breaker opens at the first failure and does not call the store again
// before Cooldown is over.
func ExampleBreaker() {
	down := storeFunc(func(context.Context, *quota.Transaction) error { return errors.New("connection refused") })
	store := quota.Breaker(down, quota.BreakerOptions{
		Failures: 1,
		OnChange: func(open bool, err error) { fmt.Println("open:", open, "because of:", err) },
		Logger:   slog.New(slog.DiscardHandler),
	})
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: algorithms.GCRA(10, time.Minute), Cost: 1}}}
	for range 3 {
		err := store.Take(context.Background(), &tx)
		fmt.Println(errors.Is(err, quota.ErrOpen), err)
	}
	fmt.Printf("%+v\n", store.Stats())
	// Output:
	// open: true because of: connection refused
	// false connection refused
	// true quota: the breaker is open: connection refused
	// true quota: the breaker is open: connection refused
	// {Open:true Refused:2}
}

// A pairStore has a server for each key, of which some are down.
type pairStore struct {
	quota.Store
	down map[string]bool
}

func (s *pairStore) Server(t *quota.Transaction) string { return t.Charges[0].Key }

func (s *pairStore) Take(ctx context.Context, t *quota.Transaction) error {
	if s.down[t.Charges[0].Key] {
		return errDown
	}
	return s.Store.Take(ctx, t)
}

// TestBreakerServers: each server has its own breaker, and a change is the first that opens or the last
// that closes. Coalesce in between names the same servers.
func TestBreakerServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pairStore{memory(), map[string]bool{"a": true, "b": true}}
		var changes []bool
		b := quota.Breaker(quota.Coalesce(s), quota.BreakerOptions{
			Failures: 1, OnChange: func(open bool, _ error) { changes = append(changes, open) },
		})
		check := func(key string, want error, open bool) {
			t.Helper()
			tx := once(algorithms.GCRA(10, time.Second))
			tx.Charges[0].Key = key
			if err := b.Take(t.Context(), tx); !errors.Is(err, want) || b.Stats().Open != open {
				t.Errorf("%s: got %v and open %v, want %v and open %v", key, err, b.Stats().Open, want, open)
			}
		}
		check("a", errDown, true)
		check("a", quota.ErrOpen, true)
		check("b", errDown, true)
		check("b", quota.ErrOpen, true)
		check("c", nil, true)
		check("", nil, true) // not known
		time.Sleep(time.Second)
		clear(s.down)
		check("a", nil, true)
		check("b", nil, false)
		if !slices.Equal(changes, []bool{true, false}) {
			t.Errorf("got the changes %v, want one that opens and one that closes", changes)
		}
	})
}

// TestBreakerOfSeveralServers: the breaker of several servers, which get no probe together while package stack
// divides their calls, closes when each of them has answered a call, and stays open as long as one has not.
func TestBreakerOfSeveralServers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &pairStore{memory(), map[string]bool{"a": true, "a b": true}}
		b := quota.Breaker(s, quota.BreakerOptions{Failures: 2})
		check := func(server string, want error, open bool) {
			t.Helper()
			tx := once(algorithms.GCRA(10, time.Second))
			tx.Charges[0].Key = server
			if err := b.Take(t.Context(), tx); !errors.Is(err, want) || b.Stats().Open != open {
				t.Errorf("%s: got %v and open %v, want %v and open %v", server, err, b.Stats().Open, want, open)
			}
		}
		check("a b", errDown, false)
		time.Sleep(time.Second)
		check("a b", errDown, true)
		check("b", nil, true)
		for range 5 {
			time.Sleep(3 * time.Second)
			check("c", nil, true)
		}
		check("a", errDown, true)
		clear(s.down)
		time.Sleep(time.Second)
		check("a", nil, false)
		check("a b", nil, false)
	})
}
