// Package rounds says how much a test does that gets surer the longer it runs.
package rounds

import (
	"fmt"
	"os"
	"strconv"
)

// N returns how many rounds a test makes: usual, or n times long if the environment variable
// WEIR_LONG is the number n. N panics if WEIR_LONG is set to anything else than 1 or more.
func N(usual, long int) int {
	text := os.Getenv("WEIR_LONG")
	if text == "" {
		return usual
	}
	n, err := strconv.Atoi(text)
	if err != nil || n < 1 {
		panic(fmt.Sprintf("rounds: WEIR_LONG is %q; want a number of at least 1, or nothing", text))
	}
	return n * long
}

// Long reports whether WEIR_LONG is set.
func Long() bool { return N(0, 1) > 0 }
