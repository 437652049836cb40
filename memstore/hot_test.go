package memstore

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// heat promotes the state of the first charge of tx, as calls do that wait for the lock. It reports
// whether the state is hot then.
func (s *Store) heat(tx *quota.Transaction) bool {
	c := &tx.Charges[0]
	names, period, size := tx.Plan(0)
	h := s.hash(c.Key)
	id, sh, m := fingerprint(h, names), &s.shards[index(h, len(s.shards))], meter{period, c.Limit.Quota, size}
	sh.mu.Lock()
	defer sh.mu.Unlock()
	if h := sh.hot.Load(); h != nil && h.id == id {
		return true
	}
	if sl := sh.table.find(id); sl != nil && m.decides(0) && m.readable(sl) && sl.reset() > sh.last {
		sh.repeated, sh.times = id, promoteAfter-1
		sh.promote(&m, sl, sh.last)
	}
	hot := sh.hot.Load()
	return hot != nil && hot.id == id
}

// A twin is two stores of one shard with the same seed. The second store gets no meters, so it has no
// hot states.
type twin struct {
	*testing.T
	mine, theirs *Store
	shard        *shard // of mine
	limit        quota.Limit
}

func newTwin(t *testing.T, l quota.Limit) *twin {
	w := &twin{T: t, mine: New(Options{MaxKeys: 1}), theirs: New(Options{MaxKeys: 1}), limit: l}
	w.theirs.seed, w.shard = w.mine.seed, &w.mine.shards[0]
	return w
}

// take charges a key in both stores, and compares the decisions.
func (w *twin) take(key string, cost int64, allowed bool) {
	w.Helper()
	got, want := w.mine.ask(w, key, w.limit, cost), w.theirs.ask(w, key, hidden(w.limit), cost)
	if got.Decisions[0] != want.Decisions[0] || !got.At.Equal(want.At) || got.Allowed() != allowed {
		w.Fatalf("%s, cost %d: got %+v, want %+v, allowed %v", key, cost, got.Decisions[0], want.Decisions[0], allowed)
	}
}

// refuse refuses so many charges of a unit, after which the state must be hot, but not before.
func (w *twin) refuse(times int) {
	w.Helper()
	for n := range times {
		if w.isHot() {
			w.Errorf("got a hot state after %d refusals, want none", n)
		}
		w.take("key", 1, false)
	}
	if !w.isHot() {
		w.Errorf("got no hot state after %d refusals, want one", times)
	}
}

func (w *twin) isHot() bool { return w.shard.hot.Load() != nil }

// recall recalls the hot state, if there is one, and compares the tables.
func (w *twin) recall() {
	w.Helper()
	w.shard.mu.Lock()
	defer w.shard.mu.Unlock()
	w.shard.recall(w.shard.last)
	if want := w.theirs.shards[0].table; !slices.Equal(w.shard.table, want) {
		w.Fatalf("got slots %+v, want %+v", w.shard.table, want)
	}
}

// locked calls f while the lock is taken, so that only a hot state can decide.
func (w *twin) locked(f func()) {
	w.Helper()
	if !w.isHot() {
		w.Fatal("got no hot state, want one")
	}
	w.shard.mu.Lock()
	defer w.shard.mu.Unlock()
	f()
}

// TestHot: after eight refusals a store decides without the lock, and as a store that takes the lock.
// A recalled state is what the state of that store is.
func TestHot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTwin(t, algorithms.TokenBucket(10, 3, time.Minute))
		w.take("key", 10, true)
		w.refuse(promoteAfter)
		w.locked(func() {
			for second := range 60 {
				for cost := int64(1 + second*3/60); cost <= 10; cost++ {
					w.take("key", cost, false)
				}
				w.take("key", 0, true)
				time.Sleep(time.Second)
			}
		})
		w.take("key", 1, true) // takes the lock, because the word cannot count so far
		w.recall()
		w.take("key", 4, false)
		if !w.isHot() { // it was hot for long enough to be promoted after one refusal
			t.Error("got no hot state after a recalled one and a refusal, want one")
		}
		w.locked(func() {
			w.take("key", 2, true)
			w.take("key", 1, false)
			time.Sleep(time.Second)
			w.take("key", 0, true)
			w.take("key", 1, false)
		})
		w.recall()
		w.refuse(promoteAfter)
		w.take("another", 1, true) // adds a state, for which others may have to move
		if w.isHot() {
			t.Error("got a hot state after a new key, want none")
		}
		w.refuse(promoteAfter)
		w.take("another", 1, true)
		if !w.isHot() {
			t.Error("got no hot state after a charge of another key that has a state, want one")
		}
		time.Sleep(time.Minute)
		w.take("key", -1, true)
		w.take("key", 3, true)
		w.recall()
	})
}

// TestHotAllows: charges that did not wait for the lock promote no state. A hot state allows charges
// while the lock is taken, until its debt is full, and again when the debt has drained.
func TestHotAllows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newTwin(t, algorithms.GCRA(1000, 400*time.Millisecond))
		for range 100 {
			w.take("key", 1, true)
		}
		if w.isHot() {
			t.Fatal("got a hot state after charges that did not wait, want none")
		}
		if !w.mine.heat(w.mine.ask(t, "key", w.limit, 0)) {
			t.Fatal("got no hot state after charges that waited, want one")
		}
		w.locked(func() {
			w.take("key", 0, true)
			w.take("key", 899, true)
			w.take("key", 1, true)
			w.take("key", 1, false)
			time.Sleep(399 * time.Microsecond)
			w.take("key", 1, false)
			time.Sleep(time.Microsecond)
			w.take("key", 1, true)
		})
		w.recall() // the rank is that of a state that has refused
		w.refuse(promoteAfter)
		w.locked(func() {
			time.Sleep(400 * time.Millisecond)
			w.take("key", 1000, true)
		})
		w.recall() // the rank is that of a new state with no units left
		w.refuse(promoteAfter)
		w.locked(func() {
			time.Sleep(400 * time.Millisecond)
			w.take("key", 1, true)
		})
		w.recall() // the rank is that of a new state with units left
		if got, want := w.shard.last, w.theirs.shards[0].last; got != want {
			t.Errorf("got %d as the last instant, want %d, that of the charge without the lock", got, want)
		}
	})
}

// TestHotUnfit: a state that does not fit in a word is never hot.
func TestHotUnfit(t *testing.T) {
	const month = 30 * 24 * time.Hour
	fits, tooLong := algorithms.GCRA(10_000, month), algorithms.GCRA(9_999, month)
	uneven := algorithms.GCRA(10, time.Second)
	synctest.Test(t, func(t *testing.T) {
		for _, tt := range []struct {
			name string
			make func(s *Store) quota.Limit
			want bool
		}{
			{"a month", func(s *Store) quota.Limit { s.ask(t, "key", fits, 1); return fits }, true},
			{"too many steps", func(s *Store) quota.Limit { s.ask(t, "key", tooLong, 1); return tooLong }, false},
			{"a part of a step", func(s *Store) quota.Limit {
				s.ask(t, "key", algorithms.GCRA(7, time.Second), 3)
				time.Sleep(time.Microsecond)
				s.ask(t, "key", algorithms.GCRA(7, time.Second), 1)
				s.ask(t, "key", uneven, 1)
				return uneven
			}, false},
			{"a reservation", func(s *Store) quota.Limit {
				s.ask(t, "key", uneven, 10)
				tx := s.ask(t, "key", uneven, 1)
				tx.Within = time.Second
				if err := s.Take(t.Context(), tx); err != nil || tx.Wait == 0 {
					t.Fatalf("got %+v, %v, want a wait", tx.Result, err)
				}
				return uneven
			}, false},
			{"the debt of a larger limit", func(s *Store) quota.Limit {
				s.ask(t, "key", uneven, 10)
				return algorithms.GCRA(5, time.Second)
			}, false},
		} {
			s := New(Options{})
			l := tt.make(s)
			for range 2 * promoteAfter {
				s.ask(t, "key", l, l.Quota)
			}
			if got := s.heat(s.ask(t, "key", l, 0)); got != tt.want {
				t.Errorf("%s: hot is %v, want %v", tt.name, got, tt.want)
			}
		}
	})
}

// TestHotAllocates: refusals of two keys in turn promote neither state, and a thousand refusals of one
// key allocate once.
func TestHotAllocates(t *testing.T) {
	s := New(Options{MaxKeys: 1})
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "test", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}}}
	for _, c := range []struct {
		keys []string
		want float64
	}{{[]string{"one", "two"}, 0}, {[]string{"one"}, 1}} {
		refuse := func() {
			for i := range 1000 {
				tx.Charges[0].Key = c.keys[i%len(c.keys)]
				if err := s.Take(context.Background(), &tx); err != nil {
					t.Fatal(err)
				}
			}
			s.shards[0].lock(0)
			s.shards[0].mu.Unlock()
		}
		if n := testing.AllocsPerRun(10, refuse); n != c.want {
			t.Errorf("keys %q: got %v allocations for 1000 refusals, want %v", c.keys, n, c.want)
		}
	}
}

// TestHotLine: the word of a hot state is alone in its cache line. The allocator aligns 128 bytes to 128.
func TestHotLine(t *testing.T) {
	if size, word := unsafe.Sizeof(hot{}), unsafe.Offsetof(hot{}.word); size != 128 || word != 64 {
		t.Errorf("got %d bytes with the word at %d, want 128 and 64", size, word)
	}
}

// TestHotExact: several goroutines charge one key, and promote and recall its state all the time. They
// lose no charge and no refund.
func TestHotExact(t *testing.T) {
	for range rounds.N(1, 50) {
		hotExact(t)
	}
}

func hotExact(t *testing.T) {
	s := New(Options{MaxKeys: 64})
	const size = 200_000
	l := algorithms.GCRA(size, 40*24*time.Hour)
	s.ask(t, "key", l, size/2)
	var spent, heated atomic.Int64
	spent.Add(size / 2)
	var callers sync.WaitGroup
	for c := range 4 {
		callers.Go(func() {
			tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "test", Key: "key", Limit: l}}}
			for n := range 64_000 {
				cost := &tx.Charges[0].Cost
				*cost = int64(1 + n%2)
				switch n % 256 {
				case 0, 64, 128, 192:
					*cost = -95
				case 32:
					s.ask(t, fmt.Sprint(c, n), l, 1) // a new key
				case 96:
					s.ask(t, "key", l.WithBurst(100), 1) // another meter, which has no room
				case 1, 33, 65, 97, 129, 193:
					if s.heat(s.ask(t, "key", l, 0)) {
						heated.Add(1)
					}
				}
				if s.Take(context.Background(), tx) == nil && tx.Allowed() {
					spent.Add(*cost)
				}
			}
		})
	}
	callers.Wait()
	got := size - s.ask(t, "key", l, 0).Decisions[0].Remaining
	if want := spent.Load(); got > want || got < want-3 || heated.Load() == 0 { // a unit drains in 17 s
		t.Errorf("got %d units spent, hot %d times, want %d", got, heated.Load(), want)
	}
}
