package main

import (
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"
	"github.com/valkey-io/valkey-go"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// The names of contenders that verdicts compares.
const (
	valkeyLimiter  = "valkeylimiter's script, valkey-go"
	scriptOnValkey = "weir's script alone, valkey-go"
	rateLimiter    = "redis_rate"
	plainWeir      = "weir, plain client"
	ownWeir        = "weir"
	coalescedWeir  = "weir, Coalesce"
)

// callersTables measures checks that one to 128 callers make as fast as they can.
func callersTables(o options) ([]*table, error) {
	rdb, stop := startRedis()
	defer stop()
	addr := rdb.Options().Addr
	vk, err := valkey.NewClient(valkey.ClientOption{InitAddress: []string{addr}, DisableCache: true})
	if err != nil {
		return nil, err
	}
	defer vk.Close()
	plain, own := redis.NewClient(&redis.Options{Addr: addr}), redis.NewUniversalClient(redisstore.ClientOptions(10*time.Second, addr))
	defer plain.Close()
	defer own.Close()
	store := func(rdb redis.UniversalClient, prefix string) quota.Store {
		return must(redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: 10 * time.Second}))
	}
	limit := algorithms.GCRA(1<<24, time.Minute)
	contenders := []caller{
		{valkeyLimiter, limiterScript(vk)},
		{scriptOnValkey, scriptOver(vk, addr, limit)},
		{rateLimiter, contenderOf("redis_rate").open(plain, 1<<24)},
		{"redis_rate, weir's client options", rateOf(own)},
		{plainWeir, weirOf(store(plain, "cp:"), limit)},
		{ownWeir, weirOf(store(own, "co:"), limit)},
		{coalescedWeir, weirOf(quota.Coalesce(store(own, "cc:")), limit)},
	}
	many := keysOf(o.pick(100_000, 1000))
	var tables []*table
	for _, keys := range [][]string{many[:1], many} {
		t, err := callersOf(o, rdb, contenders, keys)
		if err != nil {
			return nil, err
		}
		tables = append(tables, t)
	}
	return tables, nil
}

type caller struct {
	name     string
	newCheck func() check
}

// A crowd holds what a contender has reached with a number of callers, one value a round.
type crowd struct{ rate, p50, p99, client, server series }

func callersOf(o options, rdb *redis.Client, contenders []caller, keys []string) (*table, error) {
	rounds := o.pick(15, 1)
	t := &table{title: fmt.Sprintf("Callers of Redis, keys: %d", len(keys)),
		header: []string{""}, note: fmt.Sprintf("Client and server share the machine. Each cell has thousands of checks a second; "+
			"the time of one check, p50 / p99; and its CPU time in the process + in Redis. All times are in µs, all values medians of %d alternating rounds.", rounds)}
	cells := make([][]any, len(contenders))
	for _, n := range []int{1, 4, 16, 128} {
		t.header = append(t.header, fmt.Sprintf("callers: %d", n))
		crowds := map[string]*crowd{}
		_, err := interleave(len(contenders), rounds, func(i int) (float64, error) {
			c := contenders[i]
			if crowds[c.name] == nil { // the warm-up does not count
				crowds[c.name] = &crowd{}
				_, err := c.measure(rdb, keys, n, 50*time.Millisecond, &crowd{})
				return 0, err
			}
			return c.measure(rdb, keys, n, time.Duration(o.pick(150, 20))*time.Millisecond, crowds[c.name])
		})
		if err != nil {
			return nil, err
		}
		for i, c := range contenders {
			s := crowds[c.name]
			cells[i] = append(cells[i], fmt.Sprintf("%.1f; %.0f / %.0f; %.1f + %.1f",
				s.rate.median(), s.p50.median(), s.p99.median(), s.client.median(), s.server.median()))
		}
		t.note += verdicts(n, len(keys), crowds)
	}
	for i, c := range contenders {
		t.add(append([]any{c.name}, cells[i]...)...)
	}
	return t, nil
}

// verdicts returns how Weir compares with the peers, by the medians of the ratios of each round.
func verdicts(n, keys int, crowds map[string]*crowd) (s string) {
	of := func(what string, mine, other series, atLeast, atMost float64) {
		x := mine.over(other).median()
		s += fmt.Sprintf(" **Callers: %d, %s %.2f (target %.2f: %s).**", n, what, x, max(atLeast, atMost), met(x >= atLeast && (atMost == 0 || x <= atMost)))
	}
	weir, valkey, rate := crowds[ownWeir], crowds[valkeyLimiter], crowds[rateLimiter]
	switch {
	case n == 1:
		of("time ÷ redis_rate", weir.p50, rate.p50, 0, 0.95)
		of("time with a plain client ÷ redis_rate", crowds[plainWeir].p50, rate.p50, 0, 0.95)
	case n == 4 && keys == 1:
		of("Coalesce ÷ the store", crowds[coalescedWeir].rate, weir.rate, 0.9, 0)
	case n > 4:
		of("checks a second ÷ valkeylimiter", weir.rate, valkey.rate, 0.9, 0)
		of("p99 ÷ valkeylimiter", weir.p99, valkey.p99, 0, 1.2)
	}
	return s
}

// measure makes checks on n goroutines for the duration d, and adds the results to s.
func (c caller) measure(rdb *redis.Client, keys []string, n int, d time.Duration, s *crowd) (float64, error) {
	server, client := serverCPU(rdb), ownCPU()
	l, err := (&shared{}).load(c.newCheck, keys, n, d)
	if err != nil {
		return 0, fmt.Errorf("%s, %d callers: %w", c.name, n, err)
	}
	checks := float64(len(l.micros))
	s.client, s.server = append(s.client, (ownCPU()-client)/checks), append(s.server, (serverCPU(rdb)-server)/checks)
	s.rate = append(s.rate, l.rate/1e3)
	s.p50, s.p99 = append(s.p50, l.micros[len(l.micros)/2]), append(s.p99, l.micros[len(l.micros)*99/100])
	return 0, nil
}

func rateOf(rdb redis.UniversalClient) func() check {
	l := redis_rate.NewLimiter(rdb)
	return each(func(key string) (bool, error) {
		res, err := l.Allow(ctx, "own:"+key, redis_rate.Limit{Rate: 1 << 24, Burst: 1 << 24, Period: time.Minute})
		return err == nil && res.Allowed > 0, err
	})
}

// limiterScript makes the calls of valkeylimiter, whose module the Go module proxy does not have, with
// its script: a counter and its end, by the clock of the client.
func limiterScript(vk valkey.Client) func() check {
	script := valkey.NewLuaScript(`
local rate_limit_key = KEYS[1]
local increment_amount = tonumber(ARGV[1])
local next_expires_at = tonumber(ARGV[2])
local current_time = tonumber(ARGV[3])
local expires_at_key = KEYS[2]
local expires_at = tonumber(redis.call("get", expires_at_key))
if not expires_at or expires_at < current_time then
  redis.call("set", rate_limit_key, 0, "pxat", next_expires_at + 1000)
  redis.call("set", expires_at_key, next_expires_at, "pxat", next_expires_at + 1000)
  expires_at = next_expires_at
end
local current = redis.call("incrby", rate_limit_key, increment_amount)
return { current, expires_at }
`)
	return each(func(key string) (bool, error) {
		now := time.Now()
		reply, err := script.Exec(ctx, vk, []string{"vl:{" + key + "}", "vl:{" + key + "}:ex"},
			[]string{"1", strconv.FormatInt(now.Add(time.Minute).UnixMilli(), 10), strconv.FormatInt(now.UnixMilli(), 10)}).AsIntSlice()
		return err == nil && len(reply) == 2 && reply[0] <= 1<<24, err
	})
}

// scriptOver runs the script of a check of Weir over valkey-go, without the store: nobody reads the
// decision in the reply, and there is no budget.
func scriptOver(vk valkey.Client, addr string, limit quota.Limit) func() check {
	const key = "recorded-key"
	rdb := redis.NewClient(redisstore.ClientOptions(0, addr).Simple())
	defer rdb.Close()
	h := &lastScript{}
	rdb.AddHook(h)
	ask := weirOf(must(redisstore.New(rdb, redisstore.Options{Prefix: "cs:"})), limit)()
	for h.args == nil || h.args[0] != "evalsha" {
		_ = must(ask(key))
	}
	return each(func(k string) (bool, error) {
		args := slices.Clone(h.args)
		args[3] = strings.Replace(args[3], key, k, 1)
		reply, err := vk.Do(ctx, vk.B().Arbitrary(args...).Build()).ToString()
		return err == nil && strings.Contains(reply[:min(len(reply), 24)], " 1;"), err
	})
}

// A lastScript is a hook that keeps the arguments of the last script.
type lastScript struct{ args []string }

func (h *lastScript) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *lastScript) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h *lastScript) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if strings.HasPrefix(cmd.Name(), "eval") {
			h.args = nil
			for _, arg := range cmd.Args() {
				switch arg := arg.(type) {
				case []byte:
					h.args = append(h.args, string(arg))
				default:
					h.args = append(h.args, fmt.Sprint(arg))
				}
			}
		}
		return next(ctx, cmd)
	}
}
