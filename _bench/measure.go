package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A series holds the measurements of one contender, one for each round.
type series []float64

func (s series) median() float64 {
	if len(s) == 0 {
		return 0
	}
	s = slices.Sorted(slices.Values(s))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// least returns the shortest time. On a busy machine the least of many short rounds
// compares contenders best, because other programs can only lengthen a round.
func (s series) least() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Min(s)
}

// leastAndMedian returns the least, and the median in parentheses, for a cell of a table.
func (s series) leastAndMedian() string { return fmt.Sprintf("%.0f (%.0f)", s.least(), s.median()) }

// spread returns half of the range of s, as a fraction of its median.
func (s series) spread() float64 {
	if m := s.median(); m > 0 {
		return (slices.Max(s) - slices.Min(s)) / 2 / m
	}
	return 0
}

func (s series) String() string {
	return fmt.Sprintf("%.0f ± %.0f %%", s.median(), 100*s.spread())
}

// interleave measures n contenders in turn. Each round begins with a different contender than
// the round before, so that disturbances of the machine affect all contenders alike. The first
// round is a warm-up and does not count.
func interleave(n, rounds int, measure func(i int) (float64, error)) ([]series, error) {
	all := make([]series, n)
	runtime.GC()
	for round := range rounds + 1 {
		for k := range n {
			i := (k + round) % n
			x, err := measure(i)
			if err != nil {
				return nil, err
			}
			if round > 0 {
				all[i] = append(all[i], x)
			}
		}
	}
	return all, nil
}

// errLost is the error of a check that made no decision, because its contender lost a
// compare-and-swap to a concurrent check.
var errLost = errors.New("lost")

// A check charges one unit to a key, and returns whether the charge is allowed.
type check func(key string) (bool, error)

// nsPerCheck makes ops checks on a number of goroutines, and returns the ns per check. It takes
// the keys in an order that makes caches miss. It returns an error if a decision differs from
// the expected one.
func nsPerCheck(newCheck func() check, keys []string, goroutines, ops int, want bool) (float64, error) {
	errs := make([]error, goroutines)
	var wg sync.WaitGroup
	start := time.Now()
	for g := range goroutines {
		wg.Go(func() {
			ask := newCheck()
			at := uint32(g) * 40503
			for range ops / goroutines {
				at += 2654435761
				allowed, err := ask(keys[int(at>>4)%len(keys)])
				if errors.Is(err, errLost) {
					continue
				}
				if err != nil {
					errs[g] = err
					return
				}
				if allowed != want {
					errs[g] = fmt.Errorf("a wrong decision: got allowed %v, want %v", allowed, want)
					return
				}
			}
		})
	}
	wg.Wait()
	took := time.Since(start)
	for _, err := range errs {
		if err != nil {
			return 0, err
		}
	}
	return float64(took) / float64(ops/goroutines*goroutines), nil
}

// heap returns the bytes of the live objects on the heap, after a garbage collection.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// collection returns how long a full garbage collection takes, in ms: the median of five.
func collection() float64 {
	runtime.GC()
	var s series
	for range 5 {
		start := time.Now()
		runtime.GC()
		s = append(s, float64(time.Since(start))/1e6)
	}
	return s.median()
}
