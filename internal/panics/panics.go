// Package panics turns panics into errors, for goroutines that call the code of others:
// there, a panic would end the process.
package panics

import (
	"fmt"
	"runtime/debug"
)

// Call returns the error of f. If f panics, the error begins with what and has the stack.
func Call(what string, f func() error) (panicked bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fmt.Errorf("%s: %v\n%s", what, p, debug.Stack())
		}
	}()
	return false, f()
}
