package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// TestSwitchedRetryAfter: a refused charge is admitted when its RetryAfter is over, and
// at any later instant, if nothing else is spent. A charge that does not wait is not
// admitted earlier. This holds even if charges were reserved or cancelled, units were
// given back, the limit changed or the clock stepped.
func TestSwitchedRetryAfter(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 13))
	told := map[string]int{}
	for n := range rounds.N(4000, 20_000) {
		limits := switchedNumbers(r, n%8)
		now := int64(1_700_000_000_000_000) + r.Int64N(1e9)
		states := make([]quota.State, 1)
		var turns []quota.Transaction
		for range 40 {
			l := limits[r.IntN(len(limits))]
			tx := randomCharge(r, l, &turns)
			before := clone(states[0])
			switch allowed := tx.Decide(now, states); {
			case !allowed:
				told[l.Algorithm.Name()]++
				if err := checkRetryAfter(r, &tx, before, now); err != nil {
					t.Fatalf("seed %d: %v at %d: %v; state %+v", seed, l, now, err, before)
				}
			case tx.Wait > 0:
				turns = append(turns, tx)
			}
			d, period := tx.Decisions[0], l.Period.Microseconds()
			steps := []int64{0, 1, r.Int64N(period), period, -r.Int64N(period), d.NextAfter.Microseconds(), d.ResetAfter.Microseconds() / 2}
			now += steps[r.IntN(len(steps))]
		}
	}
	if len(told) != len(definitions) {
		t.Errorf("refused %v; want all of %d algorithms", told, len(definitions))
	}
}

// randomCharge returns a charge of l that may wait, that gives units back, or that cancels a
// reservation.
func randomCharge(r *rand.Rand, l quota.Limit, turns *[]quota.Transaction) quota.Transaction {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1 + r.Int64N(l.Capacity())}}}
	if r.IntN(3) == 0 {
		tx.Within = time.Duration(r.Int64N(2*l.Period.Microseconds())) * time.Microsecond
	}
	switch k := r.IntN(8); {
	case k == 0:
		tx.Charges[0].Cost = -tx.Charges[0].Cost
	case k == 1 && len(*turns) > 0:
		i := r.IntN(len(*turns))
		tx = (*turns)[i]
		tx.Charges[0].Cost, tx.Charges[0].Spent, tx.Within = -tx.Charges[0].Cost, tx.Decisions[0].At, 0
		*turns = slices.Delete(*turns, i, i+1)
	}
	return tx
}

// checkRetryAfter makes a refused charge again, when its RetryAfter is over and at other
// instants.
func checkRetryAfter(r *rand.Rand, tx *quota.Transaction, s quota.State, now int64) error {
	admitted := func(after int64) bool {
		again := quota.Transaction{Charges: tx.Charges, Within: tx.Within}
		return again.Decide(now+after, []quota.State{clone(s)})
	}
	retry, cost := tx.RetryAfter().Microseconds(), tx.Charges[0].Cost
	for _, after := range []int64{0, r.Int64N(3 * tx.Charges[0].Limit.Period.Microseconds())} {
		if !admitted(retry + after) {
			return fmt.Errorf("%d units within %v are refused %d µs after the RetryAfter of %d µs", cost, tx.Within, after, retry)
		}
	}
	for _, sooner := range []int64{retry - 1, r.Int64N(retry)} {
		if tx.Within == 0 && admitted(sooner) {
			return fmt.Errorf("%d units are admitted after %d µs, RetryAfter is %d µs", cost, sooner, retry)
		}
	}
	return nil
}

// switchedNumbers returns limits of one algorithm with random numbers.
func switchedNumbers(r *rand.Rand, kind int) (limits []quota.Limit) {
	period := 2 + r.Int64N(60)
	for range 2 + r.IntN(2) {
		units := []int64{1, 1 + r.Int64N(12), 1 + r.Int64N(100)}[r.IntN(3)]
		if kind == 7 {
			limits = append(limits, algorithms.Calendar(units, []algorithms.Unit{algorithms.Day, algorithms.Week, algorithms.Month}[r.IntN(3)], nil))
			continue
		}
		limits = append(limits, withoutParameters(units, 1+r.Int64N(2*units), time.Duration(period)*time.Microsecond)[kind])
		period = []int64{period, period + 1 + r.Int64N(period), period * (2 + r.Int64N(4))}[r.IntN(3)]
	}
	return limits
}
