package main

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"
)

// A series has the measurements of one contender, one for each round.
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

// least is the time of a round that nothing disturbed, if there was one. On a machine
// that others use, the least of many short rounds compares best.
func (s series) least() float64 {
	if len(s) == 0 {
		return 0
	}
	return slices.Min(s)
}

// leastAndMedian is a cell for many short rounds.
func (s series) leastAndMedian() string { return fmt.Sprintf("%.0f (%.0f)", s.least(), s.median()) }

// spread is half of the range, relative to the median.
func (s series) spread() float64 {
	if m := s.median(); m > 0 {
		return (slices.Max(s) - slices.Min(s)) / 2 / m
	}
	return 0
}

func (s series) String() string {
	return fmt.Sprintf("%.0f ± %.0f %%", s.median(), 100*s.spread())
}

// interleave measures n contenders in turn, in rounds that begin with another one each
// time, so that disturbances of the machine affect all alike. The first round warms up
// and does not count.
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

// errLost is the error of a check that lost a race, in a contender whose design allows
// that: one with a compare-and-swap.
var errLost = errors.New("lost")

// A check takes one unit of a key, and returns whether it is allowed.
type check func(key string) (bool, error)

// nsPerCheck makes ops checks on so many goroutines, and returns the time of one. It
// walks the keys in an order that makes caches miss. A decision other than want is an
// error.
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

// heap returns the bytes of live objects.
func heap() float64 {
	runtime.GC()
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return float64(m.HeapAlloc)
}

// collection returns how long a full garbage collection takes, in ms.
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
