package keys

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/storedkey"
)

// A List is a set of keys, networks and key prefixes. To use it in weir.Rule.ForKey, pass its Has
// method to [weir.When]. For a list of addresses, prefer an [AddrList].
type List struct {
	keys     map[string]bool
	networks networks
	starts   map[string]bool
	lengths  []int // the lengths of starts
}

// NewList returns a list of the given entries. An entry that is an address, such as "192.0.2.7", or
// a network, such as "10.0.0.0/8", matches all keys that equal the entry or lie within it. The
// entry "tenant-a/*" matches all keys with the prefix "tenant-a/". Any other entry matches only
// that exact key.
//
// Entries are compared with the rule's whole key. With weir.ByIP, the key of an IPv6 client is a
// /64 network, so the entry "2001:db8::1" matches no key, and a denylist with this entry refuses
// nobody. With ByIPPrefix(32, 128), the entry does match. The keys of Join, FirstOf and Global are
// never addresses. To list clients by address, whatever their keys are, use an [AddrList].
//
// NewList returns an error for an entry that would match every key, or could never match any key.
// Examples are "*", "", a malformed network, and an address with a port, a zone or spaces. To
// obtain the reason, which names the entry, call errors.Unwrap on the error.
func NewList(entries ...string) (*List, error) {
	l := &List{keys: map[string]bool{}, starts: map[string]bool{}}
	for _, e := range entries {
		network, ok, err := parseNetwork(e)
		switch {
		case e == "" || e == "*":
			err = fmt.Errorf("entry %q would match every key or none", e)
		case err == nil && !ok && strings.TrimSpace(e) != e:
			err = fmt.Errorf("entry %q has spaces around it: list %q", e, strings.TrimSpace(e))
		}
		if err != nil {
			return nil, fmt.Errorf("keys: list: %w", err)
		}
		if ok {
			l.networks.add(network)
			continue
		}
		if start, ok := strings.CutSuffix(e, "*"); ok {
			l.starts[start] = true
			if !slices.Contains(l.lengths, len(start)) {
				l.lengths = append(l.lengths, len(start))
			}
			continue
		}
		l.keys[storedkey.Of(e)] = true
	}
	return l, nil
}

// Has reports whether the list contains a key. An entry without an asterisk matches both a key and
// its quota.Charge.StoredKey.
func (l *List) Has(key string) bool {
	if l.keys[storedkey.Of(key)] {
		return true
	}
	for _, n := range l.lengths {
		if n <= len(key) && l.starts[key[:n]] {
			return true
		}
	}
	if l.networks.Len() == 0 {
		return false
	}
	network, ok := network(key)
	return ok && l.networks.hold(network)
}

// An AddrList is a set of addresses and networks. To use it in weir.Rule.Policy, call its Match
// method and pass the resulting function to [weir.When]. The list is compared with the request's
// client address, not with the rule's key.
type AddrList struct{ networks networks }

// NewAddrList returns a list of addresses such as "192.0.2.7" and "2001:db8::1", and networks such
// as "10.0.0.0/8". An IPv4-mapped IPv6 address is equivalent to the IPv4 address that it contains.
// Any other entry is an error; its text says what to list instead.
func NewAddrList(entries ...string) (*AddrList, error) {
	l := &AddrList{}
	for _, e := range entries {
		network, ok, err := parseNetwork(e)
		switch {
		case err != nil:
			return nil, fmt.Errorf("keys: list: %w", err)
		case !ok:
			return nil, fmt.Errorf("keys: list: entry %q is neither an address such as 192.0.2.7 nor a network such as 10.0.0.0/8", e)
		}
		l.networks.add(network)
	}
	return l, nil
}

// Has reports whether the list contains the address a.
func (l *AddrList) Has(a netip.Addr) bool {
	a = addr.Outside(a)
	return a.IsValid() && l.networks.hold(netip.PrefixFrom(a, a.BitLen()))
}

// Match returns a function that obtains a request's client address by calling find, and that
// reports whether the list contains this address. That function returns false if the request has no
// client address. The argument find is usually the result of [ClientAddr], called with the same
// trusted proxies as weir.ByIP.
func (l *AddrList) Match(find AddrFunc) func(r *http.Request) bool {
	return func(r *http.Request) bool {
		a, ok := find(r)
		return ok && l.Has(a)
	}
}

// networks is a set of networks.
type networks struct{ addr.Networks[struct{}] }

func (n *networks) add(p netip.Prefix)       { n.Add(p, struct{}{}) }
func (n *networks) hold(p netip.Prefix) bool { return n.Hold(p, func(struct{}) bool { return true }) }

// network reads an address or a network without a zone. The bits after the prefix of the
// result are 0. An IPv4-mapped address or network becomes IPv4.
func network(s string) (netip.Prefix, bool) {
	if len(s) > 64 || !strings.ContainsAny(s, ".:") || strings.Contains(s, "%") {
		return netip.Prefix{}, false
	}
	var p netip.Prefix
	var err error
	if strings.Contains(s, "/") { // the error of the wrong function would be an allocation
		p, err = netip.ParsePrefix(s)
	} else {
		var a netip.Addr
		a, err = netip.ParseAddr(s)
		p = netip.PrefixFrom(a, a.BitLen())
	}
	if err != nil {
		return netip.Prefix{}, false
	}
	return addr.Unmap(p).Masked(), true
}

// parseNetwork reads an entry of a list. If the entry does not look like an address or a
// network, ok is false and err is nil. If it does but would match no client, err says what
// to list instead.
func parseNetwork(s string) (p netip.Prefix, ok bool, err error) {
	p, ok = network(s)
	if ok {
		if whole, err := netip.ParsePrefix(s); err == nil && whole.Addr().Is4In6() && whole.Bits() < 96 {
			return p, false, fmt.Errorf("entry %q contains all of IPv4, whose clients have addresses such as 192.0.2.7: list 0.0.0.0/0", s)
		}
		if addr.NAT64.Overlaps(p) && p.Bits() > 32 && (p.Bits() < 104 || addr.Outside(p.Addr()).Is4()) {
			return p, false, fmt.Errorf("entry %q is of NAT64, whose clients are known by their IPv4 addresses: list those", s)
		}
		return p, true, nil
	}
	if meant, ok := network(addr.Plain(s)); ok {
		want := meant.String()
		if meant.IsSingleIP() {
			want = meant.Addr().String()
		}
		return p, false, fmt.Errorf("entry %q has a port, brackets, a zone, spaces or leading zeros: list %s", s, want)
	}
	if one, _, found := strings.Cut(s, "/"); found {
		if _, ok := network(addr.Plain(one)); ok {
			return p, false, fmt.Errorf("entry %q is no network; want a length of at most 32 for IPv4, as in 10.0.0.0/8, or 128 for IPv6", s)
		}
	}
	return p, false, nil
}
