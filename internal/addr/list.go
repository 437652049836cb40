package addr

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed83679106/weir/internal/storedkey"
)

// A List is a set of keys, networks and prefixes of keys: see weir.KeyList.
type List struct {
	keys     map[string]bool
	networks Networks[struct{}]
	prefixes map[string]bool
	lengths  []int // the lengths of prefixes
}

// NewList returns a list of entries. The error names an entry that would match every key or no key.
func NewList(entries []string) (*List, error) {
	l := &List{keys: map[string]bool{}, prefixes: map[string]bool{}}
	for _, e := range entries {
		network, ok, err := Entry(e)
		switch {
		case e == "" || e == "*":
			return nil, fmt.Errorf("entry %q would match every key or none", e)
		case err != nil:
			return nil, err
		case ok:
			l.networks.Add(network, struct{}{})
			continue
		case strings.TrimSpace(e) != e:
			return nil, fmt.Errorf("entry %q has spaces around it: list %q", e, strings.TrimSpace(e))
		}
		if prefix, ok := strings.CutSuffix(e, "*"); ok {
			l.prefixes[prefix] = true
			if !slices.Contains(l.lengths, len(prefix)) {
				l.lengths = append(l.lengths, len(prefix))
			}
			continue
		}
		l.keys[storedkey.Of(e)] = true
	}
	return l, nil
}

// Has reports whether the list contains a key.
func (l *List) Has(key string) bool {
	if l.keys[storedkey.Of(key)] {
		return true
	}
	for _, n := range l.lengths {
		if n <= len(key) && l.prefixes[key[:n]] {
			return true
		}
	}
	if l.networks.Len() == 0 {
		return false
	}
	network, ok := Network(key)
	return ok && l.networks.Hold(network, nil)
}

// Network reads an address or a network without a zone. The bits after the prefix of the result are
// 0. An IPv4-mapped address or network is converted to IPv4.
func Network(s string) (netip.Prefix, bool) {
	if len(s) > 64 || !strings.ContainsAny(s, ".:") || strings.Contains(s, "%") {
		return netip.Prefix{}, false
	}
	var p netip.Prefix
	var err error
	if strings.Contains(s, "/") { // the other function would allocate an error
		p, err = netip.ParsePrefix(s)
	} else {
		var a netip.Addr
		a, err = netip.ParseAddr(s)
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if err != nil {
		return netip.Prefix{}, false
	}
	return Unmap(p).Masked(), true
}

// Entry reads an entry of a list. If the entry does not look like an address or a network, ok is
// false and err is nil. If the entry looks like an address or a network, but would match no client,
// err explains what to list instead.
func Entry(s string) (p netip.Prefix, ok bool, err error) {
	p, ok = Network(s)
	if ok {
		if whole, err := netip.ParsePrefix(s); err == nil && whole.Addr().Is4In6() && whole.Bits() < 96 {
			return p, false, fmt.Errorf("entry %q contains all of IPv4, whose clients have addresses such as 192.0.2.7: list 0.0.0.0/0", s)
		}
		if NAT64.Overlaps(p) && p.Bits() > 32 && (p.Bits() < 104 || Outside(p.Addr()).Is4()) {
			return p, false, fmt.Errorf("entry %q is of NAT64, whose clients are known by their IPv4 addresses: list those", s)
		}
		return p, true, nil
	}
	if meant, ok := Network(Plain(s)); ok {
		want := meant.String()
		if meant.IsSingleIP() {
			want = meant.Addr().String()
		}
		return p, false, fmt.Errorf("entry %q has a port, brackets, a zone, spaces or leading zeros: list %s", s, want)
	}
	if one, _, found := strings.Cut(s, "/"); found {
		if _, ok := Network(Plain(one)); ok {
			return p, false, fmt.Errorf("entry %q is no network; want a length of at most 32 for IPv4, as in 10.0.0.0/8, or 128 for IPv6", s)
		}
	}
	return p, false, nil
}

// Networks is a set of networks, each with a value. The zero value is an empty set.
type Networks[V any] struct {
	values map[netip.Prefix]V
	bits   []int // the lengths of the prefixes; IPv4 counts as mapped to IPv6, so an IPv4 /8 has 104
}

// Add adds a network with a value, or replaces the value of a network that is already in the set.
// The bits after the prefix must be 0.
func (n *Networks[V]) Add(p netip.Prefix, v V) {
	if n.values == nil {
		n.values = map[netip.Prefix]V{}
	}
	n.values[p] = v
	bits := p.Bits()
	if p.Addr().Is4() {
		bits += 96
	}
	if !slices.Contains(n.bits, bits) {
		n.bits = append(n.bits, bits)
	}
}

// Hold reports whether p lies in a network whose value is accepted by the function in. A nil
// function accepts every value. Hold allocates nothing.
func (n *Networks[V]) Hold(p netip.Prefix, in func(V) bool) bool {
	for _, bits := range n.bits {
		if p.Addr().Is4() {
			bits -= 96
		}
		if bits < 0 || bits > p.Bits() {
			continue
		}
		if wider, err := p.Addr().Prefix(bits); err == nil {
			if v, ok := n.values[wider]; ok && (in == nil || in(v)) {
				return true
			}
		}
	}
	return false
}

// Len returns the number of networks.
func (n *Networks[V]) Len() int { return len(n.values) }
