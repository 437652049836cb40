package redisstore_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

var everyAlgorithm = []weir.Limit{
	algorithms.GCRA(5, 10_000*time.Hour), algorithms.TokenBucket(5, 5, 10_000*time.Hour), algorithms.LeakyBucket(5, 5, 10_000*time.Hour),
	algorithms.FixedWindow(5, 10_000*time.Hour), algorithms.AnchoredWindow(5, 10_000*time.Hour), algorithms.SlidingWindow(5, 10_000*time.Hour),
	algorithms.SlidingLog(5, 10_000*time.Hour), algorithms.Calendar(5, algorithms.Month, time.UTC),
}

// clocksApart returns a store on a ring of two nodes. Their clocks stand still, a second
// apart.
func clocksApart(t *testing.T) *redisstore.Store {
	addrs := map[string]string{}
	for i, name := range []string{"1", "2"} {
		server := mini(t)
		server.SetTime(time.Date(2026, 7, 1, 12, 0, i, 0, time.UTC))
		addrs[name] = server.Addr()
	}
	return newStore(t, client(t, redis.NewRing(&redis.RingOptions{Addrs: addrs})))
}

// apart returns n keys. In a ring any two different keys count as being in different slots.
func apart(n int) (keys []string) {
	for i := range n {
		keys = append(keys, fmt.Sprint("key ", i))
	}
	return keys
}

// TestSettleInSlots: units that Settle does not charge are given back under every key, even if
// the clocks of the nodes differ.
func TestSettleInSlots(t *testing.T) {
	t.Parallel()
	for _, limit := range everyAlgorithm {
		store := clocksApart(t)
		keys := apart(4)
		var rules []weir.Rule
		for _, key := range keys {
			rules = append(rules, weir.Rule{Name: "login by " + key, Limits: []weir.Limit{limit}, Settle: weir.ChargeOnly(http.StatusUnauthorized),
				Key: func(*http.Request) (string, bool) { return key, true }})
		}
		l, err := weir.New(store, weir.Options{Rules: rules})
		if err != nil {
			t.Fatal(err)
		}
		served := 0
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		for range 40 {
			h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		}
		if served != 40 {
			t.Errorf("%v: got %d of 40 successful logins served, want all", limit, served)
		}
	}
}

// TestLeaseInSlots: a lease gives unused units back under every key, even if the clocks of the
// nodes differ.
func TestLeaseInSlots(t *testing.T) {
	store := clocksApart(t)
	limit := algorithms.FixedWindow(100_000, 10_000*time.Hour)
	keys := apart(6)
	for range 2 { // with the keys in one order, and then in reverse
		slices.Reverse(keys)
		var charges []quota.Charge
		for _, key := range keys {
			charges = append(charges, quota.Charge{Rule: "r", Key: key, Limit: limit, Cost: 1})
		}
		leases := lease.New(store, lease.Options{TTL: 20 * time.Millisecond})
		const asks = 1000
		for range asks {
			take(t, leases, charges...)
		}
		if err := leases.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		t.Logf("%+v", leases.Stats())
		for _, c := range charges {
			c.Cost = 0
			if got := limit.Quota - take(t, store, c).Decisions[0].Remaining; got != asks {
				t.Errorf("%s: got %d units charged for %d used", c.Key, got, asks)
			}
		}
		if err := store.Take(t.Context(), &quota.Transaction{Charges: charges, Mode: quota.ModeForget}); err != nil {
			t.Fatal(err)
		}
	}
}

// TestForgetInSlots: a transaction with Forget resets its keys on all nodes.
func TestForgetInSlots(t *testing.T) {
	store := clocksApart(t)
	for _, limit := range everyAlgorithm {
		var charges []quota.Charge
		for _, key := range apart(4) {
			charges = append(charges, quota.Charge{Rule: "r", Key: key, Limit: limit, Cost: 5})
		}
		for range 2 {
			if tx := take(t, store, charges...); !tx.Allowed() {
				t.Errorf("%v: got %+v, want all of 5 under each key", limit, tx.Decisions)
			}
			if err := store.Take(t.Context(), &quota.Transaction{Charges: charges, Mode: quota.ModeForget}); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestSpreadAtMost: if keys are in several slots, Take spends nothing in ModePeek. In ModeSpend the
// transaction is allowed, and its Undo is emptied. In ModeAtMost it spends what fits under all keys.
func TestSpreadAtMost(t *testing.T) {
	server := mini(t)
	rdb := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"1": server.Addr()}})
	defer rdb.Close()
	store := newStore(t, rdb)
	limit := algorithms.FixedWindow(1, 1000*time.Hour)
	both := []quota.Charge{{Rule: "r", Key: "a", Limit: limit, Cost: 1}, {Rule: "r", Key: "b", Limit: limit, Cost: 1}}

	tx := quota.Transaction{Charges: both, Mode: quota.ModePeek}
	if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() || tx.Decisions[1].Remaining != 1 {
		t.Errorf("got %v, %+v, want both charges allowed and 1 remaining", err, tx)
	}
	if keys := server.Keys(); len(keys) > 0 {
		t.Errorf("nothing was spent, but there are the keys %v", keys)
	}
	tx.Mode, tx.Undo = quota.ModeSpend, make([]quota.Undo, 2)
	if err := store.Take(t.Context(), &tx); err != nil || !tx.Allowed() || len(tx.Undo) > 0 {
		t.Errorf("got %v, %+v, want both charges allowed and no Undo", err, tx)
	}
	for _, want := range []int64{0, 2} { // b has nothing left, then both have new limits
		tx = quota.Transaction{Charges: both, Mode: quota.ModeAtMost, Most: 3}
		if err := store.Take(t.Context(), &tx); err != nil || tx.Granted != want {
			t.Errorf("at most 3: got %v, %+v, want %d", err, tx, want)
		}
		both[0].Limit.Quota, both[1].Limit.Quota = 9, 3
	}
}
