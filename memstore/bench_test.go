package memstore_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// BenchmarkBaseline measures the least that a shared counter must do: take a lock, read the
// clock, and add 1 in a map.
func BenchmarkBaseline(b *testing.B) {
	var mu sync.Mutex
	counts := map[string]int64{}
	var last time.Time
	b.ReportAllocs()
	for b.Loop() {
		mu.Lock()
		last = time.Now()
		counts["192.0.2.1"]++
		mu.Unlock()
	}
	_ = last
}

func BenchmarkTake(b *testing.B) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(1<<30, time.Second),
		algorithms.GCRA(1, time.Hour),
		algorithms.TokenBucket(100, 10, time.Second),
		algorithms.LeakyBucket(100, 10, time.Second),
		algorithms.FixedWindow(100, time.Second),
		algorithms.AnchoredWindow(100, time.Second),
		algorithms.SlidingWindow(100, time.Second),
		algorithms.SlidingLog(100, time.Second),
		algorithms.Calendar(100, algorithms.Day, time.UTC),
	} {
		b.Run(limit.String(), func(b *testing.B) {
			store := memstore.New(memstore.Options{})
			t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: limit, Cost: 1}}}
			b.ReportAllocs()
			for b.Loop() {
				if err := store.Take(context.Background(), &t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

func BenchmarkTakeKeys(b *testing.B) {
	keys := make([]string, 1<<20)
	for i := range keys {
		keys[i] = fmt.Sprintf("key%07d", i)
	}
	store := memstore.New(memstore.Options{})
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(10, time.Hour), Cost: 1}}}
	i := 0
	b.ReportAllocs()
	for b.Loop() {
		t.Charges[0].Key = keys[i&(1<<20-1)]
		i++
		if err := store.Take(context.Background(), &t); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkTakeSeveral(b *testing.B) {
	for _, n := range []int{2, 5, 20} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			store := memstore.New(memstore.Options{})
			var t quota.Transaction
			for i := range n {
				t.Charges = append(t.Charges, quota.Charge{Rule: "api", Key: "192.0.2.1", Cost: 1,
					Limit: algorithms.GCRA(1<<20, time.Duration(i+1)*time.Second).Named(fmt.Sprint(i))})
			}
			b.ReportAllocs()
			for b.Loop() {
				if err := store.Take(context.Background(), &t); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
