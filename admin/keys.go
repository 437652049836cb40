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

// checkKey returns a problem if the key looks like an address but requests from that address
// have another key. A change of such a key would be answered with 200 and have no effect. To find
// that other key, checkKey calls the key functions of the rule with a request that has only this
// address. If a key function needs more of the request, checkKey returns no problem. isNetwork
// reports whether the key is a network that can be denied and is not known to be a key of the rule.
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
		case ok && storedkey.Equal(k, key):
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

// addrOf returns the address that a key looks like. If the key is a network, addrOf returns the
// first address of the network.
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

// keyFrom calls a KeyFunc with a request that has only an address, and returns the result.
// ok is false if the function finds no key, or panics.
func keyFrom(key weir.KeyFunc, from netip.Addr) (k string, ok bool) {
	defer func() {
		if recover() != nil { // the program's key function may need more of a request than this one has
			ok = false
		}
	}()
	return key(requestFrom(from))
}

// requestFrom returns a request from an address, without header fields.
func requestFrom(from netip.Addr) *http.Request {
	return &http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: netip.AddrPortFrom(from, 4711).String(),
	}
}

// listsAddr reports whether key is an address and the function list returns true for a request
// from that address. A nil list has no addresses.
func listsAddr(list func(r *http.Request) bool, key string) (listed bool) {
	from, ok := addrOf(key)
	if list == nil || !ok {
		return false
	}
	defer func() {
		if recover() != nil { // the program's list may need more of a request than this one has
			listed = false
		}
	}()
	return list(requestFrom(from))
}
