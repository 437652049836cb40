package keys_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/memstore"
)

type userKey struct{}

func never(*http.Request) (string, bool) { return "", false }

func TestKeysOfRequest(t *testing.T) {
	type name string
	type id int64
	with := func(v any) *http.Request {
		return weirtest.From("").WithContext(context.WithValue(context.Background(), userKey{}, v))
	}
	var nobody *netip.Addr
	header, user := weir.ByHeader("x-api-key"), keys.ByContext(userKey{})
	for _, tt := range []struct {
		name string
		key  weir.KeyFunc
		r    *http.Request
		want string // "" if the rule does not apply
	}{
		{"header", header, weirtest.Get("X-Api-Key: k1"), "k1"},
		{"first of two", header, weirtest.Get("X-Api-Key: k1", "X-Api-Key: k2"), "k1"},
		{"empty header", header, weirtest.Get("X-Api-Key: "), ""},
		{"no header", header, weirtest.Get(), ""},
		{"Host", weir.ByHeader("host"), weirtest.Get(), "example.com"},
		{"Host of an outgoing request", weir.ByHeader("Host"), outgoing(t), "example.org"},
		{"cookie", keys.ByCookie("id"), weirtest.Get("Cookie: a=b; id=c1"), "c1"},
		{"empty cookie", keys.ByCookie("id"), weirtest.Get("Cookie: a=b; id="), ""},
		{"no cookie", keys.ByCookie("id"), weirtest.Get("Cookie: a=b"), ""},
		{"user", keys.ByBasicAuthUser(), weirtest.Get("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), "Aladdin"}, // RFC 7617
		{"no user", keys.ByBasicAuthUser(), weirtest.Get("Authorization: Basic OnB3"), ""},
		{"bad credentials", keys.ByBasicAuthUser(), weirtest.Get("Authorization: Basic ="), ""},
		{"no credentials", keys.ByBasicAuthUser(), weirtest.Get(), ""},
		{"no path value", keys.ByPathValue("id"), weirtest.Get(), ""},
		{"string", user, with("alice"), "alice"},
		{"named string", user, with(name("alice")), "alice"},
		{"Stringer", user, with(netip.MustParseAddr("192.0.2.1")), "192.0.2.1"},
		{"int", user, with(-7), "-7"},
		{"named int64", user, with(id(7)), "7"},
		{"uint64", user, with(uint64(1<<64 - 1)), "18446744073709551615"},
		{"zero", user, with(0), "0"},
		{"empty string", user, with(""), ""},
		{"nil Stringer", user, with(nobody), ""},
		{"float", user, with(1.5), ""},
		{"struct", user, with(struct{ string }{"alice"}), ""},
		{"nil", user, with(nil), ""},
		{"absent", user, weirtest.Get(), ""},
		{"outgoing GET", keys.ByMethod(), new(http.Request), "GET"},
	} {
		if got, ok := tt.key(tt.r); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, ok, tt.want)
		}
	}
	if got, ok := weir.Global()(weirtest.Get()); got != "" || !ok {
		t.Errorf("Global: got %q, %v; want the empty key", got, ok)
	}
}

func TestByMethod(t *testing.T) {
	for method, want := range map[string]string{
		"GET": "GET", "POST": "POST", "DELETE": "DELETE", "TRACE": "TRACE",
		"get": "other", "PROPFIND": "other", "X1": "other", "X2": "other",
	} {
		if got, ok := keys.ByMethod()(&http.Request{Method: method}); got != want || !ok {
			t.Errorf("%s: got %q, %v; want %q", method, got, ok, want)
		}
	}
}

func TestHashed(t *testing.T) {
	// RFC 4231, test cases 1 and 2, the first 128 bits: b0344c61… and 5bdcc146….
	for _, tt := range []struct{ secret, key, want string }{
		{strings.Repeat("\x0b", 20), "Hi There", "sDRMYdjbOFNcqK_OrwvxKw"},
		{"Jefe", "what do ya want for nothing?", "W9zBRr9gdU5qBCQmCJV1xw"},
	} {
		secret := []byte(tt.secret)
		key := keys.Hashed(secret, func(*http.Request) (string, bool) { return tt.key, true })
		secret[0]++ // must not change the key: Hashed has copied the secret
		for range 2 {
			if got, ok := key(weirtest.Get()); got != tt.want || !ok {
				t.Errorf("Hashed %q: got %q, %v; want %q", tt.key, got, ok, tt.want)
			}
		}
	}
	if got, ok := keys.Hashed([]byte("s"), never)(weirtest.Get()); ok {
		t.Errorf("Hashed of a key that does not apply: got %q", got)
	}
}

func TestHashedConcurrently(t *testing.T) {
	key := keys.Hashed([]byte("secret"), weir.ByHeader("X-Api-Key"))
	weirtest.Together(8, func(i int) {
		r := weirtest.Get(fmt.Sprintf("X-Api-Key: %d", i))
		want, _ := key(r)
		for range 200 {
			if got, _ := key(r); got != want {
				t.Errorf("key %d: got %q, want %q", i, got, want)
				return
			}
		}
	})
}

func TestKeyMistakesPanic(t *testing.T) {
	noKey := weir.KeyFunc(nil)
	for want, f := range map[string]func(){
		"keys: ByIPPrefix: ipv4 is 0; want 1 to 32 bits":               func() { keys.ByIPPrefix(0, 64) },
		"keys: ByIPPrefix: ipv4 is 33; want 1 to 32 bits":              func() { keys.ByIPPrefix(33, 64) },
		"keys: ByIPPrefix: ipv6 is 0; want 1 to 128 bits":              func() { keys.ByIPPrefix(32, 0) },
		"keys: ByIPPrefix: ipv6 is 129; want 1 to 128 bits":            func() { keys.ByIPPrefix(32, 129) },
		"weir: ByIP: trusted prefix of 10.0.0.1 has an invalid length": func() { weir.ByIP(netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 33)) },
		"keys: ByAddr: ipv6 is 129; want 1 to 128 bits":                func() { keys.ByAddr(nowhere, 32, 129) },
		"keys: ByAddr: find is nil":                                    func() { keys.ByAddr(nil, 32, 64) },
		"weir: ByHeader: name is empty":                                func() { weir.ByHeader("") },
		"keys: ByCookie: name is empty":                                func() { keys.ByCookie("") },
		"keys: ByPathValue: name is empty":                             func() { keys.ByPathValue("") },
		"keys: ByContext: key is nil":                                  func() { keys.ByContext(nil) },
		"weir: Join: keys is empty":                                    func() { weir.Join() },
		"weir: Join: key 1 is nil":                                     func() { weir.Join(never, nil) },
		"weir: FirstOf: keys is empty":                                 func() { weir.FirstOf() },
		"weir: FirstOf: key 0 is nil":                                  func() { weir.FirstOf(nil, never) },
		"keys: Hashed: key is nil":                                     func() { keys.Hashed([]byte("s"), noKey) },
		"keys: Hashed: secret is empty":                                func() { keys.Hashed(nil, never) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("got panic %v, want %q", got, want)
				}
			}()
			f()
		}()
	}
}

func TestKeyAllocs(t *testing.T) {
	ip := weir.ByIP(proxy)
	for _, tt := range []struct {
		name string
		key  weir.KeyFunc
		r    *http.Request
		want float64
	}{
		{"ByIP, IPv4", ip, weirtest.From("192.0.2.1:4"), 0},
		{"ByIP, IPv4 by a proxy", ip, weirtest.From("10.0.0.1:4", "198.51.100.7, 192.0.2.1, 10.0.0.2"), 0},
		{"ByIP, IPv4 with port by a proxy", ip, weirtest.From("10.0.0.1:4", "192.0.2.1:80"), 0},
		{"ByIP, mapped", ip, weirtest.From("[::ffff:192.0.2.1]:4"), 1},
		{"ByIP, IPv6", ip, weirtest.From("[2001:db8::1]:4"), 1},
		{"ByIP, IPv6 by a proxy", ip, weirtest.From("10.0.0.1:4", "2001:db8::1"), 1},
		{"ByIPPrefix, IPv4", keys.ByIPPrefix(24, 64), weirtest.From("192.0.2.1:4"), 1},
		{"ByHeader", weir.ByHeader("x-api-key"), weirtest.Get("X-Api-Key: k1"), 0},
		{"ByMethod", keys.ByMethod(), weirtest.Get(), 0},
		{"Join", weir.Join(ip, keys.ByMethod(), weir.ByHeader("X-Api-Key")), weirtest.Get("X-Api-Key: " + strings.Repeat("k", 2000)), 1},
		{"FirstOf", weir.FirstOf(never, ip), weirtest.Get(), 1},
		{"Hashed", keys.Hashed([]byte("s"), ip), weirtest.Get(), 1},
	} {
		if tt.name == "Hashed" && weirtest.Race {
			continue // with the race detector a sync.Pool drops values at random
		}
		if got := testing.AllocsPerRun(100, func() { tt.key(tt.r) }); got > tt.want {
			t.Errorf("%s: got %v allocations, want %v", tt.name, got, tt.want)
		}
	}
}

func ExampleHashed() {
	key := keys.Hashed([]byte("from your configuration"), weir.ByHeader("X-API-Key"))
	r := httptest.NewRequest("GET", "/", nil)
	weirtest.Show(key, r)
	r.Header.Set("X-API-Key", "sk-1234")
	weirtest.Show(key, r)
	// Output:
	// "" false
	// "DTfb5PvMR91cLhcz0ZOLUQ" true
}

func outgoing(t *testing.T) *http.Request {
	r, err := http.NewRequest("GET", "http://example.org/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = ""
	return r
}

// An authentication middleware has put the user into the context. Without a user the rule does not
// apply.
func ExampleByContext() {
	key := keys.ByContext(userKey{})
	r := httptest.NewRequest("GET", "/", nil)
	for _, ctx := range []context.Context{r.Context(), context.WithValue(r.Context(), userKey{}, "alice")} {
		user, ok := key(r.WithContext(ctx))
		fmt.Printf("%q %v\n", user, ok)
	}
	// Output:
	// "" false
	// "alice" true
}

// All paths of a route share a quota. With weir.Join(weir.ByIP(), keys.ByRoute()) each client has
// one for each route.
func ExampleByRoute() {
	key := keys.ByRoute()
	mux := http.NewServeMux()
	mux.HandleFunc("GET /users/{id}", func(w http.ResponseWriter, r *http.Request) { fmt.Println(key(r)) })
	for _, path := range []string{"/users/7", "/users/8"} {
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", path, nil))
	}
	// Output:
	// /users/{id} true
	// /users/{id} true
}

// A session may request the page of each user twice a minute.
func ExampleByPathValue() {
	perSessionAndUser := weir.Join(keys.ByCookie("session"), keys.ByPathValue("user"))
	limit := weir.Middleware(memstore.New(memstore.Options{}), "pages", perSessionAndUser, algorithms.GCRA(2, time.Minute))

	mux := http.NewServeMux()
	mux.Handle("GET /users/{user}", limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})))
	for _, path := range []string{"/users/ada", "/users/ada", "/users/ada", "/users/ben"} {
		r := httptest.NewRequest("GET", path, nil)
		r.AddCookie(&http.Cookie{Name: "session", Value: "17"})
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, r)
		fmt.Println(path, w.Code)
	}
	// Output:
	// /users/ada 200
	// /users/ada 200
	// /users/ada 429
	// /users/ben 200
}
