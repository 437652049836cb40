// Envoy measures weir serve and envoyproxy/ratelimit, the rate limit service of the Envoy project,
// as Envoy calls them: over gRPC, with the same Redis and the same file of limits, in turns. Each is a
// process of its own. The program prints tables in Markdown, and ends with an error if a decision
// is wrong. It does not build envoyproxy/ratelimit: that is go build ./src/service_cmd in its repository.
//
//	go run -C _bench ./envoy -peer PATH          # two minutes
//	go run -C _bench ./envoy -peer PATH -quick   # one short round
package main

import (
	"flag"
	"fmt"
	"log"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/redisstore"
)

var (
	peer  = flag.String("peer", "", "`path` of the program of envoyproxy/ratelimit")
	quick = flag.Bool("quick", false, "one short round, to test the decisions")
)

// limits are the limits of both services.
const limits = `domain: bench
descriptors:
- {key: allowed, rate_limit: {unit: minute, requests_per_unit: 4000000000}}
- {key: over, rate_limit: {unit: day, requests_per_unit: 1}}
- {key: edge, rate_limit: {unit: second, requests_per_unit: 1000}}
`

func main() {
	log.SetFlags(0)
	flag.Parse()
	p := &redistest.Program{}
	defer p.End()
	dir := p.TempDir()
	weir, config := filepath.Join(dir, "weir"), filepath.Join(dir, "ratelimit", "config")
	if err := os.MkdirAll(config, 0o700); err != nil {
		p.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(config, "limits.yaml"), []byte(limits), 0o600); err != nil {
		p.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", weir, ".")
	build.Dir = filepath.Join("..", "cmd", "weir")
	if text, err := build.CombinedOutput(); err != nil {
		p.Fatalf("%s: %v", text, err)
	}
	addr := redistest.Server(p).Addr()
	rdb := redis.NewClient(redisstore.ClientOptions(10*time.Second, addr).Simple())
	defer rdb.Close()

	var services []*service
	for _, s := range []*service{
		{name: "envoyproxy/ratelimit", command: func(port [4]string) *exec.Cmd { return ratelimit(dir, addr, port) }},
		{name: "the same, `REDIS_PIPELINE_WINDOW=150us`", command: func(port [4]string) *exec.Cmd {
			return ratelimit(dir, addr, port, "REDIS_PIPELINE_WINDOW=150us")
		}},
		{name: "the same, `LOCAL_CACHE_SIZE_IN_BYTES`", only: "over", command: func(port [4]string) *exec.Cmd {
			return ratelimit(dir, addr, port, "LOCAL_CACHE_SIZE_IN_BYTES=10000000")
		}},
		{name: "`weir serve`", command: func(port [4]string) *exec.Cmd { return serve(weir, config, addr, port) }},
		{name: "`weir serve -envoy-over 100000`", only: "over", command: func(port [4]string) *exec.Cmd {
			return serve(weir, config, addr, port, "-envoy-over", "100000")
		}},
	} {
		if err := s.start(); err != nil {
			p.Fatal(err)
		}
		p.Cleanup(s.stop)
		services = append(services, s)
	}
	if err := speed(rdb, services); err != nil {
		p.Fatal(err)
	}
	if err := edges(services); err != nil {
		p.Fatal(err)
	}
}

// ratelimit returns the command that runs envoyproxy/ratelimit. Both services export metrics to Prometheus.
func ratelimit(dir, redis string, port [4]string, environ ...string) *exec.Cmd {
	if *peer == "" {
		log.Fatal("-peer is missing")
	}
	cmd := exec.Command(*peer)
	cmd.Env = append([]string{
		"RUNTIME_ROOT=" + dir, "RUNTIME_SUBDIRECTORY=ratelimit", "RUNTIME_WATCH_ROOT=false",
		"REDIS_SOCKET_TYPE=tcp", "REDIS_URL=" + redis, "REDIS_POOL_SIZE=32", "LOG_LEVEL=error",
		"USE_STATSD=false", "USE_PROMETHEUS=true", "PROMETHEUS_ADDR=127.0.0.1:" + port[3],
		"GRPC_HOST=127.0.0.1", "GRPC_PORT=" + port[0], "HOST=127.0.0.1", "PORT=" + port[1], "DEBUG_HOST=127.0.0.1", "DEBUG_PORT=" + port[2],
	}, environ...)
	return cmd
}

// serve returns the command that runs weir serve. Redis gets a second for a decision, so that
// no decision is made in memory.
func serve(weir, config, redis string, port [4]string, flags ...string) *exec.Cmd {
	cmd := exec.Command(weir, append([]string{"serve", "-envoy-config", config, "-envoy-rls", "127.0.0.1:" + port[0], "-auth-addr", "127.0.0.1:" + port[1],
		"-redis-addrs", redis, "-redis-timeout", "1s", "-redis-down", "closed", "-redis-prefix", fmt.Sprintf("weir%d:", len(flags)), "-log-level", "error"}, flags...)...)
	cmd.Env = []string{}
	return cmd
}

// row prints a row of a table.
func row(cells ...any) {
	var b strings.Builder
	for _, c := range cells {
		fmt.Fprintf(&b, "| %v ", c)
	}
	fmt.Println(b.String() + "|")
}
