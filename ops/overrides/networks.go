package overrides

import (
	"net/http"
	"net/netip"

	"github.com/seed83679106/weir/internal/addr"
)

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
	of := l.rule(rule)
	of.forNetworks = true
	return func(r *http.Request) bool {
		l.checkRead(rule)
		a, ok := find(r)
		return ok && of.table.Load().holds(addr.Outside(a))
	}
}

// DeniesNetworks reports whether DenyFrom was called for the rule.
func (l *Live) DeniesNetworks(rule string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rules[rule]
	return r != nil && r.forNetworks
}
