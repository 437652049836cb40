package stack

import (
	"log/slog"
	"sync/atomic"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A lossDetector detects that Redis has lost counts, by comparing successive heartbeats.
type lossDetector struct {
	last          *redisstore.Heartbeat // the last heartbeat; nil before the first one
	lost, evicted atomic.Int64
}

func (l *lossDetector) stats() quota.LossStats {
	return quota.LossStats{Lost: l.lost.Load(), Evicted: l.evicted.Load()}
}

// check compares a heartbeat with the previous one.
func (l *lossDetector) check(h *redisstore.Heartbeat, logger *slog.Logger) {
	last := l.last
	l.last = h
	if last == nil {
		return
	}
	evicted := int64(0)
	if h.Server == last.Server { // a different server counts its evicted keys separately
		evicted = h.Evicted - last.Evicted
	}
	switch {
	case evicted > 0: // the evicted keys may include the hash of the processes
		l.evicted.Add(evicted)
		logger.Warn("stack: keys evicted by Redis", "evicted", evicted, "effect", "a client whose key was evicted has its whole quota again",
			"fix", "give Redis more memory, or set maxmemory-policy to volatile-lfu or noeviction")
	case h.Lost(last):
		l.lost.Add(1)
		likely := "FLUSHALL or FLUSHDB"
		switch {
		case h.Server == "":
			likely = "FLUSHALL, an eviction, a restart without persistence, or a failover"
		case h.Server != last.Server:
			likely = "a restart without persistence, or a failover"
		}
		logger.Warn("stack: counts in Redis lost", "likely", likely, "effect", "clients have their quotas again, and bans have ended",
			"fix", "set appendonly to yes in Redis, and give programs that flush another server")
	}
}
