package overrides

import (
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/addr"
)

// networks are the denied networks of a rule.
type networks struct {
	until      map[netip.Prefix]time.Time // when each denial ends; zero means never
	ipv4, ipv6 []int                      // the lengths of the prefixes in until
}

func (n *networks) add(p netip.Prefix, end time.Time) {
	if n.until == nil {
		n.until = map[netip.Prefix]time.Time{}
	}
	n.until[p] = end
	lengths := &n.ipv6
	if p.Addr().Is4() {
		lengths = &n.ipv4
	}
	if !slices.Contains(*lengths, p.Bits()) {
		*lengths = append(*lengths, p.Bits())
	}
}

// hold reports whether an address lies in a network whose denial has not ended.
func (n *networks) hold(a netip.Addr) bool {
	lengths := n.ipv6
	if a.Is4() {
		lengths = n.ipv4
	}
	for _, bits := range lengths {
		p, err := a.Prefix(bits)
		if err != nil {
			continue
		}
		if end, ok := n.until[p]; ok && (end.IsZero() || time.Now().Before(end)) {
			return true
		}
	}
	return false
}

// Network returns the network that a key such as "192.0.2.0/24" names. ok is false if the
// key is no network. It is also false for "192.0.2.1/24", which has bits after its prefix,
// and for networks of IPv4-mapped IPv6 addresses.
func Network(key string) (p netip.Prefix, ok bool) {
	p, err := netip.ParsePrefix(key)
	return p, err == nil && p == p.Masked() && !p.Addr().Is4In6()
}

// DenyFrom returns a function that reports whether the address of a request lies in a network
// that is denied under a rule. It is for weir.Rule.Policy:
//
//	Policy: weir.When(live.DenyFrom("api", keys.ClientAddr()), weir.Denied()),
//
// A network such as "192.0.2.0/24" is denied if it is the key of an override with Denied. find
// returns the address of a request; use keys.ClientAddr with the proxies that the rule trusts.
func (l *Live) DenyFrom(rule string, find func(r *http.Request) (netip.Addr, bool)) func(r *http.Request) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	denied := l.denied[rule]
	if denied == nil {
		denied = new(atomic.Pointer[networks])
		l.denied[rule] = denied
		l.build()
	}
	return func(r *http.Request) bool {
		if !l.ready.Load() {
			l.unread(rule)
		}
		n := denied.Load()
		if n == nil {
			return false
		}
		a, ok := find(r)
		return ok && n.hold(addr.Outside(a))
	}
}

// DeniesNetworks reports whether DenyFrom was called for a rule.
func (l *Live) DeniesNetworks(rule string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.denied[rule] != nil
}

// buildNetworks makes the networks of the rules from l.all.
func (l *Live) buildNetworks() {
	of := map[string]*networks{}
	for i := range l.all {
		o := &l.all[i]
		p, ok := Network(o.Key)
		if !ok || !o.Denied || l.denied[o.Rule] == nil {
			continue
		}
		if of[o.Rule] == nil {
			of[o.Rule] = &networks{}
		}
		of[o.Rule].add(p, o.End)
	}
	for rule, denied := range l.denied {
		denied.Store(of[rule])
	}
}
