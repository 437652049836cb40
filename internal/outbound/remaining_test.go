package outbound_test

import (
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/internal/outbound"
)

// TestRemainingKeys: what remains of a key does not keep the memory of which the key of a request is a
// part, such as a header field of a megabyte.
func TestRemainingKeys(t *testing.T) {
	heap := func() int64 {
		var m runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	var left outbound.Remaining
	key := func(i int) outbound.Key {
		return outbound.Key{Rule: "r", Key: strings.Repeat(fmt.Sprintf("%08d", i), 1<<17)[:8]}
	}
	before := heap()
	for i := range 64 {
		left.Set(key(i), 2, time.Hour)
		k := key(i)
		var costs iter.Seq2[outbound.Key, int64] = func(yield func(outbound.Key, int64) bool) { yield(k, 1) }
		if !left.Spend(costs) || left.Wait(k, 1) != 0 || left.Wait(k, 2) == 0 {
			t.Fatalf("%v: want 1 unit left", k)
		}
	}
	if grown := heap() - before; grown > 8<<20 {
		t.Errorf("64 keys keep %d MB", grown>>20)
	}
	runtime.KeepAlive(&left)
}

// TestRemainingSetAgain: the answers of a server about a known key replace each other without garbage.
func TestRemainingSetAgain(t *testing.T) {
	var left outbound.Remaining
	k := outbound.Key{Rule: "r", Key: "192.0.2.1"}
	left.Set(k, 0, time.Hour)
	if n := testing.AllocsPerRun(100, func() { left.Set(k, 3, time.Hour) }); n != 0 || left.Wait(k, 3) != 0 || left.Wait(k, 4) == 0 {
		t.Errorf("got %v allocations and waits of %v and %v, want 3 units left", n, left.Wait(k, 3), left.Wait(k, 4))
	}
}

// TestRemainingSweep: a full table is searched at most once a second, because a server may name a
// million keys.
func TestRemainingSweep(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left outbound.Remaining
		set := func(i int, d time.Duration) bool {
			k := outbound.Key{Rule: "r", Key: fmt.Sprint(i)}
			left.Set(k, 0, d)
			return left.Wait(k, 1) > 0
		}
		for i := range 10_000 {
			set(i, 500*time.Millisecond)
		}
		for i, want := range []bool{false, false, true} { // after 0, 600 and 1200 ms
			if got := set(-1-i, time.Hour); got != want {
				t.Errorf("key %d: got %v, want %v", i, got, want)
			}
			time.Sleep(600 * time.Millisecond)
		}
	})
}

// TestRemainingFull: a second after the last search of a full table, a key is remembered in the place of
// one whose time has passed.
func TestRemainingFull(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var left outbound.Remaining
		key := func(i int) outbound.Key { return outbound.Key{Rule: "r", Key: fmt.Sprint(i)} }
		knows := func(i int) bool { return left.Wait(key(i), 1) > 0 }
		for i := range 10_000 {
			left.Set(key(i), 0, time.Hour+time.Duration(i%2)*time.Hour)
		}
		left.Set(key(10_000), 0, time.Hour)
		time.Sleep(time.Hour)
		for i := range 10_000 {
			left.Set(key(-1-i), 0, time.Hour)
		}
		if !knows(1) || !knows(9_999) || knows(10_000) || !knows(-1) || !knows(-5_000) || knows(-5_001) {
			t.Error("want the half of the first keys that are still in force, and the first that came later")
		}
		time.Sleep(2 * time.Hour)
		if left.Set(key(0), 0, time.Hour); !knows(0) {
			t.Error("a key is not remembered although all others have passed")
		}
	})
}
