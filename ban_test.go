package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestPenaltyCosts: besides the call for the decision, a strike costs one call of the store.
// The strike that begins a ban costs one call too, or two calls if the process has not seen
// the earlier strikes.
func TestPenaltyCosts(t *testing.T) {
	for _, decorated := range []func(weir.Store) weir.Store{
		func(s weir.Store) weir.Store { return s },
		func(s weir.Store) weir.Store { return lease.New(s, lease.Options{}) },
		func(s weir.Store) weir.Store { return quota.Share(s, 2) },
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			mem := memstore.New(memstore.Options{})
			store := decorated(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				calls++
				return mem.Take(ctx, tx)
			}))
			strikes := 4
			if _, ok := store.(*lease.Store); !ok && decorated(mem) != weir.Store(mem) {
				strikes = 8 // Share halves the strikes
			}
			_, ask := penalized(t, store, algorithms.AnchoredWindow(int64(strikes), time.Minute))
			_, elsewhere := penalized(t, store, algorithms.AnchoredWindow(int64(strikes), time.Minute))
			for i, step := range []struct {
				after time.Duration
				ask   func(time.Duration, string) string
				key   string
				want  string
				calls int
			}{
				{0, ask, "a", "200", 1},
				{0, ask, "a", "429 1", 2},
				{0, ask, "a", "429 1", 2},
				{0, ask, "a", "429 1", 2},
				{0, ask, "a", "429 10 banned", 2},
				{0, ask, "a", "429 10 banned", 0},
				{10 * time.Second, ask, "a", "200", 1},
				{0, ask, "b", "200", 1},
				{0, ask, "b", "429 1", 2},
				{0, ask, "b", "429 1", 2},
				{0, ask, "b", "429 1", 2},
				{0, elsewhere, "b", "429 10 banned", 3},
				{0, ask, "b", "429 10 banned", 1},
			} {
				calls = 0
				if got := step.ask(step.after, step.key); got != step.want || calls != step.calls {
					t.Errorf("step %d: got %s in %d calls, want %s in %d", i, got, calls, step.want, step.calls)
				}
			}
		})
	}
}

// TestPenaltyOfOneStrike: if one strike begins a ban, the first refusal bans the key with
// one more call of the store.
func TestPenaltyOfOneStrike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, mem := 0, memstore.New(memstore.Options{})
		_, ask := penalized(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			calls++
			return mem.Take(ctx, tx)
		}), algorithms.FixedWindow(1, time.Minute))
		for i, want := range []string{"200 in 1", "429 10 banned in 2", "429 10 banned in 0"} {
			calls = 0
			if got := ask(0, "a") + fmt.Sprint(" in ", calls); got != want {
				t.Errorf("request %d: got %s calls, want %s", i, got, want)
			}
		}
	})
}

// TestUnbanForgets: Unban forgets strikes and earlier bans, so the next ban needs all
// strikes and lasts as long as a first ban.
func TestUnbanForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ask := penalized(t, memstore.New(memstore.Options{}), algorithms.AnchoredWindow(3, 5*time.Second))
		for range 3 {
			ask(0, "a") // two strikes, which are forgotten too
		}
		time.Sleep(time.Second)
		if err := l.Ban(t.Context(), "api", "a", 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if err := l.Unban(t.Context(), "api", "a"); err != nil {
				t.Fatal(err)
			}
			for j, want := range []string{"200", "429 1", "429 1", "429 10 banned"} {
				if got := ask(0, "a"); got != want {
					t.Errorf("request %d after the lifting of ban %d: got %s, want %s", j, i, got, want)
				}
			}
			time.Sleep(time.Second)
		}
	})
}

// TestPenaltyTriesAgain: if the store fails when a ban should begin, the next refusal
// begins it.
func TestPenaltyTriesAgain(t *testing.T) {
	for _, tt := range []struct {
		name      string
		elsewhere bool // the third refusal comes from a process that has not seen the others
		calls     int  // how many calls succeed; the first is the decision
	}{
		{"the ban", false, 1},
		{"the strike", true, 1},
		{"the ban after the strike", true, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			mem, left := memstore.New(memstore.Options{}), 1000
			store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				if left--; left < 0 {
					return errors.New("away")
				}
				return mem.Take(ctx, tx)
			})
			_, ask := penalized(t, store, algorithms.SlidingLog(3, 5*time.Second))
			_, third := penalized(t, store, algorithms.SlidingLog(3, 5*time.Second))
			if !tt.elsewhere {
				third = ask
			}
			ask(0, "a")
			ask(0, "a")
			ask(0, "a")
			left = tt.calls
			if got := third(0, "a"); got != "429 1" {
				t.Errorf("%s fails: got %s, want 429 1", tt.name, got)
			}
			left = 1000
			if got := ask(0, "a"); got != "429 10 banned" {
				t.Errorf("%s failed: got %s of the next refusal, want 429 10 banned", tt.name, got)
			}
		})
	}
}

// TestPenaltyTogether: concurrent strikes begin only one ban. Each later ban is twice as
// long as the one before, up to MaxDuration.
func TestPenaltyTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		_, ask := penalized(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			time.Sleep(time.Millisecond) // so that the 100 calls overlap
			return mem.Take(ctx, tx)
		}), algorithms.FixedWindow(3, 5*time.Second))
		for _, want := range []string{"429 10 banned", "429 20 banned", "429 40 banned", "429 40 banned"} {
			ask(0, "a")
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { ask(0, "a") })
			}
			wg.Wait()
			if got := ask(0, "a"); got != want {
				t.Errorf("got %s after 100 refusals at once, want %s", got, want)
			}
			time.Sleep(40 * time.Second)
		}
	})
}

// TestRetryAfterOfABan: if a limit refuses for longer than a ban lasts, Retry-After is the
// wait for the limit.
func TestRetryAfterOfABan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Minute), Duration: time.Minute},
		}}}).Handler(served)
		for range 5 {
			do(h, ask("/", "192.0.2.1:4"))
		}
		for i, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "3600"}, {0, "3600"}, {0, "3600"}, {9 * time.Second, "3591"}, // the process remembers the ban for the last two
			{time.Second, "3590"}, {49 * time.Second, "3541"}, {time.Second, "3540"}, {time.Second, "3539"},
		} {
			time.Sleep(step.after)
			if got := do(h, ask("/", "192.0.2.1:4")).Header.Get("Retry-After"); got != step.want {
				t.Errorf("step %d: got Retry-After %s, want %s", i, got, step.want)
			}
		}
	})
}

// TestRetryAfterOfSeveral: if several rules ban or deny a request, the Refusal names a deny
// if there is one, and otherwise the longest ban, whatever the order of the rules.
func TestRetryAfterOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(name string) weir.Rule {
			return weir.Rule{
				Name: name, Key: weir.ByHeader(name), Limits: []weir.Limit{algorithms.GCRA(5, time.Hour)},
				Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(100, time.Minute), Duration: time.Minute},
				ForKey:  weir.When(func(key string) bool { return key == "denied" }, weir.Denied()),
			}
		}
		var got weir.Event
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule("A"), rule("B"), rule("C")}, Observe: func(e weir.Event) { got = e }})
		for _, b := range []struct {
			rule, key string
			d         time.Duration
		}{{"A", "short", 6 * time.Second}, {"B", "long", 9 * time.Second}, {"C", "short", 7 * time.Second}} {
			if err := l.Ban(t.Context(), b.rule, b.key, b.d); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct{ a, b, c, want string }{
			{"short", "ann", "ann", "6 ban A short"},
			{"ann", "long", "short", "9 ban B long"},
			{"short", "long", "short", "9 ban B long"},
			{"short", "ann", "short", "7 ban C short"},
			{"denied", "long", "short", " deny A denied"},
			{"short", "long", "denied", " deny C denied"},
		} {
			res := do(l.Handler(served), ask("/", "192.0.2.1:4", "A", c.a, "B", c.b, "C", c.c))
			said := fmt.Sprint(res.Header.Get("Retry-After"), " ", got.Refusal.Reason, " ", got.Refusal.Rule, " ", got.Key)
			if res.StatusCode != 429 || said != c.want || len(got.Transaction.Charges) != 0 {
				t.Errorf("%v: got %d %q and %d charges, want 429 %q and none", c, res.StatusCode, said, len(got.Transaction.Charges), c.want)
			}
		}
	})
}

// TestBanOfUnlimited: a ban of a key that has become unlimited does not hold, whether this process
// remembers the ban or not, and holds again when the key has limits.
func TestBanOfUnlimited(t *testing.T) {
	store, own := memstore.New(memstore.Options{}), weir.Policy{}
	limiter := func() *weir.Limiter {
		return must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)},
			ForKey:  func(string) weir.Policy { return own },
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(3, time.Hour), Duration: time.Minute}}}})
	}
	knows, knowsNot := limiter(), limiter()
	ban(t, knows, "ann", time.Minute)
	for _, c := range []struct {
		policy weir.Policy
		status int
	}{{weir.Unlimited(), 200}, {weir.Policy{}, 429}, {weir.Unlimited(), 200}} {
		own = c.policy
		for _, l := range []*weir.Limiter{knows, knowsNot} {
			if got := do(l.Handler(served), ask("/", "", "User", "ann")).StatusCode; got != c.status {
				t.Errorf("policy %v, remembered %v: got %d, want %d", c.policy, l == knows, got, c.status)
			}
		}
	}
}

// TestDenyBeforeErrors: if the Policy of one rule fails, a request that another rule denies
// is still refused.
func TestDenyBeforeErrors(t *testing.T) {
	fails := weir.Rule{Name: "tier", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Limited(weir.Limit{}) }}
	denies := weir.Rule{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(5, time.Hour)}, ForKey: func(string) weir.Policy { return weir.Denied() }}
	for _, rules := range [][]weir.Rule{{fails, denies}, {denies, fails}} {
		var events []weir.Event
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: rules, Observe: func(e weir.Event) { events = append(events, e) }}).Handler(served)
		if got := do(h, ask("/", "192.0.2.1:4")).StatusCode; got != 429 || len(events) != 1 || events[0].Refusal.Reason != weir.ReasonDeny {
			t.Errorf("%s first: got %d and %+v, want 429 and one deny", rules[0].Name, got, events)
		}
	}
}

// TestRetryAfterOfPreflights: the limits refuse no free preflight, so a process that learns
// of a ban from a preflight does not learn how long the limits refuse. Until it asks the store
// again, within 10 s, Retry-After of later requests is the rest of the ban.
func TestRetryAfterOfPreflights(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, mem := 0, memstore.New(memstore.Options{})
		h := must(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			calls++
			return mem.Take(ctx, tx)
		}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Cost: weir.FreePreflight(nil), Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute},
		}}}).Handler(served)
		for range 6 {
			do(h, ask("/", "192.0.2.1:4"))
		}
		for i, step := range []struct {
			after  time.Duration
			method string
			want   string
			calls  int
		}{
			{0, "GET", "3600", 0}, {0, "OPTIONS", "60", 0}, {10 * time.Second, "OPTIONS", "50", 1}, {0, "OPTIONS", "50", 0},
			{0, "GET", "50", 0}, {10 * time.Second, "GET", "3580", 1}, {0, "OPTIONS", "40", 0}, {0, "GET", "3580", 0},
		} {
			time.Sleep(step.after)
			calls = 0
			r := ask("/", "192.0.2.1:4", "Origin", "https://example.com", "Access-Control-Request-Method", "GET")
			r.Method = step.method
			if got := do(h, r).Header.Get("Retry-After"); got != step.want || calls != step.calls {
				t.Errorf("step %d, %s: got Retry-After %q in %d calls, want %q in %d", i, step.method, got, calls, step.want, step.calls)
			}
		}
	})
}

// TestStrikesAreOnesOwn: if one rule would only delay a request and another rule refuses
// it, the first rule counts no strike.
func TestStrikesAreOnesOwn(t *testing.T) {
	for _, limit := range []weir.Limit{algorithms.GCRA(1, time.Second), algorithms.LeakyBucket(5, 1, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			l := must(t, memstore.New(memstore.Options{}), weir.Options{MaxWait: 3 * time.Second, Rules: []weir.Rule{
				{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{limit},
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute}},
				{Name: "user", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Hour)}},
			}})
			h := l.Handler(served)
			for _, want := range []int{200, 429, 429} {
				if got := do(h, ask("/", "192.0.2.1:4", "User", "ann")).StatusCode; got != want {
					t.Errorf("%v: got %d, want %d", limit, got, want)
				}
			}
			if rest, err := l.Banned(t.Context(), "address", "192.0.2.1"); rest != 0 || err != nil {
				t.Errorf("%v: got a ban of %v, %v, of an address whose requests would only wait", limit, rest, err)
			}
			for i := range 6 { // more requests than can wait within MaxWait
				go do(h, ask("/", "192.0.2.1:4", "User", fmt.Sprint(i)))
				synctest.Wait()
			}
			if rest, err := l.Banned(t.Context(), "address", "192.0.2.1"); rest == 0 || err != nil {
				t.Errorf("%v: got no ban, %v, of an address that was refused", limit, err)
			}
			time.Sleep(time.Minute) // until no request waits
		})
	}
}

// TestRetryAfterOfCosts: if a costly request brought a ban, Retry-After of a cheaper
// request, which would fit its limit, is the rest of the ban.
func TestRetryAfterOfCosts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
			Cost:    func(r *http.Request) int64 { return int64(len(r.URL.Path)) },
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute},
		}}}).Handler(served)
		for i, step := range []struct{ path, want string }{
			{"/xx", ""}, {"/xx", "3600"}, {"/", "60"}, {"/xxx", "3600"},
		} {
			if got := do(h, ask(step.path, "192.0.2.1:4")).Header.Get("Retry-After"); got != step.want {
				t.Errorf("step %d: got Retry-After %q, want %q", i, got, step.want)
			}
		}
	})
}

// TestRetryAfterOfOthers: besides a ban, a process remembers how long the limits of other
// rules refuse. During the ban, Retry-After of a request includes these waits if the
// request has the same keys and costs no less, whatever the order of the rules.
func TestRetryAfterOfOthers(t *testing.T) {
	address := weir.Rule{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Second)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute}}
	user := weir.Rule{Name: "user", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
		Cost: func(r *http.Request) int64 { return int64(len(r.URL.Path)) }}
	for _, rules := range [][]weir.Rule{{address, user}, {user, address}} {
		synctest.Test(t, func(t *testing.T) {
			calls, mem := 0, memstore.New(memstore.Options{})
			l := must(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				calls++
				return mem.Take(ctx, tx)
			}), weir.Options{Rules: rules})
			h := l.Handler(served)
			for range 5 {
				do(h, ask("/", "192.0.2.1:4", "User", "ann"))
			}
			for i, step := range []struct {
				after      time.Duration
				path, user string
				want       string
				asks       bool
			}{
				{0, "/", "ann", "3600", true}, {0, "/", "ann", "3600", false}, {0, "/xx", "ann", "3600", false},
				{0, "/", "bob", "60", false}, {0, "/", "", "60", false},
				{9 * time.Second, "/", "ann", "3591", false}, {time.Second, "/", "ann", "3590", true},
				{49 * time.Second, "/", "ann", "3541", true}, {time.Second, "/", "ann", "3540", true}, // this request begins no ban, because the address has room
				{0, "/xxxxxxx", "cid", "", true}, {0, "/xxxxxxx", "cid", "", true},
			} {
				time.Sleep(step.after)
				calls = 0
				res := do(h, ask(step.path, "192.0.2.1:4", "User", step.user))
				if got := res.Header.Get("Retry-After"); res.StatusCode != 429 || got != step.want || (calls > 0) != step.asks {
					t.Errorf("%s first, step %d: got %d, Retry-After %q, in %d calls; want 429, %q, %v", rules[0].Name, i, res.StatusCode, got, calls, step.want, step.asks)
				}
			}
			time.Sleep(time.Minute)
			do(h, ask("/", "192.0.2.2:4", "User", "eve"))
			if n := l.KnownBans(); n > 2 {
				t.Errorf("%s first: %d keys are remembered a minute after the ban", rules[0].Name, n)
			}
		})
	}
}

// TestRetryAfterOfNever: a request that never fits gets no Retry-After during a ban either.
func TestRetryAfterOfNever(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
			Cost:    func(r *http.Request) int64 { return int64(len(r.URL.Path)) },
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute},
		}}}).Handler(served)
		for i, step := range []struct{ path, want string }{{"/xxxxx", ""}, {"/xxxxx", ""}, {"/", "60"}} {
			res := do(h, ask(step.path, "192.0.2.1:4"))
			if got := res.Header.Get("Retry-After"); res.StatusCode != 429 || got != step.want {
				t.Errorf("step %d: got %d, Retry-After %q, want 429, %q", i, res.StatusCode, got, step.want)
			}
		}
	})
}

func ExampleLimiter_Ban() {
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Hour},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println(l.Ban(ctx, "api", "192.0.2.7", time.Hour))
	rest, err := l.Banned(ctx, "api", "192.0.2.7")
	fmt.Println(rest.Round(time.Minute), err)
	fmt.Println(l.Unban(ctx, "api", "192.0.2.7"))
	offenses, err := l.Offenses(ctx, "api", "192.0.2.7")
	fmt.Println(offenses.Banned, offenses.SinceBan, offenses.Strikes, err)
	// Output:
	// <nil>
	// 1h0m0s <nil>
	// <nil>
	// 0s 0s 0 <nil>
}
