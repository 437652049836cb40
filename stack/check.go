package stack

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/counters"
	"github.com/seed83679106/weir/quota"
)

// probed has a limit of each algorithm that Redis must be able to decide. A probe chooses the
// numbers of the limits.
var probed = append(slices.Clip(counters.All), algorithms.Calendar(1, algorithms.Day, nil))

var errUnchecked = errors.New("stack: it is not known yet whether Redis can decide")

// The next check begins a second after one that failed, and then after twice as long as the
// last time, up to longestPause.
const (
	firstPause   = time.Second
	longestPause = 10 * time.Second
)

// A checker finds out whether Redis can decide. It has one goroutine, which ends once Redis can.
type checker struct {
	probe  func(ctx context.Context, limits ...quota.Limit) error
	logger *slog.Logger
	ctx    context.Context // ends with Close
	cancel context.CancelFunc
	err    atomic.Pointer[error] // see Store.Err

	mu       sync.Mutex // held to start and to close
	checking bool
	ended    time.Time // when the last check ended
	running  sync.WaitGroup
}

// Probe immediately checks whether Redis is usable with every algorithm in package algorithms. See
// redisstore.Store.Probe.
func (s *Store) Probe(ctx context.Context) error { return s.redis.Probe(ctx, probed...) }

// Err returns the result of the last check of Redis: nil if Redis was usable, or an error that
// wraps quota.ErrUnusable if Redis is misconfigured or not supported. Any other error means that
// Redis was unreachable or has not been checked yet. Err makes no network call, so a health check
// may call it often.
//
// The store repeats the check until the check succeeds, and waits at most 10 s after each failure.
// It checks Redis again if a request fails with quota.ErrUnusable and the last check was more than
// 10 s ago. Err does not report other outages that begin after a successful check; metrics and the
// log do.
func (s *Store) Err() error { return *s.checker.err.Load() }

// Close stops the background check of Redis. It does not close the client, and the store remains
// usable. Close always returns nil.
func (s *Store) Close() error {
	s.checker.mu.Lock()
	s.checker.cancel()
	s.checker.mu.Unlock()
	s.checker.running.Wait()
	return nil
}

// check starts to check Redis, unless a check is under way, or one has ended within longestPause:
// an ErrUnusable may be about an algorithm that only one rule has.
func (c *checker) check() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.checking || time.Since(c.ended) < longestPause || c.ctx.Err() != nil {
		return
	}
	c.checking = true
	c.running.Go(func() {
		c.run()
		c.mu.Lock()
		defer c.mu.Unlock()
		c.checking, c.ended = false, time.Now()
	})
}

// run checks Redis until it can decide. It logs what each check finds, unless the check before
// has found the same.
func (c *checker) run() {
	var last error
	for pause := firstPause; ; pause = min(2*pause, longestPause) {
		err := c.probe(c.ctx, probed...)
		if c.ctx.Err() != nil || errors.Is(err, redis.ErrClosed) {
			return
		}
		c.err.Store(&err)
		unusable := errors.Is(err, quota.ErrUnusable)
		switch {
		case err == nil && last != nil:
			c.logger.Info("stack: check of Redis passed")
		case err == nil:
		case unusable && (last == nil || last.Error() != err.Error()):
			c.logger.Error("stack: check of Redis failed until its setup is changed", "err", err)
		case !unusable && last == nil:
			c.logger.Warn("stack: check of Redis not answered yet", "err", err)
		}
		if err == nil {
			return
		}
		last = err
		select {
		case <-c.ctx.Done():
			return
		case <-time.After(pause):
		}
	}
}

// primary is the store in front of which the fallback stands.
type primary struct {
	quota.Store
	checker *checker
}

// Take implements quota.Store. If Redis can no longer decide, it starts to check what is missing.
func (p primary) Take(ctx context.Context, t *quota.Transaction) error {
	err := p.Store.Take(ctx, t)
	if err != nil && errors.Is(err, quota.ErrUnusable) {
		p.checker.check()
	}
	return err
}
