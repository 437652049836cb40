package overrides

import (
	"fmt"
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

// checkNetwork returns an error if an entry has a network that Live cannot deny.
func (e *Entry) checkNetwork() error {
	switch p := e.Network; {
	case p == (netip.Prefix{}):
		return nil
	case !p.IsValid() || p != p.Masked():
		return fmt.Errorf("network %v has bits after its prefix; want %v", p, p.Masked())
	case p.Addr().Is4In6():
		return fmt.Errorf("network %v is IPv4-mapped; want an IPv4 network", p)
	case !e.Denied:
		return fmt.Errorf("network %v is not Denied, which is all that an entry for a network can be", p)
	}
	return nil
}

// DenyFrom returns a function that reports whether the client address of a request is in a network
// that the rule's overrides deny. Use it in weir.Rule.Policy:
//
//	Policy: weir.When(live.DenyFrom("api", weir.ClientAddr()), weir.Denied()),
//
// To deny a network, call Set with an Entry whose Network and Denied are set. The find function returns the client address of a
// request; use weir.ClientAddr with the proxies that the rule trusts.
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
		l.checkRead(rule)
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

// buildNetworks makes the networks of a rule from l.all, if it has any.
func (l *Live) buildNetworks(rule string) {
	denied := l.denied[rule]
	if denied == nil {
		return
	}
	var n *networks
	all := l.ofRule(rule)
	for i := range all {
		if o := &all[i]; o.Network.IsValid() {
			if n == nil {
				n = &networks{}
			}
			n.Add(o.Network, o.End)
		}
	}
	denied.Store(n)
}
