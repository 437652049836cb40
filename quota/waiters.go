package quota

import (
	"cmp"
	"math"
	"math/rand/v2"
	"reflect"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/safe"
)

// Callers in a process that wait for the same limit and key form a line, in order of arrival. Only
// the first caller in a line may call the store. This file determines when the first caller calls
// the store, but makes no decisions.

// A waitKey identifies what callers wait for.
type waitKey struct {
	store                       any // a comparable store, or the type of the store
	rule, key, limit, algorithm string
}

// waitKeyOf identifies what a caller waits for after the charge c was refused. If the type of a
// store is not comparable, all stores of that type share lines.
func waitKeyOf(store Store, c *Charge) waitKey {
	k := waitKey{store, c.Rule, c.StoredKey(), c.Limit.StoredName(), c.Limit.Algorithm.Name()}
	if !safe.Comparable(store) {
		k.store = reflect.TypeOf(store)
	}
	return k
}

// waitingCallers is global, because callers that wait for the same units have only the store in
// common. While no caller waits, it holds nothing.
var waitingCallers struct {
	mu       sync.Mutex
	lines    map[waitKey]*line
	places   atomic.Int64 // the number of places in all lines
	arrivals atomic.Uint64
}

// A line holds the callers that wait for the same units.
type line struct {
	places []*place  // in order of arrival
	freed  int       // how many releases have not yet led to a call to the store
	next   time.Time // when the first caller calls the store if nothing is released before
	exact  bool      // next is when the first caller's units are available, so it is valid only for that caller
}

// The first caller in a line calls the store again after 5 to 15 ms, because another process may
// have released units. If a process has more than 10 lines, all of them together call the store
// once per millisecond on average.
const (
	recall        = 10 * time.Millisecond
	recallPerLine = time.Millisecond
)

// A place is the position of one caller in a line.
type place struct {
	arrival uint64
	wake    chan struct{} // receives a value when the result of due may have changed
	key     waitKey
	line    *line
}

// arrive returns a number that is higher than the numbers of earlier callers.
func arrive() uint64 { return waitingCallers.arrivals.Add(1) }

// anyoneWaits reports whether a caller waits in any line.
func anyoneWaits() bool { return waitingCallers.places.Load() > 0 }

// earlierWaits reports whether the first caller in the line of k came before the caller with the
// given arrival.
func earlierWaits(k waitKey, arrival uint64) bool {
	waitingCallers.mu.Lock()
	defer waitingCallers.mu.Unlock()
	l := waitingCallers.lines[k]
	return l != nil && l.first().arrival < arrival
}

// joinLine returns a place in the line of k. The caller must call the place's leave method. As in
// place.wait, the caller calls the store again after the given time.
func joinLine(k waitKey, arrival uint64, after time.Duration) *place {
	p := &place{arrival: arrival, wake: make(chan struct{}, 1)}
	waitingCallers.places.Add(1)
	waitingCallers.mu.Lock()
	defer waitingCallers.mu.Unlock()
	p.enter(k)
	p.callAgain(after)
	return p
}

// After a refusal, wait keeps p in the line of k, or moves p to that line. If p is then the first
// in the line, its caller calls the store again after the given time. If the time is 0, the caller
// does so when units are released in this process, or may have been released in another process.
func (p *place) wait(k waitKey, after time.Duration) {
	waitingCallers.mu.Lock()
	defer waitingCallers.mu.Unlock()
	if p.key != k {
		p.exit().release() // the next caller in the old line can use the released units
		p.enter(k)
	}
	p.callAgain(after)
}

// leave removes p from its line, and wakes the caller that is now the first. A second call does
// nothing.
func (p *place) leave() {
	waitingCallers.mu.Lock()
	defer waitingCallers.mu.Unlock()
	if p.line == nil {
		return
	}
	if l := p.exit(); l != nil {
		l.first().nudge()
	}
	p.line = nil
	waitingCallers.places.Add(-1)
}

// timeUntilDue returns how long the caller must wait before it calls the store: 0 if it must call
// now, and math.MaxInt64 if another caller is the first. After a value is received from p.wake, the
// result may be different.
func (p *place) timeUntilDue() time.Duration {
	waitingCallers.mu.Lock()
	defer waitingCallers.mu.Unlock()
	l := p.line
	switch {
	case l.first() != p:
		return math.MaxInt64
	case l.freed > 0:
		l.freed-- // the next callers in the line use the other releases
		return 0
	}
	return max(0, time.Until(l.next))
}

// releaseIn causes the first caller in the line of k to call the store.
func releaseIn(k waitKey) {
	waitingCallers.mu.Lock()
	defer waitingCallers.mu.Unlock()
	waitingCallers.lines[k].release()
}

func (l *line) first() *place { return l.places[0] }

func (l *line) release() {
	if l != nil {
		l.freed++
		l.first().nudge()
	}
}

func (p *place) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *place) enter(k waitKey) {
	l := waitingCallers.lines[k]
	if l == nil {
		if waitingCallers.lines == nil {
			waitingCallers.lines = map[waitKey]*line{}
		}
		l = &line{}
		waitingCallers.lines[k] = l
	}
	p.key, p.line = k, l
	l.places = slices.Insert(l.places, l.index(p.arrival), p)
}

// index returns how many callers in the line arrived before the given arrival.
func (l *line) index(arrival uint64) int {
	i, _ := slices.BinarySearchFunc(l.places, arrival, func(p *place, arrival uint64) int { return cmp.Compare(p.arrival, arrival) })
	return i
}

// exit removes p from its line, and returns the line, or nil if the line is now empty.
func (p *place) exit() *line {
	l := p.line
	if l.exact && l.first() == p {
		l.next = time.Time{}
	}
	copy(l.places[1:], l.places[:l.index(p.arrival)]) // usually copies nothing, because p is the first
	l.places[0] = nil
	if l.places = l.places[1:]; len(l.places) == 0 {
		delete(waitingCallers.lines, p.key)
		return nil
	}
	return l
}

func (p *place) callAgain(after time.Duration) {
	l := p.line
	if l.first() != p {
		return
	}
	now := time.Now()
	l.exact = after > 0
	switch {
	case l.exact:
		l.next = now.Add(after)
	case !l.next.After(now):
		d := max(recall, time.Duration(len(waitingCallers.lines))*recallPerLine)
		l.next = now.Add(d/2 + rand.N(d))
	}
}
