package config

import (
	"fmt"
	"strings"

	"github.com/seed83679106/weir/internal/typo"
)

// An Error describes a single error in a rules file. The error returned by Open or Reload wraps at
// most 100 Errors, in the order in which they occur in the file. The text of that error has a line
// for each Error.
type Error struct {
	Path         string
	Line, Column int // both from 1; Column counts characters
	Text         string
}

// Error returns a text such as "rules.yaml:3:7: unknown field perid; did you mean period?".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, e.Line, e.Column, e.Text)
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
