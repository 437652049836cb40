package figures_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// TestWorst draws, for each algorithm, a schedule of requests that fills one window as far
// as possible. The tests beside TestWorstCaseReached in package algorithms check that no
// window holds more.
func TestWorst(t *testing.T) {
	const units, minute = 10, 60 * second
	const start = 1_700_000_000 / 60 * minute
	edge := []ask{{start + minute - 1, all}, {start + minute, all}}
	meter := []ask{{start + minute/2, all}}
	for i := int64(1); i <= units; i++ {
		meter = append(meter, ask{start + minute/2 + i*minute/units, 1})
	}
	clock, first := []int64{start, start + minute, start + 2*minute, start + 3*minute}, []int64{start + minute/2, start + minute*3/2, start + minute*5/2}
	tests := []struct {
		name, how string
		limit     quota.Limit
		asks      []ask
		want      int64
		edges     []int64 // of windows
	}{
		{"Fixed window", "10 at the end of a window, 10 as the next begins", algorithms.FixedWindow(units, time.Minute), edge, 20, clock},
		{"Anchored window", "1 begins the window, 9 as it ends, 10 right after", algorithms.AnchoredWindow(units, time.Minute),
			[]ask{{start + minute/2, 1}, {start + minute/2 + minute - 1, all}, {start + minute/2 + minute, all}}, 19, first},
		{"Sliding window", "10 at the end of a window, then each as it fits", algorithms.SlidingWindow(units, time.Minute), nil, 19, clock},
		{"GCRA and buckets", "a burst, and each unit as it comes back", algorithms.GCRA(units, time.Minute), meter, 19, nil},
		{"GCRA, burst 1", "each unit as it comes back", algorithms.GCRA(units, time.Minute).WithBurst(1), meter, 10, nil},
		{"Sliding log", "whatever is sent", algorithms.SlidingLog(units, time.Minute), edge, 10, nil},
	}
	// slide is the schedule of the sliding window: all units at the end of a window, and
	// then each unit at the first instant at which it fits
	slide := []ask{{start + minute - 1, all}}
	for i := int64(1); i < units; i++ {
		slide = append(slide, ask{start + minute + i*minute/units, 1})
	}
	slide[units-1].at = start + 2*minute - 2 // the last instant that one minute can contain together with the first entry
	tests[2].asks = slide

	const (
		left, right = 28.0, 388.0
		top, each   = 112.0, 122.0
		length      = 3 * minute
		unit        = 3.6 // height of a bar for one unit
		bar         = 4.0 // width of a bar
	)
	d := draw(int(top+each*float64(len(tests))), "The most in any 60 s, of 10 per minute",
		"Six time lines of three minutes, each under its worst schedule. A fixed window admits 20 in the worst 60 seconds, an anchored "+
			"window, a sliding window and GCRA with a burst of 10 admit 19, GCRA with a burst of 1 and a sliding log admit 10.")
	d.text(16, 52, "soft", "Each algorithm has the schedule that is worst for it.")
	d.text(16, 69, "soft", "Bars are admitted units. Dotted lines are edges of windows.")
	d.rect("span", 16, 76, 22, 13)
	d.text(44, 87, "soft", "the worst 60 s, and how many units they admit")
	x := func(at int64) float64 { return left + (right-left)*float64(at-start)/float64(length) }
	for i, test := range tests {
		y := top + each*float64(i) + 36
		ground := y + 44
		admitted := admit(test.limit, test.asks)
		most, from, last := fullest(admitted, minute)
		if most != test.want {
			t.Errorf("%v: got %d in a window, want %d", test.limit, most, test.want)
		}
		if last-from >= minute {
			t.Errorf("%v: %d µs are more than a window", test.limit, last-from)
		}
		// The worst window may begin a little earlier or later. The one in the middle of these
		// is drawn, and it is as wide as the bars in it.
		spare := minute - 1 - (last - from)
		a, b := x(last-minute+spare/2), x(last+spare/2)
		bars := make([]float64, len(admitted))
		for j, ask := range admitted {
			bars[j] = x(ask.at) + barShift(ask.at, test.edges)
			for _, edge := range test.edges {
				if ask.at < edge && bars[j]+bar > x(edge) || ask.at >= edge && bars[j] < x(edge) {
					t.Errorf("%s: the bar of the instant %v s is on the wrong side of the edge at %v s", test.name, float64(ask.at-start)/1e6, float64(edge-start)/1e6)
				}
			}
			if from <= ask.at && ask.at <= last {
				a, b = min(a, bars[j]), max(b, bars[j]+bar)
			} else if bars[j] < b && bars[j]+bar > a {
				t.Errorf("%s: the bar of the instant %v s reaches into the worst window", test.name, float64(ask.at-start)/1e6)
			}
		}
		d.rect("span", a, y, b-a, 44)
		for at := int64(0); at <= length; at += minute {
			d.line("grid", x(start+at), y-4, x(start+at), ground)
			d.text(x(start+at), ground+16, "soft mid", fmt.Sprintf("%d s", at/second))
		}
		for _, at := range test.edges {
			d.line("edge", x(at), y-4, x(at), ground)
		}
		d.line("grid", left, ground, right, ground)
		for j, a := range admitted {
			d.rect("yes", bars[j], ground-unit*float64(a.units), bar, unit*float64(a.units))
		}
		d.text(16, y-30, "name", test.name)
		d.text(16, y-12, "soft", test.how)
		d.text(404, y-18, "big end", fmt.Sprint(most))
	}
	text := d.end()
	wellFormed(t, text)
	current(t, "worst.svg", text)
}

// An ask is for some units at an instant, or for all units that are left.
type ask struct{ at, units int64 }

const all = -1

// admit charges a new key with the asks in their order, and returns those that the limit
// admits.
func admit(l quota.Limit, asks []ask) (admitted []ask) {
	states := make([]quota.State, 1)
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: l}}}
	for _, a := range asks {
		if a.units == all {
			tx.Charges[0].Cost = 0
			tx.Decide(a.at, states)
			a.units = tx.Decisions[0].Remaining
		}
		tx.Charges[0].Cost = a.units
		if tx.Decide(a.at, states) && a.units > 0 {
			admitted = append(admitted, a)
		}
	}
	return admitted
}

// fullest finds the window of this length in which the most units were admitted. It returns
// their number, and the instants at which the first and the last of them were admitted.
func fullest(admitted []ask, window int64) (most, from, last int64) {
	first, sum := 0, int64(0)
	for _, a := range admitted {
		sum += a.units
		for ; admitted[first].at <= a.at-window; first++ {
			sum -= admitted[first].units
		}
		if sum > most {
			most, from, last = sum, admitted[first].at, a.at
		}
	}
	return most, from, last
}

// barShift returns how far the left side of a bar is moved from its instant, so that the bar
// is in the window to which its instant belongs.
func barShift(at int64, edges []int64) float64 {
	for _, edge := range edges {
		switch at {
		case edge:
			return 0.6
		case edge - 1, edge - 2:
			return -4.6
		}
	}
	return -2
}
