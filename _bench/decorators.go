package main

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// decorators measures a check through Coalesce, a lease and Hybrid, which are stores around a
// store, and a check without them. All stores are in memory.
func decorators(o options) ([]*table, error) {
	t := &table{title: "Stores around a store", note: fmt.Sprintf("ns per check of one hot key: the least of %d rounds (and the median).", o.short()), header: []string{"", "ns"}}
	things := []struct {
		name  string
		store quota.Store
		quota int64
		want  bool
	}{
		{"memory, allowed", memstore.New(memstore.Options{}), plenty, true},
		{"Coalesce, memory behind it", quota.Coalesce(memstore.New(memstore.Options{})), plenty, true},
		{"a lease of units", lease.New(memstore.New(memstore.Options{}), lease.Options{}), plenty, true},
		{"memory, denied", memstore.New(memstore.Options{}), 1, false},
		{"Hybrid, a refusal that it knows", quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{}), 1, false},
	}
	checks := make([]func() check, len(things))
	for i, c := range things {
		checks[i] = weirOf(c.store, algorithms.GCRA(c.quota, 100*time.Hour))
		if c.want {
			checks[i] = weirOf(c.store, algorithms.GCRA(c.quota, time.Second))
			ask := checks[i]()
			// A lease begins when a key has been busy for 100 ms.
			for begin := time.Now(); time.Since(begin) < 250*time.Millisecond; {
				_, _ = ask("10.0.0.0")
			}
		} else {
			_ = askAll(checks[i](), []string{"10.0.0.0", "10.0.0.0"})
		}
	}
	results, err := interleave(len(things), o.short(), func(i int) (float64, error) {
		return nsPerCheck(checks[i], keysOf(1), 1, o.pick(2_000, 1000), things[i].want)
	})
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		t.add(things[i].name, r.leastAndMedian())
	}
	return []*table{t, blocked(o)}, nil
}

// A refusing store refuses every transaction, for an hour, and counts the transactions.
type refusing struct{ asked int }

func (s *refusing) Take(_ context.Context, t *quota.Transaction) error {
	s.asked++
	t.At, t.Decisions = time.Now(), append(t.Decisions[:0], quota.Decision{RetryAfter: time.Hour, NextAfter: time.Hour, ResetAfter: time.Hour})
	return nil
}

// blocked measures how much memory a Hybrid takes for keys that are all refused. It also counts
// for how many of the newest keys the Hybrid asks its next store again.
func blocked(o options) *table {
	n := o.pick(100_000, 10_000)
	t := &table{title: "Blocked keys", note: fmt.Sprintf("Hybrid with room for %d keys.", n), header: []string{"keys", "bytes a key", "asked again", "ns a key"}}
	for _, keys := range []int{n, o.pick(10_000_000, 100_000)} {
		behind := &refusing{}
		before := heap()
		ask := weirOf(quota.Hybrid(behind, quota.HybridOptions{MaxKeys: n}), algorithms.GCRA(1, time.Hour))()
		var buf [16]byte
		start := time.Now()
		for i := range keys {
			_, _ = ask(string(fmt.Appendf(buf[:0], "k%d", i)))
		}
		took := time.Since(start)
		grown := heap() - before
		asked := behind.asked
		for i := max(0, keys-n/2); i < keys; i++ {
			_, _ = ask(string(fmt.Appendf(buf[:0], "k%d", i)))
		}
		t.add(keys, fmt.Sprintf("%.1f", grown/float64(n)), fmt.Sprintf("%d of %d", behind.asked-asked, min(keys, n/2)), fmt.Sprintf("%.0f", float64(took)/float64(keys)))
		runtime.KeepAlive(ask)
	}
	return t
}
