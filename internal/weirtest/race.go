//go:build race

package weirtest

// Race says that the race detector runs: a sync.Pool then drops entries at random.
const Race = true
