// Package plans has the type Plan. A quota.Transaction computes a Plan from a rule and a
// limit, and its store uses the Plan.
package plans

// A Plan has what all charges of one rule and limit have in common, whatever their key
// and cost.
type Plan struct {
	// Names is a hash of the names that tell the states of a key apart: of the rule, of the
	// limit as it is stored, and of the algorithm. The hash depends on no secret, so
	// combine it with a hash of the key that depends on a secret.
	Names uint64

	// GCRA and the buckets count a debt in ticks. Unit is how many ticks one unit adds to
	// the debt, and Rate is how many ticks drain in a µs. Full is the largest debt in
	// ticks, and Size is the largest debt in units. All four are 0 for other algorithms.
	Unit, Rate, Full, Size int64
}
