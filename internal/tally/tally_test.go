package tally_test

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/tally"
	"github.com/seed83679106/weir/memstore"
)

// TestNameless: a limit without a name is counted under its period.
func TestNameless(t *testing.T) {
	var c tally.Tally
	c.Observe(&weir.Event{Transaction: &weir.Transaction{
		Charges:   []weir.Charge{{Rule: "api", Limit: algorithms.GCRA(9, time.Minute), Cost: 1}},
		Decisions: []weir.Decision{{Allowed: true}},
	}})
	c.EachLimit(func(l tally.Label, _ *tally.Counts) {
		if want := (tally.Label{Rule: "api", Limit: "1m"}); l != want {
			t.Errorf("got %+v, want %+v", l, want)
		}
	})
}

// TestPauses: if a pause refuses a request, the paused rule has refused it and no limit
// has spent a unit, even if all limits have room.
func TestPauses(t *testing.T) {
	limit := algorithms.GCRA(9, time.Minute)
	tx := &weir.Transaction{
		Charges:   []weir.Charge{{Rule: "partner", Limit: limit, Cost: 1}, {Rule: "all", Limit: limit, Cost: 1}},
		Decisions: []weir.Decision{{Allowed: true}, {Allowed: true}},
	}
	var c tally.Tally
	c.Observe(&weir.Event{Transaction: tx, Refusal: weir.Refusal{Reason: weir.ReasonPause, Rule: "partner", RetryAfter: time.Second}})
	got := map[string][3]int64{}
	c.EachLimit(func(l tally.Label, n *tally.Counts) {
		got[l.Rule] = [3]int64{n.Refused.Load(), n.Allowed.Load(), n.Units()}
	})
	if want := ([3]int64{1, 0, 0}); got["partner"] != want || got["all"] != [3]int64{} {
		t.Errorf("got %v, want one refusal by partner", got)
	}
}

// TestNear: a decision is near its limit if it leaves less than a fifth of the limit.
func TestNear(t *testing.T) {
	for _, tt := range []struct {
		quota, burst, remaining int64
		near                    int64
	}{
		{100, 0, 20, 0}, {100, 0, 19, 1}, {100, 0, 0, 1}, {100, 0, -1, 0}, // -1 is unknown
		{1000, 100, 20, 0}, {1000, 100, 19, 1},
		{10, 0, 2, 0}, {10, 0, 1, 1}, {5, 0, 1, 0}, {5, 0, 0, 1}, {4, 0, 1, 0}, {4, 0, 0, 1}, {1, 0, 0, 1},
		{1 << 62, 0, 1 << 60, 0}, {1 << 62, 0, 1 << 59, 1},
	} {
		var c tally.Tally
		limit := algorithms.GCRA(tt.quota, time.Minute).WithBurst(tt.burst)
		c.Observe(&weir.Event{Transaction: &weir.Transaction{
			Charges: []weir.Charge{{Rule: "api", Limit: limit, Cost: 1}}, Decisions: []weir.Decision{{Allowed: true, Remaining: tt.remaining}},
		}})
		c.EachLimit(func(_ tally.Label, n *tally.Counts) {
			if got := n.Near.Load(); got != tt.near {
				t.Errorf("%d of %d left: got %d near, want %d", tt.remaining, max(tt.quota, tt.burst), got, tt.near)
			}
		})
	}
}

// TestRequests: a request counts once, however many limits it is charged under, and a
// request that only rules in shadow decide does not count.
func TestRequests(t *testing.T) {
	limit, decisions := algorithms.GCRA(9, time.Minute), []weir.Decision{{Allowed: true}, {Allowed: true}}
	charges := []weir.Charge{{Rule: "a", Limit: limit, Cost: 3}, {Rule: "b", Limit: limit, Cost: 1}}
	tx := &weir.Transaction{Charges: charges, Decisions: decisions}
	free := &weir.Transaction{Charges: []weir.Charge{{Rule: "a", Limit: limit}}, Decisions: decisions[:1]}
	var c tally.Tally
	for _, e := range []weir.Event{
		{Transaction: tx},
		{Transaction: tx, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "b"}},
		{Transaction: tx, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "b"}, BanBegan: true},
		{Transaction: &weir.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "b"}},
		{Transaction: &weir.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonError, Rule: "b"}, Err: weir.ErrBusy},
		{Transaction: &weir.Transaction{}, Refusal: weir.Refusal{Reason: weir.ReasonError, Rule: "b"}, Err: weir.ErrBusy, Shadow: true},
		{Transaction: free},
		{Transaction: &weir.Transaction{}},
		{Transaction: tx, Shadow: true, Refusal: weir.Refusal{Reason: weir.ReasonLimit, Rule: "a"}},
	} {
		c.Observe(&e)
	}
	if n, unlimited := c.Requests(), c.Unlimited.Load(); n != 7 || unlimited != 2 {
		t.Errorf("got %d requests, %d of them unlimited, want 7 and 2", n, unlimited)
	}
	got := map[string]int64{}
	c.EachRefused(func(rule, reason, mode string, n int64) { got[rule+" "+reason+" "+mode] = n })
	c.EachBans(func(rule string, n int64) { got[rule+" bans"] = n })
	want := map[string]int64{"b limit enforced": 1, "b ban enforced": 2, "a limit shadow": 1, "b bans": 1}
	if !maps.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
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
		{weir.Event{Err: memstore.ErrFull}, "full refused"},
		{weir.Event{Err: errors.Join(errors.New("down"), memstore.ErrFull)}, "full refused"},
		{weir.Event{Err: errors.Join(weir.ErrUnusable, memstore.ErrFull)}, "unusable refused"},
		{weir.Event{Err: weir.ErrBusy, Passed: true}, "busy passed"},
		{weir.Event{Err: weir.ErrOpen, Passed: true}, "open passed"},
		{weir.Event{Err: os.ErrDeadlineExceeded, Passed: true}, "timeout passed"},
		{weir.Event{Err: errors.New("down"), Passed: true}, "error passed"},
		{weir.Event{Err: errors.New("down"), Shadow: true}, "error shadow"},
		{weir.Event{}, "error refused"},
	} {
		e.event.Transaction, e.event.Refusal = &weir.Transaction{}, weir.Refusal{Reason: weir.ReasonError}
		for range 1 << i {
			c.Observe(&e.event)
		}
		want[e.want] += 1 << i
	}
	got, series := map[string]int64{}, 0
	c.EachError(func(cause, outcome string, n int64) {
		if series++; n > 0 {
			got[cause+" "+outcome] = n
		}
	})
	if !maps.Equal(got, want) || series != 7*3 {
		t.Errorf("got %v and %d series, want %v and 21", got, series, want)
	}
}

// A stack is a store of stores.
type stack struct {
	weir.Store
	of []weir.Store
}

func (s stack) Stores() []weir.Store { return s.of } // s is not comparable

// TestStoresOf: the stores of a stack are counted, each once, and stores that count nothing
// are ignored.
func TestStoresOf(t *testing.T) {
	gone := failing(func() error { return weir.ErrBusy })
	breaker := weir.Breaker(memstore.New(memstore.Options{}), weir.BreakerOptions{})
	fallback := weir.Fallback(gone, breaker)
	fallback.Logger = slog.New(slog.DiscardHandler)
	other := weir.Fallback(gone, gone)
	other.Logger = fallback.Logger
	limit := algorithms.GCRA(9, time.Minute)
	for range 3 {
		weir.Allow(t.Context(), fallback, weir.Charge{Rule: "api", Limit: limit, Cost: 1})
	}
	inner := stack{of: []weir.Store{fallback, breaker, gone}}
	stores := tally.StoresOf([]weir.Store{stack{of: []weir.Store{inner, other}}, breaker, inner, nil})
	active, decided, ok := stores.Fallbacks()
	if want := map[string]int64{"busy": 3, "unusable": 0, "open": 0, "timeout": 0, "error": 0}; !ok || active != 1 || !maps.Equal(decided, want) {
		t.Errorf("got %d active, %v, %v; want 1, %v, true", active, decided, ok, want)
	}
	if open, refused, ok := stores.Breakers(); open != 0 || refused != 0 || !ok {
		t.Errorf("got %d, %d, %v; want a closed breaker", open, refused, ok)
	}
	if _, _, ok := tally.StoresOf([]weir.Store{breaker, gone}).Fallbacks(); ok {
		t.Error("got a fallback where there is none")
	}
}

// failing is a store that is not comparable, and fails.
type failing func() error

func (f failing) Take(context.Context, *weir.Transaction) error { return f() }

// TestObserveAllocates: Observe allocates nothing, even if a rule has many limits without a
// name.
func TestObserveAllocates(t *testing.T) {
	var c tally.Tally
	e := weir.Event{Transaction: &weir.Transaction{
		Charges: []weir.Charge{{Rule: "api", Limit: algorithms.GCRA(9, time.Minute), Cost: 1}}, Decisions: []weir.Decision{{}},
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
				c.Observe(&weir.Event{Transaction: &weir.Transaction{
					Charges: []weir.Charge{{Rule: "api", Limit: limit, Cost: 3}}, Decisions: []weir.Decision{{Allowed: i%2 == 0}},
				}, Refusal: weir.Refusal{Reason: weir.Reason(i % 2), Rule: "api"}})
			}
		})
	}
	for last := int64(0); last < goroutines*events; {
		n := c.Requests()
		if n < last {
			t.Fatalf("%d requests after %d", n, last)
		}
		last = n
	}
	wg.Wait()
	var allowed, refused, units, limits int64
	c.EachLimit(func(_ tally.Label, n *tally.Counts) {
		allowed, refused, units, limits = allowed+n.Allowed.Load(), refused+n.Refused.Load(), units+n.Units(), limits+1
	})
	const half = goroutines * events / 2
	if allowed != half || refused != half || units != 3*half || limits != 5 {
		t.Errorf("got %d allowed, %d refused, %d units of %d limits, want %d and 3 times as many units of 5", allowed, refused, units, limits, half)
	}
	c.EachRefused(func(_, _, _ string, n int64) {
		if n != half {
			t.Errorf("got %d refused by the rule, want %d", n, half)
		}
	})
}
