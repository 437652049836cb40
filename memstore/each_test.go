package memstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestTakeEach: TakeEach decides its transactions in order. An error concerns only its own
// transaction.
func TestTakeEach(t *testing.T) {
	var store quota.Batcher = memstore.New(memstore.Options{})
	c := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(2, 1000*time.Hour), Cost: 1}
	each := func(charges ...[]quota.Charge) (ts []*quota.Transaction) {
		for _, c := range charges {
			ts = append(ts, &quota.Transaction{Charges: c})
		}
		return ts
	}
	one := []quota.Charge{c}
	ts := each(one, []quota.Charge{c, c}, one, one)
	errs := store.TakeEach(t.Context(), ts)
	if len(errs) != 4 || errs[0] != nil || !errors.Is(errs[1], quota.ErrDuplicate) || errs[2] != nil || errs[3] != nil {
		t.Fatalf("got errors %v, want one for the second, a duplicate", errs)
	}
	for i, want := range map[int]quota.Decision{0: {Allowed: true, Remaining: 1}, 2: {Allowed: true}, 3: {}} {
		if got := ts[i].Decisions[0]; got.Allowed != want.Allowed || got.Remaining != want.Remaining {
			t.Errorf("number %d: got %+v, want Allowed %v, Remaining %d", i, got, want.Allowed, want.Remaining)
		}
	}
	if errs := store.TakeEach(t.Context(), each(one, nil)); errs != nil {
		t.Errorf("got errors %v, want nil", errs)
	}
}
