package weirchi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"testing"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/weirchi"
)

// TestClientIP: the key is the address that a middleware of chi found, even if that
// address is a proxy that ByIP trusts.
func TestClientIP(t *testing.T) {
	none := func(next http.Handler) http.Handler { return next }
	for _, tt := range []struct {
		name   string
		chi    func(http.Handler) http.Handler
		remote string
		want   string // the key of ClientIP; "" if the rule does not apply
		first  string // the key of FirstOf(ClientIP, ByIP)
	}{
		{"header", middleware.ClientIPFromHeader("X-Real-IP"), "10.0.0.1:4", "10.0.0.9", "0:10.0.0.9"},
		{"XFF", middleware.ClientIPFromXFF("10.0.0.0/8", "192.0.2.0/24"), "10.0.0.1:4", "198.51.100.7", "0:198.51.100.7"},
		{"XFF that found nothing", middleware.ClientIPFromXFFTrustedProxies(9), "10.0.0.1:4", "", "1:192.0.2.1"},
		{"RemoteAddr", middleware.ClientIPFromRemoteAddr, "[2001:db8:1:2::3]:4", "2001:db8:1:2::/64", "0:2001:db8:1:2::/64"},
		{"RemoteAddr, mapped", middleware.ClientIPFromRemoteAddr, "[::ffff:192.0.2.7]:4", "192.0.2.7", "0:192.0.2.7"},
		{"RemoteAddr with a zone", middleware.ClientIPFromRemoteAddr, "[fe80::1%eth0]:4", "fe80::/64", "0:fe80::/64"},
		{"no middleware", none, "10.0.0.1:4", "", "1:192.0.2.1"},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = tt.remote
		r.Header.Set("X-Forwarded-For", "198.51.100.7, 192.0.2.1")
		r.Header.Set("X-Real-Ip", "10.0.0.9")
		key := weirchi.ClientIP()
		firstOf := weir.FirstOf(key, weir.ByIP(netip.MustParsePrefix("10.0.0.0/8")))
		tt.chi(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			if got, ok := key(r); got != tt.want || ok != (tt.want != "") {
				t.Errorf("after %s: got %q, %v; want %q", tt.name, got, ok, tt.want)
			}
			if got, ok := firstOf(r); got != tt.first || !ok {
				t.Errorf("after %s, or else ByIP: got %q, %v; want %q", tt.name, got, ok, tt.first)
			}
		})).ServeHTTP(nil, r)
	}
}

// chi believes X-Forwarded-For of proxies in 10.0.0.0/8. Each address that it finds may send one
// request a minute.
func ExampleClientIP() {
	store := memstore.New(memstore.Options{})
	r := chi.NewRouter()
	r.Use(middleware.ClientIPFromXFF("10.0.0.0/8"))
	r.Use(weir.Middleware(store, "api", weir.FirstOf(weirchi.ClientIP(), weir.ByIP()), algorithms.GCRA(1, time.Minute)))
	r.Get("/", func(w http.ResponseWriter, r *http.Request) {})

	for _, client := range []string{"192.0.2.1", "192.0.2.1", "192.0.2.2"} {
		req, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		req.RemoteAddr = "10.0.0.1:443"
		req.Header.Set("X-Forwarded-For", client)
		r.ServeHTTP(w, req)
		fmt.Println(client, w.Code)
	}
	// Output:
	// 192.0.2.1 200
	// 192.0.2.1 429
	// 192.0.2.2 200
}

// Each IPv4 network of 256 addresses has one key.
func ExampleClientAddr() {
	byNetwork := keys.ByAddr(weirchi.ClientAddr, 24, 48)
	key := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Println(byNetwork(r)) })
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "192.0.2.77:443"
	middleware.ClientIPFromRemoteAddr(key(nil)).ServeHTTP(nil, r)
	// Output: 192.0.2.0/24 true
}
