// Playground serves a page that explains rate limits in pictures that the reader can change.
// The library decides every request in the pictures: it is compiled to WebAssembly and runs
// in the page. With -static the program writes the page to a directory that any web server
// can serve.
//
//	go run -C _examples ./playground
//	go run -C _examples ./playground -static site
//	go run -C _examples ./playground -redis localhost:6379
//	go run -C _examples ./playground -once
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/_examples/playground/server"
	"github.com/seed83679106/weir/internal/test/minilua"
	"github.com/seed83679106/weir/redisstore"
)

func main() {
	addr := flag.String("addr", "localhost:8080", "`address` to listen on; localhost:0 is any free port")
	once := flag.Bool("once", false, "serve the page, request it once, and end")
	redisAddr := flag.String("redis", "", "`address` of a Redis; without it a Redis runs inside this program")
	static := flag.String("static", "", "`directory` to write the page to, instead of serving it")
	url := flag.String("url", "", "with -static: the `URL` at which the page will be, for the picture that other sites show beside a link to it")
	flag.Parse()
	log.SetFlags(0)
	if err := server.Source(); err != nil {
		log.Fatal(err)
	}
	if *static != "" {
		compiled, err := server.Compile()
		if err == nil {
			err = server.WriteStatic(*static, *url, compiled)
		}
		if err == nil {
			err = server.Precompress(*static)
		}
		if err != nil {
			log.Fatal(err)
		}
		fmt.Printf("The page is in %s. Any web server can serve it; one that sends the .br files next to the others saves a quarter.\n", *static)
		return
	}
	logging.Disable() // go-redis logs every connection that fails; the page shows the failure on one line
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once

	if *redisAddr == "" {
		embedded := miniredis.NewMiniRedis()
		embedded.ClockTTL(true) // keys expire in real time
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		defer embedded.Close()
		embedded.Server().SetPreHook(minilua.Add) // Redis has the libraries that this one lacks
		*redisAddr = embedded.Addr()
	}
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(server.Timeout, *redisAddr))
	defer rdb.Close()
	if err := rdb.Ping(ctx).Err(); err != nil {
		log.Fatalf("No Redis at %s: %v.\nWithout -redis a Redis runs inside this program.", *redisAddr, err)
	}

	compile := sync.OnceValues(server.Compile)
	if !*once {
		go func() { // while the visitor opens the page
			if _, err := compile(); err != nil && ctx.Err() == nil {
				log.Fatal(err)
			}
		}()
	}
	base, end := demo.Serve(*addr, server.New(ctx, rdb, compile))
	fmt.Printf("The playground is at %s until Ctrl-C.\n", base)
	if *once {
		resp, err := http.Get(base)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		fmt.Printf("It answers %s.\n", resp.Status)
		stop()
	}
	<-ctx.Done()
	end()
}
