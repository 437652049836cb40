package weir_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"runtime/debug"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
)

var (
	proxy  = netip.MustParsePrefix("10.0.0.0/8")
	proxy6 = netip.MustParsePrefix("2001:db8:ffff::/48")
	mapped = netip.MustParsePrefix("::ffff:10.0.0.0/104")
	socket = netip.Prefix{}
)

type userKey struct{}

func TestByIP(t *testing.T) {
	none, one, both := []netip.Prefix{}, []netip.Prefix{proxy}, []netip.Prefix{proxy, proxy6}
	for _, tt := range []struct {
		trusted []netip.Prefix
		peer    string
		xff     []string
		want    string
	}{
		// The peer, in every way that it is written.
		{none, "192.0.2.1:4", nil, "192.0.2.1"},
		{none, "192.0.2.1", nil, "192.0.2.1"},
		{none, "[::ffff:192.0.2.1]:4", nil, "192.0.2.1"},
		{none, "::ffff:192.0.2.1", nil, "192.0.2.1"},
		{none, "[::ffff:c000:201]:4", nil, "192.0.2.1"},
		{none, "[2001:db8:1:2:3::4]:5", nil, "2001:db8:1:2::/64"},
		{none, "[2001:DB8:1:2::9]", nil, "2001:db8:1:2::/64"},
		{none, "2001:db8:1:2::", nil, "2001:db8:1:2::/64"},
		{none, "[fe80::1%eth0]:5", nil, "fe80::/64"},
		{none, "::1", nil, "::/64"},

		// Peers that have no address share a key.
		{none, "", nil, "unknown"},
		{none, "@", nil, "unknown"},
		{none, "pipe", nil, "unknown"},
		{none, "192.0.2.01:4", nil, "unknown"},
		{none, "192.0.2.1:http", nil, "unknown"},
		{none, "[192.0.2.1]", nil, "unknown"},
		{none, "[192.0.2.1]:4", nil, "unknown"},
		{none, "[", nil, "unknown"},
		{none, "[]", nil, "unknown"},
		{none, ":", nil, "unknown"},
		{one, "@", []string{"192.0.2.1"}, "unknown"},

		// Who is not trusted is not believed.
		{none, "192.0.2.1:4", []string{"198.51.100.7"}, "192.0.2.1"},
		{none, "10.0.0.1:4", []string{"198.51.100.7"}, "10.0.0.1"},
		{one, "192.0.2.1:4", []string{"198.51.100.7"}, "192.0.2.1"},
		{one, "192.0.2.1:4", []string{"10.0.0.1"}, "192.0.2.1"},
		{one, "[2001:db8:ffff::1]:4", []string{"198.51.100.7"}, "2001:db8:ffff::/64"},

		// A trusted peer says who called it; what stands left of that is forged.
		{one, "10.0.0.1:4", nil, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{""}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{" , ,"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"198.51.100.7, 192.0.2.1"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"198.51.100.7,192.0.2.1,,\t10.0.0.2 ,"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"198.51.100.7, 10.9.9.9, 192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"198.51.100.7", "192.0.2.1"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"198.51.100.7, 192.0.2.1", "10.0.0.3, 10.0.0.2"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1", ""}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"2001:db8:1:2:3::4"}, "2001:db8:1:2::/64"},
		{both, "[2001:db8:ffff::1]:4", []string{"198.51.100.7, 192.0.2.1, 10.0.0.2"}, "192.0.2.1"},

		// All are trusted: the leftmost.
		{one, "10.0.0.1:4", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{one, "10.0.0.1:4", []string{"10.0.0.4", "10.0.0.3, 10.0.0.2"}, "10.0.0.4"},

		// Entries may have ports, brackets, zones; they may be mapped.
		{one, "10.0.0.1:4", []string{"192.0.2.1:65535"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"[2001:db8:1:2::3]:80"}, "2001:db8:1:2::/64"},
		{one, "10.0.0.1:4", []string{"[2001:db8:1:2::3]"}, "2001:db8:1:2::/64"},
		{one, "10.0.0.1:4", []string{"[2001:db8:1:2::3%eth0]:80"}, "2001:db8:1:2::/64"},
		{one, "10.0.0.1:4", []string{"::ffff:192.0.2.1"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1, ::ffff:10.0.0.2"}, "192.0.2.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1, [::ffff:10.0.0.2]:80"}, "192.0.2.1"},
		{one, "[::ffff:10.0.0.1]:4", []string{"192.0.2.1"}, "192.0.2.1"},
		{[]netip.Prefix{mapped}, "10.0.0.1:4", []string{"192.0.2.1"}, "192.0.2.1"},
		{[]netip.Prefix{mapped}, "11.0.0.1:4", []string{"192.0.2.1"}, "11.0.0.1"},
		{both, "[2001:db8:ffff::1%eth0]:4", []string{"192.0.2.1, 2001:db8:ffff::2%x"}, "192.0.2.1"},

		// Garbage ends the walk at the hop that sent it.
		{one, "10.0.0.1:4", []string{"192.0.2.1, garbage"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1, garbage, 10.0.0.2"}, "10.0.0.2"},
		{one, "10.0.0.1:4", []string{"192.0.2.1, unknown", "10.0.0.2"}, "10.0.0.2"},
		{one, "10.0.0.1:4", []string{"192.0.2.1:"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1:65536"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.1 10.0.0.2"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"192.0.2.256"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"[2001:db8::1"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"2001:db8::1]"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"[192.0.2.1]"}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"\"192.0.2.1\""}, "10.0.0.1"},
		{one, "10.0.0.1:4", []string{"2001:db8::1%" + strings.Repeat("x", 1000)}, "10.0.0.1"},

		// A proxy on a Unix socket.
		{[]netip.Prefix{socket}, "@", []string{"198.51.100.7, 192.0.2.1"}, "192.0.2.1"},
		{[]netip.Prefix{socket, proxy}, "", []string{"198.51.100.7, 192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		{[]netip.Prefix{socket}, "@", []string{"192.0.2.1, garbage"}, "unknown"},
		{[]netip.Prefix{socket}, "@", nil, "unknown"},
		{[]netip.Prefix{socket}, "192.0.2.1:4", []string{"198.51.100.7"}, "192.0.2.1"},
	} {
		r := request(tt.peer, tt.xff...)
		if got, ok := weir.ByIP(tt.trusted...)(r); got != tt.want || !ok {
			t.Errorf("trusting %v, %q called with %q: got %q, %v; want %q", tt.trusted, tt.peer, tt.xff, got, ok, tt.want)
		}
	}
}

func TestByIPPrefix(t *testing.T) {
	for _, tt := range []struct {
		ipv4, ipv6 int
		peer, want string
	}{
		{32, 64, "192.0.2.1:4", "192.0.2.1"},
		{24, 64, "192.0.2.1:4", "192.0.2.0/24"},
		{24, 64, "[::ffff:192.0.2.1]:4", "192.0.2.0/24"},
		{1, 64, "192.0.2.1:4", "128.0.0.0/1"},
		{24, 56, "[2001:db8:1:2fe::1]:4", "2001:db8:1:200::/56"},
		{24, 32, "[2001:db8:1::1]:4", "2001:db8::/32"},
		{24, 128, "[2001:db8::1%eth0]:4", "2001:db8::1/128"},
		{24, 1, "[2001:db8::1]:4", "::/1"},
	} {
		if got, ok := weir.ByIPPrefix(tt.ipv4, tt.ipv6)(request(tt.peer)); got != tt.want || !ok {
			t.Errorf("ByIPPrefix(%d, %d) of %q: got %q, %v; want %q", tt.ipv4, tt.ipv6, tt.peer, got, ok, tt.want)
		}
	}
}

func TestByAddr(t *testing.T) {
	for _, tt := range []struct {
		addr       string
		ipv4, ipv6 int
		want       string // "" where the rule does not apply
	}{
		{"192.0.2.1", 32, 64, "192.0.2.1"},
		{"192.0.2.1", 24, 64, "192.0.2.0/24"},
		{"::ffff:192.0.2.1", 32, 64, "192.0.2.1"},
		{"2001:db8:1:2::3", 32, 64, "2001:db8:1:2::/64"},
		{"fe80::1%eth0", 32, 128, "fe80::1/128"},
		{"", 32, 64, ""},
	} {
		find := func(*http.Request) (netip.Addr, bool) {
			addr, _ := netip.ParseAddr(tt.addr)
			return addr, true
		}
		if got, ok := weir.ByAddr(find, tt.ipv4, tt.ipv6)(get()); got != tt.want || ok != (tt.want != "") {
			t.Errorf("ByAddr of %q by %d and %d: got %q, %v; want %q", tt.addr, tt.ipv4, tt.ipv6, got, ok, tt.want)
		}
	}
	if got, ok := weir.ByAddr(nowhere, 32, 64)(get()); ok {
		t.Errorf("an address that is not known: got %q", got)
	}
}

func ExampleByAddr() {
	// What a gateway that nobody else can reach says of its client.
	gateway := func(r *http.Request) (netip.Addr, bool) {
		addr, err := netip.ParseAddr(r.Header.Get("X-Client"))
		return addr, err == nil
	}
	show(weir.ByAddr(gateway, 32, 56), get("X-Client: 2001:db8:1:2ff::1"))
	// Output: "2001:db8:1:200::/56" true
}

func TestByIPMegabyte(t *testing.T) {
	fill := func(s string) string { return strings.Repeat(s, 1<<20/len(s)) }
	key := weir.ByIP(proxy)
	for _, tt := range []struct{ name, xff, want string }{
		{"forged addresses", fill("198.51.100.7,") + "192.0.2.1", "192.0.2.1"},
		{"trusted addresses", "192.0.2.1" + fill(",10.0.0.2"), "192.0.2.1"},
		{"commas", "192.0.2.1" + fill(","), "192.0.2.1"},
		{"spaces", "192.0.2.1" + fill(" "), "192.0.2.1"},
	} {
		r := request("10.0.0.1:4", tt.xff)
		if got, _ := key(r); got != tt.want {
			t.Errorf("1 MB of %s: got %q, want %q", tt.name, got, tt.want)
		}
		if n := testing.AllocsPerRun(5, func() { key(r) }); n > 0 {
			t.Errorf("1 MB of %s: %v allocations", tt.name, n)
		}
	}
	for _, garbage := range []string{fill("x"), "192.0.2.1:" + fill("x"), "::1%" + fill("x"), "[" + fill("x"), fill(":")} {
		if got, _ := key(request("10.0.0.1:4", "192.0.2.1, "+garbage)); got != "10.0.0.1" {
			t.Errorf("1 MB of %.12s…: got %q, want the proxy", garbage, got)
		}
	}
}

func TestKeysOfRequest(t *testing.T) {
	type name string
	type id int64
	with := func(v any) *http.Request {
		return request("").WithContext(context.WithValue(context.Background(), userKey{}, v))
	}
	var nobody *netip.Addr
	header, user := weir.ByHeader("x-api-key"), weir.ByContext(userKey{})
	for _, tt := range []struct {
		name string
		key  weir.KeyFunc
		r    *http.Request
		want string // "" where the rule does not apply
	}{
		{"header", header, get("X-Api-Key: k1"), "k1"},
		{"first of two", header, get("X-Api-Key: k1", "X-Api-Key: k2"), "k1"},
		{"empty header", header, get("X-Api-Key: "), ""},
		{"no header", header, get(), ""},
		{"Host", weir.ByHeader("host"), get(), "example.com"},
		{"Host of an outgoing request", weir.ByHeader("Host"), outgoing(t), "example.org"},
		{"cookie", weir.ByCookie("id"), get("Cookie: a=b; id=c1"), "c1"},
		{"empty cookie", weir.ByCookie("id"), get("Cookie: a=b; id="), ""},
		{"no cookie", weir.ByCookie("id"), get("Cookie: a=b"), ""},
		{"user", weir.ByBasicAuthUser(), get("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), "Aladdin"}, // RFC 7617
		{"no user", weir.ByBasicAuthUser(), get("Authorization: Basic OnB3"), ""},
		{"bad credentials", weir.ByBasicAuthUser(), get("Authorization: Basic ="), ""},
		{"no credentials", weir.ByBasicAuthUser(), get(), ""},
		{"no path value", weir.ByPathValue("id"), get(), ""},
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
		{"absent", user, get(), ""},
		{"outgoing GET", weir.ByMethod(), new(http.Request), "GET"},
	} {
		if got, ok := tt.key(tt.r); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, ok, tt.want)
		}
	}
	if got, ok := weir.Global()(get()); got != "" || !ok {
		t.Errorf("Global: got %q, %v; want the empty key", got, ok)
	}
}

func TestByMethod(t *testing.T) {
	for method, want := range map[string]string{
		"GET": "GET", "POST": "POST", "DELETE": "DELETE", "TRACE": "TRACE",
		"get": "other", "PROPFIND": "other", "X1": "other", "X2": "other",
	} {
		if got, ok := weir.ByMethod()(&http.Request{Method: method}); got != want || !ok {
			t.Errorf("%s: got %q, %v; want %q", method, got, ok, want)
		}
	}
}

// see notes the key of each request that passes.
type see struct{ keys []string }

func (s *see) by(key weir.KeyFunc) func(http.Handler) http.Handler {
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			k, ok := key(r)
			if !ok {
				k = "-"
			}
			s.keys = append(s.keys, k)
			next.ServeHTTP(w, r)
		})
	}
}

func handle(http.ResponseWriter, *http.Request) {}

// The same route is the same key in r.Use, below a mount and in r.With.
func TestByRouteChi(t *testing.T) {
	var s see
	limit := s.by(weir.ByRoute())
	r := chi.NewRouter()
	r.Use(limit)
	r.With(limit).Get("/", handle)
	r.With(limit).Get("/users/{id}", handle)
	r.With(limit).Post("/users/{id}", handle)
	r.With(limit).Get("/a b", handle)
	r.With(limit).Get("/files/*", handle)
	r.Route("/api", func(r chi.Router) {
		r.Use(limit)
		r.With(limit).Get("/", handle)
		r.Route("/{tenant}", func(r chi.Router) {
			r.Use(limit)
			r.With(limit).Get("/items/{id}", handle)
			r.With(limit).Get("/raw/*", handle)
		})
	})
	mux := http.NewServeMux()
	mux.Handle("GET /mux/{id}", limit(http.HandlerFunc(handle)))
	r.Mount("/mux", mux)

	for _, tt := range []struct{ method, path, want string }{
		{"GET", "/", "/ /"},
		{"GET", "/users/1", "/users/{id} /users/{id}"},
		{"POST", "/users/1", "/users/{id} /users/{id}"},
		{"GET", "/users/1%2F2", "/users/{id} /users/{id}"},
		{"GET", "/a%20b", "/a b /a b"},
		{"GET", "/files/x/y", "/files/* /files/*"},
		{"GET", "/api", "/api /api /api"},
		{"GET", "/api/", "/api /api /api"},
		{"GET", "/api/t/items/1", "/api/{tenant}/items/{id} /api/{tenant}/items/{id} /api/{tenant}/items/{id} /api/{tenant}/items/{id}"},
		{"GET", "/api/t/raw/x", "/api/{tenant}/raw/* /api/{tenant}/raw/* /api/{tenant}/raw/* /api/{tenant}/raw/*"},
		{"GET", "/mux/1", "/mux/* /mux/{id}"},
		{"GET", "/none", "unmatched"},
		{"DELETE", "/users/1", "unmatched"},
		{"MADEUP", "/users/1", "unmatched"},
		{"GET", "/api/t/none", "unmatched /api/* /api/{tenant}/*"},
	} {
		s.keys = nil
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, tt.path, nil))
		if got := strings.Join(s.keys, " "); got != tt.want {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.path, got, tt.want)
		}
	}
}

func TestByRouteChiMiddleware(t *testing.T) {
	var s see
	r := chi.NewRouter()
	r.Use(middleware.StripSlashes, middleware.GetHead, s.by(weir.ByRoute()))
	r.Get("/users/{id}", handle)
	outer := http.NewServeMux() // its pattern is not the route
	outer.Handle("GET /v1/", http.StripPrefix("/v1", r))

	for _, tt := range []struct{ method, path, want string }{
		{"GET", "/v1/users/1", "/users/{id}"},
		{"GET", "/v1/users/1/", "/users/{id}"},
		{"HEAD", "/v1/users/1", "/users/{id}"},
		{"GET", "/v1/none", "unmatched"},
	} {
		s.keys = nil
		outer.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, tt.path, nil))
		if got := strings.Join(s.keys, " "); got != tt.want {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.path, got, tt.want)
		}
	}
}

func TestByRouteServeMux(t *testing.T) {
	var s see
	limit := s.by(weir.ByRoute())
	mux := http.NewServeMux()
	for _, pattern := range []string{"/users/{id}", "POST /users/{id}", "GET \t/tab", "GET example.org/{$}", "/tree/", "/star/*"} {
		mux.Handle(pattern, limit(http.HandlerFunc(handle)))
	}
	before := limit(mux)
	for _, tt := range []struct{ method, url, want string }{
		{"GET", "/users/1", "/users/{id}"},
		{"POST", "/users/1", "/users/{id}"},
		{"GET", "/tab", "/tab"},
		{"GET", "http://example.org/", "example.org/{$}"},
		{"GET", "/tree/a/b", "/tree/"},
		{"GET", "/star/*", "/star/*"},
		{"GET", "/none", ""},
	} {
		s.keys = nil
		before.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(tt.method, tt.url, nil))
		want := strings.TrimSpace("unmatched " + tt.want) // in front of the mux nothing is known
		if got := strings.Join(s.keys, " "); got != want {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.url, got, want)
		}
	}
}

func TestByPathValue(t *testing.T) {
	var s see
	limit := s.by(weir.ByPathValue("id"))
	r := chi.NewRouter()
	r.Use(limit) // not routed yet
	r.With(limit).Get("/users/{id}", handle)
	r.Route("/teams/{id}", func(r chi.Router) {
		r.Use(limit)
		r.Get("/", handle)
	})
	mux := http.NewServeMux()
	mux.Handle("/users/{id}", limit(http.HandlerFunc(handle)))
	for _, tt := range []struct {
		h          http.Handler
		path, want string
	}{
		{r, "/users/7", "- 7"},
		{r, "/teams/7/", "- 7"},
		{mux, "/users/7", "7"},
	} {
		s.keys = nil
		tt.h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", tt.path, nil))
		if got := strings.Join(s.keys, " "); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.path, got, tt.want)
		}
	}
}

func TestJoin(t *testing.T) {
	for _, tt := range []struct {
		keys []weir.KeyFunc
		want string
	}{
		{keys("a:", "b"), "2:a:,1:b,"},
		{keys("a", ":b"), "1:a,2::b,"},
		{keys("1:a,", ""), "4:1:a,,0:,"},
		{keys("a"), "1:a,"},
		{keys(strings.Repeat("x", 12)), "12:xxxxxxxxxxxx,"},
		{keys("a", "b", "c", "d", "e", "f", "g", "h", "i"), "1:a,1:b,1:c,1:d,1:e,1:f,1:g,1:h,1:i,"},
		{append(keys("a"), never), ""},
		{append([]weir.KeyFunc{never}, keys("a")...), ""},
	} {
		if got, ok := weir.Join(tt.keys...)(get()); got != tt.want || ok != (tt.want != "") {
			t.Errorf("Join: got %q, %v; want %q", got, ok, tt.want)
		}
	}
}

func TestFirstOf(t *testing.T) {
	first := weir.FirstOf(weir.ByHeader("X-Api-Key"), weir.ByIP())
	for _, tt := range []struct {
		r    *http.Request
		want string
	}{
		{get("X-Api-Key: k1"), "0:k1"},
		{get("X-Api-Key: 192.0.2.1"), "0:192.0.2.1"}, // not the key of that address
		{get("X-Api-Key: 1:192.0.2.1"), "0:1:192.0.2.1"},
		{get("X-Api-Key: "), "1:192.0.2.1"},
		{get(), "1:192.0.2.1"},
	} {
		if got, ok := first(tt.r); got != tt.want || !ok {
			t.Errorf("header %v: got %q, %v; want %q", tt.r.Header, got, ok, tt.want)
		}
	}
	if got, ok := weir.FirstOf(never, never)(get()); ok {
		t.Errorf("no key applies: got %q", got)
	}
}

func TestHashed(t *testing.T) {
	// RFC 4231, test cases 1 and 2, the first 128 bits: b0344c61… and 5bdcc146….
	for _, tt := range []struct{ secret, key, want string }{
		{strings.Repeat("\x0b", 20), "Hi There", "sDRMYdjbOFNcqK_OrwvxKw"},
		{"Jefe", "what do ya want for nothing?", "W9zBRr9gdU5qBCQmCJV1xw"},
	} {
		secret := []byte(tt.secret)
		key := weir.Hashed(secret, keys(tt.key)[0])
		secret[0]++ // ours by now
		for range 2 {
			if got, ok := key(get()); got != tt.want || !ok {
				t.Errorf("Hashed %q: got %q, %v; want %q", tt.key, got, ok, tt.want)
			}
		}
	}
	if got, ok := weir.Hashed([]byte("s"), never)(get()); ok {
		t.Errorf("Hashed of a key that does not apply: got %q", got)
	}
}

func TestHashedConcurrently(t *testing.T) {
	key := weir.Hashed([]byte("secret"), weir.ByHeader("X-Api-Key"))
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			r := get(fmt.Sprintf("X-Api-Key: %d", i))
			want, _ := key(r)
			for range 200 {
				if got, _ := key(r); got != want {
					t.Errorf("key %d: got %q, want %q", i, got, want)
					return
				}
			}
		})
	}
	wg.Wait()
}

func TestKeyMistakesPanic(t *testing.T) {
	noKey := weir.KeyFunc(nil)
	for want, f := range map[string]func(){
		"weir: ByIPPrefix: ipv4 is 0, not 1 to 32 bits":                func() { weir.ByIPPrefix(0, 64) },
		"weir: ByIPPrefix: ipv4 is 33, not 1 to 32 bits":               func() { weir.ByIPPrefix(33, 64) },
		"weir: ByIPPrefix: ipv6 is 0, not 1 to 128 bits":               func() { weir.ByIPPrefix(32, 0) },
		"weir: ByIPPrefix: ipv6 is 129, not 1 to 128 bits":             func() { weir.ByIPPrefix(32, 129) },
		"weir: ByIP: trusted prefix of 10.0.0.1 has an invalid length": func() { weir.ByIP(netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 33)) },
		"weir: ByAddr: ipv6 is 129, not 1 to 128 bits":                 func() { weir.ByAddr(nowhere, 32, 129) },
		"weir: ByAddr: nil address function":                           func() { weir.ByAddr(nil, 32, 64) },
		"weir: ByHeader: empty name":                                   func() { weir.ByHeader("") },
		"weir: ByCookie: empty name":                                   func() { weir.ByCookie("") },
		"weir: ByPathValue: empty name":                                func() { weir.ByPathValue("") },
		"weir: ByContext: nil key":                                     func() { weir.ByContext(nil) },
		"weir: Join: no keys":                                          func() { weir.Join() },
		"weir: Join: key 1 is nil":                                     func() { weir.Join(never, nil) },
		"weir: FirstOf: no keys":                                       func() { weir.FirstOf() },
		"weir: FirstOf: key 0 is nil":                                  func() { weir.FirstOf(nil, never) },
		"weir: Hashed: key 0 is nil":                                   func() { weir.Hashed([]byte("s"), noKey) },
		"weir: Hashed: empty secret":                                   func() { weir.Hashed(nil, never) },
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

// Who builds a key function may use the slice again.
func TestKeysAreCloned(t *testing.T) {
	trusted := []netip.Prefix{proxy}
	ip := weir.ByIP(trusted...)
	trusted[0] = proxy6
	if got, _ := ip(request("10.0.0.1:4", "192.0.2.1")); got != "192.0.2.1" {
		t.Errorf("ByIP kept the caller's slice: got %q", got)
	}
	ks := keys("a")
	join, first := weir.Join(ks...), weir.FirstOf(ks...)
	ks[0] = never
	if _, ok := join(get()); !ok {
		t.Error("Join kept the caller's slice")
	}
	if _, ok := first(get()); !ok {
		t.Error("FirstOf kept the caller's slice")
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
		{"ByIP, IPv4", ip, request("192.0.2.1:4"), 0},
		{"ByIP, IPv4 by a proxy", ip, request("10.0.0.1:4", "198.51.100.7, 192.0.2.1, 10.0.0.2"), 0},
		{"ByIP, IPv4 with port by a proxy", ip, request("10.0.0.1:4", "192.0.2.1:80"), 0},
		{"ByIP, mapped", ip, request("[::ffff:192.0.2.1]:4"), 1},
		{"ByIP, IPv6", ip, request("[2001:db8::1]:4"), 1},
		{"ByIP, IPv6 by a proxy", ip, request("10.0.0.1:4", "2001:db8::1"), 1},
		{"ByIPPrefix, IPv4", weir.ByIPPrefix(24, 64), request("192.0.2.1:4"), 1},
		{"ByHeader", weir.ByHeader("x-api-key"), get("X-Api-Key: k1"), 0},
		{"ByMethod", weir.ByMethod(), get(), 0},
		{"Join", weir.Join(ip, weir.ByMethod(), weir.ByHeader("X-Api-Key")), get("X-Api-Key: " + strings.Repeat("k", 2000)), 1},
		{"FirstOf", weir.FirstOf(never, ip), get(), 1},
		{"Hashed", weir.Hashed([]byte("s"), ip), get(), 1},
	} {
		if tt.name == "Hashed" && raceEnabled() {
			continue // the race detector makes a sync.Pool forget
		}
		if got := testing.AllocsPerRun(100, func() { tt.key(tt.r) }); got > tt.want {
			t.Errorf("%s: got %v allocations, want %v", tt.name, got, tt.want)
		}
	}
}

func raceEnabled() bool {
	info, _ := debug.ReadBuildInfo()
	return info != nil && slices.Contains(info.Settings, debug.BuildSetting{Key: "-race", Value: "true"})
}

func FuzzByIP(f *testing.F) {
	f.Add("192.0.2.1:4", "198.51.100.7", "10.0.0.1")
	f.Add("10.0.0.1:4", "198.51.100.7, 192.0.2.1:80", "[::ffff:10.0.0.2]:80,")
	f.Add("[2001:db8:ffff::1%eth0]:4", "[2001:db8::1]", "10.0.0.2, garbage")
	f.Add("@", "unknown", "")
	bare, behind := weir.ByIP(), weir.ByIP(proxy, proxy6, socket)
	f.Fuzz(func(t *testing.T, peer, xff1, xff2 string) {
		plain, forged := request(peer), request(peer, xff1, xff2)
		want, _ := bare(plain)
		if got, ok := bare(forged); got != want || !ok {
			t.Errorf("nobody trusted, %q called with %q, %q: got %q, %v; without %q", peer, xff1, xff2, got, ok, want)
		}
		for _, r := range []*http.Request{plain, forged} {
			got, ok := behind(r)
			if !ok || !canonical(got) {
				t.Errorf("%q called with %q, %q: got %q, %v; want an address, a /64 or unknown", peer, xff1, xff2, got, ok)
			}
		}
		// A trusted hop that appends its caller: nothing left of that counts.
		if addr, err := netip.ParseAddr(want); err == nil && !proxy.Contains(addr) {
			for _, r := range []*http.Request{
				request("10.0.0.1:4", xff1, xff2+", "+want),
				request("10.0.0.1:4", xff1, xff2, want+",10.0.0.2"),
			} {
				if got, _ := behind(r); got != want {
					t.Errorf("forged %q, %q before %q: got %q", xff1, xff2, want, got)
				}
			}
		}
	})
}

// canonical reports whether key is one that ByIP may return.
func canonical(key string) bool {
	if key == "unknown" {
		return true
	}
	if addr, err := netip.ParseAddr(key); err == nil {
		return addr.Is4() && addr.String() == key
	}
	p, err := netip.ParsePrefix(key)
	return err == nil && p.Addr().Is6() && !p.Addr().Is4In6() && p.Bits() == 64 && p.Masked().String() == key
}

// What ByRoute foresees is what chi then does.
func FuzzByRoute(f *testing.F) {
	f.Add("GET", "/users/1", "")
	f.Add("POST", "/api/t/items/a/b", "/api/t/items/a%2Fb")
	f.Add("GET", "/api//", "")
	var s see
	limit := s.by(weir.ByRoute())
	r := chi.NewRouter()
	r.Use(limit)
	r.With(limit).Get("/", handle)
	r.With(limit).Handle("/users/{id:[0-9]+}", http.HandlerFunc(handle))
	r.With(limit).Get("/users/{name}/", handle)
	r.Route("/api", func(r chi.Router) {
		r.Use(limit)
		r.With(limit).Get("/", handle)
		r.With(limit).Post("/{tenant}/items/*", handle)
		r.Route("/{tenant}", func(r chi.Router) {
			r.Use(limit)
			r.With(limit).Get("/", handle)
			r.With(limit).Get("/*", handle)
		})
	})
	f.Fuzz(func(t *testing.T, method, path, raw string) {
		s.keys = nil
		w := httptest.NewRecorder()
		r.ServeHTTP(w, &http.Request{Method: method, URL: &url.URL{Path: path, RawPath: raw}})
		if w.Code == http.StatusOK && len(slices.Compact(slices.Clone(s.keys))) != 1 {
			t.Errorf("%s %q %q: got %q on the way", method, path, raw, s.keys)
		}
	})
}

func FuzzJoin(f *testing.F) {
	f.Add("a:", "b", "a", ":b")
	f.Add("1:a,", "", "", "1:a,")
	f.Add("a,1:b", "c", "a", "b,1:c")
	f.Fuzz(func(t *testing.T, a1, a2, b1, b2 string) {
		tuples := [][]string{{a1, a2}, {b1, b2}, {a1}, {a1, a2, b1}, {a1 + a2, b1}, {a1, a2 + b1}, {a1, a2, b1, b2}}
		for i, a := range tuples {
			for _, b := range tuples[:i] {
				ka, _ := weir.Join(keys(a...)...)(nil)
				kb, _ := weir.Join(keys(b...)...)(nil)
				if same := fmt.Sprintf("%q", a) == fmt.Sprintf("%q", b); (ka == kb) != same {
					t.Errorf("%q and %q: got %q and %q", a, b, ka, kb)
				}
			}
		}
	})
}

// request is one from peer, with those fields of X-Forwarded-For.
func request(peer string, xff ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	r.Header["X-Forwarded-For"] = xff
	return r
}

// get is a request from 192.0.2.1 with fields like "Name: value".
func get(fields ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	return r
}

func outgoing(t *testing.T) *http.Request {
	r, err := http.NewRequest("GET", "http://example.org/", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = ""
	return r
}

func nowhere(*http.Request) (netip.Addr, bool) { return netip.Addr{}, false }

func never(*http.Request) (string, bool) { return "", false }

// keys returns a KeyFunc for each constant.
func keys(constants ...string) []weir.KeyFunc {
	var ks []weir.KeyFunc
	for _, c := range constants {
		ks = append(ks, func(*http.Request) (string, bool) { return c, true })
	}
	return ks
}

func show(key weir.KeyFunc, r *http.Request) {
	k, ok := key(r)
	fmt.Printf("%q %v\n", k, ok)
}

// Behind a load balancer in 10.0.0.0/8 the client is who called it; what the
// client itself wrote into X-Forwarded-For stands to the left and is ignored.
func ExampleByIP() {
	key := weir.ByIP(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("X-Forwarded-For", "198.51.100.7, 192.0.2.1")
	show(key, r)

	r.RemoteAddr = "203.0.113.5:1024" // past the load balancer
	show(key, r)
	// Output:
	// "192.0.2.1" true
	// "203.0.113.5" true
}

func ExampleByIPPrefix() {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "[2001:db8:1:2ff::1]:1024"
	show(weir.ByIPPrefix(24, 56), r)
	// Output: "2001:db8:1:200::/56" true
}

// A quota for each client and route.
func ExampleJoin() {
	r := chi.NewRouter()
	r.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			show(weir.Join(weir.ByIP(), weir.ByMethod(), weir.ByRoute()), r)
			next.ServeHTTP(w, r)
		})
	})
	r.Get("/users/{id}", func(http.ResponseWriter, *http.Request) {})
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/users/7", nil))
	// Output: "9:192.0.2.1,3:GET,11:/users/{id}," true
}

// Users by name; whoever has not logged in, by address.
func ExampleFirstOf() {
	key := weir.FirstOf(weir.ByContext(userKey{}), weir.ByIP())
	r := httptest.NewRequest("GET", "/", nil)
	show(key, r)
	show(key, r.WithContext(context.WithValue(r.Context(), userKey{}, "alice")))
	// Output:
	// "1:192.0.2.1" true
	// "0:alice" true
}

func ExampleHashed() {
	key := weir.Hashed([]byte("from your configuration"), weir.ByHeader("X-API-Key"))
	r := httptest.NewRequest("GET", "/", nil)
	show(key, r)
	r.Header.Set("X-API-Key", "sk-1234")
	show(key, r)
	// Output:
	// "" false
	// "DTfb5PvMR91cLhcz0ZOLUQ" true
}
