package admin

import (
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
)

// checkKey returns an error if the key looks like an address but no request from that
// address has this key: a change would be answered 200 and have no effect. It asks the
// key functions of the rule for the key of a request from that address. If one of them
// needs more of a request than its address, the key may be right.
func (t *target) checkKey() error {
	from, isNetwork, ok := addrOf(t.key)
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
		hint = "; to refuse a network, put it in a list of the rule: deny in a file, or DenyFrom"
	}
	return refuse(http.StatusBadRequest, "under rule %q no request has the key %q: a request from %s has the key %q%s", t.Name, t.key, from, known, hint)
}

// addrOf returns the address that a key looks like, or the first address of a network.
func addrOf(key string) (from netip.Addr, isNetwork, ok bool) {
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

// keyFrom returns the key of a request of which only the address is known.
func keyFrom(key weir.KeyFunc, from netip.Addr) (k string, ok bool) {
	defer func() {
		if recover() != nil { // a key function of the user may panic without the rest of a request
			ok = false
		}
	}()
	return key(&http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, RemoteAddr: netip.AddrPortFrom(from, 4711).String(),
	})
}
