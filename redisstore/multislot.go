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

	"github.com/redis/go-redis/v9"

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
	if err := s.askAll(ctx, parts); err != nil {
		return err
	}
	for i := range parts {
		parts[i].fill(t)
	}
	if !t.Allowed() {
		return nil
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(a.left(), b.left()) })
	if spent, err := s.spendParts(ctx, t, parts); err != nil || !spent {
		return err
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

// spendParts charges what the parts cost and reports whether all of them fit. If one
// does not, nothing is spent, and t says of the others how they were before.
func (s *Store) spendParts(ctx context.Context, t *weir.Transaction, parts []part) (spent bool, err error) {
	for i := range parts {
		p := &parts[i]
		if !p.costs(t, func(cost int64) int64 { return max(0, cost) }) {
			continue
		}
		if err := s.take(ctx, &p.Transaction); err != nil {
			return false, err
		}
		p.fill(t)
		if !p.Allowed() {
			s.giveBack(ctx, t, parts[:i])
			for j := range parts[:i] {
				parts[j].unspend(t)
			}
			return false, nil
		}
	}
	return true, nil
}

// A part is the charges of a transaction that are in one slot.
type part struct {
	weir.Transaction
	where []int           // of its charges in the whole
	asked []weir.Decision // before anything was spent
}

func (p *part) fill(t *weir.Transaction) {
	for j, i := range p.where {
		t.Decisions[i] = p.Decisions[j]
	}
	t.At = p.At
}

func (p *part) unspend(t *weir.Transaction) {
	for j, i := range p.where {
		t.Decisions[i] = p.asked[j]
	}
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

// left is how many units would be left under the limit that has fewest.
func (p *part) left() int64 {
	least := int64(math.MaxInt64)
	for j := range p.Charges {
		if cost := p.Charges[j].Cost; cost > 0 {
			least = min(least, p.asked[j].Remaining-cost)
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
func (s *Store) askAll(ctx context.Context, parts []part) error {
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i := range parts {
		wg.Go(func() {
			p := &parts[i]
			errs[i] = s.decide(ctx, &p.Transaction, peek)
			p.asked = slices.Clone(p.Decisions)
		})
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
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

// slot returns what keys must share to be on one node for certain: the slot of
// a cluster, the hash tag for a ring.
func (s *Store) slot(key string) string {
	tag, _, _ := strings.Cut("."+weir.StoredKey(key), "}")
	if _, ok := s.rdb.(*redis.ClusterClient); ok {
		n := crc16(tag) % 16384
		return string([]byte{byte(n >> 8), byte(n)})
	}
	return tag
}

// crc16 is CRC-16/XMODEM, by which Redis finds the slot of a key.
func crc16(s string) (crc uint16) {
	for i := range len(s) {
		crc ^= uint16(s[i]) << 8
		for range 8 {
			if crc&0x8000 != 0 {
				crc = crc<<1 ^ 0x1021
			} else {
				crc <<= 1
			}
		}
	}
	return crc
}
