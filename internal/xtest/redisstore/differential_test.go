package redisstore_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
	"github.com/seed83679106/weir/redisstore"
)

// TestDifferential compares the Lua scripts with the Go code of the same arithmetic, for
// random limits, costs and waits, on a clock that the test sets. Every decision of the
// store must equal the decision of Transaction.Decide on states that the test keeps. A refusal
// and a charge of cost 0 must write nothing. A value must live as long as its states matter,
// and not much longer. With Lua 5.4 no script may use a key that it does not declare.
func TestDifferential(t *testing.T) {
	t.Parallel()
	onBothLuas(t, func(t *testing.T, rdb *redis.Client, server world) { differential(t, rdb, server, false) })
}

// TestDifferentialOnServer does the same as TestDifferential with a redis-server, on the
// server's clock.
func TestDifferentialOnServer(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	differential(t, rdb, &realServer{rdb: rdb}, false)
}

// TestDifferentialSendTime does the same with a server that refuses TIME in scripts. A decision
// counts for the instant that the store has sent, or that the script has found in the states.
func TestDifferentialSendTime(t *testing.T) {
	t.Parallel()
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Lua54(t).RefuseTime().Addr()})
	defer rdb.Close()
	differential(t, rdb, &realServer{rdb: rdb}, true)
}

// differential runs random histories.
func differential(t *testing.T, rdb *redis.Client, server world, sendTime bool) {
	decisions := rounds.N(5000, 30_000)
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 3))
	o := redisstore.Options{Timeout: 10 * time.Second, SendTime: sendTime}
	store, err := redisstore.New(rdb, o)
	if err != nil {
		t.Fatal(err)
	}
	done := map[string]int{}
	for total := 0; total < decisions; {
		s := store // many histories share this store, so it soon has as many scripts as a store may make
		if r.IntN(2) == 0 {
			if s, err = redisstore.New(rdb, o); err != nil {
				t.Fatal(err)
			}
		}
		h := newHistory(r, server, s)
		for range 40 {
			n, err := h.step(t)
			if err != nil {
				t.Fatalf("seed %d, after %d decisions, history of\n%s%v", seed, total, h.text(200), err)
			}
			total += n
		}
		for _, l := range h.limits {
			done[l.Algorithm.Name()]++
		}
		if err := rdb.FlushDB(t.Context()).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if len(done) != 8 && decisions >= 30_000 { // few histories may miss an algorithm
		t.Errorf("histories by algorithm are %v, want all 8 algorithms", done)
	}
}

// A history is a sequence of random transactions on a few limits of two or three keys. It compares
// the decisions of the store with decisions on states that the history keeps itself.
type history struct {
	r      *rand.Rand
	server world
	real   bool // the server is a redis-server: its clock runs, and values expire
	store  quota.Store
	limits []quota.Limit
	keys   []string
	now    int64
	newest int64                  // the largest value that the field now has had
	states map[string]quota.State // by key and limit
	tills  map[string]int64       // when states may be forgotten, in µs since 1970

	restored map[string]int64       // the values of tills that a cancellation restores, by key, limit and change
	undoes   bool                   // the transaction that is decided has Cancels
	former   map[string]quota.Limit // limits before their last change, by name and algorithm

	ends  map[string]int64 // when values in Redis expire, in µs since 1970
	ttls  map[string]int64
	taken []quota.Transaction // transactions that give back what was spent
	tiers bool                // a few meters, each with two sets of numbers
	// These fields say what the history tests besides plain charges.
	waiting, changing, unlike, looks, huge, back, long, debts, removes bool
	removed                                                            map[int]bool    // the limits that are not charged now, by index: see remove
	log                                                                []func() string // lines for the message of a failure
}

// note adds a line to the log. The line is formatted only if the history fails.
func (h *history) note(format string, args ...any) {
	h.log = append(h.log, func() string { return fmt.Sprintf(format, args...) })
}

// text returns the last lines of the log.
func (h *history) text(lines int) string {
	var b strings.Builder
	for _, line := range h.log[max(0, len(h.log)-lines):] {
		b.WriteString(line() + "\n")
	}
	return b.String()
}

// A lua54Server has a clock that SetTime sets. Its values do not expire.
type lua54Server struct {
	realServer
	lua *redistest.Lua
}

func (s *lua54Server) SetTime(now time.Time) { s.lua.SetTime(now) }
func (s *lua54Server) Dump() string          { return s.lua.Dump() }

func onLua54(t *testing.T) (*redis.Client, *lua54Server) {
	lua := redistest.Lua54(t)
	rdb := redis.NewClient(&redis.Options{Addr: lua.Addr()})
	t.Cleanup(func() { rdb.Close() })
	return rdb, &lua54Server{realServer{rdb}, lua}
}

// onBothLuas runs a test with miniredis, whose Lua is 5.1, and with a lua54Server.
func onBothLuas(t *testing.T, test func(t *testing.T, rdb *redis.Client, server world)) {
	t.Run("5.1", func(t *testing.T) {
		server := mini(t)
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		test(t, rdb, server)
	})
	t.Run("5.4", func(t *testing.T) {
		rdb, server := onLua54(t)
		test(t, rdb, server)
	})
}

// A world is the server that a history uses: a miniredis, a lua54Server or a realServer.
type world interface {
	SetTime(time.Time)
	Dump() string
	Get(key string) (string, error)
	Exists(key string) bool
	TTL(key string) time.Duration
	Del(key string) bool
}

func newHistory(r *rand.Rand, server world, store quota.Store) *history {
	h := &history{
		r: r, server: server, store: store,
		now:    1_700_000_000_000_000 + r.Int64N(1e14),
		states: map[string]quota.State{}, tills: map[string]int64{}, restored: map[string]int64{}, former: map[string]quota.Limit{}, ends: map[string]int64{}, ttls: map[string]int64{},
		waiting: r.IntN(2) == 0, changing: r.IntN(2) == 0, unlike: r.IntN(4) == 0, looks: r.IntN(4) == 0, huge: r.IntN(4) == 0, back: r.IntN(3) == 0, debts: r.IntN(3) == 0,
		removes: r.IntN(3) == 0, removed: map[int]bool{},
	}
	kind := r.IntN(12)
	limits := 1 + r.IntN(4)
	switch many := r.IntN(8) == 0; { // as many as a script decides without a loop, and more
	case many && 2 <= kind && kind <= 4:
		limits = 9 + r.IntN(6)
	case many:
		limits = 17 + r.IntN(24)
	}
	if h.tiers = h.changing && r.IntN(2) == 0; h.tiers {
		kind, limits = []int{0, 5}[r.IntN(2)], 1+r.IntN(2)
		h.debts = h.debts || r.IntN(2) == 0
	}
	for i := range limits {
		l := randomLimit(r)
		switch kind {
		case 0, 1: // several limits under GCRA
			l.Algorithm = algorithms.GCRA(1, 1).Algorithm
		case 2, 3, 4: // several windows over one log
			l.Algorithm, l.Burst = algorithms.SlidingLog(1, 1).Algorithm, 0
		case 5:
			l.Algorithm = algorithms.LeakyBucket(1, 1, 1).Algorithm
		}
		if l.Validate() != nil { // the limit may be invalid under the new algorithm
			l.Quota, l.Burst = 7, 0
		}
		l.Name = ""
		if i == 0 && r.IntN(2) == 0 && !h.changing { // the first limit may be without a name
			h.limits = append(h.limits, l)
			continue
		}
		h.limits = append(h.limits, l.Named(fmt.Sprint("l", i)))
	}
	if r.IntN(4) == 0 {
		h.shareName()
	}
	for i := 0; h.tiers && i < len(h.limits); i++ {
		l := h.limits[i]
		h.former[l.Name+l.Algorithm.Name()] = smaller(r, l)
	}
	h.keys = []string{"a", "b", "c"}[:2+r.IntN(2)]
	for many := limits <= 2 && r.IntN(6) == 0; many && len(h.keys) < 22; {
		h.keys = append(h.keys, fmt.Sprint("d", len(h.keys)))
	}
	if r.IntN(4) == 0 {
		h.keys = []string{strings.Repeat("a", 129), "}{."}
	}
	if _, h.real = server.(*realServer); h.real {
		h.changing, h.tiers, h.back = false, false, false // otherwise a value that has expired could matter again
	}
	return h
}

// shareName gives one name to several limits, as far as their algorithms differ.
func (h *history) shareName() {
	h.unlike = true
	for i := range h.limits {
		if l := h.limits[i].Named("l0"); !slices.ContainsFunc(h.limits, func(m quota.Limit) bool { return m.Name == l.Name && m.Algorithm.Name() == l.Algorithm.Name() }) {
			h.limits[i] = l
		}
	}
}

// A realServer is a redis-server. Its clock cannot be set, so SetTime does nothing.
type realServer struct{ rdb *redis.Client }

func (s *realServer) SetTime(time.Time) {}
func (s *realServer) Dump() string      { return "" }
func (s *realServer) Get(key string) (string, error) {
	return s.rdb.Get(context.Background(), key).Result()
}
func (s *realServer) Exists(key string) bool {
	return s.rdb.Exists(context.Background(), key).Val() > 0
}
func (s *realServer) TTL(key string) time.Duration {
	return s.rdb.PTTL(context.Background(), key).Val()
}
func (s *realServer) Del(key string) bool { return s.rdb.Del(context.Background(), key).Val() > 0 }

func randomLimit(r *rand.Rand) quota.Limit {
	rates := []struct {
		quota  int64
		period time.Duration
	}{
		{3, time.Second}, {7, time.Minute}, {300_000, time.Second}, {1_000_000, 24 * time.Hour},
		{1, time.Second}, {1, time.Microsecond}, {5, 3 * time.Microsecond}, {10, time.Minute},
		{1 + r.Int64N(100), time.Duration(1+r.Int64N(1000)) * time.Microsecond},
		{1 + r.Int64N(50), time.Duration(1+r.Int64N(60)) * time.Second},
		{1 << 25, 1 << 25 * time.Microsecond}, {999_983, 24*time.Hour + time.Microsecond},
		{1_000_000_007, 24 * time.Hour}, {19, 1 << 50 * time.Microsecond}, {1<<50 - 1, 365 * 24 * time.Hour}, {1 + r.Int64N(1<<(1+r.IntN(50))), time.Duration(1+r.Int64N(1<<(1+r.IntN(50)))) * time.Microsecond},
	}
	rate := rates[r.IntN(len(rates))]
	if r.IntN(2) == 0 { // small quotas find most mistakes
		rate.quota = 1 + r.Int64N(12)
	}
	burst := []int64{0, rate.quota, 1, max(1, rate.quota/3), rate.quota + 1, 3 * rate.quota}[r.IntN(6)]
	switch r.IntN(9) {
	case 0:
		return algorithms.FixedWindow(rate.quota, rate.period)
	case 1:
		return algorithms.AnchoredWindow(rate.quota, rate.period)
	case 2, 3:
		return algorithms.SlidingWindow(rate.quota, rate.period)
	case 4:
		return algorithms.SlidingLog(rate.quota, rate.period)
	case 5:
		return algorithms.TokenBucket(burst, rate.quota, rate.period)
	case 6:
		return algorithms.LeakyBucket(burst, rate.quota, rate.period)
	case 7:
		unit := []algorithms.Unit{algorithms.Day, algorithms.Week, algorithms.Month}[r.IntN(3)]
		return algorithms.Calendar(rate.quota, unit, time.FixedZone("", r.IntN(86_400)-43_200))
	}
	return algorithms.GCRA(rate.quota, rate.period).WithBurst(burst)
}

func capacity(l quota.Limit) int64 {
	switch l.Algorithm.Name() {
	case "gcra", "token-bucket", "leaky-bucket":
		if l.Burst > 0 {
			return l.Burst
		}
	}
	return l.Quota
}

func (h *history) cost(most int64) int64 {
	r := h.r
	if h.long && r.IntN(40) > 0 { // small costs, for logs with many entries
		switch r.IntN(30) {
		case 0:
			return 1 + r.Int64N(most/50+1)
		case 1:
			if !h.back {
				return -1 - r.Int64N(most/50+1)
			}
		}
		return 1 + r.Int64N(3)*r.Int64N(2)
	}
	switch r.IntN(12) {
	case 0:
		return 0
	case 1:
		if h.back { // after the clock has stepped back, a store may give back other units than the history does
			return 0
		}
		return -1 - r.Int64N(most)
	case 2:
		return most
	case 3:
		return most + 1
	case 4, 5, 6:
		return 1 + r.Int64N(most)
	case 7:
		return 1 + r.Int64N(max(1, most/3))
	case 8:
		if h.huge && !h.back {
			return []int64{math.MaxInt64, math.MinInt64, 1 << 53, 1<<53 + 1, -(1<<53 + 1), -1 - r.Int64N(3*most)}[r.IntN(6)]
		}
	}
	return 1
}

// charges returns the charges of the next transaction. Most of them have the same cost, as
// the charges of a rule do.
func (h *history) charges() []quota.Charge {
	var charges []quota.Charge
	keys := h.keys
	if h.r.IntN(4) > 0 {
		keys = keys[:1]
	}
	for _, key := range keys {
		cost := h.cost(h.most())
		if !h.back && (h.r.IntN(40) == 0 || h.tiers && h.r.IntN(4) == 0) {
			cost = h.manyBack(key)
		}
		for i, l := range h.limits {
			if h.removed[i] || h.unlike && h.r.IntN(4) == 0 {
				continue
			}
			charges = append(charges, quota.Charge{Rule: "r", Key: key, Limit: l, Cost: h.vary(cost, l)})
		}
	}
	if h.unlike && h.r.IntN(4) == 0 {
		h.r.Shuffle(len(charges), func(i, j int) { charges[i], charges[j] = charges[j], charges[i] })
	}
	return charges
}

// remove sometimes removes a limit for several transactions, or adds one again. A script without a loop
// decides although a value has states of a removed limit. Transactions that give back what was spent
// still charge it.
func (h *history) remove() {
	if n := len(h.limits); n > 1 && h.r.IntN(8) == 0 {
		i := h.r.IntN(min(n, 3)) // mostly the same ones, so that they are added again
		h.removed[i] = !h.removed[i]
	}
}

// vary returns the cost of a charge. It is often 0 in histories with looks, and sometimes a cost of
// its own in histories with unlike charges.
func (h *history) vary(cost int64, l quota.Limit) int64 {
	switch {
	case h.looks && h.r.IntN(2) == 0:
		return 0
	case h.unlike && h.r.IntN(4) == 0:
		return h.cost(min(capacity(l), 1<<20))
	}
	return cost
}

// manyBack returns the cost that gives back all units under a random limit of a key, a unit more
// or less, or so many that the others are no more than the limit holds.
func (h *history) manyBack(key string) int64 {
	l := h.limits[h.r.IntN(len(h.limits))]
	s := h.states[name(&quota.Charge{Key: key, Limit: l})]
	units := s.A
	if s.A > 0 && s.B > 0 && s.B < s.A { // the state is a debt of units that are worth s.B ticks
		units = (s.A + s.B - 1) / s.B
	}
	if h.r.IntN(3) > 0 {
		return -max(1, units-h.r.Int64N(capacity(l)+1))
	}
	return -max(1, units+h.r.Int64N(3)-1)
}

// most returns the least capacity of the limits, or sometimes the capacity of a random
// limit.
func (h *history) most() int64 {
	most := int64(math.MaxInt64 - 1)
	for _, l := range h.limits {
		most = min(most, capacity(l))
	}
	if h.r.IntN(4) == 0 {
		most = capacity(h.limits[h.r.IntN(len(h.limits))])
	}
	return most
}

// exceed sets the cost of each charge to more units than are left, by a random number, so that
// the charge must wait until spent units come back.
func (h *history) exceed(charges []quota.Charge) {
	for i := range charges {
		c := &charges[i]
		_, d := c.Limit.Algorithm.Take(h.states[name(c)], &c.Limit, h.now, 0)
		c.Cost = d.Remaining + 1 + h.r.Int64N(max(1, c.Limit.Quota-d.Remaining))
	}
}

// change sometimes gives a limit different numbers: new ones, or those that the limit had
// before. So debts are often charged under two limits in turn, and one of them may hold less
// than the debt. The period of a log does not go back, because it never grows beyond the time
// for which the history keeps the units of all keys.
func (h *history) change() {
	i := h.r.IntN(len(h.limits))
	l := &h.limits[i]
	switch before := *l; h.r.IntN(16) {
	case 0, 1:
		h.renumber(l)
		if h.r.IntN(4) == 0 {
			s := smaller(h.r, before)
			if n := l.Algorithm.Name(); n != "calendar" && n != "sliding-log" {
				l.Quota, l.Burst = s.Quota, s.Burst
			}
		}
		h.former[l.Name+l.Algorithm.Name()] = before
	case 2, 3, 4, 5, 6, 7, 8:
		old, ok := h.former[l.Name+l.Algorithm.Name()]
		switch name := l.Algorithm.Name(); {
		case !ok:
			return
		case name == "calendar" || name == "sliding-log":
			l.Quota = old.Quota
		default:
			l.Quota, l.Burst = old.Quota, old.Burst
		}
		h.former[l.Name+l.Algorithm.Name()] = before
	}
	if l.Validate() != nil {
		l.Quota, l.Burst = 7, 0
	}
}

// smaller returns a limit that holds a part of the units of l, at most a half. Often a unit is
// worth another number of ticks under it. Sometimes its rate is so low that a debt under l would
// take longer to drain than a state is kept.
func smaller(r *rand.Rand, l quota.Limit) quota.Limit {
	l.Burst = 1 + capacity(l)/(2+r.Int64N(8))
	if r.IntN(4) == 0 {
		l.Quota = 1 + r.Int64N(5)
	}
	return l
}

// renumber gives a limit new numbers.
func (h *history) renumber(l *quota.Limit) {
	other := randomLimit(h.r)
	if l.Quota = other.Quota; l.Algorithm.Name() != "calendar" && l.Algorithm.Name() != "sliding-log" {
		l.Burst = other.Burst
	}
}

func name(c *quota.Charge) string {
	return c.Key + " " + c.Limit.StoredName() + " " + c.Limit.Algorithm.Name()
}

func value(c *quota.Charge) string {
	if c.Limit.Algorithm.Name() == "sliding-log" {
		return "weir:r:log:{." + storedkey.Of(c.Key) + "}"
	}
	return "weir:r:{." + storedkey.Of(c.Key) + "}"
}

// step makes a random transaction, or a batch of such transactions, with the store and with
// Decide. It returns the number of decisions.
func (h *history) step(t *testing.T) (int, error) {
	if h.changing {
		h.change()
	}
	if h.removes {
		h.remove()
	}
	got := quota.Transaction{Charges: h.charges()}
	if h.long && h.r.IntN(12) == 0 {
		h.exceed(got.Charges)
	}
	if len(got.Charges) == 0 {
		return 0, nil
	}
	if h.waiting && (h.long || h.r.IntN(2) == 0) {
		h.mayWait(&got)
	}
	alone := h.mayGiveBack(&got)
	if h.r.IntN(12) == 0 && (!h.long || h.r.IntN(50) == 0) {
		got.Mode, got.Within = quota.ModeForget, 0
	} else if h.r.IntN(4) == 0 {
		h.otherMode(&got)
	}
	if h.debts && h.r.IntN(3) == 0 {
		h.force(&got)
	}
	if got.Within <= 0 && h.r.IntN(3) == 0 {
		for i := range got.Charges {
			got.Charges[i].Headroom = h.r.Int64N(1 + capacity(got.Charges[i].Limit)/int64(1+h.r.IntN(4)))
		}
	}
	more := 0
	if !alone && h.r.IntN(8) == 0 && (!h.tiers || h.r.IntN(3) == 0) {
		more = 1 + h.r.IntN(30)
	}
	batch := []*quota.Transaction{&got}
	for range more {
		again := got
		again.Cancels = slices.Clone(got.Cancels)
		batch = append(batch, &again)
	}
	return h.decide(t, batch)
}

// otherMode gives a transaction another Mode than ModeSpend, if that is valid.
func (h *history) otherMode(t *quota.Transaction) {
	asked := *t
	t.Within = 0
	switch t.Mode = quota.Mode(h.r.IntN(4)); t.Mode {
	case quota.ModeSpend:
		t.Within = asked.Within
	case quota.ModeAtMost:
		t.Most = 1 + h.r.Int64N(20)
	}
	if t.Validate() != nil {
		*t = asked
	}
}

// force replaces a transaction by one that forces its charges, if they spend. Most of them exceed
// their limits.
func (h *history) force(t *quota.Transaction) {
	forced := quota.Transaction{Charges: slices.Clone(t.Charges), Mode: quota.ModeForce}
	most := 1 + h.r.Int64N(3)*h.most()
	for i := range forced.Charges {
		if c := &forced.Charges[i]; c.Cost > 0 && h.r.IntN(4) > 0 {
			c.Cost = 1 + h.r.Int64N(most)
			if h.r.IntN(4) == 0 && c.Limit.Algorithm.Name() != "sliding-log" {
				c.Cost = math.MaxInt64
			}
		}
	}
	if forced.Validate() == nil {
		*t = forced
	}
}

// mayGiveBack sometimes replaces t by a transaction that gives back units, and reports whether
// that transaction must not be in a batch. Under other numbers a state that has ended may matter
// again, but Redis may drop it between two transactions of a batch.
func (h *history) mayGiveBack(t *quota.Transaction) (alone bool) {
	if len(h.taken) == 0 || h.back || h.r.IntN(5) > 0 || h.long && h.r.IntN(3) > 0 {
		return false
	}
	*t = h.giveBack()
	if h.tiers && h.r.IntN(2) == 0 {
		h.useNewLimits(t)
	}
	return h.changing
}

// mayWait gives a transaction time to wait.
func (h *history) mayWait(t *quota.Transaction) {
	period := t.Charges[h.r.IntN(len(t.Charges))].Limit.Period
	t.Within = []time.Duration{time.Microsecond, time.Duration(h.r.Int64N(int64(3*period) + 1)), period, 365 * 24 * time.Hour, math.MaxInt64}[h.r.IntN(5)]
	if h.long && h.r.IntN(100) > 0 {
		t.Within = period / 50
	}
}

// giveBack returns a transaction that gives back the units of one of the last transactions.
func (h *history) giveBack() quota.Transaction {
	n, last := len(h.taken), 5
	if h.long {
		last = 500
	}
	got := h.taken[n-1-h.r.IntN(min(n, last))]
	if other := h.taken[h.r.IntN(n)]; h.r.IntN(4) == 0 { // give back units of two instants together
		got.Charges = slices.Clone(got.Charges)
		got.Charges[h.r.IntN(len(got.Charges))].Spent = other.Charges[0].Spent
		got.Cancels = nil // they are valid only with the instant of their own reservation
	}
	return got
}

// useNewLimits replaces each limit of a transaction by the limit that now has the same name.
func (h *history) useNewLimits(t *quota.Transaction) {
	t.Charges = slices.Clone(t.Charges)
	for i := range t.Charges {
		for _, l := range h.limits {
			if c := &t.Charges[i]; c.Limit.Name == l.Name && c.Limit.Algorithm.Name() == l.Algorithm.Name() {
				c.Limit = l
			}
		}
	}
}

// decide makes the transactions of a batch with the store and with Decide, and compares the
// decisions.
func (h *history) decide(t *testing.T, batch []*quota.Transaction) (int, error) {
	wants := make([]quota.Transaction, len(batch))
	for i, got := range batch {
		wants[i].SetQuestion(got)
	}
	h.undoes = len(batch[0].Cancels) > 0
	h.server.SetTime(time.UnixMicro(h.now))
	dump, texts := "", h.texts()
	dumps := !h.long || h.r.IntN(20) == 0 // a dump of a long log takes longer than the scripts
	if dumps {
		dump = h.server.Dump()
	}
	err := h.take(t.Context(), batch)
	wrote := false
	for i, got := range batch {
		if h.real {
			h.now = got.At.UnixMicro()
		}
		h.note("at %d within %v, mode %d, at most %d, %d of a batch of %d:", h.now, got.Within, got.Mode, got.Most, i+1, len(batch))
		h.noteCharges(got.Charges)
		if err != nil {
			return 0, err
		}
		writes, err := h.follow(got, &wants[i])
		if err != nil {
			return 0, err
		}
		wrote = wrote || writes
	}
	if dumps && !wrote {
		if after := h.server.Dump(); after != dump {
			return 0, fmt.Errorf("nothing was spent, but Redis has changed: got\n%swant\n%s", after, dump)
		}
	}
	got := batch[0]
	if wrote {
		after := h.texts()
		h.forget(got, texts, after)
		if err := h.stored(after); err != nil {
			return 0, err
		}
		if err := h.lifetimes(got); err != nil {
			return 0, err
		}
	}
	h.move(got)
	return len(batch) * len(got.Charges), nil
}

// take makes the transactions of a batch with the store, in one call.
func (h *history) take(ctx context.Context, batch []*quota.Transaction) error {
	if len(batch) == 1 {
		return h.store.Take(ctx, batch[0])
	}
	return errors.Join(h.store.(optional.Batcher).TakeEach(ctx, batch)...)
}

func (h *history) noteCharges(charges []quota.Charge) {
	for _, c := range charges {
		h.note("  %s %v %+v cost %d of %d", c.Key, c.Limit, h.states[name(&c)], c.Cost, c.Spent)
	}
}

// follow compares the decisions that the store has made of a transaction with the decisions of
// Decide. It reports whether the store had to write.
func (h *history) follow(got, want *quota.Transaction) (writes bool, err error) {
	states := make([]quota.State, len(got.Charges))
	for i := range states {
		states[i] = h.states[name(&got.Charges[i])]
	}
	before := slices.Clone(states)
	spent := want.Decide(h.now, states)
	if err := compare(got, want); err != nil {
		return false, err
	}
	writes = got.Mode == quota.ModeForget
	for i := range got.Charges {
		writes = writes || spent && got.Charges[i].Cost != 0
	}
	if !writes {
		return false, nil
	}
	for i := range got.Charges {
		h.states[name(&got.Charges[i])] = states[i]
		restored := false
		if b, a := &before[i], &states[i]; !sameNumbers(b, a) {
			restored = h.setTill(got, i, b, a, h.now+want.Decisions[i].ResetAfter.Microseconds())
		}
		if h.changing && !restored && h.drops(&got.Charges[i], &want.Decisions[i], &before[i], &states[i]) {
			delete(h.states, name(&got.Charges[i]))
		}
	}
	for i := range got.Charges {
		c := &got.Charges[i]
		if h.changing && c.Limit.Algorithm.Name() != "sliding-log" && !same(c, &before[i], &states[i]) {
			h.forgetEnded(c.Key)
		}
	}
	h.keepBack(got)
	return true, nil
}

// same reports whether Redis keeps the state of a charge as it is: the charge reads the state, is
// a cancellation that finds no units, or forces units beyond the most that the state can have.
func same(c *quota.Charge, before, after *quota.State) bool {
	return c.Cost == 0 || (c.Cost > 0 || c.Spent > 0) && sameNumbers(before, after)
}

func sameNumbers(s, other *quota.State) bool {
	return s.At == other.At && s.A == other.A && s.B == other.B && s.C == other.C
}

// forgetEnded deletes all states of a key if all have ended: Redis deletes the value of these
// states when it writes.
func (h *history) forgetEnded(key string) {
	var ended []string
	for _, l := range h.limits {
		if c := (quota.Charge{Key: key, Limit: l}); l.Algorithm.Name() == "sliding-log" {
			continue // logs have values of their own
		} else if ended = append(ended, name(&c)); h.tills[name(&c)] > h.now {
			return
		}
	}
	for _, name := range ended {
		delete(h.states, name)
	}
}

// setTill remembers when the state of charge i may be forgotten after a transaction. A
// transaction with Cancels may restore the state from before a reservation. Redis then also
// restores when that state may be forgotten under the limit of the reservation. setTill reports
// whether the transaction has restored a state that may not be forgotten yet.
func (h *history) setTill(t *quota.Transaction, i int, before, after *quota.State, till int64) (restored bool) {
	c := &t.Charges[i]
	change := func(from, to *quota.State) string {
		return fmt.Sprint(name(c), " ", from.At, from.A, from.B, from.C, to.At, to.A, to.B, to.C)
	}
	if len(t.Undo) > 0 { // a reservation
		_, d := c.Limit.Algorithm.Take(*before, &c.Limit, h.now, 0)
		h.restored[change(after, before)] = h.now + d.ResetAfter.Microseconds()
	}
	if _, ok := c.Limit.Algorithm.(optional.Metered); ok && c.Cost < 0 && h.undoes {
		if earlier, ok := h.restored[change(before, after)]; ok {
			till, restored = earlier, earlier > h.now
		}
	}
	h.tills[name(c)] = till
	return restored
}

// compare compares the results of a transaction from the store and from Decide.
func compare(got, want *quota.Transaction) error {
	for i := range got.Charges {
		if got.Decisions[i] != want.Decisions[i] {
			return fmt.Errorf("charge %d:\ngot  %+v\nwant %+v", i, got.Decisions[i], want.Decisions[i])
		}
	}
	if got.Wait != want.Wait || !got.At.Equal(want.At) {
		return fmt.Errorf("got Wait %v at %v, want %v at %v", got.Wait, got.At, want.Wait, want.At)
	}
	if got.Granted != want.Granted {
		return fmt.Errorf("got Granted %d, want %d of %d", got.Granted, want.Granted, got.Most)
	}
	return nil
}

// keepBack keeps a transaction that gives back the units of a transaction, for giveBack.
func (h *history) keepBack(got *quota.Transaction) {
	if got.Mode == quota.ModeForget {
		return
	}
	var back quota.Transaction
	for i, c := range got.Charges {
		if c.Cost <= 0 {
			continue
		}
		c.Cost, c.Spent = -c.Cost, got.Decisions[i].At
		if len(got.Undo) > 0 {
			back.Cancels = append(back.Cancels, got.Undo[i])
		}
		back.Charges = append(back.Charges, c)
	}
	if len(back.Charges) > 0 {
		h.taken = append(h.taken, back)
	}
}

// drops reports whether Redis keeps no state after a charge, because by the numbers of the
// charge the state decides as the zero State does. A cancellation that finds no units writes
// nothing, so it drops nothing. A debt of more than 35 years ends after 35 years.
func (h *history) drops(c *quota.Charge, d *quota.Decision, before, after *quota.State) bool {
	return d.ResetAfter == 0 && len(after.Log) == 0 && !same(c, before, after)
}

// texts returns the stored value of each key, but not the value with its logs.
func (h *history) texts() map[string]string {
	texts := map[string]string{}
	for _, key := range h.keys {
		texts[key], _ = h.server.Get("weir:r:{." + storedkey.Of(key) + "}")
	}
	return texts
}

// stored compares the stored states that still matter with the states of the history. The
// argument values has the values as texts returns them. A state may differ for a long time
// before a decision shows it: a debt that is larger than its limit is such a state.
func (h *history) stored(values map[string]string) error {
	for key, text := range values {
		ids, numbers, _ := strings.Cut(text, ";")
		got := map[string]string{}
		for i, id := range strings.Split(ids, ",") {
			if end := 32 * (i + 1); end <= len(numbers) {
				got[id] += numbers[end-32 : end] // a C stands in a second state of the same id
			}
		}
		for _, l := range h.limits {
			c := quota.Charge{Key: key, Limit: l}
			s, till := h.states[name(&c)], h.tills[name(&c)]
			ended := till <= h.now || h.back && till <= h.newest+1e6 // Redis may drop what ended, within a second, before the clock stepped back
			if l.Algorithm.Name() == "sliding-log" || ended || s.At == 0 || h.real && text == "" {
				continue
			}
			id := period.Name(l.Period) + "/" + l.Algorithm.Name()
			if l.Name != "" {
				id = l.Name + "/" + id
			}
			numbers := packed(s.At, s.A, s.B, till)
			if s.C != 0 {
				numbers += packed(s.C, 0, 0, till)
			}
			if want := readable(";" + numbers); readable(";"+got[id]) != want {
				return fmt.Errorf("%s of %s: got state%s, want%s", id, key, readable(";" + got[id])[1:], want[1:])
			}
		}
	}
	return nil
}

// packed returns the numbers of a state as a value has them.
func packed(numbers ...int64) string {
	var b []byte
	for _, n := range numbers {
		b = binary.LittleEndian.AppendUint64(b, math.Float64bits(float64(n)))
	}
	return string(b)
}

// forget deletes the states that Redis may have left out when it wrote or deleted a value. A
// written value lacks states that ended more than a second ago, unless the transaction charged
// them. A deleted value had only states that have ended. The arguments before and after have the
// values as texts returns them.
func (h *history) forget(t *quota.Transaction, before, values map[string]string) {
	for key, after := range values {
		if after == before[key] {
			continue
		}
		for _, l := range h.limits {
			c := quota.Charge{Key: key, Limit: l}
			charged := slices.ContainsFunc(t.Charges, func(other quota.Charge) bool { return name(&other) == name(&c) })
			if till := h.tills[name(&c)]; l.Algorithm.Name() != "sliding-log" && (!charged && till <= h.now-1e6 || after == "" && till <= h.now) {
				delete(h.states, name(&c))
			}
		}
	}
}

// lifetimes checks the TTLs of the values that a transaction has written.
func (h *history) lifetimes(t *quota.Transaction) error {
	if h.real {
		return nil // TTLs have shrunk when the test reads them; the conformance tests check them
	}
	needs := map[string]int64{} // until when a value matters, in µs since 1970
	slack := map[string]int64{}
	wrote := map[string]bool{}
	for i := range t.Charges {
		c := &t.Charges[i]
		wrote[value(c)] = wrote[value(c)] || c.Cost != 0
	}
	for _, key := range h.keys {
		for _, l := range h.limits {
			c := quota.Charge{Key: key, Limit: l}
			_, d := l.Algorithm.Take(h.states[name(&c)], &l, h.now, 0)
			v, need := value(&c), h.now+d.ResetAfter.Microseconds()
			if h.changing { // the limit that has written the state may have had other numbers
				need = 0
				if l.Algorithm.Name() != "sliding-log" && h.states[name(&c)].At != 0 {
					need = h.tills[name(&c)]
				}
			}
			needs[v] = max(needs[v], need)
			slack[v] = max(slack[v], l.Period.Microseconds())
		}
	}
	for v := range wrote {
		if !wrote[v] {
			continue
		}
		if err := h.lifetime(v, needs[v], slack[v]); err != nil {
			return err
		}
	}
	return nil
}

// lifetime checks the TTL of a value. The argument need is the instant until which the value
// matters, in µs since 1970. The argument slack is the longest period of its limits, in µs.
func (h *history) lifetime(v string, need, slack int64) error {
	if !h.server.Exists(v) {
		if need > h.now && !h.changing {
			return fmt.Errorf("%s is gone; it matters for %d µs", v, need-h.now)
		}
		delete(h.ends, v)
		return nil
	}
	ttl := h.server.TTL(v)
	end := h.now + ttl.Microseconds()
	if ttl <= 0 || end < need && !h.back {
		return fmt.Errorf("%s has a TTL of %v; it matters for %d µs", v, ttl, need-h.now)
	}
	// A value may keep its earlier TTL, because a limit that was not charged this time needs it.
	// A TTL ends at a whole second, and is up to 2 ms longer because it has whole milliseconds.
	if most := max(need+slack+1_002_000, h.now+h.ttls[v]); end > most && !h.changing {
		return fmt.Errorf("%s has a TTL of %v; it matters for %d µs, under a longest period of %d µs", v, ttl, need-h.now, slack)
	}
	h.ends[v], h.ttls[v] = end, ttl.Microseconds()
	return nil
}

// move moves the clock: a little, a lot, back, or exactly to an instant that a decision
// names. It deletes values that have expired, because miniredis does not delete them when
// SetTime moves its clock.
func (h *history) move(t *quota.Transaction) {
	r := h.r
	i := r.IntN(len(t.Charges))
	l, d := &t.Charges[i].Limit, &t.Decisions[i]
	period := l.Period.Microseconds()
	unit := period/l.Quota + 1
	steps := []int64{0, 0, 1, r.Int64N(unit + 1), unit, r.Int64N(period + 1), period, 3 * period,
		d.NextAfter.Microseconds(), d.ResetAfter.Microseconds(), max(0, d.ResetAfter.Microseconds()-1)}
	if d.RetryAfter != quota.Never {
		retry := d.RetryAfter.Microseconds()
		steps = append(steps, retry, retry, max(0, retry-1))
	}
	if h.long && r.IntN(100) > 0 {
		steps = []int64{0, 1, r.Int64N(period / 400), r.Int64N(period/800 + 1)}
	}
	back := period // a store keeps a log by the longest period of the limits that are charged
	for i := range h.limits {
		if h.unlike || h.removes {
			back = min(back, h.limits[i].Period.Microseconds())
		}
	}
	if h.back && (!h.long || r.IntN(100) == 0) {
		steps = append(steps, -r.Int64N(back+1), -1)
	}
	h.now = max(h.now+steps[r.IntN(len(steps))], h.newest-back)
	h.newest = max(h.newest, h.now)
	if h.real {
		return
	}
	if h.now > 1<<52 {
		h.again()
	}
	if h.changing || h.back {
		return // a state that has ended now may matter again under other limits or at an earlier time
	}
	for v, end := range h.ends {
		if h.now > end+1000 {
			h.server.Del(v)
			delete(h.ends, v)
		}
	}
}

// again forgets everything and sets the clock back by decades. A state from before, with a debt of
// up to 35 years, would end further ahead than any other state.
func (h *history) again() {
	h.now, h.newest, h.taken = 1_700_000_000_000_000, 0, nil
	for _, key := range h.keys {
		for _, l := range h.limits {
			v := value(&quota.Charge{Key: key, Limit: l})
			h.server.Del(v)
			delete(h.ends, v)
			delete(h.ttls, v)
		}
	}
	clear(h.states)
	clear(h.tills)
}

// TestLongLogs: a store decides as Decide does, even if logs are so long that they take many
// blocks. The histories spend, give back, reserve and cancel units. In some histories limits
// share a log.
func TestLongLogs(t *testing.T) {
	t.Parallel()
	onBothLuas(t, longLogs)
}

func longLogs(t *testing.T, rdb *redis.Client, server world) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 6))
	for n := range rounds.N(1, 6) {
		n += r.IntN(12)
		h := newHistory(r, server, newStore(t, rdb))
		h.limits, h.keys, h.long, h.tiers = nil, h.keys[:1], true, false
		for i := range []int{1, 2, 3, 11, 12, 14}[r.IntN(6)] { // eleven logs and more are decided in a loop
			period := []time.Duration{time.Second, 3 * time.Second, time.Minute}[r.IntN(3)]
			h.limits = append(h.limits, algorithms.SlidingLog(2000+r.Int64N(10_000), period).Named(fmt.Sprint("l", i)))
		}
		h.unlike, h.changing = n%4 == 3, n%3 == 2
		h.back = !h.changing && n%3 == 1
		blocks := int64(0)
		for range 800 {
			if h.changing && r.IntN(100) == 0 {
				h.limits[r.IntN(len(h.limits))].Quota = 2000 + r.Int64N(10_000)
			}
			if _, err := h.step(t); err != nil {
				t.Fatalf("seed %d, history of\n%s%v", seed, h.text(20), err)
			}
			blocks = max(blocks, rdb.HLen(t.Context(), value(&quota.Charge{Key: h.keys[0], Limit: h.limits[0]})).Val())
		}
		t.Logf("seed %d: history %d: %d limits, %d blocks", seed, n, len(h.limits), blocks)
		rdb.FlushDB(t.Context())
	}
}

// TestReturnedLog: a log that was removed, and is charged again, has its units.
func TestReturnedLog(t *testing.T) {
	onBothLuas(t, func(t *testing.T, rdb *redis.Client, server world) {
		server.SetTime(time.UnixMicro(1_700_000_000_000_000))
		var charges []quota.Charge
		for i := range 3 {
			charges = append(charges, quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(100, time.Hour).Named(fmt.Sprint(i)), Cost: 1})
		}
		store, got := newStore(t, rdb), []int64{}
		for _, charges := range [][]quota.Charge{charges, charges[1:], charges[1:], charges[1:], charges} {
			tx := quota.Transaction{Charges: charges}
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
			got = append(got, tx.Decisions[0].Remaining)
		}
		if want := []int64{99, 98, 97, 96, 98}; !slices.Equal(got, want) {
			t.Errorf("got %v units left, want %v", got, want)
		}
	})
}

// TestFormat compares stored values with values that are written out here. A redis-server must
// write the same format as miniredis: Redis has struct.pack built in, and miniredis gets it
// from package minilua.
func TestFormat(t *testing.T) {
	noon := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	server := mini(t)
	server.SetTime(noon)
	for _, test := range []struct {
		limits []quota.Limit
		want   []string // the value after each unit, as readable writes it
	}{
		{[]quota.Limit{algorithms.GCRA(2, time.Minute)}, []string{
			"1m/gcra; 1782907200000000 1 0 1782907230000000",
			"1m/gcra; 1782907200000000 2 0 1782907260000000"}},
		{[]quota.Limit{algorithms.FixedWindow(2, time.Hour), algorithms.AnchoredWindow(2, time.Hour).Named("a b")}, []string{
			"1h/fixed-window,a%20b/1h/anchored-window; 1782907200000000 1 0 1782910800000000 1782907200000000 1 1782907200000000 1782910800000000",
			"1h/fixed-window,a%20b/1h/anchored-window; 1782907200000000 2 0 1782910800000000 1782907200000000 2 1782907200000000 1782910800000000"}},
		{[]quota.Limit{algorithms.SlidingWindow(2, time.Hour)}, []string{
			"1h/sliding-window; 1782907200000000 1 0 1782914400000000",
			"1h/sliding-window; 1782907200000000 2 0 1782914400000000"}},
	} {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		defer rdb.Close()
		store := newStore(t, rdb)
		var tx quota.Transaction
		for _, l := range test.limits {
			tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: l.Algorithm.Name(), Limit: l, Cost: 1})
			tx.Charges[len(tx.Charges)-1].Key = tx.Charges[0].Key
		}
		for _, want := range append(slices.Clone(test.want), test.want[1]) { // the third unit is refused
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
			if got := readable(rdb.Get(t.Context(), value(&tx.Charges[0])).Val()); got != want {
				t.Errorf("%v: got %s, want %s", test.limits, got, want)
			}
		}
	}
	rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
	defer rdb.Close()
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(5, time.Hour), Cost: 2}}}
	if err := newStore(t, rdb).Take(t.Context(), &tx); err != nil {
		t.Fatal(err)
	}
	now, hour := tx.At.UnixMicro(), tx.At.Truncate(time.Hour).Add(time.Hour).UnixMicro()
	want := fmt.Sprintf("1h/fixed-window; %d 2 0 %d", now, hour)
	if got := readable(rdb.Get(t.Context(), value(&tx.Charges[0])).Val()); got != want {
		t.Errorf("on a server: got %s, want %s", got, want)
	}
}

// readable writes a value as text: the ids of its states, and then At, A, B and Until of each
// state.
func readable(value string) string {
	ids, numbers, _ := strings.Cut(value, ";")
	text := ids + ";"
	for ; len(numbers) >= 8; numbers = numbers[8:] {
		text += fmt.Sprintf(" %.0f", math.Float64frombits(binary.LittleEndian.Uint64([]byte(numbers))))
	}
	return text + numbers
}
