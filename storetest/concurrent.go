package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

const goroutines = 16

// oneKey: under concurrent calls a limit admits exactly its quota.
func oneKey(t testing.TB, store weir.Store) {
	const quota, calls = 100, 20
	for _, l := range []weir.Limit{
		algorithms.GCRA(quota, 240*time.Hour),
		algorithms.TokenBucket(quota, 1, time.Hour),
		algorithms.LeakyBucket(quota, 1, time.Hour),
		algorithms.AnchoredWindow(quota, time.Hour),
		algorithms.SlidingLog(quota, time.Hour),
		algorithms.InFlight(quota, time.Hour),
	} {
		p := newReplay(t, store)
		var admitted atomic.Int64
		together(func() {
			tx := weir.Transaction{Charges: []weir.Charge{p.charge("", l, 1)}}
			for range calls {
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Errorf("Take: got error %q, want none", err)
				} else if tx.Allowed() {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != quota {
			t.Errorf("%v: got %d admitted of %d, want %d", l, got, goroutines*calls, quota)
		}
	}
}

// crossingKeys: goroutines that charge the same keys in different orders do not
// deadlock, and no unit is lost or spent twice.
func crossingKeys(t testing.TB, store weir.Store) {
	const quota, calls, keys = 60, 20, 6
	p := newReplay(t, store)
	l := algorithms.GCRA(quota, 240*time.Hour)
	var all, spent [keys]atomic.Int64
	takeSome := func() error {
		tx, used := weir.Transaction{}, someKeys(keys)
		for _, k := range used {
			tx.Charges = append(tx.Charges, p.charge(fmt.Sprint(k), l, 1))
		}
		if err := store.Take(t.Context(), &tx); err != nil {
			return err
		}
		for _, k := range used {
			all[k].Add(1)
			if tx.Allowed() {
				spent[k].Add(1)
			}
		}
		return nil
	}
	together(func() {
		for range calls {
			if err := takeSome(); err != nil {
				t.Errorf("Take: got error %q, want none", err)
				return
			}
		}
	})
	for k := range keys {
		tx := weir.Transaction{Charges: []weir.Charge{p.charge(fmt.Sprint(k), l, 0)}}
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatalf("Take: got error %q, want none", err)
		}
		if got, want := quota-tx.Decisions[0].Remaining, spent[k].Load(); got != want {
			t.Errorf("key %d: got %d spent of %d asked, want the %d admitted", k, got, all[k].Load(), want)
		}
	}
	if got := spent[0].Load(); got != quota {
		t.Errorf("got %d transactions admitted of %d, want %d", got, goroutines*calls, quota)
	}
}

// someKeys returns key 0 and at least one other of n keys, in random order.
func someKeys(n int) []int {
	keys := rand.Perm(n - 1)[:1+rand.IntN(n-1)]
	for i := range keys {
		keys[i]++
	}
	keys = append(keys, 0)
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	return keys
}

// together runs f in 16 goroutines that begin at the same time, and waits for them.
func together(f func()) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range goroutines {
		wg.Go(func() {
			<-begin
			f()
		})
	}
	close(begin)
	wg.Wait()
}
