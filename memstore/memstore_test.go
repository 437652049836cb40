package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
	"github.com/seed83679106/weir/quota/storetest"
)

// TestStore runs the conformance suite of package storetest in bubbles of testing/synctest,
// where the sleeps of the suite take no time. Stores of one shard and of many shards must
// pass.
func TestStore(t *testing.T) {
	for _, maxKeys := range []int{0, 1000, 1 << 20} {
		for _, test := range storetest.Tests() {
			t.Run(fmt.Sprint(test.Name, "/", maxKeys), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					test.Run(t, memstore.New(memstore.Options{MaxKeys: maxKeys}))
				})
			})
		}
	}
}

// TestRealTime runs the conformance suite by the wall clock, which goes on while a test
// computes.
func TestRealTime(t *testing.T) {
	storetest.Run(t, func(*testing.T) quota.Store { return memstore.New(memstore.Options{}) })
}

func charge(key string, l quota.Limit, cost int64) quota.Charge {
	return quota.Charge{Rule: "test", Key: key, Limit: l, Cost: cost}
}

// take decides charges in one transaction and fails the test on an error.
func take(t testing.TB, s *memstore.Store, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	tx := &quota.Transaction{Charges: charges}
	if err := s.Take(context.Background(), tx); err != nil {
		t.Fatalf("Take(%.200v): got error %q, want none", charges, err)
	}
	return tx
}

const goroutines = 64

func together(f func(i int)) { weirtest.Together(goroutines, f) }

// TestOneKey: if 64 goroutines charge one key, exactly the quota is admitted.
func TestOneKey(t *testing.T) {
	const units, each = 1000, 100
	for _, l := range []quota.Limit{
		algorithms.GCRA(units, 1000*time.Hour),
		algorithms.AnchoredWindow(units, time.Hour),
		algorithms.SlidingLog(units, time.Hour),
	} {
		s := memstore.New(memstore.Options{})
		var admitted atomic.Int64
		together(func(int) {
			tx := quota.Transaction{Charges: []quota.Charge{charge("key", l, 1)}}
			for range each {
				if err := s.Take(t.Context(), &tx); err != nil {
					t.Error(err)
				}
				if tx.Allowed() {
					admitted.Add(1)
				}
			}
		})
		if got := admitted.Load(); got != units {
			t.Errorf("%v: got %d admitted of %d, want %d", l, got, goroutines*each, units)
		}
	}
}

// randomOrder returns some of the numbers below n in random order. The last number is
// always 0, the key that all sets have.
func randomOrder(n int) []int {
	order := rand.Perm(n)
	i, last := slices.Index(order, 0), rand.IntN(n)
	order[i], order[last] = order[last], order[i]
	return order[:last+1]
}

// TestCrossingKeys: 64 goroutines charge overlapping sets of keys, in all orders, without a
// deadlock. The key 0 is in all sets, and exactly its quota is admitted. Every other key
// has spent exactly one unit for each transaction that was admitted with it.
func TestCrossingKeys(t *testing.T) {
	const units, each, keys = 2000, 100, 12 // transactions have 1 to 12 charges, so some have more than the constant few, 6
	l := algorithms.GCRA(units, 10_000*time.Hour)
	s := memstore.New(memstore.Options{})
	var spent [keys]atomic.Int64
	together(func(int) {
		var tx quota.Transaction
		for range each {
			order := randomOrder(keys)
			tx.Charges = tx.Charges[:0]
			for _, k := range order {
				tx.Charges = append(tx.Charges, charge(fmt.Sprint(k), l, 1))
			}
			if err := s.Take(t.Context(), &tx); err != nil {
				t.Error(err)
			}
			if tx.Allowed() {
				for _, k := range order {
					spent[k].Add(1)
				}
			}
		}
	})
	if got := spent[0].Load(); got != units {
		t.Errorf("got %d admitted of %d, want %d", got, goroutines*each, units)
	}
	for k := range keys {
		got := units - take(t, s, charge(fmt.Sprint(k), l, 0)).Decisions[0].Remaining
		if want := spent[k].Load(); got != want {
			t.Errorf("key %d: got %d spent, want the %d admitted", k, got, want)
		}
	}
}

// TestAllocations: a decision on a known key allocates nothing, whether it is allowed or
// refused. Only a log allocates, when its slice grows.
func TestAllocations(t *testing.T) {
	charges := func(n int, l quota.Limit) (c []quota.Charge) {
		for i := range n {
			c = append(c, charge(fmt.Sprint("key", i), l.Named(fmt.Sprint(i)), 1))
		}
		return c
	}
	for _, test := range []struct {
		name    string
		within  time.Duration
		charges []quota.Charge
	}{
		{"admits", 0, charges(1, algorithms.GCRA(1<<20, time.Hour))},
		{"refuses", 0, charges(1, algorithms.GCRA(1, time.Hour))},
		{"expires", 0, charges(1, algorithms.AnchoredWindow(1, time.Microsecond))},
		{"reserves", 1 << 62, charges(1, algorithms.GCRA(1<<10, time.Hour))},
		{"queues", 1 << 62, charges(1, algorithms.LeakyBucket(1<<20, 1, time.Millisecond))},
		{"5 charges", 0, charges(5, algorithms.SlidingWindow(1<<20, time.Hour))},
		{"5 charges, refused", 0, append(charges(4, algorithms.GCRA(1<<20, time.Hour)), charge("full", algorithms.GCRA(1, time.Hour), 1))},
		{"8 charges", 0, charges(8, algorithms.FixedWindow(1<<20, time.Hour))},
		{"log, amortised", 0, charges(1, algorithms.SlidingLog(1<<20, time.Hour))},
		{"log, full", 0, charges(1, algorithms.SlidingLog(10, time.Hour))},
		{"log, sliding", 0, charges(1, algorithms.SlidingLog(1<<20, 50*time.Microsecond))},
		{"5 logs", 0, charges(5, algorithms.SlidingLog(1<<20, time.Hour))},
		{"no names", 0, []quota.Charge{charge("key", algorithms.GCRA(1<<20, time.Hour), 1), charge("key", algorithms.GCRA(1<<20, 1237*time.Microsecond), 1),
			charge("key", algorithms.GCRA(1<<20, time.Hour).Named("one"), 1)}},
	} {
		s := memstore.New(memstore.Options{})
		tx := quota.Transaction{Charges: test.charges, Within: test.within}
		got := testing.AllocsPerRun(2000, func() {
			if err := s.Take(context.Background(), &tx); err != nil {
				t.Fatal(err)
			}
		})
		if got != 0 {
			t.Errorf("%s: got %v allocations, want 0", test.name, got)
		}
	}
}

// TestNewKeyAllocates: a new key allocates nothing, except when a table grows.
func TestNewKeyAllocates(t *testing.T) {
	s := memstore.New(memstore.Options{MaxKeys: 1000})
	tx := quota.Transaction{Charges: []quota.Charge{charge("", algorithms.GCRA(2, time.Hour), 1)}}
	keys := make([]string, 20_000)
	for i := range keys {
		keys[i] = fmt.Sprint(i)
	}
	i := 0
	got := testing.AllocsPerRun(len(keys)-1, func() {
		tx.Charges[0].Key = keys[i]
		i++
		if err := s.Take(context.Background(), &tx); err != nil {
			t.Fatal(err)
		}
	})
	if got != 0 {
		t.Errorf("got %v allocations for a new key, want 0", got)
	}
}

// TestFuture: a state with reservations in the future is kept until the reservations are
// over.
func TestFuture(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.Options{MaxKeys: 1})
		l := algorithms.GCRA(1, time.Hour)
		tx := quota.Transaction{Charges: []quota.Charge{charge("key", l, 1)}, Within: 10 * time.Hour}
		for i := range 5 {
			if err := s.Take(t.Context(), &tx); err != nil || tx.Wait != time.Duration(i)*time.Hour {
				t.Fatalf("reservation %d: got wait %v and error %v, want %d hours", i, tx.Wait, err, i)
			}
		}
		time.Sleep(4*time.Hour + 59*time.Minute)
		if take(t, s, charge("key", l, 1)).Allowed() {
			t.Errorf("got allowed while reservations last, want refused")
		}
		time.Sleep(time.Minute)
		if !take(t, s, charge("key", l, 1)).Allowed() {
			t.Errorf("got refused after all reservations, want allowed")
		}
	})
}

func TestNewPanics(t *testing.T) {
	defer func() {
		const want = "memstore: MaxKeys is -1; want at least 0"
		if got := recover(); got != want {
			t.Errorf("got panic %v, want %q", got, want)
		}
	}()
	memstore.New(memstore.Options{MaxKeys: -1})
}

// TestZero: the zero value of a Store counts like a store of New, from the first of several calls on.
func TestZero(t *testing.T) {
	s := &memstore.Store{}
	l := algorithms.GCRA(8, 24*time.Hour)
	var wg sync.WaitGroup
	var allowed atomic.Int32
	for range 8 {
		wg.Go(func() {
			s.Stats()
			for range 2 {
				d, err := quota.Allow(t.Context(), s, quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: 1})
				if err != nil {
					t.Error(err)
				} else if d.Allowed {
					allowed.Add(1)
				}
			}
		})
	}
	wg.Wait()
	if n := allowed.Load(); n != 8 {
		t.Errorf("got %d of 16 allowed, want 8", n)
	}
}

// TestSwitchedTiers: if a client switches between two tiers of one name, it gets no more units
// than the larger tier alone admits in the worst case.
func TestSwitchedTiers(t *testing.T) {
	for _, tiers := range [][2]quota.Limit{
		{algorithms.GCRA(60, time.Minute), algorithms.GCRA(600, time.Minute)},
		{algorithms.TokenBucket(60, 60, time.Minute), algorithms.TokenBucket(600, 600, time.Minute)},
		{algorithms.SlidingWindow(60, time.Minute), algorithms.SlidingWindow(600, time.Minute)},
		{algorithms.SlidingLog(60, time.Minute), algorithms.SlidingLog(600, time.Minute)},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			got := 0
			unit := func(l quota.Limit) bool {
				allowed := take(t, store, charge("k", l, 1)).Allowed()
				if allowed {
					got++
				}
				return allowed
			}
			// Whenever the smaller tier admits a unit, spend all that the larger tier has
			// left.
			for start := time.Now(); time.Since(start) < time.Minute; time.Sleep(10 * time.Millisecond) {
				if unit(tiers[0]) {
					for unit(tiers[1]) {
					}
				}
			}
			if got > 1199 {
				t.Errorf("%v and %v: got %d in a minute, want 1199 at most", tiers[0], tiers[1], got)
			}
		})
	}
}

// TestTakeEach: TakeEach decides its transactions in order. An error concerns only its own
// transaction.
func TestTakeEach(t *testing.T) {
	var store optional.Batcher = memstore.New(memstore.Options{})
	c := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(2, 1000*time.Hour), Cost: 1}
	each := func(charges ...[]quota.Charge) (ts []*quota.Transaction) {
		for _, c := range charges {
			ts = append(ts, &quota.Transaction{Charges: c})
		}
		return ts
	}
	one := []quota.Charge{c}
	ts := each(one, []quota.Charge{c, c}, one, one)
	errs := store.TakeEach(t.Context(), ts)
	if len(errs) != 4 || errs[0] != nil || !errors.Is(errs[1], quota.ErrDuplicate) || errs[2] != nil || errs[3] != nil {
		t.Fatalf("got errors %v, want one for the second, a duplicate", errs)
	}
	for i, want := range map[int]quota.Decision{0: {Allowed: true, Remaining: 1}, 2: {Allowed: true}, 3: {}} {
		if got := ts[i].Decisions[0]; got.Allowed != want.Allowed || got.Remaining != want.Remaining {
			t.Errorf("number %d: got %+v, want Allowed %v, Remaining %d", i, got, want.Allowed, want.Remaining)
		}
	}
	if errs := store.TakeEach(t.Context(), each(one, nil)); errs != nil {
		t.Errorf("got errors %v, want nil", errs)
	}
}

// TestRemade: New warns once if a hundred stores are made within a minute, as by a handler that
// makes one for each request. The warning is of the process, so the test has one of its own.
func TestRemade(t *testing.T) {
	if os.Getenv("WEIR_MAKE_STORES") != "" {
		for range 300 {
			memstore.New(memstore.Options{})
		}
		return
	}
	cmd := exec.Command(os.Args[0], "-test.run=^TestRemade$")
	cmd.Env = append(os.Environ(), "WEIR_MAKE_STORES=1")
	out, err := cmd.CombinedOutput()
	if got := strings.Count(string(out), "memstore: a hundred stores made within a minute"); got != 1 || err != nil {
		t.Errorf("got %d warnings, %v; want 1: %s", got, err, out)
	}
}
