package weirchi_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/weirchi"
	"github.com/seed83679106/weir/memstore"
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
		key := weirchi.ClientIP(middleware.GetClientIPAddr)
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
	r.Use(weir.Middleware(store, "api", weir.FirstOf(weirchi.ClientIP(middleware.GetClientIPAddr), weir.ByIP()), algorithms.GCRA(1, time.Minute)))
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
	byNetwork := weir.ByAddr(weirchi.ClientAddr(middleware.GetClientIPAddr), 24, 48)
	key := func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { fmt.Println(byNetwork(r)) })
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "192.0.2.77:443"
	middleware.ClientIPFromRemoteAddr(key(nil)).ServeHTTP(nil, r)
	// Output: 192.0.2.0/24 true
}

// TestByPathValueEscaped: a path value has the same key however the client escapes it.
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
		{"mux", mux, "/users/a%2565%2F", "ae/"},
		{"chi", r, "/users/alice", "alice"},
		{"chi", r, "/users/alic%65", "alice"},
		{"chi", r, "/users/%61%6C%69%63%65", "alice"},
		{"chi", r, "/users/a%2Fb", "a/b"},
		{"chi", r, "/users/a%2fb", "a/b"},
		{"chi", r, "/users/100%25", "100%"},
		{"chi", r, "/users/a%2565", "ae"},
		{"chi", r, "/users/a%2565%21", "ae!"},
		{"chi, mounted", r, "/teams/alic%65/x", "alice"},
		{"mux in chi", r, "/mux/alic%65", "alice"},
		{"mux in chi", r, "/mux/a%2565%2F", "ae/"},
		{"StripSlashes", strip, "/users/alic%65", "alice"},
		{"StripSlashes", strip, "/users/alic%65/", "alice"},
		{"StripSlashes", strip, "/users/a%2565%21/", "ae!"},
	} {
		s.keys = nil
		tt.h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", tt.path, nil))
		if got := strings.Join(s.keys, " "); got != tt.want {
			t.Errorf("%s: %s: got %q, want %q", tt.name, tt.path, got, tt.want)
		}
	}
}

// TestByRouteHead: the key of a HEAD request is the route that answers it, even in a
// middleware before chi's GetHead.
func TestByRouteHead(t *testing.T) {
	var s see
	limit := chi.Chain(weirchi.FindRoute, s.by(weir.ByRoute())).Handler
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

// TestByRouteChi: a route of chi has the same key in r.Use, below a mount and in r.With.
func TestByRouteChi(t *testing.T) {
	var s see
	limit := chi.Chain(weirchi.FindRoute, s.by(weir.ByRoute())).Handler
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
	r.Use(middleware.StripSlashes, middleware.GetHead, weirchi.FindRoute, s.by(weir.ByRoute()))
	r.Get("/users/{id}", handle)
	outer := http.NewServeMux() // the pattern of this mux is not the key
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

func TestByPathValue(t *testing.T) {
	var s see
	limit := s.by(weir.ByPathValue("id"))
	r := chi.NewRouter()
	r.Use(limit) // before routing
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

// FuzzByRoute: for any path that chi routes, ByRoute returns the same key in each
// middleware that the request passes.
func FuzzByRoute(f *testing.F) {
	f.Add("GET", "/users/1", "")
	f.Add("POST", "/api/t/items/a/b", "/api/t/items/a%2Fb")
	f.Add("GET", "/api//", "")
	var s see
	limit := chi.Chain(weirchi.FindRoute, s.by(weir.ByRoute())).Handler
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

// TestGlobalAndOwn: under two rules of one limiter, a client that sends more
// requests than all clients may send together leaves room for a stranger. If its limiters
// were inside each other, it would not.
func TestGlobalAndOwn(t *testing.T) {
	all := weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}, Private: true}
	api := weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}}
	for _, tt := range []struct {
		limiters [][]weir.Rule
		stranger int
	}{
		{[][]weir.Rule{{all, api}}, 200},
		{[][]weir.Rule{{all}, {api}}, 429},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			r := chi.NewRouter()
			r.Route("/api", func(r chi.Router) {
				for _, rules := range tt.limiters {
					limiter, err := weir.New(store, weir.Options{Rules: rules})
					if err != nil {
						t.Fatal(err)
					}
					r.Use(limiter.Handler)
				}
				r.Get("/items", handle)
			})
			status := func(client string) int {
				req, w := httptest.NewRequest("GET", "/api/items", nil), httptest.NewRecorder()
				req.RemoteAddr = client
				r.ServeHTTP(w, req)
				return w.Code
			}
			statuses := map[int]int{}
			for range 1100 {
				statuses[status("192.0.2.1:4")]++
			}
			stranger := status("198.51.100.7:4")
			if got := fmt.Sprint(statuses, stranger); got != fmt.Sprint(map[int]int{200: 100, 429: 1000}, tt.stranger) {
				t.Errorf("%d limiters: got %s, want 100 served, and %d for a stranger", len(tt.limiters), got, tt.stranger)
			}
		})
	}
}

// Each client has a quota for each method of each route.
func ExampleFindRoute() {
	r := chi.NewRouter()
	r.Use(weirchi.FindRoute, func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			fmt.Println(weir.Join(weir.ByIP(), weir.ByMethod(), weir.ByRoute())(r))
			next.ServeHTTP(w, r)
		})
	})
	r.Get("/users/{id}", func(http.ResponseWriter, *http.Request) {})
	r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/users/7", nil))
	// Output: 9:192.0.2.1,3:GET,11:/users/{id}, true
}

// TestFindRoutePattern: handlers, and middleware in front of FindRoute, find r.Pattern as they
// would without it.
func TestFindRoutePattern(t *testing.T) {
	for _, tt := range []struct{ path, inside, afterwards string }{
		{"/v1/users/7", "/users/{id}", "/users/{id}"},
		{"/v1/api/items/7", "/api/items/{id}", "/api/items/{id}"},
		{"/v1/api/none", "-", "/api/*"},
		{"/v1/none", "-", "GET /v1/"},
	} {
		limit := weir.Middleware(memstore.New(memstore.Options{}), "api", weir.Global(), algorithms.GCRA(100, time.Minute))
		for name, find := range map[string]func(http.Handler) http.Handler{
			"FindRoute": weirchi.FindRoute, "nothing": func(next http.Handler) http.Handler { return next },
			"FindRoute and a limiter": func(next http.Handler) http.Handler { return weirchi.FindRoute(limit(next)) }, "a limiter": limit,
		} {
			inside, afterwards := "-", "-"
			show := func(_ http.ResponseWriter, r *http.Request) { inside = r.Pattern }
			r := chi.NewRouter()
			r.Use(func(next http.Handler) http.Handler {
				return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					next.ServeHTTP(w, r)
					afterwards = r.Pattern
				})
			}, find)
			r.Get("/users/{id}", show)
			r.Route("/api", func(r chi.Router) {
				r.Use(find)
				r.Get("/items/{id}", show)
			})
			mux := http.NewServeMux()
			mux.Handle("GET /v1/", http.StripPrefix("/v1", r))
			mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", tt.path, nil))
			if inside != tt.inside || afterwards != tt.afterwards {
				t.Errorf("%s behind %s: the handler sees %q, and middleware sees %q afterwards; want %q, %q", tt.path, name, inside, afterwards, tt.inside, tt.afterwards)
			}
		}
	}
	// A router that is not chi's.
	weirchi.FindRoute(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Pattern != "/" {
			t.Errorf("without chi: got the pattern %q, want that of the mux", r.Pattern)
		}
	})).ServeHTTP(nil, &http.Request{Pattern: "/"})
}

// TestClientAddrNil: ClientAddr panics without a function.
func TestClientAddrNil(t *testing.T) {
	defer func() {
		if got, want := recover(), "weirchi: ClientAddr: get is nil"; got != want {
			t.Errorf("got panic %v, want %q", got, want)
		}
	}()
	weirchi.ClientAddr(nil)
}

// TestImports: the package does not import chi's package middleware, which publishes
// net/http/pprof and expvar on http.DefaultServeMux.
func TestImports(t *testing.T) {
	out, err := exec.Command("go", "list", "-deps", ".").Output()
	if err != nil {
		t.Fatal(err)
	}
	deps := strings.Fields(string(out))
	for _, bad := range []string{"net/http/pprof", "expvar", "github.com/go-chi/chi/v5/middleware"} {
		if slices.Contains(deps, bad) {
			t.Errorf("weirchi imports %s, which it must not", bad)
		}
	}
	if !slices.Contains(deps, "github.com/go-chi/chi/v5") {
		t.Fatalf("got %d packages without chi, want all that weirchi imports", len(deps))
	}
}
