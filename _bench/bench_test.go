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

// TestOptions: the table of options in the page has the rows of this package, and a reason in
// each row that takes more than atMost or allocates more than the plain Limiter.
func TestOptions(t *testing.T) {
	page, err := os.ReadFile("README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "<!-- options -->\n")
	table, _, _ = strings.Cut(table, "<!-- end -->")
	rows := regexp.MustCompile(`(?m)^\| (.*) \| \d+ \| ([\d.]+) \(([\d.]+)\) \| (\d+) \| \d+ \| (.*) \|$`).FindAllStringSubmatch(table, -1)
	if len(rows) != len(variants) {
		t.Fatalf("the page has %d rows, want %d: run go run -C _bench . -run options -page README.md", len(rows), len(variants))
	}
	number := func(s string) float64 {
		n, err := strconv.ParseFloat(s, 64)
		if err != nil {
			t.Error(err)
		}
		return n
	}
	for i, row := range rows {
		v, plain := &variants[i], rows[0]
		if v.refused {
			plain = rows[1]
		}
		if row[1] != v.name || row[5] != v.why {
			t.Errorf("row %d: got %q with the reason %q, want %q with %q", i, row[1], row[5], v.name, v.why)
		}
		if slow := min(number(row[2]), number(row[3])) > atMost; v.why == "" && (slow || number(row[4]) > number(plain[4])) {
			t.Errorf("%s: %s × plain, %s allocations, and no reason", v.name, row[2], row[4])
		}
	}
}

// TestWriteInto: a table replaces what its place in a page has, and nothing else.
func TestWriteInto(t *testing.T) {
	page := filepath.Join(t.TempDir(), "page.md")
	if err := os.WriteFile(page, []byte("a\n<!-- x -->\nold\n<!-- end -->\nb\n<!-- y -->\nother\n<!-- end -->\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, place := range []string{"", "x"} {
		tab := &table{place: place, header: []string{"h"}}
		tab.add(1)
		if err := tab.writeInto(page); err != nil {
			t.Fatal(err)
		}
	}
	got, _ := os.ReadFile(page)
	if want := "a\n<!-- x -->\n| h |\n| --- |\n| 1 |\n<!-- end -->\nb\n<!-- y -->\nother\n<!-- end -->\n"; string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
	if err := (&table{place: "z"}).writeInto(page); err == nil {
		t.Error("a page without the place: got no error")
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
