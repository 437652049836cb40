// Package plans has what a weir.Transaction prepares of a limit for stores.
package plans

// A Plan has what all charges of one rule and limit have in common, whatever their key
// and cost.
type Plan struct {
	// Names is a hash of the names that tell the states of a key apart: of the rule,
	// of the limit as it is stored, and of the algorithm. It has no secret: combine it
	// with a hash of the key that has one.
	Names uint64

	// Unit, Rate, Full and Size are the numbers of an algorithm that is a meter, as
	// GCRA is: the ticks of a unit, the ticks that drain in a µs, and the most ticks
	// and units that may be owed. They are 0 for other algorithms.
	Unit, Rate, Full, Size int64
}
