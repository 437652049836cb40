package memstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestFlood: a key that was refused stays refused during a flood of made-up keys, however
// small the store is. When a unit of the key is free again, the key is allowed again.
func TestFlood(t *testing.T) {
	floods := []struct {
		name string
		cost []int64
	}{
		{"of keys with units left", []int64{1}},
		{"of keys with none left", []int64{3}},
		{"of keys refused as well", []int64{3, 1}},
	}
	for _, flood := range floods {
		for _, maxKeys := range []int{1, 10, 100, 10_000} {
			t.Run(fmt.Sprint(flood.name, "/", maxKeys), func(t *testing.T) {
				n := 10_000
				if maxKeys == 10_000 {
					n = memstore.Many()
				}
				synctest.Test(t, func(t *testing.T) {
					floodStore(t, maxKeys, n, flood.cost)
				})
			})
		}
	}
}

// victims are the keys that are refused before a flood.
var victims = map[string]quota.Limit{
	"gcra": algorithms.GCRA(3, 3*time.Hour),
	"log":  algorithms.SlidingLog(3, time.Hour),
}

// floodStore charges the costs to each of n made-up keys. It checks during the flood that the
// victims are refused, and an hour later that they are allowed.
func floodStore(t *testing.T, maxKeys, n int, costs []int64) {
	s := memstore.New(memstore.Options{MaxKeys: maxKeys})
	for name, l := range victims {
		for take(t, s, charge(name, l, 1)).Allowed() {
		}
	}
	time.Sleep(time.Second)
	full := 0
	for i := range n {
		if isFull(t, s, fmt.Sprint("flood", i), costs) {
			full++
		}
		if i%1000 == 0 || i < 100 {
			checkRefused(t, s, i)
		}
	}
	if got, want := full > 0, len(costs) > 1; got != want {
		t.Errorf("got ErrFull %d times of %d; want some: %v", full, n, want)
	}
	// An hour later each victim has a unit again.
	time.Sleep(time.Hour)
	for name, l := range victims {
		if !take(t, s, charge(name, l, 1)).Allowed() {
			t.Errorf("%s: got refused an hour later, want allowed", name)
		}
	}
}

// isFull charges the costs to a key, and reports whether the store has no room for the key.
func isFull(t *testing.T, s *memstore.Store, key string, costs []int64) bool {
	t.Helper()
	tx := quota.Transaction{Charges: []quota.Charge{charge(key, algorithms.GCRA(3, time.Hour), 0)}}
	for _, tx.Charges[0].Cost = range costs {
		err := s.Take(t.Context(), &tx)
		if errors.Is(err, quota.ErrFull) {
			return true
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	return false
}

// checkRefused checks that the victims are refused after n keys of a flood.
func checkRefused(t *testing.T, s *memstore.Store, n int) {
	t.Helper()
	for name, l := range victims {
		if take(t, s, charge(name, l, 1)).Allowed() {
			t.Fatalf("%s: got allowed after %d keys of a flood, want refused", name, n)
		}
	}
}

// TestFull: if every state in a full store has refused a charge, a charge of a new key gets
// ErrFull, and nothing of its transaction is spent. Known keys are decided as usual.
func TestFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		hour, log := algorithms.GCRA(1, time.Hour), algorithms.SlidingLog(5, time.Hour)
		s := memstore.New(memstore.Options{MaxKeys: 1})
		take(t, s, charge("log", log, 2))
		full := func(charges ...quota.Charge) {
			t.Helper()
			if err := s.Take(t.Context(), &quota.Transaction{Charges: charges}); err != quota.ErrFull {
				t.Errorf("got error %v, want ErrFull, for %v", err, charges)
			}
		}
		for i := range 7 {
			take(t, s, charge(fmt.Sprint(i), hour, 1))
			take(t, s, charge(fmt.Sprint(i), hour, 1))
		}
		full(charge("log", log, 1), charge("new", hour, 1))
		full(charge("new", hour, 1), charge("log", log, -1))
		if got := take(t, s, charge("log", log, 0)).Decisions[0].Remaining; got != 3 {
			t.Errorf("got %d remaining after ErrFull, want 3", got)
		}
		take(t, s, charge("log", log, 3))
		if take(t, s, charge("log", log, 1)).Allowed() {
			t.Errorf("got allowed, want refused")
		}
		full(charge("new", hour, 1))
		full(charge("new", hour, 1), charge("new", log, 1))
		// A charge that leaves no state to keep needs no room.
		for _, c := range []quota.Charge{charge("new", hour, 0), charge("new", hour, -1), charge("new", hour, 2), charge("0", hour, 1)} {
			if got, want := take(t, s, c).Allowed(), c.Cost <= 0; got != want {
				t.Errorf("%v: got Allowed %v, want %v", c, got, want)
			}
		}
		take(t, s, charge("0", hour, 0), charge("new", log, 0))
		time.Sleep(time.Hour)
		for i := range 8 {
			if !take(t, s, charge(fmt.Sprint("new", i), hour, 1)).Allowed() {
				t.Errorf("new key %d: got refused an hour later, want allowed", i)
			}
		}
	})
}

// TestRefusedStay: while at most nine tenths of MaxKeys states have refused a charge, all of
// these states are kept. Every other key takes the place of a state that has not refused.
func TestRefusedStay(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const maxKeys, refused, flood = 10_000, 9_000, 50_000
		s := memstore.New(memstore.Options{MaxKeys: maxKeys})
		tx := quota.Transaction{Charges: []quota.Charge{charge("", algorithms.GCRA(2, 2*time.Hour), 1)}}
		ask := func(name string, n int) (allowed int) {
			for i := range n {
				tx.Charges[0].Key = fmt.Sprint(name, i)
				if err := s.Take(t.Context(), &tx); err != nil {
					t.Fatalf("%s %d: got error %q, want none", name, i, err)
				}
				if tx.Allowed() {
					allowed++
				}
			}
			return allowed
		}
		for _, want := range []int{refused, refused, 0} {
			if got := ask("refused", refused); got != want {
				t.Fatalf("got %d allowed of %d, want %d", got, refused, want)
			}
		}
		if got := ask("flood", flood); got != flood {
			t.Errorf("got %d of a flood allowed, want all %d", got, flood)
		}
		if got := ask("refused", refused); got != 0 {
			t.Errorf("got %d of %d allowed after a flood, want none", got, refused)
		}
	})
}

// TestForgets: when a new key needs room in a full store, it replaces the state with the
// least to lose.
func TestForgets(t *testing.T) {
	two := algorithms.GCRA(2, 2*time.Hour)
	for _, test := range []struct {
		first, then quota.Charge
		cost        []int64 // the costs of more charges of the second key
		want        string  // the key whose state is replaced
	}{
		{charge("some", two, 1), charge("none", two, 2), nil, "some"},
		{charge("none", two, 2), charge("some", two, 1), nil, "some"},
		{charge("none", algorithms.GCRA(2, time.Hour), 2), charge("some", algorithms.GCRA(2, 4*time.Hour), 1), nil, "some"},
		{charge("late", algorithms.GCRA(2, 4*time.Hour), 1), charge("soon", two, 1), nil, "soon"},
		{charge("soon", two, 1), charge("late", algorithms.GCRA(2, 4*time.Hour), 1), nil, "soon"},
		{charge("none", algorithms.GCRA(1, 4*time.Hour), 1), charge("back", algorithms.GCRA(2, time.Hour), 2), []int64{-1}, "back"},
		// The state of a key that was refused once stays until it ends, even if the key has
		// units again.
		{charge("late", algorithms.GCRA(2, 4*time.Hour), 1), charge("refused", algorithms.GCRA(2, time.Hour), 2), []int64{1, -1}, "late"},
	} {
		synctest.Test(t, func(t *testing.T) {
			s := memstore.New(memstore.Options{MaxKeys: 1})
			for i := range 6 { // two of the 8 slots stay free
				take(t, s, charge(fmt.Sprint(i), algorithms.GCRA(1, 10*time.Hour), 1))
				take(t, s, charge(fmt.Sprint(i), algorithms.GCRA(1, 10*time.Hour), 1))
			}
			take(t, s, test.first)
			take(t, s, test.then)
			for _, cost := range test.cost {
				c := test.then
				c.Cost = cost
				take(t, s, c)
			}
			time.Sleep(time.Minute)
			take(t, s, charge("new", two, 1))
			var forgot []string
			for _, c := range []quota.Charge{test.first, test.then} {
				c.Cost = 0
				if take(t, s, c).Decisions[0].ResetAfter == 0 {
					forgot = append(forgot, c.Key)
				}
			}
			if got := strings.Join(forgot, " "); got != test.want {
				t.Errorf("%s, then %s: got forgotten %q, want %q", test.first.Key, test.then.Key, got, test.want)
			}
		})
	}
}

// TestCapacity: no state is lost while there are at most MaxKeys states of keys with one
// limit, or nine tenths of MaxKeys states of keys with several limits, which share a shard.
// Even if all of these states have refused a charge, Take does not return ErrFull.
func TestCapacity(t *testing.T) {
	for _, maxKeys := range []int{1, 8, 10, 24, 27, 100, 1000, 1024, 3000, 10_000, 16_383, 32_768, 99_984, 1 << 20} {
		if maxKeys > memstore.Many() {
			continue
		}
		for _, limits := range []int{1, 2, 5, 24} {
			fillStore(t, maxKeys, limits, 1)
			if limits < 24 { // in the second round all charges are refused
				fillStore(t, maxKeys, limits, 2)
			}
		}
	}
}

// fillStore fills a store with keys that each have the given number of limits. It charges all
// keys, in one or more rounds, and checks that no state is lost.
func fillStore(t *testing.T, maxKeys, limits, times int) {
	t.Helper()
	states := maxKeys
	if limits > 1 {
		states = maxKeys * 9 / 10
	}
	var tx quota.Transaction
	for i := range limits {
		tx.Charges = append(tx.Charges, charge("", algorithms.GCRA(1, time.Hour).Named(fmt.Sprint(i)), 1))
	}
	s := memstore.New(memstore.Options{MaxKeys: maxKeys})
	ask := func(k int, cost int64) {
		key := fmt.Sprint(k)
		for i := range tx.Charges {
			tx.Charges[i].Key, tx.Charges[i].Cost = key, cost
		}
		if err := s.Take(t.Context(), &tx); err != nil {
			t.Fatalf("MaxKeys %d, %d limits a key, key %d: got error %q, want none", maxKeys, limits, k, err)
		}
	}
	for range times {
		for k := range states / limits {
			ask(k, 1)
		}
	}
	for k := range states / limits {
		ask(k, 0)
		for i := range tx.Decisions {
			if tx.Decisions[i].Remaining > 0 {
				t.Errorf("MaxKeys %d, %d limits a key: limit %d of key %d was lost, want all of %d states kept", maxKeys, limits, i, k, states)
				return
			}
		}
	}
}
