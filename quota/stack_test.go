package quota_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestStackDecidesAlike: a stack of decorators admits, refuses and delays random transactions
// as a store alone does. The transactions have several limits and keys, cancelled turns,
// negative costs, waits, Peek and Forget.
func TestStackDecidesAlike(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 7))
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			runAlike(t, r, seed)
		})
	}
}

// runAlike sends the same 60 transactions to a stack and to a store alone.
func runAlike(t *testing.T, r *rand.Rand, seed uint64) {
	alone := memstore.New(memstore.Options{})
	stack := quota.Hybrid(quota.Breaker(quota.Coalesce(quota.Fallback(quota.Share(memory(), 1), memory(), quota.FallbackOptions{})), quota.BreakerOptions{}), quota.HybridOptions{MaxKeys: r.IntN(2) * 2})
	period := []time.Duration{time.Second, 7 * time.Second, time.Minute}[r.IntN(3)]
	q := 1 + r.Int64N(8)
	limits := randomLimits(r, q, period)
	var turns [][2]quota.Transaction // transactions that give the turns back
	for range 60 {
		tx := randomTransaction(r, q, period, limits)
		want, got := tx, tx
		if len(turns) > 0 && r.IntN(5) == 0 {
			i := r.IntN(len(turns))
			want, got = turns[i][0], turns[i][1]
		}
		for store, tx := range map[quota.Store]*quota.Transaction{alone: &want, stack: &got} {
			if err := store.Take(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
		}
		checkAlike(t, seed, &got, &want)
		if want.Allowed() && want.Wait > 0 {
			turns = append(turns, [2]quota.Transaction{backOf(&want), backOf(&got)})
		}
		time.Sleep([]time.Duration{0, 0, time.Microsecond, period / time.Duration(q), time.Duration(r.Int64N(int64(period)))}[r.IntN(5)].Truncate(time.Microsecond))
	}
}

// randomLimits returns one to three limits of q units per period.
func randomLimits(r *rand.Rand, q int64, period time.Duration) (limits []quota.Limit) {
	for i := range 1 + r.IntN(3) {
		l := []quota.Limit{
			algorithms.GCRA(q, period), algorithms.TokenBucket(q, q, period), algorithms.LeakyBucket(q, q, period),
			algorithms.FixedWindow(q, period), algorithms.AnchoredWindow(q, period), algorithms.SlidingWindow(q, period),
			algorithms.SlidingLog(q, period), algorithms.Calendar(q, algorithms.Day, time.FixedZone("", -3590+r.IntN(10))),
		}[r.IntN(8)]
		if i > 0 {
			l = l.Named(fmt.Sprint(i))
		}
		limits = append(limits, l)
	}
	return limits
}

// randomTransaction charges one or two keys under limits of q units per period.
func randomTransaction(r *rand.Rand, q int64, period time.Duration, limits []quota.Limit) (tx quota.Transaction) {
	for _, key := range []string{"a", "b"}[:1+r.IntN(8)/7] {
		for _, l := range limits {
			tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: []int64{1, 1, 1, q, 2, 0, -1, q + 1}[r.IntN(8)]})
		}
	}
	if r.IntN(3) == 0 {
		tx.Within = time.Duration(r.Int64N(int64(3 * period)))
	}
	if r.IntN(8) == 0 {
		tx.Mode, tx.Within = []quota.Mode{quota.ModePeek, quota.ModeForget}[r.IntN(2)], 0
	}
	return tx
}

// checkAlike compares a decision of a stack with the decision of a store alone. The
// RetryAfter of the stack may be shorter, but not longer.
func checkAlike(t *testing.T, seed uint64, got, want *quota.Transaction) {
	t.Helper()
	if got.Allowed() != want.Allowed() || got.Allowed() && got.Wait != want.Wait || !got.Allowed() && got.RetryAfter() > want.RetryAfter() {
		t.Fatalf("seed %d: %+v within %v:\ngot  %+v, wait %v\nwant %+v, wait %v", seed, want.Charges, want.Within, got.Decisions, got.Wait, want.Decisions, want.Wait)
	}
}

// backOf returns the transaction that gives back the charges of a turn.
func backOf(t *quota.Transaction) (back quota.Transaction) {
	for i, c := range t.Charges {
		if c.Cost > 0 {
			c.Cost, c.Spent = -c.Cost, t.Decisions[i].At
			back.Charges, back.Cancels = append(back.Charges, c), append(back.Cancels, t.Undo[i])
		}
	}
	return back
}
