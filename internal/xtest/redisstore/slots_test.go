package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A ring is two Redis nodes without replication. Each node has its own clock, which stands
// still until the test sets it.
type ring struct {
	nodes        []*miniredis.Miniredis
	store, other *redisstore.Store // two clients of the same nodes

	mu      sync.Mutex
	between func() // called once, before one of the next scripts of store
	scripts int    // how many scripts of store run before that call
}

func newRing(t *testing.T) *ring {
	r := &ring{}
	addrs := map[string]string{}
	for i := range 2 {
		r.nodes = append(r.nodes, mini(t))
		addrs[fmt.Sprint(i)] = r.nodes[i].Addr()
	}
	open := func() *redis.Ring {
		ring := redis.NewRing(&redis.RingOptions{Addrs: addrs, ContextTimeoutEnabled: true})
		client(t, ring)
		return ring
	}
	rdb := open()
	if err := rdb.ForEachShard(t.Context(), func(_ context.Context, node *redis.Client) error {
		node.AddHook(r)
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	r.store, r.other = newStore(t, rdb), newStore(t, open())
	return r
}

// interrupt makes the ring call a function once, in the middle of the next transaction of
// store: after n scripts of the transaction and before its next script.
func (r *ring) interrupt(n int, f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.scripts, r.between = n, f
}

func (r *ring) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *ring) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.count(cmd)
		return next(ctx, cmd)
	}
}

func (r *ring) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		r.count(cmds...)
		return next(ctx, cmds)
	}
}

func (r *ring) count(cmds ...redis.Cmder) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, cmd := range cmds {
		if r.between == nil || !strings.HasPrefix(cmd.Name(), "eval") {
			continue
		}
		if r.scripts--; r.scripts < 0 {
			r.between()
			r.between = nil
		}
	}
}

// set sets the clock of the first node to now, in µs since 1970, and the clock of the second
// node to a later time.
func (r *ring) set(now, ahead int64) {
	for i, node := range r.nodes {
		node.SetTime(time.UnixMicro(now + int64(i)*ahead))
	}
}

// clock returns the time on the clock of the node that has key, in µs since 1970.
func (r *ring) clock(t *testing.T, key string) int64 {
	look := take(t, r.other, quota.Charge{Rule: "look", Key: key, Limit: algorithms.SlidingLog(1, time.Second)})
	return look.At.UnixMicro()
}

// someKeys returns five random keys. They are nearly always spread over both nodes.
func someKeys(r *rand.Rand) (keys []string) {
	for _, i := range r.Perm(100)[:5] {
		keys = append(keys, fmt.Sprint("key ", i))
	}
	return keys
}

// TestSlotsOracle: a transaction whose keys are on several nodes is all or nothing under
// every algorithm. Each charge is decided by the clock of its node. Units that are given back
// are those that were spent at the given instants.
func TestSlotsOracle(t *testing.T) {
	t.Parallel()
	decisions := rounds.N(1000, 8000)
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 9))
	ring := newRing(t)
	for total := 0; total < decisions; {
		o := newSlotsOracle(r, ring)
		now, ahead := int64(1_700_000_000_000_000), r.Int64N(4_000_000)
		for range 40 {
			ring.set(now, ahead)
			tx := o.next()
			if err := ring.store.Take(t.Context(), tx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			total += len(tx.Charges)
			if err := o.follow(t, tx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			now += []int64{0, 1, r.Int64N(1_000_000), r.Int64N(60_000_000), r.Int64N(1e11)}[r.IntN(5)]
		}
		for _, node := range ring.nodes {
			node.FlushAll()
		}
	}
}

// A slotsOracle makes random transactions on five keys of a ring, and keeps the states that
// the ring must have.
type slotsOracle struct {
	r      *rand.Rand
	ring   *ring
	limits []quota.Limit
	keys   []string
	states map[string]quota.State
	spent  []quota.Charge // charges that give units back, with Spent set
}

func newSlotsOracle(r *rand.Rand, ring *ring) *slotsOracle {
	o := &slotsOracle{r: r, ring: ring, states: map[string]quota.State{}}
	for i := range 1 + r.IntN(3) {
		l := randomLimit(r).Named(fmt.Sprint("l", i))
		if l.Validate() != nil {
			l.Quota, l.Burst = 7, 0
		}
		o.limits = append(o.limits, l)
	}
	o.keys = someKeys(r)
	return o
}

// next returns charges of several keys, or charges that give back units that were spent.
func (o *slotsOracle) next() *quota.Transaction {
	r, tx := o.r, &quota.Transaction{}
	if len(o.spent) > 0 && r.IntN(4) == 0 {
		i := r.IntN(len(o.spent))
		j := min(len(o.spent), i+1+r.IntN(4))
		tx.Charges = slices.Clone(o.spent[i:j])
		o.spent = slices.Delete(o.spent, i, j)
		tx.Charges = slices.CompactFunc(tx.Charges, func(a, b quota.Charge) bool { return name(&a) == name(&b) })
		if tx.Validate() != nil { // a limit appears twice
			tx.Charges = tx.Charges[:1]
		}
		return tx
	}
	for _, key := range o.keys[:2+r.IntN(4)] {
		l := o.limits[r.IntN(len(o.limits))]
		cost := 1 + r.Int64N(min(l.Capacity(), 1<<20))
		if r.IntN(3) > 0 {
			cost = r.Int64N(3)
		}
		tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: cost})
	}
	r.Shuffle(len(tx.Charges), func(i, j int) { tx.Charges[i], tx.Charges[j] = tx.Charges[j], tx.Charges[i] })
	return tx
}

// follow decides each charge of a transaction alone, by the clock of its node, and compares the
// decisions. The transaction must be allowed if each of its charges alone is allowed, and
// refused otherwise.
func (o *slotsOracle) follow(t *testing.T, tx *quota.Transaction) error {
	allowed := true
	parts := make([]quota.Transaction, len(tx.Charges))
	after := make([][]quota.State, len(tx.Charges))
	for i := range tx.Charges {
		c := &tx.Charges[i]
		if at := o.ring.clock(t, c.Key); tx.Decisions[i].At != at {
			return fmt.Errorf("%s was decided at %d µs; the clock of its node shows %d µs", name(c), tx.Decisions[i].At, at)
		}
		parts[i].Charges = tx.Charges[i : i+1]
		after[i] = []quota.State{o.states[name(c)]}
		allowed = parts[i].Decide(tx.Decisions[i].At, after[i]) && allowed
	}
	for i := range tx.Charges {
		c, got, want := &tx.Charges[i], tx.Decisions[i], parts[i].Decisions[0]
		if !allowed && want.Allowed { // the transaction is refused, so the state stays
			look := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: c.Key, Limit: c.Limit}}}
			look.Decide(got.At, []quota.State{o.states[name(c)]})
			want = look.Decisions[0]
		}
		if got != want {
			return fmt.Errorf("%s at a cost of %d, state %+v:\ngot  %+v\nwant %+v", name(c), c.Cost, o.states[name(c)], got, want)
		}
		if allowed {
			o.record(c, got.At, after[i][0])
		}
	}
	return nil
}

// record keeps the state after a charge. If the charge spends units, record also keeps a charge
// that gives back units of the same instant.
func (o *slotsOracle) record(c *quota.Charge, at int64, after quota.State) {
	o.states[name(c)] = after
	if c.Cost > 0 {
		back := *c
		back.Cost, back.Spent = -1-o.r.Int64N(c.Cost), at
		o.spent = append(o.spent, back)
	}
}

// TestSlotsRace: a transaction of several slots first asks all slots and then charges them.
// Even if another client takes units in between, either all charges of the transaction are
// spent or none. The limits are sliding logs, so the test counts the units of the last period.
func TestSlotsRace(t *testing.T) {
	t.Parallel()
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 10))
	ring := newRing(t)
	histories, refused, late := rounds.N(20, 100), 0, 0
	for range histories {
		limit := algorithms.SlidingLog(1+r.Int64N(6), time.Second)
		units := unitsOf{}
		keys, now, ahead := someKeys(r), int64(1_700_000_000_000_000), r.Int64N(2_000_000)
		for range 20 {
			ring.set(now, ahead)
			var tx quota.Transaction
			for _, key := range keys[:2+r.IntN(3)] {
				tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: key, Limit: limit, Cost: 1 + r.Int64N(2)})
			}
			c := tx.Charges[r.IntN(len(tx.Charges))]
			c.Cost = 1
			ring.interrupt(len(tx.Charges)+r.IntN(len(tx.Charges)), func() {
				late += units.spend(take(t, ring.other, c))
			})
			if err := ring.store.Take(t.Context(), &tx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			ring.interrupt(0, nil)
			refused += 1 - units.spend(&tx)
			if err := units.check(t, ring.other, tx.Charges); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			now += r.Int64N(700_000)
		}
		for _, node := range ring.nodes {
			node.FlushAll()
		}
	}
	if refused < histories || late < histories {
		t.Errorf("%d transactions were refused and %d interrupted, want at least one of each per history", refused, late)
	}
	t.Logf("%d transactions were refused, %d interrupted", refused, late)
}

// unitsOf has for each key the instants at which units were spent, in µs since 1970.
type unitsOf map[string][]int64

// spend adds the units of a transaction, and returns 1 if it is allowed.
func (u unitsOf) spend(tx *quota.Transaction) int {
	if !tx.Allowed() {
		return 0
	}
	for i, c := range tx.Charges {
		for range c.Cost {
			u[c.Key] = append(u[c.Key], tx.Decisions[i].At)
		}
	}
	return 1
}

// living returns how many units of a key were spent in the period before an instant.
func (u unitsOf) living(key string, at int64, period time.Duration) (n int64) {
	for _, spent := range u[key] {
		if spent > at-period.Microseconds() {
			n++
		}
	}
	return n
}

// check returns an error if a limit has more or fewer units left than its quota without the
// units that still count.
func (u unitsOf) check(t *testing.T, store quota.Store, charges []quota.Charge) error {
	for _, c := range charges {
		c.Cost = 0
		look := take(t, store, c).Decisions[0]
		if got, want := look.Remaining, c.Limit.Quota-u.living(c.Key, look.At, c.Limit.Period); got != want {
			return fmt.Errorf("got %d units left of %v for %s, want %d", got, c.Limit, c.Key, want)
		}
	}
	return nil
}
