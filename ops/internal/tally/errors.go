package tally

import (
	"slices"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/quota"
)

// causes are the results of quota.Cause. The first stands for any cause that is not listed.
var causes = [...]string{"error", "busy", "full", "limit", "open", "slow", "timeout", "unusable"}

// outcomes says what happens to a request for which no decision was possible.
var outcomes = [...]string{"refused", "passed", mode(true)}

const refused, passed, inShadow = 0, 1, 2

func (t *Tally) observeError(e *weir.Event) {
	outcome := refused
	switch {
	case e.Shadow:
		outcome = inShadow
	case e.Passed:
		outcome = passed
	}
	t.undecided[max(0, slices.Index(causes[:], quota.Cause(e.Err)))][outcome].Add(1)
}

// readErrors emits numbers of 0 too, because an alert must see the first error as a change.
func (t *Tally) readErrors(emit Emit) {
	for i := range t.undecided {
		for j := range t.undecided[i] {
			emit(t.undecided[i][j].Load(), causes[i], outcomes[j])
		}
	}
}
