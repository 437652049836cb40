package configfile

import "testing"

// TestTabs: a tab within a plain value is an error, because the lexer drops it. Any other tab is fine.
func TestTabs(t *testing.T) {
	for _, tt := range []struct {
		text string
		want int // the line of the error, or 0
	}{
		{"limit: 2\t0\n", 1}, {"# x\nlimit: 20\ndeny: [a\tb]\n", 3}, {"pe\triod: 1m\n", 1}, {"- x\n \t y\n", 1},
		{"limit:\t20\t# per\tuser\n", 0}, {"name: \"a\tb\"\n", 0}, {"name: 'a\tb'\n", 0}, {"name: \"a\n\tb\"\n", 0}, {"note: |\n  a\tb\n", 0}, {"{a: 1,\tb: [1,\t2]\t}\t\n", 0},
	} {
		got := 0
		if _, fault := Tokens([]byte(tt.text), 16); fault != nil {
			got = fault.Line
		}
		if got != tt.want {
			t.Errorf("%q: got an error in line %d, want %d", tt.text, got, tt.want)
		}
	}
}

func TestNearest(t *testing.T) {
	known := []string{"limit", "period", "burst", ""}
	for _, tt := range []struct {
		name string
		most int
		want string
	}{
		{"limt", 1, "limit"}, {"limits", 1, "limit"}, {"lmiit", 1, "limit"}, {"PERID", 2, "period"}, {"limit", 0, "limit"},
		{"lmt", 1, ""}, {"window", 3, ""}, {"x", 1, ""}, {"", 0, ""},
	} {
		if got := Nearest(tt.name, known, tt.most); got != tt.want {
			t.Errorf("Nearest(%q, %d) = %q, want %q", tt.name, tt.most, got, tt.want)
		}
	}
}
