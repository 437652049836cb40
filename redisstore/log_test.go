package redisstore_test

import (
	"context"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A ledger says how often a server has run each command, those in scripts included.
type ledger map[string]int

// commands returns the ledger of a server, without the commands of new connections.
func commands(t *testing.T, rdb *redis.Client) ledger {
	t.Helper()
	info, err := rdb.Info(context.Background(), "commandstats").Result()
	if err != nil {
		t.Fatal(err)
	}
	calls := ledger{}
	for name, s := range redistest.CommandStats(info) {
		if group, _, _ := strings.Cut(name, "|"); group != "info" && group != "hello" && group != "client" {
			calls[name] = s.Calls
		}
	}
	return calls
}

// since returns how many commands the server has run since before, and a text that lists them.
func (l ledger) since(before ledger) (n int, list string) {
	for name, calls := range l {
		if calls -= before[name]; calls > 0 {
			n, list = n+calls, fmt.Sprint(list, " ", name, " ", calls)
		}
	}
	return n, list
}

// commandsOf returns how many commands a transaction costs, and which.
func commandsOf(t *testing.T, rdb *redis.Client, store quota.Store, tx *quota.Transaction) (n int, list string) {
	t.Helper()
	before := commands(t, rdb)
	if err := store.Take(t.Context(), tx); err != nil {
		t.Fatal(err)
	}
	return commands(t, rdb).since(before)
}

// fill charges a key n times, which makes n entries in its logs. The transactions may wait,
// because equal transactions that may not wait would be decided in one step.
func fill(t *testing.T, store *redisstore.Store, n int, charges ...quota.Charge) {
	t.Helper()
	for n > 0 {
		batch := make([]*quota.Transaction, 0, 1000)
		for range min(n, cap(batch)) {
			batch = append(batch, &quota.Transaction{Charges: charges, Within: time.Microsecond})
		}
		n -= len(batch)
		for _, err := range store.TakeEach(context.Background(), batch) {
			if err != nil {
				t.Fatal(err)
			}
		}
		for _, tx := range batch {
			if !tx.Allowed() {
				t.Fatalf("got %+v, want an entry", tx.Decisions)
			}
		}
	}
}

func logOpen(t *testing.T) (*redis.Client, *redisstore.Store) {
	rdb, _ := open(t)
	store, err := redisstore.New(rdb.WithTimeout(10*time.Second), redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return rdb, store
}

// TestLogMemory: an entry of a log takes at most 12 bytes, even if it has many units or counts
// for five limits.
func TestLogMemory(t *testing.T) {
	rdb, store := logOpen(t)
	five := many(5, func(int64, time.Duration) quota.Limit { return algorithms.SlidingLog(1<<40, time.Hour) })
	for _, test := range []struct {
		limits []quota.Limit
		cost   int64
	}{{five[:1], 1}, {five, 1}, {five[:1], 900}} {
		for _, n := range []int{200, 3010} {
			key := fmt.Sprint(len(test.limits), test.cost, n)
			var charges []quota.Charge
			for _, l := range test.limits {
				charges = append(charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: test.cost})
			}
			fill(t, store, n, charges...)
			got := rdb.MemoryUsage(t.Context(), "weir:r:log:{."+key+"}", 0).Val()
			if most := int64(12*n + 800); got == 0 || got > most {
				t.Errorf("%d limits, %d requests of cost %d: got %d bytes, want %d at most", len(test.limits), n, test.cost, got, most)
			}
		}
	}
}

// TestLogAttacks: for each of these calls the work of the server has the same bound in a log
// of 300 entries and in a log of 20,000. The test counts the commands of the script, because
// for each command the script looks at no more than a block of 64 entries.
func TestLogAttacks(t *testing.T) {
	rounds.Slow(t, "fills logs with 20,000 entries")
	rdb, store := logOpen(t)
	const units, small, large = 1_000_000, 300, 20_000
	a := quota.Charge{Rule: "r", Limit: algorithms.SlidingLog(units, time.Hour).Named("a"), Cost: 1}
	b := quota.Charge{Rule: "r", Limit: algorithms.SlidingLog(units/2, 2*time.Hour).Named("b"), Cost: 1}
	with := func(c quota.Charge, cost int64) quota.Charge { c.Cost = cost; return c }
	lowered := a
	lowered.Limit.Quota = 250
	shorter := a
	shorter.Limit.Period = time.Millisecond
	for _, attack := range []struct {
		name    string
		charges []quota.Charge
		within  time.Duration
		most    int
	}{
		{"a charge", []quota.Charge{a, b}, 0, 8},
		{"a large one", []quota.Charge{with(a, 1000), with(b, 1000)}, 0, 8},
		{"a refusal", []quota.Charge{with(a, units-200), with(b, 1)}, 0, 30},
		{"one that never fits", []quota.Charge{with(a, units+1), with(b, 1)}, 0, 30},
		{"a wait", []quota.Charge{with(a, units/2-200), with(b, units/2-200)}, 3 * time.Hour, 60},
		{"a charge behind it", []quota.Charge{a, b}, 0, 30},
		{"a look", []quota.Charge{with(a, 0), with(b, 0)}, 0, 30},
		{"a lowered quota", []quota.Charge{lowered, b}, 0, 30},
		{"a shorter period", []quota.Charge{shorter, b}, 0, 40},
		{"a gift of most", []quota.Charge{with(a, 100-small), with(b, 100-small)}, 0, 40},
		{"a gift of all", []quota.Charge{with(a, -1<<40), with(b, -1<<40)}, 0, 40},
	} {
		for _, n := range []int{small, large} {
			charges := []quota.Charge{with(a, 1), with(b, 1)}
			for i := range charges {
				charges[i].Key = fmt.Sprint(attack.name, n)
			}
			fill(t, store, n, charges...)
			tx := quota.Transaction{Within: attack.within}
			for _, c := range attack.charges {
				c.Key = charges[0].Key
				tx.Charges = append(tx.Charges, c)
			}
			for range 2 { // the first round loads the script into the server
				if got, _ := commandsOf(t, rdb, store, &tx); got > attack.most {
					t.Errorf("%s in a log of %d: %d commands, want %d at most", attack.name, n, got, attack.most)
				} else {
					t.Logf("%s in a log of %d: %d commands", attack.name, n, got)
				}
			}
		}
	}
}

// TestLogParts: two limits share a log until a transaction charges only one of them. This
// transaction copies the blocks of the log. Later charges copy no block.
func TestLogParts(t *testing.T) {
	rdb, store := logOpen(t)
	const n = 10_000
	a := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(1_000_000, time.Hour).Named("a"), Cost: 1}
	b := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(1_000_000, 2*time.Hour).Named("b"), Cost: 1}
	fill(t, store, n, a, b)
	for i, most := range []int{n/64*2 + 30, 30, 30, 30} {
		tx := quota.Transaction{Charges: []quota.Charge{a, b}[:1+i%2]}
		before := commands(t, rdb)
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		if got, _ := commands(t, rdb).since(before); got > most {
			t.Errorf("charge %d: %d commands, want %d at most", i, got, most)
		}
	}
	look := quota.Transaction{Charges: []quota.Charge{a, b}}
	for i := range look.Charges {
		look.Charges[i].Cost = 0
	}
	if err := store.Take(t.Context(), &look); err != nil {
		t.Fatal(err)
	}
	if x, y := look.Decisions[0].Remaining, look.Decisions[1].Remaining; x != 1_000_000-n-4 || y != 1_000_000-n-2 {
		t.Errorf("got %d and %d remaining, want %d and %d", x, y, 1_000_000-n-4, 1_000_000-n-2)
	}
}

// TestLogCancels: a cancellation in the middle of a log needs at most 60 commands, and the
// log counts right afterwards.
func TestLogCancels(t *testing.T) {
	rdb, store := logOpen(t)
	c := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(1_000_000, time.Hour), Cost: 1}
	var held []int64
	for range 20 {
		tx := quota.Transaction{Charges: []quota.Charge{c}}
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		held = append(held, tx.Decisions[0].At)
		fill(t, store, 500, c)
	}
	for i, at := range held {
		back := c
		back.Cost, back.Spent = -1, at
		tx := quota.Transaction{Charges: []quota.Charge{back}}
		before := commands(t, rdb)
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		if got, _ := commands(t, rdb).since(before); got > 60 {
			t.Errorf("a cancellation before %d entries: %d commands, want 60 at most", 500*(len(held)-i), got)
		}
		if got, want := c.Limit.Quota-tx.Decisions[0].Remaining, int64(20*501-i-1); got != want {
			t.Errorf("got %d spent, want %d", got, want)
		}
	}
}

// TestLogBytes: a log counts exactly, also with costs so large that its blocks need wider
// entries.
func TestLogBytes(t *testing.T) {
	_, store := logOpen(t)
	limit := algorithms.SlidingLog(1<<49, time.Hour)
	spent := int64(0)
	for i, cost := range []int64{1, 1 << 31, 1 << 31, 1, 1 << 32, 1<<33 - 1, 1 << 45, 1, 3} {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: cost}}}
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		spent += cost
		if got := limit.Quota - tx.Decisions[0].Remaining; got != spent {
			t.Errorf("after charge %d: got %d spent, want %d", i, got, spent)
		}
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: math.MinInt64}}}
	if err := store.Take(t.Context(), &tx); err != nil || tx.Decisions[0].Remaining != limit.Quota {
		t.Errorf("got %v, %+v, want all given back", err, tx.Decisions)
	}
}
