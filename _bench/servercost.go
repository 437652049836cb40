package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// A recorder is a hook of a client. It keeps the arguments of the last call of a script, and
// counts the commands by their names. A store connects on goroutines of its own, so commands
// can meet.
type recorder struct {
	mu   sync.Mutex
	args []any
	sent map[string]int64
}

// last returns the arguments of the last call of a script, which the store does not use again.
func (r *recorder) last() []any {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.args)
}

// since returns the counts since the last call of since.
func (r *recorder) since() map[string]int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	sent := r.sent
	r.sent = map[string]int64{}
	return sent
}

func (r *recorder) DialHook(next redis.DialHook) redis.DialHook { return next }

func (r *recorder) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		r.mu.Lock()
		if cmd.Name() == "evalsha" {
			r.args = slices.Clone(cmd.Args())
		}
		r.sent[cmd.Name()]++
		r.mu.Unlock()
		return next(ctx, cmd)
	}
}

func (r *recorder) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

// serverCost measures how long the Redis server works on one check, by its own statistics.
func serverCost(o options, rdb *redis.Client) (*table, error) {
	t := &table{title: "What a check costs Redis", note: fmt.Sprintf("Server µs per check, from INFO commandstats: the least of %d rounds (and the median). A round is %d checks of one key in one pipeline, so that the server does not sleep between them, and the server has no other script meanwhile; a check of throttled is several commands, which all count, and they go one by one.", o.pick(100, 1), o.pick(300, 20)),
		header: []string{"", "allowed, µs", "round trips", "denied, µs", "round trips", "bytes of a key with one unit"}}
	rec := &recorder{sent: map[string]int64{}}
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
			trips[i], usec, err = contenders[i].serverTime(rdb, rec, asks[i], scene.quota > 1 || contenders[i].always, o.pick(300, 20))
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
		{"weir, two rules with a key each", "redis_rate", [2]float64{1, 1}},
		{"weir, three rules with a key each", "redis_rate", [2]float64{1.1, 1.1}},
		{"weir, three rules with a key each", "leanest script, three keys", [2]float64{1.2, 1.2}},
		{"weir, GCRA beside a log", "redis_rate", [2]float64{2, 2}},
		{"weir, the login of the README", "redis_rate", [2]float64{2.2, 2.2}},
		{"weir, a refund", "redis_rate", [2]float64{1, 1}},
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

// serverTime empties the server, makes some checks one by one, and then ops checks in a
// pipeline. It returns the number of commands of a check, and the server µs per check. The
// single checks after the first must be allowed if want is true, and refused otherwise.
func (c *shared) serverTime(rdb *redis.Client, rec *recorder, ask check, want bool, ops int) (trips, usec float64, err error) {
	if err := cmp.Or(rdb.FlushAll(ctx).Err(), rdb.ScriptFlush(ctx).Err()); err != nil {
		return 0, 0, err
	}
	if _, err := ask("k"); err != nil {
		return 0, 0, err
	}
	asked := func(n int) (trips, usec float64, err error) {
		rdb.ConfigResetStat(ctx)
		rec.since()
		for range n {
			if allowed, err := ask("k"); err != nil || allowed != want {
				return 0, 0, fmt.Errorf("a wrong decision: %v, %v", allowed, err)
			}
		}
		sent := rec.since()
		if !c.several {
			delete(sent, "time") // a store connects with it
		}
		trips, usec, err = serverTime(rdb, sent)
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
		args := rec.last()
		if c.unique {
			args[len(args)-1] = i
		}
		pipe.Do(ctx, args...)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return 0, 0, err
	}
	_, usec, err = serverTime(rdb, map[string]int64{"evalsha": int64(ops)})
	if err != nil {
		return 0, 0, err
	}
	_, _, err = asked(1) // the checks before and after the pipeline have the same decision
	return trips, usec / float64(ops), err
}

// serverTime returns how many commands of a check a client has sent since the last CONFIG
// RESETSTAT, and how many µs Redis worked on them. The argument sent has what the client sent,
// by name: commands in scripts have the same names, and their time is part of the time of the
// scripts. So of the time of a name only the share of what was sent counts. If sent is nil, everything
// counts.
func serverTime(rdb *redis.Client, sent map[string]int64) (calls, usec float64, err error) {
	info, err := rdb.Info(ctx, "commandstats").Result()
	if err != nil {
		return 0, 0, err
	}
	for name, s := range redistest.CommandStats(info) {
		switch name {
		case "info", "config|resetstat", "ping", "hello", "client|setinfo", "command", "dbsize":
			continue
		}
		n := float64(sent[name])
		if sent == nil {
			n = float64(s.Calls)
		}
		if n > 0 {
			calls += n
			usec += float64(s.Micros) * n / float64(s.Calls)
		}
	}
	return calls, usec, nil
}
