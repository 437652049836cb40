package memstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// TestPublished: after eight refusals a store refuses without the lock, and decides as a store
// that takes the lock. After a change of the state it takes eight refusals again.
func TestPublished(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mine, theirs := New(Options{MaxKeys: 1}), New(Options{MaxKeys: 1})
		l := algorithms.TokenBucket(10, 3, time.Minute)
		compare := func(cost int64, allowed bool) {
			t.Helper()
			got, want := mine.ask(t, "key", l, cost), theirs.ask(t, "key", hidden(l), cost)
			if got.Decisions[0] != want.Decisions[0] || !got.At.Equal(want.At) || got.Allowed() != allowed {
				t.Fatalf("cost %d: got %+v, want %+v, allowed %v", cost, got.Decisions[0], want.Decisions[0], allowed)
			}
		}
		refuse := func() {
			for n := range publishAfter {
				if mine.shards[0].published.Load() != nil {
					t.Errorf("got a published state after %d refusals, want none", n)
				}
				compare(1, false)
			}
		}
		compare(10, true)
		refuse()
		mine.shards[0].mu.Lock()
		for second := range 60 {
			for cost := int64(1 + second*3/60); cost <= 10; cost++ {
				compare(cost, false)
			}
			time.Sleep(time.Second)
		}
		mine.shards[0].mu.Unlock()
		s, tx := mine.shards[0].published.Load(), mine.ask(t, "key", l, 4)
		if s.tryRefuse(tx, tx.Plan(0), s.at-1) {
			t.Error("got a refusal before the instant of the last charge, want none without the lock")
		}
		compare(3, true)
		refuse()
		if mine.shards[0].published.Load() == nil {
			t.Errorf("got no published state after %d refusals, want one", publishAfter)
		}
	})
}

// TestPublishedAllocates: refusals of two keys in turn publish neither state, if neither was
// published before. A thousand refusals of one key allocate once.
func TestPublishedAllocates(t *testing.T) {
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
			s.shards[0].unpublish(s.shards[0].publishedID)
		}
		if n := testing.AllocsPerRun(1, refuse); n != c.want {
			t.Errorf("keys %q: got %v allocations for 1000 refusals, want %v", c.keys, n, c.want)
		}
	}
}

// TestPublishedLine: a published state has the size of a cache line, so the allocator gives it a
// line of its own.
func TestPublishedLine(t *testing.T) {
	if got := unsafe.Sizeof(publishedSlot{}); got != 64 {
		t.Errorf("got %d bytes, want 64", got)
	}
}

// TestPublishedRace: while other goroutines are refused, a unit that has been given back can be
// spent at once.
func TestPublishedRace(t *testing.T) {
	s := New(Options{})
	l := algorithms.GCRA(10, time.Hour)
	s.ask(t, "key", l, 10)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				if d := s.ask(t, "key", l, 2).Decisions[0]; d.Allowed || d.Remaining > 1 {
					t.Errorf("got %+v, want refused with at most 1 remaining", d)
					return
				}
			}
		})
	}
	for range 20_000 {
		for range publishAfter {
			s.ask(t, "key", l, 1)
		}
		s.ask(t, "key", l, -1)
		if d := s.ask(t, "key", l, 1).Decisions[0]; !d.Allowed {
			t.Errorf("after a unit was given back: got %+v, want allowed", d)
			break
		}
	}
	stop.Store(true)
	wg.Wait()
}
