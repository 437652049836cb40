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

// oneKey: whoever asks at once, a limit admits what it says, no more, no less.
func oneKey(t testing.TB, store weir.Store) {
	const quota, each = 100, 20
	for _, l := range []weir.Limit{
		algorithms.GCRA(quota, 240*time.Hour),
		algorithms.TokenBucket(quota, 1, time.Hour),
		algorithms.LeakyBucket(quota, 1, time.Hour),
		algorithms.AnchoredWindow(quota, time.Hour),
		algorithms.SlidingLog(quota, time.Hour),
	} {
		p := newReplay(t, store)
		var admitted atomic.Int64
		together(func(int) {
			tx := weir.Transaction{Charges: []weir.Charge{p.charge("", l, 1)}}
			for range each {
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Errorf("Take: got error %q, want none", err)
				} else if tx.Allowed() {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != quota {
			t.Errorf("%v: got %d admitted of %d, want %d", l, got, goroutines*each, quota)
		}
	}
}

// crossingKeys: goroutines that charge the same keys in different orders don't
// wait for each other forever, and nothing is lost or spent twice.
func crossingKeys(t testing.TB, store weir.Store) {
	const quota, each, keys = 60, 20, 6
	p := newReplay(t, store)
	l := algorithms.GCRA(quota, 240*time.Hour)
	var all, spent [keys]atomic.Int64 // key 0 is in every transaction
	together(func(int) {
		for range each {
			tx := weir.Transaction{}
			used := append([]int{0}, rand.Perm(keys - 1)[:1+rand.IntN(keys-1)]...)
			for i := 1; i < len(used); i++ {
				used[i]++
			}
			rand.Shuffle(len(used), func(i, j int) { used[i], used[j] = used[j], used[i] })
			for _, k := range used {
				tx.Charges = append(tx.Charges, p.charge(fmt.Sprint(k), l, 1))
			}
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Errorf("Take: got error %q, want none", err)
				return
			}
			for _, k := range used {
				all[k].Add(1)
				if tx.Allowed() {
					spent[k].Add(1)
				}
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
		t.Errorf("got %d transactions admitted of %d, want %d", got, goroutines*each, quota)
	}
}

// together runs f in goroutines that begin at once.
func together(f func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range goroutines {
		wg.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	wg.Wait()
}
