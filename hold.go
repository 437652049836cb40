package weir

import (
	"context"
	"time"
)

// hold lets nobody spend charges before d is over: it reserves a unit of each at
// that instant and gives it back, and the instant stays. ok is false, and nothing
// done, where one of them is held for longer already.
func hold(ctx context.Context, store Store, d time.Duration, charges ...Charge) (ok bool, err error) {
	t := Transaction{Charges: make([]Charge, len(charges)), Delay: d, Within: d}
	for i, c := range charges {
		c.Cost = 1
		t.Charges[i] = c
	}
	if err := store.Take(ctx, &t); err != nil || !t.Allowed() {
		return false, err
	}
	for i := range t.Charges {
		t.Charges[i].Cost = -1
	}
	t.Delay, t.Within = 0, 0
	return true, store.Take(ctx, &t)
}
