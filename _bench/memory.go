package main

import (
	"fmt"
	"runtime"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

const plenty = 1_000_000_000 // units a second that no run uses up

// memory is one check in memory, beside the peers.
func memory(o options) ([]*table, error) {
	all := append([]contender{floor}, contenders...)
	hot, many := keysOf(1), keysOf(o.pick(1_000_000, 50_000))
	t := &table{
		title:  "One check in memory",
		note:   fmt.Sprintf("ns a check, the median of %d rounds ± half the range. Parallel is on %d goroutines.", o.rounds, runtime.GOMAXPROCS(0)),
		header: []string{"", "hot key, allowed", "denied", "parallel", fmt.Sprintf("%d keys", len(many)), "parallel", "bytes a key", "full GC, ms"},
	}
	scenes := []struct {
		name       string
		keys       []string
		quota      int64
		period     time.Duration
		goroutines int
		ops        int
		target     float64
	}{
		{"hot key, allowed", hot, plenty, time.Second, 1, o.pick(300_000, 20_000), 0.9},
		{"hot key, denied", hot, 1, time.Hour, 1, o.pick(300_000, 20_000), 0.9},
		{"hot key, parallel", hot, plenty, time.Second, runtime.GOMAXPROCS(0), o.pick(300_000, 20_000), 0.8},
		{"many keys", many, plenty, time.Second, 1, o.pick(300_000, 20_000), 0.7},
		{"many keys, parallel", many, plenty, time.Second, runtime.GOMAXPROCS(0), o.pick(300_000, 20_000), 0.7},
	}
	cells := make([][]any, len(all))
	verdicts := []any{"**target**"}
	for i, c := range all {
		cells[i] = []any{c.name}
	}
	for _, s := range scenes {
		open := make([]func() check, len(all))
		for i, c := range all {
			open[i] = c.open(s.quota, s.period)
			ask := open[i]()
			for _, k := range s.keys { // every key is known
				if _, err := ask(k); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", s.name, c.name, err)
				}
			}
		}
		results, err := interleave(len(all), o.rounds, func(i int) (float64, error) {
			ns, err := nsPerCheck(open[i], s.keys, s.goroutines, s.ops, s.quota == plenty)
			if err != nil {
				err = fmt.Errorf("%s: %s: %w", s.name, all[i].name, err)
			}
			return ns, err
		})
		if err != nil {
			return nil, err
		}
		var ours float64
		var peers []float64
		ch := chart{file: "memory-" + slug(s.name), title: "One check in memory: " + s.name, unit: "ns", target: s.target}
		open = nil // the garbage of a million keys
		for i, r := range results {
			cells[i] = append(cells[i], r)
			switch {
			case all[i].name == weirName:
				ours = r.median()
			case i > 0:
				peers = append(peers, r.median())
			}
			if i > 0 {
				ch.bars = append(ch.bars, bar{all[i].name, r.median()})
			}
		}
		verdicts = append(verdicts, against(ours, peers, s.target))
		t.charts = append(t.charts, ch)
	}
	for i, c := range all {
		bytes, pause, err := footprint(c, many)
		if err != nil {
			return nil, err
		}
		cells[i] = append(cells[i], fmt.Sprintf("%.0f", bytes), fmt.Sprintf("%.1f", pause))
	}
	for _, c := range cells {
		t.add(c...)
	}
	t.add(append(verdicts, "at most 48", "at most 5")...)
	return []*table{t, algorithmsTable(o), flood(o)}, nil
}

// footprint returns the bytes that a key takes, and the ms by which all keys
// lengthen a full collection.
func footprint(c contender, keys []string) (bytes, pause float64, err error) {
	before, gc := heap(), collection()
	newCheck := c.open(1<<20, time.Hour)
	ask := newCheck()
	for _, k := range keys {
		if _, err := ask(k); err != nil {
			return 0, 0, err
		}
	}
	bytes, pause = (heap()-before)/float64(len(keys)), max(0, collection()-gc)
	runtime.KeepAlive(newCheck)
	return bytes, pause, nil
}

func algorithmsTable(o options) *table {
	t := &table{title: "The algorithms in memory", note: "ns a check of one hot key that is allowed, serial.", header: []string{"algorithm", "ns"}}
	limits := []weir.Limit{
		algorithms.GCRA(plenty, time.Second), algorithms.TokenBucket(plenty, plenty, time.Second), algorithms.LeakyBucket(plenty, plenty, time.Second),
		algorithms.FixedWindow(plenty, time.Second), algorithms.AnchoredWindow(plenty, time.Second), algorithms.SlidingWindow(plenty, time.Second),
		algorithms.SlidingLog(plenty, time.Millisecond), algorithms.Calendar(plenty, algorithms.Day, nil),
	}
	hot := keysOf(1)
	results, err := interleave(len(limits), o.rounds, func(i int) (float64, error) {
		return nsPerCheck(weirOf(memstore.New(memstore.Options{}), limits[i]), hot, 1, o.pick(500_000, 5_000), true)
	})
	if err != nil {
		panic(err)
	}
	for i, r := range results {
		t.add(limits[i].Algorithm.Name(), r)
	}
	return t
}

// flood is what keys that somebody makes up do to memory, and to a key that is
// being limited.
func flood(o options) *table {
	n := o.pick(10_000_000, 300_000)
	t := &table{title: "A flood of made-up keys", note: fmt.Sprintf("%d keys, each asked for once, while one key is being limited.", n),
		header: []string{"", "heap, MB", "is the limited key still limited?"}}
	flooded := func(name string, newCheck func() check) {
		before := heap()
		ask := newCheck()
		for range 3 {
			_, _ = ask("limited")
		}
		var key [16]byte
		for i := range n {
			k := fmt.Appendf(key[:0], "made-up-%d", i)
			_, _ = ask(string(k)) // ErrFull is no answer, and goes on
		}
		grown := (heap() - before) / 1e6
		still := "yes"
		if allowed, err := ask("limited"); err == nil && allowed {
			still = "no"
		}
		t.add(name, fmt.Sprintf("%.0f", grown), still)
	}
	flooded("weir, MaxKeys "+fmt.Sprint(n/10), weirOf(memstore.New(memstore.Options{MaxKeys: n / 10}), algorithms.GCRA(2, 1000*time.Hour)))
	for _, c := range contenders[1:] {
		if c.name == "go-limiter" || c.name == "x/time/rate" {
			flooded(c.name, c.open(2, 1000*time.Hour))
		}
	}
	return t
}
