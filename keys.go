package weir

import (
	"cmp"
	"fmt"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/seed83679106/weir/internal/addr"
)

// A KeyFunc returns the key whose quota a request spends. Requests with the same key share a quota.
// If ok is false, the request has no key, and Rule.NoKey decides what happens to it. A KeyFunc must
// be safe for concurrent use. Package keys provides more KeyFuncs.
//
// The key may share memory with the request, so clone it if you keep it. It may be as long as
// net/http allows, but a Limiter replaces long keys with a digest: see [quota.Charge.StoredKey].
// Functions that return a KeyFunc panic if their arguments are invalid.
type KeyFunc func(r *http.Request) (key string, ok bool)

// ByIP uses the client's IP address as the key. Each IPv4 address has its own quota. All IPv6
// addresses in a /64 share a quota, because they usually belong to the same client. Keys look like
// "192.0.2.1" and "2001:db8:1:2::/64". IPv4-mapped IPv6 addresses count as IPv4 addresses. So do
// NAT64 addresses (RFC 6052) in 64:ff9b::/96 that contain a public IPv4 address. Zones are ignored.
// Every request has a key.
//
// The client's address is:
//
//   - the peer address in r.RemoteAddr, if it is not in a trusted prefix. The headers that the peer
//     sends are ignored, so it cannot choose its key;
//   - otherwise the rightmost address in X-Forwarded-For that is not in a trusted prefix. Each
//     proxy appends its caller's address, so the client may have forged the entries to the left.
//
// Trust only the prefixes of your own proxies. If a trusted prefix contains clients, or if a proxy
// forwards X-Forwarded-For unchanged, clients can choose their keys. Clients behind an untrusted
// proxy all share the proxy's key. To detect such a proxy, ByIP examines the first 1,024 requests
// from untrusted peers. A warning is logged to [slog.Default] if a peer with a private address
// sends X-Forwarded-For or Forwarded, or if more than half of these requests contain at least one
// of the two fields. It is logged once per process and contains no addresses.
//
// Requests whose client address cannot be determined are still limited. If an entry is not an IP
// address, the key is the address of the trusted proxy that sent the entry. If all addresses are
// trusted, the key is the leftmost one. Peers without an IP address, such as those on a Unix
// socket, share the key "unknown". To trust such peers, pass the zero [netip.Prefix] as one of the
// trusted prefixes.
//
// ByIP panics if a prefix other than the zero prefix is invalid, or if a prefix contains all
// addresses. If a chi middleware has already determined the client's address, use weirchi.ClientIP.
// Package keys supports other network sizes and the Forwarded field.
func ByIP(trusted ...netip.Prefix) KeyFunc {
	proxies := addr.NewProxies("weir: ByIP", addr.ForwardedFor, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, addr.Usual), true }
}

// ByHeader uses the value of a header field as the key. If the field has several values, the first
// one is used. For "Host", the key is the request's host name in lower case, without port or
// trailing dots. IPv6 addresses keep their brackets.
//
// A request has no key if the field is missing or empty, so by default clients can evade the rule
// by omitting the field. To limit such requests too, give them another key with [FirstOf].
//
// If clients can choose the value freely, they can obtain a fresh quota for each request or spend
// another client's quota. Use ByHeader only for values that have been verified or that only a proxy
// can set. For secrets, use keys.Hashed.
func ByHeader(name string) KeyFunc {
	if name == "" {
		panic("weir: ByHeader: name is empty")
	}
	name = http.CanonicalHeaderKey(name)
	return func(r *http.Request) (string, bool) {
		if name == "Host" {
			// net/http moves the host to r.Host. Outgoing requests may have it only in the
			// URL.
			return nonempty(addr.Hostname(cmp.Or(r.Host, r.URL.Host)))
		}
		return nonempty(r.Header.Get(name))
	}
}

// Global limits all requests together by giving them the same key, the empty string.
func Global() KeyFunc { return global }

func global(*http.Request) (string, bool) { return "", true }

func isGlobal(key KeyFunc) bool {
	return reflect.ValueOf(key).Pointer() == reflect.ValueOf(global).Pointer()
}

// Join combines several keys into one. A request has a key only if every function returns one. The
// keys are encoded as netstrings (https://cr.yp.to/proto/netstrings.txt), such as
// "9:192.0.2.1,3:GET,". Different combinations therefore never produce the same key, whatever
// values a client sends.
func Join(keys ...KeyFunc) KeyFunc {
	keys = checked("Join", keys)
	return func(r *http.Request) (string, bool) {
		var few [8]string // on the stack; more than eight cost a second allocation
		parts, size := few[:0], 0
		for _, key := range keys {
			part, ok := key(r)
			if !ok {
				return "", false
			}
			parts = append(parts, part)
			size += len("9999999999:,") + len(part)
		}
		var b strings.Builder
		b.Grow(size)
		var digits [20]byte
		for _, part := range parts {
			b.Write(strconv.AppendInt(digits[:0], int64(len(part)), 10))
			b.WriteByte(':')
			b.WriteString(part)
			b.WriteByte(',')
		}
		return b.String(), true
	}
}

// FirstOf uses the key from the first function that returns one. If no function returns a key, the
// request has no key. Each key is prefixed with the position of the function that returned it, such
// as "0:". An API key that looks like an IP address therefore does not spend that address's quota.
//
// If clients can omit or forge the earlier keys, the last key should be one that they can neither
// omit nor forge:
//
//	weir.FirstOf(keys.ByContext(userKey{}), weir.ByIP())
func FirstOf(keys ...KeyFunc) KeyFunc {
	keys = checked("FirstOf", keys)
	return func(r *http.Request) (string, bool) {
		for i, key := range keys {
			if k, ok := key(r); ok {
				return strconv.Itoa(i) + ":" + k, true
			}
		}
		return "", false
	}
}

// nonempty returns its argument. ok is false if the key is empty, because the empty key is
// the key of Global.
func nonempty(key string) (_ string, ok bool) { return key, key != "" }

func checked(name string, keys []KeyFunc) []KeyFunc {
	if len(keys) == 0 {
		panic("weir: " + name + ": keys is empty")
	}
	for i, key := range keys {
		if key == nil {
			panic(fmt.Sprintf("weir: %s: key %d is nil", name, i))
		}
	}
	return slices.Clone(keys)
}

// FreePreflight returns a Rule.Cost function that makes CORS preflight requests free. For other
// requests, the returned function calls cost, or returns 1 if cost is nil. A preflight is free only
// if it looks like one sent by a browser: an OPTIONS request with Origin and
// Access-Control-Request-Method, but without a body or any of the fields Authorization,
// Proxy-Authorization, Cookie, Expect and Upgrade. Even a free preflight is refused if its key is
// denied or banned. Without FreePreflight, preflights are charged like other requests, because
// clients could otherwise send any number of them. CORS middleware in front of the Limiter answers
// preflights before they are charged.
func FreePreflight(cost func(r *http.Request) int64) func(r *http.Request) int64 {
	return func(r *http.Request) int64 {
		switch {
		case preflight(r):
			return 0
		case cost == nil:
			return 1
		}
		return cost(r)
	}
}

// preflight reports whether a request is a CORS preflight, which a browser sends by itself,
// without a body or credentials (Fetch standard, CORS-preflight request). A client
// certificate belongs to the connection and is ignored.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Header["Expect"]) == 0 && len(r.Header["Upgrade"]) == 0 &&
		len(r.Header["Authorization"]) == 0 && len(r.Header["Proxy-Authorization"]) == 0 && len(r.Header["Cookie"]) == 0
}
