//go:build race

package weirtest

// Race reports whether the race detector runs. A sync.Pool then drops entries at random, so
// counts of allocations mean nothing.
const Race = true
