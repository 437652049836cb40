// Package keys provides key functions for weir.Rule, and lists of keys and addresses.
//
//	limit := weir.Middleware(store, "api", keys.ByContext(accountKey{}), algorithms.GCRA(100, time.Minute))
//
// Like the key functions of package weir, these functions panic if their arguments are invalid.
//
// # Which key
//
// Use [ByContext] for accounts that middleware has authenticated. [ByJSON], [ByCookie] and
// [ByBasicAuthUser] read values that clients can forge, so limit each client address as well.
// [Hashed] keeps secrets and names out of the store.
//
// [ByRoute] and [ByMethod] use a request's route or method as its key. To give each client a
// separate quota per route or method, combine the route or method with the client's key: see
// [weir.Join]. [ByPathValue] uses part of the path as the key, such as a tenant name.
//
// [ByIPPrefix], [ByForwarded] and [ByAddr] are variants of [weir.ByIP]. ByIPPrefix supports other
// network sizes, ByForwarded reads the Forwarded field, and ByAddr uses an address that your own
// function returns.
//
// # Lists
//
// A [List] contains keys, and an [AddrList] contains addresses and networks. [weir.When] turns a
// list into a Policy or ForKey function that allows or denies requests.
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

// ByCookie uses a cookie's value as the key. As with [weir.ByHeader], the client chooses the value,
// and a request without the cookie has no key.
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

// ByBasicAuthUser uses the HTTP Basic authentication user name as the key. A request without a user
// name has no key. ByBasicAuthUser does not check the password. Unless an earlier handler checks
// it, any client can spend a user's quota by sending the user's name. The quota limits password
// guessing, but strangers can lock the user out by exhausting the quota. To prevent this, combine
// this function with [weir.ByIP]: see [weir.Join].
func ByBasicAuthUser() weir.KeyFunc {
	return func(r *http.Request) (string, bool) {
		user, _, _ := r.BasicAuth()
		return nonempty(user)
	}
}

// ByMethod uses the HTTP method as the key. Methods for which net/http has no constant share the
// key "other", so clients cannot obtain a fresh quota by inventing methods.
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

// ByContext uses the value that the request's context holds for the given context key: for example,
// the user that authentication middleware stored there. The value must be a [fmt.Stringer], or have
// a string or integer type. If it is missing, empty or of another type, the request has no key.
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

// Hashed replaces each key with its HMAC-SHA256, truncated to 128 bits (RFC 2104, section 5) and
// encoded in 22 characters of URL-safe base64. Someone who can read the store therefore learns no
// API keys, and cannot test guesses without the secret. Processes that share a store need the same
// secret. If the secret changes, every key's count starts again at 0. If the argument key finds no
// key in a request, neither does the returned function.
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
