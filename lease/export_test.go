package lease

// EndTTL moves the clock of l on by a TTL. The calls so far then count as the calls of
// the last TTL.
func EndTTL(l *Store) { l.start = l.start.Add(-l.o.TTL) }
