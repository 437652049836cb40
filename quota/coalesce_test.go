package quota_test

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// A far store is a store in memory, each call of which takes the time of a round trip,
// however many transactions it has. A call that comes while gate is set waits until gate is
// closed.
type far struct {
	*memstore.Store
	trip  time.Duration
	gate  atomic.Pointer[chan struct{}]
	fail  func(t *quota.Transaction) error // nil: nothing fails
	calls atomic.Int64
	most  atomic.Int64 // the most transactions in one call
}

func newFar(trip time.Duration) *far {
	return &far{Store: memstore.New(memstore.Options{}), trip: trip}
}

// hang makes calls wait until the returned function is called.
func (f *far) hang() (release func()) {
	gate := make(chan struct{})
	f.gate.Store(&gate)
	return func() {
		f.gate.CompareAndSwap(&gate, nil)
		close(gate)
	}
}

func (f *far) travel(ctx context.Context, n int) error {
	f.calls.Add(1)
	f.most.Store(max(f.most.Load(), int64(n)))
	if gate := f.gate.Load(); gate != nil {
		select {
		case <-*gate:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	time.Sleep(f.trip)
	return nil
}

func (f *far) Take(ctx context.Context, t *quota.Transaction) error {
	if err := f.travel(ctx, 1); err != nil {
		return err
	}
	return f.take(ctx, t)
}

func (f *far) take(ctx context.Context, t *quota.Transaction) error {
	if f.fail != nil {
		if err := f.fail(t); err != nil {
			return err
		}
	}
	return f.Store.Take(ctx, t)
}

func (f *far) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	errs := make([]error, len(ts))
	err := f.travel(ctx, len(ts))
	for i, t := range ts {
		if errs[i] = err; err == nil {
			errs[i] = f.take(ctx, t)
		}
	}
	return errs
}

// TestCoalesceConforms: Coalesce passes the tests of a store, with lone calls and with
// shared calls.
func TestCoalesceConforms(t *testing.T) {
	t.Run("alone", func(t *testing.T) {
		conforms(t, func() quota.Store { return quota.Coalesce(memory()) })
	})
	t.Run("joined", func(t *testing.T) {
		conforms(t, func() quota.Store { return quota.Joined(quota.Coalesce(memory())) })
	})
}

// TestCoalesceInTurn: the decisions that 128 goroutines get for one key are the decisions
// that one goroutine would get for as many requests, and the store gets many requests in
// one call.
func TestCoalesceInTurn(t *testing.T) {
	const goroutines, each, units = 128, 20, 1500
	for _, limit := range []quota.Limit{
		algorithms.FixedWindow(units, 24*time.Hour), algorithms.SlidingLog(units, 24*time.Hour), algorithms.GCRA(units, 365*24*time.Hour),
	} {
		synctest.Test(t, func(t *testing.T) {
			charge := quota.Charge{Rule: "api", Key: "hot", Limit: limit, Cost: 1}
			behind := newFar(time.Millisecond)
			store := quota.Coalesce(behind)
			var mu sync.Mutex
			var left []int64 // Remaining, or −1 for a refusal
			together(goroutines, func(int) {
				for range each {
					tx := take(t, store, 0, charge)
					had := tx.Decisions[0].Remaining
					if !tx.Allowed() {
						had = -1
					}
					mu.Lock()
					left = append(left, had)
					mu.Unlock()
				}
			})
			slices.Sort(left)
			slices.Reverse(left)
			for i, got := range left {
				want := int64(units - 1 - i)
				if got != max(-1, want) {
					t.Fatalf("%v: the %dth had %d left, want %d", limit, i, got, max(-1, want))
				}
			}
			if got, want := store.Stats(), (quota.CoalesceStats{Transactions: goroutines * each, Calls: behind.calls.Load()}); got != want {
				t.Errorf("%v: got %+v, want %+v", limit, got, want)
			}
			if n := behind.calls.Load(); n > 4*each {
				t.Errorf("%v: got %d calls for %d asks of %d goroutines, want %d at most", limit, n, goroutines*each, goroutines, 4*each)
			}
		})
	}
}

// TestCoalesceLone: a transaction that comes alone is passed to the store directly, with
// its own context.
func TestCoalesceLone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type name struct{}
		tx := once(algorithms.GCRA(10, time.Second))
		direct := false
		behind := newFar(time.Millisecond)
		store := quota.Coalesce(struct {
			storeFunc
			optional.Batcher
		}{func(ctx context.Context, got *quota.Transaction) error {
			direct = got == tx && ctx.Value(name{}) == "mine"
			return behind.Take(ctx, got)
		}, behind})
		begin := time.Now()
		if err := store.Take(context.WithValue(t.Context(), name{}, "mine"), tx); err != nil || !direct {
			t.Errorf("got %v, direct %v; want the transaction and the context handed on", err, direct)
		}
		if d := time.Since(begin); d != time.Millisecond {
			t.Errorf("took %v, want the round trip's 1ms", d)
		}
	})
}

// TestCoalesceNoBatcher: if the next store is no Batcher, it gets each transaction at once, also
// while another call is under way.
func TestCoalesceNoBatcher(t *testing.T) {
	var store quota.Store
	outer, inner := once(algorithms.GCRA(10, time.Second)), once(algorithms.GCRA(10, time.Second))
	var got []*quota.Transaction
	store = quota.Coalesce(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if got = append(got, tx); tx == outer {
			return store.Take(ctx, inner)
		}
		return nil
	}))
	if err := store.Take(t.Context(), outer); err != nil || !slices.Equal(got, []*quota.Transaction{outer, inner}) {
		t.Errorf("got error %v and transactions %p, want %p and %p", err, got, outer, inner)
	}
}

// TestCoalesceHangUp: a caller whose context ends gets the error of the context at once,
// whether its transaction has been sent or not. The other callers get their decisions, and
// Coalesce no longer uses the memory of the caller that hung up.
func TestCoalesceHangUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := newFar(0)
		store := quota.Single(quota.Coalesce(behind))
		limit := algorithms.FixedWindow(100, 24*time.Hour)
		charge := quota.Charge{Rule: "api", Key: "hot", Limit: limit, Cost: 1}
		var wg sync.WaitGroup
		for range 2 { // first a caller hangs up before its call is sent, and then another while its call is under way
			release := behind.hang()
			wg.Go(func() { take(t, store, 0, charge) })
			synctest.Wait()
			var others [3]*quota.Transaction
			for i := range others {
				wg.Go(func() { others[i] = take(t, store, 0, charge) })
				synctest.Wait()
			}
			gone := make(chan struct{})
			go func() {
				defer close(gone)
				leaveAndScribble(t, store, limit)
			}()
			synctest.Wait()
			if behind.calls.Load() > 1 {
				second := behind.hang()
				release()
				synctest.Wait() // the batch is under way
				release = second
			}
			<-gone
			release()
			wg.Wait()
			first := others[0].Decisions[0].Remaining
			for i, tx := range others {
				if got, want := tx.Decisions[0].Remaining, first-int64(i); !tx.Allowed() || got != want {
					t.Errorf("caller %d that stayed: got %+v, want %d left", i, tx.Decisions[0], want)
				}
			}
		}
		// In the first round the caller that hung up spent nothing, and each of the four
		// others spent a unit. In the second round all five spent a unit.
		if got := take(t, behind.Store, 0, quota.Charge{Rule: "api", Key: "hot", Limit: limit}).Decisions[0].Remaining; got != 91 {
			t.Errorf("got %d left of 100, want 91", got)
		}
	})
}

// leaveAndScribble asks for a unit of the key "hot", hangs up after a minute, and then
// overwrites the key and the transaction.
func leaveAndScribble(t *testing.T, store quota.Store, limit quota.Limit) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	key := []byte("hot")
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: unsafe.String(&key[0], len(key)), Limit: limit, Cost: 1}}}
	begin := time.Now()
	err := store.Take(ctx, &tx)
	if d := time.Since(begin); !errors.Is(err, context.DeadlineExceeded) || d != time.Minute {
		t.Errorf("hung up after a minute: got %v after %v, want %v", err, d, context.DeadlineExceeded)
	}
	copy(key, "xxx")
	tx.Charges[0] = quota.Charge{}
}

// An endedContext ends when its Done method is called, at which all other goroutines have stopped.
type endedContext struct{ context.Context }

func (endedContext) Done() <-chan struct{} {
	synctest.Wait()
	ended := make(chan struct{})
	close(ended)
	return ended
}

// TestCoalesceDecided: a caller whose context ends after the store has decided gets the decision.
func TestCoalesceDecided(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := quota.Joined(quota.Coalesce(memory()))
		for range 50 {
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "hot", Limit: algorithms.FixedWindow(100, time.Hour), Cost: 1}}}
			if err := store.Take(endedContext{t.Context()}, &tx); err != nil || len(tx.Decisions) != 1 {
				t.Fatalf("got %v, %v; want one decision", tx.Decisions, err)
			}
		}
	})
}

// TestCoalesceErrors: an error of a transaction reaches its caller, and an error or panic
// of a shared call reaches all of its callers. Later calls work.
func TestCoalesceErrors(t *testing.T) {
	good := quota.Charge{Rule: "api", Key: "hot", Limit: algorithms.FixedWindow(1000, 24*time.Hour), Cost: 1}
	bad, invalid := good, good
	bad.Cost, invalid.Limit = 7, quota.Limit{}
	errBad := errors.New("bad")
	synctest.Test(t, func(t *testing.T) {
		behind := newFar(0)
		mode := ""
		behind.fail = func(tx *quota.Transaction) error {
			switch {
			case mode == "panic":
				panic("oh")
			case mode == "all" || mode == "some" && tx.Charges[0].Cost == 7:
				return errBad
			}
			return nil
		}
		store := quota.Single(quota.Coalesce(behind))
		for _, c := range []struct {
			mode                     string
			lone, good, bad, invalid string // a part of the error that each transaction gets; "" if it gets none
		}{
			{"", "", "", "", "the Algorithm is nil"},
			{"some", "", "", "bad", "the Algorithm is nil"},
			{"all", "bad", "bad", "bad", "the Algorithm is nil"},
			{"panic", "on my own goroutine", "the store panicked: oh", "the store panicked: oh", "the Algorithm is nil"},
			{"", "", "", "", "the Algorithm is nil"},
		} {
			mode = c.mode
			release := behind.hang()
			charges := []quota.Charge{good, good, bad, good, invalid, bad}
			wants := []string{c.lone, c.good, c.bad, c.good, c.invalid, c.bad}
			errs := make([]error, len(charges))
			var wg sync.WaitGroup
			for i := range charges {
				wg.Go(func() { errs[i] = takeOrPanic(t.Context(), store, charges[i]) })
				synctest.Wait()
			}
			release()
			wg.Wait()
			for i, err := range errs {
				if want := wants[i]; !failsWith(err, want) {
					t.Errorf("mode %q, ask %d: got error %v, want %q", c.mode, i, err, want)
				}
			}
		}
		if got := behind.most.Load(); got != 4 {
			t.Errorf("got %d transactions in a call at most, want 4: all that are valid, except the first, which is sent alone", got)
		}
	})
}

// takeOrPanic takes a charge. If Take panics, the panic is returned as an error.
func takeOrPanic(ctx context.Context, store quota.Store, c quota.Charge) (err error) {
	defer func() {
		if p := recover(); p != nil {
			err = fmt.Errorf("panic on my own goroutine: %v", p)
		}
	}()
	return store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{c}})
}

// TestCoalesceWrongBatcher: if a Batcher returns a wrong number of errors, the callers get
// an error that says so.
func TestCoalesceWrongBatcher(t *testing.T) {
	store := quota.Joined(quota.Coalesce(wrongBatcher{memory()}))
	if err := store.Take(t.Context(), once(algorithms.GCRA(1, time.Second))); err == nil || !strings.Contains(err.Error(), "2 errors for 1") {
		t.Errorf("got %v, want an error with both numbers", err)
	}
}

type wrongBatcher struct{ quota.Store }

func (wrongBatcher) TakeEach(context.Context, []*quota.Transaction) []error { return make([]error, 2) }

// TestCoalesceWhole: a shared call passes on the whole question of a transaction, and returns the
// whole Result.
func TestCoalesceWhole(t *testing.T) {
	tx := once(algorithms.GCRA(1, time.Second))
	tx.Mode, tx.Most, tx.Cancels, tx.Charges[0].Spent = quota.ModeAtMost, 7, []quota.Undo{{Until: 3}}, 1
	if err := tx.Validate(); err != nil { // makes the plan, which is compared below too
		t.Fatal(err)
	}
	want := *tx
	want.Result = quota.Result{Decisions: []quota.Decision{{Remaining: 5}}, At: time.Unix(2, 0), Wait: time.Second, Granted: 4, Undo: []quota.Undo{{Until: 9}}}
	store := quota.Joined(quota.Coalesce(struct {
		quota.Store
		eachFunc
	}{nil, func(got *quota.Transaction) {
		if !slices.Equal(got.Charges, tx.Charges) || got.Mode != tx.Mode || got.Most != 7 || len(got.Cancels) != 1 || got.Cancels[0].Until != 3 {
			t.Errorf("the store is called %+v, want %+v", got, tx)
		}
		got.Result = want.Result
	}}))
	if err := store.Take(t.Context(), tx); err != nil || !reflect.DeepEqual(*tx, want) {
		t.Errorf("got %+v, %v; want %+v", *tx, err, want)
	}
}

type eachFunc func(t *quota.Transaction)

func (f eachFunc) TakeEach(_ context.Context, ts []*quota.Transaction) []error {
	for _, t := range ts {
		f(t)
	}
	return nil
}

// TestCoalesceFew: four callers of one key are not delayed for each other, and what exceeds them shares
// one call.
func TestCoalesceFew(t *testing.T) {
	for callers, want := range map[int]int64{1: 10, 2: 20, 4: 40, 5: 50, 20: 50} { // 4 alone and the rest together, 10 times
		synctest.Test(t, func(t *testing.T) {
			behind := newFar(time.Second)
			store := quota.Coalesce(behind)
			charge := quota.Charge{Rule: "api", Key: "hot", Limit: algorithms.FixedWindow(4000, 24*time.Hour), Cost: 1}
			began := time.Now()
			for range 10 {
				together(callers, func(int) { take(t, store, 0, charge) })
			}
			took, trips := time.Since(began), time.Duration(10)
			if callers > 4 {
				trips = 20
			}
			if n := behind.calls.Load(); n != want || took != trips*time.Second {
				t.Errorf("%d callers: got %d calls in %v, want %d in %v", callers, n, took, want, trips*time.Second)
			}
		})
	}
}

// TestCoalesceMany: a shared call has at most 1,024 transactions.
func TestCoalesceMany(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := newFar(time.Millisecond)
		store := quota.Single(quota.Coalesce(behind))
		charge := quota.Charge{Rule: "api", Key: "hot", Limit: algorithms.FixedWindow(4000, 24*time.Hour), Cost: 1}
		var wg sync.WaitGroup
		for range 3001 {
			wg.Go(func() { take(t, store, 0, charge) })
		}
		wg.Wait()
		if calls, most := behind.calls.Load(), behind.most.Load(); calls != 4 || most != 1024 {
			t.Errorf("3001 calls: got %d calls of %d at most, want 4 of 1024", calls, most)
		}
	})
}

// TestCoalesceOthers: a call that hangs delays only the keys of its own lane.
func TestCoalesceOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := newFar(0)
		store := quota.Single(quota.Coalesce(behind))
		limit := algorithms.FixedWindow(10, 24*time.Hour)
		release := behind.hang()
		var wg sync.WaitGroup
		wg.Go(func() { take(t, store, 0, quota.Charge{Key: "hot", Limit: limit, Cost: 1}) })
		synctest.Wait()
		behind.gate.Store(nil) // later calls do not hang
		var answered atomic.Int64
		for i := range 1000 {
			wg.Go(func() {
				take(t, store, 0, quota.Charge{Key: fmt.Sprint(i), Limit: limit, Cost: 1})
				answered.Add(1)
			})
		}
		synctest.Wait()
		if n := answered.Load(); n < 900 || n == 1000 {
			t.Errorf("got %d of 1000 other keys answered, want most, and no key of the lane that hangs", n)
		}
		release()
		wg.Wait()
	})
}

// TestCoalesceAllocs: a transaction that comes alone costs no allocation, and a shared call none for the
// copies of its transactions.
func TestCoalesceAllocs(t *testing.T) {
	store := quota.Coalesce(memory())
	tx := once(algorithms.GCRA(1000, time.Second))
	if n := testing.AllocsPerRun(1000, func() { store.Take(context.Background(), tx) }); n != 0 {
		t.Errorf("a lone call: got %v allocations, want 0", n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	if n := testing.AllocsPerRun(1000, func() { store.Take(ctx, tx) }); n != 0 {
		t.Errorf("a lone call that may be canceled: got %v allocations, want 0", n)
	}
	shared := quota.Joined(store)
	if n := testing.AllocsPerRun(1000, func() { shared.Take(context.Background(), tx) }); n > 5 {
		t.Errorf("a shared call of one transaction: got %v allocations, want at most 5", n)
	}
}

// TestCoalesceRedis: four replicas with 32 goroutines each, which share one key through
// Redis, admit exactly the limit.
func TestCoalesceRedis(t *testing.T) {
	const replicas, goroutines, each, units = 4, 32, 10, 500
	addr := redistest.Server(t).Addr()
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range replicas {
		store := quota.Coalesce(redisAt(t, addr, 5*time.Second))
		for range goroutines {
			wg.Go(func() {
				for range each {
					if take(t, store, 0, quota.Charge{Rule: "r", Key: "hot", Limit: algorithms.FixedWindow(units, 240*time.Hour), Cost: 1}).Allowed() {
						admitted.Add(1)
					}
				}
			})
		}
	}
	wg.Wait()
	if got := admitted.Load(); got != units {
		t.Errorf("got %d admitted of %d, want %d", got, replicas*goroutines*each, units)
	}
}

// TestCoalesceFaults: when Redis hangs or is gone, every caller gets an error within the
// time of two calls, or when its own context ends. When Redis is back, calls succeed again.
func TestCoalesceFaults(t *testing.T) {
	const budget = 200 * time.Millisecond
	server := redistest.Server(t)
	proxy := redistest.Proxy(t, server.Addr())
	store := quota.Coalesce(redisAt(t, proxy.Addr(), budget))
	charge := quota.Charge{Rule: "r", Key: "hot", Limit: algorithms.FixedWindow(1_000_000, 240*time.Hour), Cost: 1}
	round := func() (failed int64, slowest, hungUp time.Duration) {
		var mu sync.Mutex
		together(64, func(i int) {
			ctx, longest := t.Context(), &slowest
			if i%2 == 1 {
				brief, cancel := context.WithTimeout(ctx, 20*time.Millisecond)
				defer cancel()
				ctx, longest = brief, &hungUp
			}
			begin := time.Now()
			err := store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{charge}})
			d := time.Since(begin)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failed++
			}
			*longest = max(*longest, d)
		})
		return failed, slowest, hungUp
	}
	for _, f := range []struct {
		name       string
		begin, end func()
	}{
		{"refused", func() { proxy.Refuse(true) }, func() { proxy.Refuse(false) }},
		{"black hole", func() { proxy.Swallow.Store(true) }, func() { proxy.Swallow.Store(false) }},
		{"paused", server.Pause, server.Resume},
		{"reset", func() { proxy.Reset.Store(true) }, func() { proxy.Reset.Store(false) }},
	} {
		untilTaken(t, store, charge)
		f.begin()
		// The machine may be busy, so it is enough if one round in a minute is in time.
		late := true
		var slowest, hungUp time.Duration
		for begin := time.Now(); late && time.Since(begin) < time.Minute; {
			var failed int64
			failed, slowest, hungUp = round()
			if failed != 64 {
				t.Errorf("%s: got %d errors of 64, want all", f.name, failed)
			}
			late = slowest > 2*budget+100*time.Millisecond || hungUp > 120*time.Millisecond
		}
		f.end()
		if late {
			t.Fatalf("%s: answers after %v, and after %v if the caller had 20 ms; want two budgets of %v at most", f.name, slowest, hungUp, budget)
		}
	}
	untilTaken(t, store, charge)
}

// untilTaken takes a charge until there is no error, for a minute at most.
func untilTaken(t *testing.T, store quota.Store, c quota.Charge) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{c}})
		if err == nil {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("still %v", err)
		}
	}
}

// BenchmarkCoalesceAlone measures what Coalesce adds to a call that is not shared.
func BenchmarkCoalesceAlone(b *testing.B) {
	plain := memory()
	for _, c := range []struct {
		name  string
		store quota.Store
	}{{"baseline", plain}, {"coalesced", quota.Coalesce(plain)}} {
		b.Run(c.name, func(b *testing.B) {
			tx := once(algorithms.GCRA(1<<30, time.Second))
			b.ReportAllocs()
			for b.Loop() {
				if err := c.store.Take(context.Background(), tx); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// BenchmarkCoalesceHot measures the cost of sharing calls: 64 goroutines per core ask for
// one key of a store in memory.
func BenchmarkCoalesceHot(b *testing.B) {
	plain := memory()
	for _, c := range []struct {
		name  string
		store quota.Store
	}{{"baseline", plain}, {"joined", quota.Joined(quota.Coalesce(plain))}, {"coalesced", quota.Coalesce(plain)}} {
		b.Run(c.name, func(b *testing.B) {
			b.SetParallelism(64) // times GOMAXPROCS
			b.ReportAllocs()
			ctx, cancel := context.WithCancel(context.Background())
			defer cancel()
			b.RunParallel(func(pb *testing.PB) {
				tx := once(algorithms.GCRA(1<<30, time.Second))
				for pb.Next() {
					if err := c.store.Take(ctx, tx); err != nil {
						b.Error(err)
					}
				}
			})
		})
	}
}

func ExampleCoalesce() {
	redis := memstore.New(memstore.Options{}) // in a real program, a redisstore
	store := quota.Coalesce(redis)
	limit := algorithms.FixedWindow(100, 24*time.Hour)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 128 { // all at once, so they share calls
		wg.Go(func() {
			t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "hot", Limit: limit, Cost: 1}}}
			if err := store.Take(context.Background(), &t); err == nil && t.Allowed() {
				admitted.Add(1)
			}
		})
	}
	wg.Wait()
	fmt.Println(admitted.Load(), "of", store.Stats().Transactions, "admitted")
	// Output: 100 of 128 admitted
}

// silence is the error of a store that has waited for its timeout.
type silence struct{}

func (silence) Error() string { return "no answer" }
func (silence) Timeout() bool { return true }

// TestCoalesceSilent: if a store is silent, the calls that wait for the call under way fail with it, and
// are not sent. What they have waited is spent of their budgets.
func TestCoalesceSilent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const timeout = 50 * time.Millisecond
		calls := 0
		c := quota.Single(quota.Coalesce(&silentStore{take: func() error { calls++; time.Sleep(timeout); return silence{} }}))
		begin := time.Now()
		together(3, func(i int) {
			time.Sleep(time.Duration(i) * time.Millisecond)
			ctx := quota.WithBudget(t.Context())
			err := c.Take(ctx, once(algorithms.GCRA(10, time.Second)))
			if took := time.Since(begin); !errors.Is(err, silence{}) || took != timeout {
				t.Errorf("call %d: got %v after %v, want %v after %v", i, err, took, silence{}, timeout)
			}
			if left := quota.BudgetOf(ctx).Left(timeout); i > 0 && left != time.Duration(i)*time.Millisecond {
				t.Errorf("call %d: got %v left, want %d ms", i, left, i)
			}
		})
		if calls != 1 {
			t.Errorf("got %d calls of the store, want 1", calls)
		}
	})
}

type silentStore struct{ take func() error }

func (s *silentStore) Take(context.Context, *quota.Transaction) error { return s.take() }
func (s *silentStore) TakeEach(_ context.Context, ts []*quota.Transaction) []error {
	return slices.Repeat([]error{s.take()}, len(ts))
}
