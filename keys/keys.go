// Package keys provides more key functions for weir.Rule, and lists of keys and addresses.
//
//	limit := weir.Middleware(store, "api", keys.ByContext(accountKey{}), algorithms.GCRA(100, time.Minute))
//
// Like those of package weir, the functions panic if their arguments are invalid.
//
// # Which key
//
// [ByContext] is for an account that a middleware has authenticated. [ByJSON], [ByCookie] and
// [ByBasicAuthUser] read values that clients can invent, so add a limit by address. [Hashed] keeps
// secrets and names out of the store.
//
// [ByRoute] and [ByMethod] use the route or the method of a request as its key. To give each
// client a separate quota for each route or method, combine them with the client's key by
// [weir.Join]. [ByPathValue] uses a part of the path as the key, such as a tenant.
//
// [ByIPPrefix], [ByForwarded] and [ByAddr] are variants of [weir.ByIP] for networks of other
// sizes, for the Forwarded field, and for an address that you find yourself.
//
// # Lists
//
// A [List] contains keys, and an [AddrList] contains addresses and networks. [weir.When] turns a
// list into a Policy or a ForKey function that allows or denies requests.
package keys

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"hash"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"sync"

	"github.com/seed83679106/weir"
)

// ByCookie limits each value of a cookie. As with [weir.ByHeader], the client chooses
// the value, and the rule does not apply to a request without the cookie.
func ByCookie(name string) weir.KeyFunc {
	if name == "" {
		panic("keys: ByCookie: name is empty")
	}
	return func(r *http.Request) (string, bool) {
		c, err := r.Cookie(name)
		if err != nil {
			return "", false
		}
		return nonempty(c.Value)
	}
}

// ByBasicAuthUser limits each user name of HTTP Basic authentication. The rule does not apply to a
// request without a user name. ByBasicAuthUser does not check the password. Unless an earlier
// handler does, every client that sends a name spends the quota of that name. The quota limits how
// often passwords can be guessed, but a stranger can lock the user out by spending it. To prevent
// that, join the key with [weir.ByIP].
func ByBasicAuthUser() weir.KeyFunc {
	return func(r *http.Request) (string, bool) {
		user, _, _ := r.BasicAuth()
		return nonempty(user)
	}
}

// ByMethod limits each HTTP method. Methods for which net/http has no constant share the key
// "other", so that a client gets no fresh quota by inventing a method.
func ByMethod() weir.KeyFunc {
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

// ByContext limits each value that r.Context().Value(key) returns, such as the user that an
// authentication middleware has found. The value must be a [fmt.Stringer] or have a string or
// integer type. If it is absent or empty or has another type, the rule does not apply.
func ByContext(key any) weir.KeyFunc {
	if key == nil {
		panic("keys: ByContext: key is nil")
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

// Hashed replaces a key by its HMAC-SHA256, truncated to 128 bits (RFC 2104, section 5) and
// encoded as 22 characters: letters, digits, "-" and "_". Someone who can read the store therefore
// learns no API keys, and cannot test guesses without the secret. Processes that share a store
// need the same secret. With a new secret, the count of every key starts at 0. If key returns ok
// false, so does the function that Hashed returns.
func Hashed(secret []byte, key weir.KeyFunc) weir.KeyFunc {
	if len(secret) == 0 {
		panic("keys: Hashed: secret is empty")
	}
	if key == nil {
		panic("keys: Hashed: key is nil")
	}
	secret = slices.Clone(secret)
	type hasher struct {
		mac hash.Hash
		buf []byte // reused, because the argument of an interface method is allocated each time otherwise
	}
	pool := sync.Pool{New: func() any { return &hasher{mac: hmac.New(sha256.New, secret)} }}
	return func(r *http.Request) (string, bool) {
		k, ok := key(r)
		if !ok {
			return "", false
		}
		h := pool.Get().(*hasher)
		defer pool.Put(h)
		h.mac.Reset()
		h.buf = append(h.buf[:0], k...)
		h.mac.Write(h.buf)
		h.buf = h.mac.Sum(h.buf[:0])
		return base64.RawURLEncoding.EncodeToString(h.buf[:16]), true
	}
}

// nonempty returns ok false for an empty key, because the empty key is that of weir.Global.
func nonempty(key string) (string, bool) { return key, key != "" }
