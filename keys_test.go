package weir_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"testing"
	"testing/iotest"
	"time"
	"unicode/utf8"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
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
	key := weir.Join(weir.ByIP(), weir.ByMethod(), weir.ByRoute())
	mux := http.NewServeMux()
	mux.HandleFunc("/users/{id}", func(w http.ResponseWriter, r *http.Request) { weirtest.Show(key, r) })
	mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/users/7", nil))
	// Output: "9:192.0.2.1,3:GET,11:/users/{id}," true
}

// Requests of logged-in users have the user as their key, and other requests have the
// address.
func ExampleFirstOf() {
	key := weir.FirstOf(weir.ByContext(userKey{}), weir.ByIP())
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

// forwarded returns a request from peer with these Forwarded fields.
func forwarded(peer string, fields ...string) *http.Request {
	r := weirtest.From(peer, "203.0.113.99") // an X-Forwarded-For that ByForwarded must ignore
	r.Header["Forwarded"] = fields
	return r
}

func TestByForwarded(t *testing.T) {
	for _, tt := range []struct {
		peer   string
		fields []string
		want   string
	}{
		{"192.0.2.1:4", []string{"for=198.51.100.7"}, "192.0.2.1"}, // not trusted
		{"10.0.0.1:4", nil, "10.0.0.1"},
		{"10.0.0.1:4", []string{""}, "10.0.0.1"},
		{"10.0.0.1:4", []string{" , ,"}, "10.0.0.1"},
		{"10.0.0.1:4", []string{"for=192.0.2.1"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"For=192.0.2.1"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"by=203.0.113.43; for=192.0.2.1 ;proto=http"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`proto=http;;for="192.0.2.1";`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.1:47011"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.1:_http"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="192\.0.2\.1"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=192.0.2.1:47011"}, "192.0.2.1"}, // should be quoted, but is accepted
		{"10.0.0.1:4", []string{`for="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"10.0.0.1:4", []string{`for="[2001:db8:cafe::17]"`}, "2001:db8:cafe::/64"},
		{"10.0.0.1:4", []string{`for="[2001:DB8:CAFE::17]:_p"`}, "2001:db8:cafe::/64"},
		{"10.0.0.1:4", []string{`for="[::ffff:192.0.2.1]"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="[64:ff9b::c000:201]"`}, "192.0.2.1"},
		{"[::ffff:10.0.0.1]:4", []string{"for=192.0.2.1"}, "192.0.2.1"},
		{"@", []string{"for=192.0.2.1"}, "unknown"},

		// Elements are read from the right, over all fields.
		{"10.0.0.1:4", []string{"for=198.51.100.7, for=192.0.2.1"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=198.51.100.7,for=192.0.2.1,for=10.0.0.2"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=198.51.100.7, for=192.0.2.1", "for=10.0.0.3, for=10.0.0.2"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=10.0.0.4", "for=10.0.0.3, for=10.0.0.2"}, "10.0.0.4"}, // all are trusted

		// Elements that the client wrote can't change the elements to their right.
		{"10.0.0.1:4", []string{`for=", for=192.0.2.1`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="\", for=192.0.2.1`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="\`, `for="192.0.2.1";by="a, for=198.51.100.7"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for=198.51.100.7, for=192.0.2.1;by="\", for=198.51.100.8"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for=198.51.100.7, for=192.0.2.1;by="x\\"`}, "192.0.2.1"},

		// If an element is no address, the key is the address of the proxy that sent the
		// element.
		{"10.0.0.1:4", []string{"for=192.0.2.1, for=_gazonk"}, "10.0.0.1"},
		{"10.0.0.1:4", []string{"for=192.0.2.1, for=unknown, for=10.0.0.2"}, "10.0.0.2"},
		{"10.0.0.1:4", []string{"for=192.0.2.1, proto=https"}, "10.0.0.1"},
		{"10.0.0.1:4", []string{"for=192.0.2.1, for=198.51.100.7;for=198.51.100.8"}, "10.0.0.1"},
		{"10.0.0.1:4", []string{"192.0.2.1"}, "10.0.0.1"},
		{"10.0.0.1:4", []string{"for=192.0.2.1;secure"}, "10.0.0.1"},
		{"10.0.0.1:4", []string{"for="}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.1`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.1"x`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for=192.0.2.1"`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.1:_"`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.1:_a b"`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="[192.0.2.1]"`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="192.0.2.01"`}, "10.0.0.1"},
		{"10.0.0.1:4", []string{`for="` + strings.Repeat(`\1`, 200) + `"`}, "10.0.0.1"},
	} {
		r := forwarded(tt.peer, tt.fields...)
		if got, ok := weir.ByForwarded(proxy)(r); got != tt.want || !ok {
			t.Errorf("%q called with %q: got %q, %v; want %q", tt.peer, tt.fields, got, ok, tt.want)
		}
		addr, ok := weir.ForwardedAddr(proxy)(r)
		if want, err := netip.ParseAddr(tt.want); err == nil && addr != want || ok != (tt.want != "unknown") {
			t.Errorf("%q called with %q: got the address %v, %v; want %q", tt.peer, tt.fields, addr, ok, tt.want)
		}
	}
	// ByIP ignores Forwarded, and ByForwarded ignores X-Forwarded-For.
	if got, _ := weir.ByIP(proxy)(forwarded("10.0.0.1:4", "for=192.0.2.1")); got != "203.0.113.99" {
		t.Errorf("ByIP of a request with both fields: got %q, want the address in X-Forwarded-For", got)
	}
	if got, ok := weir.ClientAddr(proxy)(forwarded("10.0.0.1:4", "for=192.0.2.1")); got.String() != "203.0.113.99" || !ok {
		t.Errorf("ClientAddr of a request with both fields: got %v, want the address in X-Forwarded-For", got)
	}
}

func TestByForwardedMegabyte(t *testing.T) {
	fill := func(s string) string { return strings.Repeat(s, 1<<20/len(s)) }
	key := weir.ByForwarded(proxy)
	for _, tt := range []struct{ name, field, want string }{
		{"forged addresses", fill("for=198.51.100.7,") + "for=192.0.2.1", "192.0.2.1"},
		{"trusted addresses", "for=192.0.2.1" + fill(",for=10.0.0.2"), "192.0.2.1"},
		{"trusted addresses in quotes", "for=192.0.2.1" + fill(`,for="10.0.0.2:80"`), "192.0.2.1"},
		{"commas", "for=192.0.2.1" + fill(","), "192.0.2.1"},
		{"quotes", fill(`"`) + ",for=192.0.2.1", "192.0.2.1"},
		{"quotes at the end", "for=192.0.2.1" + fill(`,"`), "10.0.0.1"},
		{"backslashes", "for=192.0.2.1," + fill(`\`) + `"`, "10.0.0.1"},
		{"escaped quotes", `for=192.0.2.1,for="` + fill(`\"`) + `"`, "10.0.0.1"},
		{"semicolons", "for=192.0.2.1," + fill(";"), "10.0.0.1"},
		{"parameters", "for=192.0.2.1," + fill("a=b;") + "for=192.0.2.2", "192.0.2.2"},
		{"a hidden port", `for=192.0.2.1,for="192.0.2.2:_` + fill("x") + `"`, "192.0.2.2"},
	} {
		r := forwarded("10.0.0.1:4", tt.field)
		if got, _ := key(r); got != tt.want {
			t.Errorf("1 MB of %s: got %q, want %q", tt.name, got, tt.want)
		}
		if n := testing.AllocsPerRun(3, func() { key(r) }); n > 1 {
			t.Errorf("1 MB of %s: %v allocations, want 1 at most", tt.name, n)
		}
	}
}

// BenchmarkByForwarded measures the fields of 1 MB that take longest to read.
func BenchmarkByForwarded(b *testing.B) {
	for _, s := range []string{",for=10.0.0.2", `,"`, `\`, `\"`, ";"} {
		b.Run(s, func(b *testing.B) {
			r, key := forwarded("10.0.0.1:4", strings.Repeat(s, 1<<20/len(s))+`"`), weir.ByForwarded(proxy)
			b.ReportAllocs()
			for b.Loop() {
				key(r)
			}
		})
	}
}

func FuzzByForwarded(f *testing.F) {
	f.Add("192.0.2.1:4", "for=198.51.100.7", "for=10.0.0.1")
	f.Add("10.0.0.1:4", `for="[2001:db8::1]:80";by=_x, for=192.0.2.1`, `for="\`)
	f.Add("10.0.0.1:4", `for="a\", for=192.0.2.1`, `",`)
	bare, behind := weir.ByForwarded(), weir.ByForwarded(proxy, proxy6, socket)
	f.Fuzz(func(t *testing.T, peer, field1, field2 string) {
		plain, forged := forwarded(peer), forwarded(peer, field1, field2)
		want, _ := bare(plain)
		if got, ok := bare(forged); got != want || !ok {
			t.Errorf("nobody trusted, %q called with %q, %q: got %q, %v; without %q", peer, field1, field2, got, ok, want)
		}
		if got, ok := behind(forged); !ok || !weirtest.IsByIP(got) {
			t.Errorf("%q called with %q, %q: got %q, %v; want an address, a /64 or unknown", peer, field1, field2, got, ok)
		}
		// If a trusted proxy appends its caller, elements to the left do not count.
		if addr, err := netip.ParseAddr(want); err != nil || proxy.Contains(addr) {
			return
		}
		for _, node := range []string{"for=" + want, `for="` + want + `:80";by="a, \"b"`} {
			for _, r := range []*http.Request{
				forwarded("10.0.0.1:4", field1, field2+", "+node),
				forwarded("10.0.0.1:4", field1, node+",for=10.0.0.2"),
			} {
				if got, _ := behind(r); got != want {
					t.Errorf("forged %q, %q before %q: got %q", field1, field2, node, got)
				}
			}
		}
	})
}

// TestNAT64: the key of a client behind NAT64 is the IPv4 address of the client. Otherwise all
// clients behind NAT64 would share the key of one /64.
func TestNAT64(t *testing.T) {
	for _, tt := range []struct{ peer, want string }{
		{"[64:ff9b::c000:201]:4", "192.0.2.1"},
		{"[64:ff9b::192.0.2.2]:4", "192.0.2.2"},
		{"[64:ff9b::c000:201%eth0]:4", "192.0.2.1"},
		{"[64:ff9b:1::c000:201]:4", "64:ff9b:1::/64"}, // for local use, RFC 8215
		{"[64:ff9b::1:c000:201]:4", "64:ff9b::/64"},
		{"[64:ff9b::10.0.0.1]:4", "64:ff9b::/64"}, // RFC 6052 forbids private addresses in the prefix
		{"[64:ff9b::127.0.0.1]:4", "64:ff9b::/64"},
		{"[64:ff9b::100.64.0.1]:4", "64:ff9b::/64"},
		{"[64:ff9b::]:4", "64:ff9b::/64"},
	} {
		if got, _ := weir.ByIP()(weirtest.From(tt.peer)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.peer, got, tt.want)
		}
		addr := netip.MustParseAddrPort(tt.peer).Addr()
		find := func(*http.Request) (netip.Addr, bool) { return addr, true }
		if got, _ := weir.ByAddr(find, 32, 64)(weirtest.Get()); got != tt.want {
			t.Errorf("ByAddr of %s: got %q, want %q", addr, got, tt.want)
		}
	}
	if got, _ := weir.ByIP(proxy)(weirtest.From("10.0.0.1:4", "64:ff9b::c000:201")); got != "192.0.2.1" {
		t.Errorf("through a proxy: got %q, want 192.0.2.1", got)
	}
	// A trusted proxy is compared with the address of the connection, without NAT64.
	if got, _ := weir.ByIP(proxy)(weirtest.From("[64:ff9b::a00:1]:4", "192.0.2.1")); got != "64:ff9b::/64" {
		t.Errorf("from 10.0.0.1 behind NAT64: got %q, want the /64 of the peer, because X-Forwarded-For does not count", got)
	}
}

// The proxies in 10.0.0.0/8 write Forwarded and pass X-Forwarded-For on unchanged.
func ExampleByForwarded() {
	key := weir.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", `for=198.51.100.7, for="[2001:db8:1:2::3]:4711";proto=https`)
	r.Header.Set("X-Forwarded-For", "203.0.113.9") // forged by the client
	weirtest.Show(key, r)
	// Output: "2001:db8:1:2::/64" true
}

// ByAddr makes keys of networks of any size.
func ExampleForwardedAddr() {
	key := weir.ByAddr(weir.ForwardedAddr(netip.MustParsePrefix("10.0.0.0/8")), 24, 48)
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", "for=192.0.2.1")
	weirtest.Show(key, r)
	// Output: "192.0.2.0/24" true
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
		if got, ok := weir.ByIPPrefix(tt.ipv4, tt.ipv6)(weirtest.From(tt.peer)); got != tt.want || !ok {
			t.Errorf("ByIPPrefix(%d, %d) of %q: got %q, %v; want %q", tt.ipv4, tt.ipv6, tt.peer, got, ok, tt.want)
		}
	}
}

func TestByAddr(t *testing.T) {
	for _, tt := range []struct {
		addr       string
		ipv4, ipv6 int
		want       string // "" if the rule does not apply
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
		if got, ok := weir.ByAddr(find, tt.ipv4, tt.ipv6)(weirtest.Get()); got != tt.want || ok != (tt.want != "") {
			t.Errorf("ByAddr of %q by %d and %d: got %q, %v; want %q", tt.addr, tt.ipv4, tt.ipv6, got, ok, tt.want)
		}
	}
	if got, ok := weir.ByAddr(nowhere, 32, 64)(weirtest.Get()); ok {
		t.Errorf("an address that is not known: got %q", got)
	}
}

func ExampleByAddr() {
	// A gateway sends the address of its client, and no other client can reach the service.
	gateway := func(r *http.Request) (netip.Addr, bool) {
		addr, err := netip.ParseAddr(r.Header.Get("X-Client"))
		return addr, err == nil
	}
	weirtest.Show(weir.ByAddr(gateway, 32, 56), weirtest.Get("X-Client: 2001:db8:1:2ff::1"))
	// Output: "2001:db8:1:200::/56" true
}

func nowhere(*http.Request) (netip.Addr, bool) { return netip.Addr{}, false }

func ExampleByIPPrefix() {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "[2001:db8:1:2ff::1]:1024"
	weirtest.Show(weir.ByIPPrefix(24, 56), r)
	// Output: "2001:db8:1:200::/56" true
}

var secret = []byte("random bytes, the same in all processes")

// One address may try many users, and one user may be tried from many addresses, so a login has a
// limit for each. The user name is in the JSON body, and the store gets only a hash of it.
func ExampleByJSON_login() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.SlidingLog(100, time.Hour)}},
		{Name: "user", Key: weir.Hashed(secret, weir.ByJSON("user", 4096)), Limits: []weir.Limit{algorithms.SlidingLog(2, time.Hour)}},
	}})
	if err != nil {
		fmt.Println(err)
		return
	}
	login := limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	for _, user := range []string{"ada", "Ada", "ADA", "bob"} {
		w := httptest.NewRecorder()
		login.ServeHTTP(w, httptest.NewRequest("POST", "/login", strings.NewReader(`{"user": "`+user+`"}`)))
		fmt.Println(user, w.Code)
	}
	// Output:
	// ada 200
	// Ada 200
	// ADA 429
	// bob 200
}

// A watched is a body that counts how many of its bytes are read.
type watched struct {
	io.Reader
	n      int
	closed bool
}

func (b *watched) Read(p []byte) (n int, err error) {
	n, err = b.Reader.Read(p)
	b.n += n
	return n, err
}

func (b *watched) Close() error { b.closed = true; return nil }

// TestByJSON checks the key of each body, with and without a known length, and that the
// handler reads the body unchanged.
func TestByJSON(t *testing.T) {
	const max = 64
	deep := strings.Repeat("[", max/2-4) + strings.Repeat("]", max/2-4)
	for _, c := range []struct {
		body string
		want string // "-": the rule does not apply
	}{
		{`{"email":"ann@example.com","password":"x"}`, "ann@example.com"},
		{` { "password" : [1,{"email":2}] , "email" : "ann" } `, "ann"},
		{`{"email":" Ann@Example.COM\n"}`, "ann@example.com"},
		{`{"EMail":"ann"}`, "ann"},
		{`{"\u0065mail":"\u0061nn"}`, "ann"},
		{`{"e-mail":"ann"}`, "ann"}, // as encoding/json/v2 with case:ignore
		{`{"_E_MAIL-":"ann"}`, "ann"},
		{`{"e\u002dmail":"ann"}`, "ann"},
		{`{"email":42}`, "42"},
		{`{"email":"42"}`, "42"},
		{`{"email":12345678901234567890}`, "12345678901234567890"},
		{`{"email":-1}`, "-1"},

		{"", "-"},
		{`{}`, "-"},
		{`{"user":"ann"}`, "-"},
		{`{"user":{"email":"ann"}}`, "-"},
		{`{"email":null}`, "-"},
		{`{"email":""}`, "-"},
		{`{"email":"  "}`, "-"},

		{`{"email":"ann","email":"ben"}`, "unreadable"},
		{`{"email":"ann","EMAIL":"ann"}`, "unreadable"},
		{`{"e-mail":"ann","email":"ben"}`, "unreadable"},
		{"{\"email\":\"ann\xff\"}", "unreadable"},
		{`{"email":"ann","email":null}`, "unreadable"},
		{`{"email":4.0}`, "unreadable"},
		{`{"email":4e0}`, "unreadable"},
		{`{"email":-0}`, "unreadable"},
		{`{"email":true}`, "unreadable"},
		{`{"email":["ann"]}`, "unreadable"},
		{`{"email":{"email":"ann"}}`, "unreadable"},
		{`[{"email":"ann"}]`, "unreadable"},
		{`"ann"`, "unreadable"},
		{`null`, "unreadable"},
		{` `, "unreadable"},
		{`{"email":"ann"} x`, "unreadable"},
		{`{"email":"ann"}{}`, "unreadable"},
		{`{"email":"ann",}`, "unreadable"},
		{`{"email":"ann`, "unreadable"},
		{`{'email':'ann'}`, "unreadable"},
		{"\ufeff" + `{"email":"ann"}`, "unreadable"},
		{"email=ann", "unreadable"},
		{`{"a":` + deep + `}`, "-"},
		{strings.Repeat("[", max), "unreadable"},
		{`{"email":"` + strings.Repeat("a", max-12) + `"}`, strings.Repeat("a", max-12)}, // max bytes, which is too long if the length is unknown
		{`{"email":"` + strings.Repeat("a", max-11) + `"}`, "unreadable"},
		{`{"email":"ann","password":"` + strings.Repeat("a", 1<<20) + `"}`, "unreadable"},
	} {
		for _, chunked := range []bool{false, true} {
			checkByJSON(t, c.body, chunked, max, c.want)
		}
	}
}

// TestByJSONPath: the key is at the end of a path of objects.
func TestByJSONPath(t *testing.T) {
	for _, c := range []struct{ path, body, want string }{
		{"params.name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"name":"x"},"name":"Search"}}`, "search"},
		{"params.name", `{"Params":{"NAME":"search"}}`, "search"},
		{"params.name", `{"params.name":"x","params":{"name":7}}`, "7"},
		{"a.b.c", `{"a":{"b":{"c":"d"}}}`, "d"},
		{`a\.b`, `{"a.b":"c","a":{"b":"d"}}`, "c"},
		{`a\.b.c`, `{"a.b":{"c":"d"}}`, "d"},
		{`a\b`, `{"a\\b":"c"}`, "c"},

		{"params.name", `{"method":"initialize","name":"x"}`, "-"},
		{"params.name", `{"params":null}`, "-"},
		{"params.name", `{"params":{}}`, "-"},
		{"params.name", `{"params":{"name":null}}`, "-"},
		{"params.name", ``, "-"},

		{"params.name", `[{"params":{"name":"search"}}]`, "unreadable"},
		{"params.name", `{"params":["search"]}`, "unreadable"},
		{"params.name", `{"params":"name"}`, "unreadable"},
		{"params.name", `{"params":{"name":{}}}`, "unreadable"},
		{"params.name", `{"params":{"name":"a"},"params":{"name":"b"}}`, "unreadable"},
		{"params.name", `{"params":{"name":"a"},"Params":null}`, "unreadable"},
		{"params.name", `{"params":{"name":"a","Name":"b"}}`, "unreadable"},
		{"params.name", `null`, "unreadable"},
	} {
		key, ok := weir.ByJSON(c.path, 1<<10)(httptest.NewRequest("POST", "/", strings.NewReader(c.body)))
		if !ok {
			key = "-"
		}
		if key != c.want {
			t.Errorf("%s in %s: got %q, want %q", c.path, c.body, key, c.want)
		}
	}
}

// checkByJSON sends a body to two rules with a key of ByJSON, and then reads it.
func checkByJSON(t *testing.T, text string, chunked bool, max int, want string) {
	t.Helper()
	body := &watched{Reader: iotest.HalfReader(strings.NewReader(text))}
	r := httptest.NewRequest("POST", "/login", body)
	r.ContentLength = int64(len(text))
	if chunked {
		r.ContentLength = -1
	}
	if chunked && len(text) == max {
		want = "unreadable"
	}
	byEmail := weir.ByJSON("email", int64(max))
	for range 2 { // two rules read the body
		key, ok := byEmail(r)
		if !ok {
			key = "-"
		}
		if key != want {
			t.Errorf("%.60q, chunked %v: got %q, want %q", text, chunked, key, want)
		}
	}
	if body.n > max {
		t.Errorf("%.60q, chunked %v: %d bytes were read, want %d at most", text, chunked, body.n, max)
	}
	if got, err := io.ReadAll(r.Body); string(got) != text || err != nil {
		t.Errorf("%.60q, chunked %v: the handler reads %.60q, %v", text, chunked, got, err)
	}
	if r.Body.Close(); !body.closed {
		t.Errorf("%.60q, chunked %v: the body was not closed", text, chunked)
	}
}

// TestByJSONPanics: ByJSON panics on an error in its arguments.
func TestByJSONPanics(t *testing.T) {
	for _, call := range []func(){func() { weir.ByJSON("", 1) }, func() { weir.ByJSON("a..b", 1) }, func() { weir.ByJSON("a.", 1) }, func() { weir.ByJSON("email", 0) }} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "weir: ByJSON: ") {
					t.Errorf("got %q", got)
				}
			}()
			call()
		}()
	}
}

// TestByJSONBroken: if a body is cut off, the handler reads the same bytes and gets the
// same errors as without ByJSON. It also gets the error of http.MaxBytesReader.
func TestByJSONBroken(t *testing.T) {
	cut := errors.New("cut")
	read := func(key weir.KeyFunc) string {
		r := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader(`{"email":"ann"}`), iotest.ErrReader(cut)))
		if key != nil {
			if k, ok := key(r); k != "unreadable" || !ok {
				t.Errorf("got %q, %v", k, ok)
			}
		}
		got, err := io.ReadAll(r.Body)
		_, again := r.Body.Read(make([]byte, 1))
		return fmt.Sprintf("%s, %v, %v", got, err, again)
	}
	if got, want := read(weir.ByJSON("email", 64)), read(nil); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	r := httptest.NewRequest("POST", "/", nil)
	r.Body = http.MaxBytesReader(nil, io.NopCloser(strings.NewReader(`{"email":"ann"}`)), 5)
	weir.ByJSON("email", 64)(r)
	var tooLarge *http.MaxBytesError
	if got, err := io.ReadAll(r.Body); string(got) != `{"ema` || !errors.As(err, &tooLarge) {
		t.Errorf("got %q, %v; want the error of MaxBytesReader", got, err)
	}
}

// TestByJSONServer sends bodies to a real server: with a known length, in chunks, and cut off
// by a client that hangs up. The limiter counts their keys, and the handler reads every
// admitted body unchanged.
func TestByJSONServer(t *testing.T) {
	type seen struct{ text, err string }
	answers := make(chan seen, 1)
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "login", Key: weir.ByJSON("email", 1<<10), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		_, closed := r.Body.Read(make([]byte, 1))
		if !errors.Is(closed, http.ErrBodyReadAfterClose) {
			t.Errorf("after Close: got %v", closed)
		}
		answers <- seen{string(text), fmt.Sprint(err)}
	})))
	defer server.Close()
	long := `{"email":"ann","x":"` + strings.Repeat("y", 300<<10) + `"}`
	for _, c := range []struct {
		body   string
		length int64
		status int
	}{
		{`{"email":"ann"}`, 15, 200}, {`{"email":"Ann"}`, -1, 200}, {`{"email":"ann"}`, 15, 429},
		{long, int64(len(long)), 200}, {long, -1, 200}, {`{"email":1.5}`, -1, 429},
		{`{"email":"ben"}`, -1, 200},
	} {
		r, _ := http.NewRequest("POST", server.URL, io.NopCloser(strings.NewReader(c.body)))
		r.ContentLength = c.length
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%.40s, length %d: got %d, want %d", c.body, c.length, res.StatusCode, c.status)
		}
		if c.status == 200 {
			if got := <-answers; got != (seen{c.body, "<nil>"}) {
				t.Errorf("%.40s: the handler read %.40q, %s", c.body, got.text, got.err)
			}
		}
	}
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{\"email\":")
	conn.(*net.TCPConn).CloseWrite()
	// The quota of unreadable bodies is spent.
	if got, _ := io.ReadAll(conn); !bytes.HasPrefix(got, []byte("HTTP/1.1 429 ")) {
		t.Errorf("a body that is cut off: got %.60q, want 429", got)
	}
	conn.Close()
}

// TestByJSONElsewhere: a request of forward auth, which announces a body that is not sent,
// has the key "unreadable".
func TestByJSONElsewhere(t *testing.T) {
	for _, c := range []struct {
		length   int64
		encoding []string
		want     string
	}{{0, nil, ""}, {15, nil, "unreadable"}, {0, []string{"chunked"}, "unreadable"}} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, c.length, c.encoding
		if key, ok := weir.ByJSON("email", 64)(r); key != c.want || ok != (c.want != "") {
			t.Errorf("%d bytes, %q: got %q, %v; want %q", c.length, c.encoding, key, ok, c.want)
		}
	}
}

// TestByJSONOutbound: ByJSON does not change an outgoing request.
func TestByJSONOutbound(t *testing.T) {
	r, _ := http.NewRequest("POST", "http://example.com", strings.NewReader(`{"email":"ann"}`))
	body := r.Body
	if key, ok := weir.ByJSON("email", 64)(r); key != "ann" || !ok || r.Body != body {
		t.Errorf("got %q, %v, another body: %v", key, ok, r.Body != body)
	}
	if got, _ := io.ReadAll(r.Body); string(got) != `{"email":"ann"}` {
		t.Errorf("got %q", got)
	}
}

func ExampleByJSON() {
	key := weir.ByJSON("email", 4096)
	for _, body := range []string{`{"email": "Ann@Example.com"}`, `{}`, `{"email": "ann", "email": "ben"}`} {
		weirtest.Show(key, httptest.NewRequest("POST", "/login", strings.NewReader(body)))
	}
	// Output:
	// "ann@example.com" true
	// "" false
	// "unreadable" true
}

// decoded does what ByJSON does with a body, token by token. It returns the value at a path of a
// JSON object, or "" if it is missing or the body is empty. ok is false if the body is neither
// empty nor an object, or if a member of the path is there twice or has a value of another type.
func decoded(body []byte, field string, path ...string) (value string, ok bool) {
	if len(body) == 0 {
		return "", true
	}
	if !json.Valid(body) || !utf8.Valid(body) {
		return "", false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, _ := d.Token(); t != json.Delim('{') {
		return "", false
	}
	var found json.RawMessage
	for d.More() {
		name, _ := d.Token()
		var v json.RawMessage
		d.Decode(&v)
		if name, _ := name.(string); !strings.EqualFold(strings.NewReplacer("-", "", "_", "").Replace(name), field) {
			continue
		}
		if found != nil {
			return "", false
		}
		found = v
	}
	if len(path) > 0 && found != nil && string(found) != "null" {
		return decoded(found, path[0], path[1:]...)
	}
	if found == nil {
		return "", true
	}
	d = json.NewDecoder(bytes.NewReader(found))
	d.UseNumber()
	t, _ := d.Token()
	return tokenText(t)
}

// tokenText returns a string, or a number without fraction and exponent, as text. It returns ""
// for null. ok is false for any other token, and for -0.
func tokenText(t json.Token) (s string, ok bool) {
	switch t := t.(type) {
	case nil:
		return "", true
	case string:
		return t, true
	case json.Number: // so a value has one spelling: 4, not 4.0 or 4e0
		return t.String(), t != "-0" && !strings.ContainsAny(t.String(), ".eE")
	}
	return "", false
}

// folded returns what Folded makes of a key.
func folded(key string) string {
	key, _ = weir.Folded(func(*http.Request) (string, bool) { return key, true })(nil)
	return key
}

// FuzzByJSON: ByJSON reads at most max bytes of any body, finds the value that a decoder of
// encoding/json finds, never returns an empty key with ok, and the handler reads the body
// unchanged.
func FuzzByJSON(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"a":1}`, `{"a":"x","A":2}`, `[[[`, `{"a":"\u0000"}`, ` { "b" : [ { "a" : 1 } , "]}\\" ] , "\u0061" : "\"x\ud800" } `, "{\"a\":\"\xff\xff\"}", `{"b":{},"a":-1.5}`, `{"b":true,"a":null}`,
		`{"b":{"a":{"a":"x"},"c":[{}]}}`, `{"b":{"a":1},"B":0}`, `{"b":null}`, `{"b":[{"a":1}]}`} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, body string, chunked bool) {
		const max = 100
		watch := &watched{Reader: strings.NewReader(body)}
		r := httptest.NewRequest("POST", "/", watch)
		if r.ContentLength = int64(len(body)); chunked {
			r.ContentLength = -1
		}
		key, ok := weir.ByJSON("a", max)(r)
		if ok == (key == "") || watch.n > max {
			t.Errorf("got %q, %v after %d bytes", key, ok, watch.n)
		}
		want, readable := decoded([]byte(body), "a")
		if want = folded(want); !readable || len(body) > max || chunked && len(body) == max {
			want = "unreadable"
		}
		if key != want {
			t.Errorf("%q: got %q, want %q", body, key, want)
		}
		if got, err := io.ReadAll(r.Body); string(got) != body || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		inside, _ := weir.ByJSON("b.a", 1<<20)(httptest.NewRequest("POST", "/", strings.NewReader(body)))
		if want, readable = decoded([]byte(body), "b", "a"); !readable {
			want = "unreadable"
		}
		if want = folded(want); inside != want {
			t.Errorf("%q: b.a: got %q, want %q", body, inside, want)
		}
	})
}

func TestKeysOfRequest(t *testing.T) {
	type name string
	type id int64
	with := func(v any) *http.Request {
		return weirtest.From("").WithContext(context.WithValue(context.Background(), userKey{}, v))
	}
	var nobody *netip.Addr
	header, user := weir.ByHeader("x-api-key"), weir.ByContext(userKey{})
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
		{"cookie", weir.ByCookie("id"), weirtest.Get("Cookie: a=b; id=c1"), "c1"},
		{"empty cookie", weir.ByCookie("id"), weirtest.Get("Cookie: a=b; id="), ""},
		{"no cookie", weir.ByCookie("id"), weirtest.Get("Cookie: a=b"), ""},
		{"user", weir.ByBasicAuthUser(), weirtest.Get("Authorization: Basic QWxhZGRpbjpvcGVuIHNlc2FtZQ=="), "aladdin"}, // RFC 7617
		{"no user", weir.ByBasicAuthUser(), weirtest.Get("Authorization: Basic OnB3"), ""},
		{"bad credentials", weir.ByBasicAuthUser(), weirtest.Get("Authorization: Basic ="), ""},
		{"no credentials", weir.ByBasicAuthUser(), weirtest.Get(), ""},
		{"no path value", weir.ByPathValue("id"), weirtest.Get(), ""},
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
		{"outgoing GET", weir.ByMethod(), new(http.Request), "GET"},
	} {
		if got, ok := tt.key(tt.r); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%s: got %q, %v; want %q", tt.name, got, ok, tt.want)
		}
	}
	if got, ok := weir.Global()(weirtest.Get()); got != "" || !ok {
		t.Errorf("Global: got %q, %v; want the empty key", got, ok)
	}
}

// TestByUrgency: what is not an urgency of RFC 9218 means the default.
func TestByUrgency(t *testing.T) {
	for _, tt := range []struct {
		lines []string
		want  string
	}{
		{nil, "3"},
		{[]string{"u=0"}, "0"},
		{[]string{"u=5, i"}, "5"},
		{[]string{"i,\tu=7"}, "7"},
		{[]string{"u=1;x=2"}, "1"},
		{[]string{"u=1", "u=6"}, "6"},
		{[]string{"u=1, u"}, "3"}, // the last of several counts, and is no number
		{[]string{"u=8"}, "3"},
		{[]string{"u=-1"}, "3"},
		{[]string{"u=1.0"}, "3"},
		{[]string{"u=low"}, "3"},
		{[]string{"u=1,"}, "1"},
		{[]string{"U=1"}, "3"},
		{[]string{"i"}, "3"},
		{[]string{""}, "3"},
		{[]string{strings.Repeat(",", 1021) + "u=1"}, "1"},
		{[]string{strings.Repeat(",", 1022) + "u=1"}, "3"}, // too long
		{strings.SplitAfter(strings.Repeat(",", 600)+"u=1", ","), "3"},
	} {
		if got, ok := weir.ByUrgency()(&http.Request{Header: http.Header{"Priority": tt.lines}}); got != tt.want || !ok {
			t.Errorf("%.40q: got %q, %v; want %q", tt.lines, got, ok, tt.want)
		}
	}
}

// FuzzByUrgency: any field has one of the eight urgencies, and that of its last member u.
func FuzzByUrgency(f *testing.F) {
	for _, s := range []string{"", "u=0", "i, u=7;x", "u", "u=8", "u=\"1\"", ",u==1,\x00"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, field string) {
		of := func(lines ...string) string {
			got, ok := weir.ByUrgency()(&http.Request{Header: http.Header{"Priority": lines}})
			if !ok || len(got) != 1 || got < "0" || got > "7" {
				t.Errorf("%q: got %q, %v", lines, got, ok)
			}
			return got
		}
		if of(field); len(field) < 1000 && of(field, "u=5") != "5" {
			t.Errorf("%q, then u=5: got %s", field, of(field, "u=5"))
		}
	})
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

func TestHashed(t *testing.T) {
	// RFC 4231, test cases 1, 3 and 6, the first 128 bits: b0344c61…, 773ea91e… and 60e43159….
	for _, tt := range []struct{ secret, key, want string }{
		{strings.Repeat("\x0b", 20), "Hi There", "sDRMYdjbOFNcqK_OrwvxKw"},
		{strings.Repeat("\xaa", 20), strings.Repeat("\xdd", 50), "dz6pHjaADkaFTbjr0JGBpw"},
		{strings.Repeat("\xaa", 131), "Test Using Larger Than Block-Size Key - Hash Key First", "YOQxWR7gtn8Niiaqy_W3fw"},
	} {
		secret := []byte(tt.secret)
		if got := weir.HashedKey(secret, tt.key); got != tt.want {
			t.Errorf("HashedKey %q: got %q, want %q", tt.key, got, tt.want)
		}
		key := weir.Hashed(secret, func(*http.Request) (string, bool) { return tt.key, true })
		secret[0]++ // must not change the key: Hashed has copied the secret
		for range 2 {
			if got, ok := key(weirtest.Get()); got != tt.want || !ok {
				t.Errorf("Hashed %q: got %q, %v; want %q", tt.key, got, ok, tt.want)
			}
		}
	}
	if got, ok := weir.Hashed(secret, never)(weirtest.Get()); ok {
		t.Errorf("Hashed of a key that does not apply: got %q", got)
	}
}

// TestHashedKeyUnbans: an operator who knows a name and the secret unbans and resets its key.
func TestHashedKeyUnbans(t *testing.T) {
	store, once := memstore.New(memstore.Options{}), algorithms.FixedWindow(1, 1000*time.Hour)
	limiter := weirtest.New(t, store, weir.Options{Rules: []weir.Rule{{
		Name: "user", Key: weir.Hashed(secret, weir.Folded(weir.ByHeader("X-User"))), Limits: []weir.Limit{once},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Hour), Duration: time.Hour},
	}}})
	h := limiter.Handler(served)
	status := func() int { return weirtest.Do(h, weirtest.Get("X-User: Alice")).StatusCode }
	if a, b, c := status(), status(), status(); a != 200 || b != 429 || c != 429 {
		t.Fatalf("got %d, %d, %d; want 200, 429, 429", a, b, c)
	}
	key := weir.HashedKey(secret, "alice")
	if ban, err := limiter.Banned(t.Context(), "user", key); ban <= 0 || err != nil {
		t.Errorf("got a ban of %v, %v", ban, err)
	}
	if _, err := limiter.Unban(t.Context(), "user", key); err != nil {
		t.Fatal(err)
	}
	if _, err := quota.Reset(t.Context(), store, quota.Charge{Rule: "user", Key: key, Limit: once}); err != nil {
		t.Fatal(err)
	}
	if got := status(); got != 200 {
		t.Errorf("after Unban and Reset: got %d, want 200", got)
	}
}

// TestNothingToChange: Unban and Reset say whether there was something to change. A name is not the
// key that Hashed has made of it.
func TestNothingToChange(t *testing.T) {
	secret := []byte("0123456789abcdef")
	l := algorithms.GCRA(1, time.Minute)
	store := memory()
	limiter := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "user", Key: weir.Hashed(secret, weir.ByHeader("User")), Limits: []weir.Limit{l},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Hour), Duration: time.Hour}}}})
	h := limiter.Handler(served)
	alice := weir.HashedKey(secret, "alice")
	for i, c := range []struct {
		key    string
		ask    int // requests before
		banned bool
		spent  bool
	}{
		{"alice", 4, false, false}, {alice, 0, true, true}, {alice, 0, false, false}, // a ban
		{alice, 2, true, true}, // a strike
		{alice, 1, false, true},
	} {
		for range c.ask {
			do(h, ask("/", "", "User", "alice"))
		}
		banned, err := limiter.Unban(t.Context(), "user", c.key)
		spent, err2 := quota.Reset(t.Context(), store, quota.Charge{Rule: "user", Key: c.key, Limit: l})
		if banned != c.banned || spent != c.spent || err != nil || err2 != nil {
			t.Errorf("%d: got %v, %v and %v, %v; want %v and %v", i, banned, err, spent, err2, c.banned, c.spent)
		}
	}
}

// An operator lifts the ban of a customer, whose key is stored as a hash.
func ExampleHashedKey() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "user", Key: weir.Hashed(secret, weir.ByBasicAuthUser()), Limits: []weir.Limit{algorithms.SlidingLog(3, time.Hour)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Hour), Duration: time.Hour},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := limiter.Handler(served)
	attempt := func() {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.SetBasicAuth("Alice", "guess")
		h.ServeHTTP(w, r)
	}
	for range 5 {
		attempt()
	}
	key := weir.HashedKey(secret, "alice")
	for range 2 {
		ban, err := limiter.Banned(context.Background(), "user", key)
		fmt.Println(ban > 0, err)
		limiter.Unban(context.Background(), "user", key)
	}
	// Output:
	// true <nil>
	// false <nil>
}

// TestFolded: what is one key and what is not.
func TestFolded(t *testing.T) {
	value := ""
	key := weir.Folded(func(*http.Request) (string, bool) { return value, value != "-" })
	for _, tt := range []struct{ value, want string }{
		{"ann", "ann"},
		{"Ann", "ann"},
		{" aNN\t\r\n", "ann"},
		{"\u00a0\u3000Ann\u2028", "ann"}, // spaces of Unicode
		{"ÄRGER", "ärger"},
		{"\u212aim", "kim"}, // the sign of Kelvin
		{"\u017fam", "sam"}, // the long s
		{"ΟΔΥΣΣΕΥΣ", "οδυσσευσ"},
		{"οδυσσευς", "οδυσσευσ"}, // the sigma at the end of a word
		{"stra\u1e9ee", "straße"},
		{"İ", "i"},
		{"ı", "ı"},
		{"a b", "a b"},
		{"e\u0301", "e\u0301"}, // é in the other normalization form
		{"\u00e9", "\u00e9"},
		{"\uff21", "\uff41"},   // of full width
		{"a\u200b", "a\u200b"}, // no space
		{"a\xffB", "a\ufffdb"},
		{"", ""},
		{" \t ", ""},
		{"-", ""},
	} {
		value = tt.value
		if got, ok := key(nil); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%q: got %q, %v; want %q", tt.value, got, ok, tt.want)
		}
	}
}

// FuzzFolded: keys that differ only in case and spaces are one key, and folding twice changes
// nothing.
func FuzzFolded(f *testing.F) {
	f.Add("Ann", " ann")
	f.Add("\u212a\u017f", "ks")
	f.Add("\u1e9e", "\u00df")
	fold := func(s string) (string, bool) {
		return weir.Folded(func(*http.Request) (string, bool) { return s, true })(nil)
	}
	f.Fuzz(func(t *testing.T, a, b string) {
		for _, b := range []string{b, strings.ToUpper(a), strings.ToLower(a), strings.ToTitle(a)} {
			ka, _ := fold(a)
			kb, _ := fold(b)
			if strings.EqualFold(strings.TrimSpace(a), strings.TrimSpace(b)) && ka != kb {
				t.Errorf("%q and %q: got %q and %q", a, b, ka, kb)
			}
		}
		k, ok := fold(a)
		if again, _ := fold(k); again != k || ok != (strings.TrimSpace(a) != "") {
			t.Errorf("%q: got %q, %v, and then %q", a, k, ok, again)
		}
	})
}

// TestOneAccount: 24 attempts at one account, whose name is written in other ways each time, are
// charged to one quota.
func TestOneAccount(t *testing.T) {
	form := func(r *http.Request) (string, bool) { user := r.PostFormValue("user"); return user, user != "" }
	for name, send := range map[string]struct {
		key weir.KeyFunc
		as  func(user string) *http.Request
	}{
		"form": {weir.Folded(form), func(user string) *http.Request {
			r := httptest.NewRequest("POST", "/login", strings.NewReader(url.Values{"user": {user}}.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			return r
		}},
		"Basic": {weir.ByBasicAuthUser(), func(user string) *http.Request {
			r := httptest.NewRequest("GET", "/", nil)
			r.SetBasicAuth(user, "guess")
			return r
		}},
		"JSON": {weir.ByJSON("user", 4096), func(user string) *http.Request {
			body, _ := json.Marshal(map[string]string{"user": user})
			return httptest.NewRequest("POST", "/login", bytes.NewReader(body))
		}},
		"header": {weir.Folded(weir.ByHeader("X-User")), func(user string) *http.Request { return weirtest.Get("X-User: " + user) }},
	} {
		limit := weir.Middleware(memstore.New(memstore.Options{}), "user", weir.Hashed(secret, send.key), algorithms.FixedWindow(2, 1000*time.Hour))
		h, attempts, admitted := limit(served), 0, 0
		for _, user := range []string{"kris", "Kris", "KRIS", "kRiS", "\u212aris", "kri\u017f"} {
			for _, spaces := range []string{"%s", " %s", "%s\t", "\u00a0%s\u2003"} {
				attempts++
				if weirtest.Do(h, send.as(fmt.Sprintf(spaces, user))).StatusCode == 200 {
					admitted++
				}
			}
		}
		if attempts != 24 || admitted != 2 {
			t.Errorf("%s: %d of %d attempts were admitted, want 2 of 24", name, admitted, attempts)
		}
	}
}

func ExampleFolded() {
	key := weir.Folded(weir.ByHeader("X-User"))
	for _, user := range []string{"ann", "Ann", " ANN "} {
		weirtest.Show(key, weirtest.Get("X-User: "+user))
	}
	// Output:
	// "ann" true
	// "ann" true
	// "ann" true
}

func TestHashedConcurrently(t *testing.T) {
	key := weir.Hashed(secret, weir.ByHeader("X-Api-Key"))
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
		"weir: ByIPPrefix: ipv4 is 0; want 1 to 32 bits":                                                func() { weir.ByIPPrefix(0, 64) },
		"weir: ByIPPrefix: ipv4 is 33; want 1 to 32 bits":                                               func() { weir.ByIPPrefix(33, 64) },
		"weir: ByIPPrefix: ipv6 is 0; want 1 to 128 bits":                                               func() { weir.ByIPPrefix(32, 0) },
		"weir: ByIPPrefix: ipv6 is 129; want 1 to 128 bits":                                             func() { weir.ByIPPrefix(32, 129) },
		"weir: ByIP: trusted prefix of 10.0.0.1 has an invalid length":                                  func() { weir.ByIP(netip.PrefixFrom(netip.MustParseAddr("10.0.0.1"), 33)) },
		"weir: ByIP: 128.0.0.0/1 trusts every client or many of them, so these could choose their keys": func() { weir.ByIP(netip.MustParsePrefix("128.0.0.0/1")) },
		"weir: ByAddr: ipv6 is 129; want 1 to 128 bits":                                                 func() { weir.ByAddr(nowhere, 32, 129) },
		"weir: ByAddr: find is nil":                                                                     func() { weir.ByAddr(nil, 32, 64) },
		"weir: ByHeader: name is empty":                                                                 func() { weir.ByHeader("") },
		"weir: ByCookie: name is empty":                                                                 func() { weir.ByCookie("") },
		"weir: ByHeader: name is \"X-Key:\"; want letters, digits and any of !#$%&'*+-.^_`|~":           func() { weir.ByHeader("X-Key:") },
		"weir: ByCookie: name is \"a b\"; want letters, digits and any of !#$%&'*+-.^_`|~":              func() { weir.ByCookie("a b") },
		"weir: Handler: next is nil": func() {
			weir.Middleware(memstore.New(memstore.Options{}), "r", weir.ByIP(), algorithms.GCRA(1, time.Minute))(nil)
		},
		"weir: ByPathValue: name is empty":                                         func() { weir.ByPathValue("") },
		"weir: ByContext: key is nil":                                              func() { weir.ByContext(nil) },
		"weir: Join: keys is empty":                                                func() { weir.Join() },
		"weir: Join: key 1 is nil":                                                 func() { weir.Join(never, nil) },
		"weir: FirstOf: keys is empty":                                             func() { weir.FirstOf() },
		"weir: FirstOf: key 0 is nil":                                              func() { weir.FirstOf(nil, never) },
		"weir: Hashed: key is nil":                                                 func() { weir.Hashed(secret, noKey) },
		"weir: Hashed: secret has 0 bytes; want at least 16, chosen at random":     func() { weir.Hashed(nil, never) },
		"weir: Hashed: secret has 15 bytes; want at least 16, chosen at random":    func() { weir.Hashed(secret[:15], never) },
		"weir: Hashed: secret has only zero bytes; want bytes chosen at random":    func() { weir.Hashed(make([]byte, 16), never) },
		"weir: HashedKey: secret has 15 bytes; want at least 16, chosen at random": func() { weir.HashedKey(secret[:15], "alice") },
		"weir: Folded: key is nil":                                                 func() { weir.Folded(noKey) },
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
		{"ByIPPrefix, IPv4", weir.ByIPPrefix(24, 64), weirtest.From("192.0.2.1:4"), 1},
		{"ByHeader", weir.ByHeader("x-api-key"), weirtest.Get("X-Api-Key: k1"), 0},
		{"ByMethod", weir.ByMethod(), weirtest.Get(), 0},
		{"ByUrgency", weir.ByUrgency(), weirtest.Get(), 0},
		{"Join", weir.Join(ip, weir.ByMethod(), weir.ByHeader("X-Api-Key")), weirtest.Get("X-Api-Key: " + strings.Repeat("k", 60)), 1},
		{"FirstOf", weir.FirstOf(never, ip), weirtest.Get(), 1},
		{"Hashed", weir.Hashed(secret, ip), weirtest.Get(), 1},
		{"Folded", weir.Folded(weir.ByHeader("X-User")), weirtest.Get("X-User: ann@example.com"), 0},
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
	key := weir.Hashed([]byte("from your configuration"), weir.ByHeader("X-API-Key"))
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
	key := weir.ByContext(userKey{})
	r := httptest.NewRequest("GET", "/", nil)
	for _, ctx := range []context.Context{r.Context(), context.WithValue(r.Context(), userKey{}, "alice")} {
		user, ok := key(r.WithContext(ctx))
		fmt.Printf("%q %v\n", user, ok)
	}
	// Output:
	// "" false
	// "alice" true
}

// All paths of a route share a quota. With weir.Join(weir.ByIP(), weir.ByRoute()) each client has
// one for each route.
func ExampleByRoute() {
	key := weir.ByRoute()
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
	perSessionAndUser := weir.Join(weir.ByCookie("session"), weir.ByPathValue("user"))
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

func TestList(t *testing.T) {
	for _, tt := range []struct {
		entries, in, out string
	}{
		{"alice bob", "alice bob", "ali alicea ALICE 192.0.2.1"},
		{"tenant-a/*", "tenant-a/ tenant-a/x", "tenant-a tenant-ab tenant-b/x"},
		{"a* b*", "a ab b bc", "c ca"},
		{"192.0.2.7", "192.0.2.7 ::ffff:192.0.2.7", "192.0.2.8 192.0.2.70"},
		{"10.0.0.0/8", "10.0.0.0 10.255.255.255 10.1.0.0/16", "11.0.0.0 9.255.255.255 10.0.0.0/7 ::a00:1"},
		{"10.1.2.3/8", "10.9.9.9", "11.1.2.3"}, // bits after the length are ignored
		{"2001:db8::/32", "2001:db8::1 2001:db8:1::/64 2001:db8::/32", "2001:db9::1 2001:db8::/31"},
		{"2001:db8::/64", "2001:db8::1 2001:DB8:0::1 2001:db8::/64", "2001:db8:0:1::/64"},
		{"2001:db8::1", "2001:db8::1 2001:db8::1/128", "2001:db8::2 2001:db8::2/128 2001:db8::/127 2001:db8::/64"},
		{"2001:db8::/96", "2001:db8::1 2001:db8::1/128 2001:db8::/96", "2001:db8::1:0:0/96 2001:db8::/64"},
		{"::ffff:10.0.0.0/104", "10.0.0.0 10.255.255.255", "11.0.0.0 9.255.255.255"},
		{"::ffff:192.0.2.7", "192.0.2.7", "192.0.2.8"},
		{"1.2.3 1.2.3.4.5 a:b 12:30 v1.2.3.4", "1.2.3 1.2.3.4.5 a:b 12:30 v1.2.3.4", "1.2.3.4"}, // no addresses
		{"0.0.0.0/0", "1.2.3.4", "::1 alice"},
		{"::/0", "::1 2001:db8::/64", "1.2.3.4 alice"},
		{"10.0.0.0/8 alice 2001:db8::/32", "10.1.1.1 alice 2001:db8::5", "bob"},
		{"", "", "alice 10.0.0.1 ::1"},
	} {
		l, err := weir.KeyList(strings.Fields(tt.entries)...)
		if err != nil {
			t.Fatalf("%s: %v", tt.entries, err)
		}
		for _, key := range strings.Fields(tt.in) {
			if !l(key) {
				t.Errorf("[%s] does not have %q", tt.entries, key)
			}
		}
		for _, key := range append(strings.Fields(tt.out), "") {
			if l(key) {
				t.Errorf("[%s] has %q", tt.entries, key)
			}
		}
	}
	l, err := weir.KeyList("192.0.2.0/24", "2001:db8::/32", "alice")
	if err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"192.0.2.7", "198.51.100.7", "2001:db8:1:2::/64", "bob"} {
		if n := testing.AllocsPerRun(100, func() { l(key) }); n > 0 {
			t.Errorf("%s: Has makes %v allocations, want 0", key, n)
		}
	}
}

// TestListOfKeys: a list can name the keys of each key function of addresses, whatever the
// sizes of its networks are.
func TestListOfKeys(t *testing.T) {
	client := weir.ClientAddr()
	for name, key := range map[string]weir.KeyFunc{
		"ByIP":           weir.ByIP(),
		"ByForwarded":    weir.ByForwarded(),
		"ByIPPrefix 128": weir.ByIPPrefix(32, 128),
		"ByIPPrefix 96":  weir.ByIPPrefix(24, 96),
		"ByIPPrefix 48":  weir.ByIPPrefix(8, 48),
		"ByAddr 128":     weir.ByAddr(client, 32, 128),
		"ByAddr 65":      weir.ByAddr(client, 1, 65),
	} {
		for _, addr := range []string{"192.0.2.7", "2001:db8::7"} {
			entry, _ := key(weirtest.From(netip.AddrPortFrom(netip.MustParseAddr(addr), 4).String()))
			other, _ := key(weirtest.From("[fe80::1]:4"))
			l, err := weir.KeyList(entry)
			if err != nil || !l(entry) || l(other) {
				t.Errorf("%s: a list of %s: got %v, want it to have %[2]s and not %s", name, entry, err, other)
			}
		}
	}
}

// TestAddrListNil: a list without a function is an error, instead of a panic with each request.
func TestAddrListNil(t *testing.T) {
	if _, err := weir.AddrList(nil, "192.0.2.7"); err == nil || err.Error() != "weir: AddrList: find is nil" {
		t.Errorf("got %v", err)
	}
}

// TestListMistakes: an entry that would match every key or none is an error. Most of the
// texts say what to list instead.
func TestListMistakes(t *testing.T) {
	for _, tt := range []struct{ entry, keys, addrs string }{ // parts of the errors of KeyList and AddrList; "" means no error
		{"", "none", "neither"},
		{"*", "every key", "neither"},
		{"alice", "", "neither"},
		{"192.0.2.*", "", "neither"},
		{"10.0.0.0/33", "at most 32", "at most 32"},
		{"10.0.0.0/x", "at most 32", "at most 32"},
		{"10.0.0.0/255.0.0.0", "at most 32", "at most 32"},
		{"2001:db8::/129", "128 for IPv6", "128 for IPv6"},
		{"fe80::1%eth0/64", "list fe80::/64", "list fe80::/64"},
		{"fe80::1%eth0", "list fe80::1", "list fe80::1"},
		{"192.0.2.07", "list 192.0.2.7", "list 192.0.2.7"},
		{"010.0.0.0/8", "list 10.0.0.0/8", "list 10.0.0.0/8"},
		{"192.0.2.7:443", "list 192.0.2.7", "list 192.0.2.7"},
		{"[2001:db8::1]:443", "list 2001:db8::1", "list 2001:db8::1"},
		{"[2001:db8::1]", "list 2001:db8::1", "list 2001:db8::1"},
		{"192.0.2.7 ", "list 192.0.2.7", "list 192.0.2.7"},
		{" 10.0.0.0/8", "list 10.0.0.0/8", "list 10.0.0.0/8"},
		{"10.0.0.0 /8", "list 10.0.0.0/8", "list 10.0.0.0/8"},
		{"alice ", `list "alice"`, "neither"},
		{"2001:db8::1", "", ""},
		{"2001:db8::/65", "", ""},
		{"2001:db8::/64", "", ""},
		{"::ffff:10.0.0.0/90", "list 0.0.0.0/0", "list 0.0.0.0/0"},
		{"64:ff9b::c000:201", "their IPv4 addresses", "their IPv4 addresses"},
		{"64:ff9b::/96", "their IPv4 addresses", "their IPv4 addresses"},
		{"0.0.0.0/0", "", ""},
		{"::/0", "", ""},
	} {
		_, err := weir.KeyList("alice", tt.entry)
		_, errAddrs := weir.AddrList(weir.ClientAddr(), "10.0.0.0/8", tt.entry)
		for what, got := range map[string]struct {
			err  error
			want string
		}{"KeyList": {err, tt.keys}, "AddrList": {errAddrs, tt.addrs}} {
			if (got.err != nil) != (got.want != "") || got.err != nil && !strings.Contains(got.err.Error(), got.want) {
				t.Errorf("%s of %q: got %v, want an error with %q", what, tt.entry, got.err, got.want)
			}
		}
	}
}

func TestAddrList(t *testing.T) {
	for _, tt := range []struct{ entries, in, out string }{
		{"192.0.2.7", "192.0.2.7 ::ffff:192.0.2.7 64:ff9b::192.0.2.7", "192.0.2.8"},
		{"10.0.0.0/8", "10.0.0.0 10.255.255.255", "11.0.0.0 ::a00:1 64:ff9b::10.0.0.1"},
		{"::ffff:10.0.0.0/104", "10.1.2.3", "11.1.2.3"},
		{"2001:db8::1", "2001:db8::1 2001:db8::1%eth0", "2001:db8::2"},
		{"2001:db8::/120 2001:db8:1::/48", "2001:db8::ff 2001:db8:1:2::3", "2001:db8::100"},
		{"", "", "192.0.2.7 ::1"},
	} {
		var client netip.Addr
		l, err := weir.AddrList(func(*http.Request) (netip.Addr, bool) { return client, true }, strings.Fields(tt.entries)...)
		if err != nil {
			t.Fatalf("%s: %v", tt.entries, err)
		}
		for i, addrs := range []string{tt.out, tt.in} {
			for _, addr := range strings.Fields(addrs) {
				client = netip.MustParseAddr(addr)
				if got := l(weirtest.Get()); got != (i == 1) {
					t.Errorf("[%s] has %s: got %v, want %v", tt.entries, addr, got, i == 1)
				}
			}
		}
		unix, _ := weir.AddrList(weir.ClientAddr(), strings.Fields(tt.entries)...)
		if client = (netip.Addr{}); l(weirtest.Get()) || unix(weirtest.From("@")) {
			t.Errorf("[%s] has the zero Addr", tt.entries)
		}
	}
}

// TestListsOfAddresses: an AddrList is compared with the address of the client, also
// behind proxies, whatever the key of the rule is.
func TestListsOfAddresses(t *testing.T) {
	client := weir.ClientAddr(proxy)
	friends, err := weir.AddrList(client, "192.0.2.1", "2001:db8::1")
	if err != nil {
		t.Fatal(err)
	}
	pests, err := weir.AddrList(client, "192.0.2.0/24", "2001:db8::/120")
	if err != nil {
		t.Fatal(err)
	}
	for name, key := range map[string]weir.KeyFunc{
		"ip":        weir.ByIP(proxy),
		"ip,method": weir.Join(weir.ByIP(proxy), weir.ByMethod()),
		"first-of":  weir.FirstOf(weir.ByHeader("X-Api-Key"), weir.ByIP(proxy)),
		"global":    weir.Global(),
		"route":     weir.ByRoute(),
		"none":      never,
	} {
		asked := 0
		h := weirtest.New(t, weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { asked++; return errors.New("asked") }), weir.Options{
			Rules: []weir.Rule{{
				Name: "api", Key: key, Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
				Policy: weir.When(friends, weir.Allowed(), weir.When(pests, weir.Denied())),
			}},
			OnError: weir.FailClosed,
		}).Handler(served)
		other := 503 // the status if the store is requested, because it always fails
		if name == "none" {
			other = 200
		}
		for _, tt := range []struct {
			addr string
			want int
		}{
			{"192.0.2.1", 200}, {"192.0.2.2", 429}, {"198.51.100.1", other},
			{"2001:db8::1", 200}, {"2001:db8::2", 429}, {"2001:db8::1:2", other}, // all in one /64
		} {
			if got := weirtest.Do(h, weirtest.Ask("/", "10.0.0.1:4", "X-Forwarded-For", tt.addr)).StatusCode; got != tt.want {
				t.Errorf("%s: %s: got %d, want %d", name, tt.addr, got, tt.want)
			}
			// A key that looks like a listed address matches no entry.
			if got := weirtest.Do(h, weirtest.Ask("/", "10.0.0.1:4", "X-Forwarded-For", tt.addr, "X-Api-Key", "192.0.2.1")).StatusCode; got != tt.want {
				t.Errorf("%s: %s with the key 192.0.2.1: got %d, want %d", name, tt.addr, got, tt.want)
			}
		}
	}
	// The list also refuses preflight requests.
	h := weirtest.New(t, weirtest.StoreFunc(nil), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, Policy: weir.When(pests, weir.Denied()),
	}}}).Handler(served)
	preflight := weirtest.Ask("/", "192.0.2.2:4", "Origin", "https://example.com", "Access-Control-Request-Method", "PUT")
	preflight.Method = "OPTIONS"
	if got := weirtest.Do(h, preflight).StatusCode; got != 429 {
		t.Errorf("a preflight: got %d, want 429", got)
	}
	// A rule in shadow refuses no request.
	h = weirtest.New(t, weirtest.StoreFunc(nil), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: never, Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, Enforce: weir.Percent(0), Policy: weir.When(pests, weir.Denied()),
	}}}).Handler(served)
	if got := weirtest.Do(h, weirtest.Ask("/", "192.0.2.2:4")).StatusCode; got != 200 {
		t.Errorf("in shadow: got %d, want 200", got)
	}
}

func ExampleAddrList() {
	proxies := netip.MustParsePrefix("10.0.0.0/8")
	pests, err := weir.AddrList(weir.ClientAddr(proxies), "203.0.113.0/24", "2001:db8::1")
	if err != nil {
		fmt.Println(err)
		return
	}
	rule := weir.Rule{
		Name: "api", Key: weir.Join(weir.ByIP(proxies), weir.ByMethod()), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
		Policy: weir.When(pests, weir.Denied()),
	}
	for _, client := range []string{"203.0.113.9", "192.0.2.1"} {
		fmt.Println(client, rule.Policy(weirtest.From("10.0.0.1:443", client)).Is(weir.Denied()))
	}
	_, err = weir.AddrList(weir.ClientAddr(proxies), "203.0.113.9:443")
	fmt.Println(err)
	// Output:
	// 203.0.113.9 true
	// 192.0.2.1 false
	// weir: list: entry "203.0.113.9:443" has a port, brackets, a zone, spaces or leading zeros: list 203.0.113.9
}

// TestLists: neither Allowed nor Denied calls the store.
func TestLists(t *testing.T) {
	admins, err := weir.KeyList("192.0.2.0/24")
	if err != nil {
		t.Fatal(err)
	}
	pests, err := weir.KeyList("192.0.2.66", "203.0.113.0/24")
	if err != nil {
		t.Fatal(err)
	}
	asked := errors.New("asked")
	var denied string
	h := weirtest.New(t, weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return asked }), weir.Options{
		Rules: []weir.Rule{
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, ForKey: func(string) weir.Policy { return weir.Allowed() }},
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)}, ForKey: weir.When(admins, weir.Allowed(), weir.When(pests, weir.Denied()))},
		},
		OnError: weir.FailClosed,
		Observe: func(e weir.Event) {
			if denied = ""; e.Refusal.Reason == weir.ReasonDeny {
				denied = e.Refusal.Rule
			}
		},
	}).Handler(served)
	for _, tt := range []struct {
		remote string
		status int
		denied string
	}{
		{"192.0.2.1:4", 200, ""},
		{"192.0.2.66:4", 200, ""},
		{"203.0.113.9:4", 429, "api"},
		{"198.51.100.1:4", 503, ""},
	} {
		denied = ""
		res := weirtest.Do(h, weirtest.Ask("/", tt.remote, "Accept", "application/json"))
		body, _ := io.ReadAll(res.Body)
		if res.StatusCode != tt.status || denied != tt.denied {
			t.Errorf("%s: got %d, denied by %q, want %d by %q", tt.remote, res.StatusCode, denied, tt.status, tt.denied)
		}
		if tt.status == 429 && !strings.Contains(string(body), "abnormal-usage-detected") {
			t.Errorf("%s: got %s, want the type abnormal-usage-detected", tt.remote, body)
		}
	}
}

func ExampleKeyList() {
	offices, err := weir.KeyList("192.0.2.0/24", "2001:db8::/32", "partner/*")
	if err != nil {
		fmt.Println(err)
		return
	}
	rule := weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}, ForKey: weir.When(offices, weir.Allowed())}
	fmt.Println(rule.ForKey("192.0.2.9").Is(weir.Allowed()), rule.ForKey("198.51.100.9").Is(weir.Allowed()))
	// Output: true false
}

// TestByPathValueEscaped: a path value has the same key however the client escapes it, also if the
// router sets values as they are in RawPath, as chi does.
func TestByPathValueEscaped(t *testing.T) {
	var s see
	limit := s.by(weir.ByPathValue("id"))
	mux := http.NewServeMux()
	mux.Handle("/users/{id}", limit(http.HandlerFunc(handle)))
	raw := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.SetPathValue("id", strings.TrimPrefix(r.URL.EscapedPath(), "/users/"))
		limit(http.HandlerFunc(handle)).ServeHTTP(w, r)
	})
	for _, tt := range []struct{ path, want string }{
		{"/users/alice", "alice"},
		{"/users/alic%65", "alice"},
		{"/users/%61%6C%69%63%65", "alice"},
		{"/users/a%2Fb", "a/b"},
		{"/users/a%2fb", "a/b"},
		{"/users/100%25", "100%"},
		{"/users/%25%25", "%%"},
		{"/users/%256", "%6"},
		{"/users/a%25zz", "a%zz"},
		{"/users/a%2565", "ae"}, // whether the value is a%65 or a%2565, the key has no escape
		{"/users/a%2565%2F", "ae/"},
		{"/users/a%252565%21", "ae!"},
	} {
		for name, h := range map[string]http.Handler{"mux": mux, "raw values": raw} {
			s.keys = nil
			r := httptest.NewRequest("GET", "/", nil)
			r.URL.RawPath = tt.path
			var err error
			if r.URL.Path, err = url.PathUnescape(tt.path); err != nil {
				t.Fatal(err)
			}
			h.ServeHTTP(httptest.NewRecorder(), r)
			if got := strings.Join(s.keys, " "); got != tt.want {
				t.Errorf("%s: %s: got %q, want %q", name, tt.path, got, tt.want)
			}
		}
	}
}

// see records the key of each request.
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
		want := strings.TrimSpace("unmatched " + tt.want) // around the mux the route is not known yet
		if got := strings.Join(s.keys, " "); got != want {
			t.Errorf("%s %s: got %s, want %s", tt.method, tt.url, got, want)
		}
	}
}

func TestByPathValue(t *testing.T) {
	var s see
	limit := s.by(weir.ByPathValue("id"))
	mux := http.NewServeMux()
	mux.Handle("/users/{id}", limit(http.HandlerFunc(handle)))
	limit(mux).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/users/7", nil))
	if got := strings.Join(s.keys, " "); got != "- 7" {
		t.Errorf("got %s, want no key before routing and 7 after it", got)
	}
}

// TestByRouteMissing: ByRoute warns once if none of its first 200 requests has a route, as around a
// mux of net/http, also if it is joined with another key. It does not warn if one request has one.
func TestByRouteMissing(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	request, routed := httptest.NewRequest("GET", "/users/ann", nil), httptest.NewRequest("GET", "/users/ann", nil)
	routed.Pattern = "GET /users/{id}"
	for _, tt := range []struct {
		key      weir.KeyFunc
		routed   int // the number of the request that has a route
		requests int
		want     int // warnings
	}{
		{weir.ByRoute(), 0, 199, 0},
		{weir.ByRoute(), 0, 200, 1},
		{weir.Join(weir.ByIP(), weir.ByRoute()), 0, 1000, 1},
		{weir.ByRoute(), 1, 1000, 0},
		{weir.ByRoute(), 200, 1000, 0},
		{weir.ByRoute(), 201, 1000, 1},
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		for i := 1; i <= tt.requests; i++ {
			r := request
			if i == tt.routed {
				r = routed
			}
			if _, ok := tt.key(r); !ok {
				t.Fatal("got no key")
			}
		}
		if n := strings.Count(log.String(), "route missing in each of the first 200 requests"); n != tt.want {
			t.Errorf("%d requests, of which number %d has a route: got %d warnings, want %d:\n%s", tt.requests, tt.routed, n, tt.want, &log)
		}
	}
}

// TestByJSONUnreadable: ByJSON warns once if it can read none of the first 200 bodies, such as
// those of forms. It does not warn if it can read one of them.
func TestByJSONUnreadable(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	for _, tt := range []struct {
		read     int // the number of the request with a readable body
		other    string
		requests int
		want     int // warnings
	}{
		{0, "user=ann", 199, 0},
		{0, "user=ann", 1000, 1},
		{0, `{"user":"` + strings.Repeat("ann", 100) + `"}`, 1000, 1},
		{200, "user=ann", 1000, 0},
		{1, "user=ann", 1000, 0},
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		key := weir.ByJSON("user", 100)
		for i := 1; i <= tt.requests; i++ {
			body := tt.other
			if i == tt.read {
				body = `{"user":"ann"}`
			}
			if _, ok := key(httptest.NewRequest("POST", "/", strings.NewReader(body))); !ok {
				t.Fatal("got no key")
			}
		}
		if n := strings.Count(log.String(), "body unreadable in each of the first 200 requests"); n != tt.want {
			t.Errorf("%d bodies %.20q, number %d readable: got %d warnings, want %d:\n%s", tt.requests, tt.other, tt.read, n, tt.want, &log)
		}
	}
}

// TestByHeaderOfClients: ByHeader warns, by name, of the fields in which proxies list addresses,
// because a client can send them too.
func TestByHeaderOfClients(t *testing.T) {
	defer slog.SetDefault(slog.Default())
	for name, want := range map[string]string{
		"x-forwarded-for": "field=X-Forwarded-For", "Forwarded": "field=Forwarded", "X-Api-Key": "", "Host": "",
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		if weir.ByHeader(name); !strings.Contains(log.String(), want) || (want == "") != (log.Len() == 0) {
			t.Errorf("ByHeader(%q): logged %q, want %q", name, &log, want)
		}
		log.Reset()
		sparse.Reloads.Add(1)
		weir.ByHeader(name)
		if sparse.Reloads.Add(-1); log.Len() > 0 {
			t.Errorf("ByHeader(%q) during a reload: logged %q", name, &log)
		}
	}
}
