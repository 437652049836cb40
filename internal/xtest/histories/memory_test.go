package histories_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A seam is where the store in memory takes a shortcut, or replaces something while others use
// it.
type seam struct {
	name    string
	rounds  int
	maxKeys int
	flood   int  // the number of keys that a worker makes up before each operation
	limited int  // one in so many of them is limited
	evicts  bool // the store has no room for all keys
	expires bool // all states expire after each round, and the next one has the same keys
}

var seams = []seam{
	{name: "published refusals", rounds: 200},
	{name: "growth", rounds: 20, maxKeys: 15_000, flood: 12, limited: 10},
	{name: "growth of several shards", rounds: 10, maxKeys: 40_000, flood: 30, limited: 10},
	{name: "eviction", rounds: 40, maxKeys: 100, flood: 1, limited: 8, evicts: true},
	{name: "expiry", rounds: 40, flood: 1, limited: 2, expires: true},
}

const memoryWorkers, memoryOps = 8, 120

// A unit of refills takes 8 days, so it is a counter. It is charged in the way of most limits,
// and published.
var refills = algorithms.GCRA(quotaOfPair, 8*24*time.Hour*quotaOfPair)

// The limits of the pairs, and of the keys that are made up.
var (
	limits = [...]quota.Limit{refills, refills, algorithms.SlidingLog(quotaOfPair, refills.Period), counted}
	made   = algorithms.GCRA(2, 40*24*time.Hour)
)

// TestMemory: what a memstore returns to many goroutines is possible, while it refuses without
// its lock, grows, evicts keys and uses the slots of expired states again. Nothing is lost but
// keys of a full store that were never refused.
func TestMemory(t *testing.T) {
	for _, s := range seams {
		t.Run(s.name, func(t *testing.T) {
			m := memory{seam: s, pairs: map[string][]op{}}
			if !rounds.Long() {
				m.rounds /= 5
			}
			for range rounds.N(1, 5) {
				if m.store = nil; !s.expires {
					m.run(t)
				} else {
					synctest.Test(t, func(t *testing.T) { m.run(t) }) // each within the 292 years of a clock
				}
			}
			m.check(t)
		})
	}
}

// memory records the histories of one seam.
type memory struct {
	seam
	store *memstore.Store
	round int
	begin time.Time
	ticks atomic.Int64

	mu    sync.Mutex
	pairs map[string][]op
	full  int // calls for which the store had no room
	made  int // keys of the flood
}

// run makes the rounds of a seam. To find faults between two instructions, it uses more
// processors than the machine has, which then interrupts calls halfway, and makes allocations
// slow if there are few.
func (m *memory) run(t *testing.T) {
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(8))
	defer func(rate int) { runtime.MemProfileRate = rate }(runtime.MemProfileRate)
	if m.flood <= 1 && !weirtest.Race {
		runtime.MemProfileRate = 1
	}
	m.begin = time.Now()
	for range m.rounds {
		m.round++
		if m.store == nil || !m.expires {
			m.store = memstore.New(memstore.Options{MaxKeys: m.maxKeys})
		}
		var wg sync.WaitGroup
		for w := range memoryWorkers {
			wg.Go(func() { m.work(t, m.round, w) })
		}
		wg.Wait()
		if m.expires {
			time.Sleep(refills.Period + 9*24*time.Hour)
		}
	}
}

// now returns an instant for the history. In a bubble no time passes during a round, so there
// it counts the calls.
func (m *memory) now() int64 {
	if m.expires {
		return m.ticks.Add(1)
	}
	return int64(time.Since(m.begin))
}

// work makes the operations of one worker in one round.
func (m *memory) work(t *testing.T, round, worker int) {
	rng := rand.New(rand.NewPCG(rand.Uint64(), uint64(worker)))
	var ops []op
	var reserved [len(limits)]*quota.Transaction // which the worker can cancel
	full := 0
	for n := range memoryOps {
		for i := range m.flood {
			full += m.makeUp(t, fmt.Sprint(round, ".", worker, ".", n, ".", i), rng.IntN(m.limited) == 0)
		}
		pair := n * len(limits) / memoryOps // all workers are at about the same place
		o := op{Worker: worker, Pair: fmt.Sprint(round, ".", pair), Kind: choose(rng, pair, worker)}
		tx := quota.Transaction{}
		switch {
		case o.Kind == forget:
			tx.Mode = quota.ModeForget
		case o.Kind == reserve && reserved[pair] != nil:
			o.Kind = cancel
		case o.Kind == reserve:
			tx.Within = 9 * 24 * time.Hour
		}
		key := o.Pair
		if m.expires {
			key = fmt.Sprint(pair)
		}
		tx.Charges = o.charges(key, limits[pair])
		if o.Kind == cancel {
			r := reserved[pair]
			tx.Charges[0].Cost, tx.Charges[0].Spent, tx.Cancels = -1, r.Decisions[0].At, r.Undo
			reserved[pair] = nil
		}
		o.Call = m.now()
		err := m.store.Take(context.Background(), &tx)
		o.Return = m.now()
		if errors.Is(err, quota.ErrFull) && m.evicts {
			full++ // and nothing was spent
			continue
		}
		o.note(&tx, err)
		if o.Kind == reserve && tx.Wait > 0 {
			reserved[pair] = &tx
		}
		ops = append(ops, o)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.full += full
	m.made += memoryOps * m.flood
	for _, o := range ops {
		m.pairs[o.Pair] = append(m.pairs[o.Pair], o)
	}
}

// choose returns an operation. The units of one pair are reserved, by one worker, which also
// cancels; units of the others are given back.
func choose(rng *rand.Rand, pair, worker int) kind {
	const reserves = 1
	switch n := rng.IntN(80); {
	case n < 1:
		return forget
	case n < 8:
		return look
	case n < 16 && pair != reserves:
		return refund
	case n < 56 && pair == reserves && worker == 0:
		return reserve
	case n < 24:
		return spendB
	case n < 32:
		return spendBoth
	case n < 50:
		return spendTwo
	}
	return spendA
}

// makeUp charges a new key, and twice more if it is to be limited. It returns 1 if there was no
// room.
func (m *memory) makeUp(t *testing.T, key string, limited bool) (full int) {
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "made", Key: key, Limit: made, Cost: 1}}}
	for n := range 3 {
		err := m.store.Take(context.Background(), &tx)
		switch {
		case errors.Is(err, quota.ErrFull) && m.evicts:
			return 1
		case err != nil || tx.Allowed() != (n < 2) && !m.evicts:
			t.Errorf("unit %d of a new key: got %+v, error %v", n, tx.Decisions, err)
		case !limited:
			return 0
		}
	}
	return 0
}

// check checks the histories.
func (m *memory) check(t *testing.T) {
	ops, refused, large := 0, 0, 0
	for name, list := range m.pairs {
		ops += len(list)
		for _, o := range list {
			if o.Err != "" {
				t.Errorf("pair %s: %s", name, o.Err)
			}
			if !o.Allowed {
				refused++
			}
		}
		switch linearizable(list, m.evicts) {
		case impossible:
			t.Errorf("pair %s: no order of its %d operations explains the answers:\n%s", name, len(list), listing(list))
		case tooLarge:
			large++
		}
		if t.Failed() {
			break
		}
	}
	if refused < ops/6 || m.evicts && m.full == 0 {
		t.Errorf("got %d refusals in %d operations and %d calls without room, want more of each", refused, ops, m.full)
	}
	t.Logf("%d pairs, %d operations, %d refused, %d keys made up, %d calls without room, too large to search %d", len(m.pairs), ops, refused, m.made, m.full, large)
}
