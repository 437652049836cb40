// Package line keeps the callers of a process in the order in which they came, while they wait
// for the same limit of the same key. It decides nothing: only the first of a line may ask the
// store, and it learns here when.
package line

import (
	"container/list"
	"math"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// A Key says what the callers of a line wait for. Store is comparable.
type Key struct {
	Store                       any
	Rule, Key, Limit, Algorithm string
}

// lines is a global, because callers that wait for the same units have only the store in common.
// It holds nothing while nobody waits.
var (
	mu      sync.Mutex
	lines   = map[Key]*queue{}
	waiting atomic.Int64 // how many places there are
	tickets atomic.Uint64
)

type queue struct {
	places list.List // of *Place, by ticket
	freed  int       // how many releases the first has not yet asked after
	next   time.Time // when the first asks again by itself
	exact  bool      // next is when its units are free, which says nothing about those of others
}

// The first of a line asks again after 5 to 15 ms, because another process may have released
// units. If a process has more than 10 lines, they all together ask once in a millisecond.
const (
	interval = 10 * time.Millisecond
	perLine  = time.Millisecond
)

// A Place is the place of one caller in a line.
type Place struct {
	ticket uint64
	wake   chan struct{}
	key    Key
	line   *queue
	at     *list.Element
}

// Ticket returns a number that is higher than those of earlier callers.
func Ticket() uint64 { return tickets.Add(1) }

// Anyone reports whether anyone waits in any line.
func Anyone() bool { return waiting.Load() > 0 }

// Ahead reports whether an earlier caller than that of the ticket is the first in the line of k.
func Ahead(k Key, ticket uint64) bool {
	mu.Lock()
	defer mu.Unlock()
	q := lines[k]
	return q != nil && q.first().ticket < ticket
}

// Join returns a place in the line of k, which the caller must leave. The argument after is as in
// Stay.
func Join(k Key, ticket uint64, after time.Duration) *Place {
	p := &Place{ticket: ticket, wake: make(chan struct{}, 1)}
	waiting.Add(1)
	mu.Lock()
	defer mu.Unlock()
	p.enter(k)
	p.askAgain(after)
	return p
}

// Stay keeps p in the line of k after a refusal, or moves it there. If p is the first, it asks
// again after that time, or, if it is 0, when units are released or could have been.
func (p *Place) Stay(k Key, after time.Duration) {
	mu.Lock()
	defer mu.Unlock()
	if p.key != k {
		p.exit().free() // p has not used what was released
		p.enter(k)
	}
	p.askAgain(after)
}

// Leave makes the next place the first. A second call does nothing.
func (p *Place) Leave() {
	mu.Lock()
	defer mu.Unlock()
	if p.line == nil {
		return
	}
	if q := p.exit(); q != nil {
		q.first().nudge()
	}
	p.line = nil
	waiting.Add(-1)
}

// Due returns how long the caller waits before it asks: 0 if it asks now, and math.MaxInt64 if
// others are first. A value from Wake says that Due has changed.
func (p *Place) Due() time.Duration {
	mu.Lock()
	defer mu.Unlock()
	q := p.line
	switch {
	case q.first() != p:
		return math.MaxInt64
	case q.freed > 0:
		q.freed-- // the next in line asks after the other releases
		return 0
	}
	return max(0, time.Until(q.next))
}

// Wake returns the channel that receives a value when Due has changed.
func (p *Place) Wake() <-chan struct{} { return p.wake }

// Release makes the first in the line of k ask.
func Release(k Key) {
	mu.Lock()
	defer mu.Unlock()
	lines[k].free()
}

func (q *queue) first() *Place { return q.places.Front().Value.(*Place) }

func (q *queue) free() {
	if q != nil {
		q.freed++
		q.first().nudge()
	}
}

func (p *Place) nudge() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *Place) enter(k Key) {
	q := lines[k]
	if q == nil {
		q = &queue{}
		lines[k] = q
	}
	p.key, p.line = k, q
	for e := q.places.Back(); e != nil; e = e.Prev() {
		if e.Value.(*Place).ticket < p.ticket {
			p.at = q.places.InsertAfter(p, e)
			return
		}
	}
	p.at = q.places.PushFront(p)
}

// exit removes p and returns its line, or nil if nobody is left there.
func (p *Place) exit() *queue {
	q := p.line
	if q.exact && q.first() == p {
		q.next = time.Time{}
	}
	q.places.Remove(p.at)
	if q.places.Len() == 0 {
		delete(lines, p.key)
		return nil
	}
	return q
}

func (p *Place) askAgain(after time.Duration) {
	q := p.line
	if q.first() != p {
		return
	}
	now := time.Now()
	q.exact = after > 0
	switch {
	case q.exact:
		q.next = now.Add(after)
	case !q.next.After(now):
		d := max(interval, time.Duration(len(lines))*perLine)
		q.next = now.Add(d/2 + rand.N(d))
	}
}
