package main

import (
	"fmt"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
)

// TestReservationOutage: while Redis is down, memory does not know which reservations are settled, and
// refunds none of their units.
func TestReservationOutage(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	redis := redistest.Server(t)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef", "-redis-addrs", redis.Addr(),
		"-redis-timeout", "5s", "-redis-down", "memory", "-replicas", "1")}
	id := d.reserve("tokens", "acme", 60)
	d.settle(id, 0, true)
	redis.Kill()
	inMemory := d.reserve("tokens", "acme", 90)
	if status, _, text := d.call("/settle", fmt.Sprintf(`{"id": %q, "used": 0}`, id)); status != http.StatusServiceUnavailable {
		t.Errorf("settled again: got %d %s, want 503", status, text)
	}
	d.left("tokens", "acme", 10)
	d.settle(inMemory, 10, true)
	d.left("tokens", "acme", 90)
}

// TestShadowReservationOutage: a rule in shadow refuses no reservation and no draw, also if Redis is down and
// nothing counts instead.
func TestShadowReservationOutage(t *testing.T) {
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	redis := redistest.Server(t)
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef", "-redis-addrs", redis.Addr(),
		"-redis-timeout", "5s", "-redis-down", "closed")}
	before := d.reserve("shadow", "acme", 1)
	redis.Kill()
	during := d.reserve("shadow", "acme", 100)
	for _, id := range []string{before, during} {
		d.take("/draw", fmt.Sprintf(`{"id": %q, "units": 9}`, id))
	}
	if status, _, text := d.call("/reserve", `{"rule": "tokens", "key": "acme", "units": 1}`); status != http.StatusServiceUnavailable {
		t.Errorf("an enforced rule: got %d %s, want 503", status, text)
	}
}

// TestReservationCluster: while one master of a cluster hangs, the reservations of all keys can be settled: of
// those whose units another master has, in Redis, and of the others in memory.
func TestReservationCluster(t *testing.T) {
	rounds.Slow(t, "a cluster takes seconds to begin")
	t.Parallel()
	limits := writeFile(t, filepath.Join(t.TempDir(), "limits.yaml"), tokenLimits)
	cluster := redistest.Cluster(t, 3, 0)
	for _, node := range cluster.Nodes { // or the others would refuse all keys once they notice that one hangs
		if _, err := node.Do("CONFIG", "SET", "cluster-node-timeout", "600000"); err != nil {
			t.Fatal(err)
		}
	}
	d := desk{t, startService(t, "-limits", limits, "-key-secret", "0123456789abcdef",
		"-redis-addrs", strings.Join(cluster.Addrs(), ","), "-redis-timeout", "1s", "-replicas", "1")}
	d.settle(d.reserve("tokens", "first", 1), 1, true)
	cluster.Nodes[1].Pause()
	defer cluster.Nodes[1].Resume()
	for i := range 24 {
		key := fmt.Sprint("key", i)
		id := d.reserve("tokens", key, 60)
		d.settle(id, 10, true)
		d.settle(id, 0, false)
		d.left("tokens", key, 90)
	}
}
