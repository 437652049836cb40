package stack

import (
	"context"
	"errors"
	"log/slog"
	"regexp"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/quota"
)

// probeLimits contains a limit for each algorithm that Redis must support. A probe replaces the
// numbers of the limits.
var probeLimits = func() []quota.Limit {
	limits := []quota.Limit{algorithms.Calendar(1, algorithms.Day, nil)}
	for _, name := range algorithms.Names() {
		limits = append(limits, quota.Limit{Algorithm: algorithms.ByName(name), Quota: 1, Period: time.Microsecond})
	}
	return limits
}()

var errUnchecked = errors.New("stack: it is not known yet whether Redis can decide")

// The pause after the first failed check is firstPause. Each further pause is twice as long as the
// previous pause, up to longestPause.
const (
	firstPause   = time.Second
	longestPause = 10 * time.Second
)

// A checker finds out whether Redis is usable. It runs one goroutine, which ends when a check
// succeeds.
type checker struct {
	probe   func(ctx context.Context, limits ...quota.Limit) error
	eval    func(ctx context.Context, script string, keys []string, args ...any) *redis.Cmd
	do      func(ctx context.Context, args ...any) *redis.Cmd
	outages outageLog
	ctx     context.Context // canceled by Close
	cancel  context.CancelFunc
	err     atomic.Pointer[error] // see Store.Err

	mu       sync.Mutex // guards starting and closing
	checking bool
	ended    time.Time // when the last check ended
	running  sync.WaitGroup

	processes processes
}

// Probe immediately checks whether Redis is usable with every algorithm in package algorithms. See
// redisstore.Store.Probe.
func (s *Store) Probe(ctx context.Context) error { return s.redis.Probe(ctx, probeLimits...) }

// CheckSettings logs settings of a usable Redis that are unsuitable for the store: a
// maxmemory-policy under which limited keys are evicted, and a missing permission to track keys.
// The store itself logs such settings after each successful check, so CheckSettings is for tools
// that check a server before it is used. Call it after Probe.
func (s *Store) CheckSettings(ctx context.Context, logger *slog.Logger) {
	s.checker.checkEviction(ctx, logger)
	s.checker.checkTracking(ctx, logger)
}

// Err returns the result of the last check of Redis: nil if Redis was usable, or an error that
// wraps quota.ErrUnusable if Redis is misconfigured or not supported. Any other error means that
// Redis was unreachable or has not been checked yet. Err makes no network call, so a health check
// may call it often.
//
// The store repeats the check until it succeeds, at most 10 s after each failure. If a request
// fails with quota.ErrUnusable, or because Redis refuses writes, as a replica or a full server
// does, the store checks Redis again, but no sooner than 10 s after the last check. Other outages
// that begin after a successful check are reported by metrics and the log, not by Err.
func (s *Store) Err() error { return *s.checker.err.Load() }

// Close stops the background check of Redis and the reports to other processes. Close does not
// close the client, and the store remains usable. Close always returns nil.
func (s *Store) Close() error {
	s.checker.mu.Lock()
	s.checker.cancel()
	s.checker.mu.Unlock()
	s.checker.processes.stop()
	s.checker.running.Wait()
	return nil
}

// If no check is in progress, check starts one, but not before longestPause has passed since the
// last check. Without this pause, checks would run all the time if requests fail because of a
// user's own algorithm, which the checks do not include.
func (c *checker) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checking || c.ctx.Err() != nil {
		return
	}
	c.checking = true
	rest := longestPause - time.Since(c.ended)
	c.running.Go(func() {
		if period.Sleep(c.ctx, rest) == nil {
			c.run()
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		c.checking, c.ended = false, time.Now()
	})
}

// run repeats the check until Redis is usable.
func (c *checker) run() {
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := c.probe(c.ctx, probeLimits...)
		if c.ctx.Err() != nil || errors.Is(err, redis.ErrClosed) {
			return
		}
		c.err.Store(&err)
		if err == nil {
			c.outages.recordPassed()
			if pause > firstPause { // the check has failed before, so another failure is a new one
				c.outages.loud.Reset()
			}
			c.checkEviction(c.ctx, c.outages.logger)
			c.checkTracking(c.ctx, c.outages.logger)
			return
		}
		c.outages.begin(err)
		if period.Sleep(c.ctx, pause) != nil {
			return
		}
	}
}

// memoryLua returns the memory section of INFO, or nothing if the Redis user lacks the permission
// to read it. Redis 7 can check the permission without adding an entry to its ACL LOG.
const memoryLua = `
if not redis.acl_check_cmd or not redis.acl_check_cmd('INFO', 'memory') then return '' end
return redis.call('INFO', 'memory')`

// checkEviction warns if Redis may evict overrides, or keys that are being limited.
func (c *checker) checkEviction(ctx context.Context, logger *slog.Logger) {
	info, _ := c.eval(ctx, memoryLua, nil).Text()
	found := maxMemory.FindStringSubmatch(info)
	if found == nil || found[1] == "0" || found[2] == "noeviction" || found[2] == "volatile-lfu" {
		return
	}
	logger.Warn("stack: setting of Redis lets it evict keys that are being limited", "text", "maxmemory-policy "+found[2],
		"effect", "an evicted key has its whole quota again", "fix", "set maxmemory-policy to volatile-lfu, or to noeviction")
}

// checkTracking warns if the Redis user lacks the permission to track keys. TRACKING OFF, which
// needs the same permission as ON, has no effect on a connection of the pool.
func (c *checker) checkTracking(ctx context.Context, logger *slog.Logger) {
	if err := c.do(ctx, "client", "tracking", "off").Err(); err != nil && redis.HasErrorPrefix(err, "NOPERM") {
		logger.Warn("stack: right of the Redis user missing", "err", err,
			"effect", "a refusal that another process ends may last up to 10 s longer", "fix", "add +client|tracking to the ACL of the user")
	}
}

var maxMemory = regexp.MustCompile(`(?s)\nmaxmemory:(\d+).*\nmaxmemory_policy:([a-z-]+)`)
