package main

import (
	"context"
	"crypto/rand"
	"log/slog"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/redis/go-redis/v9"
)

// How often a service checks whether Redis has lost counts.
const lossInterval = 10 * time.Second

// sentinelLua returns the text of the sentinel, a key that lives as long as services check it, and
// how many keys Redis has evicted, or "" if the user must not know (or Redis is older than 7). If
// the sentinel is missing, it gets the text ARGV[1].
const sentinelLua = `
local text = redis.call('GET', KEYS[1])
if text then
	redis.call('PEXPIRE', KEYS[1], 3600000)
else
	text = ARGV[1]
	redis.call('PSETEX', KEYS[1], 3600000, text)
end
local evicted = ''
if redis.acl_check_cmd and redis.acl_check_cmd('INFO', 'stats') then
	evicted = string.match(redis.call('INFO', 'stats'), 'evicted_keys:(%d+)') or ''
end
return {text, evicted}`

// losses finds out whether Redis has lost counts: whether it was emptied, by FLUSHALL or by a restart
// without persistence, which the sentinel does not survive either, and whether it evicts keys. In a
// cluster it sees the node of the sentinel only.
type losses struct {
	rdb    redis.UniversalClient
	key    string
	logger *slog.Logger

	text    string // of the sentinel, when it was seen last
	evicted int64

	emptied, evictions prometheus.Counter
}

func newLosses(rdb redis.UniversalClient, prefix string, logger *slog.Logger) *losses {
	return &losses{rdb: rdb, key: prefix + "sentinel", logger: logger, evicted: -1,
		emptied: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_redis_emptied_total",
			Help: "How often this process has noticed that Redis had lost all counts."}),
		evictions: prometheus.NewCounter(prometheus.CounterOpts{Name: "weir_redis_evicted_total",
			Help: "Keys that Redis has evicted, of all its users, if Weir may run INFO."}),
	}
}

// watch checks until ctx ends.
func (l *losses) watch(ctx context.Context) {
	tick := time.NewTicker(lossInterval)
	defer tick.Stop()
	for {
		l.check(ctx)
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}

// check calls Redis once. Other parts of the service log that Redis does not answer.
func (l *losses) check(ctx context.Context) {
	reply, err := l.rdb.Eval(ctx, sentinelLua, []string{l.key}, rand.Text()).StringSlice()
	if err != nil || len(reply) != 2 {
		return
	}
	if l.text != "" && reply[0] != l.text {
		l.emptied.Inc()
		l.logger.Warn("weir: counts in Redis lost", "effect", "clients have their whole quotas again, and bans have ended",
			"likely", "FLUSHALL or FLUSHDB, a restart without persistence, or an eviction")
	}
	l.text = reply[0]
	n, err := strconv.ParseInt(reply[1], 10, 64)
	if err != nil {
		return
	}
	if more := n - l.evicted; l.evicted >= 0 && more > 0 { // a restart sets it to 0
		l.evictions.Add(float64(more))
		l.logger.Warn("weir: keys evicted by Redis", "evicted", more,
			"effect", "a client whose key was evicted has its whole quota again", "fix", "give Redis more memory, or set maxmemory-policy to volatile-lfu or noeviction")
	}
	l.evicted = n
}
