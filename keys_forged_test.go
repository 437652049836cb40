package weir_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// forwarded is a request from peer, with those fields of Forwarded.
func forwarded(peer string, fields ...string) *http.Request {
	r := request(peer, "203.0.113.99") // which is not for ByForwarded
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
		{"10.0.0.1:4", []string{"for=192.0.2.1:47011"}, "192.0.2.1"}, // which should be quoted
		{"10.0.0.1:4", []string{`for="[2001:db8:cafe::17]:4711"`}, "2001:db8:cafe::/64"},
		{"10.0.0.1:4", []string{`for="[2001:db8:cafe::17]"`}, "2001:db8:cafe::/64"},
		{"10.0.0.1:4", []string{`for="[2001:DB8:CAFE::17]:_p"`}, "2001:db8:cafe::/64"},
		{"10.0.0.1:4", []string{`for="[::ffff:192.0.2.1]"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="[64:ff9b::c000:201]"`}, "192.0.2.1"},
		{"[::ffff:10.0.0.1]:4", []string{"for=192.0.2.1"}, "192.0.2.1"},
		{"@", []string{"for=192.0.2.1"}, "unknown"},

		// From the right, over all fields.
		{"10.0.0.1:4", []string{"for=198.51.100.7, for=192.0.2.1"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=198.51.100.7,for=192.0.2.1,for=10.0.0.2"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=198.51.100.7, for=192.0.2.1", "for=10.0.0.3, for=10.0.0.2"}, "192.0.2.1"},
		{"10.0.0.1:4", []string{"for=10.0.0.4", "for=10.0.0.3, for=10.0.0.2"}, "10.0.0.4"}, // all are trusted

		// What the client wrote can't change what stands right of it.
		{"10.0.0.1:4", []string{`for=", for=192.0.2.1`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="\", for=192.0.2.1`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for="\`, `for="192.0.2.1";by="a, for=198.51.100.7"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for=198.51.100.7, for=192.0.2.1;by="\", for=198.51.100.8"`}, "192.0.2.1"},
		{"10.0.0.1:4", []string{`for=198.51.100.7, for=192.0.2.1;by="x\\"`}, "192.0.2.1"},

		// What is no address ends the walk at the hop that sent it.
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
	// Neither believes the field of the other.
	if got, _ := weir.ByIP(proxy)(forwarded("10.0.0.1:4", "for=192.0.2.1")); got != "203.0.113.99" {
		t.Errorf("ByIP of a request with both fields: got %q, want that of X-Forwarded-For", got)
	}
	if got, ok := weir.ClientAddr(proxy)(forwarded("10.0.0.1:4", "for=192.0.2.1")); got.String() != "203.0.113.99" || !ok {
		t.Errorf("ClientAddr of a request with both fields: got %v, want that of X-Forwarded-For", got)
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

// BenchmarkByForwarded is a megabyte at its worst.
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
		if got, ok := behind(forged); !ok || !canonical(got) {
			t.Errorf("%q called with %q, %q: got %q, %v; want an address, a /64 or unknown", peer, field1, field2, got, ok)
		}
		// A trusted hop that appends its caller: nothing left of that counts.
		if addr, err := netip.ParseAddr(want); err == nil && !proxy.Contains(addr) {
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
		}
	})
}

// Behind NAT64 each client of IPv4 has an IPv6 address, in one /64.
func TestNAT64(t *testing.T) {
	for _, tt := range []struct{ peer, want string }{
		{"[64:ff9b::c000:201]:4", "192.0.2.1"},
		{"[64:ff9b::192.0.2.2]:4", "192.0.2.2"},
		{"[64:ff9b::c000:201%eth0]:4", "192.0.2.1"},
		{"[64:ff9b:1::c000:201]:4", "64:ff9b:1::/64"}, // for local use, RFC 8215
		{"[64:ff9b::1:c000:201]:4", "64:ff9b::/64"},
		{"[64:ff9b::10.0.0.1]:4", "64:ff9b::/64"}, // no NAT64 may do that
		{"[64:ff9b::127.0.0.1]:4", "64:ff9b::/64"},
		{"[64:ff9b::100.64.0.1]:4", "64:ff9b::/64"},
		{"[64:ff9b::]:4", "64:ff9b::/64"},
	} {
		if got, _ := weir.ByIP()(request(tt.peer)); got != tt.want {
			t.Errorf("%s: got %q, want %q", tt.peer, got, tt.want)
		}
		addr := netip.MustParseAddrPort(tt.peer).Addr()
		find := func(*http.Request) (netip.Addr, bool) { return addr, true }
		if got, _ := weir.ByAddr(find, 32, 64)(get()); got != tt.want {
			t.Errorf("ByAddr of %s: got %q, want %q", addr, got, tt.want)
		}
	}
	if got, _ := weir.ByIP(proxy)(request("10.0.0.1:4", "64:ff9b::c000:201")); got != "192.0.2.1" {
		t.Errorf("through a proxy: got %q, want 192.0.2.1", got)
	}
	// A proxy is known by the address it has here.
	if got, _ := weir.ByIP(proxy)(request("[64:ff9b::a00:1]:4", "192.0.2.1")); got != "64:ff9b::/64" {
		t.Errorf("from 10.0.0.1 behind NAT64: got %q, want that nothing it says is believed", got)
	}
}

func TestByHeaderHost(t *testing.T) {
	key := weir.ByHeader("Host")
	for _, tt := range []struct{ host, want string }{
		{"example.com", "example.com"},
		{"EXAMPLE.com", "example.com"},
		{"example.com:80", "example.com"},
		{"example.com:8443", "example.com"}, // a client that varies it gets no fresh quota
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
		if got, ok := key(&http.Request{Host: tt.host, URL: get().URL}); got != tt.want || ok != (tt.want != "") {
			t.Errorf("%q: got %q, %v; want %q", tt.host, got, ok, tt.want)
		}
	}
	r := &http.Request{Host: "example.com:8443", URL: get().URL}
	if n := testing.AllocsPerRun(100, func() { key(r) }); n > 0 {
		t.Errorf("a host and its port: %v allocations, want 0", n)
	}
}

// A path that is escaped in another way is the same path.
func TestByPathValueEscaped(t *testing.T) {
	var s see
	limit := s.by(weir.ByPathValue("id"))
	mux := http.NewServeMux()
	mux.Handle("/users/{id}", limit(http.HandlerFunc(handle)))
	r := chi.NewRouter()
	r.With(limit).Get("/users/{id}", handle)
	r.Route("/teams/{id}", func(r chi.Router) { r.With(limit).Get("/*", handle) })
	inner := http.NewServeMux()
	inner.Handle("/mux/{id}", limit(http.HandlerFunc(handle)))
	r.Mount("/mux", inner)
	strip := chi.NewRouter()
	strip.Use(middleware.StripSlashes)
	strip.With(limit).Get("/users/{id}", handle)
	for _, tt := range []struct {
		name string
		h    http.Handler
		path string
		want string
	}{
		{"mux", mux, "/users/alice", "alice"},
		{"mux", mux, "/users/alic%65", "alice"},
		{"mux", mux, "/users/a%2Fb", "a/b"},
		{"mux", mux, "/users/a%2565%2F", "a%65/"}, // decoded once
		{"chi", r, "/users/alice", "alice"},
		{"chi", r, "/users/alic%65", "alice"},
		{"chi", r, "/users/%61%6C%69%63%65", "alice"},
		{"chi", r, "/users/a%2Fb", "a/b"},
		{"chi", r, "/users/a%2fb", "a/b"},
		{"chi", r, "/users/100%25", "100%"},
		{"chi", r, "/users/a%2565", "a%65"},
		{"chi", r, "/users/a%2565%21", "a%65!"},
		{"chi, mounted", r, "/teams/alic%65/x", "alice"},
		{"mux in chi", r, "/mux/alic%65", "alice"},
		{"mux in chi", r, "/mux/a%2565%2F", "a%65/"},
		{"StripSlashes", strip, "/users/alic%65", "alice"},
		{"StripSlashes", strip, "/users/alic%65/", "alice"},
		{"StripSlashes", strip, "/users/a%2565%21/", "a%65!"},
	} {
		s.keys = nil
		tt.h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", tt.path, nil))
		if got := strings.Join(s.keys, " "); got != tt.want {
			t.Errorf("%s: %s: got %q, want %q", tt.name, tt.path, got, tt.want)
		}
	}
}

// A HEAD is a request to the route that answers it, also in front of GetHead.
func TestByRouteHead(t *testing.T) {
	var s see
	limit := s.by(weir.ByRoute())
	r := chi.NewRouter()
	r.Use(limit, middleware.GetHead)
	r.With(limit).Get("/users/{id}", handle)
	r.Route("/api", func(r chi.Router) {
		r.Use(limit)
		r.With(limit).Get("/items/{id}", handle)
	})
	r.Head("/own/{id}", handle)
	r.Get("/own/*", handle)
	for _, tt := range []struct{ path, want string }{
		{"/users/7", "/users/{id} /users/{id}"},
		{"/api/items/7", "/api/items/{id} /api/items/{id} /api/items/{id}"},
		{"/own/7", "/own/{id}"},
		{"/none", "unmatched"},
	} {
		s.keys = nil
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("HEAD", tt.path, nil))
		if got := strings.Join(s.keys, " "); got != tt.want {
			t.Errorf("HEAD %s: got %s, want %s", tt.path, got, tt.want)
		}
	}
}

type misnamed struct {
	weir.Algorithm
	name string
}

func (n misnamed) Name() string { return n.name }

func TestAlgorithmNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"mine": true, "my algorithm": true, "": false, "two\nlines": false, "tab\t": false, "größer": false, "\x7f": false,
	} {
		limit := algorithms.GCRA(9, time.Second)
		limit.Algorithm = misnamed{limit.Algorithm, name}
		tx := weir.Transaction{Charges: []weir.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
		_, err := weir.New(storeFunc(nil), weir.Options{Rules: []weir.Rule{{Name: "r", Key: weir.Global(), Limits: []weir.Limit{limit}}}})
		for what, err := range map[string]error{"Limit.Validate": limit.Validate(), "Transaction.Validate": tx.Validate(), "New": err} {
			if (err == nil) != ok {
				t.Errorf("%s of an algorithm named %q: got %v, want it valid: %v", what, name, err, ok)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
				t.Errorf("%s of an algorithm named %q: got %v, want an error that names it", what, name, err)
			}
		}
	}
}

// What a client writes into Accept costs a refusal next to nothing: so much is read
// of it, and no more.
func TestAcceptIsBounded(t *testing.T) {
	const html, text = "text/html; charset=utf-8", "text/plain; charset=utf-8"
	mega := strings.Repeat(",", 1<<20)
	for _, tt := range []struct {
		name   string
		accept []string
		want   string
	}{
		{"HTML", []string{"text/html"}, html},
		{"HTML after some", []string{strings.Repeat("image/png,", 100) + "text/html"}, html},
		{"HTML before a megabyte", []string{"text/html," + mega}, html},
		{"HTML after a megabyte", []string{mega + "text/html"}, text},
		{"HTML in a line after it", []string{mega, "text/html"}, text},
		{"HTML after many lines", append(strings.Split(mega, ","), "text/html"), text},
		{"HTML cut", []string{strings.Repeat(" ", 2040) + "text/html,*/*"}, text},
		{"parameters", []string{"text/html" + strings.Repeat(";", 1<<20)}, text},
	} {
		r := get()
		r.Header["Accept"] = tt.accept
		w := httptest.NewRecorder()
		weir.Refuse(w, r)
		if got := w.Header().Get("Content-Type"); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

func BenchmarkRefuseAcceptMegabyte(b *testing.B) {
	r := get()
	r.Header["Accept"] = []string{strings.Repeat(",", 1<<20)}
	for b.Loop() {
		weir.Refuse(httptest.NewRecorder(), r)
	}
}

// The proxies in 10.0.0.0/8 write Forwarded and pass X-Forwarded-For on as it comes.
func ExampleByForwarded() {
	key := weir.ByForwarded(netip.MustParsePrefix("10.0.0.0/8"))
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", `for=198.51.100.7, for="[2001:db8:1:2::3]:4711";proto=https`)
	r.Header.Set("X-Forwarded-For", "203.0.113.9") // written by the client
	show(key, r)
	// Output: "2001:db8:1:2::/64" true
}

// Networks of other sizes.
func ExampleForwardedAddr() {
	key := weir.ByAddr(weir.ForwardedAddr(netip.MustParsePrefix("10.0.0.0/8")), 24, 48)
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "10.0.0.1:443"
	r.Header.Set("Forwarded", "for=192.0.2.1")
	show(key, r)
	// Output: "192.0.2.0/24" true
}
