// Package addr reads what people write for an address.
package addr

import (
	"cmp"
	"strings"
)

// Plain removes from what is meant as an address or a network what does not belong
// there: spaces, brackets, a port, a zone, leading zeros. Anything else it returns
// about as it is.
func Plain(s string) string {
	s, length, isNetwork := strings.Cut(s, "/")
	s, length = strings.TrimSpace(s), strings.TrimSpace(length)
	if inner, ok := strings.CutPrefix(s, "["); ok {
		s, _, _ = strings.Cut(inner, "]")
	} else if strings.Count(s, ":") == 1 {
		s, _, _ = strings.Cut(s, ":")
	}
	s, _, _ = strings.Cut(s, "%")
	if parts := strings.Split(s, "."); len(parts) == 4 {
		for i, part := range parts {
			parts[i] = cmp.Or(strings.TrimLeft(part, "0"), "0")
		}
		s = strings.Join(parts, ".")
	}
	if isNetwork {
		s += "/" + length
	}
	return s
}
