package stack

import (
	"context"
	"errors"
	"slices"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
	"github.com/seed83679106/weir/redisstore"
)

// A primary is the primary store of the fallback.
type primary struct {
	quota.Store
	checker *checker
}

// An unlessSlow is the primary store of the fallbacks. If a server is too slow for the Timeout and
// therefore answers only some requests in time, the fallback evaluates all requests with keys of
// this server, so that units are not counted in both stores.
type unlessSlow struct {
	primary
	redis *redisstore.Store
}

// Take implements quota.Store.
func (u unlessSlow) Take(ctx context.Context, t *quota.Transaction) error {
	if err := u.redis.Slow(ctx, t); err != nil {
		if u.checker.outages.begin(err); !t.Refunds() { // only Redis can refund units that were spent there
			return err
		}
	}
	return u.primary.Take(ctx, t)
}

// A parted store is a FallbackStore. While one of several servers is down or too slow, only the
// keys of this server are counted in memory, even if a transaction also has keys of other servers.
// Until the breaker opens, or the server is found to be too slow, the fallback evaluates the whole
// transaction.
type parted struct {
	*quota.FallbackStore
	redis   *redisstore.Store
	breaker *quota.BreakerStore
}

// Take implements quota.Store.
func (p parted) Take(ctx context.Context, t *quota.Transaction) error {
	refundsBoth := func(c quota.Charge) bool { return c.FellBack != t.Charges[0].FellBack }
	if len(t.Charges) > 1 && ctx.Err() == nil &&
		(p.breaker.Stats().Open || p.redis.Slow(ctx, t) != nil || slices.ContainsFunc(t.Charges[1:], refundsBoth)) {
		if done, err := p.redis.TakeParts(ctx, t, p.FallbackStore.Take); done {
			return err
		}
	}
	return p.FallbackStore.Take(ctx, t)
}

// A mirrored store calls Redis. If Redis refuses a charge, Take leaves no more units in memory than
// this process's share of what Redis has left. Otherwise the key could spend this process's share of
// the limit whenever an answer of Redis is late. What an operator refunds, as by quota.Reset, or
// forgets, is therefore refunded or forgotten in the memory of this process, too.
type mirrored struct {
	*quota.CoalescedStore
	optional.Tracker
	memory quota.Store
}

// Take implements quota.Store.
func (m mirrored) Take(ctx context.Context, t *quota.Transaction) error {
	err := m.CoalescedStore.Take(ctx, t)
	if err != nil || t.Mode == quota.ModePeek {
		return err
	}
	for i, d := range t.Decisions {
		if t.Charges[i].Cost < 0 || !d.Allowed || t.Mode == quota.ModeForget {
			m.mirror(ctx, t, t.Charges[i], d)
		}
	}
	return nil
}

// mirror refunds, forgets or spends in memory what Redis has refunded, forgotten or refused.
func (m mirrored) mirror(ctx context.Context, t *quota.Transaction, c quota.Charge, d quota.Decision) {
	// Units in flight would not be released here, and bans are not units. What package credit
	// grants stays in Redis, or the key could spend it in both stores.
	_, whole := c.Limit.Algorithm.(optional.Indivisible)
	if refunds := t.Allowed() && c.Cost < 0 && c.Spent == 0 && !whole; refunds || t.Mode == quota.ModeForget {
		_ = m.memory.Take(ctx, &quota.Transaction{Charges: []quota.Charge{c}, Mode: t.Mode})
	} else if !d.Allowed && d.Remaining >= 0 && !c.Limit.InFlight() && !whole {
		c.Cost, c.Headroom = 1, c.Headroom+d.Remaining // which a class, or a smaller cost, may still spend
		_ = m.memory.Take(ctx, &quota.Transaction{Charges: []quota.Charge{c}, Mode: quota.ModeAtMost, Most: c.Limit.Capacity()})
	}
}

// Watch implements optional.Watcher.
func (p primary) Watch(c quota.Charge, done func(d quota.Decision, current func() bool)) bool {
	w, ok := p.Store.(optional.Watcher)
	return ok && w.Watch(c, done)
}

// Take implements quota.Store. If Redis has become unusable or refuses writes, Take starts a check,
// which finds out what is wrong.
func (p primary) Take(ctx context.Context, t *quota.Transaction) error {
	err := p.Store.Take(ctx, t)
	if err != nil && (errors.Is(err, quota.ErrUnusable) || !errors.Is(err, quota.ErrOpen) && refusesWrites(err)) {
		p.checker.outages.begin(err)
		p.checker.check()
	}
	return err
}
