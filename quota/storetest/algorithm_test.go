package storetest_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
)

// TestAlgorithm: the algorithms of this module follow the rules, and so does the one of the page.
func TestAlgorithm(t *testing.T) {
	for _, rate := range []struct {
		n      int64
		period time.Duration
	}{{1, time.Microsecond}, {7, time.Second}, {1_000_000, 24 * time.Hour}} {
		storetest.Algorithm(t,
			algorithms.GCRA(rate.n, rate.period),
			algorithms.GCRA(rate.n, rate.period).WithBurst(3),
			algorithms.TokenBucket(rate.n+2, rate.n, rate.period),
			algorithms.LeakyBucket(rate.n+1, rate.n, rate.period),
			algorithms.FixedWindow(rate.n, rate.period),
			algorithms.AnchoredWindow(rate.n, rate.period),
			algorithms.SlidingWindow(rate.n, rate.period),
			algorithms.SlidingLog(rate.n, rate.period),
			algorithms.Calendar(rate.n, algorithms.Month, nil),
			algorithms.InFlight(rate.n, rate.period),
			quota.Limit{Algorithm: cooldown{}, Quota: 1, Period: rate.period},
		)
	}
}

// A broken algorithm changes what another algorithm returns.
type broken struct {
	quota.Algorithm
	change func(a quota.Algorithm, s quota.State, l *quota.Limit, now, cost int64, next *quota.State, d *quota.Decision)
}

func (b broken) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	next, d := b.Algorithm.Take(s, l, now, cost)
	b.change(b.Algorithm, s, l, now, cost, &next, &d)
	return next, d
}

// A renamed algorithm has another name at each call.
type renamed struct {
	cooldown
	times *int
}

func (r renamed) Name() string {
	*r.times++
	return fmt.Sprint("cooldown", *r.times)
}

// A stepping algorithm has a Step that spends nothing.
type stepping struct{ cooldown }

func (a stepping) Step(s *quota.State, d *quota.Decision, l *quota.Limit, now, cost int64) {
	_, *d = a.Take(*s, l, now, cost)
}

// TestAlgorithmFlaws: Algorithm finds each of these bugs, and its failure names the rule.
func TestAlgorithmFlaws(t *testing.T) {
	calls := 0
	type alg = quota.Algorithm
	type state = quota.State
	type limit = quota.Limit
	type decision = quota.Decision
	window := algorithms.FixedWindow(5, time.Minute).Algorithm
	change := func(a alg, f func(a alg, s state, l *limit, now, cost int64, next *state, d *decision)) alg {
		return broken{a, f}
	}
	for _, tt := range []struct {
		algorithm alg
		want      string
	}{
		{cooldown{}, ""},
		{change(window, func(alg, state, *limit, int64, int64, *state, *decision) {}), ""},
		{change(cooldown{}, func(_ alg, s state, _ *limit, _, _ int64, next *state, d *decision) {
			*next, *d = s, decision{Allowed: true, Remaining: 1}
		}), "an admitted charge must take its units"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) { d.Remaining = 0 }),
			"a unit must not fit if none remains"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			if d.RetryAfter > 0 {
				d.RetryAfter -= time.Microsecond
			}
		}), "RetryAfter must be"},
		{change(window, func(_ alg, _ state, _ *limit, _, cost int64, _ *state, d *decision) {
			if d.RetryAfter > time.Second && d.RetryAfter < time.Hour {
				d.RetryAfter -= time.Microsecond
			}
		}), "RetryAfter must be exact: the charge does not fit after"},
		{change(cooldown{}, func(_ alg, _ state, l *limit, _, _ int64, _ *state, d *decision) {
			if d.RetryAfter > 0 {
				d.RetryAfter, d.NextAfter, d.ResetAfter = l.Period, l.Period, l.Period
			}
		}), "RetryAfter must be exact: the charge "},
		{change(window, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			if !d.Allowed {
				d.RetryAfter = quota.Never
			}
		}), "RetryAfter must be Never only if the charge can never fit"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) { d.RetryAfter = d.NextAfter }),
			"RetryAfter must be 0 if and only if the charge is allowed"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, now, _ int64, next *state, d *decision) {
			if !d.Allowed {
				next.At = now // a refused request begins the period again
			}
		}), "a refused charge, or a cost of 0, must leave the state unchanged"},
		{change(window, func(_ alg, _ state, _ *limit, now, cost int64, next *state, _ *decision) {
			if cost == 0 {
				next.At = now
			}
		}), "a refused charge, or a cost of 0, must leave the state unchanged"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			d.ResetAfter, d.NextAfter = d.ResetAfter/2/1000*1000, d.NextAfter/2/1000*1000
			d.RetryAfter = d.RetryAfter / 2 / 1000 * 1000
		}), "must"},
		{change(window, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			d.ResetAfter = max(d.NextAfter, d.RetryAfter)
			if d.Remaining > 0 {
				d.ResetAfter, d.NextAfter = 0, 0
			}
		}), "after ResetAfter"},
		{change(cooldown{}, func(_ alg, s state, _ *limit, _, cost int64, next *state, d *decision) {
			if cost < 0 {
				*next, *d = s, decision{RetryAfter: quota.Never}
			}
		}), "a cost of 0 or less must be allowed"},
		{change(window, func(_ alg, _ state, _ *limit, _, cost int64, next *state, _ *decision) {
			if cost < 0 {
				*next = state{}
			}
		}), "a refund must return its units, at most those spent"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			calls++
			d.Remaining += int64(calls % 2)
		}), "Take must be a pure function"},
		{change(cooldown{}, func(_ alg, _ state, l *limit, _, _ int64, _ *state, _ *decision) {
			l.Burst = 9
		}), "Take must not change the limit"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			d.NextAfter += d.NextAfter % 7 / 2 * 100
			d.ResetAfter = d.NextAfter
		}), "times must be whole microseconds"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			d.Remaining -= 2
		}), "Remaining must be at least 0"},
		{change(window, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			d.Remaining++
		}), "the units in Remaining must fit"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, _ *state, d *decision) {
			d.NextAfter /= 2000
			d.NextAfter *= 1000
		}),
			"NextAfter must be when the next unit fits"},
		{change(cooldown{}, func(a alg, s state, l *limit, now, cost int64, next *state, d *decision) {
			if s.At > now && cost > 0 { // the clock stepped back: it counts from now on
				*next, *d = a.Take(state{}, l, now, cost)
			}
		}), "nothing may be admitted before At"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, next *state, _ *decision) {
			next.C = next.A
		}), "C must be 0"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, now, _ int64, next *state, d *decision) {
			if next.At == now {
				next.Log = []quota.LogEntry{{At: now}}
			}
		}), "stores keep no Log of this algorithm"},
		{change(cooldown{}, func(_ alg, _ state, _ *limit, _, _ int64, next *state, _ *decision) {
			next.B = next.At * 8
		}), "numbers of a state must stay below 2^53"},
		{renamed{times: new(int)}, "the name must be printable and always the same"},
		{stepping{}, "Step must do what Take does"},
	} {
		l := quota.Limit{Algorithm: tt.algorithm, Quota: 5, Period: time.Minute}
		got := failures(t, storetest.Test{Run: func(t testing.TB, _ quota.Store) { storetest.Algorithm(t, l) }}, "")
		if tt.want == "" && len(got) > 0 || tt.want != "" && (len(got) == 0 || !strings.Contains(got[0], tt.want)) {
			t.Errorf("got failures %q, want %q", got, tt.want)
		}
	}
}
