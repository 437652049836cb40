// Services runs two replicas of a program with five doors: REST with chi, gRPC, a WebSocket, answers
// that are streamed word by word, and jobs. All of them are limited by one file of rules, rules.yaml,
// and count in one Redis. Then two users flood all doors. Without -redis a small Redis runs inside
// this program.
//
//	go run -C _examples/services .
//	go run -C _examples/services . -redis localhost:6379
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/minilua"
	"github.com/seed83679106/weir/redisstore"
)

// timeout is how long Redis may take to answer. It is longer than the default of 50 ms, for a busy
// machine.
const timeout = 5 * time.Second

func main() {
	addr := flag.String("redis", "", "`address` of a Redis; without it a Redis runs inside this program")
	flag.Parse()
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if *addr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			log.Fatal(err)
		}
		defer embedded.Close()
		embedded.Server().SetPreHook(minilua.Add) // Redis has the libraries that this one lacks
		*addr = embedded.Addr()
	}
	if err := demonstrate(ctx, *addr); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
}

// demonstrate floods two replicas and prints what passed.
func demonstrate(ctx context.Context, addr string) error {
	replicas, err := start(ctx, addr, 2)
	if err != nil {
		return err
	}
	for _, r := range replicas {
		defer r.stop()
	}
	for _, user := range []string{"ann", "ben"} {
		tokens.Store(0)
		passed, err := flood(ctx, replicas, user, 40)
		if err != nil {
			return err
		}
		sum := 0
		for _, d := range doors {
			fmt.Printf("%s: %s: %d of 40 allowed\n", user, d.name, passed[d.name])
			sum += passed[d.name]
		}
		fmt.Printf("%s: all doors: %d of 200 allowed, the account has 100; %d words were streamed, of 200 tokens\n", user, sum, tokens.Load())
	}
	return nil
}

// start starts replicas that count in the Redis at addr, each with a client of its own.
func start(ctx context.Context, addr string, n int) (replicas []*replica, err error) {
	prefix := "weir.example." + rand.Text() + ":" // each run counts anew; in production the prefix is the same in all processes
	for range n {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, addr))
		store, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: timeout})
		if err != nil {
			return nil, err
		}
		s, err := newService(store)
		if err != nil {
			return nil, err
		}
		r, err := run(ctx, s)
		if err != nil {
			return nil, err
		}
		stop := r.stop
		r.stop = func() { stop(); rdb.Close() }
		replicas = append(replicas, r)
	}
	return replicas, nil
}
