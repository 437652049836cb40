package algorithms_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// TestHeadroomGuarantee: whatever charges with a headroom of h spend, other charges are allowed as if
// they alone had a limit of h units: a window or log of h, or a meter with a burst of h and the whole
// rate. The proof for a meter: a charge with headroom leaves a debt of at most size − h. Other charges
// add as much to this debt as to that of the meter of their own, and both debts drain alike, so the
// debt exceeds that of their own meter by at most size − h. Both may exceed their size by what drains
// in a µs, so the shared limit may allow a charge a µs later. Windows and logs are sums, of which
// charges with headroom leave h. The windows of an anchored window of their own would begin at other
// times, so it is not tested: each of the shared windows has h units for them.
func TestHeadroomGuarantee(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	refused := 0
	for range rounds.N(2_000, 20_000) {
		units := 2 + r.Int64N(20)
		h := 1 + r.Int64N(units-1)
		for _, l := range withoutParameters(units, units, time.Duration(1+r.Int64N(1000))*time.Microsecond) {
			own := l
			if own.Quota = h; l.Burst > 0 {
				own.Quota, own.Burst = units, h
			}
			if l.Algorithm.Name() == "anchored-window" || own.Validate() != nil || l.Validate() != nil {
				continue
			}
			n, err := guaranteed(r, l, own, h)
			if refused += n; err != nil {
				t.Fatalf("seed %d: %v, headroom %d: %v", seed, l, h, err)
			}
		}
	}
	if refused == 0 {
		t.Error("no charge with headroom was refused; want some")
	}
}

// guaranteed makes random charges with and without headroom h under l. It returns an error if one
// without is refused that the limit own allows, which charges nothing else. refused is how many charges
// with headroom were refused.
func guaranteed(r *rand.Rand, l, own quota.Limit, h int64) (refused int, err error) {
	now := int64(1_700_000_000_000_000) + r.Int64N(1e12)
	shared, alone := make([]quota.State, 1), make([]quota.State, 1)
	batch := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1, Headroom: h}}}
	for range 40 {
		now += r.Int64N(l.Period.Microseconds()/l.Quota + 2)
		for range r.IntN(4) {
			if !batch.Decide(now, shared) {
				refused++
			}
		}
		people := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1 + r.Int64N(h)}}}
		theirs := quota.Transaction{Charges: []quota.Charge{{Limit: own, Cost: people.Charges[0].Cost}}}
		if !theirs.Decide(now, alone) || people.Decide(now, shared) {
			continue
		}
		if now++; l.Burst == 0 || !people.Decide(now, shared) {
			return refused, fmt.Errorf("a charge of %d is refused for %v", people.Charges[0].Cost, people.RetryAfter())
		}
	}
	return refused, nil
}
