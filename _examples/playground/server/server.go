// Package server serves the pages of the playground, and runs the scenes that use Redis.
package server

import (
	"context"
	"embed"
	"io/fs"
	"net/http"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/playground/scene"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
)

// Timeout is how long Redis may take to answer on a busy machine. The default of the
// library is 50 ms.
const Timeout = 2 * time.Second

//go:embed page
var files embed.FS

// Page returns the files of the page, except those that Compile returns.
func Page() fs.FS {
	page, err := fs.Sub(files, "page")
	if err != nil {
		panic(err) // a mistake in the line above
	}
	return page
}

// New returns the handler of the playground. Its streams end with ctx. Scenes that use
// Redis use rdb. The function compile must return the result of Compile. It is called for
// each request of a compiled file, so it should remember the result.
func New(ctx context.Context, rdb redis.UniversalClient, compile func() (map[string][]byte, error)) http.Handler {
	s := &scenes{ctx: ctx, redis: rdb, open: map[string]*scene.Scene{}}
	mux := http.NewServeMux()
	mux.Handle("GET /", http.FileServerFS(Page()))
	pages, err := scenePages()
	if err != nil {
		panic(err) // index.html is embedded
	}
	for name, page := range pages {
		mux.HandleFunc("GET /"+name, func(w http.ResponseWriter, _ *http.Request) { w.Write(page) })
	}
	mux.Handle("GET /weir.bin", compiled(compile))
	mux.Handle("GET /more.bin", compiled(compile))
	mux.Handle("GET /lab.bin", compiled(compile))
	mux.Handle("GET /wasm_exec.js", compiled(compile))
	mux.HandleFunc("GET /scenes", s.stream)
	mux.HandleFunc("POST /scenes/{id}", s.command)
	mux.HandleFunc("GET /scenes/{id}/answers/{algorithm}", s.answers)
	mux.HandleFunc("GET /scenes/{id}/{algorithm}", s.request)

	// This limit protects the playground itself.
	limit, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Headers: headers.None, // the answers of a scene have fields of the scene's limit
		Rules:   []weir.Rule{{Name: "playground", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Second)}}},
	})
	if err != nil {
		panic(err) // a mistake in the lines above
	}
	return http.NewCrossOriginProtection().Handler(http.MaxBytesHandler(limit.Handler(hardened(mux)), 4096))
}

// hardened sets the header fields for security. With them, a browser loads nothing from
// other servers into the page.
func hardened(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Security-Policy", "default-src 'self'; script-src 'self' 'wasm-unsafe-eval'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
		h.Set("X-Content-Type-Options", "nosniff")
		h.Set("Referrer-Policy", "no-referrer")
		h.Set("Cache-Control", "no-store")
		next.ServeHTTP(w, r)
	})
}
