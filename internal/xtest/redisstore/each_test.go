package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestTakeEach: on a clock that stands still, TakeEach decides a batch as Take decides the
// same transactions one after the other.
func TestTakeEach(t *testing.T) {
	t.Parallel()
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 5))
	server := mini(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	now := time.Now().Truncate(time.Microsecond) // the real time, because TakeEach sends only the windows of a calendar that are around it
	merged := 0
	for round := range rounds.N(30, 100) {
		open := func(prefix string) *redisstore.Store {
			s, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second, Prefix: prefix})
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		each, single := open(fmt.Sprint("e", round, ":")), open(fmt.Sprint("s", round, ":"))
		limits := fewLimits(r)
		for range 4 {
			now = now.Add(time.Duration(r.Int64N(30_000_000)) * time.Microsecond)
			server.SetTime(now)
			var got, want []*quota.Transaction
			for range 1 + r.IntN(30) {
				tx := batched(r, limits)
				copied := tx
				got, want = append(got, &tx), append(want, &copied)
			}
			if errs := each.TakeEach(t.Context(), got); errs != nil {
				t.Fatalf("seed %d: %v", seed, errs)
			}
			if err := checkBatch(t.Context(), single, got, want); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			merged += len(want)
		}
	}
	t.Logf("%d transactions", merged)
}

// fewLimits returns at most three limits. Most of these limits are under GCRA.
func fewLimits(r *rand.Rand) (limits []quota.Limit) {
	for i := range 1 + r.IntN(3) {
		l := randomLimit(r)
		if r.IntN(4) > 0 {
			l = algorithms.GCRA(1+r.Int64N(40), time.Duration(1+r.Int64N(100))*time.Second)
		}
		if l.Validate() == nil {
			limits = append(limits, l.Named(fmt.Sprint("l", i)))
		}
	}
	return limits
}

// batched returns a transaction for a batch. Most of the transactions that it returns have equal
// charges.
func batched(r *rand.Rand, limits []quota.Limit) (tx quota.Transaction) {
	cost := int64(1)
	if r.IntN(15) == 0 {
		cost = r.Int64N(5) - 1
	}
	if r.IntN(20) == 0 {
		tx.Within = time.Minute
	}
	key := []string{"a", "a", "a", "b"}[r.IntN(4)]
	for i := range limits {
		tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: key, Limit: limits[i], Cost: cost})
	}
	return tx
}

// checkBatch takes the transactions of the list want one after the other. It compares their
// decisions with the decisions of the same transactions in the list got.
func checkBatch(ctx context.Context, single quota.Store, got, want []*quota.Transaction) error {
	for i := range want {
		if err := single.Take(ctx, want[i]); err != nil {
			return err
		}
		if err := equalDecisions(got[i], want[i]); err != nil {
			return fmt.Errorf("transaction %d of %d, %v", i, len(want), err)
		}
	}
	return nil
}

// equalDecisions returns an error if two stores have decided the same charges differently.
func equalDecisions(got, want *quota.Transaction) error {
	for j := range want.Decisions {
		if got.Decisions[j] != want.Decisions[j] || got.Wait != want.Wait || !got.At.Equal(want.At) {
			return fmt.Errorf("charge %d: got %+v, want %+v, for %+v", j, got.Decisions[j], want.Decisions[j], want.Charges)
		}
	}
	return nil
}
