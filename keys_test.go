package weir_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/keys"
)

var (
	proxy  = netip.MustParsePrefix("10.0.0.0/8")
	proxy6 = netip.MustParsePrefix("2001:db8:ffff::/48")
	mapped = netip.MustParsePrefix("::ffff:10.0.0.0/104")
	socket = netip.Prefix{}
)

type userKey struct{}

// TestByIP: the key is the address of the peer or, if the peer is trusted, the rightmost
// address of X-Forwarded-For that is not trusted.
func TestByIP(t *testing.T) {
	none, one, both := []netip.Prefix{}, []netip.Prefix{proxy}, []netip.Prefix{proxy, proxy6}
	for _, tt := range []struct {
		trusted []netip.Prefix
		peer    string
		xff     []string
		want    string
	}{
		// The address of the peer may be written in several forms.
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

		// X-Forwarded-For of an untrusted peer is ignored.
		{none, "192.0.2.1:4", []string{"198.51.100.7"}, "192.0.2.1"},
		{none, "10.0.0.1:4", []string{"198.51.100.7"}, "10.0.0.1"},
		{one, "192.0.2.1:4", []string{"198.51.100.7"}, "192.0.2.1"},
		{one, "192.0.2.1:4", []string{"10.0.0.1"}, "192.0.2.1"},
		{one, "[2001:db8:ffff::1]:4", []string{"198.51.100.7"}, "2001:db8:ffff::/64"},

		// A trusted peer appends the address that called it. Entries left of that address
		// may be forged.
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

		// If all entries are trusted, the leftmost is the key.
		{one, "10.0.0.1:4", []string{"10.0.0.3, 10.0.0.2"}, "10.0.0.3"},
		{one, "10.0.0.1:4", []string{"10.0.0.4", "10.0.0.3, 10.0.0.2"}, "10.0.0.4"},

		// Entries may have ports, brackets and zones. An IPv4 address may be mapped to IPv6.
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

		// An entry that is no address ends the search at the hop that sent it.
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

		// A proxy on a Unix socket has no address, and may be trusted all the same.
		{[]netip.Prefix{socket}, "@", []string{"198.51.100.7, 192.0.2.1"}, "192.0.2.1"},
		{[]netip.Prefix{socket, proxy}, "", []string{"198.51.100.7, 192.0.2.1, 10.0.0.2"}, "192.0.2.1"},
		{[]netip.Prefix{socket}, "@", []string{"192.0.2.1, garbage"}, "unknown"},
		{[]netip.Prefix{socket}, "@", nil, "unknown"},
		{[]netip.Prefix{socket}, "192.0.2.1:4", []string{"198.51.100.7"}, "192.0.2.1"},
	} {
		r := weirtest.From(tt.peer, tt.xff...)
		if got, ok := weir.ByIP(tt.trusted...)(r); got != tt.want || !ok {
			t.Errorf("trusting %v, %q called with %q: got %q, %v; want %q", tt.trusted, tt.peer, tt.xff, got, ok, tt.want)
		}
	}
}

// TestByIPMegabyte: an X-Forwarded-For of a megabyte costs no allocation. If its last entry
// is a megabyte of garbage, the key is the address of the proxy.
func TestByIPMegabyte(t *testing.T) {
	fill := func(s string) string { return strings.Repeat(s, 1<<20/len(s)) }
	key := weir.ByIP(proxy)
	for _, tt := range []struct{ name, xff, want string }{
		{"forged addresses", fill("198.51.100.7,") + "192.0.2.1", "192.0.2.1"},
		{"trusted addresses", "192.0.2.1" + fill(",10.0.0.2"), "192.0.2.1"},
		{"commas", "192.0.2.1" + fill(","), "192.0.2.1"},
		{"spaces", "192.0.2.1" + fill(" "), "192.0.2.1"},
	} {
		r := weirtest.From("10.0.0.1:4", tt.xff)
		if got, _ := key(r); got != tt.want {
			t.Errorf("1 MB of %s: got %q, want %q", tt.name, got, tt.want)
		}
		if n := testing.AllocsPerRun(5, func() { key(r) }); n > 0 {
			t.Errorf("1 MB of %s: %v allocations", tt.name, n)
		}
	}
	for _, garbage := range []string{fill("x"), "192.0.2.1:" + fill("x"), "::1%" + fill("x"), "[" + fill("x"), fill(":")} {
		if got, _ := key(weirtest.From("10.0.0.1:4", "192.0.2.1, "+garbage)); got != "10.0.0.1" {
			t.Errorf("1 MB of %.12s…: got %q, want the proxy", garbage, got)
		}
	}
}

// TestJoin: keys are joined as netstrings, and the rule applies only if every function has
// a key.
func TestJoin(t *testing.T) {
	for _, tt := range []struct {
		keys []weir.KeyFunc
		want string
	}{
		{constants("a:", "b"), "2:a:,1:b,"},
		{constants("a", ":b"), "1:a,2::b,"},
		{constants("1:a,", ""), "4:1:a,,0:,"},
		{constants("a"), "1:a,"},
		{constants(strings.Repeat("x", 12)), "12:xxxxxxxxxxxx,"},
		{constants("a", "b", "c", "d", "e", "f", "g", "h", "i"), "1:a,1:b,1:c,1:d,1:e,1:f,1:g,1:h,1:i,"},
		{append(constants("a"), never), ""},
		{append([]weir.KeyFunc{never}, constants("a")...), ""},
	} {
		if got, ok := weir.Join(tt.keys...)(weirtest.Get()); got != tt.want || ok != (tt.want != "") {
			t.Errorf("Join: got %q, %v; want %q", got, ok, tt.want)
		}
	}
}

// TestFirstOf: the first function that has a key decides, and its position begins the key.
func TestFirstOf(t *testing.T) {
	first := weir.FirstOf(weir.ByHeader("X-Api-Key"), weir.ByIP())
	for _, tt := range []struct {
		r    *http.Request
		want string
	}{
		{weirtest.Get("X-Api-Key: k1"), "0:k1"},
		{weirtest.Get("X-Api-Key: 192.0.2.1"), "0:192.0.2.1"}, // differs from the key of that address
		{weirtest.Get("X-Api-Key: 1:192.0.2.1"), "0:1:192.0.2.1"},
		{weirtest.Get("X-Api-Key: "), "1:192.0.2.1"},
		{weirtest.Get(), "1:192.0.2.1"},
	} {
		if got, ok := first(tt.r); got != tt.want || !ok {
			t.Errorf("header %v: got %q, %v; want %q", tt.r.Header, got, ok, tt.want)
		}
	}
	if got, ok := weir.FirstOf(never, never)(weirtest.Get()); ok {
		t.Errorf("no key applies: got %q", got)
	}
}

// TestKeysAreCloned: a key function does not change if the caller changes the slice of its
// arguments.
func TestKeysAreCloned(t *testing.T) {
	trusted := []netip.Prefix{proxy}
	ip := weir.ByIP(trusted...)
	trusted[0] = proxy6
	if got, _ := ip(weirtest.From("10.0.0.1:4", "192.0.2.1")); got != "192.0.2.1" {
		t.Errorf("ByIP kept the caller's slice: got %q", got)
	}
	ks := constants("a")
	join, first := weir.Join(ks...), weir.FirstOf(ks...)
	ks[0] = never
	if _, ok := join(weirtest.Get()); !ok {
		t.Error("Join kept the caller's slice")
	}
	if _, ok := first(weirtest.Get()); !ok {
		t.Error("FirstOf kept the caller's slice")
	}
}

// FuzzByIP: ByIP returns an address, a /64 or "unknown", and no client can change its key
// by X-Forwarded-For.
func FuzzByIP(f *testing.F) {
	f.Add("192.0.2.1:4", "198.51.100.7", "10.0.0.1")
	f.Add("10.0.0.1:4", "198.51.100.7, 192.0.2.1:80", "[::ffff:10.0.0.2]:80,")
	f.Add("[2001:db8:ffff::1%eth0]:4", "[2001:db8::1]", "10.0.0.2, garbage")
	f.Add("@", "unknown", "")
	bare, behind := weir.ByIP(), weir.ByIP(proxy, proxy6, socket)
	f.Fuzz(func(t *testing.T, peer, xff1, xff2 string) {
		plain, forged := weirtest.From(peer), weirtest.From(peer, xff1, xff2)
		want, _ := bare(plain)
		if got, ok := bare(forged); got != want || !ok {
			t.Errorf("nobody trusted, %q called with %q, %q: got %q, %v; without %q", peer, xff1, xff2, got, ok, want)
		}
		for _, r := range []*http.Request{plain, forged} {
			got, ok := behind(r)
			if !ok || !weirtest.IsByIP(got) {
				t.Errorf("%q called with %q, %q: got %q, %v; want an address, a /64 or unknown", peer, xff1, xff2, got, ok)
			}
		}
		// A trusted hop appends the address of its caller, so entries left of that address
		// must not count.
		if addr, err := netip.ParseAddr(want); err == nil && !proxy.Contains(addr) {
			for _, r := range []*http.Request{
				weirtest.From("10.0.0.1:4", xff1, xff2+", "+want),
				weirtest.From("10.0.0.1:4", xff1, xff2, want+",10.0.0.2"),
			} {
				if got, _ := behind(r); got != want {
					t.Errorf("forged %q, %q before %q: got %q", xff1, xff2, want, got)
				}
			}
		}
	})
}

// FuzzJoin: two different combinations never have the same key.
func FuzzJoin(f *testing.F) {
	f.Add("a:", "b", "a", ":b")
	f.Add("1:a,", "", "", "1:a,")
	f.Add("a,1:b", "c", "a", "b,1:c")
	f.Fuzz(func(t *testing.T, a1, a2, b1, b2 string) {
		tuples := [][]string{{a1, a2}, {b1, b2}, {a1}, {a1, a2, b1}, {a1 + a2, b1}, {a1, a2 + b1}, {a1, a2, b1, b2}}
		for i, a := range tuples {
			for _, b := range tuples[:i] {
				ka, _ := weir.Join(constants(a...)...)(nil)
				kb, _ := weir.Join(constants(b...)...)(nil)
				if same := fmt.Sprintf("%q", a) == fmt.Sprintf("%q", b); (ka == kb) != same {
					t.Errorf("%q and %q: got %q and %q", a, b, ka, kb)
				}
			}
		}
	})
}

func never(*http.Request) (string, bool) { return "", false }

// constants returns a KeyFunc for each constant.
func constants(constants ...string) []weir.KeyFunc {
	var ks []weir.KeyFunc
	for _, c := range constants {
		ks = append(ks, func(*http.Request) (string, bool) { return c, true })
	}
	return ks
}

// A load balancer in 10.0.0.0/8 appends the address of the client to X-Forwarded-For.
// Entries that the client wrote itself are to the left and are ignored.
func ExampleByIP() {
	key := weir.ByIP(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("X-Forwarded-For", "198.51.100.7, 192.0.2.1")
	weirtest.Show(key, r)

	r.RemoteAddr = "203.0.113.5:1024" // a client that does not come through the load balancer
	weirtest.Show(key, r)
	// Output:
	// "192.0.2.1" true
	// "203.0.113.5" true
}

// Each client has a quota for each method of each route.
func ExampleJoin() {
	r := chi.NewRouter()
	r.Use(func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			weirtest.Show(weir.Join(weir.ByIP(), keys.ByMethod(), keys.ByRoute()), r)
			next.ServeHTTP(w, r)
		})
	})
	r.Get("/users/{id}", func(http.ResponseWriter, *http.Request) {})
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/users/7", nil))
	// Output: "9:192.0.2.1,3:GET,11:/users/{id}," true
}

// Requests of logged-in users have the user as their key, and other requests have the
// address.
func ExampleFirstOf() {
	key := weir.FirstOf(keys.ByContext(userKey{}), weir.ByIP())
	r := httptest.NewRequest("GET", "/", nil)
	weirtest.Show(key, r)
	weirtest.Show(key, r.WithContext(context.WithValue(r.Context(), userKey{}, "alice")))
	// Output:
	// "1:192.0.2.1" true
	// "0:alice" true
}

// TestByHeaderHost: a client cannot vary the key of a host by case, port or dots at the end.
func TestByHeaderHost(t *testing.T) {
	key := weir.ByHeader("Host")
	for _, tt := range []struct{ host, want string }{
		{"example.com", "example.com"},
		{"EXAMPLE.com", "example.com"},
		{"example.com:80", "example.com"},
		{"example.com:8443", "example.com"}, // a client that varies the port gets no fresh quota
		{"example.com:", "example.com"},
		{"example.com:x:y", "example.com"},
		{"example.com.", "example.com"},
		{"Example.Com..:443", "example.com"},
		{"192.0.2.1:80", "192.0.2.1"},
		{"[2001:DB8::0:1]:443", "[2001:db8::1]"},
		{"[2001:db8::1]", "[2001:db8::1]"},
		{"[2001:db8::1].:80", "[2001:db8::1]"},
		{"[X", "[x"},
		{":80", ""},
		{".", ""},
		{"", ""},
	} {
		if got, ok := key(&http.Request{Host: tt.host, URL: weirtest.Get().URL}); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%q: got %q, %v; want %q", tt.host, got, ok, tt.want)
		}
	}
	r := &http.Request{Host: "example.com:8443", URL: weirtest.Get().URL}
	if n := testing.AllocsPerRun(100, func() { key(r) }); n > 0 {
		t.Errorf("a host and its port: %v allocations, want 0", n)
	}
}
