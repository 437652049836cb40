package redisstore_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestCluster: when the master of a key dies or hangs, its replica replaces it, and the
// store finds the new master.
func TestCluster(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds until a cluster agrees")
	}
	failover(t, func(t *testing.T) set {
		c := redistest.Cluster(t, 3, 1)
		const key = "k"
		master := c.MasterOf("{." + key + "}")
		return set{options: redisstore.ClientOptions(0, c.Addrs()...), key: key, kill: master.Kill, pause: master.Pause, resume: master.Resume}
	})
}

// TestReshard: while a key is charged, its slot moves to another node and back. No call
// fails, and no unit is lost.
func TestReshard(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	c := redistest.Cluster(t, 3, 0)
	for _, sendTime := range []bool{false, true} {
		rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, c.Addrs()...)))
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience, SendTime: sendTime})
		if err != nil {
			t.Fatal(err)
		}
		reshard(t, c, store, fmt.Sprint("hot", sendTime))
	}
}

// TestBatchOnAnotherNode: the transactions of a batch are decided in order, also by a node that lacks
// a script which another node has.
func TestBatchOnAnotherNode(t *testing.T) {
	t.Parallel() // it mostly waits for its servers to start
	c := redistest.Cluster(t, 3, 0)
	store := newStore(t, client(t, redis.NewUniversalClient(redisstore.ClientOptions(patience, c.Addrs()...))))
	one, many := algorithms.GCRA(1, time.Hour), algorithms.FixedWindow(1000, time.Hour)
	charge := func(key string, limit quota.Limit) quota.Charge {
		return quota.Charge{Rule: "r", Key: key, Limit: limit, Cost: 1}
	}
	nodes := map[*redistest.Proc]bool{}
	for i := 0; len(nodes) < 3; i++ {
		key := fmt.Sprint("k", i)
		node := c.MasterOf("{." + key + "}")
		if nodes[node] {
			continue
		}
		nodes[node] = true
		take(t, store, charge(key, one.Named("other")), charge(key, many)) // the node has the second script of the batch only
		batch := []*quota.Transaction{
			{Charges: []quota.Charge{charge(key, one)}},
			{Charges: []quota.Charge{charge(key, one), charge(key, many)}},
		}
		takeEach(t, store, key, batch)
		if !batch[0].Allowed() || batch[1].Allowed() {
			t.Errorf("node %d: the transactions of a batch are allowed: %v, %v, want only the first", len(nodes), batch[0].Allowed(), batch[1].Allowed())
		}
	}
}

func reshard(t *testing.T, c *redistest.ClusterSet, store *redisstore.Store, key string) {
	slot := redistest.Slot("{." + key + "}")
	from := c.MasterOf("{." + key + "}")
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	l := loadKey(t, store, key, 0)
	l.goesOn(t, 200)
	const moves = 6
	for range moves {
		begin := time.Now()
		c.Reshard(t, from, to, slot)
		t.Logf("moved in %v", time.Since(begin).Round(time.Millisecond))
		l.goesOn(t, 200)
		from, to = to, from
	}
	l.stop()
	admitted, spent := l.admitted.Load(), l.spent(t, store)
	t.Logf("%d moves: %d admitted, %d errors, slowest answer %v", moves, admitted, l.errs.Load(), time.Duration(l.slowest.Load()))
	if n := l.errs.Load(); n > 0 {
		t.Errorf("got %d errors, the last of them %v, want none", n, l.lastErr.Load())
	}
	for _, n := range spent {
		if n != admitted {
			t.Errorf("got %v units spent, want the %d admitted under each limit", spent, admitted)
		}
	}
}
