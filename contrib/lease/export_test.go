package lease

// EndTTL moves the clock of l on by a TTL. The calls so far then count as the calls of
// the last TTL.
func EndTTL(l *Store) { l.start = l.start.Add(-l.o.TTL) }

// Timers returns a function that counts the running timers of the leases that l has now, and
// stops them.
func Timers(l *Store) func() (running int) {
	var leases []*lease
	l.mu.Lock()
	for _, e := range l.known {
		leases = append(leases, e)
	}
	l.mu.Unlock()
	return func() (running int) {
		for _, e := range leases {
			if e.timer != nil && e.timer.Stop() {
				running++
			}
		}
		return running
	}
}
