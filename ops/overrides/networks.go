package overrides

import (
	"net/http"
	"net/netip"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/addr"
)

// networks are the denied networks of a rule, with the time at which each denial expires; zero
// means never.
type networks struct{ addr.Networks[time.Time] }

// hold reports whether an address lies in a network whose denial has not expired.
func (n *networks) hold(a netip.Addr) bool {
	return a.IsValid() && n.Hold(netip.PrefixFrom(a, a.BitLen()), unexpired)
}

// Network parses a key such as "192.0.2.0/24" as a network. If the key is not a network, ok is
// false. For example, "192.0.2.1/24" is not a network, because it has non-zero bits after its
// prefix. Networks of IPv4-mapped IPv6 addresses are not accepted either.
func Network(key string) (p netip.Prefix, ok bool) {
	p, err := netip.ParsePrefix(key)
	return p, err == nil && p == p.Masked() && !p.Addr().Is4In6()
}

// DenyFrom returns a function that reports whether the client address of a request is in a network
// that the rule's overrides deny. Use it in weir.Rule.Policy:
//
//	Policy: weir.When(live.DenyFrom("api", keys.ClientAddr()), weir.Denied()),
//
// To deny a network, call Set with an Entry that has the network as its Key, such as
// "192.0.2.0/24", and Denied set to true. The find function returns the client address of a
// request; use keys.ClientAddr with the proxies that the rule trusts.
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

// DeniesNetworks reports whether DenyFrom was called for the rule.
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
		of[o.Rule].Add(p, o.End)
	}
	for rule, denied := range l.denied {
		denied.Store(of[rule])
	}
}
