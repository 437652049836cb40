package lease

// EndTTL moves the clock of l on by a TTL. The next call then takes the calls so far as those
// of the last TTL.
func EndTTL(l *Store) { l.start = l.start.Add(-l.o.TTL) }
