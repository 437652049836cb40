package storetest

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// each: an optional.Batcher evaluates the transactions of a batch as if Take were called for one
// after the other. An invalid transaction gets an error, and all others are evaluated.
func each(p *replay) {
	batcher, ok := p.store.(optional.Batcher)
	if !ok {
		return
	}
	r := seeded(p)
	for i := range 40 {
		p.run += "."
		ts, invalid := anyBatch(p, r), -1
		if len(ts) > 0 && i%2 == 1 {
			invalid = r.IntN(len(ts))
			c := ts[invalid].Charges[0]
			ts[invalid].Charges = []quota.Charge{c, c}
		}
		p.takeEach(batcher, ts, invalid)
	}
	gone, cancel := context.WithCancel(p.Context())
	cancel()
	ts := []*quota.Transaction{{Charges: []quota.Charge{p.charge("gone", three, 1)}}}
	if errs := batcher.TakeEach(gone, ts); len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		p.Errorf("TakeEach, canceled: got errors %v, want one, %q", errs, context.Canceled)
	}
	p.checkResults(p.takeOne("gone", three, 0), true, 3)
}

// anyBatch returns random transactions with one or two charges each. Successive transactions may be
// equal.
func anyBatch(p *replay, r *rand.Rand) (ts []*quota.Transaction) {
	const units = 9
	all := limits(units, time.Hour)
	for range r.IntN(12) {
		charges := anyUnlike(r, 2, func() quota.Charge { return p.anyCharge(r, all, units) })
		within := []time.Duration{0, 0, 0, time.Hour}[r.IntN(4)]
		for range 1 + r.IntN(2)*r.IntN(2*units) {
			result := quota.Result{Decisions: make([]quota.Decision, r.IntN(3)), Wait: time.Hour}
			ts = append(ts, &quota.Transaction{Charges: charges, Within: within, Result: result})
		}
	}
	return ts
}

// takeEach makes the store evaluate a batch. It fails the test unless the transaction with the
// index invalid gets ErrDuplicate, and the replay makes the same decisions on all other
// transactions.
func (r *replay) takeEach(batcher optional.Batcher, ts []*quota.Transaction, invalid int) {
	r.Helper()
	wants := make([]quota.Transaction, len(ts))
	for i, tx := range ts {
		wants[i] = question(tx)
	}
	errs := batcher.TakeEach(r.Context(), ts)
	if errs == nil { // no transaction failed
		errs = make([]error, len(ts))
	}
	if len(errs) != len(ts) {
		r.Fatalf("TakeEach: got %d errors for %d transactions, want nil or one for each", len(errs), len(ts))
	}
	for i, tx := range ts {
		switch err := errs[i]; {
		case i != invalid && err == nil:
			r.decided(tx, wants[i])
		case i != invalid:
			r.Fatalf("TakeEach, number %d: got error %q, want none, for %s", i, err, describe(tx))
		case !errors.Is(err, quota.ErrDuplicate):
			r.Errorf("TakeEach, number %d: got error %v, want %q", i, err, quota.ErrDuplicate)
		}
	}
}
