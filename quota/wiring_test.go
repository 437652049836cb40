package quota_test

import (
	"bytes"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/credit"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// TestStackDecidesAlike: a stack of decorators admits, refuses and delays random transactions
// as a store alone does. The transactions have several limits and keys, cancelled slots,
// negative costs, waits, Peek and Forget.
func TestStackDecidesAlike(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 7))
	for range 300 {
		synctest.Test(t, func(t *testing.T) {
			runAlike(t, r, seed)
		})
	}
}

// runAlike sends the same 60 transactions to a stack and to a store alone.
func runAlike(t *testing.T, r *rand.Rand, seed uint64) {
	alone := memstore.New(memstore.Options{})
	stack := quota.Hybrid(quota.Breaker(quota.Coalesce(quota.Fallback(quota.Share(memory(), 1), memory(), quota.FallbackOptions{})), quota.BreakerOptions{}), quota.HybridOptions{MaxKeys: r.IntN(2) * 2})
	period := []time.Duration{time.Second, 7 * time.Second, time.Minute}[r.IntN(3)]
	q := 1 + r.Int64N(8)
	limits := randomLimits(r, q, period)
	var slots [][2]quota.Transaction // transactions that give the slots back
	for range 60 {
		tx := randomTransaction(r, q, period, limits)
		want, got := tx, tx
		if len(slots) > 0 && r.IntN(5) == 0 {
			i := r.IntN(len(slots))
			want, got = slots[i][0], slots[i][1]
		}
		for store, tx := range map[quota.Store]*quota.Transaction{alone: &want, stack: &got} {
			if err := store.Take(t.Context(), tx); err != nil {
				t.Fatal(err)
			}
		}
		checkAlike(t, seed, &got, &want)
		if want.Allowed() && want.Wait > 0 {
			slots = append(slots, [2]quota.Transaction{backOf(&want), backOf(&got)})
		}
		time.Sleep([]time.Duration{0, 0, time.Microsecond, period / time.Duration(q), time.Duration(r.Int64N(int64(period)))}[r.IntN(5)].Truncate(time.Microsecond))
	}
}

// randomLimits returns one to three limits of q units per period.
func randomLimits(r *rand.Rand, q int64, period time.Duration) (limits []quota.Limit) {
	for i := range 1 + r.IntN(3) {
		l := []quota.Limit{
			algorithms.GCRA(q, period), algorithms.TokenBucket(q, q, period), algorithms.LeakyBucket(q, q, period),
			algorithms.FixedWindow(q, period), algorithms.AnchoredWindow(q, period), algorithms.SlidingWindow(q, period),
			algorithms.SlidingLog(q, period), algorithms.Calendar(q, algorithms.Day, time.FixedZone("", -3590+r.IntN(10))),
		}[r.IntN(8)]
		if i > 0 {
			l = l.Named(fmt.Sprint(i))
		}
		limits = append(limits, l)
	}
	return limits
}

// randomTransaction charges one or two keys under limits of q units per period.
func randomTransaction(r *rand.Rand, q int64, period time.Duration, limits []quota.Limit) (tx quota.Transaction) {
	for _, key := range []string{"a", "b"}[:1+r.IntN(8)/7] {
		for _, l := range limits {
			tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: []int64{1, 1, 1, q, 2, 0, -1, q + 1}[r.IntN(8)]})
		}
	}
	if r.IntN(3) == 0 {
		tx.Within = time.Duration(r.Int64N(int64(3 * period)))
	}
	if r.IntN(8) == 0 {
		tx.Mode, tx.Within = []quota.Mode{quota.ModePeek, quota.ModeForget}[r.IntN(2)], 0
	}
	return tx
}

// checkAlike compares a decision of a stack with the decision of a store alone. The
// RetryAfter of the stack may be shorter, but not longer.
func checkAlike(t *testing.T, seed uint64, got, want *quota.Transaction) {
	t.Helper()
	if got.Allowed() != want.Allowed() || got.Allowed() && got.Wait != want.Wait || !got.Allowed() && got.RetryAfter() > want.RetryAfter() {
		t.Fatalf("seed %d: %+v within %v:\ngot  %+v, wait %v\nwant %+v, wait %v", seed, want.Charges, want.Within, got.Decisions, got.Wait, want.Decisions, want.Wait)
	}
}

// backOf returns the transaction that refunds the charges of a slot.
func backOf(t *quota.Transaction) (back quota.Transaction) {
	for i, c := range t.Charges {
		if c.Cost > 0 {
			c.Cost, c.Spent = -c.Cost, t.Decisions[i].At
			back.Charges, back.Cancels = append(back.Charges, c), append(back.Cancels, t.Undo[i])
		}
	}
	return back
}

// stacked is a store that contains a Hybrid, like that of package stack.
type stacked struct {
	quota.Store
	optional.Watcher
}

// TestOrder: decorators in an order in which one of them does nothing, or harm, log what it is. The
// right order logs nothing.
func TestOrder(t *testing.T) {
	var log bytes.Buffer
	defer slog.SetDefault(slog.Default())
	slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
	remote := func() quota.Store { return struct{ *memstore.Store }{memstore.New(memstore.Options{})} } // not in memory itself
	fallback := func() quota.Store {
		return quota.Fallback(remote(), quota.Share(memory(), 2), quota.FallbackOptions{})
	}
	breaker := func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) }
	hybrid := func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) }
	for _, tt := range []struct {
		name string
		open func()
		want string // "" if nothing is logged
	}{
		{"Breaker of Fallback", func() { breaker(fallback()) }, "Breaker is around Fallback"},
		{"Breaker of Hybrid", func() { breaker(hybrid(remote())) }, "Breaker is around Hybrid"},
		{"Breaker of a stack", func() { breaker(stacked{remote(), hybrid(remote()).(optional.Watcher)}) }, "Breaker is around a store with Hybrid"},
		{"lease of a stack", func() { lease.New(stacked{remote(), hybrid(remote()).(optional.Watcher)}, lease.Options{}) }, "lease: store is around a Hybrid or a stack"},
		{"lease of Hybrid", func() { lease.New(hybrid(remote()), lease.Options{}) }, "lease: store is around a Hybrid or a stack"},
		{"Hybrid of Fallback", func() { hybrid(fallback()) }, "Hybrid is around Fallback"},
		{"Hybrid of Hybrid", func() { hybrid(hybrid(remote())) }, "Hybrid is around a store with Hybrid"},
		{"Hybrid of granted units", func() { hybrid(credit.New(remote(), credit.Options{Rules: []string{"api"}})) }, "Hybrid is around a credit.Store"},
		{"second Hybrid", func() { quota.Fallback(remote(), hybrid(remote()), quota.FallbackOptions{}) }, "Fallback has Hybrid around its second"},
		{"Share of Fallback", func() { quota.Share(fallback(), 3) }, "Share is around Fallback"},
		{"Coalesce of Breaker", func() { quota.Coalesce(breaker(remote())) }, "Coalesce is around a store without TakeEach"},
		{"Coalesce of Hybrid", func() { quota.Coalesce(hybrid(remote())) }, "Coalesce is around a store without TakeEach"},
		{"Coalesce of a lease", func() { quota.Coalesce(lease.New(remote(), lease.Options{})) }, "Coalesce is around a store without TakeEach"},
		{"lease of Fallback", func() { lease.New(fallback(), lease.Options{}) }, "units of one store may be refunded to the other"},
		{"memory first", func() { quota.Fallback(memstore.New(memstore.Options{}), remote(), quota.FallbackOptions{}) }, "Fallback has a primary in memory"},
		{"the right order", func() {
			quota.Fallback(hybrid(breaker(lease.New(quota.Coalesce(remote()), lease.Options{}))), quota.Share(memory(), 2), quota.FallbackOptions{})
			quota.Coalesce(memory())
		}, ""},
	} {
		log.Reset()
		tt.open()
		if got := log.String(); !strings.Contains(got, tt.want) || (tt.want == "") != (got == "") || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: got the log %q, want %q", tt.name, got, tt.want)
		}
	}
}

// TestOrderLogger: a decorator that has a Logger logs there.
func TestOrderLogger(t *testing.T) {
	var log bytes.Buffer
	logger := slog.New(slog.NewTextHandler(&log, nil))
	quota.Breaker(quota.Fallback(memory(), failing{errDown}, quota.FallbackOptions{Logger: logger}), quota.BreakerOptions{Logger: logger})
	if got := log.String(); strings.Count(got, "quota: decorators in the wrong order") != 2 {
		t.Errorf("got %q, want two lines", got)
	}
}

// TestNanoseconds: a number without a unit is refused with an error that shows what was meant.
func TestNanoseconds(t *testing.T) {
	for want, open := range map[string]func(){
		"quota: Breaker: Cooldown is 50ns; want at least 1ms, such as 50*time.Millisecond": func() { quota.Breaker(memory(), quota.BreakerOptions{Cooldown: 50}) },
		"lease: TTL is 100ns; want at least 1ms, such as 100*time.Millisecond":             func() { lease.New(memory(), lease.Options{TTL: 100}) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got the panic %v, want %q", got, want)
				}
			}()
			open()
		}()
	}
	quota.Breaker(memory(), quota.BreakerOptions{Cooldown: time.Millisecond})
}
