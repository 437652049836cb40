// Throttle lets three clients share the quota of a partner's API: 5 requests in any second.
// A request that would exceed the quota waits for its turn. The partner answers one request
// with a 429 and a Retry-After of 2 seconds. Then all three clients pause, and that request
// is sent again. The clients share a Redis. Without -redis a small Redis runs inside this
// program.
//
//	go run -C _examples ./throttle
//	go run -C _examples ./throttle -redis localhost:6379
package main

import (
	"context"
	"crypto/rand"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"os/signal"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/minilua"
	"github.com/seed83679106/weir/redisstore"
)

const (
	quota  = 5               // requests in any second
	each   = 10              // requests of each client
	budget = 5 * time.Second // time for Redis on a busy machine; the default is 50 ms
)

var names = []string{"anna", "ben", "carl"}

// newClient returns an http.Client that keeps to the partner's quota together with all
// clients that share the store.
func newClient(store weir.Store, base http.RoundTripper) (*http.Client, error) {
	limiter, err := weir.New(store, weir.Options{
		Rules: []weir.Rule{{
			Name: "partner", Key: weir.ByHeader("Host"),
			Limits: []weir.Limit{algorithms.SlidingLog(quota, time.Second)}, // at most quota requests in any second
			Buffer: 500 * time.Millisecond,                                  // how much the travel time of requests may vary, on a busy machine
		}},
		MaxWait: time.Minute,
	})
	if err != nil {
		return nil, err
	}
	transport, err := limiter.Transport(weir.TransportOptions{
		Base:    base,
		OnError: weir.FailClosed, // without the store no request is sent
	})
	return &http.Client{Transport: transport}, err
}

func main() {
	redisAddr := flag.String("redis", "", "`address` of a Redis; without it a Redis runs inside this program")
	flag.Parse()
	log.SetFlags(0)
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()

	if *redisAddr == "" {
		embedded, err := miniredis.Run()
		if err != nil {
			log.Fatal(err)
		}
		defer embedded.Close()
		embedded.Server().SetPreHook(minilua.Add) // Redis has the libraries that this one lacks
		*redisAddr = embedded.Addr()
	}
	line := &timeline{start: time.Now()}
	base, end := demo.Serve("localhost:0", &partner{line: line})
	defer end()

	fmt.Printf("The partner allows %d requests in any second. anna, ben and carl send %d requests each.\na, b and c are their requests, ! is a refusal by the partner, and # is a request in the last second.\n\n", quota, each)
	prefix := "weir.example." + rand.Text() + ":" // each run counts anew; in production the prefix is the same in all processes
	done := make(chan error)
	for _, name := range names {
		go func() { done <- work(ctx, name, base, *redisAddr, prefix, line) }()
	}
	var err error
	ticks := time.NewTicker(tick)
	defer ticks.Stop()
	for left := len(names); left > 0; {
		select {
		case e := <-done:
			err = errors.Join(err, e)
			left--
		case <-ticks.C:
			line.print()
		}
	}
	line.print()
	if ctx.Err() != nil {
		return
	}
	if err = errors.Join(err, line.check()); err != nil {
		log.Fatal(err)
	}
}

// work sends the requests of one client. In production each client is a process of its own.
func work(ctx context.Context, name, base, redisAddr, prefix string, line *timeline) error {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(budget, redisAddr))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: budget})
	if err != nil {
		return err
	}
	client, err := newClient(store, leaving{line})
	if err != nil {
		return err
	}
	for range each {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+"/"+name, nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("%s: %s", name, resp.Status)
		}
		line.answered()
	}
	return nil
}
