package addr

import (
	"fmt"
	"net/netip"
)

// Sizes says how many leading bits of an address are its key.
type Sizes struct{ IPv4, IPv6 int }

// Usual keeps all bits of an IPv4 address, and of an IPv6 address the /64 that one client
// commonly gets.
var Usual = Sizes{32, 64}

// CheckedSizes returns Sizes. It panics if a size is out of range, with a message that
// begins with name.
func CheckedSizes(name string, ipv4, ipv6 int) Sizes {
	if ipv4 < 1 || ipv4 > 32 {
		panic(fmt.Sprintf("%s: ipv4 is %d; want 1 to 32 bits", name, ipv4))
	}
	if ipv6 < 1 || ipv6 > 128 {
		panic(fmt.Sprintf("%s: ipv6 is %d; want 1 to 128 bits", name, ipv6))
	}
	return Sizes{ipv4, ipv6}
}

// Key returns the key of an address that Outside returned. text is the address as it
// is written, or "".
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

// Outside returns an address as the client has it: without a zone, not mapped, and IPv4 if
// it came through NAT64. It does not unwrap private and local IPv4 addresses, which NAT64
// must not embed (RFC 6052, 3.1): otherwise a client behind such a NAT64 could pass for
// 10.0.0.1 in a list of addresses.
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
var NAT64 = netip.MustParsePrefix("64:ff9b::/96")

var carrierNAT = netip.MustParsePrefix("100.64.0.0/10")
