// Package storetest is the conformance suite that every quota.Store passes.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) quota.Store { return memstore.New(memstore.Options{}) }) // a store of yours
//	}
//
// # How it tests
//
// A store decides by its own clock, which a test cannot set. The suite therefore replays every
// decision: it keeps states too, decides at the [quota.Result.At] that the store has
// filled in, and compares every field of the results. A store that is off by a microsecond
// fails.
//
// [Run] tests the algorithms of package algorithms, and [Limits] other algorithms. The store
// need not be empty, because the keys are new in every run. The tests sleep for less than a
// second in all.
package storetest

import (
	"testing"

	"github.com/seed83679106/weir/quota"
)

// Run runs every test as a subtest, each with a new store from open. If open starts
// a server or a goroutine, it should end it with t.Cleanup.
//
// A bubble of testing/synctest allows no subtests. To test a store in bubbles, range over
// Tests and open a bubble for each test.
func Run(t *testing.T, open func(t *testing.T) quota.Store) {
	t.Helper()
	for _, test := range Tests() {
		t.Run(test.Name, func(t *testing.T) { test.Run(t, open(t)) })
	}
}

// A Test checks one promise of quota.Store.
type Test struct {
	Name string
	Run  func(t testing.TB, store quota.Store)
}

// Tests returns the tests of the suite, for callers that cannot use Run.
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
		{"Peek", peek},
		{"AtMost", atMost},
		{"Modes", badModes},
		{"Force", force},
		{"GiveBack", giveBack},
		{"Spent", spent},
		{"Forget", forget},
		{"Never", never},
		{"Reserve", reserve},
		{"Queue", queue},
		{"InFlight", inFlight},

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
