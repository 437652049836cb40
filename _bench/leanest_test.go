package main

import "testing"

// TestLeanest: leanestScript and Weir share the states of their keys, and make the same decisions.
func TestLeanest(t *testing.T) {
	rdb, stop := startRedis()
	defer stop()
	const units = 50
	weir, lean := contenderOf("weir, three rules with a key each").open(rdb, units)(), leanest(rdb, units)()
	for i := range 200 {
		ask := weir
		if i%2 > 0 {
			ask = lean
		}
		if got, err := ask("k"); err != nil || got != (i < units) {
			t.Errorf("check %d: got %v, %v, want %v", i, got, err, i < units)
		}
	}
}
