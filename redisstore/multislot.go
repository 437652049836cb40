package redisstore

import (
	"cmp"
	"context"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// TakeParts evaluates a transaction with keys in several slots as Take does, but instead of Redis
// it calls the given function, once for the part of each slot. If a server is down, the function
// can thus use another store only for the keys of this server. If all keys are in one slot, or if t
// is invalid, TakeParts does nothing and returns false.
func (s *Store) TakeParts(ctx context.Context, t *quota.Transaction, take func(context.Context, *quota.Transaction) error) (bool, error) {
	if t.Validate() != nil {
		return false, nil
	}
	parts := s.split(t)
	if parts == nil {
		return false, nil
	}
	shared := quota.BudgetOf(ctx)
	used, longest := -shared.Left(0), time.Duration(0)
	for i := range parts { // a slow server must not use up the time of the others
		parts[i].ctx = quota.WithBudget(ctx)
		quota.BudgetOf(parts[i].ctx).Spend(used)
	}
	err := takeParts(t, parts, take)
	for i := range parts {
		longest = max(longest, -quota.BudgetOf(parts[i].ctx).Left(0))
	}
	shared.Spend(longest - used)
	return true, err
}

// takeParts evaluates a transaction whose keys may be on different nodes. First, all slots evaluate
// the charges at the same time, without spending. If one slot refuses, takeParts spends nothing.
// Otherwise, it charges one slot after another, beginning with the slot that has the fewest units
// left. If a slot then refuses because another client was faster, takeParts refunds the units that
// it has spent in the other slots. It refunds exactly those units (see optional.Canceler), so no
// limit admits too much. After an error, the units stay spent. In ModeForce and ModeForget no slot
// refuses, so the first step is not needed. In ModeAtMost, a slot spends its charges at most as often
// as the slots before it, and what these have spent more often is refunded.
//
// A transaction with keys in several slots never waits. Because the clocks of the nodes differ, the
// slots could not reserve the same instant.
func takeParts(t *quota.Transaction, parts []part, take func(context.Context, *quota.Transaction) error) error {
	t.Result = quota.Result{Decisions: slices.Grow(t.Decisions[:0], len(t.Charges))[:len(t.Charges)]}
	if t.Mode < quota.ModeForce {
		if err := peekAll(t, parts, take); err != nil || t.Mode == quota.ModePeek || !t.Allowed() {
			return err
		}
		slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.unitsLeft(), b.unitsLeft()) })
	}
	times := t.Most
	for i := range parts {
		p := &parts[i]
		if p.Most = times; p.Mode == quota.ModeAtMost && p.unitsLeft() == math.MaxInt64 { // it spends nothing
			p.Mode, p.Most = quota.ModeSpend, 0
		}
		if err := take(p.ctx, &p.Transaction); err != nil {
			return err
		}
		if !p.Allowed() {
			refund(parts[:i], 0, take)
			p.fill(t)
			return nil
		}
		if p.Mode == quota.ModeAtMost {
			times = p.Granted
		}
	}
	if t.Mode == quota.ModeAtMost {
		refund(parts, times, take)
		t.Granted = times
	}
	fillAll(t, parts)
	return nil
}

// Server implements optional.Server. In a cluster, it returns the addresses of the masters that
// have the keys.
func (s *Store) Server(t *quota.Transaction) string {
	if s.queue != nil || !s.located.Load() {
		return ""
	}
	var addrs []string
	for i := range t.Charges {
		node, err := s.find(context.Background(), s.probeKey(storedkey.Of(t.Charges[i].Key)))
		if err != nil {
			return ""
		}
		if addr := node.Options().Addr; !slices.Contains(addrs, addr) {
			addrs = append(addrs, addr)
		}
	}
	slices.Sort(addrs)
	return strings.Join(addrs, " ")
}

// A part contains the charges of a transaction whose keys are in one slot. Charges that refund
// units form a separate part.
type part struct {
	quota.Transaction
	slot    string
	refunds bool  // all costs are negative
	where   []int // the indexes of the charges in the whole transaction
	ctx     context.Context
}

// fillAll writes the results of all parts into t.
func fillAll(t *quota.Transaction, parts []part) {
	t.Replicas = parts[0].Replicas
	for i := range parts {
		parts[i].fill(t)
		t.Replicas = min(t.Replicas, parts[i].Replicas)
	}
}

func (p *part) fill(t *quota.Transaction) {
	for j, i := range p.where {
		t.Decisions[i] = p.Decisions[j]
	}
	t.At = p.At
}

// unitsLeft returns how many units the part's charges would leave under the limit with the fewest
// units left. The part must have been evaluated. If the part spends nothing, unitsLeft returns the
// largest integer, so that refunds, which cannot be undone, come last.
func (p *part) unitsLeft() int64 {
	least := int64(math.MaxInt64)
	for j := range p.Charges {
		if cost := p.Charges[j].Cost; cost > 0 {
			least = min(least, p.Decisions[j].Remaining-cost)
		}
	}
	return least
}

// split divides a transaction into parts. It returns nil if there is only one slot.
func (s *Store) split(t *quota.Transaction) (parts []part) {
	if s.queue != nil || len(t.Charges) == 1 {
		return nil
	}
	for i, c := range t.Charges {
		slot, refunds := s.slot(c.Key), c.Cost < 0
		k := slices.IndexFunc(parts, func(p part) bool { return p.slot == slot && p.refunds == refunds })
		if k < 0 {
			k = len(parts)
			parts = append(parts, part{slot: slot, refunds: refunds, Transaction: quota.Transaction{Mode: t.Mode}})
		}
		parts[k].Charges = append(parts[k].Charges, c)
		parts[k].where = append(parts[k].where, i)
	}
	if !slices.ContainsFunc(parts, func(p part) bool { return p.slot != parts[0].slot }) {
		return nil
	}
	return parts
}

// peekAll makes all slots evaluate their parts at the same time, without spending.
func peekAll(t *quota.Transaction, parts []part, take func(context.Context, *quota.Transaction) error) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			p := &parts[i].Transaction
			mode := p.Mode
			p.Mode = quota.ModePeek
			// A function of the user, such as OnChange of a breaker, may panic.
			_, errs[i] = safe.Call("redisstore: the store panicked", func() error { return take(parts[i].ctx, p) })
			p.Mode = mode
		})
	}
	wg.Wait()
	if i := slices.IndexFunc(errs, func(err error) bool { return err != nil }); i >= 0 {
		return errs[i]
	}
	fillAll(t, parts)
	return nil
}

// refund refunds the units that the parts have spent, but in ModeAtMost only what they have spent more
// often than the given number of times. For each part it makes only one attempt, which may last until
// the part's context ends.
func refund(parts []part, times int64, take func(context.Context, *quota.Transaction) error) {
	for i := range parts {
		p, n := &parts[i], int64(1)
		if p.Mode == quota.ModeAtMost {
			n = p.Granted - times
		}
		var back quota.Transaction
		var of []*quota.Decision
		for j, c := range p.Charges {
			if d := &p.Decisions[j]; n*c.Cost > 0 { // others, such as look-ups, would hide that all units come from one store
				c.Cost, c.Spent, c.FellBack = -n*c.Cost, d.At, d.FellBack
				back.Charges, of = append(back.Charges, c), append(of, d)
			}
		}
		if len(of) == 0 || take(p.ctx, &back) != nil {
			continue
		}
		for j := range back.Decisions {
			d := back.Decisions[j]
			of[j].Remaining, of[j].NextAfter, of[j].ResetAfter = d.Remaining, d.NextAfter, d.ResetAfter
		}
	}
}

// slot returns the hash tag of a key, without the braces. Keys with the same hash tag are on the
// same node.
func (s *Store) slot(key string) string {
	tag, _, _ := strings.Cut("."+storedkey.Of(key), "}")
	return tag
}
