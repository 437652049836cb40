package memstore

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// TestRepeated: after several refusals in a row a store refuses without the lock, as another
// store does with it. After a change of the state, as many refusals are needed again.
func TestRepeated(t *testing.T) {
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
			for n := range repeats {
				if mine.shards[0].refused.Load() != nil {
					t.Errorf("got a copy of a state after a change and %d refusals, want none", n)
				}
				compare(1, false)
			}
		}
		compare(10, true)
		refuse()
		mine.shards[0].mu.Lock()
		for now := range 60 {
			for cost := int64(1 + now*3/60); cost <= 10; cost++ {
				compare(cost, false)
			}
			time.Sleep(time.Second)
		}
		mine.shards[0].mu.Unlock()
		s, tx := mine.shards[0].refused.Load(), mine.ask(t, "key", l, 4)
		if s.refuses(tx, tx.Plan(0), s.at-1) {
			t.Error("got a refusal before the instant of the last charge, want none without the lock")
		}
		compare(3, true)
		refuse()
		if mine.shards[0].refused.Load() == nil {
			t.Errorf("got no copy of a state after %d refusals, want one", repeats)
		}
	})
}

// TestRepeatedAllocates: refusals of several keys in turn make no copy, and refusals without the
// lock allocate nothing.
func TestRepeatedAllocates(t *testing.T) {
	s := New(Options{MaxKeys: 1})
	tx := weir.Transaction{Charges: []weir.Charge{{Rule: "test", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}}}
	refuse := func(keys ...string) func() {
		return func() {
			for _, tx.Charges[0].Key = range keys {
				if err := s.Take(context.Background(), &tx); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	for _, keys := range [][]string{{"one", "two"}, {"one"}} {
		if n := testing.AllocsPerRun(1000, refuse(keys...)); n != 0 {
			t.Errorf("keys %q: got %v allocations a refusal, want 0", keys, n)
		}
		if got, want := s.shards[0].copied != 0, len(keys) == 1; got != want {
			t.Errorf("keys %q: got a copy: %v, want %v", keys, got, want)
		}
	}
}

// TestRepeatedRace: while other goroutines are refused, a unit that has been given back can be
// spent at once.
func TestRepeatedRace(t *testing.T) {
	s := New(Options{})
	l := algorithms.GCRA(10, time.Hour)
	s.ask(t, "key", l, 10)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for !stop.Load() {
				if d := s.ask(t, "key", l, 2).Decisions[0]; d.Allowed || d.Remaining > 1 {
					t.Errorf("got %+v, want refused", d)
					return
				}
			}
		})
	}
	for range 20_000 {
		for range repeats {
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
