package weir

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// ByIP limits each client address: an IPv4 address by itself, IPv6 by its /64,
// which is what one client commonly gets. Keys look like "192.0.2.1" and
// "2001:db8:1:2::/64"; an IPv4-mapped address is the IPv4 address, zones are
// dropped. What comes through NAT64, in 64:ff9b::/96 (RFC 6052), is the IPv4 address
// of the client too. It always applies.
//
// The address is, in this order:
//
//   - the peer in r.RemoteAddr, if no trusted prefix holds it. Its headers are
//     not read, so it cannot choose its key;
//   - the rightmost address in X-Forwarded-For that no trusted prefix holds, for
//     each proxy appends the one it was called from. What stands further left
//     is what the client made up.
//
// List your proxies and nothing else. A prefix that holds clients lets them
// choose their key; so does a proxy that passes X-Forwarded-For on unchanged.
// Behind a proxy that is not listed, all clients share the key of the proxy.
//
// Doubt fails towards limiting. An entry that is no address ends the walk, and
// the trusted hop that sent it, the last one seen, is the key. If all are
// trusted, it is the leftmost. Peers without an IP address, as on a Unix socket,
// share one key; the zero [netip.Prefix] in trusted makes them trusted.
//
// It panics on an invalid prefix. Where a middleware of chi has found the address,
// use weirchi.ClientIP.
func ByIP(trusted ...netip.Prefix) KeyFunc { return ByIPPrefix(32, 64, trusted...) }

// ByIPPrefix is [ByIP] with networks of a chosen size: the first ipv4 bits of
// an IPv4 address, 1 to 32, and the first ipv6 bits of an IPv6 address, 1 to
// 128. A client that holds a larger network than that holds several quotas.
func ByIPPrefix(ipv4, ipv6 int, trusted ...netip.Prefix) KeyFunc {
	size := checkedSize("ByIPPrefix", ipv4, ipv6)
	proxies := newProxies("ByIP", forwardedFor, trusted)
	return func(r *http.Request) (string, bool) { return proxies.key(r, size), true }
}

// ClientAddr is the address that [ByIP] limits, without its networks. ok is false for
// peers that have none.
func ClientAddr(trusted ...netip.Prefix) AddrFunc {
	return newProxies("ClientAddr", forwardedFor, trusted).addr
}

// An AddrFunc says which address a request comes from; ok is false if it does not
// know. It must be safe for concurrent use.
type AddrFunc func(r *http.Request) (addr netip.Addr, ok bool)

// ByAddr limits each address that addr returns, by networks of a chosen size as
// [ByIPPrefix] does. Where addr knows none the rule does not apply.
func ByAddr(addr AddrFunc, ipv4, ipv6 int) KeyFunc {
	size := checkedSize("ByAddr", ipv4, ipv6)
	if addr == nil {
		panic("weir: ByAddr: nil address function")
	}
	return func(r *http.Request) (string, bool) {
		a, ok := addr(r)
		if !ok || !a.IsValid() {
			return "", false
		}
		return size.key(outside(a), ""), true
	}
}

// sizes are how many bits of an address are a key.
type sizes struct{ ipv4, ipv6 int }

func checkedSize(name string, ipv4, ipv6 int) sizes {
	if ipv4 < 1 || ipv4 > 32 {
		panic(fmt.Sprintf("weir: %s: ipv4 is %d, not 1 to 32 bits", name, ipv4))
	}
	if ipv6 < 1 || ipv6 > 128 {
		panic(fmt.Sprintf("weir: %s: ipv6 is %d, not 1 to 128 bits", name, ipv6))
	}
	return sizes{ipv4, ipv6}
}

// key returns the key of an address that outside returned. text is the address as it
// is written, or "".
func (s sizes) key(addr netip.Addr, text string) string {
	bits := s.ipv6
	if addr.Is4() {
		bits = s.ipv4
	}
	switch {
	case bits == 32 && text != "":
		return text
	case bits == 32 && addr.Is4():
		return addr.String()
	}
	prefix, _ := addr.Prefix(bits) // errs on bits out of range only
	var buf [len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")]byte
	return string(prefix.AppendTo(buf[:0]))
}

// outside returns an address as the client has it: without a zone, not mapped, and
// IPv4 if it came through NAT64. Addresses that are of no use on the internet stay
// as they are: no NAT64 may embed them (RFC 6052, 3.1), and one that did would let
// its clients be 10.0.0.1 in somebody's list.
func outside(addr netip.Addr) netip.Addr {
	addr = addr.Unmap().WithZone("")
	if !nat64.Contains(addr) {
		return addr
	}
	b := addr.As16()
	v4 := netip.AddrFrom4([4]byte(b[12:]))
	if !v4.IsGlobalUnicast() || v4.IsPrivate() || carrierNAT.Contains(v4) {
		return addr
	}
	return v4
}

var (
	nat64      = netip.MustParsePrefix("64:ff9b::/96")
	carrierNAT = netip.MustParsePrefix("100.64.0.0/10")
)

// proxies are the peers whose field, Forwarded or X-Forwarded-For, is believed.
type proxies struct {
	field   string
	trusted []netip.Prefix
}

func newProxies(name, field string, trusted []netip.Prefix) *proxies {
	p := &proxies{field, slices.Clone(trusted)}
	for i, t := range trusted {
		if !t.IsValid() && t != (netip.Prefix{}) {
			panic(fmt.Sprintf("weir: %s: trusted prefix of %v has an invalid length", name, t.Addr()))
		}
		// An address is compared unmapped, so its prefix must be too.
		if t.Addr().Is4In6() && t.Bits() >= 96 {
			p.trusted[i] = netip.PrefixFrom(t.Addr().Unmap(), t.Bits()-96)
		}
	}
	return p
}

// trusts expects what parseAddr returned: no zone, nothing mapped.
func (p *proxies) trusts(addr netip.Addr) bool {
	for _, t := range p.trusted {
		if t.Contains(addr) || !t.IsValid() && !addr.IsValid() {
			return true
		}
	}
	return false
}

func (p *proxies) key(r *http.Request, size sizes) string {
	addr, text := p.client(r)
	if !addr.IsValid() {
		return noAddress
	}
	return size.key(addr, text)
}

func (p *proxies) addr(r *http.Request) (netip.Addr, bool) {
	addr, _ := p.client(r)
	return addr, addr.IsValid()
}

// client returns the address of the client, invalid if it has none, and its
// text if that is at hand.
func (p *proxies) client(r *http.Request) (netip.Addr, string) {
	addr, text := parseAddr(r.RemoteAddr)
	if p.trusts(addr) {
		addr, text = p.walk(r.Header[p.field], addr, text)
	}
	if addr.Is6() {
		addr = outside(addr)
	}
	return addr, text
}

// parseAddr parses "ip", "ip:port", "[ip]" and "[ip]:port". text is the address
// as it stands in s, if it is IPv4: netip accepts the canonical form only, so it
// is a key without an allocation. addr is invalid if s is none of these.
func parseAddr(s string) (addr netip.Addr, text string) {
	if len(s) > 128 {
		return netip.Addr{}, "" // before netip copies it, into an error or a zone
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
