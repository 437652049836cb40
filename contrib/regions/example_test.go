package regions_test

import (
	"context"
	"fmt"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/regions"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A region has a Redis of its own, and reaches a central one. In this example both are in memory.
func region(name string, central quota.Store) *regions.Store {
	local := memstore.New(memstore.Options{})
	return regions.New(local, central, regions.Options{Budget: "partner", Region: name, Regions: 2})
}

// Two regions share 100 requests a second to a partner. Each decides alone, under its half of the
// burst and its share of the rate.
func Example() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	central := memstore.New(memstore.Options{})
	for _, name := range []string{"eu", "us"} {
		store := region(name, central)
		go store.Run(ctx) // claims the share of the region
		d, err := quota.Allow(ctx, store, quota.Charge{Rule: "partner", Limit: algorithms.GCRA(100, time.Second), Cost: 1})
		fmt.Println(name, d.Allowed, d.Remaining, err)
	}
	// Output:
	// eu true 49 <nil>
	// us true 49 <nil>
}
