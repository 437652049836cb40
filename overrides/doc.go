// Package overrides gives single keys their own limits. For example, a customer that
// has paid gets more, all keys with a prefix get less, and a monitor is not limited.
//
// A [Table] is fixed. A rule uses its ForKey:
//
//	table, err := overrides.New(
//		overrides.Entry{Key: "alice", Limits: []quota.Limit{{Quota: 1000}}},
//		overrides.Entry{Key: "tenant-a/*", Limits: []quota.Limit{algorithms.GCRA(50, time.Second)}},
//		overrides.Entry{Key: "monitor", Unlimited: true},
//	)
//	rule.ForKey = table.ForKey
//
// [Live] is a table that changes while the program runs, in all processes that share a
// Redis. Package admin has an HTTP API that changes it. In a file of package config, the
// field overrides of a rule is such a table.
//
// If several entries match a key, the entry for exactly that key applies, and otherwise the
// one with the longest matching prefix. Units that a key has spent still count if its limits
// change: see [weir.Rule.ForKey].
package overrides
