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

// A KeyFunc returns the key whose quota a request spends. Requests with the same key share a
// quota. If ok is false, the rule does not apply to the request. A KeyFunc must be safe for
// concurrent use. Package keys has more functions that return a KeyFunc.
//
// The key may be a substring of the request, so code that keeps the key must clone it. It may be
// as long as net/http allows, but a Limiter keeps only its [quota.Charge.StoredKey]. The functions
// that return a KeyFunc panic if their arguments are invalid.
type KeyFunc func(r *http.Request) (key string, ok bool)

// ByIP limits each client address. An IPv4 address has its own quota; an IPv6 address shares one
// with its /64, which usually belongs to one client. Keys look like "192.0.2.1" and
// "2001:db8:1:2::/64". An IPv4-mapped address counts as its IPv4 address. So does an address in
// 64:ff9b::/96 that contains a public IPv4 address, because it belongs to a client behind NAT64
// (RFC 6052). Zones are dropped. The rule always applies.
//
// The address of a client is:
//
//   - the peer address in r.RemoteAddr, if it is not in a trusted prefix. The peer's headers are
//     not read, so it cannot choose its key;
//   - otherwise the rightmost address in X-Forwarded-For that is not in a trusted prefix, because
//     each proxy appends the address of its caller. The client may have invented the entries to
//     the left of that address.
//
// Trust only the prefixes of your own proxies. If a trusted prefix contains clients, or a proxy
// forwards X-Forwarded-For unchanged, clients can choose their keys. Behind an untrusted proxy,
// all clients share the key of the proxy. To detect such a proxy, ByIP examines the first 1,024
// requests that come from untrusted peers. If a peer with a private address sends X-Forwarded-For
// or Forwarded, or if more than half of these requests have one of the two fields, ByIP logs a
// warning to [slog.Default], once per process. The warning contains no addresses.
//
// A request whose client address is unclear is limited too. If an entry is not an address, the
// search ends, and the key is the trusted hop that sent the entry. If all hops are trusted, the
// key is the leftmost one. Peers without an IP address, as on a Unix socket, share the key
// "unknown". The zero [netip.Prefix] in trusted makes these peers trusted.
//
// ByIP panics if a prefix is invalid, unless it is the zero prefix, or if a prefix contains all
// addresses. If a chi middleware has already found the address, use weirchi.ClientIP. For other
// network sizes and for the Forwarded field, see package keys.
func ByIP(trusted ...netip.Prefix) KeyFunc {
	proxies := addr.NewProxies("weir: ByIP", addr.ForwardedFor, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, addr.Usual), true }
}

// ByHeader limits each value of a header field. If the field has several values, the first one
// counts. "Host" is the host of the request in a normalized form: lower case, without a port, and
// without trailing dots. An IPv6 address keeps its brackets.
//
// If the field is missing or empty, the rule does not apply: a client that omits the field
// is not limited by the rule. To limit such requests too, give them another key with
// [FirstOf].
//
// A client that can choose its key freely can choose a fresh quota each time, or spend the quota
// of another client. Use ByHeader for values that were already verified, or that only a proxy can
// set. For secrets, use keys.Hashed.
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

// Global limits all requests together: they share the empty key.
func Global() KeyFunc { return global }

func global(*http.Request) (string, bool) { return "", true }

func isGlobal(key KeyFunc) bool {
	return reflect.ValueOf(key).Pointer() == reflect.ValueOf(global).Pointer()
}

// Join limits each combination of keys. The rule applies only if every function returns a key. The
// keys are joined as netstrings, such as "9:192.0.2.1,3:GET,", so that different combinations
// never result in the same key, whatever values a client sends. See
// https://cr.yp.to/proto/netstrings.txt.
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

// FirstOf limits requests by the key of the first function that returns one. If no function
// returns a key, the rule does not apply. The key begins with the position of the function that
// returned it, "0:" and so on, so that an API key that looks like an address does not spend the
// quota of that address.
//
// If clients can omit or invent the first keys, end with a key that they can neither omit
// nor invent:
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

// FreePreflight returns a function for Rule.Cost under which CORS preflights cost 0, because
// browsers send them on their own. The cost of other requests is the result of cost, or 1 if cost
// is nil. Only requests in the form that browsers send are free: OPTIONS requests that have Origin
// and Access-Control-Request-Method, and have no body, Authorization, Proxy-Authorization, Cookie,
// Expect or Upgrade. A deny or a ban also refuses free preflights. By default preflights are
// charged, because any client can send an unlimited number of them. CORS middleware in front of
// the Limiter answers preflights before they are charged.
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
