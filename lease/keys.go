package lease

import (
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
)

// A lease is what is known of a key's asks, and the units held for it.
type lease struct {
	charges []weir.Charge // of one ask

	since, count int64 // when counting began, and the asks since
	seen         int64 // asks of a TTL

	noted int64           // when next last answered
	last  []weir.Decision // what it said; empty if it erred

	fetch     *fetch    // under way
	held      int64     // asks that can be served, while the lease lasts
	unused    int64     // asks that were paid and not hits
	sent      int64     // before that
	answered  int64     // after that
	until     int64     // it is not used from then on
	at        time.Time // what the store said when it was paid
	decisions []weir.Decision
	timer     *time.Timer
}

// A shard is a bounded part of them, by the fingerprint of what is asked.
type shard struct {
	mu     sync.Mutex
	closed bool
	most   int
	known  map[uint64]*lease
	once   [64]uint64 // asked once, lately
	hits   uint64
	_      [64]byte
}

// find returns the lease of t, or a new one where t is asked again, or nil.
func (s *shard) find(id uint64, t *weir.Transaction, now int64, l *Store) *lease {
	old := s.known[id]
	switch {
	case old != nil && slices.Equal(old.charges, t.Charges):
		return old
	case s.closed || !leasable(t):
		return nil
	}
	if once := &s.once[id%uint64(len(s.once))]; *once != id {
		*once = id
		return nil
	}
	ttl := int64(l.o.TTL)
	switch {
	case old != nil && !old.over(now, ttl): // the limit has changed
		return nil
	case old == nil && len(s.known) >= s.most && !s.makeRoom(now, ttl):
		return nil
	}
	e := &lease{charges: slices.Clone(t.Charges), since: now}
	for i := range e.charges {
		e.charges[i].Key = strings.Clone(e.charges[i].Key)
	}
	s.known[id] = e
	return e
}

// makeRoom forgets a key, of a few, that is not asked any more.
func (s *shard) makeRoom(now, ttl int64) bool {
	looked := 0
	for id, e := range s.known {
		if e.over(now, ttl) {
			delete(s.known, id)
			return true
		}
		if looked++; looked == 8 {
			break
		}
	}
	return false
}

// leasable reports whether all charges of t can be counted in advance.
func leasable(t *weir.Transaction) bool {
	for i := range t.Charges {
		a, ok := t.Charges[i].Limit.Algorithm.(Leaser)
		if !ok || !reflect.TypeOf(a).Comparable() {
			return false
		}
	}
	return t.Validate() == nil
}

// over reports whether a key holds nothing and was not asked for a TTL.
func (e *lease) over(now, ttl int64) bool {
	return e.fetch == nil && e.unused == 0 && now-e.since > 2*ttl
}

// tick counts an ask.
func (e *lease) tick(now, ttl int64) {
	if gone := now - e.since; gone >= ttl {
		e.seen = int64(float64(e.count) * float64(ttl) / float64(gone))
		e.since, e.count = now, 0
	}
	e.count++
}

// note remembers an answer of next.
func (e *lease) note(t *weir.Transaction, now int64) {
	e.noted, e.last = now, append(e.last[:0], t.Decisions...)
}

// want returns how many asks a lease should cover; 0 means none: as many as were
// seen in a TTL, and at most its fraction of what next last reported.
//
// Units that drain are never returned, so no more are taken than drain in a TTL.
// A meter that owes nothing else drains while the lease is in use: that much more
// is taken.
func (e *lease) want(now int64, o *Options) int64 {
	since := now - e.noted
	if e.seen < 2 || len(e.last) == 0 || since > 2*int64(o.TTL) {
		return 0
	}
	room, drained := float64(weir.MaxTicks), 0.0
	for i := range e.charges {
		c, d := &e.charges[i], &e.last[i]
		room = min(room, float64(d.Remaining-c.Cost)*o.Fraction/float64(c.Cost))
		if c.Limit.Algorithm.(Leaser).Drains() {
			perNS := float64(c.Limit.Quota) / float64(c.Limit.Period) / float64(c.Cost)
			room = min(room, perNS*float64(o.TTL))
			owed := max(0, d.ResetAfter-time.Duration(since))
			drained = max(drained, perNS*float64(o.TTL-owed))
		}
	}
	if k := int64(min(room, float64(e.seen)+drained)); k >= 2 {
		return k
	}
	return 0
}

// serve decides t if units for it are held.
func (e *lease) serve(t *weir.Transaction, now int64) bool {
	now = max(now, e.answered) // it came after the answer, if before it to this place
	if e.held == 0 || now >= e.until {
		return false
	}
	since := (now - e.sent + 999) / 1000 // on the store's clock, at most
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

	t.Decisions = append(t.Decisions[:0], e.decisions...)
	gone := time.Duration(now - e.answered).Truncate(time.Microsecond)
	t.At, t.Wait, t.Undo = e.at.Add(gone), 0, t.Undo[:0]
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

// end ends a lease and returns what to give back, or nil.
func (e *lease) end() *weir.Transaction {
	n := e.unused
	e.held, e.unused = 0, 0
	if n == 0 {
		return nil
	}
	back := &weir.Transaction{Charges: e.times(-n, func(c *weir.Charge) bool { return !c.Limit.Algorithm.(Leaser).Drains() })}
	if len(back.Charges) == 0 {
		return nil
	}
	return back
}

// times returns n times the charges that are wanted; nil wants all.
func (e *lease) times(n int64, wanted func(*weir.Charge) bool) []weir.Charge {
	charges := make([]weir.Charge, 0, len(e.charges))
	for i, c := range e.charges {
		if wanted == nil || wanted(&c) {
			if c.Cost *= n; n < 0 {
				c.Spent = e.decisions[i].At
			}
			charges = append(charges, c)
		}
	}
	return charges
}
