package redisstore

import (
	"context"
	"slices"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// TakeEach implements optional.Batcher. It returns the same results as successive calls to Take,
// but usually needs only one round trip. Options.Timeout applies to the whole batch. In a cluster,
// TakeEach makes one round trip per slot, all of them concurrently. If a transaction has keys in
// several slots, TakeEach evaluates all transactions one by one. While a slot moves to another
// node, transactions with keys in that slot may be evaluated in a different order.
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
			errs[i], failed = s.timeoutCause(ctx, s.classify(budget, ts[i], err)), true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

// group returns the evals that evaluate ts. Transactions with equal charges share an eval if their
// algorithms are additive and no transaction between them charges the same key. If a transaction is
// invalid, group sets its error in errs.
func (s *Store) group(ts []*quota.Transaction, errs []error) (evals []*eval) {
	last := map[string]*eval{} // for each key, the last eval that charges the key
	for i, t := range ts {
		if errs[i] = t.Validate(); errs[i] != nil {
			continue
		}
		if len(t.Charges) == 0 {
			t.Decide(time.Now().UnixMicro(), nil)
			continue
		}
		e := last[storedkey.Of(t.Charges[0].Key)]
		if e == nil || !e.canJoin(t) {
			e = &eval{}
			evals = append(evals, e)
			for j := range t.Charges {
				last[storedkey.Of(t.Charges[j].Key)] = e
			}
		}
		e.ts, e.of = append(e.ts, t), append(e.of, i)
	}
	return slices.DeleteFunc(evals, func(e *eval) bool {
		err := s.prepare(e)
		for _, i := range e.of {
			errs[i] = err
		}
		return err != nil
	})
}

// canJoin reports whether t may join the eval, that is, whether its charges equal those of the eval
// and a script can evaluate many such transactions in one step.
func (e *eval) canJoin(t *quota.Transaction) bool {
	return spendsAtOnce(e.ts[0]) && spendsAtOnce(t) && !slices.ContainsFunc(t.Charges, func(c quota.Charge) bool {
		a, ok := c.Limit.Algorithm.(additive)
		return !ok || !safe.Comparable(a) || c.Cost < 0 || c.Key != t.Charges[0].Key
	}) && slices.Equal(t.Charges, e.ts[0].Charges)
}

// spendsAtOnce reports whether t spends all its charges now or none of them.
func spendsAtOnce(t *quota.Transaction) bool {
	return t.Mode == quota.ModeSpend && longestWait(t) == 0
}

// decideAll runs evals in one round trip. In a cluster, it makes one round trip for each slot. If
// an eval has keys in several slots, it evaluates all transactions one by one.
func (s *Store) decideAll(ctx context.Context, evals []*eval, errs []error) {
	if s.queue != nil {
		s.decideBatch(ctx, evals, errs)
		return
	}
	slots := map[string][]*eval{}
	for _, e := range evals {
		if s.split(e.ts[0]) != nil { // evals for other slots must not overtake this one
			for _, e := range evals {
				s.takeAlone(ctx, e, errs)
			}
			return
		}
		slot := s.slot(e.ts[0].Charges[0].Key)
		slots[slot] = append(slots[slot], e)
	}
	var wg sync.WaitGroup
	for _, batch := range slots {
		wg.Go(func() { s.decideBatch(ctx, batch, errs) })
	}
	wg.Wait()
}

// decideBatch runs evals on one node, in one round trip.
func (s *Store) decideBatch(ctx context.Context, evals []*eval, errs []error) {
	cmds, err := s.send(ctx, evals...)
	for i, e := range evals {
		decided := err
		if decided == nil {
			decided = e.decide(s, cmds[i])
		}
		if _, ok := beyondEdges(decided); ok {
			s.takeAlone(ctx, e, errs)
			continue
		}
		for _, j := range e.of {
			errs[j] = decided
		}
	}
}

// takeAlone evaluates the transactions of an eval one by one, each with a separate eval.
func (s *Store) takeAlone(ctx context.Context, e *eval, errs []error) {
	for i, t := range e.ts {
		errs[e.of[i]] = s.take(ctx, t)
	}
}
