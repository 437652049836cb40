// Package million_test simulates what docs/guarantees.md says: a hundred processes that share their
// limits in several ways, on nodes whose clocks are apart, one of which dies.
package million_test

import (
	"context"
	"fmt"
	"hash/fnv"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/contrib/regions"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

const (
	processes = 100
	nodes     = 5
	zones     = 4 // regions
	length    = 6 * time.Second
	dies      = 2 * time.Second // when the node of the hot key dies
	returns   = 4 * time.Second // when it is back, without its data
	restarts  = 5 * time.Second // when it loses its data once more, at once
	losses    = 2
)

// The limits: of one hot key, which gets 30 % of the requests in one second and 90 % in the next
// two, and of each of 50 other keys.
var (
	hot    = algorithms.GCRA(2000, time.Second).WithBurst(1000)
	others = algorithms.GCRA(200, 10*time.Second).WithBurst(100)
)

// A node is a Redis node: its clock is ahead, it takes a round trip, and it may die.
type node struct {
	ahead time.Duration
	store atomic.Pointer[memstore.Store] // nil while it is dead
	calls atomic.Int64
}

func (n *node) Take(ctx context.Context, t *quota.Transaction) error {
	return n.TakeEach(ctx, []*quota.Transaction{t})[0]
}

// TakeEach decides several transactions in one round trip.
func (n *node) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	call, errs := n.calls.Add(1), make([]error, len(ts))
	time.Sleep(time.Duration(100+call*379%900) * time.Microsecond)
	for i, t := range ts {
		s := n.store.Load()
		if s == nil {
			errs[i] = weirtest.ErrDown
			continue
		}
		errs[i] = s.Take(ctx, t)
		t.At = t.At.Add(n.ahead)
		for k := range t.Decisions {
			t.Decisions[k].At += n.ahead.Microseconds()
		}
	}
	time.Sleep(time.Duration(100+call*211%900) * time.Microsecond)
	return errs
}

// A cluster sends each key to its node.
type cluster [nodes]*node

func (c *cluster) of(key string) *node {
	h := fnv.New32a()
	h.Write([]byte(key))
	return c[h.Sum32()%nodes]
}

func (c *cluster) Take(ctx context.Context, t *quota.Transaction) error {
	return c.of(t.Charges[0].Key).Take(ctx, t)
}

// TakeEach sends each node its transactions together.
func (c *cluster) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	errs := make([]error, len(ts))
	for _, n := range c {
		var at []int
		var own []*quota.Transaction
		for i, t := range ts {
			if c.of(t.Charges[0].Key) == n {
				at, own = append(at, i), append(own, t)
			}
		}
		if len(own) == 0 {
			continue
		}
		for i, err := range n.TakeEach(ctx, own) {
			errs[at[i]] = err
		}
	}
	return errs
}

// A mode is a way in which processes share their limits.
type mode struct {
	name string
	open func(w *world, process int) (quota.Store, func())
	// bursts is how many bursts all processes together may admit beyond the rate, and rates
	// how many times the rate they may admit.
	bursts, rates float64
	lossless      bool // no request fails while the node is dead
	exceeds       bool // the limit does not hold for all processes together
}

var quiet = slog.New(slog.DiscardHandler)

func shared(w *world) quota.Store { return &w.redis }

var modes = []mode{
	{name: "redisstore", bursts: 1 + losses, rates: 1, open: func(w *world, _ int) (quota.Store, func()) { return shared(w), nil }},
	{name: "Coalesce", bursts: 1 + losses, rates: 1, open: func(w *world, _ int) (quota.Store, func()) { return quota.Coalesce(shared(w)), nil }},
	{name: "Hybrid", bursts: 1 + losses, rates: 1, open: func(w *world, _ int) (quota.Store, func()) {
		return quota.Hybrid(shared(w), quota.HybridOptions{}), nil
	}},
	{name: "lease", bursts: 1 + losses, rates: 1, open: func(w *world, _ int) (quota.Store, func()) {
		l := lease.New(shared(w), lease.Options{})
		return l, func() { _ = l.Close(context.Background()) }
	}},
	{name: "stack", bursts: 2 + losses, rates: 2, lossless: true, open: func(w *world, _ int) (quota.Store, func()) {
		b := quota.Breaker(quota.Coalesce(shared(w)), quota.BreakerOptions{Logger: quiet})
		memory := quota.Share(memstore.New(memstore.Options{}), processes)
		return quota.Fallback(quota.Hybrid(b, quota.HybridOptions{}), memory, quota.FallbackOptions{Logger: quiet}), nil
	}},
	{name: "regions", bursts: 1, rates: 1, lossless: true, open: func(w *world, p int) (quota.Store, func()) {
		ctx, cancel := context.WithCancel(context.Background())
		s := regions.New(w.local[p%zones], shared(w), regions.Options{Budget: "b", Region: fmt.Sprint(p % zones), Regions: zones, Logger: quiet})
		go s.Run(ctx)
		return s, cancel
	}},
	{name: "Share", bursts: 1, rates: 1, lossless: true, open: func(*world, int) (quota.Store, func()) {
		return quota.Share(memstore.New(memstore.Options{}), processes), nil
	}},
	{name: "memory alone", bursts: processes, rates: processes, lossless: true, exceeds: true, open: func(*world, int) (quota.Store, func()) {
		return memstore.New(memstore.Options{}), nil
	}},
}

// A world is the nodes, and what all processes have admitted and asked.
type world struct {
	redis cluster
	local [zones]*memstore.Store // of the regions

	mu            sync.Mutex
	admitted      map[string][]time.Duration // when units of a key were used
	asked, failed int
}

// TestMillion: in each mode all processes together admit no more than docs/guarantees.md says,
// although the clocks of the nodes are up to an hour apart and one node dies and returns without
// its data. WEIR_LONG=10 makes the processes ask a million times a second.
func TestMillion(t *testing.T) {
	perSecond := 100 * rounds.N(1, 10) // of each process
	for _, m := range modes {
		t.Run(m.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &world{admitted: map[string][]time.Duration{}}
				w.run(m, perSecond)
				w.check(t, m)
			})
		})
	}
}

func (w *world) run(m mode, perSecond int) {
	for i := range w.redis {
		w.redis[i] = &node{ahead: time.Duration(i-nodes/2) * 30 * time.Minute}
		w.redis[i].store.Store(memstore.New(memstore.Options{}))
	}
	for i := range w.local {
		w.local[i] = memstore.New(memstore.Options{})
	}
	begin := time.Now()
	victim := w.redis.of("hot")
	time.AfterFunc(dies, func() { victim.store.Store(nil) })
	for _, at := range []time.Duration{returns, restarts} {
		time.AfterFunc(at, func() { victim.store.Store(memstore.New(memstore.Options{})) })
	}
	var wg sync.WaitGroup
	for p := range processes {
		wg.Go(func() {
			store, end := m.open(w, p)
			mine := perSecond / 2
			if p%10 == 0 { // one process in ten gets more than half of the requests
				mine = perSecond * 11 / 2
			}
			r := rand.New(rand.NewPCG(1, uint64(p)))
			var calls sync.WaitGroup
			for next := time.Duration(r.IntN(10)) * time.Millisecond; next < length; next += time.Second / time.Duration(mine) {
				time.Sleep(next - time.Since(begin))
				key := "hot"
				hotOf10 := 9
				if next/time.Second%3 == 0 {
					hotOf10 = 3
				}
				if r.IntN(10) >= hotOf10 {
					key = fmt.Sprint(r.IntN(50))
				}
				calls.Go(func() { w.ask(store, key, begin) })
			}
			calls.Wait()
			if end != nil {
				end()
			}
		})
	}
	wg.Wait()
	time.Sleep(time.Minute) // until goroutines of the stores have ended
}

// ask makes a request, and notes when its unit was used.
func (w *world) ask(store quota.Store, key string, begin time.Time) {
	c := quota.Charge{Rule: "r", Key: key, Limit: others, Cost: 1}
	if key == "hot" {
		c.Limit = hot
	}
	called := time.Since(begin)
	t := quota.Transaction{Charges: []quota.Charge{c}}
	err := store.Take(context.Background(), &t)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.asked++
	switch {
	case err != nil:
		w.failed++
	case t.Allowed():
		// A call that was decided after it began is counted when it was decided, on the clock of
		// this test; a unit of a lease when it is used.
		used := time.Since(begin)
		for _, ahead := range append([]time.Duration{0}, w.redis.of(c.Key).ahead) {
			if at := time.UnixMicro(t.Decisions[0].At).Add(-ahead).Sub(begin); at >= called && at < used {
				used = at
			}
		}
		w.admitted[c.Key] = append(w.admitted[c.Key], used)
	}
}

// beyond returns the most units of a key in any time, beyond rates times what the rate gives.
func beyond(at []time.Duration, rate float64) (most float64) {
	slices.Sort(at)
	now, last := 0.0, time.Duration(0)
	for _, a := range at {
		now = max(0, now-rate*(a-last).Seconds()) + 1
		last = a
		most = max(most, now)
	}
	return most
}

func (w *world) check(t *testing.T, m mode) {
	admitted, worstHot, worstOther := 0, 0.0, 0.0
	if alone := beyond(w.admitted["hot"], float64(hot.Quota)) > 2*float64(hot.Burst)+1; m.exceeds && !alone {
		t.Error("the limit of the hot key is not exceeded: the processes do not ask enough")
	}
	for key, at := range w.admitted {
		admitted += len(at)
		l, worst := others, &worstOther
		if key == "hot" {
			l, worst = hot, &worstHot
		}
		got := beyond(at, m.rates*float64(l.Quota)/l.Period.Seconds())
		*worst = max(*worst, got/float64(l.Burst))
		early, _ := slices.BinarySearch(at, dies)
		if healthy := beyond(at[:early], float64(l.Quota)/l.Period.Seconds()); healthy > float64(l.Burst)+1 && !m.exceeds {
			t.Errorf("key %s: got %.0f units beyond the rate before the node dies, want at most the burst of %d", key, healthy, l.Burst)
		}
		if got > m.bursts*float64(l.Burst)+1 {
			t.Errorf("key %s: got %.0f units beyond %v times the rate, want at most %v bursts of %d", key, got, m.rates, m.bursts, l.Burst)
		}
	}
	if m.lossless && w.failed > 0 || !m.lossless && w.failed == 0 {
		t.Errorf("got %d failed requests", w.failed)
	}
	var calls, busiest int64
	for _, n := range w.redis {
		calls += n.calls.Load()
		busiest = max(busiest, n.calls.Load())
	}
	t.Logf("%d asked, %d admitted (%d of the hot key), %d failed; %d calls of nodes, %d of the busiest; beyond the rate %.2f bursts of the hot key, %.2f of another",
		w.asked, admitted, len(w.admitted["hot"]), w.failed, calls, busiest, worstHot, worstOther)
}
