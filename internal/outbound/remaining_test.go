package outbound_test

import (
	"fmt"
	"iter"
	"runtime"
	"strings"
	"testing"
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
