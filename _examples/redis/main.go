// Redis runs two replicas of one server that share a limit through Redis, and shows how
// they limit while Redis is away. Without -redis a small Redis runs inside this program.
//
//	go run -C _examples ./redis
//	go run -C _examples ./redis -redis localhost:6379
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log"
	"log/slog"
	"net/http"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/logging"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/minilua"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// timeout is how long Redis may take to answer. It is longer than the default of 50 ms, for
// a busy machine.
const timeout = 5 * time.Second

// A replica is one of the servers that share the limit. In production each replica is a
// process of its own.
type replica struct {
	name    string // of its lines
	base    string
	breaker *quota.BreakerStore
	hybrid  *quota.HybridStore
}

// newStore returns the store of a replica. The store counts in Redis. While Redis is away,
// it counts in memory, up to the replica's share of each limit. The order of the layers
// matters:
//
//   - Breaker is next to Redis. If Hybrid were between Breaker and Redis, a refusal from
//     memory would count as an answer of Redis and close the breaker.
//   - Hybrid is inside Fallback. It remembers refusals of Redis, which stay true while
//     Redis is away. Outside Fallback it would also remember refusals of the share in
//     memory. They could last up to 10 s after Redis is back and has units left.
//   - Fallback is outside of both, so that it takes over when the breaker is open.
//   - Share is around the store in memory only, because Redis has the whole limit.
func (r *replica) newStore(rdb redis.UniversalClient, prefix string, replicas int) quota.Store {
	shared, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: timeout})
	if err != nil {
		log.Fatal(err)
	}
	logger := slog.Default().With("replica", r.name)
	r.breaker = quota.Breaker(shared, quota.BreakerOptions{OnChange: r.onChange, Logger: slog.New(slog.DiscardHandler)}) // OnChange prints the same
	r.hybrid = quota.Hybrid(r.breaker, quota.HybridOptions{})
	return quota.Fallback(r.hybrid, quota.Share(memstore.New(memstore.Options{}), replicas), quota.FallbackOptions{Logger: logger})
}

// onChange prints a line when the breaker opens or closes. By default the breaker logs this.
func (r *replica) onChange(open bool, _ error) {
	if open {
		fmt.Printf("  the %s replica calls Redis no more for a second\n", r.name)
		return
	}
	fmt.Printf("  the %s replica calls Redis again\n", r.name)
}

// asked returns for how many requests the replica has called Redis, including calls that
// failed. It computes this from the counts that the stores keep for metrics.
func (r *replica) asked() int {
	return int(r.hybrid.Stats().Misses - r.breaker.Stats().Refused)
}

func main() {
	addr := flag.String("addr", "localhost:8080,localhost:8081", "`addresses` of the two replicas; without the second, that replica listens on a free port")
	redisAddr := flag.String("redis", "", "`address` of a Redis; without it a Redis runs inside this program")
	once := flag.Bool("once", false, "end after the demonstration")
	flag.Parse()
	log.SetFlags(0)
	logging.Disable() // go-redis logs every connection that fails; one line of the breaker is enough
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C ends the program at once

	var embedded *miniredis.Miniredis
	if *redisAddr == "" {
		embedded = miniredis.NewMiniRedis()
		embedded.ClockTTL(true) // keys expire in real time
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		defer embedded.Close()
		embedded.Server().SetPreHook(minilua.Add) // Redis has the libraries that this one lacks
		*redisAddr = embedded.Addr()
	}
	prefix := "weir.example." + rand.Text() + ":" // each run counts anew; in production the prefix is the same in all processes
	first, second, ok := strings.Cut(*addr, ",")
	if !ok {
		second = "localhost:0"
	}
	d := demonstration{ctx: ctx}
	for i, addr := range []string{first, second} {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, *redisAddr))
		defer rdb.Close()
		r := &replica{name: []string{"first", "second"}[i]}
		// Here a client may claim any API key. Verify keys first, as _examples/tiers does.
		limit := weir.Middleware(r.newStore(rdb, prefix, 2), "api", weir.FirstOf(weir.ByHeader("X-API-Key"), weir.ByIP()),
			algorithms.GCRA(10, time.Minute))
		var end func()
		r.base, end = demo.Serve(addr, limit(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintln(w, "hello") })))
		defer end()
		d.replicas = append(d.replicas, r)
	}
	if err := d.run(embedded); err != nil && ctx.Err() == nil {
		log.Fatal(err)
	}
	if !*once && ctx.Err() == nil {
		fmt.Println("\nThe replicas go on until Ctrl-C. Try the curl commands above. To cause an outage yourself, start this program with -redis, then stop and start that Redis.")
		<-ctx.Done()
	}
}
