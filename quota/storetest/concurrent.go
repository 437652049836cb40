package storetest

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

const goroutines = 16

// oneKey: if many goroutines charge the same key, the limit admits exactly its quota.
func oneKey(p *replay) {
	const units, calls = 100, 20
	for _, l := range []quota.Limit{
		algorithms.GCRA(units, 240*time.Hour),
		algorithms.TokenBucket(units, 1, time.Hour),
		algorithms.LeakyBucket(units, 1, time.Hour),
		algorithms.AnchoredWindow(units, time.Hour),
		algorithms.SlidingLog(units, time.Hour),
		algorithms.InFlight(units, time.Hour),
	} {
		p.run += "."
		var admitted atomic.Int64
		together(func() {
			tx := quota.Transaction{Charges: []quota.Charge{p.charge("", l, 1)}}
			for range calls {
				if err := p.store.Take(p.Context(), &tx); err != nil {
					p.Errorf("Take: got error %q, want none", err)
				} else if tx.Allowed() {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != units {
			p.Errorf("%v: got %d admitted of %d, want %d", l, got, goroutines*calls, units)
		}
	}
}

// crossingKeys: goroutines that charge the same keys in different orders do not
// deadlock, and no unit is lost or spent twice.
func crossingKeys(p *replay) {
	const units, calls, keys = 60, 20, 6
	l := algorithms.GCRA(units, 240*time.Hour)
	var all, spent [keys]atomic.Int64
	takeSome := func() error {
		tx, used := quota.Transaction{}, someKeys(keys)
		for _, k := range used {
			tx.Charges = append(tx.Charges, p.charge(fmt.Sprint(k), l, 1))
		}
		if err := p.store.Take(p.Context(), &tx); err != nil {
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
				p.Errorf("Take: got error %q, want none", err)
				return
			}
		}
	})
	for k := range keys {
		tx := quota.Transaction{Charges: []quota.Charge{p.charge(fmt.Sprint(k), l, 0)}}
		if err := p.store.Take(p.Context(), &tx); err != nil {
			p.Fatalf("Take: got error %q, want none", err)
		}
		if got, want := units-tx.Decisions[0].Remaining, spent[k].Load(); got != want {
			p.Errorf("key %d: got %d spent of %d tried, want the %d admitted", k, got, all[k].Load(), want)
		}
	}
	if got := spent[0].Load(); got != units {
		p.Errorf("got %d transactions admitted of %d, want %d", got, goroutines*calls, units)
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
