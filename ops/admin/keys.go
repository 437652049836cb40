package admin

import (
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
)

// checkKey returns a problem if the key looks like an address but requests from that address
// have another key. Otherwise, a change to such a key would be answered with 200 but would have no
// effect. To find the other key, checkKey calls the key functions of the rule with a request that
// has only this address. If a key function needs other parts of a request, checkKey returns nil.
func (r *rule) checkKey(key string) *problem {
	from, ok := addrOf(key)
	if !ok {
		return nil
	}
	known, ok := r.keyOf(key, from)
	if !ok || known == key {
		return nil
	}
	hint := ""
	if strings.Contains(key, "/") {
		hint = "; to refuse a network, use the parameter network, or put it in a list of the rule"
	}
	return refuse(http.StatusBadRequest, "under rule %q no request has the key %q: a request from %s has the key %q%s",
		r.Name, key, from, known, hint)
}

// A fileOfKeys is an Options.File, such as a *config.File, that knows which keys its rules can
// have.
type fileOfKeys interface {
	// EntryOf returns an entry in the form in which it is stored under a rule, whose keys may be
	// hashed. It returns an error if no request can have such a key.
	EntryOf(rule string, e overrides.Entry) (overrides.Entry, error)
}

// stored converts a scope that an operator has typed into the form in which it is stored under a
// rule. It returns an error if no request can have such a key.
func (h *Handler) stored(rule string, s scope) (scope, error) {
	file, ok := h.o.File.(fileOfKeys)
	if !ok || s.Network != "" {
		return s, nil
	}
	e, err := file.EntryOf(rule, s.entry())
	if err != nil {
		return s, err
	}
	return scopeOfEntry(&e), nil
}

// addrOf returns the address that a key looks like. If the key is a network, addrOf returns the
// first address of the network.
func addrOf(key string) (from netip.Addr, ok bool) {
	network, ok := addr.Network(addr.Plain(key))
	return network.Addr(), ok
}

// keyFrom calls a KeyFunc with a request that has only an address, and returns the result.
// ok is false if the function finds no key, or panics.
func keyFrom(key weir.KeyFunc, from netip.Addr) (k string, ok bool) {
	panicked, _ := safe.Call("admin", func() error { // the key function may need parts of a request that this one lacks
		k, ok = key(requestFrom(from))
		return nil
	})
	return k, ok && !panicked
}

// requestFrom returns a request from an address, without header fields.
func requestFrom(from netip.Addr) *http.Request {
	return &http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: netip.AddrPortFrom(from, 4711).String(),
	}
}

// A lookup describes what a rule looks up for a request from a client.
type lookup struct {
	key     string     // as the rule's KeyFunc returns it
	from    netip.Addr // of the client; invalid if it is not known
	unknown []string   // what might refuse the request, but is unknown
	keyless bool       // the key depends on the client's address, which is unknown
}

// Keyless reports whether the lookup was skipped because the typed key is not a key of the rule,
// and the client's key under the rule is unknown.
func (l *lookup) Keyless() bool { return l.keyless }

// keyOf returns the key of a request from the address that an operator has typed: the typed key, if
// it stands for that key. ok is false if the rule's key function needs other parts of a request.
func (r *rule) keyOf(typed string, client netip.Addr) (key string, ok bool) {
	key, ok = keyFrom(r.Key, client)
	if storedkey.Equal(key, typed) {
		key = typed
	}
	return key, ok
}

// Two addresses for documentation (RFC 5737), in different networks.
var oneAddr, otherAddr = netip.AddrFrom4([4]byte{192, 0, 2, 1}), netip.AddrFrom4([4]byte{198, 51, 100, 1})

// byAddress reports whether requests that have only an address have a key, and whether the key
// differs from address to address.
func (r *rule) byAddress() (has, differs bool) {
	one, has := keyFrom(r.Key, oneAddr)
	other, also := keyFrom(r.Key, otherAddr)
	return has && also, has && also && one != other
}

// shared reports whether all clients at one address, such as the users in an office, have the key.
func (r *rule) shared(key string) bool {
	client, ok := addrOf(key)
	if !ok {
		return false
	}
	at, ok := r.keyOf(key, client)
	_, differs := r.byAddress()
	return ok && differs && at == key
}

// lookUp returns a description of what a rule looks up for a key that an operator has typed. If the
// operator has typed an address, lookUp uses the key of a request from this address, such as its
// /64. The address of the client is then known, even if the argument from is invalid. Any other key
// is hashed as the rules file specifies; a key that the rule cannot have is looked up unchanged.
//
// A typed key that is not an address may belong to another rule, unless the operator has named the
// rule or the rule is known to have refused the key. In this case, if the rule counts addresses,
// lookUp returns the key of the client's address, or no key if that address is invalid. If the rule
// counts all requests together, lookUp returns the rule's only key.
func (h *Handler) lookUp(r *rule, typed string, from netip.Addr) lookup {
	l := lookup{key: typed, from: from}
	client, isAddr := addrOf(typed)
	var fault error
	hashes := false // the key function has a key for the address, and hashes it if it has to
	if isAddr {
		_, hashes = keyFrom(r.Key, client)
	}
	if !hashes {
		var s scope
		s, fault = h.stored(r.Name, scope{Key: typed})
		l.key = s.Key
		client, isAddr = addrOf(l.key)
	}
	switch {
	case isAddr:
		l.byAddr(r, l.key, client)
	case !r.named:
		l.byRule(r)
	}
	if fault != nil && r.named {
		l.unknown = append(l.unknown, "no request has this key: "+strings.TrimPrefix(fault.Error(), "config: "))
	}
	return l
}

// byRule completes the lookup of a typed key that is not an address and may belong to another rule.
func (l *lookup) byRule(r *rule) {
	one, found := keyFrom(r.Key, oneAddr)
	_, isAddr := addrOf(one)
	switch {
	case !found:
	case one == "":
		l.key = ""
	case isAddr && !l.from.IsValid():
		l.keyless, l.unknown = true, append(l.unknown, "the rule counts clients by their address, which is not given")
	case isAddr:
		if at, found := keyFrom(r.Key, l.from); found {
			l.key = at
		}
	default:
		l.unknown = append(l.unknown, "this may be no key of the rule: name the rule if it is one")
	}
}

// byAddr completes the lookup of a typed key that is an address or a network. client is the address,
// or the first address of the network.
func (l *lookup) byAddr(r *rule, typed string, client netip.Addr) {
	network := strings.Contains(typed, "/")
	key, found := r.keyOf(typed, client)
	if !l.from.IsValid() && (!network || found && key == typed) {
		l.from = client
	}
	switch {
	case !found:
		l.unknown = append(l.unknown, "this may be no key of the rule: its key depends on more of a request than the address")
	case network && key != typed:
		l.unknown = append(l.unknown, fmt.Sprintf("no request has this key: a request from %s has the key %q", client, key))
	default:
		l.key = key
	}
}

// policyAt returns the policy that a rule's Policy returns for a request from an address. known is
// false if the address is invalid, or if the function needs other parts of a request.
func policyAt(policy func(r *http.Request) weir.Policy, from netip.Addr) (p weir.Policy, known bool) {
	if policy == nil || !from.IsValid() {
		return p, policy == nil
	}
	panicked, _ := safe.Call("admin", func() error {
		p = policy(requestFrom(from))
		return nil
	})
	return p, !panicked
}
