// Package overrides gives individual keys their own limits.
//
//	table, err := overrides.New(
//		overrides.Entry{Key: "alice", Limits: []quota.Limit{{Quota: 1000}}},
//		overrides.Entry{Prefix: "tenant-a/", Limits: []quota.Limit{algorithms.GCRA(50, time.Second)}},
//		overrides.Entry{Key: "monitor", Unlimited: true},
//	)
//	if err != nil {
//		log.Fatal(err)
//	}
//	limiter, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
//		Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
//		ForKey: table.ForKey,
//	}}})
//
// # Tables
//
// A [Table] is fixed. A [Live] table can be changed while the program runs, in all processes that
// share a Redis server. Package admin provides an HTTP API for such changes. In a rules file (see
// package config), the overrides field of a rule defines a Table.
//
// # Which entry applies
//
// If an entry matches the key exactly, it applies; otherwise, the entry with the longest matching
// prefix applies. When a key's limits change, the units that the key has spent still count (see
// [weir.Rule.ForKey]).
package overrides
