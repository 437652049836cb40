// Package rounds says how long tests run. Without the environment variable WEIR_LONG, tests
// are quick: `go test ./...` takes less than a minute. CI sets WEIR_LONG=1.
package rounds

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strconv"
	"testing"
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

// Slow skips a test that takes seconds, unless WEIR_LONG is set. The text says why it is slow.
func Slow(t testing.TB, why string) {
	t.Helper()
	if !Long() {
		t.Skipf("slow: %s; WEIR_LONG=1 runs it", why)
	}
}

// Seed returns the seed of a randomized test: the environment variable WEIR_SEED, or a random
// number. If the test fails, it says how to run it again with this seed.
func Seed(t testing.TB) uint64 {
	t.Helper()
	seed, long := rand.Uint64(), ""
	if text := os.Getenv("WEIR_SEED"); text != "" {
		var err error
		if seed, err = strconv.ParseUint(text, 10, 64); err != nil {
			t.Fatalf("rounds: WEIR_SEED: %v", err)
		}
	}
	if Long() {
		long = " WEIR_LONG=" + os.Getenv("WEIR_LONG")
	}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("to run it again in the directory of the test: WEIR_SEED=%d%s go test -run '^%s$' .", seed, long, t.Name())
		}
	})
	return seed
}

// Last returns the last elements of a list as a text that fits on a screen.
func Last[T any](list []T) string {
	const most = 20
	if n := len(list); n > most {
		return fmt.Sprintf("%d more, then %v", n-most, list[n-most:])
	}
	return fmt.Sprint(list)
}
