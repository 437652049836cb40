// Package storetest is a conformance test suite for implementations of quota.Store.
//
//	func TestStore(t *testing.T) {
//		storetest.Run(t, func(t *testing.T) quota.Store { return memstore.New(memstore.Options{}) }) // a store of yours
//	}
//
// # How it tests
//
// Tests cannot set a store's clock. The suite therefore repeats every transaction on its own copy
// of the state, at the time that the store reports in [quota.Result.At]. It then compares every
// field of the two results. A store fails the suite if a time is wrong by a single microsecond.
//
// [Run] tests a store with the algorithms in package algorithms. Use [Limits] to test other
// algorithms. The store need not be empty, because every run uses new keys. The tests sleep for
// less than a second in total.
package storetest

import (
	"testing"

	"github.com/seed83679106/weir/quota"
)

// Run runs every test as a subtest. For each subtest, it calls open to get a new store. If open
// starts a server or a goroutine, it should stop it with t.Cleanup.
//
// Subtests cannot run inside a testing/synctest bubble. To test a store in bubbles, range over
// Tests and run each test in a separate bubble.
func Run(t *testing.T, open func(t *testing.T) quota.Store) {
	t.Helper()
	for _, test := range Tests() {
		t.Run(test.Name, func(t *testing.T) { test.Run(t, open(t)) })
	}
}

// A Test checks one requirement of quota.Store.
type Test struct {
	Name string
	Run  func(t testing.TB, store quota.Store)
}

// Tests returns the tests of the suite, for callers that cannot use Run.
func Tests() (tests []Test) {
	for _, test := range all {
		tests = append(tests, Test{test.name, func(t testing.TB, store quota.Store) { test.run(newReplay(t, store)) }})
	}
	return tests
}

var all = [...]struct {
	name string
	run  func(p *replay)
}{
	{"Clock", clock},
	{"Random", random},
	{"Single", single},
	{"Bounds", bounds},
	{"Changed", changed},
	{"Reset", reset},

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
