package keys_test

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"
	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/keys"
)

// TestByPathValueEscaped: a path value has the same key however the client escapes it.
func TestByPathValueEscaped(t *testing.T) {
	var s see
	limit := s.by(keys.ByPathValue("id"))
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

// TestByRouteHead: the key of a HEAD request is the route that answers it, even in a
// middleware before chi's GetHead.
func TestByRouteHead(t *testing.T) {
	var s see
	limit := s.by(keys.ByRoute())
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
	limit := s.by(keys.ByRoute())
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
	r.Use(middleware.StripSlashes, middleware.GetHead, s.by(keys.ByRoute()))
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

func TestByRouteServeMux(t *testing.T) {
	var s see
	limit := s.by(keys.ByRoute())
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
	limit := s.by(keys.ByPathValue("id"))
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
	limit := s.by(keys.ByRoute())
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
		{keys.ByRoute(), 0, 199, 0},
		{keys.ByRoute(), 0, 200, 1},
		{weir.Join(weir.ByIP(), keys.ByRoute()), 0, 1000, 1},
		{keys.ByRoute(), 1, 1000, 0},
		{keys.ByRoute(), 200, 1000, 0},
		{keys.ByRoute(), 201, 1000, 1},
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
