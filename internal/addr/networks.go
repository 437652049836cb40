package addr

import (
	"net/netip"
	"slices"
)

// Networks is a set of networks, each with a value. The zero value is an empty set.
type Networks[V any] struct {
	values map[netip.Prefix]V
	bits   []int // the lengths of the prefixes; IPv4 counts as mapped to IPv6, so /8 is 104
}

// Add adds a network, whose bits after the prefix are 0, or replaces its value.
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

// Hold reports whether p lies in a network for whose value in is true. Hold allocates nothing.
func (n *Networks[V]) Hold(p netip.Prefix, in func(V) bool) bool {
	for _, bits := range n.bits {
		if p.Addr().Is4() {
			bits -= 96
		}
		if bits < 0 || bits > p.Bits() {
			continue
		}
		if wider, err := p.Addr().Prefix(bits); err == nil {
			if v, ok := n.values[wider]; ok && in(v) {
				return true
			}
		}
	}
	return false
}

// Len returns the number of networks.
func (n *Networks[V]) Len() int { return len(n.values) }
