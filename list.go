package weir

import (
	"fmt"
	"net/netip"
	"strings"
)

// A List is a set of keys, for Rule.Allow and Rule.Deny: keys as they are,
// networks, and beginnings.
type List struct {
	keys     map[string]bool
	networks map[netip.Prefix]bool
	bits     []int // lengths of networks, for IPv4 as of IPv6
	starts   map[string]bool
	lengths  []int // of starts
}

// NewList returns a list of entries. "192.0.2.7" and "10.0.0.0/8" are addresses
// and networks, and match keys that are addresses, or networks that lie within,
// as ByIP makes of IPv6. "tenant-a/*" matches keys that begin so. Anything else
// is a key. An entry that looks like a network and is none is an error, and so
// is an empty one, and "*".
func NewList(entries ...string) (*List, error) {
	l := &List{keys: map[string]bool{}, networks: map[netip.Prefix]bool{}, starts: map[string]bool{}}
	for _, e := range entries {
		if e == "" || e == "*" {
			return nil, fmt.Errorf("weir: list: entry %q would name everybody or nobody", e)
		}
		if start, ok := strings.CutSuffix(e, "*"); ok {
			l.starts[start] = true
			l.lengths = with(l.lengths, len(start))
			continue
		}
		if network, ok := network(e); ok {
			l.networks[network] = true
			l.bits = with(l.bits, length(network))
			continue
		}
		if addr, _, ok := strings.Cut(e, "/"); ok {
			if _, err := netip.ParseAddr(addr); err == nil {
				_, err = netip.ParsePrefix(e)
				return nil, fmt.Errorf("weir: list: %w", err)
			}
		}
		l.keys[StoredKey(e)] = true
	}
	return l, nil
}

// Has reports whether a key is in the list, where a key and its StoredKey are one.
func (l *List) Has(key string) bool {
	if l.keys[StoredKey(key)] {
		return true
	}
	for _, n := range l.lengths {
		if n <= len(key) && l.starts[key[:n]] {
			return true
		}
	}
	if len(l.bits) == 0 {
		return false
	}
	network, ok := network(key)
	if !ok {
		return false
	}
	for _, n := range l.bits {
		if network.Addr().Is4() {
			n -= 96
		}
		if n < 0 || n > network.Bits() {
			continue
		}
		if wider, err := network.Addr().Prefix(n); err == nil && l.networks[wider] {
			return true
		}
	}
	return false
}

// network reads an address or a network, masked, without a zone, and IPv4 as
// such.
func network(s string) (netip.Prefix, bool) {
	if len(s) > 64 || !strings.ContainsAny(s, ".:") || strings.Contains(s, "%") {
		return netip.Prefix{}, false
	}
	p, err := netip.ParsePrefix(s)
	if err != nil {
		addr, err := netip.ParseAddr(s)
		if err != nil {
			return netip.Prefix{}, false
		}
		addr = addr.Unmap().WithZone("")
		p = netip.PrefixFrom(addr, addr.BitLen())
	}
	return p.Masked(), true
}

// length counts the length of a network in those of IPv6.
func length(p netip.Prefix) int {
	if p.Addr().Is4() {
		return p.Bits() + 96
	}
	return p.Bits()
}

// with returns the set s with n in it.
func with(s []int, n int) []int {
	for _, m := range s {
		if m == n {
			return s
		}
	}
	return append(s, n)
}
