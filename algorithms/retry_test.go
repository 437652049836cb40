package algorithms_test

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// TestSwitchedRetryAfter: a charge that is refused is admitted at the instant that
// RetryAfter names, and at any later one, if nothing else is spent. A charge that does not
// wait is not admitted earlier. This holds after reservations, cancellations, units given
// back, changes of the limit and steps of the clock.
func TestSwitchedRetryAfter(t *testing.T) {
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 13))
	histories := 20_000
	if testing.Short() {
		histories = 4000
	}
	told := map[string]int{}
	for n := range histories {
		kind := n % 8
		limits := switchedNumbers(r, kind)
		name := limits[0].Algorithm.Name()
		now := int64(1_700_000_000_000_000) + r.Int64N(1e9)
		states := make([]weir.State, 1)
		var turns []weir.Transaction
		for range 40 {
			l := limits[r.IntN(len(limits))]
			period, most := l.Period.Microseconds(), l.Capacity()
			tx := weir.Transaction{Charges: []weir.Charge{{Limit: l, Cost: 1 + r.Int64N(most)}}}
			if r.IntN(3) == 0 {
				tx.Within = time.Duration(r.Int64N(2*period)) * time.Microsecond
			}
			admitted := func(after int64) bool {
				again := weir.Transaction{Charges: tx.Charges, Within: tx.Within}
				s := []weir.State{states[0]}
				s[0].Log = slices.Clone(s[0].Log)
				return again.Decide(now+after, s)
			}
			switch k := r.IntN(8); {
			case k == 0:
				tx.Charges[0].Cost = -tx.Charges[0].Cost
			case k == 1 && len(turns) > 0:
				i := r.IntN(len(turns))
				tx = turns[i]
				tx.Charges[0].Cost, tx.Charges[0].Spent, tx.Within = -tx.Charges[0].Cost, tx.Decisions[0].At, 0
				turns = slices.Delete(turns, i, i+1)
			}
			before := states[0]
			before.Log = slices.Clone(before.Log)
			if tx.Decide(now, states) {
				if tx.Wait > 0 {
					turns = append(turns, tx)
				}
			} else {
				retry := tx.RetryAfter().Microseconds()
				told[name]++
				for _, after := range []int64{0, r.Int64N(3 * period)} {
					if !admitted(retry + after) {
						t.Fatalf("seed %d: %v at %d: %d units within %v are refused %d µs after the RetryAfter of %d µs; state %+v", seed, l, now, tx.Charges[0].Cost, tx.Within, after, retry, before)
					}
				}
				for _, sooner := range []int64{retry - 1, r.Int64N(retry)} {
					if tx.Within == 0 && admitted(sooner) {
						t.Fatalf("seed %d: %v at %d: %d units are admitted after %d µs, RetryAfter is %d µs; state %+v", seed, l, now, tx.Charges[0].Cost, sooner, retry, before)
					}
				}
			}
			d := tx.Decisions[0]
			steps := []int64{0, 1, r.Int64N(period), period, -r.Int64N(period), d.NextAfter.Microseconds(), d.ResetAfter.Microseconds() / 2}
			now += steps[r.IntN(len(steps))]
		}
	}
	if len(told) != len(definitions) {
		t.Errorf("refused %v; want all of %d algorithms", told, len(definitions))
	}
}

// switchedNumbers returns limits of one algorithm with any numbers.
func switchedNumbers(r *rand.Rand, kind int) (limits []weir.Limit) {
	period := 2 + r.Int64N(60)
	for range 2 + r.IntN(2) {
		quota := []int64{1, 1 + r.Int64N(12), 1 + r.Int64N(100)}[r.IntN(3)]
		if kind == 7 {
			limits = append(limits, algorithms.Calendar(quota, []algorithms.Unit{algorithms.Day, algorithms.Week, algorithms.Month}[r.IntN(3)], nil))
			continue
		}
		limits = append(limits, all(quota, 1+r.Int64N(2*quota), time.Duration(period)*time.Microsecond)[kind])
		period = []int64{period, period + 1 + r.Int64N(period), period * (2 + r.Int64N(4))}[r.IntN(3)]
	}
	return limits
}
