package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestSendTimeUnanswered: if the server no longer answers TIME, or answers what no clock can be,
// calls soon fail with an error that names TIME. The store does not go on with its own clock.
func TestSendTimeUnanswered(t *testing.T) {
	for _, reply := range []string{
		"-ERR unknown command 'time'\r\n", "+OK\r\n", "$-1\r\n", "*0\r\n", "*2\r\n$1\r\n0\r\n$1\r\n5\r\n", "*2\r\n$2\r\n-1\r\n$1\r\n5\r\n",
		"*2\r\n$19\r\n9000000000000000000\r\n$1\r\n0\r\n", "*2\r\n$10\r\n1700000000\r\n$7\r\n1000000\r\n", "*2\r\n$11\r\n90000000000\r\n$1\r\n0\r\n",
	} {
		lua := redistest.Lua54(t).RefuseTime()
		var fails atomic.Bool
		lua.Around(func(args []string, run func() string) string {
			if fails.Load() && strings.EqualFold(args[0], "time") {
				return reply
			}
			return run()
		})
		store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, lua.Addr()))), true)
		var passed atomic.Int64
		begin := time.Now()
		store.SetClock(func() time.Time { return begin.Add(time.Duration(passed.Load())) })
		if err := store.Take(t.Context(), weirtest.Once(everyLimit[0])); err != nil {
			t.Fatal(err)
		}
		fails.Store(true)
		var err error
		for i := 0; err == nil && i < 100; i++ { // ten seconds
			passed.Add(int64(100*time.Millisecond + 1))
			err = store.Take(t.Context(), weirtest.Once(everyLimit[0]))
		}
		if err == nil || !strings.Contains(strings.ToLower(err.Error()), "time") || errors.Is(err, redisstore.ErrTimeout) {
			t.Errorf("reply %q: got error %v after %v, want one that names TIME", reply, err, time.Duration(passed.Load()))
		}
		fails.Store(false)
		if err := store.Take(t.Context(), weirtest.Once(everyLimit[0])); err != nil {
			t.Errorf("reply %q: got error %v once TIME works again", reply, err)
		}
	}
}

// TestSendTimeStopped: a process is stopped for a minute while its script is on the way, or the reply of
// the TIME before it. An old decision, which other processes no longer count, admits nothing.
func TestSendTimeStopped(t *testing.T) {
	d := newDistant(t, rand.New(rand.NewPCG(1, 2)))
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.GCRA(1, time.Second), Cost: 1}
	d.take(t, 0, 0, charge)
	d.onTheWay(func() { d.pass(time.Minute) })
	if err := d.stores[0].Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); !errors.Is(err, quota.ErrBusy) {
		t.Errorf("stopped while the script is on the way: got error %v, want an ErrBusy", err)
	}
	d.afterTime(func() { d.pass(time.Minute) })
	if err := d.stores[1].Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); !errors.Is(err, quota.ErrBusy) {
		t.Errorf("stopped while the reply of TIME is on the way: got error %v, want an ErrBusy", err)
	}
	for i := range 2 {
		charge.Key = fmt.Sprint("another ", i) // the state of a key shows a later time
		if tx, ran := d.take(t, i, 0, charge); ran.Sub(tx.At) > time.Second {
			t.Errorf("afterwards a decision is %v behind", ran.Sub(tx.At))
		}
	}
}

// TestSendTimeErrors: while calls fail, others decide. None decides at a time that no server has.
func TestSendTimeErrors(t *testing.T) {
	lua := redistest.Lua54(t).RefuseTime()
	var n atomic.Int64
	lua.Around(func(args []string, run func() string) string {
		if n.Add(1)%101 == 0 {
			return "" // ends the connection
		}
		return run()
	})
	store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, lua.Addr()))), true)
	var wg sync.WaitGroup
	for i := range 32 {
		wg.Go(func() {
			for j := range 200 {
				tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: fmt.Sprint(i, j), Limit: everyLimit[0], Cost: 1}}}
				err := store.Take(context.Background(), tx)
				if err == nil && time.Until(tx.At).Abs() > time.Minute || err != nil && strings.Contains(err.Error(), "can't be read") {
					t.Errorf("got a decision at %v, and error %v", tx.At, err)
					return
				}
			}
		})
	}
	wg.Wait()
}

// TestSendTimeMixed: a process with SendTime and one without share a key, as while the option is rolled
// out. Nobody overtakes the reservations of the other.
func TestSendTimeMixed(t *testing.T) {
	for _, l := range []quota.Limit{algorithms.GCRA(1, time.Second), algorithms.LeakyBucket(20, 1, time.Second), algorithms.SlidingLog(1, time.Second), algorithms.FixedWindow(1, time.Second)} {
		lua := redistest.Lua54(t)
		lua.SetTime(time.UnixMicro(1_700_000_000_000_000))
		rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, lua.Addr())))
		with, without := newStore(t, rdb, true), newStore(t, rdb)
		begin := time.Now()
		with.SetClock(func() time.Time { return begin })
		for i := range 8 {
			store := without
			if i%4 == 3 {
				store = with
			}
			tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Limit: l, Cost: 1}}, Within: 20 * time.Second}
			if err := store.Take(t.Context(), tx); err != nil || tx.Wait != time.Duration(i)*time.Second {
				t.Errorf("%s: call %d: got %v and a wait of %v, want %d s", l.Algorithm.Name(), i, err, tx.Wait, i)
			}
		}
	}
}

// TestSendTimeRedirect: a node with an early clock redirects a decision to one with a later clock, or
// the other way round. It counts for the earlier time, so that it is ahead of neither.
func TestSendTimeRedirect(t *testing.T) {
	nodes := [2]*redistest.Lua{redistest.Lua54(t).RefuseTime(), redistest.Lua54(t).RefuseTime()}
	nodes[0].SetTime(time.Now().Add(time.Hour))
	rdb := redis.NewClusterClient(&redis.ClusterOptions{ClusterSlots: func(context.Context) ([]redis.ClusterSlot, error) {
		return []redis.ClusterSlot{
			{Start: 0, End: 8191, Nodes: []redis.ClusterNode{{Addr: nodes[0].Addr()}}},
			{Start: 8192, End: 16383, Nodes: []redis.ClusterNode{{Addr: nodes[1].Addr()}}},
		}, nil
	}})
	store := newStore(t, client(t, rdb), true)
	charge := func(node int) quota.Charge {
		for i := 0; ; i++ {
			if key := fmt.Sprint(i); redistest.Slot("{."+key+"}")/8192 == node {
				return quota.Charge{Rule: "r", Key: key, Limit: everyLimit[0], Cost: 1}
			}
		}
	}
	for i := range nodes {
		if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge(i)}}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range nodes {
		nodes[i].Around(func(args []string, run func() string) string {
			if strings.HasPrefix(args[0], "eval") {
				return "-MOVED 1 " + nodes[1-i].Addr() + "\r\n"
			}
			return run()
		})
		tx := &quota.Transaction{Charges: []quota.Charge{charge(i)}}
		tx.Charges[0].Rule = "new"
		if err := store.Take(t.Context(), tx); err != nil || time.Until(tx.At).Abs() > time.Minute {
			t.Errorf("redirected by node %d: got %v and a decision %v ahead", i, err, time.Until(tx.At))
		}
		nodes[i].Around(nil)
	}
}
