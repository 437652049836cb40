package memstore

import (
	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/plans"
)

// A client that is refused often asks again at once. If a state refuses several charges in a
// row, its shard therefore publishes a copy of the state. The copy refuses further charges
// without the lock, so many processors can refuse one client at the same time. A refusal
// changes no state. Before anything else changes the state, it removes the copy.

// repeats is how many refusals of a state in a row make a copy. A copy costs an allocation, so
// it should not be made for a state that changes after each refusal.
const repeats = 8

// publish counts a refusal by the state in a slot. After the last of several refusals in a row
// it publishes a copy of the state.
func (sh *shard) publish(sl *slot) {
	if sh.refuser != sl.id {
		sh.refuser, sh.refusals = sl.id, 0
	}
	if sh.refusals++; sh.refusals == repeats {
		copied := *sl
		sh.refused.Store(&copied)
		sh.copied = sl.id
	}
}

// changes removes the copy of a state. The caller holds the lock and is about to change the
// state.
func (sh *shard) changes(id uint64) {
	if sh.copied == id {
		sh.refused.Store(nil)
		sh.copied, sh.refuser = 0, 0
	}
}

// refuses decides t, which has one charge, if the copied state s refuses that charge. If s
// does not, or cannot know, the caller must take the lock. The instant of the decision is
// now. A state never refuses before its last charge, so the caller must also take the lock if
// now is earlier.
func (s *slot) refuses(t *weir.Transaction, p *plans.Plan, now int64) bool {
	c := &t.Charges[0]
	if !atOnce(t) || !meters(p, c) || !readable(s, p) || now < s.at {
		return false
	}
	d := debtOf(s, p, now)
	if d.fits(p, c.Cost) {
		return false
	}
	prepare(t, now)
	d.explain(&t.Decisions[0], p, now, c.Cost, false)
	return true
}
