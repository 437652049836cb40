package weir

import (
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"log/slog"
	"net/http"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"

	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/jsonbody"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/storedkey"
)

// A KeyFunc returns the key whose quota a request spends. Requests with the same key share a quota.
// If ok is false, the request has no key, and Rule.NoKey decides what happens to it. A KeyFunc must
// be safe for concurrent use.
//
// Use [ByContext] for accounts that middleware has authenticated. [ByJSON], [ByCookie] and
// [ByBasicAuthUser] read values that clients can forge, so limit each client address as well.
// [Folded] ignores letter case, and [Hashed] keeps secrets and names out of the store. [ByRoute]
// and [ByMethod] use the request's route or method as the key. To give each client a separate quota
// for each route or method, combine one of them with the client's key: see [Join]. [ByPathValue]
// uses part of the path as the key, such as a tenant name.
//
// The key may share memory with the request, so clone it if you keep it. It may be as long as
// net/http allows, but a Limiter replaces long keys with a digest: see [quota.Charge.StoredKey].
// Functions that return a KeyFunc panic if their arguments are invalid.
type KeyFunc func(r *http.Request) (key string, ok bool)

// ByIP uses the client's IP address as the key. Each IPv4 address has its own quota. All IPv6
// addresses in a /64 share a quota, because they usually belong to the same client. Keys look like
// "192.0.2.1" and "2001:db8:1:2::/64". An IPv4-mapped IPv6 address counts as the IPv4 address that
// it contains, and so does a NAT64 address (RFC 6052) in 64:ff9b::/96 that contains a public IPv4
// address. Zones are ignored. Every request has a key.
//
// The client's address is:
//
//   - the peer address in r.RemoteAddr, if it is not in a trusted prefix. The header fields that
//     such a peer sends are ignored, so the peer cannot choose its key;
//   - otherwise the rightmost address in X-Forwarded-For that is not in a trusted prefix. Each
//     proxy appends its caller's address, so the client may have forged the entries to the left.
//
// Trust only the prefixes of your own proxies. If a trusted prefix contains clients, or if a proxy
// forwards X-Forwarded-For unchanged, clients can choose their keys. Clients behind an untrusted
// proxy all share the proxy's key. To detect such a proxy, ByIP examines the first 1,024 requests
// from untrusted peers. A warning is logged to [slog.Default] if a peer with a private address
// sends X-Forwarded-For, Forwarded or X-Real-IP, or if more than half of these requests contain at
// least one of the first two fields. The warning is logged once per process and contains no
// addresses.
//
// If the first 200 requests through trusted proxies all have the same address, a proxy probably
// does not forward its clients' addresses. A warning is then logged, also once per process, that
// names the fields in which the last of these requests contains an address.
//
// Requests whose client address cannot be determined are still limited. If an entry is not an IP
// address, the key is the address of the trusted proxy that sent the entry. If all addresses are
// trusted, the key is the leftmost address. Peers without an IP address, such as those on a Unix
// socket, share the key "unknown". To trust such peers, pass the zero [netip.Prefix] as one of the
// trusted prefixes. If such peers are not trusted, the first request on a Unix socket causes a
// warning, once per process.
//
// Over HTTP/3, the address of a 0-RTT request can be forged, because the client has not yet proved
// that it receives what is sent to this address. Set Allow0RTT of quic.Config to false, or answer
// such a request, whose r.TLS.HandshakeComplete is false, with 425 (Too Early). The first such
// request causes a warning, once per process.
//
// ByIP panics if a prefix other than the zero prefix is invalid, or is shorter than /7, such as
// 0.0.0.0/0 or 2000::/3, because clients have addresses in it. Use [ByIPPrefix] for other network
// sizes, [ByForwarded] for the Forwarded field, [ByAddr] for an address that your own function finds,
// and weirchi.ClientIP for an address that a middleware of chi has found.
func ByIP(trusted ...netip.Prefix) KeyFunc {
	proxies := addr.NewProxies("weir: ByIP", addr.ForwardedFor, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, addr.Usual), true }
}

// ByIPPrefix is like [ByIP], but groups addresses into networks of the given sizes. The sizes are
// prefix lengths in bits: 1 to 32 for IPv4, and 1 to 128 for IPv6. A client that owns a larger
// network gets a separate quota for each network of the given size that it contains.
func ByIPPrefix(ipv4, ipv6 int, trusted ...netip.Prefix) KeyFunc {
	size := addr.CheckedSizes("weir: ByIPPrefix", ipv4, ipv6)
	proxies := addr.NewProxies("weir: ByIPPrefix", addr.ForwardedFor, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, size), true }
}

// ByForwarded is like [ByIP], but for proxies that write the Forwarded field (RFC 7239)
// instead of X-Forwarded-For. It never reads X-Forwarded-For, because a proxy that sets only one of
// these fields may forward the other exactly as the client sent it.
//
// ByForwarded reads the field's elements from right to left, as long as each of them comes from a
// trusted proxy. It stops at an element whose "for" parameter is hidden ("_gazonk"), "unknown",
// missing or not an address. The key is then the address of the proxy that sent the element. Ports
// are ignored.
func ByForwarded(trusted ...netip.Prefix) KeyFunc {
	proxies := addr.NewProxies("weir: ByForwarded", addr.Forwarded, trusted)
	return func(r *http.Request) (string, bool) { return proxies.Key(r, addr.Usual), true }
}

// ClientAddr returns a function that finds the client's address in the same way as [ByIP]. Its
// result ok is false if the client has no address, as on a Unix socket.
func ClientAddr(trusted ...netip.Prefix) func(r *http.Request) (client netip.Addr, ok bool) {
	return addr.NewProxies("weir: ClientAddr", addr.ForwardedFor, trusted).Addr
}

// ForwardedAddr returns a function that finds the client's address in the same way as
// [ByForwarded]. Its result ok is false if the client has no address, as on a Unix socket.
func ForwardedAddr(trusted ...netip.Prefix) func(r *http.Request) (client netip.Addr, ok bool) {
	return addr.NewProxies("weir: ForwardedAddr", addr.Forwarded, trusted).Addr
}

// ByAddr is like [ByIPPrefix], but it obtains the client's address by calling find, which must be
// safe for concurrent use. If find returns no address, the request has no key.
func ByAddr(find func(r *http.Request) (client netip.Addr, ok bool), ipv4, ipv6 int) KeyFunc {
	size := addr.CheckedSizes("weir: ByAddr", ipv4, ipv6)
	if find == nil {
		panic("weir: ByAddr: find is nil")
	}
	return func(r *http.Request) (string, bool) {
		a, ok := find(r)
		if !ok || !a.IsValid() {
			return "", false
		}
		return size.Key(addr.Outside(a), ""), true
	}
}

// ByHeader uses the value of a header field as the key. If the field occurs several times, the
// first value is used. For "Host", the key is the request's host name in lower case, without port
// or trailing dots. IPv6 addresses keep their brackets.
//
// A request has no key if the field is missing or empty, so by default clients can evade the rule
// by omitting the field. To limit such requests too, give them another key with [FirstOf].
//
// If clients can choose the value freely, they can obtain a fresh quota for each request or spend
// another client's quota. Use ByHeader only for values that have been verified or that only a proxy
// can set. For secrets, use [Hashed]. A warning is logged to [slog.Default] if the name is
// X-Forwarded-For or Forwarded, except during a reload of a rules file.
func ByHeader(name string) KeyFunc {
	checkToken("ByHeader", name)
	name = http.CanonicalHeaderKey(name)
	if (name == addr.ForwardedFor || name == addr.Forwarded) && sparse.Reloads.Load() == 0 {
		slog.Warn("weir: key is a field that any client can send", "function", "weir.ByHeader", "field", name,
			"effect", "clients can choose the key, unless the proxy replaces what they send", "fix", "use ByIP or ByForwarded, with the proxy as trusted")
	}
	return func(r *http.Request) (string, bool) {
		if name == "Host" {
			// net/http moves the host to r.Host. An outgoing request may have the host only in its
			// URL.
			return nonempty(addr.Hostname(cmp.Or(r.Host, r.URL.Host)))
		}
		return nonempty(r.Header.Get(name))
	}
}

// checkToken panics if no header field and no cookie can have the given name. The names of both are
// tokens (RFC 9110, 5.6.2).
func checkToken(function, name string) {
	if name == "" {
		panic("weir: " + function + ": name is empty")
	}
	if (&http.Cookie{Name: name}).Valid() != nil {
		panic(fmt.Sprintf("weir: %s: name is %q; want letters, digits and any of !#$%%&'*+-.^_`|~", function, name))
	}
}

// ByCookie uses a cookie's value as the key. As with [ByHeader], the client chooses the value,
// and a request without the cookie has no key.
func ByCookie(name string) KeyFunc {
	checkToken("ByCookie", name)
	return func(r *http.Request) (string, bool) {
		c, err := r.Cookie(name)
		if err != nil {
			return "", false
		}
		return nonempty(c.Value)
	}
}

// ByBasicAuthUser uses the HTTP Basic authentication user name as the key, in lower case without
// surrounding spaces: see [Folded]. A request without a user name has no key. ByBasicAuthUser does
// not check the password. Unless an earlier handler checks the password, any client can spend a
// user's quota by sending the user's name. The quota limits password guessing, but a stranger can
// lock the user out by exhausting the quota. To prevent such lockouts, combine ByBasicAuthUser with
// [ByIP]: see [Join].
func ByBasicAuthUser() KeyFunc {
	return func(r *http.Request) (string, bool) {
		user, _, _ := r.BasicAuth()
		return nonempty(fold(user))
	}
}

// The constant unreadable is the key of a request in which ByJSON cannot read the value.
const unreadable = "unreadable"

// ByJSON uses a field of the JSON request body as the key, such as the user name in a login
// request. The body must be an object. A field of a nested object is named by its path. For
// example, "params.name" is the tool that an MCP client calls. If a name contains a dot, escape the
// dot: "a\.b". Names match regardless of case, dashes and underscores, because the most lenient
// decoders, such as encoding/json/v2 with case:ignore, ignore all three. The value must be a string,
// or a number without a fraction or exponent. The key is the value in lower case without surrounding
// spaces, so a client gets no fresh quota by sending "Ann@Example.com ": see [Folded].
//
// ByJSON reads at most the first max bytes of the body. The handler can still read the whole body,
// and also gets any read error that ByJSON got. The rule is charged before the rest of the body
// arrives. A slow client can delay its own request for as long as the server's ReadTimeout allows.
//
// If ByJSON cannot read the value, the key is "unreadable", so all such requests share one quota.
// If it cannot read the value in any of the first 200 requests, a warning is logged to
// [slog.Default]. ByJSON cannot read the value if the body is longer than max bytes, is truncated,
// is nested more deeply than encoding/json allows, is not UTF-8, or is not a JSON object (a
// JSON-RPC batch, for example, is an array). The same applies if the body contains the field twice,
// if the field's value has another type, or if the request declares a body but does not send one,
// as in forward auth. A body of unknown length (chunked) must be shorter than max bytes. ByJSON
// ignores the Content-Type, because many handlers ignore it.
//
// A request has no key if the body is empty, if the field or an object on its path is missing or
// null, or if the field is an empty string. Use [FirstOf] to give such requests another key.
//
// Anyone can spend another user's quota by sending that user's name: see [ByBasicAuthUser].
//
// For an outgoing request with a GetBody function, ByJSON reads the copy of the body that GetBody
// returns. ByJSON panics if the field's path or a name in it is empty, or if max is less than 1.
func ByJSON(field string, max int64) KeyFunc {
	path := strings.Split(strings.ReplaceAll(field, `\.`, "\x00"), ".")
	for i, name := range path {
		path[i] = strings.ReplaceAll(name, "\x00", ".")
	}
	switch {
	case slices.Contains(path, ""):
		panic(fmt.Sprintf("weir: ByJSON: field is %q; want a name on each side of a dot", field))
	case max < 1:
		panic(fmt.Sprintf("weir: ByJSON: max is %d; want at least 1", max))
	}
	var failed streak
	return func(r *http.Request) (string, bool) {
		if r.ContentLength <= max {
			if value, ok := jsonbody.Peek(r, max).At(path...); ok {
				failed.end()
				return nonempty(fold(value))
			}
		}
		if failed.add() {
			slog.Warn("weir: body unreadable in each of the first 200 requests", "function", "weir.ByJSON", "effect", "they share the key unreadable",
				"likely", "the bodies are forms or another type than JSON, are longer than max, or are not sent, as in forward auth", "fix", "pass ByJSON a larger max, or write a KeyFunc that parses them")
		}
		return unreadable, true
	}
}

// ByMethod uses the HTTP method as the key. Methods for which net/http has no constant share the
// key "other", so clients cannot obtain a fresh quota by inventing methods.
func ByMethod() KeyFunc {
	return func(r *http.Request) (string, bool) {
		switch r.Method {
		case "": // an outgoing request with the default method
			return http.MethodGet, true
		case http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch,
			http.MethodDelete, http.MethodConnect, http.MethodOptions, http.MethodTrace:
			return r.Method, true
		}
		return "other", true
	}
}

// ByUrgency uses the urgency in the Priority header field (RFC 9218) as the key, from "0" for the most
// urgent requests to "7". A request without a valid urgency, or with a field of more than 1 KiB, has
// the key "3". The other members of the field are ignored, even if they are malformed. Use ByUrgency
// in Rule.Class, and only for clients that have no reason to exaggerate, for example because the
// classes share the client's own quota.
func ByUrgency() KeyFunc { return urgency }

// mostPriority is the maximum length of a Priority field that is read. Browsers send about ten bytes.
const mostPriority = 1024

func urgency(r *http.Request) (u string, ok bool) {
	u = "3"
	field := strings.Join(r.Header["Priority"], ",")
	if len(field) > mostPriority {
		return u, true
	}
	for member := range strings.SplitSeq(field, ",") {
		name, _, _ := strings.Cut(strings.Trim(member, " \t"), ";") // without parameters
		name, value, _ := strings.Cut(name, "=")
		switch {
		case name != "u":
		case len(value) == 1 && "0" <= value && value <= "7":
			u = value
		default:
			u = "3" // if there are several, the last one applies
		}
	}
	return u, true
}

// ByRoute uses the route as the key: the pattern in r.Pattern that matched the request, such as
// "/users/{id}". The key does not include the method, and includes the host only with net/http. To
// count methods such as GET and POST separately, combine ByRoute and [ByMethod]: see [Join].
//
// Routers set r.Pattern when they find the route. With net/http, middleware that uses ByRoute must
// therefore wrap a route's handler, not the mux. With chi, pass such middleware to r.With. If you
// pass it to r.Use, put weirchi.FindRoute in front of it; otherwise the key of a request in a
// subrouter is the pattern under which the subrouter is mounted.
//
// Requests that match no route share the key "unmatched". If the middleware wraps a net/http mux,
// all requests have this key. If none of the first 200 requests has a route, a warning is logged to
// [slog.Default].
func ByRoute() KeyFunc {
	var unmatched streak
	return func(r *http.Request) (string, bool) {
		found := route(r.Pattern)
		if found != "" {
			unmatched.end()
		} else if unmatched.add() {
			slog.Warn("weir: route missing in each of the first 200 requests", "function", "weir.ByRoute", "effect", "they share the key unmatched",
				"likely", "the limiter runs before the router has found the route", "fix", "put the limiter around the handler of each route, or with chi behind weirchi.FindRoute")
		}
		return cmp.Or(found, "unmatched"), true
	}
}

// route returns a pattern without its method.
func route(pattern string) string {
	if i := strings.IndexAny(pattern, " \t"); i > 0 && pattern[0] != '/' {
		return strings.TrimLeft(pattern[i:], " \t") // the pattern is "GET /x"; patterns of chi begin with a slash
	}
	return pattern
}

// ByPathValue uses the value of a wildcard in the route as the key. It calls
// [http.Request.PathValue], which works with net/http and with chi. The value exists only after the
// router has run, so with chi, pass the middleware to r.With, not to r.Use, of the router that
// matches the route. If the value is missing or empty, the request has no key.
//
// The key is the value without percent-encoding, so /users/alice and /users/alic%65 have the same
// key. Some routers decode the value, and others do not. ByPathValue therefore decodes a value
// until no valid escape is left in it, so a value that itself contains one, such as "alic%65", also
// has the key "alice".
func ByPathValue(name string) KeyFunc {
	if name == "" {
		panic("weir: ByPathValue: name is empty")
	}
	return func(r *http.Request) (string, bool) { return nonempty(unescape(r.PathValue(name))) }
}

// unescape decodes s until no percent-encoded byte is left.
func unescape(s string) string {
	if !strings.Contains(s, "%") {
		return s
	}
	b, start := make([]byte, len(s)), len(s) // b[start:] is decoded
	for i := len(s) - 1; i >= 0; i-- {       // a decoded % may form another escape with the bytes after it
		c := [1]byte{s[i]}
		for c[0] == '%' && start+2 <= len(b) {
			if _, err := hex.Decode(c[:], b[start:start+2]); err != nil {
				break
			}
			start += 2
		}
		start--
		b[start] = c[0]
	}
	return string(b[start:])
}

// ByContext uses the value that the request's context holds for the given context key, such as the
// user whom authentication middleware has stored there. The value must be a [fmt.Stringer], or have
// a string or integer type. If it is missing, empty or of another type, the request has no key.
func ByContext(key any) KeyFunc {
	if key == nil {
		panic("weir: ByContext: key is nil")
	}
	return func(r *http.Request) (string, bool) {
		value := r.Context().Value(key)
		v := reflect.ValueOf(value)
		if v.Kind() == reflect.Pointer && v.IsNil() {
			return "", false // the String method of a nil pointer may panic
		}
		s, isStringer := value.(fmt.Stringer)
		switch {
		case isStringer:
			return nonempty(s.String())
		case v.Kind() == reflect.String:
			return nonempty(v.String())
		case v.CanInt():
			return strconv.FormatInt(v.Int(), 10), true
		case v.CanUint():
			return strconv.FormatUint(v.Uint(), 10), true
		}
		return "", false
	}
}

// Global limits all requests together by giving them the same key, the empty string.
func Global() KeyFunc { return global }

func global(*http.Request) (string, bool) { return "", true }

// Join combines several keys into one. A request has a key only if every function returns one. The
// keys are encoded as netstrings (https://cr.yp.to/proto/netstrings.txt), such as
// "9:192.0.2.1,3:GET,". Different combinations therefore never produce the same key, whatever
// values a client sends.
func Join(keys ...KeyFunc) KeyFunc {
	keys = checked("Join", keys)
	return func(r *http.Request) (string, bool) {
		var few [128]byte // on the stack; a longer key costs further allocations
		joined := few[:0]
		for _, key := range keys {
			part, ok := key(r)
			if !ok {
				return "", false
			}
			joined = append(strconv.AppendInt(joined, int64(len(part)), 10), ':')
			joined = append(append(joined, part...), ',')
		}
		return string(joined), true
	}
}

// FirstOf uses the key from the first function that returns one. If no function returns a key, the
// request has no key. Each key is prefixed with the position of the function that returned it, such
// as "0:". Therefore an API key that looks like an IP address does not spend the quota of that
// address.
//
// If clients can omit or forge the earlier keys, the last key should be one that they can neither
// omit nor forge:
//
//	weir.FirstOf(weir.ByContext(userKey{}), weir.ByIP())
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

// Folded ignores the letter case of a key and the spaces around it, because most servers do so when
// they look up a user. Otherwise a client would get a fresh quota for the same account by sending
// "Ann" instead of "ann". If a key consists only of spaces, the request has no key:
//
//	weir.Folded(weir.ByHeader("X-User"))
//
// Letters are compared as by [strings.EqualFold], that is, under Unicode's simple case folding: "ſ"
// is "s", and "ς" is "σ". The key is in lower case. Spaces are defined as in [strings.TrimSpace].
// Folded keeps all other differences, such as accents, dots, plus signs, spaces within the key,
// other Unicode normalization forms of a letter, and full-width letters. If your server ignores one
// of these differences, write a KeyFunc that ignores it too, for example with the profile
// UsernameCaseMapped of golang.org/x/text/secure/precis.
func Folded(key KeyFunc) KeyFunc {
	if key == nil {
		panic("weir: Folded: key is nil")
	}
	return func(r *http.Request) (string, bool) {
		k, ok := key(r)
		if !ok {
			return "", false
		}
		return nonempty(fold(k))
	}
}

// fold returns the folded form of a key. It allocates only if this form differs from the key.
func fold(key string) string { return strings.Map(foldRune, strings.TrimSpace(key)) }

func foldRune(r rune) rune {
	if r < utf8.RuneSelf {
		return unicode.ToLower(r)
	}
	first := r // the first of the letters that are equal under case folding
	for other := unicode.SimpleFold(r); other != r; other = unicode.SimpleFold(other) {
		first = min(first, other)
	}
	return unicode.ToLower(first)
}

// Hashed replaces each key with its HMAC-SHA256, truncated to 128 bits (RFC 2104, section 5) and
// encoded in 22 characters of URL-safe base64. Someone who can read the store therefore learns no
// API keys, and cannot test guesses without the secret. The secret must have at least 16 bytes,
// chosen at random. Processes that share a store need the same secret. If the secret changes, every
// key's count starts again at 0. A request has no key if the given function returns none for it. If
// your server ignores the case of user names, pass a [Folded] key.
func Hashed(secret []byte, key KeyFunc) KeyFunc {
	if key == nil {
		panic("weir: Hashed: key is nil")
	}
	hashed := hasher("Hashed", secret)
	return func(r *http.Request) (string, bool) {
		k, ok := key(r)
		if !ok {
			return "", false
		}
		return hashed(k), true
	}
}

// HashedKey returns the key with which [Hashed] replaces a key such as "alice". Pass it to
// Limiter.Unban and to other functions that take a rule's key:
//
//	found, err := limiter.Unban(ctx, "user", weir.HashedKey(secret, "alice"))
func HashedKey(secret []byte, key string) string { return hasher("HashedKey", secret)(key) }

// hasher returns a function that hashes keys and is safe for concurrent use. The text of a panic
// contains name, the name of the caller.
func hasher(name string, secret []byte) func(key string) string {
	switch {
	case len(secret) < storedkey.MinSecret:
		panic(fmt.Sprintf("weir: %s: secret has %d bytes; want at least %d, chosen at random", name, len(secret), storedkey.MinSecret))
	case storedkey.IsZero(secret):
		panic("weir: " + name + ": secret has only zero bytes; want bytes chosen at random")
	}
	secret = slices.Clone(secret)
	type state struct {
		mac hash.Hash
		buf []byte // reused, because a slice passed to an interface method is otherwise allocated in each call
	}
	pool := sync.Pool{New: func() any { return &state{mac: hmac.New(sha256.New, secret)} }}
	return func(key string) string {
		h := pool.Get().(*state)
		defer pool.Put(h)
		h.mac.Reset()
		h.buf = append(h.buf[:0], key...)
		h.mac.Write(h.buf)
		h.buf = h.mac.Sum(h.buf[:0])
		return base64.RawURLEncoding.EncodeToString(h.buf[:16])
	}
}

// nonempty returns its argument, and whether it is not empty. The empty key is reserved for Global.
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

// KeyList returns a function that reports whether a list contains a key. To use it in Rule.ForKey,
// pass it to [When]. For a list of addresses, prefer an [AddrList].
//
// An entry that is an address, such as "192.0.2.7", or a network, such as "10.0.0.0/8", matches all
// keys that equal the entry or lie within it. The entry "tenant-a/*" matches all keys with the
// prefix "tenant-a/". Any other entry matches only that exact key, and the StoredKey of that key
// (see quota.Charge).
//
// Entries are compared with the rule's whole key. With ByIP, the key of an IPv6 client is a /64
// network, so the entry "2001:db8::1" matches no key, and a denylist with this entry refuses no
// client. With ByIPPrefix(32, 128), the entry does match. The keys of Join, FirstOf and Global are
// never addresses. To list clients by address, whatever their keys are, use an [AddrList].
//
// KeyList returns an error for an entry that would match every key, or could never match any key.
// Examples are "*", "", a malformed network, and an address with a port, a zone or spaces. To
// obtain the reason, which names the entry, call errors.Unwrap on the error.
func KeyList(entries ...string) (has func(key string) bool, err error) {
	l, err := addr.NewList(entries)
	if err != nil {
		return nil, fmt.Errorf("weir: list: %w", err)
	}
	return l.Has, nil
}

// AddrList returns a function that obtains the client address of a request by calling find, and
// reports whether a list contains this address. To use it in Rule.Policy, pass it to [When]. The
// list is compared with the request's client address, not with the rule's key. The function returns
// false for a request without a client address. The argument find is usually the result of
// [ClientAddr], called with the same trusted proxies as ByIP.
//
// Entries are addresses such as "192.0.2.7" and "2001:db8::1", and networks such as "10.0.0.0/8". An
// IPv4-mapped IPv6 address is equivalent to the IPv4 address that it contains. Any other entry is
// an error, whose text explains what to list instead.
func AddrList(find func(r *http.Request) (client netip.Addr, ok bool), entries ...string) (has func(r *http.Request) bool, err error) {
	if find == nil {
		return nil, errors.New("weir: AddrList: find is nil")
	}
	var networks addr.Networks[struct{}]
	for _, e := range entries {
		network, ok, err := addr.Entry(e)
		switch {
		case err != nil:
			return nil, fmt.Errorf("weir: list: %w", err)
		case !ok:
			return nil, fmt.Errorf("weir: list: entry %q is neither an address such as 192.0.2.7 nor a network such as 10.0.0.0/8", e)
		}
		networks.Add(network, struct{}{})
	}
	return func(r *http.Request) bool {
		a, ok := find(r)
		a = addr.Outside(a)
		return ok && a.IsValid() && networks.Hold(netip.PrefixFrom(a, a.BitLen()), nil)
	}, nil
}
