// Package addr finds the address that a request comes from, and cleans up addresses and
// networks as people write them.
package addr

import (
	"cmp"
	"net/netip"
	"strconv"
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

// parseAddr parses "ip", "ip:port", "[ip]" and "[ip]:port". text is the address
// as it stands in s, if it is IPv4. netip accepts only the canonical form, so text can
// be the key, without an allocation. addr is invalid if s has none of these forms.
func parseAddr(s string) (addr netip.Addr, text string) {
	if len(s) > 128 {
		return netip.Addr{}, "" // netip would copy the whole text into an error or a zone
	}
	var err error
	switch bracketed := strings.HasPrefix(s, "["); {
	case bracketed && strings.HasSuffix(s, "]"):
		if addr, err = netip.ParseAddr(s[1 : len(s)-1]); addr.Is4() {
			return netip.Addr{}, "" // as ParseAddrPort: brackets are for IPv6
		}
	case bracketed:
		var ap netip.AddrPort
		ap, err = netip.ParseAddrPort(s)
		addr = ap.Addr()
	default:
		if host, port, ok := strings.Cut(s, ":"); ok && !strings.Contains(port, ":") {
			if _, err := strconv.ParseUint(port, 10, 16); err != nil {
				return netip.Addr{}, ""
			}
			s = host
		}
		addr, err = netip.ParseAddr(s)
	}
	if err != nil {
		return netip.Addr{}, ""
	}
	if addr.Is4() {
		return addr, s
	}
	return addr.Unmap().WithZone(""), ""
}
