package config

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/seed83679106/weir/internal/typo"
)

// An Error is one error in a file. The error of Open and of Reload wraps these errors in
// the order of the file, at most 100 of them, and its text has a line for each.
type Error struct {
	Path         string
	Line, Column int // both from 1; Column counts characters
	Text         string
}

// Error returns a text such as "rules.yaml:3:7: unknown field perid; did you mean
// period?". The place comes first, because editors and terminals look for it there.
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, e.Line, e.Column, e.Text)
}

// add adds an error. Its text may quote the file, so add cuts a long text and replaces
// characters that could control a terminal. It quotes no file outside: who may write a link
// could otherwise read by it what this process may read.
func (d *source) add(line, column int, text string) {
	if d.outside {
		text = "an error; its text is not shown, because this path is a symbolic link that leads out of the directory of the file that includes it"
	}
	const maxText = 300
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	text = strings.ReplaceAll(text, "\t", `\t`)
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
	d.errs = append(d.errs, &Error{d.path, max(1, line), max(1, column), text})
}

// err returns the errors in the order of the file, and then those of the files that it
// includes, at most 100 in all.
func (d *decoder) err() error {
	const maxErrors = 100
	var errs []error
	for _, d := range append([]*decoder{d}, d.included...) {
		slices.SortStableFunc(d.errs, func(a, b *Error) int {
			return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
		})
		for _, e := range d.errs[:min(maxErrors-len(errs), len(d.errs))] {
			errs = append(errs, e)
		}
	}
	return errors.Join(errs...)
}

// suggest returns the end of a message about an unknown name: the most similar known name,
// or all known names if none is similar and they are at most 16.
func suggest(name string, known []string) string {
	best := ""
	if len(name) <= 64 {
		best = typo.Nearest(name, known, 1+len(name)/3)
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %s?", best)
	case len(known) > 0 && len(known) <= 20:
		return "; known are " + strings.Join(known, ", ")
	}
	return ""
}
