package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
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

// TestWrongDecision: if one decision of a contender is wrong, nsPerCheck returns an error.
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
	c := chart{Title: "a < b & c", Unit: "ns", Bars: []bar{{"weir", 1}, {"<peer>", 3}}}
	d := xml.NewDecoder(strings.NewReader(c.svg()))
	for {
		if _, err := d.Token(); err == io.EOF {
			return
		} else if err != nil {
			t.Fatal(err)
		}
	}
}

// TestFigures: the files in figures are what draw writes from charts.json, bars are sorted
// by length, and no text is smaller than 11 px.
func TestFigures(t *testing.T) {
	dir := t.TempDir()
	text, err := os.ReadFile("figures/charts.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "charts.json"), text, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := draw(dir, nil); err != nil {
		t.Fatal(err)
	}
	drawn, _ := filepath.Glob(filepath.Join(dir, "*"))
	if len(drawn) < 10 {
		t.Fatalf("got %d files, want at least 10", len(drawn))
	}
	for _, name := range drawn {
		want, _ := os.ReadFile(name)
		got, err := os.ReadFile(filepath.Join("figures", filepath.Base(name)))
		if err != nil || string(got) != string(want) {
			t.Errorf("%s is not current (%v): run go run -C _bench . -run none", filepath.Base(name), err)
		}
	}
	c := chart{Bars: []bar{{"a", 7.5}, {"b", 6.8}, {"c", 6.9}}}
	if s := c.svg(); !(strings.Index(s, "6.8") < strings.Index(s, "6.9") && strings.Index(s, "6.9") < strings.Index(s, "7.5")) {
		t.Errorf("bars are not sorted: %s", s)
	}
	for _, size := range regexp.MustCompile(`(\d+)px`).FindAllStringSubmatch(c.svg(), -1) {
		if n, _ := strconv.Atoi(size[1]); n < 11 {
			t.Errorf("text has %d px, which is below 10 px on a telephone; want at least 11 px", n)
		}
	}
}
