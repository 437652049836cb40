package weir_test

import (
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// eachStore runs a test over memory and over Redis.
func eachStore(t *testing.T, test func(t *testing.T, store weir.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, memstore.New(memstore.Options{})) })
	t.Run("redis", func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
		defer rdb.Close()
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		test(t, store)
	})
}

// TestLimitJoins: if a rule gains or loses limits, the limits that stay keep their counts.
// Header fields show a single limit without a name under the name of the rule.
func TestLimitJoins(t *testing.T) {
	three := []weir.Limit{algorithms.GCRA(3, 1000*time.Hour), algorithms.SlidingLog(3, 1000*time.Hour), algorithms.AnchoredWindow(3, 1000*time.Hour)}
	joins := algorithms.GCRA(100, time.Minute)
	eachStore(t, func(t *testing.T, store weir.Store) {
		for i, l := range three {
			rules := []struct {
				limits []weir.Limit
				want   string
			}{
				{[]weir.Limit{l}, "200 r 2"},
				{[]weir.Limit{l, joins}, "200 r/1000h 1"},
				{[]weir.Limit{joins, l}, "200 r/1000h 0"},
				{[]weir.Limit{l}, "429 r 0"},
				{[]weir.Limit{l.Named("1000h")}, "429 r/1000h 0"},
				{[]weir.Limit{joins.Named("other"), l}, "429 r/1000h 0"},
				{[]weir.Limit{l.Named("another")}, "200 r/another 2"},
			}
			for step, tt := range rules {
				limiter := must(t, store, weir.Options{Headers: headers.IETF, Rules: []weir.Rule{{
					Name: "r", Key: weir.ByHeader("Key"), Limits: tt.limits, ForKey: noPolicy,
				}}})
				if got := named(limiter, fmt.Sprint("rules ", i), "r"); got != tt.want {
					t.Errorf("%v, step %d: got %s, want %s", l, step, got, tt.want)
				}
			}

			// Policy changes the limits to those of another tier, and back.
			tiers := map[string][]weir.Limit{"free": {l}, "paid": {joins, l}}
			limiter := must(t, store, weir.Options{Headers: headers.IETF, Rules: []weir.Rule{{
				Name: "r", Key: weir.ByHeader("Key"),
				Policy: func(r *http.Request) weir.Policy { return weir.Limited(tiers[r.Header.Get("Tier")]...) },
			}}})
			for step, tt := range []struct{ tier, want string }{
				{"free", "200 r 2"}, {"paid", "200 r/1000h 1"}, {"free", "200 r 0"}, {"paid", "429 r/1000h 0"}, {"free", "429 r 0"},
			} {
				if got := named(limiter, fmt.Sprint("tiers ", i), "r", "Tier", tt.tier); got != tt.want {
					t.Errorf("%v, tier %s at step %d: got %s, want %s", l, tt.tier, step, got, tt.want)
				}
			}
		}
	})
}

// named sends one request to a limiter. It returns the status and, for the limit whose
// period is 1000 hours, its name in header fields and how many units are left.
func named(l *weir.Limiter, key string, rule string, fields ...string) string {
	got := do(l.Handler(served), ask("/", "192.0.2.1:4", append([]string{"Key", key}, fields...)...))
	items := strings.Split(got.Header.Get("Ratelimit"), ", ")
	i := slices.IndexFunc(items, func(s string) bool { return !strings.Contains(s, "/1m\"") && !strings.Contains(s, "/other\"") })
	if i < 0 {
		return fmt.Sprint(got.StatusCode, " ", items)
	}
	name, rest, _ := strings.Cut(items[i], ";r=")
	left, _, _ := strings.Cut(rest, ";")
	return fmt.Sprint(got.StatusCode, " ", strings.Trim(name, `"`), " ", left)
}

// TestStoredName: a charge that is made by hand counts together with the charges of a
// Limiter if its limit has the stored name, or if it has no name and the same period.
func TestStoredName(t *testing.T) {
	l := algorithms.GCRA(3, 1000*time.Hour)
	eachStore(t, func(t *testing.T, store weir.Store) {
		for name, store := range map[string]weir.Store{"plain": store, "Hybrid": quota.Hybrid(store, quota.HybridOptions{})} {
			limiter := must(t, store, weir.Options{Rules: []weir.Rule{{Name: name, Key: weir.Global(), Limits: []weir.Limit{l}}}})
			do(limiter.Handler(served), ask("/", "192.0.2.1:4"))
			for left, charge := range map[string]weir.Limit{"2": l, "2 ": l.Named("1000h"), "3": l.Named("1000 h")} {
				look := peek(t, store, quota.Charge{Rule: name, Limit: charge})
				if got := fmt.Sprint(look.Decisions[0].Remaining); got != strings.TrimSpace(left) {
					t.Errorf("%s: %v: got %s left, want %s", name, charge, got, left)
				}
			}
			// A refusal that Hybrid remembers for the limit without a name holds for the
			// limit with the stored name too.
			for range 4 {
				take(t, store, 0, quota.Charge{Rule: name, Limit: l, Cost: 1})
			}
			if got := take(t, store, 0, quota.Charge{Rule: name, Limit: l.Named(l.StoredName()), Cost: 1}); got.Allowed() {
				t.Errorf("%s: got a unit beyond the quota by the stored name", name)
			}
			two := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1}, {Limit: l.Named("1000h"), Cost: 1}}}
			if err := store.Take(t.Context(), &two); err == nil {
				t.Errorf("%s: got no error for one state that is charged twice", name)
			}
		}
	})
}
