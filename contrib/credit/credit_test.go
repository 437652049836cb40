package credit

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
)

// TestLua: the Go and the Lua arithmetic of granted units make the same decisions.
func TestLua(t *testing.T) {
	limits := []quota.Limit{charge("", "", 0, time.Millisecond).Limit.Named("short"), charge("", "", 0, 2*time.Hour).Limit.Named("long"), algorithms.GCRA(7, time.Hour)}
	storetest.Limits(t, weirtest.Memory(), limits...)
	storetest.Limits(t, weirtest.Redis(t, redistest.Server(t).Addr(), 5*time.Second), limits...)
	storetest.Limits(t, weirtest.Redis(t, redistest.Lua54(t).Addr(), 5*time.Second), limits...)
}

// TestConforms: without grants, a store of New passes the tests of package storetest.
func TestConforms(t *testing.T) {
	weirtest.Conforms(t, func() quota.Store { return New(weirtest.Memory(), Options{Rules: []string{"storetest", "other"}}) })
}

func left(t *testing.T, store quota.Store, key string) int64 {
	t.Helper()
	n, _, err := Left(t.Context(), store, "api", key)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func grant(t *testing.T, store quota.Store, key string, units int64, d time.Duration) {
	t.Helper()
	if err := Grant(t.Context(), store, "api", key, units, d); err != nil {
		t.Fatal(err)
	}
}

// TestGrant: granted units are spent when the limits refuse. They cannot be spent after
// they end or are revoked.
func TestGrant(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := New(quota.Hybrid(weirtest.Memory(), quota.HybridOptions{}), Options{Rules: []string{"api"}})
		limits := []quota.Limit{algorithms.FixedWindow(2, 1000*time.Hour), algorithms.FixedWindow(3, 999*time.Hour)}
		other := algorithms.FixedWindow(6, 1000*time.Hour)
		ask := func(want bool) {
			t.Helper()
			tx := weirtest.Take(t, store, 0, quota.Charge{Rule: "api", Key: "ann", Limit: limits[0], Cost: 1}, quota.Charge{Rule: "api", Key: "ann", Limit: limits[1], Cost: 1},
				quota.Charge{Rule: "other", Key: "ann", Limit: other, Cost: 1})
			if tx.Allowed() != want {
				t.Errorf("%d left: got %+v, want allowed %v", left(t, store, "ann"), tx.Decisions, want)
			}
		}
		ask(true)
		ask(true)
		ask(false)
		grant(t, store, "ann", 3, time.Hour)
		grant(t, store, "bob", 1, 0)
		ask(true) // the first limit is spent, the second is not
		ask(true) // both limits are spent, and one unit pays for both
		if n := left(t, store, "ann"); n != 1 {
			t.Errorf("got %d left, want 1", n)
		}
		time.Sleep(time.Hour)
		ask(false)
		grant(t, store, "ann", 5, time.Minute)
		ask(true)
		ask(true)
		ask(false) // the limit of the other rule refuses, and no units are granted for it
		if a, b := left(t, store, "ann"), left(t, store, "bob"); a != 3 || b != 1 {
			t.Errorf("got %d and %d left, want 3 and 1", a, b)
		}
		if err := Revoke(t.Context(), store, "api", "bob"); err != nil || left(t, store, "bob") != 0 {
			t.Errorf("revoked: got %v and %d left", err, left(t, store, "bob"))
		}
		for _, bad := range []struct {
			units int64
			d     time.Duration
		}{{0, 0}, {-1, 0}, {1, -1}, {quota.MaxTicks + 1, 0}, {1, 1 << 62}, {1, 60}} {
			if err := Grant(t.Context(), store, "api", "x", bad.units, bad.d); err == nil || !strings.HasPrefix(err.Error(), "credit: Grant: ") {
				t.Errorf("%+v: got error %v", bad, err)
			}
		}
		// Another program may grant units without a Store of this package.
		for s, want := range map[quota.Store]bool{store: true, weirtest.Memory(): false} {
			if err := Grant(t.Context(), s, "apii", "x", 1, 0); (err != nil && strings.Contains(err.Error(), `rule "apii" is not in Options.Rules`)) != want {
				t.Errorf("a rule that %T does not pay for: got error %v", s, err)
			}
		}
	})
}

// TestTooFewUnitsWait: if a request may wait, and one of its limits refuses it all the same, the decisions
// without granted units are those of the wrapped store: another limit, which would admit it after a
// wait, does not refuse.
func TestTooFewUnitsWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain, paying := weirtest.Memory(), New(weirtest.Memory(), Options{Rules: []string{"api"}})
		queue, once := algorithms.LeakyBucket(5, 5, time.Second), algorithms.FixedWindow(1, time.Hour)
		waits := 0
		for n := range 6 { // slots of the queue are reserved before the last request
			var got, want quota.Transaction
			for s, tx := range map[quota.Store]*quota.Transaction{plain: &want, paying: &got} {
				key := fmt.Sprint("key ", n)
				charge := func(l quota.Limit) quota.Charge { return quota.Charge{Rule: "api", Key: key, Limit: l, Cost: 1} }
				for i := range n + 1 {
					*tx = quota.Transaction{Within: time.Second, Charges: []quota.Charge{charge(queue)}}
					if i == 0 {
						tx.Charges = []quota.Charge{charge(once)}
					}
					s.Take(t.Context(), tx)
				}
				*tx = quota.Transaction{Within: time.Second, Charges: []quota.Charge{charge(queue), charge(once)}}
				if err := s.Take(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
			}
			if !slices.Equal(got.Decisions, want.Decisions) || want.Allowed() {
				t.Errorf("after %d slots: got  %+v\nwant %+v", n, got.Decisions, want.Decisions)
			}
			if n > 0 && want.Decisions[0].Allowed {
				waits++
			}
		}
		if waits == 0 {
			t.Error("no limit would admit a request after a wait")
		}
	})
}

// TestNoWaitForOthers: the same if the units suffice, but a limit of a rule without granted units would
// admit the request only after a wait.
func TestNoWaitForOthers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var got, want quota.Transaction
		paying := New(weirtest.Memory(), Options{Rules: []string{"api"}})
		if err := Grant(t.Context(), paying, "api", "k", 9, 0); err != nil {
			t.Fatal(err)
		}
		for s, tx := range map[quota.Store]*quota.Transaction{weirtest.Memory(): &want, paying: &got} {
			queue := quota.Charge{Rule: "web", Key: "k", Limit: algorithms.LeakyBucket(5, 5, time.Second), Cost: 1}
			once := quota.Charge{Rule: "api", Key: "k", Limit: algorithms.FixedWindow(1, time.Hour), Cost: 1}
			for _, charges := range [][]quota.Charge{{once}, {queue}, {queue}, {queue}, {queue}, {queue, once}} {
				*tx = quota.Transaction{Within: time.Second, Charges: charges}
				if err := s.Take(t.Context(), tx); err != nil {
					t.Fatal(err)
				}
			}
		}
		if !slices.Equal(got.Decisions, want.Decisions) || want.Allowed() || !want.Decisions[0].Allowed {
			t.Errorf("got  %+v\nwant %+v", got.Decisions, want.Decisions)
		}
	})
}

// TestGrantShared: granted units are valid for as long in the store of one of several replicas.
func TestGrantShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := New(quota.Share(weirtest.Memory(), 4), Options{Rules: []string{"r"}})
		if err := Grant(t.Context(), store, "r", "k", 5, 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		n, until, err := Left(t.Context(), store, "r", "k")
		if rest := time.Until(until); n != 5 || rest != 24*time.Hour || err != nil {
			t.Errorf("got %d units for %v and %v, want 5 for 24h", n, rest, err)
		}
	})
}

// TestGrantFellBack: units that a customer has paid for are not lost without an error if only the memory of
// this process has them.
func TestGrantFellBack(t *testing.T) {
	var down atomic.Bool
	first := weirtest.Memory()
	store := New(quota.Fallback(weirtest.StoreFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if down.Load() {
			return weirtest.ErrDown
		}
		return first.Take(ctx, tx)
	}), weirtest.Memory(), quota.FallbackOptions{}), Options{Rules: []string{"r"}})
	for _, fails := range []bool{false, true, false} {
		down.Store(fails)
		if err := Grant(t.Context(), store, "r", "k", 5, time.Hour); errors.Is(err, quota.ErrFellBack) != fails {
			t.Errorf("Grant, in an outage %v: got %v", fails, err)
		}
		if err := Revoke(t.Context(), store, "r", "other"); errors.Is(err, quota.ErrFellBack) != fails {
			t.Errorf("Revoke, in an outage %v: got %v", fails, err)
		}
	}
	if n, _, err := Left(t.Context(), store, "r", "k"); n != 10 || err != nil {
		t.Errorf("got %d units and %v, want the 10 of the first store", n, err)
	}
}

// TestGrantOnce: each granted unit is spent once, even if several processes spend units at
// the same time.
func TestGrantOnce(t *testing.T) {
	addr := redistest.Server(t).Addr()
	grant(t, weirtest.Redis(t, addr, 5*time.Second), "ann", 50, time.Hour)
	var admitted atomic.Int64
	var wg sync.WaitGroup
	for range 2 {
		store := New(weirtest.Redis(t, addr, 5*time.Second), Options{Rules: []string{"api"}})
		for range 8 {
			wg.Go(func() {
				for range 20 {
					if weirtest.Take(t, store, 0, quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.SlidingLog(10, 1000*time.Hour), Cost: 1}).Allowed() {
						admitted.Add(1)
					}
				}
			})
		}
	}
	if wg.Wait(); admitted.Load() != 60 {
		t.Errorf("admitted %d, want the 10 of the limit and the 50 granted", admitted.Load())
	}
}

// TestSettle: if Settle gives back units of a paid request, they become granted units
// again, and not units of a limit.
func TestSettle(t *testing.T) {
	store := New(weirtest.Memory(), Options{Rules: []string{"api"}})
	limit := algorithms.SlidingLog(10, 1000*time.Hour)
	l, err := weir.New(store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []quota.Limit{limit, algorithms.FixedWindow(10, 999*time.Hour)},
		Cost: func(*http.Request) int64 { return 10 }, Settle: func(weir.Outcome) int64 { return 4 }}}})
	if err != nil {
		t.Fatal(err)
	}
	grant(t, store, "", 20, time.Hour)
	h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i, want := range []int64{20, 16, 12, 8, 8} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := left(t, store, ""); got != want || (w.Code == 200) != (i < 4) {
			t.Errorf("request %d: got %d and %d left, want %d", i, w.Code, got, want)
		}
	}
	if got := weirtest.Take(t, store, 0, quota.Charge{Rule: "api", Limit: limit}).Decisions[0].Remaining; got != 6 {
		t.Errorf("got %d left of the limit, want 6", got)
	}
}

// TestPeekPaysNothing: Peek spends neither units of the limit nor granted units.
func TestPeekPaysNothing(t *testing.T) {
	store := New(weirtest.Memory(), Options{Rules: []string{"api"}})
	grant(t, store, "ann", 10, 0)
	ask := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.GCRA(10, time.Hour), Cost: 3}
	for range 5 {
		if _, err := quota.Peek(t.Context(), store, ask); err != nil {
			t.Fatal(err)
		}
	}
	ask.Cost = 0
	if look := weirtest.Take(t, store, 0, ask); look.Decisions[0].Remaining != 10 || left(t, store, "ann") != 10 {
		t.Errorf("got %d units of the limit and %d granted units left, want 10 and 10", look.Decisions[0].Remaining, left(t, store, "ann"))
	}
}

// sliced is an algorithm that is not comparable with ==, because it has a slice.
type sliced struct {
	quota.Algorithm
	_ []int
}

func (sliced) Name() string { return "sliced" }

// TestIncomparable: a rule may have limits whose algorithms are not comparable with ==.
func TestIncomparable(t *testing.T) {
	store := New(weirtest.Memory(), Options{Rules: []string{"api"}})
	grant(t, store, "ann", 1, 0)
	var charges []quota.Charge
	for i, l := range []quota.Limit{algorithms.FixedWindow(1, 1000*time.Hour), algorithms.FixedWindow(5, 999*time.Hour), algorithms.FixedWindow(6, 998*time.Hour)} {
		if i > 0 {
			l.Algorithm = sliced{Algorithm: l.Algorithm}
		}
		charges = append(charges, quota.Charge{Rule: "api", Key: "ann", Limit: l, Cost: 1})
	}
	for _, want := range []bool{true, true, false} {
		if tx := weirtest.Take(t, store, 0, charges...); tx.Allowed() != want {
			t.Errorf("got %+v, want allowed %v", tx.Decisions, want)
		}
	}
}

// TestSettleLast: units of a paid request come back even if the request has spent the last
// granted unit, and they end when they would have ended. They do not lengthen a later grant.
func TestSettleLast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := New(weirtest.Memory(), Options{Rules: []string{"api"}})
		charges := []quota.Charge{{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(1, 1000*time.Hour), Cost: 10}}
		back := []quota.Charge{charges[0]}
		back[0].Cost = -6
		for _, tt := range []struct {
			after time.Duration // from the request until its units come back
			want  int64
		}{{0, 6}, {59 * time.Minute, 6}, {time.Hour, 0}} {
			grant(t, store, "ann", 10, 2*time.Hour)
			tx := weirtest.Take(t, store, 0, charges...)
			if !tx.Allowed() || left(t, store, "ann") != 0 {
				t.Fatalf("got %+v and %d left, want the request paid with all units", tx.Decisions, left(t, store, "ann"))
			}
			time.Sleep(tt.after)
			back[0].Spent = tx.Decisions[0].At
			weirtest.Take(t, store, 0, back...)
			n, until, err := Left(t.Context(), store, "api", "ann")
			if n != tt.want || err != nil || n > 0 && time.Until(until) != 2*time.Hour-tt.after {
				t.Errorf("after %v: got %d left until %v, %v, want %d for %v", tt.after, n, until, err, tt.want, 2*time.Hour-tt.after)
			}
			weirtest.Take(t, store, 0, quota.Charge{Rule: "api", Key: "ann", Limit: charges[0].Limit, Cost: 6})
			grant(t, store, "ann", 1, time.Minute)
			if _, until, _ := Left(t.Context(), store, "api", "ann"); time.Until(until) != time.Minute {
				t.Errorf("after %v: got a later grant of a minute until %v", tt.after, time.Until(until))
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestBannedPaysNothing: a request of a banned key spends no granted units, even if the process
// does not know of the ban, and a quota.Hybrid hides it.
func TestBannedPaysNothing(t *testing.T) {
	redis := redistest.Server(t).Addr()
	for name, open := range map[string]func() quota.Store{
		"memory": weirtest.Memory,
		"hybrid": func() quota.Store { return quota.Hybrid(weirtest.Memory(), quota.HybridOptions{}) },
		"redis": func() quota.Store {
			return quota.Hybrid(weirtest.Redis(t, redis, 5*time.Second), quota.HybridOptions{})
		},
	} {
		next := open()
		store := New(next, Options{Rules: []string{"api"}})
		limit := algorithms.FixedWindow(2, 1000*time.Hour)
		rule := weir.Rule{Name: "api", Key: weir.Global(), Limits: []quota.Limit{limit},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(100, time.Hour), Duration: time.Hour}}
		var limiters []*weir.Limiter
		for range 2 {
			l, err := weir.New(store, weir.Options{Rules: []weir.Rule{rule}})
			if err != nil {
				t.Fatal(err)
			}
			limiters = append(limiters, l)
		}
		served := 0
		ask := func(l *weir.Limiter) {
			w := httptest.NewRecorder()
			l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ })).ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		}
		for range 4 {
			ask(limiters[0])
		}
		grant(t, store, "", 50, time.Hour)
		ask(limiters[0])
		if err := limiters[1].Ban(t.Context(), "api", "", time.Hour); err != nil {
			t.Fatal(err)
		}
		for range 20 { // a limiter for each request knows of no ban
			l, err := weir.New(store, weir.Options{Rules: []weir.Rule{rule}})
			if err != nil {
				t.Fatal(err)
			}
			ask(l)
		}
		ask(limiters[0])
		if n := left(t, store, ""); served != 3 || n != 49 {
			t.Errorf("%s: %d requests were served and %d granted units are left, want 3 and 49", name, served, n)
		}
		if _, err := limiters[1].Unban(t.Context(), "api", ""); err != nil {
			t.Fatal(err)
		}
		ask(limiters[1])
		if n := left(t, store, ""); served != 4 || n != 48 {
			t.Errorf("%s: after the ban %d requests were served and %d granted units are left, want 4 and 48", name, served, n)
		}
	}
}

// TestShadowPaysNothing: a rule in shadow refuses nothing, so granted units do not pay for it.
func TestShadowPaysNothing(t *testing.T) {
	store := New(weirtest.Memory(), Options{Rules: []string{"api", "new"}})
	refused := 0
	l, err := weir.New(store, weir.Options{
		Rules: []weir.Rule{
			{Name: "api", Key: weir.Global(), Limits: []quota.Limit{algorithms.FixedWindow(100, 1000*time.Hour)}},
			{Name: "new", Key: weir.Global(), Limits: []quota.Limit{algorithms.FixedWindow(2, 1000*time.Hour)}, Enforce: weir.Percent(0)},
		},
		Observe: func(e weir.Event) {
			if e.Shadow && !e.Transaction.Allowed() {
				refused++
			}
		},
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := Grant(t.Context(), store, "new", "", 50, time.Hour); err != nil {
		t.Fatal(err)
	}
	for range 20 {
		l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	}
	if n, _, err := Left(t.Context(), store, "new", ""); n != 50 || err != nil || refused != 18 {
		t.Errorf("got %d granted units left, %v, and %d refusals in shadow, want 50 and 18", n, err, refused)
	}
}

// TestGrantedAreAvailable: Peek and AllowAtMost count granted units as available.
func TestGrantedAreAvailable(t *testing.T) {
	store := New(quota.Hybrid(weirtest.Memory(), quota.HybridOptions{}), Options{Rules: []string{"api"}})
	minute, day := algorithms.FixedWindow(5, 1000*time.Hour), algorithms.FixedWindow(8, 999*time.Hour)
	charge := func(l quota.Limit, cost int64) quota.Charge {
		return quota.Charge{Rule: "api", Key: "ann", Limit: l, Cost: cost}
	}
	peek := func(cost int64, allowed bool, remaining int64) {
		t.Helper()
		tx, err := quota.Peek(t.Context(), store, charge(minute, cost))
		if d := tx.Decisions[0]; err != nil || d.Allowed != allowed || d.Remaining != remaining || allowed != (d.RetryAfter == 0) {
			t.Errorf("Peek of %d: got %+v, %v, want allowed %v, remaining %d", cost, d, err, allowed, remaining)
		}
	}
	grant(t, store, "ann", 10, time.Hour)
	peek(1, true, 15)
	peek(10, true, 15)
	peek(11, false, 15) // limits and granted units do not share the cost of a request
	tx := &quota.Transaction{Charges: []quota.Charge{charge(minute, 1), charge(day, 1)}, Mode: quota.ModeAtMost, Most: 12}
	if err := store.Take(t.Context(), tx); err != nil || !tx.Allowed() || tx.Granted != 12 || left(t, store, "ann") != 3 {
		t.Errorf("got %+v, %v, granted %d, %d left, want 12 and 3", tx.Decisions, err, tx.Granted, left(t, store, "ann"))
	}
	peek(3, true, 3)
	peek(4, false, 3)
	for _, want := range []int64{2, 1, 0, 0} {
		got, d, err := quota.AllowAtMost(t.Context(), store, charge(minute, 2))
		if got != want || err != nil || d.Allowed != (want > 0) {
			t.Errorf("AllowAtMost: got %d, %+v, %v, want %d", got, d, err, want)
		}
	}
	if n := left(t, store, "ann"); n != 0 {
		t.Errorf("got %d left, want 0", n)
	}
	peek(1, false, 0)
}

// TestPaidBehindHybrid: if quota.Hybrid refuses by one limit, and the store then also refuses by
// another, granted units pay for both, so a refund returns no units to either limit.
func TestPaidBehindHybrid(t *testing.T) {
	memory := weirtest.Memory()
	store := New(quota.Hybrid(memory, quota.HybridOptions{}), Options{Rules: []string{"api"}})
	hour := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(1, 1000*time.Hour), Cost: 1}
	day := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(2, 999*time.Hour), Cost: 1}
	weirtest.Take(t, store, 0, hour, day)
	if weirtest.Take(t, store, 0, hour, day).Allowed() { // Hybrid knows now that hour refuses
		t.Fatal("got allowed, want refused")
	}
	weirtest.Take(t, memory, 0, day) // by another process, so Hybrid does not know
	grant(t, store, "ann", 1, time.Hour)
	paid := weirtest.Take(t, store, 0, hour, day)
	if got := left(t, store, "ann"); !paid.Allowed() || got != 0 {
		t.Fatalf("got %+v and %d granted units left, want allowed and none", paid.Decisions, got)
	}
	debt := quota.Transaction{Charges: []quota.Charge{day}, Mode: quota.ModeForce} // by a request that has cost more than it reserved
	if err := memory.Take(t.Context(), &debt); err != nil {
		t.Fatal(err)
	}
	if err := quota.Refund(t.Context(), store, paid); err != nil {
		t.Fatal(err)
	}
	day.Cost = -1
	weirtest.Take(t, memory, 0, day)
	if got, of := left(t, store, "ann"), weirtest.Peek(t, memory, day).Decisions[0].Remaining; got != 1 || of != 0 {
		t.Errorf("refunded, and the debt paid: got %d granted units and %d of the limit, want 1 and 0", got, of)
	}
}

// TestUnpaid: if there are too few granted units, the decisions remain those of the limits, also if
// quota.Hybrid knows from memory that there are too few.
func TestUnpaid(t *testing.T) {
	store := New(quota.Hybrid(weirtest.Memory(), quota.HybridOptions{}), Options{Rules: []string{"api"}})
	wide := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(10, 1000*time.Hour), Cost: 3}
	narrow := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(2, 999*time.Hour), Cost: 3} // never fits, which Hybrid does not remember
	for i := range 2 {
		if d := weirtest.Take(t, store, 0, wide, narrow).Decisions; !d[0].Allowed || d[0].Remaining != 10 || d[1].Allowed || d[1].Remaining != 2 {
			t.Errorf("request %d: got %+v, want 10 left, and a refusal with 2 left", i, d)
		}
	}
}
