package redisstore

import (
	"context"

	"github.com/seed83679106/weir/quota"
)

// Direct reports whether the next call of a caller without a deadline would be sent by that
// caller.
func (s *Store) Direct() bool {
	b := s.queue.alone(newBudget(context.Background(), s.timeout), make([]once, 1))
	if b != nil {
		s.queue.runners--
		s.queue.inFlight--
	}
	return b != nil
}

// Key returns the name of the value that keeps the state of a charge.
func (s *Store) Key(c *quota.Charge) string { return s.key(c) }

// Slot returns the slot of a key. Keys with equal slots are decided at one instant.
func (s *Store) Slot(key string) string { return s.slot(key) }
