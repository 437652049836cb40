package quota_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"strings"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// Stores keep a digest in place of a long key.
func ExampleCharge_StoredKey() {
	short := quota.Charge{Key: "192.0.2.1"}
	fmt.Println(short.StoredKey())
	long := quota.Charge{Key: strings.Repeat("long", 1000)}
	fmt.Println(long.StoredKey())
	// Output:
	// 192.0.2.1
	// sha256:WfHWZvzl2U5qMiXLkq1ySpXkPRO5Yh3pj0Q-cwo0YQU
}

// Batch jobs leave 30 of 100 units to people.
func ExampleCharge_headroom() {
	store := memstore.New(memstore.Options{})
	people := quota.Charge{Rule: "api", Key: "acme", Limit: algorithms.GCRA(100, 100*time.Hour), Cost: 1}
	batch := people
	batch.Headroom = batch.Limit.Headroom(30) // percent
	allowed := 0
	d, err := quota.Allow(context.Background(), store, batch)
	for ; err == nil && d.Allowed; d, err = quota.Allow(context.Background(), store, batch) {
		allowed++
	}
	fmt.Println("batch:", allowed, "allowed, the next in", d.RetryAfter.Round(time.Hour))
	d, err = quota.Allow(context.Background(), store, people)
	fmt.Println("people:", d.Allowed, d.Remaining, err)
	// Output:
	// batch: 70 allowed, the next in 1h0m0s
	// people: true 29 <nil>
}

// Counts are stored under the name and the period of a limit.
func ExampleLimit_StoredName() {
	limit := algorithms.GCRA(100, 90*time.Second)
	fmt.Println(limit.StoredName())
	limit = limit.Named("burst")
	fmt.Println(limit.StoredName())
	// Output:
	// 90s
	// burst/90s
}

// A key has spent 900 of 1000 a minute, and now has 10 a minute.
func ExampleLimit_FullAfter() {
	store, limit := memstore.New(memstore.Options{}), algorithms.GCRA(1000, time.Minute)
	charge := quota.Charge{Rule: "api", Key: "ada", Limit: limit, Cost: 900}
	t := quota.Transaction{Charges: []quota.Charge{charge}}
	if err := store.Take(context.Background(), &t); err != nil {
		fmt.Println(err)
	}
	charge.Limit.Quota, charge.Cost = 10, 0
	t.Charges[0] = charge
	if err := store.Take(context.Background(), &t); err != nil {
		fmt.Println(err)
	}
	d := &t.Decisions[0]
	fmt.Println("kept for", d.ResetAfter.Round(time.Minute), "but full after", charge.Limit.FullAfter(d).Round(time.Second))
	// Output: kept for 1h30m0s but full after 1m0s
}

func ExampleLimit_Validate() {
	fmt.Println(algorithms.GCRA(100, time.Minute).Validate())
	fmt.Println(algorithms.GCRA(0, time.Minute).Named("burst").Validate())
	// Output:
	// <nil>
	// quota: limit "burst": quota is 0; want at least 1
}

// A Store calls Validate first, which returns an error if no store can decide the
// transaction.
func ExampleTransaction_Validate() {
	charge := quota.Charge{Rule: "api", Key: "ada", Limit: algorithms.GCRA(100, time.Minute), Cost: 1}
	t := quota.Transaction{Charges: []quota.Charge{charge, charge}}
	fmt.Println(errors.Is(t.Validate(), quota.ErrDuplicate))
	// Output: true
}

func ExampleTransaction_Plan() {
	limit := algorithms.GCRA(100, time.Minute)
	t := quota.Transaction{Charges: []quota.Charge{
		{Rule: "api", Key: "192.0.2.1", Limit: limit}, {Rule: "api", Key: "192.0.2.2", Limit: limit},
	}}
	if err := t.Validate(); err != nil {
		fmt.Println(err)
	}
	first, period, capacity := t.Plan(0)
	second, _, _ := t.Plan(1)
	fmt.Println("the names of both are the same:", first == second)
	fmt.Println(capacity, "units at once, period in µs:", period)
	// Output:
	// the names of both are the same: true
	// 100 units at once, period in µs: 60000000
}

// The beginning of an outage is logged once, with its cause. Stats counts what the secondary
// decides.
func ExampleFallbackStore() {
	text := slog.NewTextHandler(os.Stdout, &slog.HandlerOptions{ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
		if a.Key == slog.TimeKey {
			return slog.Attr{}
		}
		return a
	}})
	store := quota.Fallback(failing{errors.New("connection refused")}, memstore.New(memstore.Options{}), quota.FallbackOptions{Logger: slog.New(text)})
	for range 2 {
		d, err := quota.Allow(context.Background(), store, quota.Charge{Rule: "mail", Key: "ada", Limit: algorithms.GCRA(2, time.Hour), Cost: 1})
		fmt.Println(d.Allowed, err)
	}
	stats := store.Stats()
	fmt.Println(stats.Active, stats.Decided)
	// Output:
	// level=WARN msg="quota: primary store failed" err="connection refused" cause=error effect="the secondary store is used"
	// true <nil>
	// true <nil>
	// true map[busy:0 error:2 full:0 open:0 slow:0 timeout:0 unusable:0]
}

func ExampleLimit_Capacity() {
	limit := algorithms.GCRA(100, time.Minute).WithBurst(20)
	fmt.Println(limit.Capacity(), limit.Quota)
	// Output: 20 100
}

func ExampleAllow() {
	store := memstore.New(memstore.Options{})
	for _, user := range []string{"alice", "alice", "bob"} {
		d, err := quota.Allow(context.Background(), store, quota.Charge{
			Rule: "export", Key: user, Limit: algorithms.GCRA(1, time.Hour), Cost: 1,
		})
		switch {
		case err != nil:
			fmt.Println("not known:", err)
		case !d.Allowed:
			fmt.Println(user, "may export again in", d.RetryAfter.Round(time.Minute))
		default:
			fmt.Println(user, "exports")
		}
	}
	// Output:
	// alice exports
	// alice may export again in 1h0m0s
	// bob exports
}

func ExampleWait() {
	store := memstore.New(memstore.Options{}) // or a redisstore, shared by all workers
	units := quota.Charge{Rule: "partner", Limit: algorithms.GCRA(20, time.Second).WithBurst(1), Cost: 1}
	start := time.Now()
	for range 3 {
		if err := quota.Wait(context.Background(), store, time.Second, units); err != nil {
			fmt.Println(err)
		}
	}
	fmt.Println(time.Since(start) >= 100*time.Millisecond)
	// Output: true
}

func ExampleReserve() {
	store := memstore.New(memstore.Options{})
	units := quota.Charge{Rule: "partner", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}
	quota.Reserve(context.Background(), store, 0, units)
	r, _ := quota.Reserve(context.Background(), store, 2*time.Hour, units)
	fmt.Println(r.Delay().Round(time.Minute))
	r.Cancel(context.Background())
	// Output: 1h0m0s
}

func ExampleLimitedError() {
	store := memstore.New(memstore.Options{})
	units := quota.Charge{Rule: "partner", Limit: algorithms.FixedWindow(1, 1000*time.Hour), Cost: 2}
	err := quota.Wait(context.Background(), store, time.Second, units)
	var limited *quota.LimitedError
	if errors.As(err, &limited) {
		fmt.Println(limited.RetryAfter() == quota.Never)
		fmt.Println(err)
	}
	// Output:
	// true
	// quota: rule "partner" never allows 2 at once: limit 1 per 1000h0m0s (fixed-window)
}

// A batch that was not needed gives its units back.
func ExampleRefund() {
	store := memstore.New(memstore.Options{})
	batch := quota.Transaction{Charges: []quota.Charge{{Rule: "mail", Key: "ada", Limit: algorithms.GCRA(100, time.Hour), Cost: 60}}}
	if err := store.Take(context.Background(), &batch); err != nil {
		fmt.Println(err)
	}
	fmt.Println("left:", batch.Decisions[0].Remaining)
	if err := quota.Refund(context.Background(), store, &batch); err != nil {
		fmt.Println(err)
	}
	now, err := quota.Peek(context.Background(), store, batch.Charges...)
	fmt.Println("left:", now.Decisions[0].Remaining, err)
	// Output:
	// left: 40
	// left: 100 <nil>
}

// A store around another store may change a copy of the question, and copies the answer back.
func ExampleTransaction_SetQuestion() {
	next := memstore.New(memstore.Options{})
	sale := storeFunc(func(ctx context.Context, t *quota.Transaction) error {
		var doubled quota.Transaction
		doubled.SetQuestion(t)
		for i := range doubled.Charges {
			doubled.Charges[i].Limit.Quota *= 2
		}
		err := next.Take(ctx, &doubled)
		if err == nil {
			t.SetResult(&doubled.Result)
		}
		return err
	})
	t := quota.Transaction{
		Charges: []quota.Charge{{Rule: "api", Key: "acme", Limit: algorithms.FixedWindow(5, 1000*time.Hour), Cost: 1}},
		Mode:    quota.ModeAtMost,
		Most:    100,
	}
	err := sale.Take(context.Background(), &t)
	fmt.Println(t.Granted, err)
	// Output: 10 <nil>
}

// Units are refunded by the store that has spent them.
func ExampleTransaction_Refunds() {
	store := memstore.New(memstore.Options{})
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "jobs", Key: "acme", Limit: algorithms.GCRA(2, time.Minute), Cost: 1}}}
	err := store.Take(context.Background(), &t)
	refund := t.Charges[0]
	refund.Cost, refund.Spent, refund.FellBack = -1, t.Decisions[0].At, t.Decisions[0].FellBack
	back := quota.Transaction{Charges: []quota.Charge{refund}}
	fmt.Println(err, t.FellBack(), back.Refunds(), store.Take(context.Background(), &back))
	// Output: <nil> false true <nil>
}

// A user has solved a captcha, so earlier attempts no longer count.
func ExampleReset() {
	store := memstore.New(memstore.Options{})
	attempt := quota.Charge{Rule: "login", Key: "ada", Limit: algorithms.SlidingLog(3, time.Hour), Cost: 1}
	for range 4 {
		d, err := quota.Allow(context.Background(), store, attempt)
		fmt.Println(d.Allowed, d.Remaining, err)
	}
	fmt.Println(quota.Reset(context.Background(), store, attempt))
	d, err := quota.Allow(context.Background(), store, attempt)
	fmt.Println(d.Allowed, d.Remaining, err)
	// Output:
	// true 2 <nil>
	// true 1 <nil>
	// true 0 <nil>
	// false 0 <nil>
	// true <nil>
	// true 2 <nil>
}

// A store that waits for a network gives a call only what earlier calls of its request have left.
func ExampleWithBudget() {
	call := func(ctx context.Context) error {
		budget := quota.BudgetOf(ctx)
		left := budget.Left(50 * time.Millisecond)
		if left <= 0 {
			return quota.ErrUsedUp
		}
		fmt.Println("waits for at most", left)
		budget.Spend(30 * time.Millisecond) // what the call has taken
		return nil
	}
	ctx := quota.WithBudget(context.Background())
	for range 3 {
		if err := call(ctx); err != nil {
			fmt.Println(err)
		}
	}
	// Output:
	// waits for at most 50ms
	// waits for at most 20ms
	// quota: the store is busy: earlier calls of the request have used the time up
}
