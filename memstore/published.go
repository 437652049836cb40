package memstore

import (
	"github.com/seed83679106/weir/internal/plans"
	"github.com/seed83679106/weir/quota"
)

// A client that has been refused often asks again at once. After several refusals a shard
// therefore publishes a copy of the state, and the copy refuses further charges without the
// lock. Many processors can then refuse one client at the same time. This works for the
// transactions that takeMeter decides: one charge of a meter, without a wait. A refusal
// changes at most the rank of a slot. Whatever changes the state first removes the copy.

// publishAfter is how many refusals under the lock a state makes before it is published, if no
// other state of the shard refuses in between. To publish a state costs an allocation. A state
// that changes after each refusal therefore costs at most one allocation for eight refusals.
const publishAfter = 8

// A publishedSlot fills a cache line. Without the padding it could share the line with a
// Decision that another processor writes, and each write would slow down all who read the slot.
type publishedSlot struct {
	slot
	_ [24]byte
}

// countRefusal counts a refusal by the state in a slot, and publishes the state if it has
// refused often enough.
func (sh *shard) countRefusal(sl *slot) {
	if sh.repeated != sl.id {
		sh.repeated, sh.times = sl.id, 0
	}
	if sh.times++; sh.times == publishAfter {
		sh.published.Store(&publishedSlot{slot: *sl})
		sh.publishedID = sl.id
	}
}

// unpublish removes the copy of a state. The caller holds the lock and is about to change the
// state.
func (sh *shard) unpublish(id uint64) {
	if sh.publishedID == id {
		sh.published.Store(nil)
		sh.publishedID, sh.repeated = 0, 0
	}
}

// tryRefuse decides t, which has one charge, at the instant now, if the copied state s refuses
// that charge. Otherwise tryRefuse returns false, and the caller must take the lock. It also
// returns false if now is before s.at: under the lock, the decision may get a later instant.
func (s *slot) tryRefuse(t *quota.Transaction, p *plans.Plan, now int64) bool {
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
