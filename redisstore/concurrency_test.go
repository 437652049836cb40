package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

const (
	clients    = 8
	goroutines = 16
)

// together runs f in several goroutines for each of several clients. Each client has its own
// connections.
func together(t *testing.T, addr string, f func(store quota.Store)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for range clients {
		store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, addr))))
		for range goroutines {
			wg.Go(func() {
				<-begin
				f(store)
			})
		}
	}
	close(begin)
	wg.Wait()
}

// TestOneKey: if goroutines of several clients charge one key at once, exactly the quota is
// admitted.
func TestOneKey(t *testing.T) {
	const units, each = 300, 5
	addr := redistest.Server(t).Addr()
	for _, limits := range [][]quota.Limit{
		{algorithms.GCRA(units, 240*time.Hour)},
		{algorithms.AnchoredWindow(units, time.Hour)},
		{algorithms.SlidingLog(units, time.Hour)},
		{algorithms.GCRA(2*units, 240*time.Hour), algorithms.SlidingLog(units, time.Hour), algorithms.SlidingLog(2*units, 2*time.Hour).Named("2h")},
	} {
		var charges []quota.Charge
		for _, l := range limits {
			charges = append(charges, quota.Charge{Rule: fmt.Sprint(len(limits)), Key: limits[0].String(), Limit: l, Cost: 1})
		}
		var admitted atomic.Int64
		together(t, addr, func(store quota.Store) {
			tx := quota.Transaction{Charges: charges}
			for range each {
				if err := store.Take(t.Context(), &tx); err != nil {
					t.Error(err)
				} else if tx.Allowed() {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != units {
			t.Errorf("%v: got %d admitted of %d, want %d", limits, got, clients*goroutines*each, units)
		}
	}
}

// TestCrossingKeys: if concurrent transactions charge overlapping sets of keys, in any
// order, each key has spent exactly what was admitted.
func TestCrossingKeys(t *testing.T) {
	const units, each, keys = 100, 5, 6
	addr := redistest.Server(t).Addr()
	charges := func(cost int64, key int) []quota.Charge {
		return []quota.Charge{
			{Rule: "r", Key: fmt.Sprint(key), Limit: algorithms.GCRA(units, 2400*time.Hour), Cost: cost},
			{Rule: "r", Key: fmt.Sprint(key), Limit: algorithms.SlidingLog(units, time.Hour), Cost: cost},
		}
	}
	spent := make([]atomic.Int64, keys)
	together(t, addr, func(store quota.Store) {
		for range each {
			used := rand.Perm(keys)[:1+rand.IntN(keys)]
			spendOn(t, store, spent, used, func(key int) []quota.Charge { return charges(1, key) })
		}
	})
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: addr})))
	full := 0
	for key := range keys {
		for _, d := range take(t, store, charges(0, key)...).Decisions {
			if got, want := units-d.Remaining, spent[key].Load(); got != want {
				t.Errorf("key %d: got %d spent, want the %d admitted", key, got, want)
			}
		}
		if spent[key].Load() == units {
			full++
		}
	}
	if full == 0 {
		t.Errorf("got no key used up, want one at least")
	}
}

// spendOn takes the charges of some keys in one transaction. If the transaction is admitted,
// spendOn adds 1 to the count of each of these keys.
func spendOn(t *testing.T, store quota.Store, spent []atomic.Int64, used []int, charges func(key int) []quota.Charge) {
	var tx quota.Transaction
	for _, key := range used {
		tx.Charges = append(tx.Charges, charges(key)...)
	}
	if err := store.Take(context.Background(), &tx); err != nil {
		t.Error(err)
		return
	}
	if !tx.Allowed() {
		return
	}
	for _, key := range used {
		spent[key].Add(1)
	}
}
