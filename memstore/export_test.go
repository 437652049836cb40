package memstore

// Many is how many keys a flood has.
func Many() int { return many() }
