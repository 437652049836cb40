package main

import (
	"fmt"
	"runtime"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

const plenty = 1_000_000_000 // units a second, more than any run uses

// A scene is how contenders in memory are asked.
type scene struct {
	name       string
	keys       []string
	quota      int64
	period     time.Duration
	goroutines int
	ops        int
	target     float64 // the time of Weir, as a fraction of the best peer's
}

// memory measures one check in memory, beside the peers.
func memory(o options) ([]*table, error) {
	all := append([]contender{floor}, contenders...) // Weir is number 1
	hot, many := keysOf(1), keysOf(o.pick(1_000_000, 50_000))
	t := &table{
		title:  "One check in memory",
		note:   fmt.Sprintf("ns a check, the median of %d rounds ± half the range. Parallel is on %d goroutines.", o.rounds, runtime.GOMAXPROCS(0)),
		header: []string{"", "hot key, allowed", "denied", "parallel", fmt.Sprintf("%d keys", len(many)), "parallel", "bytes a key", "full GC, ms"},
	}
	scenes := []scene{
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
		results, err := s.measure(all, o.rounds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		ch := chart{file: "memory-" + slug(s.name), title: "One check in memory: " + s.name, unit: "ns", target: s.target}
		var medians []float64
		for i, r := range results {
			cells[i] = append(cells[i], r)
			medians = append(medians, r.median())
			ch.bars = append(ch.bars, bar{all[i].name, r.median()})
		}
		ch.bars = ch.bars[1:] // without the floor
		verdicts = append(verdicts, against(medians[1], medians[2:], s.target))
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

// measure returns the ns of a check, for each contender.
func (s *scene) measure(all []contender, rounds int) ([]series, error) {
	open := make([]func() check, len(all))
	for i, c := range all {
		open[i] = c.open(s.quota, s.period)
		if err := askAll(open[i](), s.keys); err != nil { // so that no key is new
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return interleave(len(all), rounds, func(i int) (float64, error) {
		ns, err := nsPerCheck(open[i], s.keys, s.goroutines, s.ops, s.quota == plenty)
		if err != nil {
			err = fmt.Errorf("%s: %w", all[i].name, err)
		}
		return ns, err
	})
}

// askAll checks each key once.
func askAll(ask check, keys []string) error {
	for _, k := range keys {
		if _, err := ask(k); err != nil {
			return err
		}
	}
	return nil
}

// footprint returns the bytes that a key takes, and by how many ms all keys lengthen a
// full garbage collection.
func footprint(c contender, keys []string) (bytes, pause float64, err error) {
	before, gc := heap(), collection()
	newCheck := c.open(1<<20, time.Hour)
	if err := askAll(newCheck(), keys); err != nil {
		return 0, 0, err
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

// flood measures how made-up keys fill memory, and whether a key that is being limited
// stays limited.
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
			_, _ = ask(string(k)) // an error such as ErrFull does not end the flood
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
