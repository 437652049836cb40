package algorithms_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A store runs the arithmetic under a lock, on its own clock.
func Example() {
	store := memstore.New(memstore.Options{})
	tx := quota.Transaction{Charges: []quota.Charge{{
		Rule:  "login",
		Key:   "192.0.2.1",
		Limit: algorithms.GCRA(2, time.Minute),
		Cost:  1,
	}}}
	for range 3 {
		if err := store.Take(context.Background(), &tx); err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(tx.Allowed(), tx.Decisions[0].Remaining)
	}
	// Output:
	// true 1
	// true 0
	// false 0
}

// A limit of ten a minute admits ten units at once, and then one every six seconds.
func ExampleGCRA() {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.GCRA(10, time.Minute), Cost: 10}}}
	states := make([]quota.State, 1) // what a store would keep
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)

	fmt.Println("ten:", tx.Decide(now.UnixMicro(), states))
	tx.Charges[0].Cost = 1
	fmt.Println("one more:", tx.Decide(now.UnixMicro(), states), "after", tx.RetryAfter())
	now = now.Add(tx.RetryAfter())
	fmt.Println("then:", tx.Decide(now.UnixMicro(), states))
	// Output:
	// ten: true
	// one more: false after 6s
	// then: true
}

// A client that was idle may spend a hundred tokens at once. A busy client gets ten a
// second.
func ExampleTokenBucket() {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.TokenBucket(100, 10, time.Second)}}}
	states := make([]quota.State, 1)
	start := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, second := range []time.Duration{0, 1, 2, 60} {
		now := start.Add(second * time.Second).UnixMicro()
		tx.Charges[0].Cost = 0 // a cost of 0 spends nothing and tells what remains
		tx.Decide(now, states)
		tx.Charges[0].Cost = tx.Decisions[0].Remaining
		tx.Decide(now, states)
		fmt.Printf("after %2ds: %d tokens\n", second, tx.Charges[0].Cost)
	}
	// Output:
	// after  0s: 100 tokens
	// after  1s: 10 tokens
	// after  2s: 10 tokens
	// after 60s: 100 tokens
}

// Callers that wait form a queue: the bucket has room for three, and one leaves every 4
// seconds.
func ExampleLeakyBucket() {
	tx := quota.Transaction{
		Charges: []quota.Charge{{Limit: algorithms.LeakyBucket(3, 1, 4*time.Second), Cost: 1}},
		Within:  time.Minute,
	}
	states := make([]quota.State, 1)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	for i := range 4 {
		if tx.Decide(now, states) {
			fmt.Printf("%d waits %v\n", i+1, tx.Wait)
		} else {
			fmt.Printf("%d finds the bucket full for %v\n", i+1, tx.RetryAfter())
		}
	}
	// Output:
	// 1 waits 0s
	// 2 waits 4s
	// 3 waits 8s
	// 4 finds the bucket full for 4s
}

// All clients have their quota again when an hour of the clock begins.
func ExampleFixedWindow() {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.FixedWindow(5000, time.Hour), Cost: 5000}}}
	states := make([]quota.State, 1)
	now := time.Date(2026, 1, 1, 12, 58, 30, 0, time.UTC)
	tx.Decide(now.UnixMicro(), states)
	tx.Charges[0].Cost = 1
	fmt.Println(tx.Decide(now.UnixMicro(), states), tx.RetryAfter())
	// Output:
	// false 1m30s
}

// The window of a client begins with its first unit and lasts an hour.
func ExampleAnchoredWindow() {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.AnchoredWindow(2, time.Hour), Cost: 1}}}
	states := make([]quota.State, 1)
	first := time.Date(2026, 1, 1, 12, 58, 30, 0, time.UTC)
	for _, minutes := range []time.Duration{0, 10, 20, 60} {
		now := first.Add(minutes * time.Minute)
		fmt.Println(now.Format("15:04:05"), tx.Decide(now.UnixMicro(), states), tx.RetryAfter())
	}
	// Output:
	// 12:58:30 true 0s
	// 13:08:30 true 0s
	// 13:18:30 false 40m0s
	// 13:58:30 true 0s
}

// After a quarter of the current minute, 42 units of the minute before count as 31.5. With
// 18 units of the current minute, 49.5 of 50 are taken.
func ExampleSlidingWindow() {
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.SlidingWindow(50, time.Minute)}}}
	states := make([]quota.State, 1)
	noon := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	for _, c := range []struct {
		at   time.Duration
		cost int64
	}{{-30 * time.Second, 42}, {12 * time.Second, 16}, {15 * time.Second, 2}, {15 * time.Second, 1}} {
		tx.Charges[0].Cost = c.cost
		fits := tx.Decide(noon.Add(c.at).UnixMicro(), states)
		fmt.Printf("%2d at %4v: %v, %d left\n", c.cost, c.at, fits, tx.Decisions[0].Remaining)
	}
	// Output:
	// 42 at -30s: true, 8 left
	// 16 at  12s: true, 0 left
	//  2 at  15s: true, 0 left
	//  1 at  15s: false, 0 left
}

// Two limits of one key are charged together, all or nothing: if the second limit refuses a
// charge, the first limit spends nothing.
func ExampleSlidingLog() {
	tx := quota.Transaction{Charges: []quota.Charge{
		{Limit: algorithms.SlidingLog(20, time.Minute).Named("1m"), Cost: 1},
		{Limit: algorithms.SlidingLog(5, 3*time.Second).Named("3s"), Cost: 1},
	}}
	states := make([]quota.State, 2)
	now := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC).UnixMicro()
	for range 7 {
		fits := tx.Decide(now, states)
		fmt.Println(fits, tx.Decisions[0].Remaining, tx.Decisions[1].Remaining)
	}
	fmt.Println("again after", tx.RetryAfter())
	// Output:
	// true 19 4
	// true 18 3
	// true 17 2
	// true 16 1
	// true 15 0
	// false 15 0
	// false 15 0
	// again after 3s
}

// A client that has spent the quota of a day waits for the next day. On the day on which
// clocks go forward, that takes 23 hours from midnight.
func ExampleCalendar() {
	berlin, err := time.LoadLocation("Europe/Berlin")
	if err != nil {
		fmt.Println(err)
		return
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.Calendar(100, algorithms.Day, berlin), Cost: 100}}}
	states := make([]quota.State, 1)
	midnight := time.Date(2026, 3, 29, 0, 0, 0, 0, berlin).UnixMicro()
	fmt.Println(tx.Decide(midnight, states))
	fmt.Println(tx.Decide(midnight, states), tx.RetryAfter())
	// Output:
	// true
	// false 23h0m0s
}

// The limit that Calendar returns is named after its unit.
func ExampleUnit() {
	for _, unit := range []algorithms.Unit{algorithms.Day, algorithms.Week, algorithms.Month} {
		fmt.Println(algorithms.Calendar(1000, unit, nil))
	}
	// Output:
	// day: 1000 per 24h0m0s (calendar)
	// week: 1000 per 168h0m0s (calendar)
	// month: 1000 per 720h0m0s (calendar)
}

// A program that reads limits from its own configuration finds the algorithm by its name.
func ExampleByName() {
	limit := quota.Limit{Algorithm: algorithms.ByName("sliding-log"), Quota: 5, Period: time.Minute}
	fmt.Println(limit)
	fmt.Println(algorithms.ByName("calendar"))
	fmt.Println(algorithms.Names())
	// Output:
	// 5 per 1m0s (sliding-log)
	// <nil>
	// [gcra token-bucket leaky-bucket fixed-window anchored-window sliding-window sliding-log in-flight]
}

func ExampleInFlight() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "exports", Key: weir.Global(), Limits: []quota.Limit{algorithms.InFlight(1, time.Minute)},
	}}})
	if err != nil {
		panic(err)
	}
	var h http.Handler
	h = limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		inner := httptest.NewRecorder()
		h.ServeHTTP(inner, r) // a second request, while the first is in flight
		fmt.Println("second:", inner.Code)
	}))
	first := httptest.NewRecorder()
	h.ServeHTTP(first, httptest.NewRequest("GET", "/", nil))
	fmt.Println("first:", first.Code)
	// Output:
	// second: 429
	// first: 200
}
