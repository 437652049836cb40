package tally_test

import (
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/tally"
)

// TestNameless: a limit without a name is counted under its period.
func TestNameless(t *testing.T) {
	var c tally.Tally
	c.Observe(weir.Event{Transaction: &weir.Transaction{
		Charges:   []weir.Charge{{Rule: "api", Limit: algorithms.GCRA(9, time.Minute), Cost: 1}},
		Decisions: []weir.Decision{{Allowed: true}},
	}})
	c.Each(func(l tally.Label, _ *tally.Counts) {
		if want := (tally.Label{Rule: "api", Limit: "1m"}); l != want {
			t.Errorf("got %+v, want %+v", l, want)
		}
	}, func(string, int64) {}, func(string, int64) {})
}

// TestPauses: if a pause refuses a request, the paused rule has refused it and no limit
// has spent a unit, even if all limits have room.
func TestPauses(t *testing.T) {
	limit := algorithms.GCRA(9, time.Minute)
	tx := &weir.Transaction{
		Charges:   []weir.Charge{{Rule: "partner", Limit: limit, Cost: 1}, {Rule: "all", Limit: limit, Cost: 1}},
		Decisions: []weir.Decision{{Allowed: true}, {Allowed: true}},
		Refusal:   weir.Refusal{Reason: weir.ReasonPause, Rule: "partner", RetryAfter: time.Second},
	}
	var c tally.Tally
	c.Observe(weir.Event{Transaction: tx, Refusal: tx.Refusal})
	got := map[string][3]int64{}
	c.Each(func(l tally.Label, n *tally.Counts) {
		got[l.Rule] = [3]int64{n.Refused.Load(), n.Allowed.Load(), n.Units.Load()}
	},
		func(string, int64) {}, func(string, int64) {})
	if want := ([3]int64{1, 0, 0}); got["partner"] != want || got["all"] != [3]int64{} {
		t.Errorf("got %v, want one refusal by partner", got)
	}
}
