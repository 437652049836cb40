// Package addr finds the address of the client that sent a request, and normalizes
// addresses and networks that people write.
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

// parseAddr parses "ip", "ip:port", "[ip]" and "[ip]:port". If the address is IPv4, text
// is the part of s with the address. netip accepts only the canonical form, so text can be
// the key without an allocation. addr is invalid if s has none of these forms.
func parseAddr(s string) (addr netip.Addr, text string) {
	if a, n := parseIPv4(s); n > 0 {
		return netip.AddrFrom4(a), s[:n]
	}
	if len(s) > 128 {
		return netip.Addr{}, "" // netip would copy the whole text into an error or a zone
	}
	var err error
	switch bracketed := strings.HasPrefix(s, "["); {
	case bracketed && strings.HasSuffix(s, "]"):
		if addr, err = netip.ParseAddr(s[1 : len(s)-1]); addr.Is4() {
			return netip.Addr{}, "" // brackets are for IPv6 only, as in ParseAddrPort
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

// parseIPv4 parses "1.2.3.4" and "1.2.3.4:5", the form of most peers, and returns the
// length of the address. n is 0 if s has another form, even if netip would parse it.
func parseIPv4(s string) (a [4]byte, n int) {
	for k := range a {
		if k > 0 {
			if n == len(s) || s[n] != '.' {
				return a, 0
			}
			n++
		}
		start, v := n, uint(0)
		for ; n < len(s) && n < start+3 && s[n]-'0' <= 9; n++ {
			v = v*10 + uint(s[n]-'0')
		}
		if n == start || v > 255 || s[start] == '0' && n > start+1 {
			return a, 0
		}
		a[k] = byte(v)
	}
	if n < len(s) && !isPort(s[n:]) {
		return a, 0
	}
	return a, n
}

// isPort reports whether s is a colon and a port of up to five digits.
func isPort(s string) bool {
	port := uint(0)
	for i := 1; i < len(s); i++ {
		if s[i]-'0' > 9 {
			return false
		}
		port = port*10 + uint(s[i]-'0')
	}
	return s[0] == ':' && 2 <= len(s) && len(s) <= 6 && port <= 65535
}
