package redisstore

import (
	"time"

	"github.com/seed83679106/weir/quota"
)

// Key returns the name of the value that keeps the state of a charge.
func (s *Store) Key(c *quota.Charge) string { return s.key(c) }

// Slot returns the slot of a key. Keys with equal slots are decided at one instant.
func (s *Store) Slot(key string) string { return s.slot(key) }

// SetClock sets the clock of the process that a store of one server with SendTime uses. The store
// must not have been used.
func (s *Store) SetClock(clock func() time.Time) { s.clock, s.queue.clock = clock, clock }

// Hash returns the hash by which Redis knows the script of a transaction.
func (s *Store) Hash(t *quota.Transaction) (string, error) {
	e := &eval{ts: []*quota.Transaction{t}}
	if err := t.Validate(); err != nil {
		return "", err
	}
	err := s.prepare(e)
	if err != nil {
		return "", err
	}
	return e.sha, nil
}

// ForgetUse makes the store forget when nodes have last run its scripts.
func (s *Store) ForgetUse() {
	s.scripts.mu.Lock()
	defer s.scripts.mu.Unlock()
	for _, x := range s.scripts.of {
		x.sent.Range(func(node, _ any) bool { x.sent.Store(node, time.Time{}); return true })
	}
}
