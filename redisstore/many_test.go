package redisstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestManyLimitsEach: TakeEach decides batches of equal transactions, with 1 to 250 limits in
// each transaction.
func TestManyLimitsEach(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store := newStore(t, rdb)
	for _, n := range []int{1, 30, 31, 32, 33, 66, 100, 250} {
		for name, limit := range map[string]func(int64, time.Duration) quota.Limit{"meters": algorithms.GCRA, "logs": algorithms.SlidingLog} {
			var charges []quota.Charge
			for i := range n {
				charges = append(charges, quota.Charge{Rule: name, Key: fmt.Sprint(n), Limit: limit(3, time.Hour+time.Duration(i)*time.Second), Cost: 1})
			}
			var ts []*quota.Transaction
			for range 5 {
				ts = append(ts, &quota.Transaction{Charges: slices.Clone(charges)})
			}
			takeEach(t, store, fmt.Sprint(n, " ", name), ts)
			for i, tx := range ts {
				if got, want := len(tx.Decisions) == n && tx.Allowed(), i < 3; got != want {
					t.Errorf("%d %s, transaction %d: got allowed %v, want %v", n, name, i, got, want)
				}
			}
		}
	}
}

// TestTooManyCharges: for a transaction of more than 10,000 charges, Take returns an error
// that names this bound.
func TestTooManyCharges(t *testing.T) {
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Minute}) // a busy machine may need longer than patience for 10,000 charges
	if err != nil {
		t.Fatal(err)
	}
	tx := quota.Transaction{}
	for i := range 10_001 {
		tx.Charges = append(tx.Charges, quota.Charge{Key: fmt.Sprint(i), Limit: algorithms.GCRA(3, time.Hour), Cost: 1})
	}
	const want = "redisstore: the transaction has 10001 charges; want at most 10000"
	if err := store.Take(t.Context(), &tx); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
	tx.Charges = tx.Charges[1:]
	if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() {
		t.Errorf("one charge less: got error %v, allowed %v; want it decided", err, tx.Allowed())
	}
}
