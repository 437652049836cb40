package redistest

import (
	"strconv"
	"strings"
	"testing"
)

const slots = 16384

// ClusterSet is a Redis Cluster. Nodes has the nodes that started as masters, followed by
// the nodes that started as replicas. MasterOf returns the present master of a key.
type ClusterSet struct {
	Nodes []*Proc
}

// Cluster starts a Redis Cluster with that many masters, and that many replicas of each
// master: Cluster(t, 3, 1) has six nodes. It returns when every node sees that all slots
// are served and all replicas are linked. That takes a little more than 2 s, because Redis
// delays new masters by 2 s. A node is considered down after 1 s without an answer.
func Cluster(t testing.TB, masters, replicas int) *ClusterSet {
	t.Helper()
	slow(t, "nodes need seconds to agree on a cluster")
	c := &ClusterSet{}
	n := masters * (1 + replicas)
	for range n {
		c.Nodes = append(c.Nodes, Server(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "1000",
			"--cluster-config-file", "nodes.conf", "--cluster-announce-ip", "127.0.0.1"))
	}
	ids := make([]string, n)
	for i, p := range c.Nodes {
		ids[i] = p.must(t, "CLUSTER", "MYID").(string)
		p.must(t, "CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1))
		if i < masters {
			p.must(t, "CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(i*slots/masters), strconv.Itoa((i+1)*slots/masters-1))
		}
		if i > 0 {
			p.must(t, "CLUSTER", "MEET", "127.0.0.1", strconv.Itoa(c.Nodes[0].port))
		}
	}
	for i, p := range c.Nodes[masters:] {
		if err := wait(func() bool { return p.text("CLUSTER", "REPLICATE", ids[i%masters]) == "OK" }); err != nil {
			t.Fatalf("redistest: Cluster: replicate: %v", err)
		}
	}
	for i, p := range c.Nodes[masters:] {
		follow(t, c.Nodes[i%masters], p)
	}
	for _, p := range c.Nodes {
		if err := wait(func() bool {
			return strings.Contains(p.text("CLUSTER", "INFO"), "cluster_state:ok") && p.sees(masters, replicas)
		}); err != nil {
			t.Fatalf("redistest: Cluster: %v: %s", err, p.text("CLUSTER", "NODES"))
		}
	}
	return c
}

// Addrs returns the addresses of all nodes.
func (c *ClusterSet) Addrs() []string { return addrs(c.Nodes) }

// MasterOf returns the master of the key's slot according to the first node that answers,
// or nil. A paused node delays the call by a second.
func (c *ClusterSet) MasterOf(key string) *Proc {
	slot := int64(Slot(key))
	for _, p := range c.Nodes {
		for _, r := range p.ranges() {
			if r.first <= slot && slot <= r.last {
				return c.node(r.ports[0])
			}
		}
	}
	return nil
}

// Reshard moves slots with their keys from one master to another, as redis-cli does.
// Clients may send commands meanwhile, and get ASK and later MOVED. When Reshard returns,
// all masters know of the move. Replicas learn of it a moment later.
func (c *ClusterSet) Reshard(t testing.TB, from, to *Proc, slots ...int) {
	t.Helper()
	fromID, toID := from.must(t, "CLUSTER", "MYID").(string), to.must(t, "CLUSTER", "MYID").(string)
	for _, n := range slots {
		slot := strconv.Itoa(n)
		to.must(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
		from.must(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
		// New keys are now created at the destination, so an empty slot stays empty.
		for {
			keys := from.must(t, "CLUSTER", "GETKEYSINSLOT", slot, "100").([]any)
			if len(keys) == 0 {
				break
			}
			args := []string{"MIGRATE", "127.0.0.1", strconv.Itoa(to.port), "", "0", "10000", "KEYS"}
			for _, k := range keys {
				args = append(args, k.(string))
			}
			from.must(t, args...)
		}
		// The destination comes first, so that the slot always has an owner.
		to.must(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		from.must(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		for _, p := range c.Nodes {
			if p != from && p != to {
				p.text("CLUSTER", "SETSLOT", slot, "NODE", toID) // replicas refuse it, and dead nodes do not answer
			}
		}
	}
}

// Slot returns the hash slot of a key. It depends on the text between the first "{" and
// the next "}", or on the whole key if there is no such text.
// https://redis.io/docs/latest/operate/oss_and_stack/reference/cluster-spec/
func Slot(key string) int {
	if _, rest, ok := strings.Cut(key, "{"); ok {
		if tag, _, ok := strings.Cut(rest, "}"); ok && tag != "" {
			key = tag
		}
	}
	var crc uint16 // CRC-16/XMODEM
	for _, b := range []byte(key) {
		crc ^= uint16(b) << 8
		for range 8 {
			top := crc & 0x8000
			crc <<= 1
			if top != 0 {
				crc ^= 0x1021
			}
		}
	}
	return int(crc % slots)
}

func (c *ClusterSet) node(port int64) *Proc {
	for _, p := range c.Nodes {
		if int64(p.port) == port {
			return p
		}
	}
	return nil
}

// slotRange is an entry of CLUSTER SLOTS.
type slotRange struct {
	first, last int64
	ports       []int64 // of the master, then of its replicas
}

func (p *Proc) ranges() (list []slotRange) {
	v, _ := p.do(pollTimeout, []string{"CLUSTER", "SLOTS"})
	entries, _ := v.([]any)
	for _, e := range entries {
		e := e.([]any)
		r := slotRange{first: e[0].(int64), last: e[1].(int64)}
		for _, node := range e[2:] {
			r.ports = append(r.ports, node.([]any)[1].(int64))
		}
		list = append(list, r)
	}
	return list
}

// sees reports whether the node knows that many masters, each with that many replicas.
func (p *Proc) sees(masters, replicas int) bool {
	list := p.ranges()
	for _, r := range list {
		if len(r.ports) != 1+replicas {
			return false
		}
	}
	return len(list) == masters
}
