package quota_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// jobs charges one unit of a limit of n jobs at a time.
func jobs(n int64, lease time.Duration) quota.Charge {
	return quota.Charge{Rule: "jobs", Key: "k", Limit: algorithms.InFlight(n, lease), Cost: 1}
}

// held returns how many units of a charge are in flight.
func held(t *testing.T, store quota.Store, c quota.Charge) int64 {
	t.Helper()
	c.Cost = 0
	return c.Limit.Quota - take(t, store, 0, c).Decisions[0].Remaining
}

// TestHold: the units stay held for ten leases, and until release is called, whatever the context
// does meanwhile. A second release refunds no unit of another caller.
func TestHold(t *testing.T) {
	for name, around := range map[string]func(quota.Store) quota.Store{
		"alone":    func(s quota.Store) quota.Store { return s },
		"hybrid":   func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"fallback": func(s quota.Store) quota.Store { return quota.Fallback(s, memory(), quota.FallbackOptions{}) },
		"coalesce": func(s quota.Store) quota.Store { return quota.Coalesce(s) },
		"lease":    func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store, c := around(memory()), jobs(2, time.Minute)
				rate := quota.Charge{Rule: "starts", Key: "k", Limit: algorithms.FixedWindow(3, 1000*time.Hour), Cost: 1}
				ctx, cancel := context.WithCancel(t.Context())
				first, err := quota.Hold(ctx, store, c, rate)
				if err != nil {
					t.Fatal(err)
				}
				cancel()
				second, err := quota.Hold(t.Context(), store, rate, c)
				if err != nil {
					t.Fatal(err)
				}
				var limited *quota.LimitedError
				if _, err := quota.Hold(t.Context(), store, c, rate); !errors.As(err, &limited) || limited.RetryAfter() != quota.Never {
					t.Errorf("a third: got %v, want a LimitedError of Never", err)
				}
				for range 20 {
					time.Sleep(31 * time.Second)
					if got := held(t, store, c); got != 2 {
						t.Fatalf("while held: got %d in flight, want 2", got)
					}
				}
				for range 3 {
					first()
					if got := held(t, store, c); got != 1 {
						t.Errorf("after a release: got %d in flight, want 1", got)
					}
				}
				second()
				time.Sleep(time.Hour) // a timer that is left would renew the units
				if got := held(t, store, c); got != 0 {
					t.Errorf("at the end: got %d in flight, want 0", got)
				}
				if got := held(t, store, rate); got != 2 {
					t.Errorf("got %d starts, want the 2 that were admitted", got)
				}
			})
		})
	}
}

// TestHoldCrash: the units of a process that dies are free when their lease is over, and the
// first who waits in another process gets them.
func TestHoldCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, dead := memory(), atomic.Bool{}
		dies := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if dead.Load() {
				return errDown // nothing that the process does arrives any more
			}
			return next.Take(ctx, tx)
		})
		c, start := jobs(1, time.Minute), time.Now()
		release, err := quota.Hold(t.Context(), dies, c)
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(40 * time.Second) // the units were renewed after 30 s
		dead.Store(true)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		mine, err := quota.Hold(ctx, next, c)
		if took := time.Since(start); err != nil || took < 90*time.Second || took > 90*time.Second+15*time.Millisecond {
			t.Errorf("got %v after %v, want the units 90 to 90.015 s after the start", err, took)
		}
		release()
		if got := held(t, next, c); got != 1 {
			t.Errorf("got %d in flight, want 1", got)
		}
		mine()
	})
}

// TestHoldErrors: what cannot be held is an error at once, and units that could not be renewed or
// released are logged.
func TestHoldErrors(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
	defer cancel()
	over, end := context.WithCancel(t.Context())
	end()
	large := jobs(2, time.Minute)
	large.Cost = 3
	for _, tt := range []struct {
		ctx   context.Context
		store quota.Store
		c     quota.Charge
		want  string
	}{
		{ctx, memory(), large, `quota: rule "jobs" has as many requests in flight as it may: limit 2 per 1m0s (in-flight)`},
		{ctx, memory(), quota.Charge{Rule: "jobs", Limit: algorithms.GCRA(1, time.Second), Cost: 1}, "quota: Hold: no charge is of a concurrency limit; want one, or Hold would hold nothing"},
		{ctx, memory(), quota.Charge{Rule: "jobs", Limit: algorithms.InFlight(1, time.Second)}, `quota: rule "jobs": Cost is 0; want at least 1, because a charge that spends nothing is never limited`},
		{ctx, memory(), quota.Charge{Rule: "jobs", Limit: algorithms.InFlight(0, time.Second), Cost: 1}, `quota: rule "jobs": limit "1s": quota is 0; want at least 1`},
		{ctx, failing{errDown}, jobs(1, time.Second), errDown.Error()},
		{over, memory(), jobs(1, time.Second), "context canceled"},
	} {
		release, err := quota.Hold(tt.ctx, tt.store, tt.c)
		if err == nil || err.Error() != tt.want || release != nil {
			t.Errorf("%v: got %v, want %s", tt.c, err, tt.want)
		}
	}
	if _, err := quota.TakeInLine(ctx, memory(), &quota.Transaction{Charges: []quota.Charge{jobs(1, time.Second)}, Mode: quota.ModePeek}); err == nil {
		t.Error("TakeInLine with ModePeek: got no error")
	}

	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		quota.ResetHeldLog()
		defer slog.SetDefault(slog.Default())
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		next, fails := memory(), atomic.Int64{}
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			switch fails.Load() {
			case 1:
				return errDown
			case 2:
				panic("a bug")
			}
			return next.Take(ctx, tx)
		})
		release, err := quota.Hold(t.Context(), store, jobs(1, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for n := range 3 {
			fails.Store(int64(n))
			time.Sleep(34 * time.Second) // nothing else happens when it is over
		}
		fails.Store(1)
		release()
		synctest.Wait()
		for _, want := range []string{`quota: request in flight not renewed`, "rule=jobs", "the store panicked: a bug", "quota: units not refunded"} {
			if !strings.Contains(log.String(), want) {
				t.Errorf("got the log %s, want it to have %s", &log, want)
			}
		}
	})
}

// TestHoldReleasedLater: units whose release fails are released when the store answers again, and not
// only when their lease of 20 s is over.
func TestHoldReleasedLater(t *testing.T) {
	for name, around := range map[string]func(quota.Store) quota.Store{
		"alone":   func(s quota.Store) quota.Store { return s },
		"breaker": func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"fallback": func(s quota.Store) quota.Store {
			return quota.Fallback(quota.Breaker(s, quota.BreakerOptions{}), quota.Share(memory(), 2), quota.FallbackOptions{})
		},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				next, down := memory(), atomic.Bool{}
				store := around(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
					if down.Load() {
						return errDown
					}
					return next.Take(ctx, tx)
				}))
				c := jobs(10, 20*time.Second)
				var releases []func()
				for range 10 {
					release, err := quota.Hold(t.Context(), store, c)
					if err != nil {
						t.Fatal(err)
					}
					releases = append(releases, release)
					time.Sleep(time.Microsecond)
				}
				down.Store(true)
				time.Sleep(time.Second)
				for _, release := range releases {
					release()
					time.Sleep(30 * time.Millisecond)
				}
				down.Store(false)
				time.Sleep(2 * time.Second)
				if got := held(t, next, c); got != 0 {
					t.Errorf("got %d in flight, want 0", got)
				}
				time.Sleep(time.Hour)
			})
		})
	}
}

// TestHoldFlapping: units are released in the store that has spent them, also while the first store
// fails now and then, so that both stores decide in turn.
func TestHoldFlapping(t *testing.T) {
	for name, n := range map[string]int64{"every second call": 2, "every third": 3, "every seventh": 7} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				primary, secondary := memory(), memory()
				var calls, every atomic.Int64
				store := quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
					if e := every.Load(); e > 0 && calls.Add(1)%e == 0 {
						return errDown
					}
					return primary.Take(ctx, tx)
				}), secondary, quota.FallbackOptions{})
				c := jobs(1000, time.Hour)
				every.Store(n)
				var releases []func()
				for i := range 60 {
					release, err := quota.Hold(t.Context(), store, c)
					if err != nil {
						t.Fatal(err)
					}
					releases = append(releases, release)
					time.Sleep(13 * time.Millisecond)
					if i%2 == 0 { // others are in flight for longer
						releases[i/2]()
					}
				}
				for _, release := range releases {
					release()
					time.Sleep(7 * time.Millisecond)
				}
				every.Store(0)
				time.Sleep(10 * time.Second)
				if one, two := held(t, primary, c), held(t, secondary, c); one != 0 || two != 0 {
					t.Errorf("got %d and %d in flight, want 0 and 0", one, two)
				}
			})
		})
	}
}

// TestHoldReleasedTwice: if the store has released units although the call failed, a second release
// takes no unit from a request that was admitted in the same µs.
func TestHoldReleasedTwice(t *testing.T) {
	for _, applied := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			next, lost := memory(), atomic.Bool{}
			store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				if !lost.Load() {
					return next.Take(ctx, tx)
				}
				if applied {
					return errors.Join(next.Take(ctx, tx), errDown)
				}
				return errDown
			})
			c := jobs(3, 20*time.Second)
			first, _ := quota.Hold(t.Context(), store, c)
			second, _ := quota.Hold(t.Context(), store, c)
			lost.Store(true)
			first()
			lost.Store(false)
			for range 5 {
				time.Sleep(time.Second)
				if got := held(t, next, c); got < 1 {
					t.Fatalf("applied %v: got %d in flight, want the one that runs", applied, got)
				}
			}
			time.Sleep(6 * time.Second) // the lease of the second is renewed after 10 s
			if got := held(t, next, c); got != 1 {
				t.Errorf("applied %v: got %d in flight after a renewal, want 1", applied, got)
			}
			second()
			if got := held(t, next, c); got != 0 {
				t.Errorf("applied %v: got %d in flight, want 0", applied, got)
			}
		})
	}
}

// TestKeep: Keep holds the units in flight of a transaction that the caller has taken, and is nil
// if it has none.
func TestKeep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, c := memory(), jobs(5, time.Minute)
		rate := quota.Charge{Rule: "starts", Limit: algorithms.GCRA(3, time.Hour), Cost: 1}
		look := c
		look.Cost, look.Key = 0, "other"
		tx := take(t, store, 0, c, rate, look)
		release := quota.Keep(t.Context(), store, tx, func(_ context.Context, task, _ string, err error) { t.Error(task, err) })
		clear(tx.Charges) // the caller may use its transaction again
		time.Sleep(time.Hour)
		if got := held(t, store, c); got != 1 {
			t.Errorf("got %d in flight, want 1", got)
		}
		release()
		if got := held(t, store, c); got != 0 {
			t.Errorf("after the release: got %d in flight, want 0", got)
		}
		if quota.Keep(t.Context(), store, take(t, store, 0, rate), nil) != nil {
			t.Error("without units in flight: want nil")
		}
	})
}

func ExampleHold() {
	store := memstore.New(memstore.Options{}) // or a redisstore, shared by all workers
	job := quota.Charge{Rule: "exports", Key: "ada", Limit: algorithms.InFlight(1, time.Minute), Cost: 1}
	release, err := quota.Hold(context.Background(), store, job)
	fmt.Println(err)
	_, err = quota.Hold(context.Background(), store, job)
	fmt.Println(err)

	go func() {
		time.Sleep(10 * time.Millisecond)
		release()
	}()
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	release, err = quota.Hold(ctx, store, job) // waits for the unit
	fmt.Println(err)
	release()
	// Output:
	// <nil>
	// quota: rule "exports" has as many requests in flight as it may: limit 1 per 1m0s (in-flight)
	// <nil>
}

// A worker holds a unit in flight while it runs, and spends one of a rate. It waits until it can
// have both.
func ExampleTakeInLine() {
	store := memstore.New(memstore.Options{})
	t := quota.Transaction{Within: time.Second, Charges: []quota.Charge{
		{Rule: "running", Key: "ada", Limit: algorithms.InFlight(2, time.Minute), Cost: 1},
		{Rule: "started", Key: "ada", Limit: algorithms.GCRA(100, time.Hour), Cost: 1},
	}}
	if _, err := quota.TakeInLine(context.Background(), store, &t); err != nil {
		fmt.Println(err)
	}
	if t.Allowed() {
		release := quota.Keep(context.Background(), store, &t, nil)
		defer release()
		fmt.Println("left:", t.Decisions[0].Remaining, t.Decisions[1].Remaining)
	}
	// Output: left: 1 99
}
