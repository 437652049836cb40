package storetest

import (
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// never: a cost above the capacity never fits, with or without waiting.
func never(p *replay) {
	for _, l := range limits(4, time.Hour) {
		for _, within := range []time.Duration{0, time.Hour, 1 << 62} {
			tx := p.takeAll(within, p.charge("", l, 7), p.charge("other", l, 1))
			p.checkResults(tx, false)
			if got := tx.Decisions[0].RetryAfter; got != quota.Never {
				p.Errorf("%v, a cost of 7: got RetryAfter %v, want Never", l, got)
			}
		}
		p.takeOne("", l, 0)
		p.takeOne("other", l, 0)
	}
	for _, l := range limits(1, (1<<32-1)*time.Microsecond) { // the product of cost and period exceeds 2^63
		p.checkResults(p.takeOne("huge", l, 1<<32-1), false)
	}
}

// reserve: a charge that waits reserves its unit, and no later charge gets that unit first.
func reserve(p *replay) {
	p.checkResults(p.takeOne("a", three, 3), true, 0)
	p.checkResults(p.takeAll(time.Minute, p.charge("a", three, 1)), false, 0) // the next unit is free in 20 minutes
	tx := p.takeAll(time.Hour, p.charge("a", three, 1))
	p.checkResults(tx, true, 0)
	if tx.Wait <= 0 || tx.Wait > 20*time.Minute {
		p.Errorf("got Wait %v for a unit that comes back in 20 minutes", tx.Wait)
	}
	p.checkResults(p.takeOne("a", three, 1), false, 0)
	second := p.takeAll(time.Hour, p.charge("a", three, 1))
	p.checkResults(second, true, 0)
	if second.Wait < tx.Wait+19*time.Minute { // a minute may pass between the calls
		p.Errorf("got Wait %v behind one of %v, want 20 minutes more", second.Wait, tx.Wait)
	}
	// All charges of a transaction wait as long as the slowest of them. A charge with a cost of 0
	// or less does not make the transaction wait.
	p.checkResults(p.takeOne("slow", one, 1), true, 0)
	p.checkResults(p.takeOne("back", three, 2), true, 1)
	tx = p.takeAll(2*time.Hour, p.charge("b", three, 1), p.charge("slow", one, 1), p.charge("c", three, 0), p.charge("back", three, -1))
	p.checkResults(tx, true, 0, 0, 3, 2)
	p.checkResults(p.takeOne("b", three, 1), false, 0) // two units are available, but only after the reserved one
	// If one charge cannot fit by waiting, the transaction reserves nothing.
	p.checkResults(p.takeAll(2*time.Hour, p.charge("d", three, 1), p.charge("b", three, 4)), false, 3, 0)
	p.checkResults(p.takeOne("d", three, 0), true, 3)
}

// queue: a leaky bucket is a queue if Within > 0, and a meter otherwise.
func queue(p *replay) {
	l := algorithms.LeakyBucket(3, 3, time.Hour)
	var last time.Duration
	for i := range 3 {
		tx := p.takeAll(2*time.Hour, p.charge("queue", l, 1))
		p.checkResults(tx, true)
		if i > 0 && tx.Wait < last+19*time.Minute {
			p.Errorf("number %d: got Wait %v behind one of %v, want 20 minutes more", i, tx.Wait, last)
		}
		last = tx.Wait
	}
	p.checkResults(p.takeAll(2*time.Hour, p.charge("queue", l, 1)), false, 0) // the queue is full
	p.checkResults(p.takeOne("queue", l, 1), false, 0)                        // a charge that does not wait never overtakes a waiting charge
	for range 3 {
		tx := p.takeOne("meter", l, 1)
		p.checkResults(tx, true)
	}
	p.checkResults(p.takeOne("meter", l, 1), false, 0)
	// A transaction that waits in a queue and for another limit gets the units of both at the same
	// time.
	p.takeOne("slow", three, 3)
	p.checkResults(p.takeAll(2*time.Hour, p.charge("both", l, 1), p.charge("slow", three, 1)), true, 0, 0)
	p.checkResults(p.takeAll(2*time.Hour, p.charge("both", l, 1)), true, 0)
}

// inFlight: a concurrency limit refuses without reporting when to retry. A request releases its own
// units, even if later requests have spent units. If a request does not release its units, they
// become available when the lease expires.
func inFlight(p *replay) {
	l := algorithms.InFlight(2, time.Hour)
	first := p.takeOne("a", l, 1)
	time.Sleep(1500 * time.Microsecond)
	p.checkResults(p.takeOne("a", l, 1), true, 0)
	for _, within := range []time.Duration{0, time.Hour, 1 << 62} {
		tx := p.takeAll(within, p.charge("a", l, 1))
		p.checkResults(tx, false, 0)
		if d := tx.Decisions[0]; d.RetryAfter != quota.Never || d.NextAfter != 0 {
			p.Errorf("within %v: got RetryAfter %v and NextAfter %v, want Never and 0", within, d.RetryAfter, d.NextAfter)
		}
	}
	p.cancel(first)
	p.checkResults(first, true, 1)
	third := p.takeOne("a", l, 1)
	p.checkResults(third, true, 0)
	p.checkResults(p.takeOne("a", l, 1), false, 0)
	// A Limiter renews a unit by spending another one with ModeForce and then releasing the old
	// one.
	time.Sleep(1500 * time.Microsecond)
	p.take(&quota.Transaction{Charges: []quota.Charge{p.charge("a", l, 1)}, Mode: quota.ModeForce})
	p.cancel(third)
	p.checkResults(third, true, 0)
	p.checkResults(p.takeOne("b", l, 3), false, 2)

	short := algorithms.InFlight(2, 10*time.Millisecond).Named("short")
	tx := p.takeOne("a", short, 2)
	p.checkResults(tx, true, 0)
	time.Sleep(tx.Decisions[0].ResetAfter + time.Millisecond) // the clock of another machine may run a little slower
	p.checkResults(p.takeOne("a", short, 2), true, 0)
}
