package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
)

// TestHybridServes: of 20,000 transactions of a refused key, none reaches the next store, and
// each gets the decision that the next store would have made.
func TestHybridServes(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(5, time.Second), algorithms.TokenBucket(5, 5, time.Second), algorithms.LeakyBucket(5, 5, time.Second),
		algorithms.FixedWindow(5, time.Second), algorithms.AnchoredWindow(5, time.Second),
		algorithms.SlidingWindow(5, time.Second), algorithms.SlidingLog(5, time.Second),
	} {
		for _, headroom := range []int64{0, 2} {
			synctest.Test(t, func(t *testing.T) {
				serveBlocked(t, limit, headroom)
			})
		}
	}
}

// serveBlocked uses a limit up, as far as the headroom, and then sends 20,000 charges.
func serveBlocked(t *testing.T, limit quota.Limit, headroom int64) {
	plain := memstore.New(memstore.Options{})
	behind := &distant{Store: plain}
	store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 100})
	charge := quota.Charge{Rule: "api", Key: "k", Limit: limit, Cost: 1, Headroom: headroom}
	for take(t, store, 0, charge).Allowed() {
	}
	called := behind.Calls.Load()
	for i := range 20_000 {
		time.Sleep(5 * time.Microsecond)
		got := take(t, store, 0, charge)
		want := take(t, plain, 0, charge)
		if got.Decisions[0] != want.Decisions[0] || !got.At.Equal(want.At) {
			t.Fatalf("%v, ask %d: got %+v at %v, the store behind says %+v at %v", limit, i, got.Decisions[0], got.At, want.Decisions[0], want.At)
		}
	}
	if n := behind.Calls.Load() - called; n != 0 {
		t.Errorf("%v: 20,000 calls of a blocked key reached the store %d times, want 0", limit, n)
	}
	if got, want := store.Stats(), (quota.CacheStats{Kind: "hybrid", Hits: 20_000, Misses: called}); got != want {
		t.Errorf("%v: got %+v, want %+v", limit, got, want)
	}
	time.Sleep(take(t, store, 0, charge).Decisions[0].RetryAfter)
	if !take(t, store, 0, charge).Allowed() {
		t.Errorf("%v: refused after RetryAfter", limit)
	}
}

// TestHybridIsExact: what Hybrid refuses from memory, the next store would refuse too.
// Random transactions go through Hybrid, and others go to the next store directly, as if
// they came from another process. A call of the next store by Hybrid takes up to 2 ms.
func TestHybridIsExact(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	var served int64
	for range 20 {
		synctest.Test(t, func(t *testing.T) {
			plain := memstore.New(memstore.Options{})
			behind := &distant{Store: plain}
			behind.Trip.Store(r.Int64N(3) * 1e6)
			store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 1000})
			period := time.Duration(50+r.IntN(2)*50) * time.Millisecond
			for i := range 2000 {
				charges := randomCharges(r, period)
				within := []time.Duration{0, 0, 10 * time.Millisecond}[r.IntN(3)]
				if r.IntN(4) == 0 { // another process
					take(t, plain, within, noGifts(charges)...)
				}
				called := behind.Calls.Load()
				got := take(t, store, within, charges...)
				if behind.Calls.Load() == called { // decided from memory: the store must refuse too
					if bad := contradicts(t, plain, got); bad != "" {
						t.Fatalf("seed %d, ask %d: %s", seed, i, bad)
					}
				}
				time.Sleep(time.Duration(r.IntN(3)) * time.Millisecond)
			}
			served += store.Stats().Hits
		})
	}
	if served < 1000 {
		t.Errorf("seed %d: served %d of 40,000, too few to show anything", seed, served)
	}
}

// randomCharges returns charges of some of four limits.
func randomCharges(r *rand.Rand, period time.Duration) (charges []quota.Charge) {
	for _, l := range []quota.Limit{
		algorithms.GCRA(5, period).Named("gcra"), algorithms.SlidingLog(4, period).Named("log"),
		algorithms.FixedWindow(6, period).Named("window"), algorithms.LeakyBucket(5, 10, period).Named("leaky"),
	} {
		if r.IntN(2) == 0 {
			charges = append(charges, quota.Charge{Rule: "api", Key: fmt.Sprint(r.IntN(2)), Limit: l, Cost: []int64{1, 1, 1, 2, 3, 0, -1, 9}[r.IntN(8)]})
		}
	}
	return charges
}

// contradicts returns how a refusal by Hybrid differs from the decision of the next store
// on the same charges, or "" if it does not.
func contradicts(t *testing.T, plain quota.Store, got *quota.Transaction) string {
	t.Helper()
	peek := take(t, plain, got.Within, got.Charges...)
	if peek.Allowed() {
		return fmt.Sprintf("refused %+v within %v, which the store allows: %+v", got.Charges, got.Within, got.Decisions)
	}
	for j, d := range got.Decisions {
		if p := peek.Decisions[j]; d.Remaining >= 0 && d.Remaining != p.Remaining || !d.Allowed && p.Allowed && got.Within == 0 {
			return fmt.Sprintf("charge %d: got %+v, the store says %+v", j, d, p)
		}
	}
	return ""
}

// noGifts returns the charges with each negative cost set to 0. Hybrid may notice only after
// 10 s that another process has given units back.
func noGifts(charges []quota.Charge) []quota.Charge {
	spent := append([]quota.Charge(nil), charges...)
	for i := range spent {
		spent[i].Cost = max(0, spent[i].Cost)
	}
	return spent
}

// TestHybridForgets: Hybrid refuses from memory only the same cost under the same limit,
// and calls the next store again after units were refunded. A refusal that is published, after
// 20 calls, is no exception.
func TestHybridForgets(t *testing.T) {
	limit := algorithms.FixedWindow(2, 24*time.Hour)
	charge := quota.Charge{Rule: "api", Key: "k", Limit: limit, Cost: 1}
	with := func(f func(*quota.Charge)) quota.Charge { c := charge; f(&c); return c }
	for _, c := range []struct {
		name    string
		do      func(t *testing.T, store, plain quota.Store)
		ask     quota.Charge
		allowed bool
	}{
		{"nothing", func(t *testing.T, store, plain quota.Store) {}, charge, false},
		{"a gift", func(t *testing.T, store, plain quota.Store) {
			take(t, store, 0, with(func(c *quota.Charge) { c.Cost = -1 }))
		}, charge, true},
		{"a gift of another process, at once", func(t *testing.T, store, plain quota.Store) {
			take(t, plain, 0, with(func(c *quota.Charge) { c.Cost = -1 }))
		}, charge, false},
		{"a gift of another process, after 10 s", func(t *testing.T, store, plain quota.Store) {
			take(t, plain, 0, with(func(c *quota.Charge) { c.Cost = -1 }))
			time.Sleep(10 * time.Second)
		}, charge, true},
		{"a raised quota", func(t *testing.T, store, plain quota.Store) {}, with(func(c *quota.Charge) { c.Limit.Quota = 3 }), true},
		{"another key", func(t *testing.T, store, plain quota.Store) {}, with(func(c *quota.Charge) { c.Key = "other" }), true},
		{"another limit", func(t *testing.T, store, plain quota.Store) {}, with(func(c *quota.Charge) { c.Limit.Name = "other" }), true},
	} {
		for _, asks := range []int{4, 20} {
			synctest.Test(t, func(t *testing.T) {
				plain := memstore.New(memstore.Options{})
				store := quota.Hybrid(plain, quota.HybridOptions{MaxKeys: 100}) // one shard
				for range asks {
					take(t, store, 0, charge)
					time.Sleep(100 * time.Millisecond)
				}
				if !quota.Remembers(store, charge) {
					t.Errorf("%s, after %d calls: not refused from memory", c.name, asks)
				}
				c.do(t, store, plain)
				if got := take(t, store, 0, c.ask).Allowed(); got != c.allowed {
					t.Errorf("%s, after %d asks: allowed %v, want %v", c.name, asks, got, c.allowed)
				}
			})
		}
	}
}

// TestHybridPublishes: a block that is found eight times is published, until it changes or is
// forgotten. If the blocks of two keys are found in turn, neither is published.
func TestHybridPublishes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{MaxKeys: 100})
		charge := quota.Charge{Rule: "api", Key: "k", Limit: algorithms.FixedWindow(1, 24*time.Hour), Cost: 1}
		gift, other := charge, charge
		gift.Cost, other.Key = -1, "other"
		for _, c := range []quota.Charge{charge, charge, other, other} { // refused by the next store
			take(t, store, 0, c)
		}
		refuseEight(t, store, false, charge, other)
		refuseEight(t, store, true, charge)
		gift.Key = "other"
		if take(t, store, 0, gift); !quota.Published(store) {
			t.Error("not published after a gift to another key, want published")
		}
		gift.Key = "k"
		take(t, store, 0, gift)
		take(t, store, 0, charge)
		take(t, store, 0, charge) // refused by the next store
		refuseEight(t, store, true, charge)
		time.Sleep(10 * time.Second)
		take(t, store, 0, charge) // refused by the next store
		refuseEight(t, store, true, charge)
	})
}

// TestHybridEvicts: a published block that must make room for others is no longer published.
func TestHybridEvicts(t *testing.T) {
	store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{MaxKeys: 1})
	charge := quota.Charge{Rule: "api", Key: "k", Limit: algorithms.GCRA(1, 5*time.Second), Cost: 1}
	for range 10 {
		take(t, store, 0, charge)
	}
	if !quota.Published(store) || !quota.Remembers(store, charge) {
		t.Error("not blocked after 10 calls, want a published block")
	}
	later := charge
	later.Limit.Period = time.Hour
	for i := range 100 { // these blocks expire later
		later.Key = fmt.Sprint(i)
		take(t, store, 0, later)
		take(t, store, 0, later)
	}
	if quota.Published(store) || quota.Remembers(store, charge) {
		t.Error("still blocked, want forgotten")
	}
}

// refuseEight sends each charge to the store eight times. The store must refuse each, and
// publish nothing before the end. published says whether it must then have published a block.
func refuseEight(t *testing.T, store *quota.HybridStore, published bool, charges ...quota.Charge) {
	t.Helper()
	for range 8 {
		if quota.Published(store) {
			t.Error("published before the eighth refusal")
		}
		for _, c := range charges {
			if take(t, store, 0, c).Allowed() {
				t.Errorf("key %s: allowed, want refused", c.Key)
			}
		}
	}
	if got := quota.Published(store); got != published {
		t.Errorf("after 8 refusals of %d keys: published %v, want %v", len(charges), got, published)
	}
}

// TestHybridDropDuringCall: a refusal that was on its way when a unit was refunded is
// not remembered.
func TestHybridDropDuringCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := &distant{Store: memstore.New(memstore.Options{})}
		behind.Trip.Store(1e9)
		store := quota.Hybrid(behind, quota.HybridOptions{})
		charge := quota.Charge{Rule: "api", Key: "k", Limit: algorithms.FixedWindow(1, 24*time.Hour), Cost: 1}
		take(t, store, 0, charge)
		go func() { // the store decides after half a second and answers after a whole second
			store.Take(context.Background(), &quota.Transaction{Charges: []quota.Charge{charge}})
		}()
		time.Sleep(600 * time.Millisecond)
		gift := charge
		gift.Cost = -1
		behind.Trip.Store(0)
		take(t, store, 0, gift)
		behind.Trip.Store(1e9)
		time.Sleep(time.Second)
		if !take(t, store, 0, charge).Allowed() {
			t.Error("refused from memory after the unit was refunded")
		}
	})
}

// TestHybridUnknown: if a transaction is refused from memory, Remaining is −1 for those of
// its limits that have room.
func TestHybridUnknown(t *testing.T) {
	store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{})
	charges := []quota.Charge{
		{Rule: "login", Key: "k", Limit: algorithms.SlidingLog(20, time.Hour).Named("1h"), Cost: 1},
		{Rule: "login", Key: "k", Limit: algorithms.SlidingLog(1, time.Minute).Named("1m"), Cost: 1},
	}
	take(t, store, 0, charges...)
	if got := take(t, store, 0, charges...).Decisions; got[0].Remaining != 19 || got[1].Remaining != 0 {
		t.Errorf("from the store: got %+v, want 19 and 0 left", got)
	}
	got := take(t, store, 0, charges...)
	if want := (quota.Decision{Allowed: true, Remaining: -1, At: got.At.UnixMicro()}); got.Decisions[0] != want || got.Decisions[1].Remaining != 0 || got.Allowed() {
		t.Errorf("from memory: got %+v, want %+v first and 0 left second", got.Decisions, want)
	}
}

// TestHybridBounded: Hybrid remembers about as many refusals as MaxKeys allows, even if
// many more keys are refused.
func TestHybridBounded(t *testing.T) {
	behind := &distant{Store: memstore.New(memstore.Options{})}
	store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 10})
	limit := algorithms.FixedWindow(1, 24*time.Hour)
	for i := range 1000 {
		for range 2 {
			take(t, store, 0, quota.Charge{Key: fmt.Sprint(i), Limit: limit, Cost: 1})
		}
	}
	before := behind.Calls.Load()
	for i := range 1000 {
		take(t, store, 0, quota.Charge{Key: fmt.Sprint(i), Limit: limit, Cost: 1})
	}
	if served := 1000 - (behind.Calls.Load() - before); served > 20 {
		t.Errorf("served %d of 1000 blocked keys from memory, want about the 10 it may hold", served)
	}
}

// TestHybridRoom: if MaxKeys keys are refused, or fewer, Hybrid remembers at least 39 of 40 of
// the refusals. It forgets 158 of 10,000 on average, with a standard deviation of 19, because
// each process places keys at random.
func TestHybridRoom(t *testing.T) {
	const keys = 10_000
	synctest.Test(t, func(t *testing.T) { // a refusal is remembered for ten seconds
		for _, maxKeys := range []int{keys, math.MaxInt} {
			behind := &distant{Store: memstore.New(memstore.Options{})}
			store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: maxKeys})
			limit := algorithms.FixedWindow(1, 24*time.Hour)
			for range 2 {
				for i := range keys {
					take(t, store, 0, quota.Charge{Key: fmt.Sprint(i), Limit: limit, Cost: 1})
				}
			}
			before := behind.Calls.Load()
			for i := range keys {
				if take(t, store, 0, quota.Charge{Key: fmt.Sprint(i), Limit: limit, Cost: 1}).Allowed() {
					t.Fatalf("MaxKeys %d, key %d: allowed, want refused", maxKeys, i)
				}
			}
			if called := behind.Calls.Load() - before; called > keys/40 {
				t.Errorf("MaxKeys %d: %d of %d blocked keys reached the store again, want 1 of 40 at most", maxKeys, called, keys)
			}
		}
	})
}

// TestHybridManyAlgorithms: refusals of many different algorithms are remembered.
func TestHybridManyAlgorithms(t *testing.T) {
	behind := &distant{Store: memstore.New(memstore.Options{})}
	store := quota.Hybrid(behind, quota.HybridOptions{})
	ask := func(limit quota.Limit) bool {
		return take(t, store, 0, quota.Charge{Rule: "r", Key: "k", Limit: limit, Cost: 1}).Allowed()
	}
	var limits []quota.Limit
	for i := range 300 {
		limits = append(limits, algorithms.Calendar(1, algorithms.Day, time.FixedZone("", i)).Named(fmt.Sprint(i)))
	}
	for range 2 {
		for _, l := range limits {
			ask(l)
		}
	}
	before := behind.Calls.Load()
	for _, l := range limits {
		if ask(l) {
			t.Errorf("%v: allowed, want refused", l)
		}
	}
	if called := behind.Calls.Load() - before; called > 0 {
		t.Errorf("the store behind was called %d times, want 0", called)
	}
}

// TestHybridComparesCosts: a refusal is used only for a charge that asks for the same. Under
// this limit, a cost of 7,073,692,985 once had the same number of 32 bits as a cost of 1,000, so
// who chose the cost could have other requests of the key refused.
func TestHybridComparesCosts(t *testing.T) {
	store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{})
	charge := func(cost int64) quota.Charge {
		return quota.Charge{Rule: "bytes", Key: "k", Limit: algorithms.FixedWindow(10_000_000_000, 1000*time.Hour), Cost: cost}
	}
	take(t, store, 0, charge(5_000_000_000))
	refused := 0
	for range 100 {
		if take(t, store, 0, charge(7_073_692_985)).Allowed() {
			t.Fatal("the limit allows more than its quota")
		}
		if !take(t, store, 0, charge(1000)).Allowed() {
			refused++
		}
	}
	if refused > 0 {
		t.Errorf("%d of 100 requests of 1,000 bytes were refused, want 0", refused)
	}
}

// TestHybridComparesHeadroom: the refusals of charges with headroom refuse no others.
func TestHybridComparesHeadroom(t *testing.T) {
	store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{})
	people := quota.Charge{Rule: "api", Key: "k", Limit: algorithms.FixedWindow(100, 1000*time.Hour), Cost: 1}
	batch := people
	for batch.Headroom = 30; take(t, store, 0, batch).Allowed(); {
	}
	for i := range 30 {
		if !take(t, store, 0, people).Allowed() {
			t.Fatalf("%d charges without headroom were allowed, want 30", i)
		}
		if take(t, store, 0, batch).Allowed() {
			t.Fatal("a charge was allowed although its headroom is not left")
		}
	}
}

// TestHybridErrors: Hybrid returns errors of the next store and refuses invalid charges.
func TestHybridErrors(t *testing.T) {
	broken := errors.New("broken")
	store := quota.Hybrid(failing{broken}, quota.HybridOptions{})
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: algorithms.GCRA(1, time.Second), Cost: 1}}}
	if err := store.Take(context.Background(), &tx); !errors.Is(err, broken) {
		t.Errorf("got %v, want the error of the store behind", err)
	}
	if err := store.Take(context.Background(), &quota.Transaction{Charges: []quota.Charge{{}}}); err == nil {
		t.Error("a charge without an algorithm: got no error")
	}
}

// TestHybridConcurrent: Hybrid passes the tests of a store, except the tests that expect to
// know Remaining after repeated refusals. 64 goroutines are admitted exactly as often as
// the limit allows.
func TestHybridConcurrent(t *testing.T) {
	for _, test := range storetest.Tests() {
		switch test.Name {
		case "OneKey", "CrossingKeys", "Names", "LongNames", "KeyMemory", "Invalid", "Canceled", "Duplicate", "NoCharges":
			t.Run(test.Name, func(t *testing.T) { test.Run(t, quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{})) })
		}
	}
	limit := algorithms.FixedWindow(1000, 24*time.Hour)
	store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{})
	var allowed atomic.Int64
	together(64, func(int) {
		for range 100 {
			if take(t, store, 0, quota.Charge{Limit: limit, Cost: 1}).Allowed() {
				allowed.Add(1)
			}
		}
	})
	if got := allowed.Load(); got != 1000 {
		t.Errorf("64 goroutines were allowed %d, want 1000", got)
	}
}

// BenchmarkHybridBlocked measures a refusal from memory.
func BenchmarkHybridBlocked(b *testing.B) {
	limit := algorithms.GCRA(1, 1000*time.Hour)
	plain := memstore.New(memstore.Options{})
	for _, c := range []struct {
		name  string
		store quota.Store
	}{{"baseline", plain}, {"hybrid", quota.Hybrid(plain, quota.HybridOptions{})}} {
		b.Run(c.name, func(b *testing.B) {
			t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: limit, Cost: 1}}}
			b.ReportAllocs()
			for b.Loop() {
				if err := c.store.Take(context.Background(), &t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func ExampleHybrid() {
	redis := memstore.New(memstore.Options{}) // in a real program, a redisstore
	store := quota.Hybrid(redis, quota.HybridOptions{MaxKeys: 100_000})
	charge := quota.Charge{Rule: "api", Key: "192.0.2.1", Limit: algorithms.GCRA(2, time.Hour), Cost: 1}
	for range 100 {
		if _, err := quota.Allow(context.Background(), store, charge); err != nil {
			fmt.Println(err)
		}
	}
	s := store.Stats()
	fmt.Printf("%d decisions from memory, %d calls\n", s.Hits, s.Misses)
	// Output:
	// 97 decisions from memory, 3 calls
}

// TestHybridKnowsTheCalendar: a refusal under a Calendar of one time zone is not used under
// a Calendar with the same numbers in another time zone, where a new day has begun.
func TestHybridKnowsTheCalendar(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // the clock begins at midnight UTC
		store := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{})
		ask := func(east int) bool {
			limit := algorithms.Calendar(1, algorithms.Day, time.FixedZone("", east))
			return take(t, store, 0, quota.Charge{Rule: "r", Key: "k", Limit: limit, Cost: 1}).Allowed()
		}
		time.Sleep(24*time.Hour - 5*time.Second)
		for _, test := range []struct {
			sleep time.Duration
			east  int // offset of the time zone, in seconds east of UTC
			want  bool
		}{{0, 0, true}, {0, 0, false}, {3 * time.Second, 0, false}, {0, 3, true}, {0, 3, false}, {0, 0, false}} {
			time.Sleep(test.sleep)
			if got := ask(test.east); got != test.want {
				t.Errorf("%d s east: got %v, want %v", test.east, got, test.want)
			}
		}
	})
}
