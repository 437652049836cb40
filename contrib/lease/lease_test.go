package lease_test

import (
	"cmp"
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

func TestLeaseConforms(t *testing.T) {
	conforms(t, func() quota.Store { return lease.New(memory(), lease.Options{}) })
}

// A spending is an admitted call.
type spending struct {
	at      int64 // when it was admitted, in µs since 1970
	charges []quota.Charge
}

// A wire is a slow connection to a store. The connection loses some calls and some answers.
type wire struct {
	store quota.Store
	r     *rand.Rand // guarded by mu
	slow  time.Duration
	lossy int // the percentage of calls that fail, because the call or its answer is lost
	mu    *sync.Mutex
	taken *[]spending // what the store admitted, whether or not the answer arrived
	calls atomic.Int64
}

func (w *wire) Take(ctx context.Context, t *quota.Transaction) error {
	w.calls.Add(1)
	w.mu.Lock()
	there, back, fate := w.r.Int64N(int64(w.slow)), w.r.Int64N(int64(w.slow)), w.r.IntN(200)
	w.mu.Unlock()
	if err := period.Sleep(ctx, time.Duration(there)); err != nil {
		return err
	}
	if fate < w.lossy {
		return errDown
	}
	if err := w.store.Take(context.WithoutCancel(ctx), t); err != nil {
		return err
	}
	if t.Allowed() && t.Charges[0].Cost > 0 {
		w.mu.Lock()
		*w.taken = append(*w.taken, spending{t.At.UnixMicro(), slices.Clone(t.Charges)})
		w.mu.Unlock()
	}
	if err := period.Sleep(ctx, time.Duration(back)); err != nil {
		return err
	}
	if fate < 2*w.lossy {
		return errDown
	}
	return nil
}

// TestLeaseNeverExceeds: replicas with leases of their own call one store at random.
// Their wires lose calls, some callers hang up, and now and then another process takes
// all that is left. The test then replays the admitted calls, in the order of their
// instants, against a new key: the algorithm must admit each of them.
func TestLeaseNeverExceeds(t *testing.T) {
	served := map[string]int64{}
	worlds := rounds.N(20, 60)
	for i := range worlds {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			name, n := leaseWorld(t, seed, i)
			served[name] += n
		})
		if t.Failed() {
			t.Fatalf("seed %d of kind %d", seed, i)
		}
	}
	for name, n := range served {
		if n < int64(10*worlds) {
			t.Errorf("%s: got %d calls served from leases, which are too few for this test", name, n)
		}
	}
	t.Log(served)
}

// leaseWorld runs replicas with leases for 4 s and replays the admitted calls. It returns
// the names of the algorithms and how many calls were served from leases.
func leaseWorld(t *testing.T, seed uint64, kind int) (name string, served int64) {
	r := rand.New(rand.NewPCG(seed, 0))
	time.Sleep(time.Duration(r.Int64N(1e9))) // the test begins anywhere in a window
	w := &world{T: t, store: memory(), quota: 200 + r.Int64N(3000), period: time.Duration(200+r.IntN(800)) * time.Millisecond}
	for _, l := range w.limits(kind) {
		name += l.Algorithm.Name() + " "
		w.charges = append(w.charges, quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: 1 + r.Int64N(2)})
	}
	w.ended = time.Now().Add(4 * time.Second)
	var wg sync.WaitGroup
	for range 3 {
		wire := &wire{store: w.store, r: rand.New(rand.NewPCG(r.Uint64(), 0)), slow: time.Duration(1 + r.Int64N(4e6)), lossy: r.IntN(2) * r.IntN(60), mu: &w.mu, taken: &w.taken}
		store := lease.New(wire, lease.Options{TTL: time.Duration(10+r.IntN(150)) * time.Millisecond, Fraction: []float64{0, 0.5, 1}[r.IntN(3)]})
		w.replicas = append(w.replicas, store)
		for range 4 {
			r := rand.New(rand.NewPCG(r.Uint64(), 0))
			wg.Go(func() { w.call(store, r) })
		}
	}
	wg.Go(func() { w.takeAll(r) })
	wg.Wait()
	for _, l := range w.replicas {
		if err := l.Close(t.Context()); err != nil && !errors.Is(err, errDown) {
			t.Error(err)
		}
		served += l.Stats().Hits
	}
	if name == "anchored-window " {
		w.admitLost()
	}
	replayAll(t, w.charges, w.admitted)
	return name, served
}

// A world is a store and the processes that use it.
type world struct {
	*testing.T
	store    quota.Store
	quota    int64
	period   time.Duration
	charges  []quota.Charge // the charges of every call
	ended    time.Time
	replicas []*lease.Store

	mu       sync.Mutex
	admitted []spending // calls whose callers know that they are admitted
	taken    []spending // what the store admitted, whether or not the answer arrived
}

// limits returns the limits of a kind of world.
func (w *world) limits(kind int) []quota.Limit {
	fixed, meter := algorithms.FixedWindow(w.quota, w.period), algorithms.GCRA(w.quota, w.period)
	return [][]quota.Limit{
		{meter},
		{algorithms.TokenBucket(w.quota/2, w.quota, w.period)},
		{algorithms.LeakyBucket(w.quota*2, w.quota, w.period)},
		{fixed},
		{algorithms.AnchoredWindow(w.quota, w.period)},
		{algorithms.SlidingWindow(w.quota, w.period)},
		{meter, fixed, algorithms.SlidingWindow(2*w.quota, 2*w.period)},
		{algorithms.GCRA(100*w.quota, 100*w.period)},
	}[kind%8]
}

func (w *world) admit(at int64, charges []quota.Charge) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.admitted = append(w.admitted, spending{at, slices.Clone(charges)})
}

// take makes a call and records it if it is admitted. If the clock of the synctest bubble
// has not moved during the call, a lease has served the call, and the call counts at the
// present instant.
func (w *world) take(ctx context.Context, store quota.Store) {
	tx := quota.Transaction{Charges: w.charges}
	before := time.Now()
	if err := store.Take(ctx, &tx); err != nil || !tx.Allowed() {
		return
	}
	at := tx.At.UnixMicro()
	if now := time.Now(); now.Equal(before) {
		at = now.UnixMicro()
	}
	w.admit(at, w.charges)
}

// call makes calls at random instants. Some callers hang up.
func (w *world) call(store quota.Store, r *rand.Rand) {
	// With this pause between calls, all 12 goroutines together stay below the limit.
	alone := 2 * 12 * int64(w.period) / w.quota
	pace := alone
	for time.Now().Before(w.ended) {
		if r.IntN(50) == 0 { // a busy or an idle time begins
			pace = alone * (1 + r.Int64N(20)) / 4
		}
		time.Sleep(time.Duration(1 + r.Int64N(pace)))
		ctx, cancel := context.WithCancel(context.Background())
		if r.IntN(20) == 0 {
			ctx, cancel = context.WithTimeout(ctx, time.Duration(r.Int64N(4e6)))
		}
		w.take(ctx, store)
		cancel()
	}
}

// takeAll plays a process without leases. Now and then the process takes all that is
// left, while the replicas use all units that they hold.
func (w *world) takeAll(r *rand.Rand) {
	for time.Now().Before(w.ended) {
		time.Sleep(time.Duration(r.Int64N(int64(w.period))))
		for range 1 + r.IntN(30) {
			time.Sleep(time.Duration(r.Int64N(3e6)))
			all := slices.Clone(w.charges)
			for i := range all {
				all[i].Cost = 0
			}
			look := take(w.T, w.store, 0, all...)
			for i := range all {
				all[i].Cost = look.Decisions[i].Remaining
			}
			if tx := take(w.T, w.store, 0, all...); tx.Allowed() && all[0].Cost > 0 {
				w.admit(tx.At.UnixMicro(), all)
			}
			for _, store := range w.replicas {
				for now := time.Now(); time.Now().Equal(now); { // until the clock moves, because a call has gone to the store
					w.take(context.Background(), store)
				}
			}
		}
	}
}

// admitLost records calls whose caller hung up or whose answer was lost. The replay needs
// them because an anchored window may have begun with such a call.
func (w *world) admitLost() {
	known := map[int64]bool{}
	for _, s := range w.admitted {
		known[s.at] = true
	}
	for _, s := range w.taken {
		if !known[s.at] {
			w.admitted = append(w.admitted, spending{s.at, w.charges})
		}
	}
}

// replayAll fails the test unless a new key admits every spending.
func replayAll(t *testing.T, charges []quota.Charge, admitted []spending) {
	t.Helper()
	slices.SortStableFunc(admitted, func(a, b spending) int { return cmp.Compare(a.at, b.at) })
	states := make([]quota.State, len(charges))
	for i, s := range admitted {
		tx := quota.Transaction{Charges: s.charges}
		if !tx.Decide(s.at, states) {
			t.Fatalf("call %d of %d, at %d µs: %+v was admitted, which exceeds the limit: %+v", i, len(admitted), s.at, s.charges, tx.Decisions)
		}
	}
}

// perHour returns a limit of 1,000 hours, whose units do not come back during a test.
func perHour(units int64) quota.Limit { return algorithms.FixedWindow(units, 1000*time.Hour) }

// A counted is a store that records its transactions.
type counted struct {
	quota.Store
	mu    sync.Mutex
	asked []quota.Transaction // with their decisions
	err   func(t *quota.Transaction) error
	trip  time.Duration
}

func (c *counted) Take(ctx context.Context, t *quota.Transaction) error {
	time.Sleep(c.trip)
	c.mu.Lock()
	defer c.mu.Unlock()
	var err error
	if c.err != nil {
		err = c.err(t)
	}
	if err == nil {
		err = c.Store.Take(ctx, t)
	}
	asked := *t
	asked.Charges, asked.Decisions = slices.Clone(t.Charges), slices.Clone(t.Decisions)
	c.asked = append(c.asked, asked)
	return err
}

// costs returns the costs of the first charges of all recorded transactions, and
// clears the record.
func (c *counted) costs() (costs []int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, t := range c.asked {
		costs = append(costs, t.Charges[0].Cost)
	}
	c.asked = nil
	return costs
}

// warm makes n + 2 calls in a TTL, and one call after the TTL, which may take a lease. It
// returns the transaction of the last call.
func warm(t *testing.T, store quota.Store, n int, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	for range n + 2 { // the first call of a key is not counted
		take(t, store, 0, charges...)
	}
	time.Sleep(100 * time.Millisecond)
	return take(t, store, 0, charges...)
}

// TestLeaseSize: a lease covers as many calls as came in the last TTL, but at most Fraction
// of the units that remained.
func TestLeaseSize(t *testing.T) {
	for _, c := range []struct {
		limit quota.Limit
		cost  int64
		calls int
		share float64
		want  int64 // cost of the last call of the store, including the lease if there is one
	}{
		{perHour(1_000_000), 1, 50, 0, 1 + 51},
		{perHour(1_000_000), 7, 50, 0, 7 + 7*51},
		{perHour(1000), 1, 800, 0, 1 + 24}, // 1 for the call, and an eighth of the 197 units that remain
		{perHour(1000), 1, 800, 1, 1 + 197},
		{perHour(1000), 3, 200, 1, 3 + 3*130}, // 3 for the call; the 391 units that remain are enough for 130 calls
		{perHour(1000), 1, 988, 0, 1},         // an eighth of the 9 units that remain is less than two
		{perHour(1000), 1, 0, 0, 1},
		{perHour(1000), 0, 50, 0, 0},
		{algorithms.GCRA(1_000_000, time.Minute), 1, 50, 0, 1 + 1666}, // as many units as drain in a TTL
		{algorithms.GCRA(1_000_000, time.Minute), 10, 50, 0, 10 + 1660},
		{algorithms.GCRA(100, time.Minute), 1, 50, 1, 1}, // less than two units drain in a TTL
		{algorithms.SlidingWindow(1_000_000, 1000*time.Hour), 1, 50, 0, 1 + 51},
		{algorithms.SlidingLog(1_000_000, 1000*time.Hour), 1, 50, 0, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			behind := &counted{Store: memory()}
			store := lease.New(behind, lease.Options{Fraction: c.share})
			warm(t, store, c.calls, quota.Charge{Rule: "r", Key: "k", Limit: c.limit, Cost: c.cost})
			costs := behind.costs()
			take(t, store, 0, quota.Charge{Rule: "r", Key: "k", Limit: c.limit, Cost: c.cost})
			if got := costs[len(costs)-1]; got != c.want {
				t.Errorf("%v, %d calls of cost %d: the last call of the store costs %d, want %d", c.limit, c.calls, c.cost, got, c.want)
			}
		})
	}
}

// TestLeaseServes: a lease serves calls until its units are used up, or until the TTL or
// the window ends. Unused units are refunded, except units that drain.
func TestLeaseServes(t *testing.T) {
	day := 24 * time.Hour
	for _, c := range []struct {
		name  string
		limit quota.Limit
		wait  time.Duration // the pause before 5 calls
		want  []int64       // costs of the calls of the store that the 5 calls make
		back  int64         // cost of the call that gives units back, or 0
	}{
		{"at once", perHour(1000), 0, nil, -46},
		{"at the end of the TTL", perHour(1000), 100*time.Millisecond - 1, nil, -46},
		{"after the TTL", perHour(1000), 101 * time.Millisecond, []int64{-51, 1, 1, 1, 1, 1}, 0},
		{"in another window", algorithms.FixedWindow(1000, 200*time.Millisecond), 99 * time.Millisecond, []int64{52, -51}, -47},
		{"in another sliding window", algorithms.SlidingWindow(1000, 200*time.Millisecond), 99 * time.Millisecond, []int64{52, -51}, -47},
		{"in another day", algorithms.Calendar(1000, algorithms.Day, nil), 99 * time.Millisecond, []int64{52, -51}, -47},
		{"a meter", algorithms.GCRA(86_400_000, day), 50 * time.Millisecond, nil, 0},
		{"a meter that has drained", algorithms.GCRA(86_400_000, day), 100*time.Millisecond - 1, []int64{101}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(day - 150*time.Millisecond) // the day ends in 150 ms, and a window with it
			behind := &counted{Store: memory()}
			store := lease.New(behind, lease.Options{})
			charge := quota.Charge{Rule: "r", Key: "k", Limit: c.limit, Cost: 1}
			warm(t, store, 50, charge) // the window now ends in 50 ms
			behind.costs()
			time.Sleep(c.wait)
			for range 5 {
				if !take(t, store, 0, charge).Allowed() {
					t.Errorf("%s: got a refusal", c.name)
				}
			}
			synctest.Wait()
			if got := behind.costs(); !slices.Equal(got, c.want) {
				t.Errorf("%s: for 5 calls, the store got calls of cost %d, want %d", c.name, got, c.want)
			}
			time.Sleep(time.Second)
			var want []int64
			if c.back != 0 {
				want = []int64{c.back}
			}
			if got := behind.costs(); !slices.Equal(got, want) {
				t.Errorf("%s: later the store got calls of cost %d, want %d", c.name, got, want)
			}
		})
	}
}

const callsQuota = 1_000_000

// TestLeaseCalls counts how many calls of the store are saved by leases, and how many
// units leases keep from other processes. Under a limit of a million units a minute, each
// replica has 5,000 calls a second, and calls the store about once in a TTL.
func TestLeaseCalls(t *testing.T) {
	const units = callsQuota
	for _, limit := range []quota.Limit{
		algorithms.GCRA(units, time.Minute), algorithms.FixedWindow(units, time.Minute), algorithms.SlidingWindow(units, time.Minute),
	} {
		for _, replicas := range []int64{1, 3} {
			synctest.Test(t, func(t *testing.T) {
				countCalls(t, limit, replicas)
			})
		}
	}
}

// countCalls lets replicas make calls for 10 s.
func countCalls(t *testing.T, limit quota.Limit, replicas int64) {
	const units, rate, hold, lasts = callsQuota, 5000, 100 * time.Millisecond, 10 * time.Second
	plain := memory()
	behind := &distant{Store: plain}
	behind.Trip.Store(int64(time.Millisecond))
	charge := quota.Charge{Rule: "r", Key: "k", Limit: limit, Cost: 1}
	same := charge // for a key that gets as many calls, but without leases
	same.Key = "same"
	var calls, held atomic.Int64
	var stores []*lease.Store
	for range replicas {
		stores = append(stores, lease.New(behind, lease.Options{TTL: hold}))
	}
	callAgain := func(store quota.Store) {
		r := rand.New(rand.NewPCG(rand.Uint64(), 0))
		for begin := time.Now(); time.Since(begin) < lasts; calls.Add(1) {
			time.Sleep(time.Duration(r.Int64N(2 * 10 * int64(time.Second) / rate)))
			if !take(t, store, 0, charge).Allowed() || !take(t, plain, 0, same).Allowed() {
				t.Errorf("%v: got a refusal", limit)
				return
			}
		}
	}
	count := func() {
		look, other := charge, same
		look.Cost, other.Cost = 0, 0
		for i := range 80 {
			time.Sleep(lasts / 81)
			if i == 7 { // the first TTL, which has no lease, is over
				calls.Store(0)
				behind.Calls.Store(0)
			}
			n := take(t, plain, 0, other).Decisions[0].Remaining - take(t, plain, 0, look).Decisions[0].Remaining
			held.Store(max(held.Load(), n))
		}
	}
	together(1+10*len(stores), func(i int) {
		if i == 0 {
			count()
		} else {
			callAgain(stores[i%len(stores)])
		}
	})
	for _, store := range stores {
		closeStore(t, store)
	}
	ratio := float64(behind.Calls.Load()) / float64(calls.Load())
	t.Logf("%v, %d replicas: %d calls, %.4f calls of the store for each call; at most %d units held", limit, replicas, calls.Load(), ratio, held.Load())
	if ratio > 1.0/200 {
		t.Errorf("%v, %d replicas: got %.4f calls of the store for each call, want at most 0.005", limit, replicas, ratio)
	}
	most := replicas * rate / 10 * 3 / 2 // the calls of a busy TTL
	if limit.Algorithm.Name() == "gcra" {
		// quota/600 units drain in a TTL. Each replica may hold as many, and more units
		// drain until a replica sees what the other replicas took.
		most = (replicas + 2) * units / 600
	}
	if n := held.Load(); n > most {
		t.Errorf("%v, %d replicas: got %d units held at once, want at most %d", limit, replicas, n, most)
	}
}
