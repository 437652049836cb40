package keys_test

import (
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/keys"
)

var (
	proxy  = netip.MustParsePrefix("10.0.0.0/8")
	proxy6 = netip.MustParsePrefix("2001:db8:ffff::/48")
	socket = netip.Prefix{}
)

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
		if got, ok := keys.ByForwarded(proxy)(r); got != tt.want || !ok {
			t.Errorf("%q called with %q: got %q, %v; want %q", tt.peer, tt.fields, got, ok, tt.want)
		}
		addr, ok := keys.ForwardedAddr(proxy)(r)
		if want, err := netip.ParseAddr(tt.want); err == nil && addr != want || ok != (tt.want != "unknown") {
			t.Errorf("%q called with %q: got the address %v, %v; want %q", tt.peer, tt.fields, addr, ok, tt.want)
		}
	}
	// ByIP ignores Forwarded, and ByForwarded ignores X-Forwarded-For.
	if got, _ := weir.ByIP(proxy)(forwarded("10.0.0.1:4", "for=192.0.2.1")); got != "203.0.113.99" {
		t.Errorf("ByIP of a request with both fields: got %q, want the address in X-Forwarded-For", got)
	}
	if got, ok := keys.ClientAddr(proxy)(forwarded("10.0.0.1:4", "for=192.0.2.1")); got.String() != "203.0.113.99" || !ok {
		t.Errorf("ClientAddr of a request with both fields: got %v, want the address in X-Forwarded-For", got)
	}
}

func TestByForwardedMegabyte(t *testing.T) {
	fill := func(s string) string { return strings.Repeat(s, 1<<20/len(s)) }
	key := keys.ByForwarded(proxy)
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
			r, key := forwarded("10.0.0.1:4", strings.Repeat(s, 1<<20/len(s))+`"`), keys.ByForwarded(proxy)
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
	bare, behind := keys.ByForwarded(), keys.ByForwarded(proxy, proxy6, socket)
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
		if got, _ := keys.ByAddr(find, 32, 64)(weirtest.Get()); got != tt.want {
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
	key := keys.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", `for=198.51.100.7, for="[2001:db8:1:2::3]:4711";proto=https`)
	r.Header.Set("X-Forwarded-For", "203.0.113.9") // forged by the client
	weirtest.Show(key, r)
	// Output: "2001:db8:1:2::/64" true
}

// ByAddr makes keys of networks of any size.
func ExampleForwardedAddr() {
	key := keys.ByAddr(keys.ForwardedAddr(netip.MustParsePrefix("10.0.0.0/8")), 24, 48)
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
		if got, ok := keys.ByIPPrefix(tt.ipv4, tt.ipv6)(weirtest.From(tt.peer)); got != tt.want || !ok {
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
		if got, ok := keys.ByAddr(find, tt.ipv4, tt.ipv6)(weirtest.Get()); got != tt.want || ok != (tt.want != "") {
			t.Errorf("ByAddr of %q by %d and %d: got %q, %v; want %q", tt.addr, tt.ipv4, tt.ipv6, got, ok, tt.want)
		}
	}
	if got, ok := keys.ByAddr(nowhere, 32, 64)(weirtest.Get()); ok {
		t.Errorf("an address that is not known: got %q", got)
	}
}

func ExampleByAddr() {
	// A gateway sends the address of its client, and no other client can reach the service.
	gateway := func(r *http.Request) (netip.Addr, bool) {
		addr, err := netip.ParseAddr(r.Header.Get("X-Client"))
		return addr, err == nil
	}
	weirtest.Show(keys.ByAddr(gateway, 32, 56), weirtest.Get("X-Client: 2001:db8:1:2ff::1"))
	// Output: "2001:db8:1:200::/56" true
}

func nowhere(*http.Request) (netip.Addr, bool) { return netip.Addr{}, false }

func ExampleByIPPrefix() {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "[2001:db8:1:2ff::1]:1024"
	weirtest.Show(keys.ByIPPrefix(24, 56), r)
	// Output: "2001:db8:1:200::/56" true
}
