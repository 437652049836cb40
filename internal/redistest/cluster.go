package redistest

import (
	"strconv"
	"strings"
	"testing"
)

const slots = 16384

// ClusterSet is a Redis Cluster. Nodes are the masters, then the replicas, as
// at the start; MasterOf follows failovers and reshards.
type ClusterSet struct {
	Nodes []*Proc
}

// Cluster starts a Redis Cluster of so many masters, each with so many
// replicas: 3, 1 makes six nodes. It returns when every node sees all slots
// served and all replicas linked. A node is down after 1 s of silence. Redis
// itself makes a new master wait 2 s, so this takes a little more.
func Cluster(t testing.TB, masters, replicas int) *ClusterSet {
	t.Helper()
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

// Addrs are the addresses of all nodes.
func (c *ClusterSet) Addrs() []string { return addrs(c.Nodes) }

// MasterOf is the master of the key's slot, as the first node to answer sees
// it; nil when there is none. A paused node is asked for a second.
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

// Reshard moves slots with their keys from one master to another, as redis-cli
// does, while clients go on: they see ASK, then MOVED. The other nodes learn
// of it from both; replicas a moment later.
func (c *ClusterSet) Reshard(t testing.TB, from, to *Proc, slots ...int) {
	t.Helper()
	fromID, toID := from.must(t, "CLUSTER", "MYID").(string), to.must(t, "CLUSTER", "MYID").(string)
	for _, n := range slots {
		slot := strconv.Itoa(n)
		to.must(t, "CLUSTER", "SETSLOT", slot, "IMPORTING", fromID)
		from.must(t, "CLUSTER", "SETSLOT", slot, "MIGRATING", toID)
		// From here on new keys arise at the destination, so empty stays empty.
		for {
			keys := from.must(t, "CLUSTER", "GETKEYSINSLOT", slot, "100").([]any)
			if len(keys) == 0 {
				break
			}
			args := []string{"MIGRATE", "127.0.0.1", strconv.Itoa(to.port), "", "0", "1000", "KEYS"}
			for _, k := range keys {
				args = append(args, k.(string))
			}
			from.must(t, args...)
		}
		// The destination first: the slot is never without an owner.
		to.must(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		from.must(t, "CLUSTER", "SETSLOT", slot, "NODE", toID)
		for _, p := range c.Nodes {
			if p != from && p != to {
				_, _ = p.Do("CLUSTER", "SETSLOT", slot, "NODE", toID) // replicas refuse, the dead are deaf
			}
		}
	}
}

// Slot is the key's hash slot: CRC16 of what stands between the first "{" and
// the next "}", or of all of it when that is empty or missing.
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

// slotRange is one entry of CLUSTER SLOTS: the master's port stands first.
type slotRange struct {
	first, last int64
	ports       []int64
}

func (p *Proc) ranges() (list []slotRange) {
	v, _ := p.Do("CLUSTER", "SLOTS")
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

// sees reports whether the node knows all slots to have a master and so many
// replicas.
func (p *Proc) sees(masters, replicas int) bool {
	list := p.ranges()
	for _, r := range list {
		if len(r.ports) != 1+replicas {
			return false
		}
	}
	return len(list) == masters
}
