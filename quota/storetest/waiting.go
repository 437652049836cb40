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
			tx := p.all(within, p.charge("", l, 7), p.charge("other", l, 1))
			p.wants(tx, false)
			if got := tx.Decisions[0].RetryAfter; got != quota.Never {
				p.Errorf("%v, a cost of 7: got RetryAfter %v, want Never", l, got)
			}
		}
		p.one("", l, 0)
		p.one("other", l, 0)
	}
	for _, l := range limits(1, (1<<32-1)*time.Microsecond) { // the product of cost and period exceeds 2^63
		p.wants(p.one("huge", l, 1<<32-1), false)
	}
}

// reserve: a charge that waits reserves its unit, and no later charge gets that unit first.
func reserve(p *replay) {
	p.wants(p.one("a", three, 3), true, 0)
	p.wants(p.all(time.Minute, p.charge("a", three, 1)), false, 0) // the next unit is free in 20 minutes
	tx := p.all(time.Hour, p.charge("a", three, 1))
	p.wants(tx, true, 0)
	if tx.Wait <= 0 || tx.Wait > 20*time.Minute {
		p.Errorf("got Wait %v for a unit that comes back in 20 minutes", tx.Wait)
	}
	p.wants(p.one("a", three, 1), false, 0)
	second := p.all(time.Hour, p.charge("a", three, 1))
	p.wants(second, true, 0)
	if second.Wait < tx.Wait+19*time.Minute { // a minute may pass between the calls
		p.Errorf("got Wait %v behind one of %v, want 20 minutes more", second.Wait, tx.Wait)
	}
	// All charges of a transaction wait as long as the slowest of them. A charge with a cost of 0
	// or less does not make the transaction wait.
	p.wants(p.one("slow", one, 1), true, 0)
	p.wants(p.one("back", three, 2), true, 1)
	tx = p.all(2*time.Hour, p.charge("b", three, 1), p.charge("slow", one, 1), p.charge("c", three, 0), p.charge("back", three, -1))
	p.wants(tx, true, 0, 0, 3, 2)
	p.wants(p.one("b", three, 1), false, 0) // two units are available, but only after the reserved one
	// If one charge cannot fit by waiting, the transaction reserves nothing.
	p.wants(p.all(2*time.Hour, p.charge("d", three, 1), p.charge("b", three, 4)), false, 3, 0)
	p.wants(p.one("d", three, 0), true, 3)
}

// queue: a leaky bucket is a queue if Within > 0, and a meter otherwise.
func queue(p *replay) {
	l := algorithms.LeakyBucket(3, 3, time.Hour)
	var last time.Duration
	for i := range 3 {
		tx := p.all(2*time.Hour, p.charge("queue", l, 1))
		p.wants(tx, true)
		if i > 0 && tx.Wait < last+19*time.Minute {
			p.Errorf("number %d: got Wait %v behind one of %v, want 20 minutes more", i, tx.Wait, last)
		}
		last = tx.Wait
	}
	p.wants(p.all(2*time.Hour, p.charge("queue", l, 1)), false, 0) // the queue is full
	p.wants(p.one("queue", l, 1), false, 0)                        // a charge that does not wait never overtakes a waiting charge
	for range 3 {
		tx := p.one("meter", l, 1)
		p.wants(tx, true)
	}
	p.wants(p.one("meter", l, 1), false, 0)
	// A transaction that waits in a queue and for another limit gets the units of both at the same
	// time.
	p.one("slow", three, 3)
	p.wants(p.all(2*time.Hour, p.charge("both", l, 1), p.charge("slow", three, 1)), true, 0, 0)
	p.wants(p.all(2*time.Hour, p.charge("both", l, 1)), true, 0)
}

// inFlight: a concurrency limit refuses without reporting when to retry. A request releases its own
// units, even if later requests have spent units. If a request does not release its units, they
// become available when the lease expires.
func inFlight(p *replay) {
	l := algorithms.InFlight(2, time.Hour)
	first := p.one("a", l, 1)
	time.Sleep(1500 * time.Microsecond)
	p.wants(p.one("a", l, 1), true, 0)
	for _, within := range []time.Duration{0, time.Hour, 1 << 62} {
		tx := p.all(within, p.charge("a", l, 1))
		p.wants(tx, false, 0)
		if d := tx.Decisions[0]; d.RetryAfter != quota.Never || d.NextAfter != 0 {
			p.Errorf("within %v: got RetryAfter %v and NextAfter %v, want Never and 0", within, d.RetryAfter, d.NextAfter)
		}
	}
	p.cancel(first)
	p.wants(first, true, 1)
	third := p.one("a", l, 1)
	p.wants(third, true, 0)
	p.wants(p.one("a", l, 1), false, 0)
	// A Limiter renews a unit by spending another one with ModeForce and then releasing the old
	// one.
	time.Sleep(1500 * time.Microsecond)
	p.take(&quota.Transaction{Charges: []quota.Charge{p.charge("a", l, 1)}, Mode: quota.ModeForce})
	p.cancel(third)
	p.wants(third, true, 0)
	p.wants(p.one("b", l, 3), false, 2)

	short := algorithms.InFlight(2, 10*time.Millisecond).Named("short")
	tx := p.one("a", short, 2)
	p.wants(tx, true, 0)
	time.Sleep(tx.Decisions[0].ResetAfter + time.Millisecond) // the clock of another machine may run a little slower
	p.wants(p.one("a", short, 2), true, 0)
}
