// Playground serves a page that sends the same requests through every
// algorithm, side by side, and draws what each decides. Each tab of a browser is
// a scene of its own.
//
//	go run ./_examples/playground
//	go run ./_examples/playground -redis localhost:6379
package main

import (
	"context"
	"crypto/rand"
	"embed"
	"flag"
	"fmt"
	"io/fs"
	"log"
	"net/http"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/redisstore"
)

// timeout is for a machine that is busy with other things as well; the default
// is 50 ms.
const timeout = 500 * time.Millisecond

//go:embed page
var files embed.FS

func main() {
	addr := flag.String("addr", "localhost:8080", "`address` to listen on; localhost:0 is any free port")
	redisAddr := flag.String("redis", "", "`address` of a Redis; without it one runs inside this program")
	flag.Parse()
	log.SetFlags(0)
	logging.Disable() // go-redis has a line for each connection that fails; the page has one
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for anything

	if *redisAddr == "" {
		embedded := miniredis.NewMiniRedis()
		embedded.ClockTTL(true) // keys expire as in Redis
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		defer embedded.Close()
		*redisAddr = embedded.Addr()
	}
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, *redisAddr))
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		log.Fatalf("No Redis at %s: %v.\nWithout -redis one runs inside this program.", *redisAddr, err)
	}

	base, end := demo.Serve(*addr, handler(&scenes{ctx: ctx, redis: rdb, open: map[string]*scene{}}))
	fmt.Printf("The playground is at %s until Ctrl-C.\n", base)
	<-ctx.Done()
	end()
}

// prefix begins the keys of one scene.
func prefix() string { return "weir.playground." + rand.Text() + ":" }

func handler(s *scenes) http.Handler {
	page, err := fs.Sub(files, "page")
	if err != nil {
		log.Fatal(err)
	}
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
