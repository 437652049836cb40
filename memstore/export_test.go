package memstore

// Many is the function many, for the package memstore_test.
func Many() int { return many() }
