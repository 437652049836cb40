package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

func ExampleNew() {
	store := memstore.New(memstore.Options{MaxKeys: 100_000})
	t := quota.Transaction{Charges: []quota.Charge{{
		Rule: "mail", Key: "ada@example.org", Limit: algorithms.GCRA(2, time.Hour), Cost: 1,
	}}}
	for range 3 {
		if err := store.Take(context.Background(), &t); err != nil {
			fmt.Println(err)
			return
		}
		d := t.Decisions[0]
		fmt.Println(d.Allowed, d.Remaining, d.RetryAfter.Round(time.Minute))
	}
	// Output:
	// true 1 0s
	// true 0 0s
	// false 0 30m0s
}

// Two limits of one key and a limit of all keys are charged together: units are spent under
// all of them or under none.
func ExampleStore_Take() {
	store := memstore.New(memstore.Options{})
	t := quota.Transaction{Charges: []quota.Charge{
		{Rule: "login", Key: "192.0.2.1", Limit: algorithms.SlidingLog(20, time.Hour).Named("hour"), Cost: 1},
		{Rule: "login", Key: "192.0.2.1", Limit: algorithms.SlidingLog(2, time.Minute).Named("minute"), Cost: 1},
		{Rule: "everyone", Limit: algorithms.GCRA(1000, time.Hour), Cost: 1},
	}}
	for range 3 {
		if err := store.Take(context.Background(), &t); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Print(t.Allowed())
		for _, d := range t.Decisions {
			fmt.Print(" ", d.Remaining)
		}
		fmt.Println()
	}
	// Output:
	// true 19 1 999
	// true 18 0 998
	// false 18 0 998
}

// If every state in a full store has refused a charge, a charge of a new key returns
// ErrFull. The caller chooses whether to go ahead.
func Example_full() {
	store := memstore.New(memstore.Options{MaxKeys: 8})
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}}}
	for i := 0; ; i++ {
		t.Charges[0].Key = fmt.Sprint("key ", i)
		for range 2 { // the second charge is refused
			if err := store.Take(context.Background(), &t); errors.Is(err, quota.ErrFull) {
				fmt.Println(err)
				return
			}
		}
	}
	// Output:
	// quota: the store is busy: full of keys that are being limited
}
