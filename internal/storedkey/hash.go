package storedkey

// HashName adds a name to a hash. The name is that of a rule, a limit or an algorithm. Two
// different hashes remain different after the same name has been added to both, because each step
// can be undone. Do not use HashName for keys: because clients choose keys, a hash of keys needs a
// secret.
func HashName[S string | []byte](h uint64, s S) uint64 {
	h ^= uint64(len(s))
	for ; len(s) > 8; s = s[8:] {
		h = scramble(h ^ word(s[:8]))
	}
	return scramble(h ^ word(s))
}

// scramble spreads the change of any bit over all bits. A single multiplication would
// hardly spread the upper bits of a word, which contain the last letters of a name.
func scramble(h uint64) uint64 {
	h *= 0x9e3779b97f4a7c15
	h = (h ^ h>>32) * 0xd6e8feb86659fd93
	return h ^ h>>32
}

// word returns up to 8 bytes as a number. Two different strings of the same length have
// different numbers.
func word[S string | []byte](s S) uint64 {
	if len(s) == 8 {
		return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
			uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
	}
	var w uint64
	for i := range len(s) {
		w = w<<8 | uint64(s[i])
	}
	return w
}
