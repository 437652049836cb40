package redisstore

import (
	"context"
	"strings"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
)

// takeSpread decides a transaction whose keys may be on different nodes. Those
// of one slot are decided by one script. Slots are taken one after the other,
// and where one refuses, what the others had taken is given back: in between
// others may be refused for it, but never is more admitted. Nobody waits for
// several slots: their clocks could not agree on an instant to reserve.
func (s *Store) takeSpread(ctx context.Context, t *weir.Transaction) error {
	parts := s.split(t)
	if len(parts) == 1 {
		return s.take(ctx, t)
	}
	if cap(t.Decisions) < len(t.Charges) {
		t.Decisions = make([]weir.Decision, len(t.Charges))
	}
	t.Decisions, t.Wait = t.Decisions[:len(t.Charges)], 0
	refused := -1
	for i := range parts {
		p := &parts[i]
		if refused >= 0 {
			p.Within = peek
		}
		if err := s.take(ctx, &p.Transaction); err != nil {
			s.giveBack(parts[:i], refused)
			return err
		}
		p.fill(t)
		if refused < 0 && !p.Allowed() {
			refused = i
		}
	}
	if refused >= 0 {
		s.giveBack(parts, refused)
		for i := range parts[:refused] {
			parts[i].fill(t)
		}
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

func (s *Store) split(t *weir.Transaction) []part {
	var parts []part
	var slots []string
	for i := range t.Charges {
		slot := s.slot(t.Charges[i].Key)
		k := index(&slots, slot, func(a, b string) bool { return a == b })
		if k > len(parts) {
			parts = append(parts, part{})
		}
		p := &parts[k-1]
		p.Charges = append(p.Charges, t.Charges[i])
		p.where = append(p.where, i)
	}
	return parts
}

// giveBack undoes what the parts before the refused one took; refused is −1 if
// they all did. It tries once: what is lost with an error is lost to the clients,
// never admitted twice.
func (s *Store) giveBack(parts []part, refused int) {
	if refused >= 0 {
		parts = parts[:min(refused, len(parts))]
	}
	ctx, cancel := context.WithTimeout(context.Background(), s.timeout)
	defer cancel()
	for i := range parts {
		p := &parts[i]
		for j := range p.Charges {
			p.Charges[j].Cost = -max(0, p.Charges[j].Cost)
		}
		_ = s.take(ctx, &p.Transaction)
	}
}

// slot returns what keys must share to be on one node for certain: the slot of
// a cluster, the hash tag for a ring.
func (s *Store) slot(key string) string {
	tag, _, _ := strings.Cut("."+key, "}")
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
