package main

import (
	"encoding/xml"
	"io"
	"strings"
	"testing"
	"time"
)

func TestSeries(t *testing.T) {
	for _, tt := range []struct {
		s              series
		median, spread float64
	}{
		{series{5}, 5, 0},
		{series{3, 1, 2}, 2, 0.5},
		{series{4, 1, 2, 3}, 2.5, 0.6},
		{nil, 0, 0},
	} {
		if got := tt.s.median(); got != tt.median {
			t.Errorf("%v: got a median of %v, want %v", []float64(tt.s), got, tt.median)
		}
		if got := tt.s.spread(); got != tt.spread {
			t.Errorf("%v: got a spread of %v, want %v", []float64(tt.s), got, tt.spread)
		}
	}
}

// TestWrongDecision: if a contender decides wrongly once, nsPerCheck returns an error.
func TestWrongDecision(t *testing.T) {
	for _, c := range append([]contender{floor}, contenders...) {
		if _, err := nsPerCheck(c.open(plenty, time.Second), keysOf(10), 2, 100, true); err != nil {
			t.Errorf("%s: got %v, want no error", c.name, err)
		}
		if _, err := nsPerCheck(c.open(3, 1000*time.Hour), keysOf(1), 1, 10, true); err == nil {
			t.Errorf("%s: got no error for a wrong denial", c.name)
		}
	}
}

func TestSVG(t *testing.T) {
	c := chart{title: "a < b & c", unit: "ns", target: 0.5, bars: []bar{{"weir", 1}, {"<peer>", 3}}}
	d := xml.NewDecoder(strings.NewReader(c.svg()))
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}
