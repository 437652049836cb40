package main

import (
	"fmt"
	"hash/maphash"
	"runtime"
	"sync"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

const plenty = 1_000_000_000 // a quota per second that no run uses up

// A scene says how contenders are called: with which keys and limit, on how many goroutines,
// and how many times.
type scene struct {
	name       string
	keys       []string
	quota      int64
	period     time.Duration
	goroutines int
	ops        int
	target     float64 // the most that Weir's time may be, as a fraction of the best peer's time
}

// memory measures the time of one check, for each contender in each scene.
func memory(o options) ([]*table, error) {
	all := append([]contender{floor}, contenders...) // all[1] is Weir
	hot, many := keysOf(1), keysOf(o.pick(1_000_000, 50_000))
	procs, few, more := runtime.GOMAXPROCS(0), o.pick(4_000, 4_000), o.pick(8_000, 4_000)
	long := o.pick(400_000, 4_000) // in a shorter round, the goroutines hardly meet, or share one core
	t := &table{
		title:  "One check in memory",
		note:   fmt.Sprintf("ns per check: the least of %d rounds (and the median), or of a fifth as many long rounds for a hot key on several goroutines. \"Parallel\" is on %d goroutines. \"That live\" are keys with a limit per day: they are still in memory at their next check, while the other keys have expired.", o.short(), procs),
		header: []string{"", "hot key, allowed", "denied", "allowed, parallel", "denied, parallel", fmt.Sprintf("%d keys", len(many)), "parallel", "that live"},
	}
	scenes := []scene{
		{"hot key, allowed", hot, plenty, time.Second, 1, few, 0.8},
		{"hot key, denied", hot, 1, time.Hour, 1, few, 0.8},
		{"hot key, parallel", hot, plenty, time.Second, procs, long, 0.8},
		{"hot key, denied, parallel", hot, 1, time.Hour, procs, long, 0.8},
		{"many keys", many, plenty, time.Second, 1, more, 0.62},
		{"many keys, parallel", many, plenty, time.Second, procs, more, 0.62},
		{"many keys that live", many, 2000, 24 * time.Hour, 1, more, 0.88},
	}
	cells := make([][]any, len(all))
	verdicts := []any{"**target**"}
	for i, c := range all {
		cells[i] = []any{c.name}
	}
	for _, s := range scenes {
		rounds := o.short()
		if s.ops == long {
			rounds = max(1, rounds/5)
		}
		results, err := s.measure(all, rounds)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", s.name, err)
		}
		ch := chart{File: "memory-" + slug(s.name), Title: "One check in memory: " + s.name, Unit: "ns"}
		var least []float64
		for i, r := range results {
			cells[i] = append(cells[i], r.leastAndMedian())
			least = append(least, r.least())
			ch.Bars = append(ch.Bars, bar{all[i].name, r.least()})
		}
		ch.Bars = ch.Bars[1:] // without the bar of floor
		verdicts = append(verdicts, against(least[1], least[2:], s.target))
		t.charts = append(t.charts, ch)
	}
	for _, c := range cells {
		t.add(c...)
	}
	t.add(verdicts...)
	return []*table{t}, nil
}

// contention measures one hot key on more and more goroutines.
func contention(o options) ([]*table, error) {
	procs := []int{1, 2, 4, 8, 16, 64}
	var tables []*table
	for _, s := range []scene{{name: "allowed", quota: plenty, period: time.Second, target: 0.6}, {name: "denied", quota: 1, period: time.Hour, target: 0.33}} {
		t := &table{title: "One hot key on several goroutines: " + s.name, note: fmt.Sprintf("ns per check: the median of %d rounds (and the least), because the least comes from rounds in which the goroutines hardly met.", o.pick(9, 1)), header: []string{""}}
		cells := make([][]any, len(contenders))
		verdicts := []any{"**target**"}
		for i, c := range contenders {
			cells[i] = []any{c.name}
		}
		for _, n := range procs {
			t.header = append(t.header, fmt.Sprint(n))
			s.keys, s.goroutines, s.ops = keysOf(1), n, o.pick(60_000, 4_000)
			results, err := s.measure(contenders, o.pick(9, 1))
			if err != nil {
				return nil, fmt.Errorf("%s on %d goroutines: %w", s.name, n, err)
			}
			var medians []float64
			for i, r := range results {
				cells[i] = append(cells[i], fmt.Sprintf("%.0f (%.0f)", r.median(), r.least()))
				medians = append(medians, r.median())
			}
			verdicts = append(verdicts, against(medians[0], medians[1:], s.target))
		}
		for _, c := range cells {
			t.add(c...)
		}
		t.add(verdicts...)
		tables = append(tables, t)
	}
	return tables, nil
}

// footprints measures how much memory a million keys take. Weir's store has room for just these
// keys, by its MaxKeys, so footprints also counts how many of them it loses.
func footprints(o options) ([]*table, error) {
	many := keysOf(o.pick(1_000_000, 50_000))
	t := &table{title: "Many keys in memory", note: fmt.Sprintf("%d keys.", len(many)), header: []string{"", "bytes a key", "full GC, ms", "lost"}}
	ours := bounded(len(many))
	for _, c := range append([]contender{floor, ours}, contenders[1:]...) {
		bytes, pause, err := footprint(c, many)
		if err != nil {
			return nil, err
		}
		lost := ""
		if c.name == ours.name {
			lost = fmt.Sprint(lostOf(c, many))
		}
		t.add(c.name, fmt.Sprintf("%.1f", bytes), fmt.Sprintf("%.1f", pause), lost)
	}
	t.add("**target**", "at most 48", "at most 5", "0")
	return []*table{t}, nil
}

// bounded returns Weir with a store whose MaxKeys is n.
func bounded(n int) contender {
	return contender{fmt.Sprint(weirName, ", MaxKeys ", n), func(units int64, period time.Duration) func() check {
		return weirOf(memstore.New(memstore.Options{MaxKeys: n}), algorithms.GCRA(units, period))
	}}
}

// lostOf charges each key once, and returns how many of the keys c has then forgotten.
func lostOf(c contender, keys []string) (lost int) {
	ask := c.open(1, time.Hour)()
	_ = askAll(ask, keys)
	for _, k := range keys {
		if allowed, _ := ask(k); allowed {
			lost++
		}
	}
	return lost
}

// measure returns the ns per check of each contender, one number for each round.
func (s *scene) measure(all []contender, rounds int) ([]series, error) {
	open := make([]func() check, len(all))
	for i, c := range all {
		open[i] = c.open(s.quota, s.period)
		if err := askAll(open[i](), s.keys); err != nil { // so that no measured key is new
			return nil, fmt.Errorf("%s: %w", c.name, err)
		}
	}
	return interleave(len(all), rounds, func(i int) (float64, error) {
		ns, err := nsPerCheck(open[i], s.keys, s.goroutines, s.ops, s.quota > 1)
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

// footprint returns how many bytes a key takes, and how many ms all keys together add to a
// full garbage collection. The limit has a long period, so no state expires meanwhile.
func footprint(c contender, keys []string) (bytes, pause float64, err error) {
	before, gc := heap(), collection()
	newCheck := c.open(1, 1000*time.Hour)
	if err := askAll(newCheck(), keys); err != nil {
		return 0, 0, err
	}
	bytes, pause = (heap()-before)/float64(len(keys)), max(0, collection()-gc)
	runtime.KeepAlive(newCheck)
	return bytes, pause, nil
}

// floors measures the operations that a check in memory cannot do without: read the clock,
// take a lock, hash a key, and miss the cache.
func floors(o options) ([]*table, error) {
	t := &table{title: "The floors of a check in memory", note: fmt.Sprintf("ns, the least of %d rounds.", o.short()), header: []string{"", "ns"}}
	var mu sync.Mutex
	seed, start, key := maphash.MakeSeed(), time.Now(), keysOf(1)[0]
	memory := make([]byte, o.pick(1<<29, 1<<20))
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
	at, sum := uint64(0), byte(0)
	things := []struct {
		name string
		do   func()
	}{
		{"nothing but the loop", func() {}},
		{"clock: time.Since", func() { sum += byte(time.Since(start)) }},
		{"hash of a key: maphash.String", func() { sum += byte(maphash.String(seed, key)) }},
		{"lock: a sync.Mutex without contention", func() { mu.Lock(); sum++; mu.Unlock() }},
		{"miss: a byte of 512 MB", func() {
			at = at*6364136223846793005 + uint64(sum&1) + 1442695040888963407
			sum += memory[at>>20%uint64(len(memory))]
		}},
	}
	results, err := interleave(len(things), o.short(), func(i int) (float64, error) {
		const ops = 2_000
		do, start := things[i].do, time.Now()
		for range ops {
			do()
		}
		return float64(time.Since(start)) / ops, nil
	})
	if err != nil {
		return nil, err
	}
	for i, r := range results {
		t.add(things[i].name, fmt.Sprintf("%.1f", r.least()))
	}
	return []*table{t}, nil
}

// limits measures how the time of a check grows with the number of limits of its key.
func limits(o options) ([]*table, error) {
	t := &table{title: "Limits of one key in memory", note: fmt.Sprintf("ns per check that is allowed: the least of %d rounds (and the median).", o.short()),
		header: []string{"algorithm", "one", "five", "twenty"}}
	kinds := []func(int64, time.Duration) quota.Limit{
		algorithms.GCRA,
		func(n int64, p time.Duration) quota.Limit { return algorithms.TokenBucket(n, n, p) },
		func(n int64, p time.Duration) quota.Limit { return algorithms.LeakyBucket(n, n, p) },
		algorithms.FixedWindow, algorithms.AnchoredWindow, algorithms.SlidingWindow, algorithms.SlidingLog,
		func(n int64, _ time.Duration) quota.Limit { return algorithms.Calendar(n, algorithms.Day, nil) },
	}
	sizes := []int{1, 5, 20}
	var checks []func() check
	for _, f := range kinds {
		for _, n := range sizes {
			var several []quota.Limit
			for i := range n { // short periods, so that logs stay short
				several = append(several, f(1<<30, time.Duration(i+10)*time.Millisecond).Named(fmt.Sprint(i)))
			}
			checks = append(checks, weirOf(memstore.New(memstore.Options{}), several...))
		}
	}
	results, err := interleave(len(checks), o.short(), func(i int) (float64, error) {
		return nsPerCheck(checks[i], keysOf(1), 1, o.pick(500, 100), true)
	})
	if err != nil {
		return nil, err
	}
	for i, f := range kinds {
		row := []any{f(1, time.Second).Algorithm.Name()}
		for _, r := range results[i*len(sizes):][:len(sizes)] {
			row = append(row, r.leastAndMedian())
		}
		t.add(row...)
	}
	return []*table{t}, nil
}

// flood measures how much memory a flood of made-up keys takes, and whether a key that was
// refused before the flood is still refused after it.
func flood(o options) ([]*table, error) {
	n := o.pick(10_000_000, 300_000)
	t := &table{title: "A flood of made-up keys", note: fmt.Sprintf("%d keys, each charged once, after one key was refused.", n),
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
	ours := bounded(n / 10)
	flooded(ours.name, ours.open(2, 1000*time.Hour))
	for _, c := range contenders[1:] {
		if c.name == "go-limiter" || c.name == "x/time/rate" {
			flooded(c.name, c.open(2, 1000*time.Hour))
		}
	}
	return []*table{t}, nil
}
