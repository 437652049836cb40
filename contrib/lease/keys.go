package lease

import (
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
)

// A lease belongs to a list of charges. It counts the calls with these charges, and holds units for
// later calls.
type lease struct {
	charges []quota.Charge // the charges of one call

	since, count int64 // when the current count of calls began, and the number of calls since then
	seen         int64 // calls per TTL in the previous count

	noted int64            // when the wrapped store last answered
	last  []quota.Decision // the decisions of that answer; empty after an error

	fetch     *fetch           // the fetch in progress, or nil
	held      int64            // how many calls the lease can still serve
	unused    int64            // for how many calls units are spent in the wrapped store but not used
	sent      int64            // when the fetch called the wrapped store
	answered  int64            // when the wrapped store answered the fetch
	until     int64            // when the lease expires
	at        time.Time        // the At of that answer
	decisions []quota.Decision // the decisions of that answer
	timer     *time.Timer
}

// find returns the lease for the charges of t. If there is none, find creates one, but only if t
// may have a lease, if the charges were seen before, and if there is room. Otherwise, find returns
// nil.
func (l *Store) find(id uint64, t *quota.Transaction, now int64) *lease {
	old := l.known[id]
	switch {
	case old != nil && slices.Equal(old.charges, t.Charges):
		return old
	case l.closed || !leasable(t):
		return nil
	}
	if once := &l.once[id%uint64(len(l.once))]; *once != id {
		*once = id
		return nil
	}
	ttl := int64(l.o.TTL)
	switch {
	case old != nil && !old.canDelete(now, ttl): // the lease for other charges with the same fingerprint is in use
		return nil
	case old == nil && len(l.known) >= l.o.MaxKeys && !l.makeRoom(now, ttl):
		return nil
	}
	e := &lease{charges: slices.Clone(t.Charges), since: now}
	for i := range e.charges {
		e.charges[i].Key = strings.Clone(e.charges[i].Key)
	}
	l.known[id] = e
	return e
}

// makeRoom examines up to 8 leases, and deletes the first one that is no longer used. It reports
// whether it has deleted a lease.
func (l *Store) makeRoom(now, ttl int64) bool {
	looked := 0
	for id, e := range l.known {
		if e.canDelete(now, ttl) {
			delete(l.known, id)
			return true
		}
		if looked++; looked == 8 {
			break
		}
	}
	return false
}

// leasable reports whether t is valid and the algorithms of all its charges are comparable
// Leasers.
func leasable(t *quota.Transaction) bool {
	for i := range t.Charges {
		a, ok := t.Charges[i].Limit.Algorithm.(Leaser)
		if !ok || !safe.Comparable(a) {
			return false
		}
	}
	return t.Validate() == nil
}

// canDelete reports whether a lease can be deleted: it holds no units, has no fetch, and began its
// current count more than two TTLs ago. In the last TTL there has then been no call.
func (e *lease) canDelete(now, ttl int64) bool {
	return e.fetch == nil && e.unused == 0 && now-e.since > 2*ttl
}

// tick counts a call. If the current count began a TTL ago or earlier, tick begins a new one, and
// sets e.seen to the number of calls per TTL in the old one.
func (e *lease) tick(now, ttl int64) {
	if gone := now - e.since; gone >= ttl {
		e.seen = int64(float64(e.count) * float64(ttl) / float64(gone))
		e.since, e.count = now, 0
	}
	e.count++
}

// note records the decisions in an answer from the wrapped store, from which the size of a lease is
// computed.
func (e *lease) note(t *quota.Transaction, now int64) {
	e.noted, e.last = now, append(e.last[:0], t.Decisions...)
}

// want returns the number of calls that a lease should cover. This is the number of calls in the
// last TTL, but the lease takes at most Fraction of the Remaining in the newest answer from the
// wrapped store. The result 0 means no lease.
//
// Under a meter (GCRA and the buckets), spent units are a debt that drains. These units are never
// refunded, so a lease takes at most as many units as drain in a TTL. When a unit has drained, the
// meter has room for a unit of another caller, so the lease must no longer use the drained unit. If
// the debt is so small that it drains before the TTL is over, units of the lease itself drain in
// the remaining time. The lease therefore covers as many additional calls as these units would
// serve.
func (e *lease) want(now int64, o *Options) int64 {
	since := now - e.noted
	if e.seen < 2 || len(e.last) == 0 || since > 2*int64(o.TTL) {
		return 0
	}
	room, drained := float64(quota.MaxTicks), 0.0
	for i := range e.charges {
		c, d := &e.charges[i], &e.last[i]
		room = min(room, float64(d.Remaining-c.Cost)*o.Fraction/float64(c.Cost))
		if c.Limit.Algorithm.(Leaser).Drains() {
			perNS := float64(c.Limit.Quota) / float64(c.Limit.Period) / float64(c.Cost)
			room = min(room, perNS*float64(o.TTL))
			debt := max(0, d.ResetAfter-time.Duration(since))
			drained = max(drained, perNS*float64(o.TTL-debt))
		}
	}
	if k := int64(min(room, float64(e.seen)+drained)); k >= 2 {
		return k
	}
	return 0
}

// If the lease has units for t, serve allows t without calling the wrapped store, and returns true.
// Otherwise it returns false.
func (e *lease) serve(t *quota.Transaction, now int64) bool {
	now = max(now, e.answered) // the fetch may have ended while the caller waited for the lock
	if e.held == 0 || now >= e.until {
		return false
	}
	since := (now - e.sent + 999) / 1000 // at most this many µs have passed since the units were spent
	n := e.held
	for i := range e.charges {
		c := &e.charges[i]
		d := e.decisions[i]
		n = min(n, c.Limit.Algorithm.(Leaser).Usable(&c.Limit, d, d.At, d.At+since, n*c.Cost)/c.Cost)
	}
	if n <= 0 {
		e.held = 0
		return false
	}
	e.held = n - 1
	e.unused--

	gone := time.Duration(now - e.answered).Truncate(time.Microsecond)
	t.SetResult(&quota.Result{Decisions: e.decisions, At: e.at.Add(gone)})
	for i := range t.Decisions {
		d := &t.Decisions[i]
		if d.Remaining >= 0 {
			d.Remaining += e.held * e.charges[i].Cost
		}
		d.NextAfter = max(0, d.NextAfter-gone)
		d.ResetAfter = max(0, d.ResetAfter-gone)
	}
	return true
}

// end ends a lease. It returns a transaction that refunds the unused units, or nil if there is
// nothing to refund.
func (e *lease) end() *quota.Transaction {
	n := e.unused
	e.held, e.unused = 0, 0
	back := &quota.Transaction{}
	for i, c := range e.charges {
		if n > 0 && !c.Limit.Algorithm.(Leaser).Drains() {
			c.Cost, c.Spent = -n*c.Cost, e.decisions[i].At
			back.Charges = append(back.Charges, c)
		}
	}
	if len(back.Charges) == 0 {
		return nil
	}
	return back
}
