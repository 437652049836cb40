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
)

// takeMultiSlot decides a transaction whose keys may be on different nodes. One script
// decides those of one slot. First all slots are asked, at once; if one refuses,
// nothing is spent. Otherwise they are charged one after the other, the scarcest first.
// If one refuses then, because another client was faster, what the others were charged
// is given back.
//
// No more is admitted for that: the units of that instant are given back, see
// weir.Canceler. After an error they are lost to the clients.
//
// No transaction waits for several slots: their clocks could not agree on an instant to
// reserve. A Delay is an error, because it would not be kept.
func (s *Store) takeMultiSlot(ctx context.Context, t *weir.Transaction) error {
	parts := s.split(t)
	if len(parts) == 1 {
		return s.take(ctx, t)
	}
	if t.Delay >= time.Microsecond && !t.Forget {
		return fmt.Errorf("redisstore: a delay of %v of keys in several slots: %w", t.Delay, errors.ErrUnsupported)
	}
	if cap(t.Decisions) < len(t.Charges) {
		t.Decisions = make([]weir.Decision, len(t.Charges))
	}
	t.Decisions, t.Wait, t.Undo = t.Decisions[:len(t.Charges)], 0, t.Undo[:0]
	if t.Forget {
		return s.takeParts(ctx, t, parts)
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
		if err := s.takeParts(ctx, t, parts[i:i+1]); err != nil {
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
	return s.takeParts(ctx, t, gifts) // only now: they can't be taken back
}

// takeParts has each part decided by itself.
func (s *Store) takeParts(ctx context.Context, t *weir.Transaction, parts []part) error {
	for i := range parts {
		if err := s.take(ctx, &parts[i].Transaction); err != nil {
			return err
		}
		parts[i].fill(t)
	}
	return nil
}

// A part is the charges of a transaction that are in one slot.
type part struct {
	weir.Transaction
	where []int // of its charges in the whole
}

func (p *part) fill(t *weir.Transaction) {
	for j, i := range p.where {
		t.Decisions[i] = p.Decisions[j]
	}
	t.At = p.At
}

// costs gives the charges f of what they cost in the whole, and reports whether
// that is anything.
func (p *part) costs(t *weir.Transaction, f func(int64) int64) (any bool) {
	for j, i := range p.where {
		p.Charges[j].Cost = f(t.Charges[i].Cost)
		any = any || p.Charges[j].Cost != 0
	}
	return any
}

// left returns how many units the scarcest limit of a part that was asked would have left.
func (p *part) left() int64 {
	least := int64(math.MaxInt64)
	for j := range p.Charges {
		if cost := p.Charges[j].Cost; cost > 0 {
			least = min(least, p.Decisions[j].Remaining-cost)
		}
	}
	return least
}

func (s *Store) split(t *weir.Transaction) []part {
	var parts []part
	var slots []string
	for i := range t.Charges {
		slot := s.slot(t.Charges[i].Key)
		k := slices.Index(slots, slot)
		if k < 0 {
			k = len(parts)
			slots, parts = append(slots, slot), append(parts, part{})
		}
		p := &parts[k]
		p.Forget = t.Forget
		p.Charges = append(p.Charges, t.Charges[i])
		p.where = append(p.where, i)
	}
	return parts
}

// askAll has all parts decided and nothing spent.
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

// giveBack undoes what the parts have taken, in the time that is left, and tries
// once.
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

// slot returns what keys must share to be on one node for certain: their hash tag.
func (s *Store) slot(key string) string {
	tag, _, _ := strings.Cut("."+weir.StoredKey(key), "}")
	return tag
}
