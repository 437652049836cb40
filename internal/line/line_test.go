package line

import (
	"math"
	"testing"
	"testing/synctest"
	"time"
)

// TestOrder: the first of a line is the earliest caller, whenever it joins. A place that moves
// leaves what was released to those behind it, and nothing is left when all have gone.
func TestOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a, b := Key{Key: "a"}, Key{Key: "b"}
		early, late := Ticket(), Ticket()
		p := Join(a, late, 0)
		if d := p.Due(); d < 5*time.Millisecond || d > 15*time.Millisecond {
			t.Errorf("the first asks after %v, want 5 to 15 ms", d)
		}
		if Ahead(a, early) || !Ahead(a, Ticket()) || Ahead(b, Ticket()) {
			t.Error("only later callers have somebody ahead, in that line")
		}
		q := Join(a, early, 0)
		if p.Due() != math.MaxInt64 || q.Due() == math.MaxInt64 {
			t.Error("the earlier caller is not the first")
		}
		Release(a)
		if q.Due() != 0 || q.Due() == 0 {
			t.Error("a release makes the first ask once")
		}
		q.Stay(b, time.Hour)
		if <-p.Wake(); p.Due() != 0 {
			t.Error("who moves leaves what it has not used")
		}
		if got := q.Due(); got != time.Hour {
			t.Errorf("got %v, want an hour", got)
		}
		r := Join(b, late, 0)
		q.Leave()
		q.Leave()
		if <-r.Wake(); r.Due() != 0 {
			t.Error("when the units of one caller are free says nothing about the next")
		}
		r.Leave()
		p.Leave()
		Release(a)
		if Anyone() || len(lines) != 0 {
			t.Errorf("got %d lines, want none", len(lines))
		}
	})
}

// TestReleases: after two releases in the same instant, the two first of the line ask at once.
func TestReleases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := Key{Key: "releases"}
		first, second := Join(k, Ticket(), 0), Join(k, Ticket(), 0)
		Release(k)
		Release(k)
		if first.Due() != 0 {
			t.Error("the first does not ask")
		}
		first.Leave()
		if <-second.Wake(); second.Due() != 0 || second.Due() == 0 {
			t.Error("the second does not ask once")
		}
		second.Leave()
	})
}
