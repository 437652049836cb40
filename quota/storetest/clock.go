package storetest

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// clock: Transaction.At is the time of the store's clock, in whole microseconds. It never
// decreases, and advances as fast as the local clock or up to a tenth more slowly.
func clock(p *replay) {
	const naps, nap = 10, 1237 * time.Microsecond
	begin := time.Now()
	first := p.takeOne("", three, 0).At
	fine, last := false, first
	for range naps {
		time.Sleep(nap)
		at := p.takeOne("", three, 0).At
		if at.Before(last) {
			p.Errorf("At: got %v, want no less than the %v before", at, last)
		}
		fine = fine || at.UnixMicro()%1000 != 0
		last = at
	}
	// The clock of another machine may run a little faster or slower.
	if got, want := last.Sub(first), naps*nap; got < want-want/10 {
		p.Errorf("At: got an advance of %v during a sleep of %v", got, want)
	}
	if got, want := last.Sub(first), time.Since(begin); got > want+want/10 {
		p.Errorf("At: got an advance of %v within %v", got, want)
	}
	if !fine {
		p.Errorf("At: got whole milliseconds %d times, want microseconds", naps)
	}
}

// reset: after RetryAfter a refused charge fits, and after ResetAfter the key is equivalent
// to a new key.
func reset(p *replay) {
	// This excludes the calendar, which has no window of 10 ms, and InFlight, which has no
	// RetryAfter.
	for _, l := range limits(2, 10*time.Millisecond)[:7] {
		size := max(l.Burst, l.Quota)
		var d quota.Decision
		for range 100 { // several times, because a window may end between two calls
			tx := p.takeOne("", l, size)
			if d = tx.Decisions[0]; !d.Allowed {
				break
			}
		}
		if d.Allowed {
			p.Fatalf("%v: got the whole quota 100 times in a row, want a refusal", l)
		}
		// The clock of another machine may run a little slower.
		time.Sleep(d.RetryAfter + time.Millisecond)
		tx := p.takeOne("", l, size)
		if !tx.Decisions[0].Allowed {
			p.Errorf("%v: got a refusal after RetryAfter %v and a millisecond, want none", l, d.RetryAfter)
		}
		time.Sleep(tx.Decisions[0].ResetAfter + time.Millisecond)
		if got := p.takeOne("", l, 0).Decisions[0]; got != (quota.Decision{Allowed: true, FellBack: got.FellBack, Remaining: size, At: got.At}) {
			p.Errorf("%v after ResetAfter: got %+v, want %d remaining and nothing to wait for", l, got, size)
		}
	}
}
