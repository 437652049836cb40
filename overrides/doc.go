// Package overrides gives single keys limits of their own: a customer who has paid for
// more, a prefix of keys that must have less, a monitor that is not limited.
//
// A [Table] is fixed. A rule uses its Limits:
//
//	table, err := overrides.New(
//		overrides.Entry{Key: "alice", Limits: []weir.Limit{{Quota: 1000}}},
//		overrides.Entry{Key: "tenant-a/*", Limits: []weir.Limit{algorithms.GCRA(50, time.Second)}},
//		overrides.Entry{Key: "monitor", Unlimited: true},
//	)
//	rule.Overrides = table.Limits
//
// [Live] changes while the program runs, in all processes that share a Redis. In a file of
// package config the table is the field overrides of a rule, and package admin changes
// Live.
//
// If several entries match a key, the key itself comes first, and then the longest
// beginning. What a key has spent still counts if its limits change: see
// [weir.Rule.Overrides].
package overrides
