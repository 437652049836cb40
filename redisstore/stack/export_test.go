package stack

import "time"

// Age makes the last check of Redis older.
func (s *Store) Age(d time.Duration) {
	s.checker.mu.Lock()
	defer s.checker.mu.Unlock()
	s.checker.ended = s.checker.ended.Add(-d)
}

// Checked returns once no check runs.
func (s *Store) Checked() { s.checker.running.Wait() }
