package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"regexp"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/throttled/throttled/v2"
	throttledredis "github.com/throttled/throttled/v2/store/goredisstore.v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A shared contender is a rate limiter in Redis. No two contenders use the same keys, except those
// of serverCost alone, which start with an empty server.
type shared struct {
	name string
	open func(rdb *redis.Client, units int64) func() check
	errs bool // checks may fail; the table shows how many do

	several bool // a check is several commands
	always  bool // every check is allowed
	unique  bool // the last argument of the script differs from check to check
}

func storeOf(rdb *redis.Client, prefix string) quota.Store {
	return must(redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: 10 * time.Second}))
}

// several returns n limits of one algorithm with the periods 1 min to n min.
func several(n int, f func(int64, time.Duration) quota.Limit, units int64) (limits []quota.Limit) {
	for i := range n {
		limits = append(limits, f(units, time.Duration(i+1)*time.Minute).Named(fmt.Sprint(i)))
	}
	return limits
}

var sharedContenders = []shared{
	{name: "redis_rate", open: func(rdb *redis.Client, units int64) func() check {
		l := redis_rate.NewLimiter(rdb)
		limit := redis_rate.Limit{Rate: int(units), Burst: int(units), Period: time.Minute}
		return each(func(key string) (bool, error) {
			res, err := l.Allow(ctx, key, limit)
			return err == nil && res.Allowed > 0, err
		})
	}},
	{name: "throttled", errs: true, several: true, open: func(rdb *redis.Client, units int64) func() check {
		s := must(throttledredis.NewCtx(rdb, "throttled:"))
		l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerMin(int(units)), MaxBurst: int(units) - 1}))
		return each(func(key string) (bool, error) {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			return !limited, err
		})
	}},
	{name: "published script, five windows", unique: true, open: published},
	{name: "weir, GCRA", open: func(rdb *redis.Client, units int64) func() check {
		return weirOf(storeOf(rdb, "w1:"), several(1, algorithms.GCRA, units)...)
	}},
	{name: "weir, five GCRA", open: func(rdb *redis.Client, units int64) func() check {
		return weirOf(storeOf(rdb, "w5:"), several(5, algorithms.GCRA, units)...)
	}},
	{name: "weir, five windows of a log", open: func(rdb *redis.Client, units int64) func() check {
		return weirOf(storeOf(rdb, "wl:"), several(5, algorithms.SlidingLog, units)...)
	}},
}

// concurrent are contenders of throughput only.
var concurrent = []shared{
	{name: "weir, GCRA, Coalesce", open: func(rdb *redis.Client, units int64) func() check {
		return weirOf(quota.Coalesce(storeOf(rdb, "wc:")), several(1, algorithms.GCRA, units)...)
	}},
	{name: "weir, GCRA, Lease", open: func(rdb *redis.Client, units int64) func() check {
		return weirOf(lease.New(quota.Coalesce(storeOf(rdb, "we:")), lease.Options{}), several(1, algorithms.GCRA, units)...)
	}},
}

// windows are contenders of serverCost only.
var windows = []shared{
	windowsOf("weir, fixed window", 1, algorithms.FixedWindow),
	windowsOf("weir, three fixed windows", 3, algorithms.FixedWindow),
	windowsOf("weir, anchored window", 1, algorithms.AnchoredWindow),
	windowsOf("weir, sliding window", 1, algorithms.SlidingWindow),
	windowsOf("weir, eighteen GCRA", 18, algorithms.GCRA),
	windowsOf("weir, nineteen GCRA", 19, algorithms.GCRA), // more are decided in a loop
	windowsOf("weir, nine sliding logs", 9, algorithms.SlidingLog),
	windowsOf("weir, ten sliding logs", 10, algorithms.SlidingLog),
	rulesOf("weir, eighteen rules with a key each", rulesOfOne(18)),
	rulesOf("weir, nineteen rules with a key each", rulesOfOne(19)),
	rulesOf("weir, two rules with a key each", func(units int64) [][]quota.Limit {
		return [][]quota.Limit{{algorithms.GCRA(units, time.Minute)}, {algorithms.GCRA(units, time.Hour)}}
	}),
	rulesOf("weir, three rules with a key each", threeRules),
	{name: "leanest script, three keys", open: leanest},
	rulesOf("weir, GCRA beside a log", func(units int64) [][]quota.Limit {
		return [][]quota.Limit{{algorithms.GCRA(units, time.Minute), algorithms.SlidingLog(units, time.Minute)}}
	}),
	rulesOf("weir, the login of the README", func(units int64) [][]quota.Limit {
		return [][]quota.Limit{
			{algorithms.SlidingLog(units, time.Minute), algorithms.SlidingLog(units, 3*time.Second)},
			{algorithms.SlidingLog(units, 10*time.Second)},
		}
	}),
	{name: "weir, a refund", always: true, open: refunds},
}

// contenderOf returns the contender of that name.
func contenderOf(name string) shared {
	list := slices.Concat(sharedContenders, windows)
	return list[slices.IndexFunc(list, func(c shared) bool { return c.name == name })]
}

// threeRules are three rules of one limit each.
func threeRules(units int64) [][]quota.Limit {
	return [][]quota.Limit{{algorithms.GCRA(units, time.Minute)}, {algorithms.GCRA(units, time.Hour)}, {algorithms.GCRA(units, time.Second)}}
}

// rulesOfOne makes n rules of one limit each.
func rulesOfOne(n int) func(units int64) [][]quota.Limit {
	return func(units int64) (rules [][]quota.Limit) {
		for range n {
			rules = append(rules, []quota.Limit{algorithms.GCRA(units, 24*time.Hour)})
		}
		return rules
	}
}

// rulesOf makes checks of one transaction that charges each key under several rules.
func rulesOf(name string, rules func(units int64) [][]quota.Limit) shared {
	return shared{name: name, open: func(rdb *redis.Client, units int64) func() check {
		store := storeOf(rdb, "") // the default prefix: each byte of a key takes time
		return func() check {
			var t quota.Transaction
			for i, limits := range rules(units) {
				for _, l := range limits {
					t.Charges = append(t.Charges, quota.Charge{Rule: fmt.Sprint("rule", i), Limit: l, Cost: 1})
				}
			}
			return func(key string) (bool, error) {
				for i := range t.Charges {
					t.Charges[i].Key = key + t.Charges[i].Rule
				}
				err := store.Take(ctx, &t)
				return t.Allowed(), err
			}
		}
	}}
}

// refunds makes checks that give back a unit, as weir.Rule.Settle does. The first check spends
// a thousand units, which all later checks give back.
func refunds(rdb *redis.Client, _ int64) func() check {
	store := storeOf(rdb, "wr:")
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Limit: algorithms.GCRA(2000, 1000*time.Hour), Cost: 1000}}}
	return each(func(key string) (bool, error) {
		c := &t.Charges[0]
		c.Key = key
		if n, err := rdb.DBSize(ctx).Result(); err != nil || n == 0 {
			c.Cost, c.Spent = 1000, 0
		}
		if c.Cost > 0 {
			if err := store.Take(ctx, &t); err != nil {
				return false, err
			}
			c.Cost, c.Spent = -1, t.Decisions[0].At
		}
		err := store.Take(ctx, &t)
		return t.Allowed(), err
	})
}

// windowsOf makes checks of n limits with periods of 1 to n days: with shorter ones, a window
// could end between two checks, and the second would be allowed.
func windowsOf(name string, n int, f func(int64, time.Duration) quota.Limit) shared {
	days := func(units int64, minutes time.Duration) quota.Limit { return f(units, 24*60*minutes) }
	return shared{name: name, open: func(rdb *redis.Client, units int64) func() check {
		return weirOf(storeOf(rdb, ""), several(n, days, units)...)
	}}
}

// publishedScript limits by several windows in the way that is published most often. A sorted
// set holds the requests. The script counts the requests of each window, and adds a new request
// only if every window has room.
var publishedScript = redis.NewScript(`
local t = redis.call('TIME')
local now = t[1] * 1000000 + t[2]
local limits = cjson.decode(ARGV[1])
local longest = 0
for _, l in ipairs(limits) do if l.period > longest then longest = l.period end end
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now - longest))
local allowed, reply = true, {}
for i, l in ipairs(limits) do
  local used = redis.call('ZCOUNT', KEYS[1], string.format('(%.0f', now - l.period), '+inf')
  local retry = 0
  if used >= l.limit then
    allowed = false
    local first = redis.call('ZRANGEBYSCORE', KEYS[1], string.format('(%.0f', now - l.period), '+inf', 'WITHSCORES', 'LIMIT', used - l.limit, 1)
    retry = first[2] + l.period - now
  end
  reply[i] = {remaining = l.limit - used, retry = retry}
end
if allowed then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now), ARGV[2])
  redis.call('PEXPIRE', KEYS[1], math.ceil(longest / 1000))
end
return {allowed and 1 or 0, cjson.encode(reply)}
`)

// published returns the checks of the contender that runs publishedScript.
func published(rdb *redis.Client, units int64) func() check {
	type limit struct {
		Limit  int64 `json:"limit"`
		Period int64 `json:"period"`
	}
	var limits []limit
	for i := range 5 {
		limits = append(limits, limit{units, int64(i+1) * 60e6})
	}
	text := string(must(json.Marshal(limits)))
	var mu sync.Mutex
	n := 0
	return each(func(key string) (bool, error) {
		mu.Lock()
		n++
		id := strconv.Itoa(n)
		mu.Unlock()
		res, err := publishedScript.Run(ctx, rdb, []string{"p:" + key}, text, id).Slice()
		return err == nil && res[0] == int64(1), err
	})
}

// startRedis starts a redis-server. stop ends the server.
func startRedis() (rdb *redis.Client, stop func()) {
	p := &redistest.Program{}
	rdb = redis.NewClient(redisstore.ClientOptions(10*time.Second, redistest.Server(p).Addr()).Simple())
	return rdb, func() { rdb.Close(); p.End() }
}

func redisTables(o options) ([]*table, error) {
	rdb, stop := startRedis()
	defer stop()
	cost, err := serverCost(o, rdb)
	if err != nil {
		return nil, err
	}
	rates, err := throughput(o, rdb)
	if err != nil {
		return nil, err
	}
	blocked, err := hybridBlocked(o, rdb)
	return []*table{cost, rates, blocked}, err
}

// met returns the text that says whether a target is met.
func met(ok bool) string {
	if ok {
		return "met"
	}
	return "missed"
}

// throughput measures checks a second and their latency at the client.
func throughput(o options, rdb *redis.Client) (*table, error) {
	t := &table{title: "Checks a second in Redis", note: "Client and server share the machine. Each cell has thousands of checks a second, and the time of one check: p50 / p99 in µs.", header: []string{""}}
	many := keysOf(o.pick(100_000, 1000))
	scenes := []struct {
		name string
		keys []string
		n    int // goroutines
	}{{"one key, 1 goroutine", many[:1], 1}, {"16", many[:1], 16}, {"128", many[:1], 128},
		{fmt.Sprintf("%d keys, 1", len(many)), many, 1}, {"16", many, 16}, {"128", many, 128}}
	for _, s := range scenes {
		t.header = append(t.header, s.name)
	}
	t.header = append(t.header, "errors")
	hot := map[string]float64{} // checks a second of one key on 128 goroutines
	cpu := math.Inf(1)          // of the server for a check of weir, GCRA, in µs
	ch := chart{File: "redis-hot-key", Title: "One hot key in Redis, 128 goroutines: time a check", Unit: "ns"}
	for _, c := range slices.Concat(sharedContenders, concurrent) {
		rdb.FlushAll(ctx)
		row := []any{c.name}
		failed, asked := 0, 0
		for _, s := range scenes {
			before := serverCPU(rdb)
			l, err := c.load(c.open(rdb, 1<<24), s.keys, s.n, time.Duration(o.pick(1000, 50))*time.Millisecond)
			if err != nil {
				return nil, fmt.Errorf("%s: %s: %w", c.name, s.name, err)
			}
			if s.n == 128 && c.name == "weir, GCRA" {
				cpu = min(cpu, (serverCPU(rdb)-before)/float64(len(l.micros)))
			}
			failed, asked = failed+l.failed, asked+len(l.micros)
			row = append(row, fmt.Sprintf("%.1f: %.0f / %.0f", l.rate/1e3, l.micros[len(l.micros)/2], l.micros[len(l.micros)*99/100]))
			if s.n == 128 && len(s.keys) == 1 {
				hot[c.name] = l.rate
				ch.Bars = append(ch.Bars, bar{c.name, 1e9 / l.rate})
			}
		}
		t.add(append(row, fmt.Sprintf("%.1f %%", 100*float64(failed)/float64(asked)))...)
	}
	x := hot["weir, GCRA, Coalesce"] / hot["weir, GCRA"]
	t.note += fmt.Sprintf(" **Coalesce on one key, 128 goroutines: %.1f × (target 15: %s). ", x, met(x >= 15)) +
		fmt.Sprintf("CPU of Redis for a check of weir, GCRA, with its sockets: %.1f µs (target 11: %s).**", cpu, met(cpu <= 11))
	t.charts = []chart{ch}
	return t, nil
}

var usedCPU = regexp.MustCompile(`used_cpu_(?:user|sys):([\d.]+)`)

// serverCPU returns the µs of CPU that the Redis server has used.
func serverCPU(rdb *redis.Client) (usec float64) {
	for _, m := range usedCPU.FindAllStringSubmatch(rdb.Info(ctx, "cpu").Val(), -1) {
		seconds, _ := strconv.ParseFloat(m[1], 64)
		usec += seconds * 1e6
	}
	return usec
}

// A load holds the results of checks on several goroutines.
type load struct {
	micros series  // the time of each check, the shortest first
	failed int     // checks with an error
	rate   float64 // checks a second
}

// load makes checks on n goroutines for the duration d. It returns an error if a check is
// refused, or if a check returns an error and c.errs is not set.
func (c *shared) load(newCheck func() check, keys []string, n int, d time.Duration) (l load, err error) {
	var mu sync.Mutex
	var wg sync.WaitGroup
	start := time.Now()
	for g := range n {
		wg.Go(func() {
			took, failed, wrong := c.askFor(newCheck(), keys, uint32(g)*40503, start.Add(d))
			mu.Lock()
			defer mu.Unlock()
			l.micros, l.failed = append(l.micros, took...), l.failed+failed
			if err == nil {
				err = wrong
			}
		})
	}
	wg.Wait()
	l.rate = float64(len(l.micros)) / time.Since(start).Seconds()
	slices.Sort(l.micros)
	return l, err
}

// askFor makes checks until the given time, at least one. It returns how many µs each check took, and how
// many checks failed.
func (c *shared) askFor(ask check, keys []string, at uint32, end time.Time) (took series, failed int, err error) {
	for begin := time.Now(); took == nil || begin.Before(end); begin = time.Now() {
		at += 2654435761
		allowed, askErr := ask(keys[int(at>>4)%len(keys)])
		took = append(took, float64(time.Since(begin))/1e3)
		switch {
		case askErr != nil && !c.errs:
			return took, failed, askErr
		case askErr != nil:
			failed++
		case !allowed:
			err = errors.New("a wrong decision: denied")
		}
	}
	return took, failed, err
}

// hybridBlocked counts the commands that Redis gets for a key that Hybrid refuses from memory.
func hybridBlocked(o options, rdb *redis.Client) (*table, error) {
	rdb.FlushAll(ctx)
	ask := weirOf(quota.Hybrid(storeOf(rdb, "h:"), quota.HybridOptions{MaxKeys: 1000}), algorithms.GCRA(1, time.Hour))()
	for range 2 {
		if _, err := ask("k"); err != nil {
			return nil, err
		}
	}
	rdb.ConfigResetStat(ctx)
	n := o.pick(1_000_000, 10_000)
	start := time.Now()
	for range n {
		if allowed, err := ask("k"); err != nil || allowed {
			return nil, fmt.Errorf("hybrid: a wrong decision: %v, %v", allowed, err)
		}
	}
	took := time.Since(start)
	calls, _, err := serverTime(rdb, nil)
	t := &table{title: "A blocked key under Hybrid", header: []string{"asks", "Redis commands", "ns an ask"}}
	t.add(n, calls, fmt.Sprintf("%.0f", float64(took)/float64(n)))
	return t, err
}
