package tally_test

import (
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/tally"
)

// TestPauses: a request that a pause refuses is refused by the rule that is paused
// and spent nothing, though its limits have room.
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
