// Redis runs two replicas of one server that share a limit through Redis, and
// shows what becomes of it while Redis is away. Without -redis a small one runs
// inside this program.
//
//	go run ./_examples/redis
//	go run ./_examples/redis -redis localhost:6379
package main

import (
	"context"
	"crypto/rand"
	"flag"
	"fmt"
	"log"
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
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/redisstore"
)

// timeout is for a machine that is busy with other things as well; the default
// is 50 ms.
const timeout = 500 * time.Millisecond

// A replica is a server; yours is a process.
type replica struct {
	base    string
	breaker *weir.BreakerStore
	hybrid  *weir.HybridStore
}

// newStore returns what a replica decides with: Redis, and while that is away
// the replica's share of each limit in memory. The order matters:
//
//   - Breaker is next to Redis. Were Hybrid between them, a refusal from memory
//     would count as an answer of Redis and close the breaker.
//   - Hybrid is within Fallback. So it knows what Redis has refused, which stays
//     true while Redis is away. Around Fallback it would also keep what the share
//     has refused, for up to 10 s after Redis is back and has units left.
//   - Fallback is around all, and Share around what it falls back to.
func (r *replica) newStore(rdb redis.UniversalClient, prefix string, replicas int) weir.Store {
	shared, err := redisstore.New(rdb, redisstore.Options{Prefix: prefix, Timeout: timeout})
	if err != nil {
		log.Fatal(err)
	}
	r.breaker = weir.Breaker(shared, weir.BreakerOptions{OnChange: r.onChange})
	r.hybrid = weir.Hybrid(r.breaker, 0)
	return weir.Fallback(r.hybrid, weir.Share(memstore.New(memstore.Options{}), replicas))
}

// onChange tells of the breaker, which logs it as well.
func (r *replica) onChange(open bool, err error) {
	if open {
		fmt.Printf("  %s leaves Redis alone for a second: %v\n", r.base, err)
		return
	}
	fmt.Printf("  %s asks Redis again\n", r.base)
}

// asked is how often Redis was asked, from what the stores say for metrics.
func (r *replica) asked() int {
	stats := r.hybrid.Stats()
	return int(stats.Misses) - int(r.breaker.Refused())
}

func main() {
	addr := flag.String("addr", "localhost:8080,localhost:8081", "`addresses` to listen on; one that is missing is any free port")
	redisAddr := flag.String("redis", "", "`address` of a Redis; without it one runs inside this program")
	once := flag.Bool("once", false, "end after the demonstration")
	flag.Parse()
	log.SetFlags(0)
	logging.Disable() // go-redis has a line for each connection that fails; the breaker has one
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop) // a second Ctrl-C does not wait for anything

	var embedded *miniredis.Miniredis
	if *redisAddr == "" {
		embedded = miniredis.NewMiniRedis()
		embedded.ClockTTL(true) // keys expire as in Redis
		if err := embedded.Start(); err != nil {
			log.Fatal(err)
		}
		defer embedded.Close()
		*redisAddr = embedded.Addr()
	}
	prefix := "weir.example." + rand.Text() + ":" // each run counts anew; yours is the same in all processes
	first, second, ok := strings.Cut(*addr, ",")
	if !ok {
		second = "localhost:0"
	}
	d := demonstration{ctx: ctx}
	for _, addr := range []string{first, second} {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, *redisAddr))
		defer rdb.Close()
		r := &replica{}
		// An API key is whatever a client claims: yours is verified first, as in _examples/tiers.
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
		fmt.Println("\nThe replicas go on until Ctrl-C. Try the lines above. Start this with -redis, and stop and start that Redis.")
		<-ctx.Done()
	}
}
