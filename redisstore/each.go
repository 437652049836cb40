package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// TakeEach implements quota.Batcher. It returns the same results as successive calls to Take, but
// usually needs only one round trip. Options.Timeout applies to the whole batch. In a cluster,
// TakeEach makes one round trip per slot, all of them concurrently. If any transaction has keys in
// several slots, TakeEach evaluates all transactions one by one.
func (s *Store) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	if err := ctx.Err(); err != nil {
		return slices.Repeat([]error{err}, len(ts))
	}
	errs := make([]error, len(ts))
	budget := queue.WithBudget(ctx, s.timeout)
	s.decideAll(budget, s.group(ts, errs), errs)
	failed := false
	for i, err := range errs {
		if err != nil {
			errs[i], failed = s.timeoutCause(ctx, s.judge(budget, ts[i], err)), true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

// group returns the calls that decide ts. Transactions with equal charges share a call if
// they are additive and no transaction between them charges their key. group sets the error
// of each invalid transaction in errs.
func (s *Store) group(ts []*quota.Transaction, errs []error) (calls []*call) {
	last := map[string]*call{} // by key: the last call that charges the key
	around := []int64{time.Now().UnixMicro()}
	for i, t := range ts {
		if errs[i] = t.Validate(); errs[i] != nil {
			continue
		}
		if len(t.Charges) == 0 {
			t.Decide(around[0], nil)
			continue
		}
		c := last[storedkey.Of(t.Charges[0].Key)]
		if c == nil || !c.joins(t) {
			c = &call{within: longestWait(t)}
			calls = append(calls, c)
			for j := range t.Charges {
				last[storedkey.Of(t.Charges[j].Key)] = c
			}
		}
		c.ts, c.of = append(c.ts, t), append(c.of, i)
	}
	return slices.DeleteFunc(calls, func(c *call) bool {
		err := s.prepare(c, around)
		for _, i := range c.of {
			errs[i] = err
		}
		return err != nil
	})
}

// joins reports whether t may join the call: whether its charges equal those of the call, and
// a script can decide many such transactions in one step.
func (c *call) joins(t *quota.Transaction) bool {
	return atOnce(c.ts[0]) && atOnce(t) && !slices.ContainsFunc(t.Charges, func(c quota.Charge) bool {
		a, ok := c.Limit.Algorithm.(Additive)
		return !ok || !compare.Can(a) || c.Cost < 0 || c.Key != t.Charges[0].Key
	}) && slices.Equal(t.Charges, c.ts[0].Charges)
}

// atOnce reports whether t spends its charges now or not at all.
func atOnce(t *quota.Transaction) bool { return t.Mode == quota.ModeSpend && longestWait(t) == 0 }

// decideAll decides calls in one round trip, or in a cluster in one round trip for each
// slot. If a call in a cluster has keys of several slots, decideAll decides all calls one
// by one.
func (s *Store) decideAll(ctx context.Context, calls []*call, errs []error) {
	if s.queue != nil {
		s.decideLine(ctx, calls, errs)
		return
	}
	lines := map[string][]*call{}
	for _, c := range calls {
		if s.split(c.ts[0]) != nil { // calls of other slots must not overtake this one
			for _, c := range calls {
				s.takeAlone(ctx, c, errs)
			}
			return
		}
		slot := s.slot(c.ts[0].Charges[0].Key)
		lines[slot] = append(lines[slot], c)
	}
	var wg sync.WaitGroup
	for _, line := range lines {
		wg.Go(func() { s.decideLine(ctx, line, errs) })
	}
	wg.Wait()
}

// decideLine decides calls of one node, in one round trip.
func (s *Store) decideLine(ctx context.Context, calls []*call, errs []error) {
	cmds, err := s.send(ctx, calls...)
	for i, c := range calls {
		e := err
		if e == nil {
			e = c.explain(s, cmds[i])
		}
		if _, ok := beyondEdges(e); ok {
			s.takeAlone(ctx, c, errs)
			continue
		}
		for _, j := range c.of {
			errs[j] = e
		}
	}
}

// takeAlone decides the transactions of a call one by one, each with its own call.
func (s *Store) takeAlone(ctx context.Context, c *call, errs []error) {
	for i, t := range c.ts {
		errs[c.of[i]] = s.take(ctx, t)
	}
}
