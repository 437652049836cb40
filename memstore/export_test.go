package memstore

// Many returns how many keys a flood in tests has.
func Many() int { return many() }
