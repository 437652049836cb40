package figures_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

const second = int64(1_000_000) // µs

// A panel shows one algorithm. All panels show the same requests.
type panel struct {
	name, shows string
	limit       quota.Limit
	within      time.Duration
	level       func(s quota.State, l *quota.Limit, now int64) float64 // height of the curve at the instant now
}

// owed returns how many units a bucket must still drain, or how many units a queue must
// still release, at the instant now.
func owed(s quota.State, l *quota.Limit, now int64) float64 {
	_, d := l.Algorithm.Take(s, l, now, 0)
	return float64(d.ResetAfter) / float64(l.Period) * float64(l.Quota)
}

func spent(s quota.State, l *quota.Limit, now int64) float64 {
	_, d := l.Algorithm.Take(s, l, now, 0)
	return float64(l.Quota - d.Remaining)
}

// weighted returns how many units a sliding window counts as spent at the instant now: the
// units of the current window, and the weighted units of the previous window.
func weighted(s quota.State, l *quota.Limit, now int64) float64 {
	period := l.Period.Microseconds()
	cur, prev := 0.0, 0.0
	switch start := now - now%period; {
	case s.At >= start:
		cur, prev = float64(s.A), float64(s.B)
	case s.At >= start-period:
		prev = float64(s.A)
	}
	return cur + prev*(1-float64(now%period)/float64(period))
}

// TestAlgorithms draws how each algorithm decides the same requests, and checks that
// docs/figures has this figure.
func TestAlgorithms(t *testing.T) {
	const units, period = 10, 10 * time.Second
	panels := []panel{
		{"GCRA", "units spent ahead of now", algorithms.GCRA(units, period), 0, owed},
		{"Token bucket", "tokens left", algorithms.TokenBucket(units, units, period), 0,
			func(s quota.State, l *quota.Limit, now int64) float64 { return units - owed(s, l, now) }},
		{"Leaky bucket", "units in the queue", algorithms.LeakyBucket(units, units, period), 5 * time.Second, owed},
		{"Fixed window", "spent in the window", algorithms.FixedWindow(units, period), 0, spent},
		{"Anchored window", "spent in the window", algorithms.AnchoredWindow(units, period), 0, spent},
		{"Sliding window", "spent, estimated", algorithms.SlidingWindow(units, period), 0, weighted},
		{"Sliding log", "spent in the last 10 s", algorithms.SlidingLog(units, period), 0, spent},
	}
	const (
		start = 1_700_000_000 * second // the beginning of a window
		from  = start + 5*second
		to    = start + 30*second
		left  = 36.0
		right = 400.0
		top   = 136.0
		each  = 146.0
		high  = 40.0 // height of the curves
	)
	var requests []int64
	for at := 7 * second; at < 13*second; at += second / 4 {
		requests = append(requests, start+at)
	}
	for at := 17 * second; at < 24*second; at += second / 2 {
		requests = append(requests, start+at)
	}

	d := draw(int(top+each*float64(len(panels)))-12, "The same requests under each algorithm",
		"Seven time lines of 25 seconds with a limit of 10 per 10 seconds: 24 requests in 6 seconds across the edge of a window, "+
			"a pause, then 2 requests a second. Circles are requests that were admitted, crosses those that were refused, "+
			"the curve is what the algorithm remembers.")
	d.text(16, 52, "soft", "The limit is 10 per 10 s. Four requests a second come")
	d.text(16, 69, "soft", "from 7 s to 13 s, and two a second from 17 s to 24 s.")
	d.yes(20, 86.5)
	d.text(28, 91, "soft", "admitted")
	d.no(104, 86.5)
	d.text(112, 91, "soft", "refused")
	d.line("curve", 176, 86.5, 196, 86.5)
	d.text(202, 91, "soft", "what the algorithm remembers")
	x := func(at int64) float64 { return left + (right-left)*float64(at-from)/float64(to-from) }

	for i, p := range panels {
		y := top + each*float64(i) + 32
		ground := y + 22 + high
		for at := start + 10*second; at <= to; at += 10 * second {
			d.line("edge", x(at), y-6, x(at), ground)
			d.text(x(at), ground+16, "soft mid", fmt.Sprintf("%d s", (at-start)/second))
		}
		d.line("grid", left, ground-high, right, ground-high)
		d.line("grid", left, ground, right, ground)

		states := make([]quota.State, 1)
		tx := quota.Transaction{Charges: []quota.Charge{{Limit: p.limit, Cost: 1}}, Within: p.within}
		var points []point
		admitted, next := 0, 0
		for at := from; at <= to; at += second / 20 {
			value := func() point {
				return point{x(at), ground - high/units*p.level(states[0], &p.limit, at)}
			}
			points = append(points, value())
			if next == len(requests) || requests[next] > at {
				continue
			}
			next++
			if tx.Decide(at, states) {
				admitted++
				d.yes(x(at+tx.Wait.Microseconds()), y)
			} else {
				d.no(x(at), y+10)
			}
			points = append(points, value())
		}
		d.level(points, ground)
		d.text(16, y-32, "name", p.name)
		d.text(404, y-32, "name end", fmt.Sprintf("%d of %d admitted", admitted, len(requests)))
		shows := p.shows
		if p.within > 0 {
			shows += fmt.Sprintf("; requests wait for up to %.0f s", p.within.Seconds())
		}
		d.text(16, y-14, "soft", shows)
		d.text(left-6, ground-high+4, "soft end", "10")
		d.text(left-6, ground+4, "soft end", "0")
	}
	text := d.end()
	wellFormed(t, text)
	current(t, "algorithms.svg", text)
}
