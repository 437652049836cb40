package main

import (
	"context"
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

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/redisstore"
)

// A shared contender is a rate limiter in Redis. No two contenders use the same keys.
type shared struct {
	name string
	open func(rdb *redis.Client, quota int64) func() check
	errs bool // checks may fail; the table shows how many do

	several bool // a check is several commands
	unique  bool // the last argument of the script differs from check to check
}

func storeOf(rdb *redis.Client, prefix string) weir.Store {
	return must(redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: 10 * time.Second}))
}

// several returns n limits of one algorithm with the periods 1 min to n min.
func several(n int, f func(int64, time.Duration) weir.Limit, quota int64) (limits []weir.Limit) {
	for i := range n {
		limits = append(limits, f(quota, time.Duration(i+1)*time.Minute).Named(fmt.Sprint(i)))
	}
	return limits
}

var sharedContenders = []shared{
	{name: "redis_rate", open: func(rdb *redis.Client, quota int64) func() check {
		l := redis_rate.NewLimiter(rdb)
		limit := redis_rate.Limit{Rate: int(quota), Burst: int(quota), Period: time.Minute}
		return each(func(key string) (bool, error) {
			res, err := l.Allow(ctx, key, limit)
			return err == nil && res.Allowed > 0, err
		})
	}},
	{name: "throttled", errs: true, several: true, open: func(rdb *redis.Client, quota int64) func() check {
		s := must(throttledredis.NewCtx(rdb, "throttled:"))
		l := must(throttled.NewGCRARateLimiterCtx(s, throttled.RateQuota{MaxRate: throttled.PerMin(int(quota)), MaxBurst: int(quota) - 1}))
		return each(func(key string) (bool, error) {
			limited, _, err := l.RateLimitCtx(ctx, key, 1)
			return !limited, err
		})
	}},
	{name: "published script, five windows", unique: true, open: published},
	{name: "weir, GCRA", open: func(rdb *redis.Client, quota int64) func() check {
		return weirOf(storeOf(rdb, "w1:"), several(1, algorithms.GCRA, quota)...)
	}},
	{name: "weir, five GCRA", open: func(rdb *redis.Client, quota int64) func() check {
		return weirOf(storeOf(rdb, "w5:"), several(5, algorithms.GCRA, quota)...)
	}},
	{name: "weir, five windows of a log", open: func(rdb *redis.Client, quota int64) func() check {
		return weirOf(storeOf(rdb, "wl:"), several(5, algorithms.SlidingLog, quota)...)
	}},
}

// concurrent are contenders of throughput only.
var concurrent = []shared{
	{name: "weir, GCRA, Coalesce", open: func(rdb *redis.Client, quota int64) func() check {
		return weirOf(weir.Coalesce(storeOf(rdb, "wc:")), several(1, algorithms.GCRA, quota)...)
	}},
	{name: "weir, GCRA, Lease", open: func(rdb *redis.Client, quota int64) func() check {
		return weirOf(lease.New(weir.Coalesce(storeOf(rdb, "we:")), lease.Options{}), several(1, algorithms.GCRA, quota)...)
	}},
}

// windows are contenders of serverCost only.
var windows = []shared{
	windowsOf("weir, fixed window", 1, algorithms.FixedWindow),
	windowsOf("weir, three fixed windows", 3, algorithms.FixedWindow),
	windowsOf("weir, anchored window", 1, algorithms.AnchoredWindow),
	windowsOf("weir, sliding window", 1, algorithms.SlidingWindow),
}

func windowsOf(name string, n int, f func(int64, time.Duration) weir.Limit) shared {
	return shared{name: name, open: func(rdb *redis.Client, quota int64) func() check {
		return weirOf(storeOf(rdb, name+":"), several(n, f, quota)...)
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
func published(rdb *redis.Client, quota int64) func() check {
	type limit struct {
		Limit  int64 `json:"limit"`
		Period int64 `json:"period"`
	}
	var limits []limit
	for i := range 5 {
		limits = append(limits, limit{quota, int64(i+1) * 60e6})
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

// serverTime returns how many commands clients have sent since the last CONFIG RESETSTAT,
// and how many µs Redis worked on them. The time of commands in scripts is part of the time
// of the scripts.
func serverTime(rdb *redis.Client) (calls, usec float64, err error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	var scripts, others redistest.CommandStat
	for name, s := range redistest.CommandStats(info) {
		sum := &others
		switch name {
		case "evalsha", "eval":
			sum = &scripts
		case "info", "config|resetstat", "ping", "hello", "client|setinfo", "command":
			continue
		}
		sum.Calls += s.Calls
		sum.Micros += s.Micros
	}
	if scripts.Calls > 0 {
		return float64(scripts.Calls), float64(scripts.Micros), nil
	}
	return float64(others.Calls), float64(others.Micros), nil
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

// A recorder is a hook of a client. It keeps the arguments of the last call of a script.
type recorder struct{ args []any }

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if cmd.Name() == "evalsha" {
			r.args = cmd.Args()
		}
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// serverCost measures how long the Redis server works on one check, by its own statistics.
func serverCost(o options, rdb *redis.Client) (*table, error) {
	t := &table{title: "What a check costs Redis", note: fmt.Sprintf("Server µs per check, from INFO commandstats: the least of %d rounds (and the median). A round is %d checks of one key in one pipeline, so that the server does not sleep between them; a check of throttled is several commands, and they go one by one.", o.pick(100, 1), o.pick(300, 20)),
		header: []string{"", "allowed, µs", "round trips", "denied, µs", "round trips", "bytes of a key with one unit"}}
	rec := &recorder{}
	rdb = redis.NewClient(rdb.Options())
	defer rdb.Close()
	rdb.AddHook(rec)
	contenders := slices.Concat(sharedContenders, windows)
	cells := make([][]any, len(contenders))
	for i, c := range contenders {
		cells[i] = []any{c.name}
	}
	micros := map[string]series{} // by contender and scene
	for _, scene := range []struct {
		name  string
		quota int64
	}{{"allowed", 1 << 22}, {"denied", 1}} {
		asks, trips := make([]check, len(contenders)), make([]float64, len(contenders))
		for i, c := range contenders {
			asks[i] = c.open(rdb, scene.quota)()
		}
		results, err := interleave(len(contenders), o.pick(100, 1), func(i int) (usec float64, err error) {
			trips[i], usec, err = contenders[i].serverTime(rdb, rec, asks[i], scene.quota > 1, o.pick(300, 20))
			if err != nil {
				err = fmt.Errorf("%s: %s: %w", scene.name, contenders[i].name, err)
			}
			return usec, err
		})
		if err != nil {
			return nil, err
		}
		for i, r := range results {
			cells[i] = append(cells[i], fmt.Sprintf("%.1f (%.1f)", r.least(), r.median()), fmt.Sprintf("%.0f", trips[i]))
			micros[contenders[i].name+scene.name] = r
		}
	}
	ch := chart{File: "redis-allowed", Title: "Server time of a check in Redis: allowed", Unit: "µs"}
	for i, c := range contenders {
		rdb.FlushAll(ctx)
		if _, err := c.open(rdb, 1<<22)()("192.0.2.1"); err != nil {
			return nil, err
		}
		t.add(append(cells[i], storedBytes(rdb))...)
		if i < len(sharedContenders) {
			ch.Bars = append(ch.Bars, bar{c.name, micros[c.name+"allowed"].least()})
		}
	}
	t.charts = []chart{ch}
	for _, v := range []struct {
		ours, peer string
		targets    [2]float64 // allowed, denied
	}{
		{"weir, GCRA", "redis_rate", [2]float64{0.78, 0.65}},
		{"weir, five GCRA", "redis_rate", [2]float64{1.05, 1.05}},
		{"weir, fixed window", "redis_rate", [2]float64{0.95, 0.95}},
		{"weir, three fixed windows", "redis_rate", [2]float64{1.2, 1.2}},
		{"weir, anchored window", "redis_rate", [2]float64{0.95, 0.95}},
		{"weir, sliding window", "redis_rate", [2]float64{0.95, 0.95}},
		{"weir, five windows of a log", "published script, five windows", [2]float64{0.6, 0.6}},
	} {
		row := []any{fmt.Sprintf("**%s beside %s**", v.ours, v.peer)}
		for i, scene := range []string{"allowed", "denied"} {
			x, target := micros[v.ours+scene].least()/micros[v.peer+scene].least(), v.targets[i]
			row = append(row, fmt.Sprintf("%.2f × (target %.2f: %s)", x, target, met(x <= target)), "")
		}
		t.add(append(row, "")...)
	}
	return t, nil
}

// serverTime makes some checks one by one and then ops checks in a pipeline. It returns the
// number of commands of a check, and the server µs per check. The single checks after the first
// must be allowed if want is true, and refused otherwise.
func (c *shared) serverTime(rdb *redis.Client, rec *recorder, ask check, want bool, ops int) (trips, usec float64, err error) {
	if err := rdb.FlushAll(ctx).Err(); err != nil {
		return 0, 0, err
	}
	if _, err := ask("k"); err != nil {
		return 0, 0, err
	}
	asked := func(n int) (trips, usec float64, err error) {
		rdb.ConfigResetStat(ctx)
		for range n {
			if allowed, err := ask("k"); err != nil || allowed != want {
				return 0, 0, fmt.Errorf("a wrong decision: %v, %v", allowed, err)
			}
		}
		trips, usec, err = serverTime(rdb)
		return trips / float64(n), usec / float64(n), err
	}
	if c.several {
		return asked(ops)
	}
	if trips, _, err = asked(2); err != nil {
		return 0, 0, err
	}
	rdb.ConfigResetStat(ctx)
	pipe := rdb.Pipeline()
	for i := range ops {
		args := slices.Clone(rec.args)
		if c.unique {
			args[len(args)-1] = i
		}
		pipe.Do(ctx, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, 0, err
	}
	_, usec, err = serverTime(rdb)
	if err != nil {
		return 0, 0, err
	}
	_, _, err = asked(1) // the checks before and after the pipeline have the same decision
	return trips, usec / float64(ops), err
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
			l, err := c.load(rdb, s.keys, s.n, time.Duration(o.pick(1000, 50))*time.Millisecond)
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
func (c *shared) load(rdb *redis.Client, keys []string, n int, d time.Duration) (l load, err error) {
	newCheck := c.open(rdb, 1<<24)
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

// askFor makes checks until the given time. It returns how many µs each check took, and how
// many checks failed.
func (c *shared) askFor(ask check, keys []string, at uint32, end time.Time) (took series, failed int, err error) {
	for time.Now().Before(end) {
		at += 2654435761
		begin := time.Now()
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
	ask := weirOf(weir.Hybrid(storeOf(rdb, "h:"), 1000), algorithms.GCRA(1, time.Hour))()
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
	calls, _, err := serverTime(rdb)
	t := &table{title: "A blocked key under Hybrid", header: []string{"asks", "Redis commands", "ns an ask"}}
	t.add(n, calls, fmt.Sprintf("%.0f", float64(took)/float64(n)))
	return t, err
}
