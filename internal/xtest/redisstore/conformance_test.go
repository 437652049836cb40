package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/minilua"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
	"github.com/seed83679106/weir/redisstore"
)

// newStore returns a store with a Timeout of 10 s, long enough for a busy machine.
func newStore(t testing.TB, rdb redis.UniversalClient) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func client(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func take(t *testing.T, store quota.Store, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	tx := &quota.Transaction{Charges: charges}
	if err := store.Take(t.Context(), tx); err != nil {
		t.Fatalf("Take: %v", err)
	}
	return tx
}

// mini returns a miniredis that can run the scripts of a store.
func mini(t testing.TB) *miniredis.Miniredis {
	server := miniredis.RunT(t)
	server.Server().SetPreHook(minilua.Add)
	return server
}

// TestConformanceMini: a store passes the tests of package storetest on miniredis, too.
// TestConformance of package redisstore runs them on a redis-server, in a tenth of the time.
func TestConformanceMini(t *testing.T) {
	if !rounds.Long() {
		t.Skip("miniredis takes ten times as long as a redis-server: WEIR_LONG is not set")
	}
	t.Parallel()
	rdb := client(t, redis.NewClient(&redis.Options{Addr: mini(t).Addr()}))
	storetest.Run(t, func(t *testing.T) quota.Store { return newStore(t, rdb) })
}

// TestLibraries: if a server lacks the Lua library that scripts need, as miniredis does, Probe
// and Take name it.
func TestLibraries(t *testing.T) {
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})))
	probed := store.Probe(t.Context(), algorithms.GCRA(5, time.Minute))
	taken := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(5, time.Minute), Cost: 1}}})
	for err, want := range map[error]string{
		probed: "redisstore: the server has no Lua library struct, as miniredis has none",
		taken:  "redisstore: the server has no Lua library struct, as miniredis has none",
	} {
		if !errors.Is(err, quota.ErrUnusable) || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// TestTwoCalendars: in a transaction with several calendars, each decides by its own windows. The
// test counts the units of each window itself.
func TestTwoCalendars(t *testing.T) {
	t.Parallel()
	onBothLuas(t, func(t *testing.T, rdb *redis.Client, server world) {
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		const most = 4
		offsets := []time.Duration{0, 5 * time.Hour, -11 * time.Hour}
		for _, keys := range [][]string{{"k", "k", "k"}, {"a", "b", "c"}, {"a", "a", "b"}} {
			r := rand.New(rand.NewPCG(1, 2))
			rule := fmt.Sprint(keys)
			spent := map[string]int64{}
			now := time.Now().Truncate(time.Microsecond)
			for step := range 200 {
				now = now.Add(time.Duration(r.Int64N(int64(6 * time.Hour)))).Truncate(time.Microsecond)
				server.SetTime(now)
				var tx quota.Transaction
				var windows []string
				fits := true
				for i, offset := range offsets {
					limit := algorithms.Calendar(most, algorithms.Day, time.FixedZone("", int(offset.Seconds()))).Named(fmt.Sprint(i))
					tx.Charges = append(tx.Charges, quota.Charge{Rule: rule, Key: keys[i], Limit: limit, Cost: 1})
					windows = append(windows, fmt.Sprint(i, now.Add(offset).UTC().Format(time.DateOnly)))
					fits = fits && spent[windows[i]] < most
				}
				for i := range 20 * (step % 2) { // so many charges are decided by general.lua
					limit := algorithms.GCRA(1_000_000, time.Second).Named(fmt.Sprint("more", i))
					tx.Charges = append(tx.Charges, quota.Charge{Rule: rule, Key: "k", Limit: limit, Cost: 1})
				}
				if err := store.Take(context.Background(), &tx); err != nil {
					t.Fatal(err)
				}
				for i, w := range windows {
					if fits {
						spent[w]++
					}
					if d := tx.Decisions[i]; tx.Allowed() != fits || d.Remaining != most-spent[w] {
						t.Fatalf("%s, step %d, calendar %d, %v: got %t and %d left, want %t and %d", rule, step, i, now.UTC(), tx.Allowed(), d.Remaining, fits, most-spent[w])
					}
				}
			}
		}
	})
}

// TestShapes: all servers compile the scripts of many charges, spend the last unit once, and get
// it back, whether the charges are of one key or of many, and whatever their algorithms. Near
// maxDirect a script has nearly as many locals and registers as Lua allows.
func TestShapes(t *testing.T) {
	for name, addr := range map[string]string{"miniredis": mini(t).Addr(), "server": redistest.Server(t).Addr(), "Lua 5.4": redistest.Lua54(t).Addr()} {
		rdb := client(t, redis.NewClient(&redis.Options{Addr: addr}))
		for of, limit := range map[string]func(i int) quota.Limit{
			"meters":  func(int) quota.Limit { return algorithms.GCRA(2, 10_000*time.Hour) },
			"windows": func(int) quota.Limit { return algorithms.SlidingWindow(2, 10_000*time.Hour) },
			"logs":    func(int) quota.Limit { return algorithms.SlidingLog(2, 10_000*time.Hour) },
			"meters and windows": func(i int) quota.Limit { // each algorithm needs locals for its functions
				return []quota.Limit{
					algorithms.GCRA(2, 10_000*time.Hour), algorithms.TokenBucket(2, 2, 10_000*time.Hour), algorithms.LeakyBucket(2, 2, 10_000*time.Hour), algorithms.FixedWindow(2, 10_000*time.Hour),
					algorithms.AnchoredWindow(2, 10_000*time.Hour), algorithms.SlidingWindow(2, 10_000*time.Hour), algorithms.Calendar(2, algorithms.Month, nil),
				}[i%7]
			},
			"all": func(i int) quota.Limit {
				return []quota.Limit{
					algorithms.GCRA(2, 10_000*time.Hour), algorithms.TokenBucket(2, 2, 10_000*time.Hour), algorithms.LeakyBucket(2, 2, 10_000*time.Hour), algorithms.FixedWindow(2, 10_000*time.Hour),
					algorithms.AnchoredWindow(2, 10_000*time.Hour), algorithms.SlidingWindow(2, 10_000*time.Hour), algorithms.Calendar(2, algorithms.Month, nil), algorithms.SlidingLog(2, 10_000*time.Hour),
				}[i%8]
			},
		} {
			for _, n := range []int{1, 2, 3, 8, 9, 10, 11, 15, 16, 17, 18, 19, 20, 21} {
				store := newStore(t, rdb) // a store makes 64 scripts at most
				for _, keys := range slices.Compact([]int{1, min(2, n), n}) {
					var charges []quota.Charge
					for i := range n {
						charges = append(charges, quota.Charge{Rule: of, Key: fmt.Sprint(n, keys, i%keys), Limit: limit(i).Named(fmt.Sprint(i)), Cost: 1})
					}
					spends := func(want bool) *quota.Transaction {
						tx := take(t, store, charges...)
						if tx.Allowed() != want {
							t.Errorf("%s, %d %s of %d keys: got allowed %v, want %v", name, n, of, keys, tx.Allowed(), want)
						}
						return tx
					}
					spends(true)
					last := spends(true)
					spends(false)
					back := slices.Clone(charges)
					for i := range back {
						back[i].Cost, back[i].Spent = -1, last.Decisions[i].At
					}
					take(t, store, back...)
					spends(true)
					spends(false)
				}
			}
		}
	}
}

// TestLogAfterSpike: if a log has grown long in a spike, a few later charges shrink it to the
// entries of its window. The log need not expire for this.
func TestLogAfterSpike(t *testing.T) {
	server := mini(t)
	store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: server.Addr()})))
	now := time.Date(2026, 7, 1, 12, 0, 0, 0, time.UTC)
	charge := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.SlidingLog(1<<40, time.Hour), Cost: 1}
	take := func(after time.Duration) {
		now = now.Add(after)
		server.SetTime(now)
		if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}}); err != nil {
			t.Fatal(err)
		}
	}
	fields := func() int {
		keys, err := server.HKeys("weir:r:log:{.k}")
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	for range 2000 {
		take(time.Microsecond)
	}
	if got := fields(); got < 25 {
		t.Fatalf("got %d fields after 2000 charges, want at least 25", got)
	}
	for range 6 {
		take(20 * time.Minute)
	}
	if got := fields(); got > 3 {
		t.Errorf("got %d fields for a log of 4 entries, want at most 3", got)
	}
}
