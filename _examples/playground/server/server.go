// Package server is the playground's: its page, and the scenes that the page
// draws. Whatever is decided is decided here, by the library; a page only asks.
package server

import (
	"context"
	"crypto/rand"
	"embed"
	"io/fs"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// Timeout is what Redis may take to answer. It is for a machine that is busy
// with other things as well; the default is 50 ms.
const Timeout = 500 * time.Millisecond

//go:embed page
var files embed.FS

// New returns the playground. Its streams end with ctx. Scenes that want Redis
// use rdb.
func New(ctx context.Context, rdb redis.UniversalClient) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // a mistake in the line above
	}
	s := &scenes{ctx: ctx, redis: rdb, open: map[string]*scene{}}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(page))
	mux.HandleFunc("GET /scenes", s.stream)
	mux.HandleFunc("POST /scenes/{id}", s.command)
	mux.HandleFunc("GET /scenes/{id}/answers/{algorithm}", s.answers)
	mux.HandleFunc("GET /scenes/{id}/{algorithm}", s.request)

	// The playground's own limit.
	limit := weir.Middleware(memstore.New(memstore.Options{}), "playground", weir.ByIP(), algorithms.GCRA(100, time.Second))
	return http.NewCrossOriginProtection().Handler(http.MaxBytesHandler(limit(hardened(mux)), 4096))
}

// hardened lets the page have nothing but what this server sends it.
func hardened(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}

// prefix begins the keys of one scene.
func prefix() string { return "weir.playground." + rand.Text() + ":" }
