package quota

import (
	"errors"
	"slices"
)

// These constants are indices of the array causes. The first seven are the causes of errors that
// stores return.
const (
	causeUnusable = iota
	causeFull
	causeBusy
	causeSlow
	causeOpen
	causeTimeout
	causeError
	causeLimit
	storeCauses = causeLimit
)

var causes = [...]string{"unusable", "full", "busy", "slow", "open", "timeout", "error", "limit"}

// Cause classifies err for log lines and metrics. It returns "" if err is nil, and otherwise one of
// these words:
//
//	unusable  ErrUnusable
//	full      ErrFull
//	busy      any other ErrBusy
//	slow      ErrSlow
//	open      ErrOpen
//	timeout   the error has a method Timeout that returns true, such as redisstore.ErrTimeout
//	limit     a weir.Policy has an invalid limit
//	error     any other error
//
// If an error belongs to several classes, Cause returns the first one in this list. For example, if
// a breaker has opened because of a wrong Redis password, Cause returns "unusable" for the error
// that the breaker returns.
func Cause(err error) string {
	if err == nil {
		return ""
	}
	return causes[causeOf(err)]
}

// causeOf returns the index in causes of the class of err.
func causeOf(err error) int {
	switch {
	case errors.Is(err, ErrUnusable):
		return causeUnusable
	case errors.Is(err, ErrFull):
		return causeFull
	case errors.Is(err, ErrBusy):
		return causeBusy
	case errors.Is(err, ErrSlow):
		return causeSlow
	case errors.Is(err, ErrOpen):
		return causeOpen
	case isTimeout(err):
		return causeTimeout
	case errors.Is(err, ErrLimit):
		return causeLimit
	}
	return causeError
}

// isTimeout reports whether err is a timeout, according to its method Timeout or, if it has none,
// that of an error that it wraps. One of several joined errors suffices. Unlike errors.As, isTimeout
// allocates nothing, and adds nothing to the size of programs that do not otherwise call errors.As,
// which would add 25 kB.
func isTimeout(err error) bool {
	switch err := err.(type) {
	case interface{ Timeout() bool }:
		return err.Timeout()
	case interface{ Unwrap() error }:
		return isTimeout(err.Unwrap())
	case interface{ Unwrap() []error }:
		return slices.ContainsFunc(err.Unwrap(), isTimeout)
	}
	return false
}
