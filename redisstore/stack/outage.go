package stack

import (
	"cmp"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// outages write the log lines about Redis: one when an outage begins, and one when it ends. A
// check, a breaker or a fallback may be the first to find an outage, so the line says the same for
// each of them. While Redis cannot be used until its setup is changed, a line is repeated every
// minute.
type outages struct {
	logger *slog.Logger
	effect func() string // what an outage means for the limits, however the store is used

	mu     sync.Mutex
	began  time.Time   // zero if there is none
	slow   time.Time   // when Redis was first found to be too slow; zero if it is not
	logged bool        // the outage has a line
	again  time.Time   // when the next line may say that Redis is too slow: see slowAgain
	loud   sparse.Gate // limits the lines that are repeated every minute
}

// slowAgain is how often a line may say that Redis is too slow. If only one of several masters is
// too slow, and gets few requests, each of them begins an outage that the others end.
const slowAgain = 10 * time.Minute

// begin notes that Redis has failed.
func (o *outages) begin(err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	begins := o.began.IsZero()
	if begins {
		o.began = time.Now()
	}
	if errors.Is(err, quota.ErrUnusable) {
		if _, ok := o.loud.Pass(); ok {
			o.logged = true
			o.logger.Error("stack: setup of Redis unusable until it is changed", "err", err, "effect", o.effect())
		}
		return
	}
	if errors.Is(err, quota.ErrSlow) {
		if o.slow.IsZero() {
			o.slow = time.Now()
		}
		if o.slow.After(o.again) {
			o.logged, o.again = true, o.slow.Add(slowAgain)
			o.logger.Warn("stack: timeout too short for this Redis", "err", err, "effect", o.effect(),
				"fix", "raise redisstore.Options.Timeout (-redis-timeout), or bring Redis nearer")
		}
		return
	}
	if !begins && !o.slow.IsZero() { // it may have been slow before it failed
		_, begins = o.loud.Pass()
	}
	if begins {
		o.logged = true
		text, advice := "stack: outage of Redis began", "check that Redis runs and that this process can reach it"
		if errors.Is(err, quota.ErrBusy) {
			text, advice = "stack: overload of Redis or this process began", "lower the load, or add processors"
		}
		o.logger.Warn(text, "err", err, "cause", quota.Cause(err), "effect", o.effect(), "advice", advice)
	}
}

// end notes that Redis works. logs is false after a single late decision, which needs no second
// line.
func (o *outages) end(logs bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if logs && o.logged {
		o.logger.Info("stack: use of Redis continues", "after", period.Rounded(time.Since(o.began)))
	}
	o.began, o.slow, o.logged = time.Time{}, time.Time{}, false
	o.loud.Reset()
}

// fallback returns a fallback whose outages o logs, instead of the fallback itself.
func (o *outages) fallback(primary, memory quota.Store) (f *quota.FallbackStore) {
	f = quota.Fallback(primary, memory, quota.FallbackOptions{
		Logger: slog.New(slog.DiscardHandler),
		OnChange: func(active bool, err error) {
			if active {
				o.begin(err)
				return
			}
			s := f.Stats()
			o.end(s.Last.After(s.Since))
		},
	})
	return f
}

// breaker returns a breaker in front of Redis whose outages o logs. The breaker itself logs them
// only if its options have a Logger.
func (o *outages) breaker(redis quota.Store, b quota.BreakerOptions) *quota.BreakerStore {
	b.Logger = cmp.Or(b.Logger, slog.New(slog.DiscardHandler))
	user := b.OnChange
	b.OnChange = func(open bool, err error) {
		if open {
			o.begin(err)
		} else {
			o.end(true)
		}
		if user != nil {
			user(open, err)
		}
	}
	return quota.Breaker(redis, b)
}
