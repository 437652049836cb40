package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// A round is what a service did in one round.
type round struct {
	rate, cpu, redis, p50, p99 float64 // calls a second; µs of the processors for a call, of the service and of Redis; ms
}

// speed prints the calls a second of each service, and what a call costs.
func speed(rdb *redis.Client, services []*service) error {
	rounds, d := 5, time.Second
	if *quick {
		rounds, d = 1, 100*time.Millisecond
	}
	fmt.Printf("\n%d rounds of %v in turns, medians. The callers share the processors with the services and Redis.\n\n", rounds, d)
	row("callers", "call", "service", "calls a second", "its CPU of a call, µs", "CPU of Redis, µs", "median, ms", "99 %, ms")
	row("---", "---", "---", "---", "---", "---", "---", "---")
	for _, callers := range []int{1, 32, 256} {
		for _, key := range []string{"allowed", "over"} {
			chosen := slices.DeleteFunc(slices.Clone(services), func(s *service) bool { return s.only != "" && s.only != key })
			all := make([][]round, len(chosen))
			for n := range rounds {
				for k := range chosen {
					i := (n + k) % len(chosen)
					r, err := chosen[i].load(rdb, key, callers, d)
					if err != nil {
						return err
					}
					all[i] = append(all[i], r)
				}
			}
			for i, s := range chosen {
				median := func(of func(round) float64) float64 {
					slices.SortFunc(all[i], func(a, b round) int { return cmp.Compare(of(a), of(b)) })
					return of(all[i][len(all[i])/2])
				}
				row(callers, key, s.name, fmt.Sprintf("%.0f", median(func(r round) float64 { return r.rate })),
					fmt.Sprintf("%.0f", median(func(r round) float64 { return r.cpu })), fmt.Sprintf("%.1f", median(func(r round) float64 { return r.redis })),
					fmt.Sprintf("%.2f", median(func(r round) float64 { return r.p50 })), fmt.Sprintf("%.2f", median(func(r round) float64 { return r.p99 })))
			}
		}
	}
	return nil
}

// load makes calls without pause for the time d.
func (s *service) load(rdb *redis.Client, key string, callers int, d time.Duration) (round, error) {
	req := request(key, strconv.Itoa(callers))
	for range 2 { // the limit of over is 1
		if _, err := s.call(0, req); err != nil {
			return round{}, err
		}
	}
	cpu, server, begin := s.cpu(), redisCPU(rdb), time.Now()
	end := begin.Add(d)
	times, errs := make([][]time.Duration, callers), make([]error, callers)
	var wg sync.WaitGroup
	for i := range callers {
		wg.Go(func() {
			for at := time.Now(); at.Before(end); {
				ok, err := s.call(i, req)
				if err == nil && ok != (key == "allowed") {
					err = fmt.Errorf("%s: %s: a wrong decision: %v", s.name, key, ok)
				}
				if err != nil {
					errs[i] = err
					return
				}
				now := time.Now()
				times[i] = append(times[i], now.Sub(at))
				at = now
			}
		})
	}
	wg.Wait()
	took := time.Since(begin)
	cpu, server = s.cpu()-cpu, redisCPU(rdb)-server
	list := slices.Sorted(slices.Values(slices.Concat(times...)))
	n := float64(len(list))
	ms := func(q float64) float64 { return float64(list[int(q*(n-1))]) / 1e6 }
	return round{n / took.Seconds(), float64(cpu.Microseconds()) / n, float64(server.Microseconds()) / n, ms(0.5), ms(0.99)}, errors.Join(errs...)
}

var usedCPU = regexp.MustCompile(`used_cpu_(?:sys|user):([\d.]+)`)

// redisCPU returns the time that Redis has used the processors.
func redisCPU(rdb *redis.Client) (d time.Duration) {
	for _, m := range usedCPU.FindAllStringSubmatch(rdb.Info(context.Background(), "cpu").Val(), -1) {
		seconds, _ := strconv.ParseFloat(m[1], 64)
		d += time.Duration(seconds * 1e9)
	}
	return d
}

// edges prints how many calls each service admits, of a flood from the middle of one window to the
// middle of another, and the most in any second, by the clock of the callers.
func edges(services []*service) error {
	const limit, windows, callers = 1000, 6, 256
	fmt.Printf("\nA limit of %d a second, and a flood of %d callers that touches %d windows:\n\n", limit, callers, windows)
	row("service", "admitted", "the limits of these windows", "most in a second")
	row("---", "---", "---", "---")
	for _, s := range services {
		if s.only != "" {
			continue
		}
		req := request("edge", s.name)
		now := time.Now()
		begin := now.Truncate(time.Second).Add(1500 * time.Millisecond)
		end := begin.Add((windows - 1) * time.Second)
		time.Sleep(time.Until(begin))
		var calls atomic.Int64
		admitted, errs := make([][]time.Time, callers), make([]error, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				for time.Now().Before(end) {
					calls.Add(1)
					ok, err := s.call(i, req)
					if err != nil {
						errs[i] = err
						return
					}
					if ok {
						admitted[i] = append(admitted[i], time.Now())
					}
				}
			})
		}
		wg.Wait()
		if err := errors.Join(errs...); err != nil {
			return err
		}
		list := slices.SortedFunc(slices.Values(slices.Concat(admitted...)), time.Time.Compare)
		most, first := 0, 0
		for last := range list {
			for list[last].Sub(list[first]) >= time.Second {
				first++
			}
			most = max(most, last-first+1)
		}
		row(s.name, fmt.Sprintf("%d of %d", len(list), calls.Load()), limit*windows, most)
	}
	return nil
}
