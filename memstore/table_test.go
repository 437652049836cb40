package memstore

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"reflect"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

func (s *Store) ask(t testing.TB, key string, l quota.Limit, cost int64) *quota.Transaction {
	t.Helper()
	tx := &quota.Transaction{Charges: []quota.Charge{{Rule: "test", Key: key, Limit: l, Cost: cost}}}
	if err := s.Take(context.Background(), tx); err != nil {
		t.Fatalf("Take(%q, %v, %d): got error %q, want none", key, l, cost, err)
	}
	return tx
}

// many returns how many keys a flood in tests has.
func many() int { return min(rounds.N(100_000, 1<<20), 1<<20) }

// memory returns the bytes of all tables, the number of logs, and how many entries (marks) all
// logs together have room for.
func (s *Store) memory() (bytes, logs, marks int) {
	for i := range s.shards {
		sh := &s.shards[i]
		bytes += len(sh.table) * int(unsafe.Sizeof(bucket{}))
		logs += len(sh.logs.all) - len(sh.logs.free)
		for _, log := range sh.logs.all {
			marks += cap(log.memory)
		}
	}
	return bytes, logs, marks
}

// reaches reports whether a value of type t contains a value of one of the kinds, or points to
// such a value.
func reaches(t reflect.Type, kinds ...reflect.Kind) bool {
	for _, k := range kinds {
		if t.Kind() == k {
			return true
		}
	}
	switch t.Kind() {
	case reflect.Array, reflect.Slice, reflect.Pointer, reflect.Chan:
		return reaches(t.Elem(), kinds...)
	case reflect.Map:
		return reaches(t.Key(), kinds...) || reaches(t.Elem(), kinds...)
	case reflect.Struct:
		for i := range t.NumField() {
			if reaches(t.Field(i).Type, kinds...) {
				return true
			}
		}
	}
	return false
}

// TestPointers: tables and logs have no pointers for the garbage collector to follow. A
// shard has no field that could hold a string, so it cannot keep a caller's key alive.
func TestPointers(t *testing.T) {
	pointers := []reflect.Kind{reflect.Pointer, reflect.Slice, reflect.Map, reflect.String, reflect.Interface,
		reflect.Func, reflect.Chan, reflect.UnsafePointer}
	for _, typ := range []reflect.Type{reflect.TypeFor[bucket](), reflect.TypeFor[quota.LogEntry]()} {
		if reaches(typ, pointers...) {
			t.Errorf("%v has pointers, want none", typ)
		}
	}
	// An atomic.Pointer contains an unsafe.Pointer, but its type also says what it points to.
	if reaches(reflect.TypeFor[shard](), reflect.String, reflect.Interface, reflect.Func) {
		t.Errorf("a shard can hold a string, want no place for one")
	}
	if !reaches(reflect.TypeFor[atomic.Pointer[quota.Charge]](), reflect.String) || !reaches(reflect.TypeFor[shard](), reflect.Slice) {
		t.Errorf("reaches finds nothing")
	}
}

// TestGrowth: a table that grows keeps every state unchanged.
func TestGrowth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 10_000
		s := New(Options{MaxKeys: 4 * keys}) // more than is needed, so that no shard is full
		limits := []quota.Limit{algorithms.GCRA(100, time.Hour), algorithms.SlidingLog(100, time.Hour).Named("log")}
		want := map[string][2]quota.Decision{}
		for i := range keys {
			key, cost := fmt.Sprint(i), int64(1+i%90)
			want[key] = [2]quota.Decision{s.ask(t, key, limits[0], cost).Decisions[0], s.ask(t, key, limits[1], cost).Decisions[0]}
		}
		for key, want := range want {
			for i, l := range limits {
				if got := s.ask(t, key, l, 0).Decisions[0]; got != want[i] {
					t.Fatalf("key %s, %v: got %+v after the table grew, want %+v", key, l, got, want[i])
				}
			}
		}
	})
}

// TestSecondStep: a shard loses no state until 94 of 100 slots are taken, because moveTwo
// frees a slot if a single move cannot.
func TestSecondStep(t *testing.T) {
	s := New(Options{MaxKeys: minShardKeys})
	l := algorithms.GCRA(1, time.Hour)
	n := int(s.shards[0].most) * ways * 94 / 100
	for i := range n {
		s.ask(t, fmt.Sprint(i), l, 1)
	}
	for i := range n {
		if s.ask(t, fmt.Sprint(i), l, 0).Decisions[0].Remaining != 0 {
			t.Fatalf("key %d of %d was lost, want all kept in %d slots", i, n, int(s.shards[0].most)*ways)
		}
	}
}

// TestHugeMaxKeys: a store whose MaxKeys is larger than any memory loses no state.
func TestHugeMaxKeys(t *testing.T) {
	for _, maxKeys := range []int{math.MaxInt, math.MaxInt / 1000} {
		s := New(Options{MaxKeys: maxKeys})
		for _, left := range []int64{1, 0} {
			for i := range 20_000 {
				if got := s.ask(t, fmt.Sprint(i), algorithms.GCRA(2, time.Hour), 1).Decisions[0].Remaining; got != left {
					t.Fatalf("MaxKeys %d, key %d: got %d remaining, want %d", maxKeys, i, got, left)
				}
			}
		}
	}
}

// TestMemory: a flood of keys leaves tables and logs within their bounds.
func TestMemory(t *testing.T) {
	const maxKeys = 10_000
	keys := many()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := New(Options{MaxKeys: maxKeys})
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "test", Limit: algorithms.GCRA(2, time.Hour), Cost: 1}}}
	key := make([]byte, 0, 20)
	flood := func(keys int) {
		for i := range keys {
			key = fmt.Appendf(key[:0], "key%d", i)
			tx.Charges[0].Key = unsafe.String(&key[0], len(key))
			if err := s.Take(context.Background(), &tx); err != nil {
				t.Fatal(err)
			}
		}
	}
	flood(keys)
	runtime.GC()
	runtime.ReadMemStats(&after)
	const most = 50 * maxKeys
	table, _, _ := s.memory()
	heap := int64(after.HeapAlloc) - int64(before.HeapAlloc)
	t.Logf("%d keys against MaxKeys %d: tables of %d bytes, %d more on the heap than before", keys, maxKeys, table, heap)
	if table > most {
		t.Errorf("got tables of %d bytes, want at most %d", table, most)
	}
	if heap > 2*most {
		t.Errorf("got %d more bytes on the heap, want at most %d", heap, 2*most)
	}

	// States with logs now take the place of the states of the flood, and then of earlier
	// states with logs.
	tx.Charges[0].Limit = algorithms.SlidingLog(4, time.Hour)
	for range 2 {
		flood(2 * maxKeys)
	}
	_, logs, marks := s.memory()
	t.Logf("and of logs: %d with room for %d marks", logs, marks)
	slots := table / int(unsafe.Sizeof(bucket{})) * ways
	if logs > slots || marks > 4*slots {
		t.Errorf("got %d logs with room for %d marks, want at most as many as the %d slots, and 4 in each", logs, marks, slots)
	}
	runtime.KeepAlive(s)
}

// TestBytes: a store of the default size that holds a million states takes at most 48 bytes for each.
// The allocator rounds the table of a shard up to whole pages.
func TestBytes(t *testing.T) {
	const shards, page = 1 << 20 / minShardKeys, 8192
	pages := (bucketsFor(minShardKeys)*int(unsafe.Sizeof(bucket{})) + page - 1) / page
	if got := shards * pages * page; got > 48e6 {
		t.Errorf("got %d bytes, want at most 48 million", got)
	}
}

// TestExpiry: new keys take the slots of states that have ended, and the logs of these states
// are freed. A state that has not ended stays.
func TestExpiry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxKeys: 1})
		keep := algorithms.GCRA(2, 10*time.Hour)
		log := algorithms.SlidingLog(2, time.Minute)
		s.ask(t, "keep", keep, 1)
		for round := range 100 {
			for i := range 7 {
				key := fmt.Sprint(round, i)
				s.ask(t, key, log, 2)
				if s.ask(t, key, log, 1).Allowed() {
					t.Fatalf("round %d, key %d: got allowed, want refused", round, i)
				}
			}
			if bytes, logs, _ := s.memory(); bytes != int(unsafe.Sizeof(bucket{})) || logs > 7 {
				t.Fatalf("round %d: got tables of %d bytes and %d logs, want one bucket and 7", round, bytes, logs)
			}
			time.Sleep(time.Minute)
		}
		if got := s.ask(t, "keep", keep, 0).Decisions[0].Remaining; got != 1 {
			t.Errorf("got %d remaining of the key whose state had not ended, want 1", got)
		}
		// A log whose units are all given back is deleted at once.
		s.ask(t, "back", log, 1)
		_, before, marks := s.memory()
		s.ask(t, "back", log, -1)
		if _, after, left := s.memory(); after != before-1 || left != marks-1 {
			t.Errorf("got %d logs with room for %d marks after one of %d with %d was given back, want one less", after, left, before, marks)
		}
	})
}

// TestLog: after some charges a log has room for at most twice its entries, even if it was
// longer before. A log that keeps its length of n entries keeps its memory too, and moves to
// the beginning of the memory at most once in n/2 charges.
func TestLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := New(Options{MaxKeys: 1})
		l := algorithms.SlidingLog(1<<20, time.Second)
		use := func(times int, pause func() time.Duration, most int) (moves int) {
			t.Helper()
			for range times {
				s.ask(t, "key", l, 1)
				if s.shards[0].logs.all[0].left == 0 {
					moves++
				}
				time.Sleep(pause())
			}
			if _, logs, marks := s.memory(); logs != 1 || marks > most {
				t.Errorf("got %d logs with room for %d marks, want 1 and at most %d", logs, marks, most)
			}
			return moves
		}
		use(10_000, func() time.Duration { return time.Duration(9_000+rand.IntN(2_000)) * time.Microsecond }, 220)
		was := &s.shards[0].logs.all[0].memory[0]
		moves := use(10_000, func() time.Duration { return 10 * time.Millisecond }, 200)
		if now := &s.shards[0].logs.all[0].memory[0]; now != was || moves > 200 {
			t.Errorf("a log of 100 entries: got %d moves in 10,000 charges, to new memory: %v, want at most 200 in the same memory", moves, now != was)
		}
		use(300, func() time.Duration { return 100 * time.Millisecond }, 20)
	})
}

// both is an algorithm whose states have a log and a B: B is the sum of the log.
type both struct{ quota.Algorithm }

func (both) Name() string { return "both" }

func (a both) Take(s quota.State, l *quota.Limit, now, cost int64) (quota.State, quota.Decision) {
	sum := s.B
	s.B = 0
	s, d := a.Algorithm.Take(s, l, now, cost)
	if s.B = sum; d.Allowed && cost > 0 {
		s.B += cost
	}
	d.Remaining = s.B
	return s, d
}

// TestLogAndB: a state with a log keeps its B too, while other logs come and go.
func TestLogAndB(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 1000
		s := New(Options{MaxKeys: 4 * keys})
		l := algorithms.SlidingLog(1000, time.Hour)
		l.Algorithm = both{l.Algorithm}
		brief := algorithms.SlidingLog(1000, time.Second)
		for round := range int64(5) {
			for i := range keys {
				key := fmt.Sprint(i)
				s.ask(t, key, brief, 1)
				if got, want := s.ask(t, key, l, int64(i%7)).Decisions[0].Remaining, (round+1)*int64(i%7); got != want {
					t.Fatalf("round %d, key %d: got B %d, want %d", round, i, got, want)
				}
				s.ask(t, key, brief, -1)
			}
			time.Sleep(2 * time.Second)
		}
		if _, logs, _ := s.memory(); logs != keys*6/7 {
			t.Errorf("got %d logs, want %d", logs, keys*6/7)
		}
	})
}

// TestBytesPerKey: in a full store a key takes at most 48 bytes, and no key is lost.
func TestBytesPerKey(t *testing.T) {
	keys := min(rounds.N(1<<17, 1<<20), 1<<20)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	s := New(Options{MaxKeys: keys})
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "test", Limit: algorithms.GCRA(1, time.Hour), Cost: 1}}}
	key := make([]byte, 0, 20)
	for _, tx.Charges[0].Cost = range []int64{1, 0} {
		lost := 0
		for i := range keys {
			key = fmt.Appendf(key[:0], "key%d", i)
			tx.Charges[0].Key = unsafe.String(&key[0], len(key))
			if err := s.Take(context.Background(), &tx); err != nil {
				t.Fatal(err)
			}
			if tx.Decisions[0].Remaining > 0 {
				lost++
			}
		}
		if lost > 0 {
			t.Errorf("got %d keys lost of %d, want none", lost, keys)
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	got := float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)) / float64(keys)
	t.Logf("%.1f bytes for each of %d keys", got, keys)
	if got > 48 {
		t.Errorf("got %.1f bytes for each of %d keys, want at most 48", got, keys)
	}
	runtime.KeepAlive(s)
}

// TestNamesDontCollide: two limits of a key have different fingerprints, even if their names
// differ only in every fourth or eighth letter. A multiplication hardly spreads the bits of
// these letters.
func TestNamesDontCollide(t *testing.T) {
	s := New(Options{})
	limit := algorithms.GCRA(1, time.Minute)
	var charges []quota.Charge
	for _, rule := range []string{"routes-0", "routes-p", "routes-P", "routes- ", "route0-0", "route0-p"} {
		for _, name := range []string{"abc0def0", "abcpdefp", "abc0defp", "abcpdef0", "abc defP", "abcPdef "} {
			charges = append(charges, quota.Charge{Rule: rule, Limit: limit.Named(name)})
		}
	}
	alike := 0
	for key := range 1000 {
		seen := map[uint64]bool{}
		for _, c := range charges {
			c.Key = fmt.Sprint(key)
			tx := quota.Transaction{Charges: []quota.Charge{c}}
			if err := tx.Validate(); err != nil {
				t.Fatal(err)
			}
			names, _, _ := tx.Plan(0)
			id := fingerprint(s.hash(c.Key), names)
			if seen[id] {
				alike++
			}
			seen[id] = true
		}
	}
	if alike > 0 {
		t.Errorf("%d of %d states have the fingerprint of another limit of their key", alike, 1000*len(charges))
	}
}

// TestEvicted: a store counts the states that it has evicted, and logs one line a minute about them.
// A store that has room counts none, nor states that have expired.
func TestEvicted(t *testing.T) {
	old := slog.Default()
	defer slog.SetDefault(old)
	synctest.Test(t, func(t *testing.T) {
		full.Reset()
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		s, l := New(Options{MaxKeys: 1000}), algorithms.GCRA(2, time.Minute)
		for minute, c := range []struct{ keys, evicted, lines int }{{1000, 0, 0}, {4000, 4000 - 1136, 1}, {1000, 4000 - 1136, 1}, {4000, 2 * (4000 - 1136), 2}} {
			for i := range c.keys {
				s.ask(t, fmt.Sprint(minute, " ", i), l, 1)
			}
			synctest.Wait()
			if got := int(s.Stats().Evicted); got < c.evicted || got > c.evicted+c.evicted/20 {
				t.Errorf("minute %d: got %d evicted, want %d", minute, got, c.evicted)
			}
			if got := strings.Count(log.String(), "full store has evicted states"); got != c.lines {
				t.Errorf("minute %d: got %d lines, want %d", minute, got, c.lines)
			}
			time.Sleep(time.Minute + time.Second)
		}
	})
}
