// Package panics turns panics into errors. It is for goroutines that call functions of
// users, where a panic would end the process.
package panics

import (
	"fmt"
	"runtime/debug"
)

// Call calls f and returns its error. If f panics, the error begins with the text in what
// and contains the stack.
func Call(what string, f func() error) (panicked bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fmt.Errorf("%s: %v\n%s", what, p, debug.Stack())
		}
	}()
	return false, f()
}
