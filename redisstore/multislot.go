package redisstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/storedkey"
)

// takeParts decides a transaction whose keys may be on different nodes. Each call of a script
// decides the charges of one slot. With Forget or Force, takeParts calls one slot after the
// other. Otherwise it first asks all slots at the same time. If one slot refuses, takeParts
// spends nothing. If no slot refuses, it charges one slot after the other, beginning with the
// slot that has the fewest units left. If a slot then refuses, because another client was
// faster, takeParts gives back the units that it has spent in the other slots. It gives back
// exactly those units (see weir.Canceler), so no limit admits too much. After an error the
// units stay spent.
//
// A transaction of several slots never waits: the clocks of the nodes differ, so that the
// slots could not reserve the same instant. A Delay is an error for the same reason.
func (s *Store) takeParts(ctx context.Context, t *weir.Transaction, parts []part) error {
	if t.Delay >= time.Microsecond && !t.Forget {
		return fmt.Errorf("redisstore: a delay of %v of keys in several slots: %w", t.Delay, errors.ErrUnsupported)
	}
	if t.AtMost > 0 {
		return fmt.Errorf("redisstore: AtMost of keys in several slots: %w", errors.ErrUnsupported)
	}
	if cap(t.Decisions) < len(t.Charges) {
		t.Decisions = make([]weir.Decision, len(t.Charges))
	}
	t.Decisions, t.Wait, t.Undo = t.Decisions[:len(t.Charges)], 0, t.Undo[:0]
	if t.Forget || t.Force {
		return s.takeEachPart(ctx, t, parts)
	}
	if err := s.askAll(ctx, t, parts); err != nil || !t.Allowed() {
		return err
	}
	asked := slices.Clone(t.Decisions)
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.left(), b.left()) })
	for i := range parts {
		p := &parts[i]
		if !p.costs(t, func(cost int64) int64 { return max(0, cost) }) {
			continue
		}
		if err := s.takeEachPart(ctx, t, parts[i:i+1]); err != nil {
			return err
		}
		if !p.Allowed() {
			s.giveBack(ctx, t, parts[:i])
			copy(t.Decisions, asked)
			p.fill(t)
			return nil
		}
	}
	gifts := slices.DeleteFunc(parts, func(p part) bool {
		return !p.costs(t, func(cost int64) int64 { return min(0, cost) })
	})
	return s.takeEachPart(ctx, t, gifts) // last, because units that were given back cannot be taken again
}

// takeEachPart decides parts one after the other, each with its own call.
func (s *Store) takeEachPart(ctx context.Context, t *weir.Transaction, parts []part) error {
	for i := range parts {
		if err := s.take(ctx, &parts[i].Transaction); err != nil {
			return err
		}
		parts[i].fill(t)
	}
	return nil
}

// A part is the charges of a transaction whose keys are in one slot.
type part struct {
	weir.Transaction
	where []int // the indexes that the charges have in the whole transaction
}

func (p *part) fill(t *weir.Transaction) {
	for j, i := range p.where {
		t.Decisions[i] = p.Decisions[j]
	}
	t.At = p.At
}

// costs changes the costs of the part: it calls f with the cost that a charge has in t, and
// f returns the new cost. costs reports whether any of the new costs is not 0.
func (p *part) costs(t *weir.Transaction, f func(int64) int64) (any bool) {
	for j, i := range p.where {
		p.Charges[j].Cost = f(t.Charges[i].Cost)
		any = any || p.Charges[j].Cost != 0
	}
	return any
}

// left returns how many units the charges of the part would leave, under the limit that would
// have the fewest left. The slot of the part must have been asked.
func (p *part) left() int64 {
	least := int64(math.MaxInt64)
	for j := range p.Charges {
		if cost := p.Charges[j].Cost; cost > 0 {
			least = min(least, p.Decisions[j].Remaining-cost)
		}
	}
	return least
}

// split divides a transaction into parts by slot. It may return nil if there is only one
// slot.
func (s *Store) split(t *weir.Transaction) (parts []part) {
	if !s.multiSlot || len(t.Charges) == 1 {
		return nil
	}
	var slots []string
	for i := range t.Charges {
		slot := s.slot(t.Charges[i].Key)
		k := slices.Index(slots, slot)
		if k < 0 {
			k = len(parts)
			slots, parts = append(slots, slot), append(parts, part{})
		}
		p := &parts[k]
		p.Forget, p.Force = t.Forget, t.Force
		p.Charges = append(p.Charges, t.Charges[i])
		p.where = append(p.where, i)
	}
	return parts
}

// askAll lets all slots decide their parts at the same time, without spending.
func (s *Store) askAll(ctx context.Context, t *weir.Transaction, parts []part) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() { errs[i] = s.decide(ctx, &parts[i].Transaction, peek) })
	}
	wg.Wait()
	for i, err := range errs {
		if err != nil {
			return err
		}
		parts[i].fill(t)
	}
	return nil
}

// giveBack gives back the units that the parts have spent. It tries once, before ctx ends.
func (s *Store) giveBack(ctx context.Context, t *weir.Transaction, parts []part) {
	for i := range parts {
		p := &parts[i]
		if p.costs(t, func(cost int64) int64 { return min(0, -cost) }) {
			for j, i := range p.where {
				p.Charges[j].Spent = t.Decisions[i].At
			}
			_ = s.take(ctx, &p.Transaction)
		}
	}
}

// slot returns the hash tag of a key, without the braces. Keys with the same hash tag are
// on one node.
func (s *Store) slot(key string) string {
	tag, _, _ := strings.Cut("."+storedkey.Of(key), "}")
	return tag
}
