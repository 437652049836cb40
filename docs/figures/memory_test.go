package figures_test

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// measured is the content of memory.json: the bytes on the heap after growing numbers of
// keys. The figure is drawn from this file, because measurements differ a little each time.
// TestMemory compares the file with a new measurement.
type measured struct {
	Keys              []int
	Store, Whole, Map []int64 // Whole is a store that keeps all keys, as the map does
}

const maxKeys = 100_000

func heap() int64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

func measure(t *testing.T) (m measured) {
	name := func(i int) string { return fmt.Sprintf("key-%012d", i) }
	for n := 0; n <= 1_000_000; n += 50_000 {
		m.Keys = append(m.Keys, n)
	}
	grown := func(take func(i int)) (bytes []int64) {
		before, i := heap(), 0
		for _, n := range m.Keys {
			for ; i < n; i++ {
				take(i)
			}
			bytes = append(bytes, heap()-before)
		}
		return bytes
	}
	filled := func(o memstore.Options) []int64 {
		store := memstore.New(o)
		defer runtime.KeepAlive(store)
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}}}
		return grown(func(i int) {
			tx.Charges[0].Key = name(i)
			if err := store.Take(context.Background(), &tx); err != nil {
				t.Fatal(err)
			}
		})
	}
	m.Store, m.Whole = filled(memstore.Options{MaxKeys: maxKeys}), filled(memstore.Options{})
	tats := map[string]int64{}
	m.Map = grown(func(i int) { tats[name(i)] = int64(i) })
	runtime.KeepAlive(tats)
	return m
}

// differ reports whether two measurements differ by more than 15 %.
func differ(a, b int64) bool { return math.Abs(float64(a)/float64(b)-1) > 0.15 }

// TestMemory draws how much memory a flood of keys needs: in memstore, and in a plain map
// from keys to numbers.
func TestMemory(t *testing.T) {
	const file = "memory.json"
	var m measured
	data, err := os.ReadFile(file)
	if err == nil {
		err = json.Unmarshal(data, &m)
	}
	if err != nil && !*update {
		t.Fatal(err)
	}
	if rounds.Long() || *update { // measure makes a million keys
		now := measure(t)
		last := len(now.Keys) - 1
		off := len(m.Keys) != len(now.Keys) || len(m.Whole) != len(now.Whole) ||
			differ(now.Store[last], m.Store[last]) || differ(now.Whole[last], m.Whole[last]) || differ(now.Map[last], m.Map[last])
		switch {
		case off && *update:
			m = now
			if data, err = json.Marshal(m); err != nil {
				t.Fatal(err)
			}
			current(t, file, string(data)+"\n")
		case off:
			t.Errorf("got %+v, the figure is of %+v: run go test -C docs/figures . -update", now, m)
		}
	}

	const (
		left, right, top, ground = 64.0, 376.0, 100.0, 310.0
		most                     = 80e6 // bytes
	)
	last := len(m.Keys) - 1
	mb := func(n int64) string { return fmt.Sprintf("%.0f MB", float64(n)/1e6) }
	d := draw(360, "Memory under a flood of made-up keys",
		fmt.Sprintf("A million keys, each with one request. A map from key to one number grows to %s. The store in memory takes %s with its default MaxKeys, which keeps all keys, and %s with MaxKeys 100,000.",
			mb(m.Map[last]), mb(m.Whole[last]), mb(m.Store[last])))
	d.text(16, 52, "soft", "Each key is new and sends one request. A key that was")
	d.text(16, 69, "soft", "refused before the flood is still refused (TestFlood).")
	for n := 0.0; n <= most; n += 20e6 {
		y := ground - (ground-top)*n/most
		d.line("grid", left, y, right, y)
		d.text(left-8, y+4, "soft end", fmt.Sprintf("%.0f MB", n/1e6))
	}
	x := func(keys int) float64 { return left + (right-left)*float64(keys)/float64(m.Keys[last]) }
	for keys := 0; keys <= m.Keys[last]; keys += 500_000 {
		d.text(x(keys), ground+20, "soft mid", thousands(int64(keys)))
	}
	d.text((left+right)/2, ground+40, "soft mid", "keys")
	plot := func(class string, bytes []int64) (end float64) {
		var points []point
		for i, n := range bytes {
			points = append(points, point{x(m.Keys[i]), ground - (ground-top)*math.Max(0, float64(n))/most})
		}
		d.printf(`<path class="%s" d="%s"/>`, class, curve(points))
		return points[last].y
	}
	plot("no", m.Map)
	d.text(x(800_000), 112, "name end", mb(m.Map[last]))
	d.text(x(800_000), 129, "soft end", "map[string]int64, unbounded")
	plot("curve", m.Whole)
	d.text(x(840_000), 158, "name end", mb(m.Whole[last]))
	d.text(x(840_000), 175, "soft end", "memstore, which keeps all keys")
	y := plot("curve", m.Store)
	d.text(right, y-26, "name end", mb(m.Store[last]))
	d.text(right, y-9, "soft end", "memstore, MaxKeys: 100_000")
	text := d.end()
	wellFormed(t, text)
	current(t, "memory.svg", text)
}
