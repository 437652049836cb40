// Package storetest is the conformance suite that every weir.Store passes.
//
// A store decides on a clock of its own, which a test can't set. So every
// decision is replayed: the suite keeps states itself, decides at the
// Transaction.At that the store has filled in, and both must agree in every
// field. A store that keeps its states apart, changes them all at once or not
// at all, and is right about its clock passes; no tolerance hides one that is
// off by a microsecond.
//
// The suite needs no empty store, for its keys are new in every run. Tests
// sleep for less than a second in all.
package storetest

import (
	"testing"

	"github.com/seed83679106/weir"
)

// Run runs every test, each on a store that open returns for it. What open
// starts, t.Cleanup ends.
//
// Inside a bubble of testing/synctest subtests are not allowed: those who want
// one, for a store in memory, range over Tests.
func Run(t *testing.T, open func(t *testing.T) weir.Store) {
	t.Helper()
	for _, test := range Tests() {
		t.Run(test.Name, func(t *testing.T) { test.Run(t, open(t)) })
	}
}

// A Test checks one promise of weir.Store.
type Test struct {
	Name string
	Run  func(t testing.TB, store weir.Store)
}

// Tests returns the suite, for those who run its tests in a way of their own.
func Tests() []Test {
	return []Test{
		{"Clock", clock},
		{"Random", random},
		{"Algorithms", everyAlgorithm},
		{"Bounds", bounds},
		{"Changed", changed},
		{"Reset", reset},

		{"AllOrNothing", allOrNothing},
		{"Refused", refused},
		{"Look", look},
		{"GiveBack", giveBack},
		{"Spent", spent},
		{"Forget", forget},
		{"Never", never},
		{"Reserve", reserve},
		{"Queue", queue},

		{"NoCharges", noCharges},
		{"ManyCharges", manyCharges},
		{"ManyLimits", manyLimits},
		{"Decisions", decisions},
		{"Duplicate", duplicate},
		{"Invalid", invalid},
		{"Canceled", canceled},
		{"Each", each},

		{"Names", names},
		{"LongNames", longNames},
		{"KeyMemory", keyMemory},

		{"OneKey", oneKey},
		{"CrossingKeys", crossingKeys},
	}
}
