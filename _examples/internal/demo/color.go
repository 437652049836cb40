package demo

import (
	"os"
	"strings"
)

// colored is whether programs print colours: if standard output is a terminal, and nobody
// has asked for none (no-color.org).
var colored = os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb" && isTerminal(os.Stdout)

func isTerminal(f *os.File) bool {
	info, err := f.Stat()
	return err == nil && info.Mode()&os.ModeCharDevice != 0
}

// Green, Red and Bold return a text that a terminal shows so.
func Green(s string) string { return paint("32", s) }
func Red(s string) string   { return paint("31", s) }
func Bold(s string) string  { return paint("1", s) }

func paint(how, s string) string {
	if !colored {
		return s
	}
	return "\x1b[" + how + "m" + s + "\x1b[0m"
}

// Bar draws n of most, ten squares wide at most.
func Bar(n, most int) string {
	if most < 1 || n < 0 || n > most {
		return ""
	}
	width := min(most, 10)
	full := (n*width + most - 1) / most // something is never drawn as nothing
	return strings.Repeat("■", full) + strings.Repeat("□", width-full)
}
