package weir

import "context"

// Peek returns what a store says of charges without spending anything: what
// remains, when more is free, when all is. Their Cost is ignored.
func Peek(ctx context.Context, store Store, charges ...Charge) (*Transaction, error) {
	return takeAll(ctx, store, charges, 0)
}

// Reset gives back all that the keys of charges have spent; their Cost is
// ignored. What is reserved keeps its instant: nobody goes before it. To give
// back some, Take a charge of negative Cost; to allow more than the limit, raise
// it, for instance by Rule.LimitsFor.
func Reset(ctx context.Context, store Store, charges ...Charge) error {
	_, err := takeAll(ctx, store, charges, -2*MaxTicks)
	return err
}

func takeAll(ctx context.Context, store Store, charges []Charge, cost int64) (*Transaction, error) {
	t := &Transaction{Charges: make([]Charge, len(charges))}
	for i, c := range charges {
		c.Cost = cost
		t.Charges[i] = c
	}
	return t, store.Take(ctx, t)
}
