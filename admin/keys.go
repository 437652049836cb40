package admin

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/overrides"
)

// checkKey returns an error if the key looks like an address but no request from that
// address has this key: a change would be answered 200 and have no effect. It asks the
// key functions of the rule for the key of a request from that address. If one of them
// needs more of a request than its address, the key may be right. isNetwork says that the
// key is a network and, as far as that can be known, not a key of the rule: it can be denied.
func (r *rule) checkKey(key string) (isNetwork bool, _ *problem) {
	from, ok := addrOf(key)
	if !ok {
		return false, nil
	}
	_, isNetwork = overrides.Network(key)
	known := ""
	for _, f := range r.keys {
		k, ok := keyFrom(f, from)
		switch {
		case ok && storedkey.Of(k) == storedkey.Of(key):
			return false, nil
		case !ok:
			return isNetwork, nil
		}
		known = k
	}
	hint := ""
	if strings.Contains(key, "/") {
		hint = "; to refuse a network, put it in a list of the rule: deny in a file, or DenyFrom"
	}
	return isNetwork, refuse(http.StatusBadRequest, "under rule %q no request has the key %q: a request from %s has the key %q%s", r.Name, key, from, known, hint)
}

// addrOf returns the address that a key looks like, or the first address of a network.
func addrOf(key string) (from netip.Addr, ok bool) {
	if len(key) > 64 || !strings.ContainsAny(key, ".:") {
		return netip.Addr{}, false
	}
	plain := addr.Plain(key)
	if p, err := netip.ParsePrefix(plain); err == nil {
		return p.Masked().Addr(), true
	}
	from, err := netip.ParseAddr(plain)
	return from, err == nil
}

// keyFrom returns the key of a request of which only the address is known.
func keyFrom(key weir.KeyFunc, from netip.Addr) (k string, ok bool) {
	defer func() {
		if recover() != nil { // a key function of the user may panic without the rest of a request
			ok = false
		}
	}()
	return key(requestFrom(from))
}

// requestFrom returns a request of which only the address is known.
func requestFrom(from netip.Addr) *http.Request {
	return &http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: netip.AddrPortFrom(from, 4711).String(),
	}
}

// listsAddr reports whether the key is an address that a list of addresses has.
func listsAddr(list func(r *http.Request) bool, key string) (listed bool) {
	from, ok := addrOf(key)
	if list == nil || !ok {
		return false
	}
	defer func() {
		if recover() != nil { // a function of the user may panic without the rest of a request
			listed = false
		}
	}()
	return list(requestFrom(from))
}
