package quota

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// TestLineOrder: the first of a line is the earliest caller, whenever it joins. A place that moves
// leaves what was released to those behind it, and nothing is left when all have gone.
func TestLineOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := waitKey{key: "a"}, waitKey{key: "b"}
		early, late := arrive(), arrive()
		p := joinLine(a, late, 0)
		if d := p.timeUntilDue(); d < 5*time.Millisecond || d > 15*time.Millisecond {
			t.Errorf("the first calls the store after %v, want 5 to 15 ms", d)
		}
		if earlierWaits(a, early) || !earlierWaits(a, arrive()) || earlierWaits(b, arrive()) {
			t.Error("only later callers have somebody ahead, in that line")
		}
		q := joinLine(a, early, 0)
		if p.timeUntilDue() != math.MaxInt64 || q.timeUntilDue() == math.MaxInt64 {
			t.Error("the earlier caller is not the first")
		}
		releaseIn(a)
		if q.timeUntilDue() != 0 || q.timeUntilDue() == 0 {
			t.Error("a release makes the first call the store once")
		}
		q.wait(b, time.Hour)
		if <-p.wake; p.timeUntilDue() != 0 {
			t.Error("who moves leaves what it has not used")
		}
		if got := q.timeUntilDue(); got != time.Hour {
			t.Errorf("got %v, want an hour", got)
		}
		r := joinLine(b, late, 0)
		q.leave()
		q.leave()
		if <-r.wake; r.timeUntilDue() != 0 {
			t.Error("when the units of one caller are free says nothing about the next")
		}
		r.leave()
		p.leave()
		releaseIn(a)
		if anyoneWaits() || len(waitingCallers.lines) != 0 {
			t.Errorf("got %d lines, want none", len(waitingCallers.lines))
		}
	})
}

// TestLineReleases: after two releases in the same instant, the two first of the line call the store at once.
func TestLineReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := waitKey{key: "releases"}
		first, second := joinLine(k, arrive(), 0), joinLine(k, arrive(), 0)
		releaseIn(k)
		releaseIn(k)
		if first.timeUntilDue() != 0 {
			t.Error("the first does not call the store")
		}
		first.leave()
		if <-second.wake; second.timeUntilDue() != 0 || second.timeUntilDue() == 0 {
			t.Error("the second does not call the store once")
		}
		second.leave()
	})
}
