// Package safe calls functions of users, and compares values of types that users choose, without
// a panic that would end the process.
package safe

import (
	"fmt"
	"runtime/debug"
)

// Call calls f and returns its error. If f panics, the returned error begins with the given text
// and contains the stack.
func Call(what string, f func() error) (panicked bool, err error) {
	defer func() {
		if p := recover(); p != nil {
			panicked, err = true, fmt.Errorf("%s: %v\n%s", what, p, debug.Stack())
		}
	}()
	return false, f()
}
