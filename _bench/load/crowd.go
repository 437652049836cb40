package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-redis/redis_rate/v10"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// The crowd has three processes of this program, so that each has its own scheduler as in
// production: a server, its clients, and the proxy before Redis. They share the processors
// with each other and with Redis. A child gets its role in roleVar. It ends when its input
// ends, and therefore with its parent.
const roleVar = "WEIR_LOAD_ROLE"

var roles = map[string]func(args []string){"serve": serve, "drive": drive, "delay": delay, "spin": spin, "compile": compile, "ping": ping}

// A child is a process of this program.
type child struct {
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

func start(role string, args ...string) *child {
	c := &child{cmd: exec.Command(os.Args[0], args...)}
	c.cmd.Env, c.cmd.Stderr = append(os.Environ(), roleVar+"="+role), os.Stderr
	in, err := c.cmd.StdinPipe()
	if err != nil {
		log.Fatal(err)
	}
	out, err := c.cmd.StdoutPipe()
	if err != nil {
		log.Fatal(err)
	}
	if c.in, c.out = in, bufio.NewReader(out); c.cmd.Start() != nil {
		log.Fatalf("load: %s does not start", role)
	}
	return c
}

// line returns the next line that the child prints.
func (c *child) line() string {
	s, err := c.out.ReadString('\n')
	if err != nil {
		log.Fatalf("load: %v: %v", c.cmd.Args, err)
	}
	return strings.TrimSpace(s)
}

func (c *child) end() {
	c.in.Close()
	_ = c.cmd.Wait()
}

// delay is the role of a proxy: it prints its address, and then reads round trips.
func delay(args []string) {
	p, err := newProxy(args[0], false)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(p.addr())
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		d, err := time.ParseDuration(in.Text())
		if err != nil {
			log.Fatal(err)
		}
		p.delay.Store(int64(d))
	}
}

// ping is the role of a process that only asks whether Redis answers: it sends a PING every 10 ms, on a
// connection of its own, until its input ends. Then it prints how many took longer than the Timeout, and
// how many it has sent.
func ping(args []string) {
	var ended atomic.Bool
	go func() { _, _ = io.Copy(io.Discard, os.Stdin); ended.Store(true) }()
	conn, err := net.Dial("tcp", args[0])
	if err != nil {
		log.Fatal(err)
	}
	late, n, answer := 0, 0, make([]byte, len("+PONG\r\n"))
	for ; !ended.Load(); n++ {
		sent := time.Now()
		if _, err := conn.Write([]byte("PING\r\n")); err != nil {
			log.Fatal("load: ping: ", err)
		}
		if _, err := io.ReadFull(conn, answer); err != nil {
			log.Fatal("load: ping: ", err)
		}
		if time.Since(sent) > timeout {
			late++
		}
		time.Sleep(10 * time.Millisecond)
	}
	fmt.Println(late, "of", n)
}

const timeout = 50 * time.Millisecond // the default of redisstore

const undecided = 203 // the status of a request that was let through without a decision

// serve is the role of a server that is limited by a bare store or by a stack. It prints its
// address, and for each line of its input how many requests the fallback has decided, and when
// it decided the last one.
func serve(args []string) {
	redis.SetLogger(quiet{})
	shared, err := redisstore.New(redis.NewUniversalClient(redisstore.ClientOptions(0, args[0])), redisstore.Options{})
	if err != nil {
		log.Fatal(err)
	}
	second := &counted{Store: memstore.New(memstore.Options{})}
	store := weir.Store(shared)
	switch args[1] {
	case "memory":
		store = memstore.New(memstore.Options{})
	case "stack":
		breaker := quota.Breaker(quota.Coalesce(shared), quota.BreakerOptions{})
		store = quota.Fallback(quota.Hybrid(breaker, quota.HybridOptions{}), quota.Share(second, 1), quota.FallbackOptions{})
	case peerName:
		store = peer{redis_rate.NewLimiter(redis.NewUniversalClient(redisstore.ClientOptions(0, args[0]))), timeout}
	case poolName:
		store = peer{redis_rate.NewLimiter(redis.NewClient(&redis.Options{Addr: args[0]})), 10 * time.Second}
	}
	path := func(r *http.Request) (string, bool) { return r.URL.Path, true }
	h := weir.Middleware(store, "crowd", path, limit)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if weir.FromContext(r.Context()) == nil {
			w.WriteHeader(undecided)
		}
	}))
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(ln.Addr())
	go func() { log.Fatal(http.Serve(ln, h)) }()
	for in := bufio.NewScanner(os.Stdin); in.Scan(); {
		fmt.Println(second.n.Swap(0), second.last.Load())
	}
}

const peerName, poolName = "redis_rate", "redis_rate, plain client"

// A peer decides by redis_rate: peerName with the options and the timeout of Weir's client, poolName with
// the client's defaults.
type peer struct {
	*redis_rate.Limiter
	timeout time.Duration
}

func (p peer) Take(ctx context.Context, t *quota.Transaction) error {
	ctx, cancel := context.WithTimeout(ctx, p.timeout)
	defer cancel()
	l := t.Charges[0].Limit
	got, err := p.Allow(ctx, t.Charges[0].Key, redis_rate.Limit{Rate: int(l.Quota), Burst: int(l.Quota), Period: l.Period})
	if err != nil {
		return err
	}
	t.At = time.Now()
	t.Decisions = append(t.Decisions[:0], quota.Decision{Allowed: got.Allowed > 0, Remaining: int64(got.Remaining), RetryAfter: max(0, got.RetryAfter)})
	return nil
}

type counted struct {
	weir.Store
	n, last atomic.Int64
}

// driven says what the role drive does: it sends requests over so many connections, each
// connection the next request when it has the answer. With Rate, all connections together
// send at most so many a second.
type driven struct {
	Addr        string
	Connections int
	Keys        int
	Rate        float64
	For         time.Duration
}

// answers are the results of a drive.
type answers struct {
	Decided, Refused, Undecided, Other int
	P50, P99, Longest                  time.Duration // of the decided
	RefusedAt                          []int64       // when requests were refused, in ns since 1970
	Last                               int64         // when the last request was not decided by Redis, in ns since 1970
}

func (a *answers) all() int { return a.Decided + a.Refused + a.Undecided + a.Other }

func drive(args []string) {
	var d driven
	if err := json.Unmarshal([]byte(args[0]), &d); err != nil {
		log.Fatal(err)
	}
	go func() { // ends with the parent
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(1)
	}()
	visitors := make([]*visitor, d.Connections)
	for i := range visitors {
		conn, err := net.Dial("tcp", d.Addr)
		if err != nil {
			log.Fatal(err)
		}
		visitors[i] = &visitor{conn: conn, at: i, driven: &d}
	}
	begin := time.Now()
	var wg sync.WaitGroup
	for _, v := range visitors {
		wg.Go(func() { v.visit(begin) })
	}
	wg.Wait()
	var sum answers
	var took []time.Duration
	for _, v := range visitors {
		sum.Decided += v.Decided
		sum.Refused += v.Refused
		sum.RefusedAt = append(sum.RefusedAt, v.RefusedAt...)
		sum.Undecided += v.Undecided
		sum.Other += v.Other
		sum.Last = max(sum.Last, v.Last)
		took = append(took, v.took...)
	}
	if slices.Sort(took); len(took) > 0 {
		sum.P50, sum.P99, sum.Longest = took[len(took)/2], took[len(took)*99/100], took[len(took)-1]
	}
	if err := json.NewEncoder(os.Stdout).Encode(sum); err != nil {
		log.Fatal(err)
	}
}

// A visitor is a connection.
type visitor struct {
	*driven
	answers
	conn net.Conn
	at   int
	took []time.Duration
	buf  [1024]byte
}

func (v *visitor) visit(begin time.Time) {
	next := begin
	each := time.Duration(0)
	if v.Rate > 0 {
		each = time.Duration(float64(v.Connections) / v.Rate * float64(time.Second))
		next = begin.Add(each * time.Duration(v.at) / time.Duration(v.Connections))
	}
	for end, k := begin.Add(v.For), v.at; next.Before(end); k += 7919 { // a prime, so that all keys are charged
		time.Sleep(time.Until(next))
		sent := time.Now()
		if next = next.Add(each); next.Before(sent) {
			next = sent // no requests are sent later instead
		}
		if !sent.Before(end) {
			return
		}
		status, err := v.get(k % v.Keys)
		if err != nil {
			log.Fatal("load: drive: ", err)
		}
		now := time.Now()
		switch status {
		case 200:
			v.Decided++
			v.took = append(v.took, now.Sub(sent))
			if each == 0 {
				next = now
			}
			continue
		case 503:
			v.Refused++
			v.RefusedAt = append(v.RefusedAt, now.UnixNano())
		case undecided:
			v.Undecided++
		default:
			v.Other++
		}
		v.Last = now.UnixNano()
	}
}

// get sends a request and reads the answer. A client of net/http would take as much of the
// processor as the server.
func (v *visitor) get(key int) (status int, err error) {
	b := append(strconv.AppendInt(append(v.buf[:0], "GET /"...), int64(key), 10), " HTTP/1.1\r\nHost: crowd\r\n\r\n"...)
	if _, err := v.conn.Write(b); err != nil {
		return 0, err
	}
	for n := 0; ; {
		m, err := v.conn.Read(v.buf[n:])
		if err != nil {
			return 0, err
		}
		n += m
		head, body, ok := bytes.Cut(v.buf[:n], []byte("\r\n\r\n"))
		if !ok {
			continue
		}
		_, length, _ := bytes.Cut(head, []byte("Content-Length: "))
		length, _, _ = bytes.Cut(length, []byte("\r\n"))
		want, err := strconv.Atoi(string(length))
		if err != nil {
			return 0, fmt.Errorf("%q: %w", head, err)
		}
		if len(body) >= want {
			return strconv.Atoi(string(head[len("HTTP/1.1 "):][:3]))
		}
	}
}

// A front is a server with a proxy before its Redis.
type front struct {
	addr, redis   string
	server, proxy *child
}

func newFront(redis, kind string, rtt time.Duration) *front {
	f := &front{redis: redis}
	if rtt > 0 {
		f.proxy = start("delay", redis)
		f.redis = f.proxy.line()
		fmt.Fprintln(f.proxy.in, rtt)
	}
	f.server = start("serve", f.redis, kind)
	f.addr = f.server.line()
	return f
}

func (f *front) end() {
	f.server.end()
	if f.proxy != nil {
		f.proxy.end()
	}
}

// drive has clients send requests. It returns the answers, and how many requests the fallback
// has decided.
func (f *front) drive(connections, keys int, rate float64, d time.Duration) (a answers, fallback int) {
	task, err := json.Marshal(driven{f.addr, connections, keys, rate, d})
	if err != nil {
		log.Fatal(err)
	}
	c := start("drive", string(task))
	defer c.end()
	if err := json.Unmarshal([]byte(c.line()), &a); err != nil {
		log.Fatal(err)
	}
	fmt.Fprintln(f.server.in)
	var last int64
	fmt.Sscan(f.server.line(), &fallback, &last)
	a.Last = max(a.Last, last)
	return a, fallback
}

// crowd measures what 64, 1,000 and 4,000 connections to a server get, and what remains if
// requests come faster than the server can answer them.
func crowd(plain, _ string) {
	rtts, kinds, keys, d := []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond}, []string{"bare", "stack", peerName}, []int{1, 100, 100_000}, 2*time.Second
	if *quick {
		rtts, keys, d = rtts[:2], keys[1:2], time.Second
	}
	fmt.Println("A server of net/http with Middleware, its clients and Redis on the same processors. Each connection sends the next request when it has the answer; × is a multiple of the rate of 64 connections that 4,000 connections send at most. Decided by the store: a second, and as a part of what 64 connections get. Late PINGs: how many PINGs of another process took longer than the Timeout, by the same way.")
	fmt.Println("| round trip | store | keys | connections | decided | part | refused | by the fallback | let through | late PINGs | p50 | p99 | longest |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |")
	for _, rtt := range rtts {
		for _, kind := range kinds {
			for _, n := range keys {
				name := rtt.String()
				if rtt == 0 {
					name = "loopback"
				}
				if *one != "" && *one != name+" "+kind && *one != name {
					continue
				}
				f := newFront(plain, kind, rtt)
				f.drive(64, n, 0, d/4) // connects, and loads the scripts
				plateau := 0.0
				row := func(label string, connections int, rate float64) {
					pings := start("ping", f.redis)
					a, fallback := f.drive(connections, n, rate, d)
					pings.in.Close()
					late := pings.line()
					_ = pings.cmd.Wait()
					got := float64(a.Decided-fallback) / d.Seconds()
					if plateau == 0 {
						plateau = got
					}
					fmt.Printf("| %s | %s | %d | %s | %.0f | %.2f | %.0f | %.0f | %.0f | %s | %v | %v | %v |\n", name, kind, n, label, got, got/plateau,
						float64(a.Refused)/d.Seconds(), float64(fallback)/d.Seconds(), float64(a.Undecided+a.Other)/d.Seconds(), late, short(a.P50), short(a.P99), short(a.Longest))
				}
				for _, connections := range []int{64, 1000, 4000} {
					row(fmt.Sprint(connections), connections, 0)
				}
				if n == 100 {
					for _, times := range []float64{2, 20} {
						row(fmt.Sprintf("%v ×", times), 4000, times*plateau)
					}
					row("after, 0.5 ×", 64, plateau/2)
				}
				f.end()
			}
		}
	}
}

func short(d time.Duration) time.Duration { return d.Round(100 * time.Microsecond) }

// jump makes the round trip longer while a server gets 1,000 requests a second.
func jump(plain, _ string) {
	fmt.Println("1,000 requests a second over 200 connections. After a second the round trip becomes longer: how many requests of the next 4 s were not decided, and how long after the change the last of them was answered.")
	fmt.Println("| round trip | store | not decided | let through | until |\n| --- | --- | --- | --- | --- |")
	for _, c := range [][2]time.Duration{{time.Millisecond, 20 * time.Millisecond}, {5 * time.Millisecond, 22 * time.Millisecond}} {
		for _, kind := range []string{"bare", "stack"} {
			f := newFront(plain, kind, c[0])
			f.drive(64, 100, 1000, time.Second/2)
			var at atomic.Int64
			time.AfterFunc(time.Second, func() {
				at.Store(time.Now().UnixNano())
				fmt.Fprintln(f.proxy.in, c[1])
			})
			a, fallback := f.drive(200, 100, 1000, 5*time.Second)
			until := "at once"
			if a.Last > at.Load() {
				until = short(time.Duration(a.Last - at.Load())).String()
			}
			fmt.Printf("| %v to %v | %s | %d | %d | %s |\n", c[0], c[1], kind, a.all()-a.Decided+fallback, a.Undecided+a.Other, until)
			f.end()
		}
	}
}

// Take counts a transaction, and has the store decide it.
func (c *counted) Take(ctx context.Context, t *quota.Transaction) error {
	c.n.Add(1)
	c.last.Store(time.Now().UnixNano())
	return c.Store.Take(ctx, t)
}
