package lease

// EndTTL has the asks counted so far be those of a TTL.
func EndTTL(l *Store) { l.start = l.start.Add(-l.o.TTL) }
