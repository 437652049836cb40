package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestTakeEachErrors: if some transactions of a batch are invalid, TakeEach returns errors for
// these and decides the others.
func TestTakeEachErrors(t *testing.T) {
	_, store := open(t)
	limit := algorithms.GCRA(3, time.Hour)
	good := func(key string) *quota.Transaction {
		return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: key, Limit: limit, Cost: 1}}}
	}
	twice := good("a")
	twice.Charges = append(twice.Charges, twice.Charges[0])
	ts := []*quota.Transaction{good("a"), twice, good("a"), {}, {Charges: []quota.Charge{{Limit: quota.Limit{Quota: 1}}}}, good("b"), good("a"), good("a")}
	errs := store.TakeEach(t.Context(), ts)
	for i, err := range errs {
		if want := i == 1 || i == 4; (err != nil) != want {
			t.Errorf("%d: got %v, want an error: %v", i, err, want)
		}
	}
	if !errors.Is(errs[1], quota.ErrDuplicate) {
		t.Errorf("got %v, want ErrDuplicate", errs[1])
	}
	for i, want := range []int64{2, -1, 1, -1, -1, 2, 0, 0} {
		if want >= 0 && ts[i].Decisions[0].Remaining != want {
			t.Errorf("%d: got %d left, want %d", i, ts[i].Decisions[0].Remaining, want)
		}
	}
	if ts[6].Allowed() != true || ts[7].Allowed() != false {
		t.Errorf("got %v, %v, want the third allowed and the fourth refused", ts[6].Allowed(), ts[7].Allowed())
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	for i, err := range store.TakeEach(ctx, ts) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d: got %v after a hang-up, want context.Canceled", i, err)
		}
	}
}

// TestTakeEachOnce: TakeEach spends each unit of a batch once, even if the server has lost the
// scripts. If the server does not answer, TakeEach returns ErrTimeout after the Timeout of
// one call.
func TestTakeEachOnce(t *testing.T) {
	server := redistest.Server(t)
	proxy := redistest.Proxy(t, server.Addr())
	rdb := redis.NewClient(redisstore.ClientOptions(patience, proxy.Addr()).Simple())
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	batch := func() (ts []*quota.Transaction) {
		for i := range 100 {
			ts = append(ts, &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: fmt.Sprint(i % 3), Limit: algorithms.GCRA(1000, time.Hour), Cost: 1}}},
				&quota.Transaction{Charges: []quota.Charge{{Rule: "w", Key: fmt.Sprint(i), Limit: algorithms.SlidingWindow(1000, time.Hour), Cost: 1}}})
		}
		return ts
	}
	for round := range 3 {
		if errs := store.TakeEach(t.Context(), batch()); errs != nil {
			t.Fatalf("round %d: %v", round, errs)
		}
		if err := rdb.ScriptFlush(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if errs := store.TakeEach(t.Context(), batch()[:2]); errs != nil { // makes a connection
		t.Fatal(errs)
	}
	look, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "r", Key: "0", Limit: algorithms.GCRA(1000, time.Hour)})
	if got := look.Decisions[0].Remaining; err != nil || got != 1000-3*34-1 {
		t.Errorf("got %d left, %v, want %d", got, err, 1000-3*34-1)
	}
	brief, err := redisstore.New(rdb, redisstore.Options{Timeout: 200 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	proxy.Swallow.Store(true)
	start := time.Now()
	errs := brief.TakeEach(t.Context(), batch())
	if took := time.Since(start); took > patience+time.Second || len(errs) != 200 || !errors.Is(errs[0], redisstore.ErrTimeout) {
		t.Errorf("got %d errors after %v, want 200 of ErrTimeout in its time", len(errs), took)
	}
}

// TestTakeEachCluster: a batch in a cluster decides keys on all nodes, and spends each unit
// of a key once.
func TestTakeEachCluster(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	c := redistest.Cluster(t, 3, 0)
	store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, c.Addrs()...))))
	var ts []*quota.Transaction
	for i := range 90 {
		ts = append(ts, &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: fmt.Sprint(i % 9), Limit: algorithms.GCRA(4, time.Hour), Cost: 1}}})
	}
	if errs := store.TakeEach(t.Context(), ts); errs != nil {
		t.Fatal(errs)
	}
	for i, tx := range ts {
		if want := i < 4*9; tx.Allowed() != want {
			t.Errorf("%d: got allowed %v, want %v", i, tx.Allowed(), want)
		}
	}
}

// TestTakeEachInOrder: a batch is decided in order, even if Redis lacks the script of its
// first transaction and has the script of its second.
func TestTakeEachInOrder(t *testing.T) {
	_, store := open(t)
	log := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(2, time.Hour).Named("log"), Cost: 1}
	meter := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(9, time.Hour).Named("meter"), Cost: 1}
	if errs := store.TakeEach(t.Context(), []*quota.Transaction{{Charges: []quota.Charge{log}}}); errs != nil {
		t.Fatal(errs)
	}
	first, second := &quota.Transaction{Charges: []quota.Charge{log, meter}}, &quota.Transaction{Charges: []quota.Charge{log}}
	if errs := store.TakeEach(t.Context(), []*quota.Transaction{first, second}); errs != nil {
		t.Fatal(errs)
	}
	if !first.Allowed() || second.Allowed() {
		t.Errorf("got allowed %v and %v, want that the first gets the last unit", first.Allowed(), second.Allowed())
	}
}

// TestTakeEachFlushed: a batch is decided in order, too, if the server has lost scripts that it had:
// all of them after SCRIPT FLUSH, or, from Redis 7.4 on, one that was not used for a long time.
func TestTakeEachFlushed(t *testing.T) {
	lua := redistest.Lua54(t)
	store := newStore(t, client(t, redis.NewUniversalClient(optionsOf(lua.Addr(), nil))))
	five := algorithms.GCRA(5, time.Hour).Named("five")
	all := func(key string) *quota.Transaction {
		return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: key, Limit: five, Cost: 5}}}
	}
	one := func(key string) *quota.Transaction { // another shape, so another script
		other := quota.Charge{Rule: "r", Key: key, Limit: algorithms.FixedWindow(9, time.Hour).Named("other"), Cost: 1}
		return &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: key, Limit: five, Cost: 1}, other}}
	}
	take := func(ts ...*quota.Transaction) {
		t.Helper()
		if errs := store.TakeEach(t.Context(), ts); errs != nil {
			t.Fatal(errs)
		}
	}
	lost := "" // the hash of a script that the server has lost
	lua.Around(func(args []string, run func() string) string {
		if strings.EqualFold(args[0], "evalsha") && args[1] == lost {
			return "-NOSCRIPT No matching script. Please use EVAL.\r\n"
		}
		return run()
	})
	hashOf := func(tx *quota.Transaction) string {
		hash, err := store.Hash(tx)
		if err != nil {
			t.Fatal(err)
		}
		return hash
	}
	for i, lose := range []func(){
		func() { take(all("x"), all("y")) }, // the server never had the second script
		func() {
			take(all("x"), one("x"))
			store.ForgetUse() // as if it were long ago
			lost = hashOf(all("x"))
		},
	} {
		lose()
		first, second := all(fmt.Sprint("k", i)), one(fmt.Sprint("k", i))
		if i == 0 {
			lost = hashOf(first)
		}
		take(first, second)
		if !first.Allowed() || second.Allowed() {
			t.Errorf("%d: got allowed %v and %v, want true and false", i, first.Allowed(), second.Allowed())
		}
	}
}
