package scene

import (
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestWorst searches all schedules of requests for short periods, and must find exactly as many
// requests within a period as the function worst gives. The schedules of two periods suffice, because
// no algorithm knows more than the last two.
func TestWorst(t *testing.T) {
	for _, test := range []struct{ quota, burst, period int64 }{{1, 1, 3}, {2, 2, 4}, {2, 1, 5}, {2, 4, 4}, {3, 3, 6}, {3, 2, 6}} {
		for i := range kinds {
			k := &kinds[i]
			if k.extra { // its days are longer than such a search; TestWorstReached
				continue
			}
			l := limitOf(k, test.quota, test.burst, time.Duration(test.period)*time.Microsecond)
			if got, want := search(l, k.queue), k.worst(l); got != want {
				t.Errorf("%s, %+v: the worst schedule gets %d, want %d", k.name, test, got, want)
			}
		}
	}
}

func limitOf(k *kind, quota, burst int64, period time.Duration) quota.Limit {
	if k.bucket == nil {
		return k.limit(quota, period)
	}
	return k.bucket(burst, quota, period)
}

// search returns the most units that any schedule gets through within a period. In a queue, each
// unit waits until its place.
func search(l quota.Limit, queue bool) (most int64) {
	period := l.Period.Microseconds()
	start := int64(1_700_000_000_000_000) / period * period
	type place struct { // a state, and how many units went through at the instants since a period ago
		state  string
		recent string
	}
	type way struct {
		state  quota.State
		passed map[int64]int64
	}
	ways := map[place]way{{}: {passed: map[int64]int64{}}}
	for now := start; now <= start+3*period; now++ {
		next := map[place]way{}
		for _, w := range ways {
			for n := int64(0); ; n++ {
				passed, sum := map[int64]int64{}, int64(0)
				for at, n := range w.passed {
					if at > now-period {
						passed[at] = n
					}
				}
				for at := now - period + 1; at <= now; at++ {
					sum += passed[at]
				}
				most = max(most, sum)
				next[place{fmt.Sprintf("%+v", w.state), fmt.Sprint(passed)}] = way{w.state, passed}
				tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1}}}
				if queue {
					tx.Within = l.Period * 4
				}
				states := []quota.State{w.state}
				states[0].Log = slices.Clone(w.state.Log)
				if !tx.Decide(now, states) {
					break
				}
				w = way{states[0], maps.Clone(passed)}
				w.passed[now+tx.Wait.Microseconds()]++
			}
		}
		ways = next
	}
	return most
}

// TestWorstReached attacks limits of the usual size where each algorithm is weakest.
func TestWorstReached(t *testing.T) {
	const day = 24 * 60 * 60
	for _, link := range []string{"quota=10&period=10", "quota=100&period=1&burst=200", "quota=10&period=86400&burst=3", "quota=5&period=900"} {
		set, err := parseLink(link)
		if err != nil {
			t.Fatal(err)
		}
		p := set.Period * second
		for i := range kinds {
			k := &kinds[i]
			if k.queue || k.extra && set.Period != day {
				continue
			}
			l, edge := k.limitOf(&set), int64(20_000*day*second)+3*p
			times := []int64{edge - p + 7, edge - 1, edge, edge + p - 2} // of a window and a sliding window
			switch {
			case k.name == "anchored-window":
				times = []int64{edge, edge + p - 1, edge + p}
			case k.bucket != nil:
				times = []int64{edge}
				for n := int64(1); n < set.Quota; n++ {
					times = append(times, edge+(n*p+set.Quota-1)/set.Quota)
				}
			case k.name == "sliding-window":
				times = []int64{edge - 1, edge + p - 2}
			case k.name == "fixed-window" || k.extra:
				times = []int64{edge - 1, edge}
			}
			states, passed, most := make([]quota.State, 1), span{}, int64(0)
			for j, at := range times {
				tx := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1}}}
				for n := 0; tx.Decide(at, states); n++ {
					passed.add(at, 1, p)
					most = max(most, passed.sum)
					if k.name == "anchored-window" && j == 0 { // the window begins with one request
						break
					}
				}
			}
			if want := k.worst(l); most != want {
				t.Errorf("%s: %s: got %d, want %d", link, k.name, most, want)
			}
		}
	}
}

// TestBytes measures what keys take in a memstore with full logs.
func TestBytes(t *testing.T) {
	for _, test := range []struct {
		name  string
		quota int64
	}{{"gcra", 1}, {"sliding-log", 1}, {"sliding-log", 10}, {"sliding-log", 100}, {"sliding-log", 1000}} {
		k := kindOf(test.name)
		l := limitOf(k, test.quota, test.quota, time.Hour)
		if got, most := measure(t, l), k.bytes(l); got > most || got < most/3 {
			t.Errorf("%s with a quota of %d: %d bytes, want at most %d, and not much less", test.name, test.quota, got, most)
		}
	}
}

// measure returns the memory that a memstore needs for each key that has spent its quota.
func measure(t *testing.T, l quota.Limit) int64 {
	keys := 1 << 12
	for int64(keys)*l.Quota > 1<<16 {
		keys /= 2
	}
	var before, after runtime.MemStats
	runtime.GC()
	runtime.GC() // frees what pools have kept once
	runtime.ReadMemStats(&before)
	store := memstore.New(memstore.Options{MaxKeys: keys})
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: l, Cost: 1}}}
	for i := range keys {
		tx.Charges[0].Key = strconv.Itoa(i)
		for range l.Quota {
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	runtime.KeepAlive(store)
	return int64(after.HeapAlloc-before.HeapAlloc) / int64(keys)
}
