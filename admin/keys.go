package admin

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
)

// checkKey refuses a key that looks like an address and that no request has: a change
// under it would be answered 200 and change nothing. It asks the key functions of the
// rule for the key of a request from there. Of those that need more of a request
// nothing is known, and the key may be right.
func (t *target) checkKey() error {
	from, isNetwork, ok := meantAddr(t.key)
	if !ok {
		return nil
	}
	known := ""
	for _, key := range t.keys {
		k, ok := keyFrom(key, from)
		if !ok || weir.StoredKey(k) == weir.StoredKey(t.key) {
			return nil
		}
		known = k
	}
	hint := ""
	if isNetwork {
		hint = "; a network is refused by a list of the rule, deny in a file or DenyFrom"
	}
	return refuse(http.StatusBadRequest, "under rule %q no request has the key %q: one from %s has the key %q%s", t.Name, t.key, from, known, hint)
}

// meantAddr returns the address that a key seems to be, or the first of a network.
func meantAddr(key string) (from netip.Addr, isNetwork, ok bool) {
	if len(key) > 64 || !strings.ContainsAny(key, ".:") {
		return netip.Addr{}, false, false
	}
	plain := addr.Plain(key)
	if p, err := netip.ParsePrefix(plain); err == nil {
		return p.Masked().Addr(), true, true
	}
	from, err := netip.ParseAddr(plain)
	return from, false, err == nil
}

// keyFrom returns the key of a request from an address, and of which nothing else is
// known.
func keyFrom(key weir.KeyFunc, from netip.Addr) (k string, ok bool) {
	defer func() {
		if recover() != nil { // a key function of somebody's may need more of a request
			ok = false
		}
	}()
	return key(&http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: netip.AddrPortFrom(from, 4711).String(),
	})
}
