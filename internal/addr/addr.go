// Package addr cleans up addresses and networks as people write them.
package addr

import (
	"cmp"
	"strings"
)

// Plain returns an address or a network without spaces, brackets, port, zone and leading
// zeros: " [2001:db8::1]:443" becomes "2001:db8::1". It does not check the result.
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
