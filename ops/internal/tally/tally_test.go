package tally_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/internal/tally"
	"github.com/seed83679106/weir/quota"
)

// numbers returns the numbers of a metric, by the values of its labels.
func numbers(t *testing.T, c *tally.Tally, name string) map[string]int64 {
	t.Helper()
	got := map[string]int64{}
	for _, m := range c.Metrics() {
		if m.Name == name {
			m.Read(func(n int64, values ...string) {
				k := strings.Join(values, " ")
				if _, twice := got[k]; twice || len(values) != len(m.Labels) {
					t.Errorf("%s: got %q, which is twice or not of %q", name, values, m.Labels)
				}
				got[k] = n
			})
		}
	}
	return got
}

// TestNameless: a limit without a name is counted under its period.
func TestNameless(t *testing.T) {
	var c tally.Tally
	c.Observe(&weir.Event{Transaction: &quota.Transaction{
		Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(9, time.Minute), Cost: 1}},
		Result:  quota.Result{Decisions: []quota.Decision{{Allowed: true}}},
	}})
	if got, want := numbers(t, &c, "weir_units_total"), map[string]int64{"api 1m enforced": 1}; !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

// TestPauses: if a pause refuses a request, the paused rule has refused it and no limit
// has spent a unit, even if all limits have room.
func TestPauses(t *testing.T) {
	limit := algorithms.GCRA(9, time.Minute)
	tx := &quota.Transaction{
		Charges: []quota.Charge{{Rule: "partner", Limit: limit, Cost: 1}, {Rule: "all", Limit: limit, Cost: 1}},
		Result:  quota.Result{Decisions: []quota.Decision{{Allowed: true}, {Allowed: true}}},
	}
	var c tally.Tally
	c.Observe(&weir.Event{Transaction: tx, Refusal: weir.Refusal{Reason: weir.ReasonPause, Rule: "partner", RetryAfter: time.Second}})
	got, units := numbers(t, &c, "weir_decisions_total"), numbers(t, &c, "weir_units_total")
	maps.DeleteFunc(got, func(_ string, n int64) bool { return n == 0 })
	if want := map[string]int64{"partner 1m enforced refused": 1}; !maps.Equal(got, want) || units["partner 1m enforced"]+units["all 1m enforced"] != 0 {
		t.Errorf("got %v and units %v, want one refusal by partner", got, units)
	}
}

// TestNear: a decision is near its limit if it leaves less than a fifth of the limit.
func TestNear(t *testing.T) {
	for _, tt := range []struct {
		quota, burst, remaining int64
		replicas                int
		near                    int64
	}{
		{100, 0, 20, 0, 0}, {100, 0, 19, 0, 1}, {100, 0, 0, 0, 1}, {100, 0, -1, 0, 0}, // -1 is unknown
		{1000, 100, 20, 0, 0}, {1000, 100, 19, 0, 1},
		{10, 0, 2, 0, 0}, {10, 0, 1, 0, 1}, {5, 0, 1, 0, 0}, {5, 0, 0, 0, 1}, {4, 0, 1, 0, 0}, {4, 0, 0, 0, 1}, {1, 0, 0, 0, 1},
		{1 << 62, 0, 1 << 60, 0, 0}, {1 << 62, 0, 1 << 59, 0, 1},
		{100, 0, 5, 4, 0}, {100, 0, 4, 4, 1}, {1000, 100, 5, 4, 0}, {3, 0, 0, 4, 1}, {100, 0, -1, 4, 0}, // a share
	} {
		var c tally.Tally
		limit := algorithms.GCRA(tt.quota, time.Minute).WithBurst(tt.burst)
		c.Observe(&weir.Event{Transaction: &quota.Transaction{
			Charges: []quota.Charge{{Rule: "api", Limit: limit, Cost: 1}}, Result: quota.Result{Replicas: tt.replicas, Decisions: []quota.Decision{{Allowed: true, Remaining: tt.remaining}}},
		}})
		if got := numbers(t, &c, "weir_near_limit_total")["api 1m enforced"]; got != tt.near {
			t.Errorf("%d of %d left, %d replicas: got %d near, want %d", tt.remaining, max(tt.quota, tt.burst), tt.replicas, got, tt.near)
		}
	}
}

// TestRequests: a request counts once, however many limits it is charged under, and a
// request that only rules in shadow decide does not count.
func TestRequests(t *testing.T) {
	limit, decisions := algorithms.GCRA(9, time.Minute), []quota.Decision{{Allowed: true}, {Allowed: true}}
	charges := []quota.Charge{{Rule: "a", Limit: limit, Cost: 3}, {Rule: "b", Limit: limit, Cost: 1}}
	tx := &quota.Transaction{Charges: charges, Result: quota.Result{Decisions: decisions}}
	free := &quota.Transaction{Charges: []quota.Charge{{Rule: "a", Limit: limit}}, Result: quota.Result{Decisions: decisions[:1]}}
	var c tally.Tally
	for _, e := range []weir.Event{
		{Transaction: tx},
		{Transaction: tx, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "b"}},
		{Transaction: tx, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "b"}, BanBegan: true},
		{Transaction: &quota.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "b"}},
		{Transaction: &quota.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonError, Rule: "b"}, Err: quota.ErrBusy},
		{Transaction: &quota.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonError, Rule: "b"}, Err: quota.ErrBusy, Shadow: true},
		{Transaction: free},
		{Transaction: &quota.Transaction{}},
		{Transaction: tx, Shadow: true, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "a"}},
	} {
		c.Observe(&e)
	}
	for name, want := range map[string]map[string]int64{
		"weir_requests_total":  {"": 7},
		"weir_unlimited_total": {"": 2},
		"weir_refused_total":   {"b limit enforced": 1, "b ban enforced": 2, "a limit shadow": 1},
		"weir_bans_total":      {"b": 1},
	} {
		if got := numbers(t, &c, name); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
	}
}

// TestErrors: requests that could not be decided are counted by cause and by what became of
// them. Other errors than those of a store are counted too.
func TestErrors(t *testing.T) {
	var c tally.Tally
	want := map[string]int64{}
	for i, e := range []struct {
		event weir.Event
		want  string
	}{
		{weir.Event{Err: quota.ErrFull}, "full refused"},
		{weir.Event{Err: errors.Join(errors.New("down"), quota.ErrFull)}, "full refused"},
		{weir.Event{Err: errors.Join(quota.ErrUnusable, quota.ErrFull)}, "unusable refused"},
		{weir.Event{Err: quota.ErrBusy, Passed: true}, "busy passed"},
		{weir.Event{Err: quota.ErrOpen, Passed: true}, "open passed"},
		{weir.Event{Err: errors.Join(quota.ErrSlow, os.ErrDeadlineExceeded), Passed: true}, "slow passed"},
		{weir.Event{Err: os.ErrDeadlineExceeded, Passed: true}, "timeout passed"},
		{weir.Event{Err: errors.New("down"), Passed: true}, "error passed"},
		{weir.Event{Err: errors.New("down"), Shadow: true}, "error shadow"},
		{weir.Event{Err: quota.ErrLimit}, "limit refused"},
		{weir.Event{}, "error refused"},
	} {
		e.event.Transaction, e.event.Refusal = &quota.Transaction{}, weir.Refusal{Reason: weir.ReasonError}
		for range 1 << i {
			c.Observe(&e.event)
		}
		want[e.want] += 1 << i
	}
	got := numbers(t, &c, "weir_errors_total")
	series := len(got)
	maps.DeleteFunc(got, func(_ string, n int64) bool { return n == 0 })
	if !maps.Equal(got, want) || series != 8*3 {
		t.Errorf("got %v and %d series, want %v and 24", got, series, want)
	}
}

// A stack is a store of stores.
type stack struct {
	quota.Store
	of []quota.Store
}

func (s stack) Stores() []quota.Store { return s.of } // s is not comparable

// TestStores: the stores of a stack are counted, each once, and those of one kind together.
// Stores that count nothing are ignored.
func TestStores(t *testing.T) {
	down := failing(func() error { return quota.ErrBusy })
	breaker := quota.Breaker(memstore.New(memstore.Options{}), quota.BreakerOptions{})
	open := quota.Breaker(failing(func() error { return errors.New("down") }), quota.BreakerOptions{Failures: 1, Logger: slog.New(slog.DiscardHandler)})
	quiet := quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)}
	fallback, other := quota.Fallback(down, breaker, quiet), quota.Fallback(down, down, quiet)
	hybrid, leases := quota.Hybrid(breaker, quota.HybridOptions{}), lease.New(breaker, lease.Options{})
	charge := quota.Charge{Rule: "api", Limit: algorithms.GCRA(9, time.Minute), Cost: 1}
	for range 3 {
		for _, store := range []quota.Store{fallback, open, hybrid, leases} {
			quota.Allow(t.Context(), store, charge)
		}
	}
	quota.Allow(t.Context(), other, charge)
	inner := stack{of: []quota.Store{fallback, breaker, down, hybrid, leases}}
	c := tally.New(stack{of: []quota.Store{inner, other}}, breaker, inner, nil, open)
	for name, want := range map[string]map[string]int64{
		"weir_breaker_open":             {"": 1},
		"weir_breaker_refused_total":    {"": 2},
		"weir_fallback_active":          {"": 2},
		"weir_fallback_decisions_total": {"busy": 3, "full": 0, "unusable": 0, "slow": 0, "open": 0, "timeout": 0, "error": 0},
		"weir_served_total":             {"hybrid memory": 0, "hybrid store": 3, "lease memory": 0, "lease store": 3},
		"weir_watched_total":            {"began": 0, "changed": 0},
	} {
		if got := numbers(t, c, name); !maps.Equal(got, want) {
			t.Errorf("%s: got %v, want %v", name, got, want)
		}
		if got := numbers(t, tally.New(down), name); len(got) != 0 {
			t.Errorf("%s: got %v without such a store", name, got)
		}
	}
}

// failing is a store that is not comparable, and fails.
type failing func() error

func (f failing) Take(context.Context, *quota.Transaction) error { return f() }

// TestObserveAllocates: Observe allocates nothing, even if a rule has many limits without a
// name.
func TestObserveAllocates(t *testing.T) {
	var c tally.Tally
	e := weir.Event{Transaction: &quota.Transaction{
		Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(9, time.Minute), Cost: 1}}, Result: quota.Result{Decisions: []quota.Decision{{}}},
	}, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "api"}}
	for i := range 2 * tally.Most {
		e.Transaction.Charges[0].Limit.Period = time.Duration(i+1) * time.Second
		c.Observe(&e)
	}
	i := 0
	if n := testing.AllocsPerRun(2*tally.Most, func() {
		e.Transaction.Charges[0].Limit.Period = time.Duration(i%tally.Most+1) * time.Second
		c.Observe(&e)
		i++
	}); n != 0 {
		t.Errorf("got %v allocations", n)
	}
}

// TestConcurrent: no count is lost, and sums never fall, while many goroutines count and
// one goroutine reads.
func TestConcurrent(t *testing.T) {
	const goroutines, events = 8, 2000
	var c tally.Tally
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			for i := range events {
				limit := algorithms.GCRA(9, time.Duration(1+(g+i)%5)*time.Second)
				c.Observe(&weir.Event{Transaction: &quota.Transaction{
					Charges: []quota.Charge{{Rule: "api", Limit: limit, Cost: 3}}, Result: quota.Result{Decisions: []quota.Decision{{Allowed: i%2 == 0}}},
				}, Refusal: weir.Refusal{Reason: weir.Reason(i % 2), Rule: "api"}})
			}
		})
	}
	for last := int64(0); last < goroutines*events; {
		n := numbers(t, &c, "weir_requests_total")[""]
		if n < last {
			t.Fatalf("%d requests after %d", n, last)
		}
		last = n
	}
	wg.Wait()
	units := numbers(t, &c, "weir_units_total")
	sums := map[string]int64{"units": 0}
	for _, n := range units {
		sums["units"] += n
	}
	for labels, n := range numbers(t, &c, "weir_decisions_total") {
		sums[strings.Fields(labels)[3]] += n
	}
	sums["refused by the rule"] = numbers(t, &c, "weir_refused_total")["api limit enforced"]
	const half = goroutines * events / 2
	want := map[string]int64{"allowed": half, "delayed": 0, "refused": half, "units": 3 * half, "refused by the rule": half}
	if !maps.Equal(sums, want) || len(units) != 5 {
		t.Errorf("got %v of %d limits, want %v of 5", sums, len(units), want)
	}
}
