package redisstore_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestLoopWrites: loop.lua decides and writes the same as the direct part of a script, for random
// transactions. One store has a script of its own for each shape. The other one has as many scripts
// as it may make, so it decides in the loop. After each transaction, both must have the same values,
// with the same TTLs. TestDifferential would not notice a wrong value that no later decision shows.
func TestLoopWrites(t *testing.T) {
	t.Parallel()
	server := mini(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	withPrefix := func(prefix string) *redisstore.Store {
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second, Prefix: prefix})
		if err != nil {
			t.Fatal(err)
		}
		return store
	}
	loops := withPrefix("loop:")
	for i := 1; i <= 64; i++ { // makes 64 shapes that are not among those below
		var tx quota.Transaction
		for j := range 7 {
			tx.Charges = append(tx.Charges, quota.Charge{Key: "k", Limit: algorithms.GCRA(1e6, time.Hour).Named(fmt.Sprint("x", j)), Cost: int64(i >> j & 1)})
		}
		if err := loops.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
	}
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 7))
	now := time.UnixMicro(1_700_000_000_000_000)
	for range rounds.N(8, 80) {
		server.FlushDB()
		direct, log := withPrefix("own:"), ""
		alike, back := r.IntN(2) == 0, []quota.Charge{}
		limits := randomLimits(r, alike)
		for range 120 { // a block of a log has 64 entries
			server.SetTime(now)
			got := randomTransaction(r, limits, alike, back)
			want := quota.Transaction{}
			want.SetQuestion(&got)
			for store, tx := range map[*redisstore.Store]*quota.Transaction{loops: &got, direct: &want} {
				if err := store.Take(t.Context(), tx); err != nil {
					t.Fatalf("seed %d:\n%s%v", seed, log, err)
				}
			}
			for _, c := range got.Charges {
				log += fmt.Sprintf("%d: %s %v cost %d of %d, headroom %d: %v\n", now.UnixMicro(), c.Key, c.Limit, c.Cost, c.Spent, c.Headroom, got.Allowed())
				if c.Spent = now.UnixMicro(); c.Cost > 0 && got.Allowed() {
					back = append(back, c)
				}
			}
			err := compare(&got, &want)
			if got, want := valuesOf(server, now, "loop:"), valuesOf(server, now, "own:"); err == nil && got != want {
				err = fmt.Errorf("the loop wrote\n%s, want\n%s", got, want)
			}
			if err != nil {
				t.Fatalf("seed %d:\n%s%v", seed, log, err)
			}
			period := limits[r.IntN(len(limits))].Period
			step := []time.Duration{0, time.Microsecond, period / 100, period / 100, period / 100, period / 10, period, -period / 100}[r.IntN(8)]
			now = now.Add(step)
			server.FastForward(max(0, step))
			for _, key := range server.Keys() { // a key of Redis expires at an instant, whichever way the clock steps
				server.SetTTL(key, server.TTL(key)-min(0, step))
			}
		}
	}
}

// randomLimits returns a few limits: logs, others, or both. If alike is set, they have large quotas.
func randomLimits(r *rand.Rand, alike bool) (limits []quota.Limit) {
	kind := r.IntN(3)
	for i := range 1 + r.IntN(4) {
		n, period := 1+r.Int64N(1<<(1+r.IntN(10))), []time.Duration{time.Second, 8 * time.Second, time.Minute}[r.IntN(3)]
		if alike {
			n += 200
		}
		all := []quota.Limit{
			algorithms.GCRA(n, period), algorithms.TokenBucket(n, n, period), algorithms.LeakyBucket(n, n, period), algorithms.FixedWindow(n, period),
			algorithms.AnchoredWindow(n, period), algorithms.SlidingWindow(n, period), algorithms.Calendar(n, algorithms.Day, nil),
		}
		l := all[r.IntN(len(all))]
		if kind == 0 || kind == 1 && r.IntN(2) == 0 {
			l = algorithms.SlidingLog(n, period)
		}
		limits = append(limits, l.Named(fmt.Sprint("l", i)))
	}
	return limits
}

// randomTransaction charges the limits, mostly with a unit. If alike is set, few charges have other
// costs. The charges in the argument back were spent.
func randomTransaction(r *rand.Rand, limits []quota.Limit, alike bool, back []quota.Charge) (t quota.Transaction) {
	cost := []int64{1, 1, 1, 1, 1, 2, 3, -1, -3, limits[0].Quota}[r.IntN(10)]
	if alike && r.IntN(60) > 0 {
		cost = 1 + r.Int64N(2)
	}
	headroom := max(0, r.Int64N(6)-3)
	for _, key := range []string{"a", "b"}[r.IntN(2):] {
		for _, l := range limits {
			c := quota.Charge{Rule: "r", Key: key, Limit: l, Cost: cost, Headroom: headroom}
			switch {
			case alike:
			case r.IntN(20) == 0:
				c.Cost = 0
			case r.IntN(20) == 0:
				c.Cost++
			}
			if cost < 0 && len(back) > 0 && r.IntN(2) == 0 {
				c.Spent = back[len(back)-1-r.IntN(min(len(back), 8))].Spent
			}
			t.Charges = append(t.Charges, c)
		}
	}
	return t
}

// valuesOf returns the values whose names begin with a prefix, and when they expire. If general.lua
// writes a value whose TTL need not change, the value expires up to 1 ms later or earlier.
func valuesOf(server *miniredis.Miniredis, now time.Time, prefix string) string {
	var b strings.Builder
	for _, key := range server.Keys() {
		name, ok := strings.CutPrefix(key, prefix)
		if !ok {
			continue
		}
		fmt.Fprintf(&b, "%s until %d:", name, now.Add(server.TTL(key)).Round(10*time.Millisecond).UnixMilli())
		if text, err := server.Get(key); err == nil {
			fmt.Fprintf(&b, " %q, which is %s\n", text, readable(text))
			continue
		}
		fields, _ := server.HKeys(key)
		for _, f := range fields {
			fmt.Fprintf(&b, " %s=%q", f, server.HGet(key, f))
		}
		b.WriteByte('\n')
	}
	return b.String()
}
