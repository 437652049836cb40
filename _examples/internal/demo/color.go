package demo

import (
	"os"
	"strings"
)

// colored says whether programs print colours: only if standard output is a terminal, TERM
// is not "dumb", and NO_COLOR is not set (no-color.org).
var colored = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(os.Stdout)

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Green, Red and Bold return s between escape codes for the terminal, or s alone if programs
// print no colours.
func Green(s string) string { return paint("32", s) }
func Red(s string) string   { return paint("31", s) }
func Bold(s string) string  { return paint("1", s) }

func paint(how, s string) string {
	if !colored {
		return s
	}
	return "\x1b[" + how + "m" + s + "\x1b[0m"
}

// Bar draws the fraction n/most as a row of filled and empty squares. The row has 10 squares,
// or fewer if most is less than 10. Bar returns "" if most < 1, n < 0 or n > most.
func Bar(n, most int) string {
	if most < 1 || n < 0 || n > most {
		return ""
	}
	width := min(most, 10)
	full := (n*width + most - 1) / most // rounded up: 1 of 1000 fills one square
	return strings.Repeat("■", full) + strings.Repeat("□", width-full)
}
