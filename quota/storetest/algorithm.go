package storetest

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// Algorithm tests whether the algorithms of the limits follow the rules of quota.Algorithm. It
// makes random charges, both at random instants and at instants that follow from earlier decisions,
// such as the end of a RetryAfter. It checks each decision by calling Take again. Algorithm needs
// no store. To compare Take with the Lua code of an algorithm, use Limits. Algorithm cannot know
// how many units a limit should admit in a period, so test that separately.
//
// Pass limits with small and large numbers, such as a quota of 1 per µs and a quota of a million
// per day.
func Algorithm(t testing.TB, limits ...quota.Limit) {
	t.Helper()
	r := seeded(t)
	for _, l := range limits {
		given := l
		if err := l.Validate(); err != nil {
			t.Fatalf("%v: got error %q from Validate, want none", l, err)
		}
		name := l.Algorithm.Name()
		if again := l.Algorithm.Name(); name != again || name == "" || unprintable(name) {
			t.Fatalf("%v: the name must be printable and always the same: got %q and %q", l, name, again)
		}
		_, concurrent := l.Algorithm.(optional.Concurrent)
		for range 100 {
			w := walk{TB: t, Rand: r, given: given, limit: l, states: make([]quota.State, 1), concurrent: concurrent}
			w.now = 1_700_000_000_000_000 + r.Int64N(1e15)
			for range 25 {
				w.step()
			}
		}
	}
}

// A walk makes a sequence of charges for one key under one limit.
type walk struct {
	testing.TB
	*rand.Rand
	given  quota.Limit // the limit that the caller has passed
	limit  quota.Limit // a copy of given that is passed to Take
	now    int64
	states []quota.State // the recent states of the key
	about  string        // the charge that is being checked

	concurrent bool // units are released when requests end, at unknown instants
}

func (w *walk) failf(format string, args ...any) {
	w.Helper()
	w.Fatalf("%s\n%s", fmt.Sprintf(format, args...), w.about)
}

func clone(s quota.State) quota.State {
	s.Log = slices.Clone(s.Log)
	return s
}

// take returns the decision about a charge at a given instant, without spending the charge.
func (w *walk) take(s quota.State, at, cost int64) quota.Decision {
	_, d := w.limit.Algorithm.Take(clone(s), &w.limit, at, cost)
	return d
}

// step makes a charge, checks the decision, and moves the clock.
func (w *walk) step() {
	w.Helper()
	before, cost := clone(w.states[0]), anyCost(w.Rand, max(1, w.limit.Capacity()))
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: w.limit, Cost: cost}}}
	if w.IntN(4) == 0 {
		tx.Within = time.Duration(1+w.Int64N(2*micros(w.limit.Period))) * time.Microsecond
	}
	w.about = fmt.Sprintf("%v, a charge of %d at %d within %v, state %+v", w.limit, cost, w.now, tx.Within, before)
	w.checkPure(before, cost)
	w.decision(before, cost)
	allowed := tx.Decide(w.now, w.states)
	after := w.states[0]
	switch {
	case !allowed && !reflect.DeepEqual(before, after):
		w.failf("a refused charge must leave the state unchanged: got %+v", after)
	case after.C != 0:
		w.failf("C must be 0: got %+v", after)
	case len(after.Log) > 0 && w.limit.Algorithm.Name() != "sliding-log" && w.limit.Algorithm.Name() != "in-flight":
		w.failf("stores keep no Log of this algorithm: got %+v", after)
	}
	for _, n := range []int64{after.At, after.A, after.B} {
		if n <= -1<<53 || n >= 1<<53 {
			w.failf("numbers of a state must stay below 2^53: got %+v", after)
		}
	}
	if allowed && tx.Wait == 0 {
		w.checkSpends(before, after, cost)
	}
	w.view(after)
	d := &tx.Decisions[0]
	period := micros(w.limit.Period)
	steps := []int64{0, 0, 1, w.Int64N(period + 1), -w.Int64N(period + 1),
		micros(d.NextAfter) - 1, micros(d.NextAfter), micros(d.ResetAfter) - 1, micros(d.RetryAfter)}
	w.now = min(max(w.now+steps[w.IntN(len(steps))], 0), 1<<52)
}

func micros(d time.Duration) int64 { return int64(d / time.Microsecond) }

// checkPure checks that Take depends only on its arguments, and that Step has the same results as
// Take.
func (w *walk) checkPure(s quota.State, cost int64) {
	w.Helper()
	limit := w.limit
	next, d := w.limit.Algorithm.Take(clone(s), &limit, w.now, cost)
	again, e := w.limit.Algorithm.Take(clone(s), &limit, w.now, cost)
	if d != e || !equal(next, again) {
		w.failf("Take must be a pure function: got %+v, %+v and then %+v, %+v", next, d, again, e)
	}
	l, g := &limit, &w.given
	if l.Quota != g.Quota || l.Period != g.Period || l.Burst != g.Burst || l.Name != g.Name {
		w.failf("Take must not change the limit: got %+v", limit)
	}
	if (cost == 0 || !d.Allowed) && !equal(next, s) {
		w.failf("a refused charge, or a cost of 0, must leave the state unchanged: got %+v", next)
	}
	if stepper, ok := w.limit.Algorithm.(optional.Stepper); ok {
		stepped, d := clone(s), quota.Decision{FellBack: true, Remaining: -1, At: e.At}
		if stepper.Step(&stepped, &d, &limit, w.now, cost); d != e || !equal(stepped, again) {
			w.failf("Step must do what Take does: got %+v, %+v, want %+v, %+v", stepped, d, again, e)
		}
	}
}

// equal reports whether two states are equal. An empty Log equals a nil Log.
func equal(a, b quota.State) bool {
	return a.At == b.At && a.A == b.A && a.B == b.B && a.C == b.C && slices.Equal(a.Log, b.Log)
}

// checkTimes checks that the times of a decision are whole microseconds.
func (w *walk) checkTimes(d *quota.Decision) {
	w.Helper()
	for _, after := range []time.Duration{d.RetryAfter, d.NextAfter, d.ResetAfter} {
		if after != quota.Never && (after < 0 || after%time.Microsecond != 0) {
			w.failf("times must be whole microseconds and at least 0: got %+v", *d)
		}
	}
}

// decision checks Allowed and RetryAfter of a charge that does not wait.
func (w *walk) decision(s quota.State, cost int64) {
	w.Helper()
	d := w.take(s, w.now, cost)
	w.checkTimes(&d)
	switch {
	case cost <= 0 && !d.Allowed:
		w.failf("a cost of 0 or less must be allowed: got %+v", d)
	case d.Allowed != (d.RetryAfter == 0):
		w.failf("RetryAfter must be 0 if and only if the charge is allowed: got %+v", d)
	case d.Allowed && cost > 0 && s.At > w.now:
		w.failf("nothing may be admitted before At: got %+v", d)
	case d.Allowed:
	case d.RetryAfter == quota.Never:
		if !w.concurrent && w.take(s, w.now+micros(d.ResetAfter), cost).Allowed {
			w.failf("RetryAfter must be Never only if the charge can never fit: it fits after %v", d.ResetAfter)
		}
	case d.RetryAfter > d.ResetAfter:
		w.failf("RetryAfter must be at most ResetAfter: got %+v", d)
	case !w.take(s, w.now+micros(d.RetryAfter), cost).Allowed:
		w.failf("RetryAfter must be exact: the charge does not fit after %v", d.RetryAfter)
	case w.take(s, w.now+micros(d.RetryAfter)-1, cost).Allowed:
		w.failf("RetryAfter must be exact: the charge fits a microsecond before %v", d.RetryAfter)
	}
}

// checkSpends checks that an admitted charge spends units, and that a refund returns no more units
// than were spent.
func (w *walk) checkSpends(before, after quota.State, cost int64) {
	w.Helper()
	left, now := w.take(before, w.now, 0).Remaining, w.take(after, w.now, 0).Remaining
	switch {
	case cost > 0 && now > max(0, left-cost):
		w.failf("an admitted charge must take its units: %d of %d remain", now, left)
	case cost < 0 && (now < left || now-left > -max(cost, -1<<62) || now > w.take(quota.State{}, w.now, 0).Remaining):
		w.failf("a refund must return its units, at most those spent: %d remain after %d", now, left)
	}
}

// view checks Remaining, NextAfter and ResetAfter of a state.
func (w *walk) view(s quota.State) {
	w.Helper()
	d := w.take(s, w.now, 0)
	left, next, reset := d.Remaining, micros(d.NextAfter), micros(d.ResetAfter)
	switch {
	case s.At > w.now && w.take(s, w.now, 1).Allowed:
		w.failf("nothing may be admitted before At: got a unit of state %+v", s)
	case left < 0 || next > reset:
		w.failf("Remaining must be at least 0, and NextAfter at most ResetAfter: got %+v of state %+v", d, s)
	case left > 0 && !w.take(s, w.now, left).Allowed:
		w.failf("the units in Remaining must fit: got %+v of state %+v", d, s)
	case left == 0 && w.take(s, w.now, 1).Allowed:
		w.failf("a unit must not fit if none remains: got %+v of state %+v", d, s)
	case left == 0 && next > 0 && !w.concurrent &&
		(!w.take(s, w.now+next, 1).Allowed || w.take(s, w.now+next-1, 1).Allowed):
		w.failf("NextAfter must be when the next unit fits: got %+v of state %+v", d, s)
	}
	w.checkForgotten(s, reset)
}

// checkForgotten checks that a store may forget a state after the state's reset.
func (w *walk) checkForgotten(s quota.State, reset int64) {
	w.Helper()
	for _, cost := range []int64{0, 1, w.limit.Capacity(), w.limit.Capacity() + 1, -1} {
		for _, later := range []int64{0, 1, 1_000_000} {
			at := w.now + reset + later
			if got, want := w.take(s, at, cost), w.take(quota.State{}, at, cost); got != want {
				w.failf("after ResetAfter, the state must lead to the decisions of a new key: "+
					"got %+v, want %+v for a cost of %d after %d µs, state %+v", got, want, cost, reset+later, s)
			}
		}
	}
}
