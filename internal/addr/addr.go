// Package addr finds the address of the client that sent a request, and normalizes
// addresses and networks that people write.
package addr

import (
	"cmp"
	"fmt"
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

// parseAddr parses "ip", "ip:port", "[ip]" and "[ip]:port". If the address is IPv4, text is the
// address within s. Because netip accepts only the canonical form, text can be used as the key
// without an allocation. If s has none of these forms, the address is invalid.
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
	k, start, v := 0, 0, uint(0) // v is the number a[k], whose digits begin at start
	for ; n < len(s); n++ {
		if digit := s[n] - '0'; digit <= 9 && v < 26 && (v > 0 || n == start) {
			v = v*10 + uint(digit)
		} else if s[n] == '.' && n > start && v <= 255 && k < 3 {
			a[k], k, start, v = byte(v), k+1, n+1, 0
		} else {
			break
		}
	}
	if k < 3 || n == start || v > 255 || n < len(s) && !isPort(s[n:]) {
		return a, 0
	}
	a[k] = byte(v)
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

// Sizes contains the number of leading bits of an address that form its key.
type Sizes struct{ IPv4, IPv6 int }

// Usual keeps all bits of an IPv4 address, and the first 64 bits of an IPv6 address, because a
// single client usually gets a /64 network.
var Usual = Sizes{32, 64}

// CheckedSizes returns Sizes. If a size is out of range, CheckedSizes panics with a message that
// begins with the given name.
func CheckedSizes(name string, ipv4, ipv6 int) Sizes {
	if ipv4 < 1 || ipv4 > 32 {
		panic(fmt.Sprintf("%s: ipv4 is %d; want 1 to 32 bits", name, ipv4))
	}
	if ipv6 < 1 || ipv6 > 128 {
		panic(fmt.Sprintf("%s: ipv6 is %d; want 1 to 128 bits", name, ipv6))
	}
	return Sizes{ipv4, ipv6}
}

// Key returns the key of an address that Outside returned. It also needs the text of the address as
// it was written, or "".
func (s Sizes) Key(addr netip.Addr, text string) string {
	bits := s.IPv6
	if addr.Is4() {
		bits = s.IPv4
	}
	switch {
	case bits == 32 && text != "":
		return text
	case bits == 32 && addr.Is4():
		return addr.String()
	}
	prefix, _ := addr.Prefix(bits) // it fails only if bits is out of range
	var buf [len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")]byte
	return string(prefix.AppendTo(buf[:0]))
}

// Outside returns an address in the form that the client itself uses: without a zone, not
// IPv4-mapped, and as an IPv4 address if NAT64 has translated it. NAT64 must not embed private and
// local IPv4 addresses (RFC 6052, 3.1), so Outside does not unwrap them. Otherwise a client behind
// such a NAT64 could match the entry 10.0.0.1 in a list of addresses.
func Outside(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if !NAT64.Contains(addr) {
		return addr
	}
	b := addr.As16()
	v4 := netip.AddrFrom4([4]byte(b[12:]))
	if !v4.IsGlobalUnicast() || v4.IsPrivate() || carrierNAT.Contains(v4) {
		return addr
	}
	return v4
}

// NAT64 is the prefix in which NAT64 embeds the addresses of IPv4 clients (RFC 6052).
var NAT64 = netip.PrefixFrom(netip.AddrFrom16([16]byte{0x00, 0x64, 0xff, 0x9b}), 96) // 64:ff9b::/96

var carrierNAT = netip.PrefixFrom(netip.AddrFrom4([4]byte{100, 64}), 10) // 100.64.0.0/10

// Hostname returns a host in the form that weir.ByHeader documents.
func Hostname(host string) string {
	if strings.HasPrefix(host, "[") {
		address, _, _ := strings.Cut(host[1:], "]")
		if ip, err := netip.ParseAddr(address[:min(len(address), 64)]); err == nil {
			return "[" + ip.String() + "]"
		}
		return strings.ToLower(host[:1+len(address)])
	}
	host, _, _ = strings.Cut(host, ":")
	return strings.ToLower(strings.TrimRight(host, "."))
}
