package storedkey

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
)

// TestCanBeUndone: HashName can be undone, so hashes that differ still differ after the same
// names were added. And different names change a hash differently.
func TestCanBeUndone(t *testing.T) {
	names := []string{"", "a", "b", "1m", "api", "login", "12345678", "123456789", "auth.createToken", "anchored-window and more than that"}
	for range 100_000 {
		h, name := rand.Uint64(), names[rand.IntN(len(names))]
		if got := unmix(HashName(h, name), name); got != h {
			t.Fatalf("%x, mixed with %q and back: got %x", h, name, got)
		}
		if HashName(h, name) != HashName(h, []byte(name)) {
			t.Fatalf("%q: the string and its bytes give different hashes", name)
		}
	}
	h := rand.Uint64()
	seen := map[uint64]string{}
	for i := range 100 {
		for j := range 100 {
			for _, algorithm := range []string{"gcra", "sliding-log", "anchored-window"} {
				name := fmt.Sprintf("rule%d/%ds/%s", i, j, algorithm)
				id := HashName(HashName(HashName(h, fmt.Sprint("rule", i)), fmt.Sprint(j, "s")), algorithm)
				if other, ok := seen[id]; ok {
					t.Fatalf("%s and %s of one key are the same", name, other)
				}
				seen[id] = name
			}
		}
	}
}

// inverse returns the factor that undoes the multiplication by an odd number.
func inverse(odd uint64) uint64 {
	x := odd
	for range 6 {
		x *= 2 - odd*x // Newton's iteration doubles the number of right bits
	}
	return x
}

var undoFirst, undoSecond = inverse(0x9e3779b97f4a7c15), inverse(0xd6e8feb86659fd93)

func unscramble(h uint64) uint64 {
	h = (h ^ h>>32) * undoSecond
	return (h ^ h>>32) * undoFirst
}

// unmix undoes HashName.
func unmix(h uint64, s string) uint64 {
	var words []uint64
	n := uint64(len(s))
	for ; len(s) > 8; s = s[8:] {
		words = append(words, word(s[:8]))
	}
	for _, w := range slices.Backward(append(words, word(s))) {
		h = unscramble(h) ^ w
	}
	return h ^ n
}
