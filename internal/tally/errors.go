package tally

import (
	"errors"
	"slices"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// causes are those of quota.Cause, and "full": a memstore.ErrFull, which needs another
// remedy than other causes of quota.ErrBusy.
var causes = [...]string{"error", "busy", "full", "limit", "open", "timeout", "unusable"}

// outcomes are what happens to a request that could not be decided.
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
	cause := quota.Cause(e.Err)
	if errors.Is(e.Err, memstore.ErrFull) && cause == "busy" {
		cause = "full"
	}
	t.undecided[max(0, slices.Index(causes[:], cause))][outcome].Add(1)
}

// EachError calls f for each cause and outcome with the number of requests that could not
// be decided. It calls f for a number of 0 too, because an alert must see the first error
// as a change.
func (t *Tally) EachError(f func(cause, outcome string, n int64)) {
	for i := range t.undecided {
		for j := range t.undecided[i] {
			f(causes[i], outcomes[j], t.undecided[i][j].Load())
		}
	}
}
