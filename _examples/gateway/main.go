// Gateway is a reverse proxy with its limits in a file, limits.yaml, which it reads again
// when the file changes. A second address serves /metrics, /admin and /auth. By /auth
// nginx, Caddy and Traefik ask whether a request may pass: see nginx.conf, Caddyfile and
// traefik.yml.
//
// Without arguments, or with -once, it demonstrates all that on this machine and ends. With
// other arguments it serves until Ctrl-C:
//
//	go run ./_examples/gateway -once
//	go run ./_examples/gateway -limits _examples/gateway/limits.yaml -upstream http://localhost:9000
//	go run ./_examples/gateway -limits _examples/gateway/limits.yaml -redis localhost:6379
//
// Without -upstream it is no proxy, and only answers /auth.
package main

import (
	"cmp"
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/url"
	"os"
	"os/signal"
	"syscall"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/redisstore"
)

func main() {
	once := flag.Bool("once", false, "end after the demonstration")
	limits := flag.String("limits", "_examples/gateway/limits.yaml", "`file` of limits")
	upstream := flag.String("upstream", "", "`URL` to pass requests on to")
	addr := flag.String("addr", "localhost:8080", "`address` for clients")
	internal := flag.String("internal", "localhost:9090", "`address` for /auth, /metrics and /admin")
	redisAddr := flag.String("redis", "", "`address` of a Redis that several gateways share; without it each counts alone")
	flag.Parse()
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once

	if *once || flag.NFlag() == 0 {
		if err := demonstrate(ctx); err != nil && ctx.Err() == nil {
			log.Fatal(err)
		}
		return
	}
	to, err := url.Parse(*upstream)
	if err != nil || *upstream != "" && to.Host == "" {
		log.Fatalf("-upstream %s is not a URL such as http://localhost:9000", *upstream)
	}
	password := cmp.Or(os.Getenv("GATEWAY_PASSWORD"), rand.Text())
	g, err := newGateway(*limits, newStore(*redisAddr), slog.Default())
	if err != nil {
		log.Fatal(err)
	}
	watched := make(chan error, 1)
	go func() { watched <- g.rules.Watch(ctx) }()

	inside, endInside := demo.Serve(*internal, g.internal(password))
	defer endInside()
	fmt.Printf("Proxies may ask %s/auth. Operators may ask\n%s\n", inside, operator(inside, password, "GET", "/rules"))
	if *upstream != "" {
		outside, endOutside := demo.Serve(*addr, g.public(to))
		defer endOutside()
		fmt.Printf("Clients may ask %s for what %s has.\n", outside, to)
	}
	if err := <-watched; ctx.Err() == nil { // the system cannot watch files
		log.Print(err)
		<-ctx.Done()
	}
}

// newStore returns a store in Redis that falls back to memory, or memory if addr is "".
func newStore(addr string) weir.Store {
	local := memstore.New(memstore.Options{})
	if addr == "" {
		return local
	}
	shared, err := redisstore.New(redis.NewClient(&redis.Options{Addr: addr}), redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	return weir.Fallback(weir.Breaker(shared, weir.BreakerOptions{}), local)
}
