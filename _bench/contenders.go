package main

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync"
	"time"

	tollbooth "github.com/didip/tollbooth/v7"
	tblimiter "github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledmem "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// A contender is a rate limiter in memory.
type contender struct {
	name string

	// open makes a limiter that gives each key quota units a period. It returns a function
	// that each goroutine calls to get a check of its own.
	open func(quota int64, period time.Duration) func() check
}

const weirName = "weir"

var ctx = context.Background()

func each(c check) func() check { return func() check { return c } }

// weirOf makes checks that charge each key under all limits in one transaction.
func weirOf(store weir.Store, limits ...weir.Limit) func() check {
	return func() check {
		var t weir.Transaction
		for _, l := range limits {
			t.Charges = append(t.Charges, weir.Charge{Rule: "api", Limit: l, Cost: 1})
		}
		return func(key string) (bool, error) {
			for i := range t.Charges {
				t.Charges[i].Key = key
			}
			err := store.Take(ctx, &t)
			return t.Allowed(), err
		}
	}
}

func must[T any](x T, err error) T {
	if err != nil {
		panic(err)
	}
	return x
}

var contenders = []contender{
	{weirName, func(quota int64, period time.Duration) func() check {
		return weirOf(memstore.New(memstore.Options{}), algorithms.GCRA(quota, period))
	}},
	{"go-limiter", func(quota int64, period time.Duration) func() check {
		if quota == plenty { // go-limiter refuses some requests under a quota of a billion
			quota, period = 1<<40, time.Hour
		}
		s := must(memorystore.New(&memorystore.Config{Tokens: uint64(quota), Interval: period}))
		return each(func(key string) (bool, error) {
			_, _, _, ok, err := s.Take(ctx, key)
			return ok, err
		})
	}},
	{"x/time/rate", func(quota int64, period time.Duration) func() check {
		var m sync.Map
		return each(func(key string) (bool, error) {
			l, ok := m.Load(key)
			if !ok {
				l, _ = m.LoadOrStore(key, rate.NewLimiter(rate.Limit(float64(quota)/period.Seconds()), int(quota)))
			}
			return l.(*rate.Limiter).Allow(), nil
		})
	}},
	{"httprate", func(quota int64, period time.Duration) func() check { // calls httprate's counter as httprate's handler does
		c := httprate.NewLocalLimitCounter(period)
		return each(func(key string) (bool, error) {
			now := time.Now().UTC()
			window := now.Truncate(period)
			cur, prev, err := c.Get(key, window, window.Add(-period))
			if err != nil {
				return false, err
			}
			if float64(prev)*float64(period-now.Sub(window))/float64(period)+float64(cur)+1 > float64(quota) {
				return false, nil
			}
			return true, c.IncrementBy(key, window, 1)
		})
	}},
	{"throttled", func(quota int64, period time.Duration) func() check {
		s := must(throttledmem.NewCtx(1 << 21))
		l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerDuration(int(quota), period), MaxBurst: int(quota) - 1}))
		return each(func(key string) (bool, error) {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			if err != nil {
				return false, errLost
			}
			return !limited, nil
		})
	}},
	{"ulule", func(quota int64, period time.Duration) func() check {
		l := limiter.New(ululemem.NewStore(), limiter.Rate{Period: period, Limit: quota})
		return each(func(key string) (bool, error) {
			c, err := l.Get(ctx, key)
			return !c.Reached, err
		})
	}},
	{"tollbooth", func(quota int64, period time.Duration) func() check {
		l := tollbooth.NewLimiter(float64(quota)/period.Seconds(), &tblimiter.ExpirableOptions{DefaultExpirationTTL: time.Hour}).SetBurst(int(quota))
		return each(func(key string) (bool, error) { return tollbooth.LimitByKeys(l, []string{key}) == nil, nil })
	}},
}

// floor does only what a rate limiter in memory cannot do without: it hashes the key, takes a
// lock, reads a clock, and counts in a map.
var floor = contender{"floor: a sharded map of hashes", func(quota int64, period time.Duration) func() check {
	type shard struct {
		sync.Mutex
		m map[uint64]int64
		_ [48]byte
	}
	shards := make([]shard, 256)
	for i := range shards {
		shards[i].m = map[uint64]int64{}
	}
	seed, start := maphash.MakeSeed(), time.Now()
	return each(func(key string) (bool, error) {
		h := maphash.String(seed, key)
		s := &shards[h%256]
		s.Lock()
		defer s.Unlock()
		if time.Since(start) < 0 || s.m[h] >= quota {
			return false, nil
		}
		s.m[h]++
		return true, nil
	})
}}

func keysOf(n int) []string {
	keys := make([]string, n)
	for i := range keys {
		keys[i] = fmt.Sprintf("10.%d.%d.%d", i>>16&255, i>>8&255, i&255)
	}
	return keys
}
