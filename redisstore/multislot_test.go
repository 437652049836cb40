package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// apart returns n keys that are in different slots.
func apart(s *redisstore.Store, n int) (keys []string) {
	slots := map[string]bool{}
	for i := 0; len(keys) < n; i++ {
		if key := fmt.Sprint("key ", i); !slots[s.Slot(key)] {
			slots[s.Slot(key)] = true
			keys = append(keys, key)
		}
	}
	return keys
}

// spreads calls f twice: with a store in a cluster and with a store in a ring. Both stores
// keep keys on several nodes.
func spreads(t *testing.T, f func(t *testing.T, store *redisstore.Store)) {
	t.Run("cluster", func(t *testing.T) {
		c := redistest.Cluster(t, 3, 0)
		f(t, newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, c.Addrs()...)))))
	})
	t.Run("ring", func(t *testing.T) {
		f(t, newStore(t, client(t, redis.NewRing(&redis.RingOptions{Addrs: map[string]string{
			"1": redistest.Server(t).Addr(), "2": redistest.Server(t).Addr(),
		}}))))
	})
}

func take(t *testing.T, store quota.Store, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	tx := &quota.Transaction{Charges: charges}
	if err := store.Take(t.Context(), tx); err != nil {
		t.Fatalf("Take: %v", err)
	}
	return tx
}

// takeEach takes a batch in one call.
func takeEach(t *testing.T, store *redisstore.Store, what string, batch []*quota.Transaction) {
	t.Helper()
	for i, err := range store.TakeEach(t.Context(), batch) {
		if err != nil {
			t.Fatalf("%s: %d of a batch of %d: %v", what, i, len(batch), err)
		}
	}
}

// TestSpread: a transaction on keys in different slots spends all of its charges or none,
// and each charge gets a decision.
func TestSpread(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	spreads(t, func(t *testing.T, store *redisstore.Store) {
		keys := apart(store, 6)
		charge := func(i int, cost int64) quota.Charge {
			return quota.Charge{Rule: "r", Key: keys[i], Limit: algorithms.AnchoredWindow(5, time.Hour), Cost: cost}
		}
		two := charge(1, 2)
		two.Limit = two.Limit.Named("two")
		never := charge(3, 6)
		tests := []struct {
			what      string
			charges   []quota.Charge
			allowed   []bool
			remaining []int64
		}{
			{"all fit", []quota.Charge{charge(0, 1), charge(1, 2), two}, []bool{true, true, true}, []int64{4, 3, 3}},
			{"and again", []quota.Charge{two, charge(1, 2), charge(0, 4)}, []bool{true, true, true}, []int64{1, 1, 0}},
			{"the last is full", []quota.Charge{charge(1, 1), charge(2, 1), charge(0, 1)}, []bool{true, true, false}, []int64{1, 5, 0}},
			{"the first is full", []quota.Charge{charge(0, 1), charge(2, 1), charge(1, 1)}, []bool{false, true, true}, []int64{0, 5, 1}},
			{"one never fits", []quota.Charge{charge(2, 1), never, charge(4, 1)}, []bool{true, false, true}, []int64{5, 5, 5}},
			{"a gift that is refused with the rest", []quota.Charge{charge(1, -1), never}, []bool{true, false}, []int64{1, 5}},
			{"looks", []quota.Charge{charge(0, 0), charge(1, 0), charge(2, 0), charge(3, 0)}, []bool{true, true, true, true}, []int64{0, 1, 5, 5}},
			{"a gift that counts", []quota.Charge{charge(1, -1), charge(2, 1), charge(0, 0)}, []bool{true, true, true}, []int64{2, 4, 0}},
			{"and did", []quota.Charge{charge(1, 2), charge(2, 4)}, []bool{true, true}, []int64{0, 0}},
		}
		for _, test := range tests {
			tx := take(t, store, test.charges...)
			for i, d := range tx.Decisions {
				if d.Allowed != test.allowed[i] || d.Remaining != test.remaining[i] {
					t.Errorf("%s: charge %d: got %v and %d left, want %v and %d", test.what, i, d.Allowed, d.Remaining, test.allowed[i], test.remaining[i])
				}
			}
		}
		tx := take(t, store, never, charge(0, 1))
		if tx.Decisions[0].RetryAfter != quota.Never || tx.Decisions[1].RetryAfter <= 0 || tx.Wait != 0 {
			t.Errorf("refused: got %+v and Wait %v", tx.Decisions, tx.Wait)
		}
		tx = &quota.Transaction{Charges: []quota.Charge{charge(0, 1), charge(4, 1)}, Within: 2 * time.Hour}
		if err := store.Take(t.Context(), tx); err != nil || tx.Allowed() || tx.Wait != 0 {
			t.Errorf("several slots, with time to wait: got %v, %v, Wait %v; want a refusal without a wait", err, tx.Allowed(), tx.Wait)
		}
	})
}

// TestSpreadRace: concurrent transactions on keys of different slots never get more units than
// the limits allow. Few units are lost, that is, spent by a transaction that was not admitted.
func TestSpreadRace(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	spreads(t, func(t *testing.T, store *redisstore.Store) {
		const units, each, keys = 100, 40, 6
		names := apart(store, keys)
		for _, l := range []quota.Limit{
			algorithms.GCRA(units, 2400*time.Hour), algorithms.AnchoredWindow(units, time.Hour), algorithms.SlidingLog(units, time.Hour),
		} {
			charge := func(key int, cost int64) quota.Charge {
				return quota.Charge{Rule: "r", Key: names[key], Limit: l, Cost: cost}
			}
			spent := make([]atomic.Int64, keys)
			weirtest.Together(goroutines, func(int) {
				for range each {
					used := rand.Perm(keys)[:2+rand.IntN(2)]
					spendOn(t, store, spent, used, func(key int) []quota.Charge { return []quota.Charge{charge(key, 1)} })
				}
			})
			admitted, lost := int64(0), int64(0)
			for key := range keys {
				got := units - take(t, store, charge(key, 0)).Decisions[0].Remaining
				want := spent[key].Load()
				if want > units || got < want {
					t.Errorf("%v, key %d: got %d admitted of %d, and %d spent", l, key, want, units, got)
				}
				admitted, lost = admitted+want, lost+got-want
			}
			t.Logf("%v: %d units admitted, %d lost in races", l, admitted, lost)
			if lost > admitted/4 {
				t.Errorf("%v: got %d units lost in races of %d admitted, want few", l, lost, admitted)
			}
		}
	})
}
