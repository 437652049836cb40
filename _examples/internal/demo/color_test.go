package demo

import (
	"os"
	"testing"
)

func TestColor(t *testing.T) {
	defer func(before bool) { colored = before }(colored)
	for _, test := range []struct {
		colored bool
		want    string
	}{{true, "\x1b[32mpassed\x1b[0m"}, {false, "passed"}} {
		colored = test.colored
		if got := Green("passed"); got != test.want {
			t.Errorf("colored %v: got %q, want %q", test.colored, got, test.want)
		}
	}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	defer w.Close()
	if isTerminal(w) {
		t.Error("a pipe is taken for a terminal")
	}
}

func TestBar(t *testing.T) {
	for _, test := range []struct {
		n, most int
		want    string
	}{{0, 3, "□□□"}, {2, 3, "■■□"}, {3, 3, "■■■"}, {1, 1000, "■□□□□□□□□□"}, {999, 1000, "■■■■■■■■■■"}, {0, 0, ""}, {4, 3, ""}, {-1, 3, ""}} {
		if got := Bar(test.n, test.most); got != test.want {
			t.Errorf("%d of %d: got %s, want %s", test.n, test.most, got, test.want)
		}
	}
}
