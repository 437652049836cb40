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

// Beat calls Redis as a process does, as if the last calls were long ago, and reports whether Redis has
// answered.
func (s *Store) Beat() bool {
	p := &s.checker.processes
	p.calling.Lock()
	p.since = p.since.Add(-fallAfter)
	last := p.losses.last
	p.calling.Unlock()
	p.mu.Lock()
	p.compared = time.Time{}
	p.mu.Unlock()
	p.beat()
	p.calling.Lock()
	defer p.calling.Unlock()
	return p.losses.last != last
}
