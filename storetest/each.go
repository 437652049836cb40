package storetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/seed83679106/weir"
)

// each: a store that is a weir.Batcher decides a batch as it decides one after the
// other. An error is its own transaction's, unless nothing is decided.
func each(t testing.TB, store weir.Store) {
	batcher, ok := store.(weir.Batcher)
	if !ok {
		return
	}
	const quota = 9
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	defer func() {
		if t.Failed() {
			t.Logf("seed %d", seed)
		}
	}()
	all := limits(quota, time.Hour)
	p := newReplay(t, store)
	for i := range 40 {
		p.run = fmt.Sprint(p.run, ".")
		var ts []*weir.Transaction
		var wants []weir.Transaction
		for range r.IntN(12) {
			charges := []weir.Charge{p.charge(fmt.Sprint(r.IntN(2)), all[r.IntN(len(all))], anyCost(r, quota))}
			if other := p.charge("other", all[r.IntN(len(all))], 1); r.IntN(3) == 0 {
				charges = append(charges, other)
			}
			within := []time.Duration{0, 0, 0, time.Hour}[r.IntN(4)]
			for range 1 + r.IntN(2)*r.IntN(2*quota) { // many may ask the same
				ts = append(ts, &weir.Transaction{Charges: charges, Within: within, Decisions: make([]weir.Decision, r.IntN(3)), Wait: time.Hour})
			}
		}
		bad := map[int]bool{}
		if len(ts) > 0 && i%2 == 1 {
			bad[r.IntN(len(ts))] = true
		}
		for j, tx := range ts {
			if bad[j] {
				c := tx.Charges[0]
				tx.Charges = []weir.Charge{c, c}
			}
			wants = append(wants, question(tx))
		}
		errs := batcher.TakeEach(t.Context(), ts)
		if errs != nil && len(errs) != len(ts) {
			t.Fatalf("TakeEach: got %d errors for %d transactions, want none, or as many", len(errs), len(ts))
		}
		for j, tx := range ts {
			var err error
			if errs != nil {
				err = errs[j]
			}
			switch {
			case bad[j] && !errors.Is(err, weir.ErrDuplicate):
				t.Errorf("TakeEach, number %d: got error %v, want %q", j, err, weir.ErrDuplicate)
			case !bad[j] && err != nil:
				t.Fatalf("TakeEach, number %d: got error %q, want none, for %s", j, err, describe(tx))
			case !bad[j]:
				p.decided(tx, wants[j])
			}
		}
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	ts := []*weir.Transaction{{Charges: []weir.Charge{p.charge("gone", three, 1)}}}
	if errs := batcher.TakeEach(gone, ts); len(errs) != 1 || !errors.Is(errs[0], context.Canceled) {
		t.Errorf("TakeEach, canceled: got errors %v, want one, %q", errs, context.Canceled)
	}
	p.wants(p.one("gone", three, 0), true, 3)
}
