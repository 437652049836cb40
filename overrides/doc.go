// Package overrides gives single keys their own limits.
//
//	table, err := overrides.New(
//		overrides.Entry{Key: "alice", Limits: []quota.Limit{{Quota: 1000}}},
//		overrides.Entry{Key: "tenant-a/*", Limits: []quota.Limit{algorithms.GCRA(50, time.Second)}},
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
// A [Table] is fixed. [Live] is a table that changes while the program runs, in all processes
// that share a Redis. Package admin has an HTTP API that changes it. In a file of package
// config, the field overrides of a rule is such a table.
//
// # Which entry applies
//
// The entry for exactly the key applies, and otherwise the entry with the longest matching
// prefix. Units that a key has spent still count if its limits change: see [weir.Rule.ForKey].
package overrides
