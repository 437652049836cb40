// Load measures how redisstore decides when there are too many calls, and when the network
// fails for a moment. It starts a redis-server on loopback, and a proxy that delays the
// server's answers by a round trip. It ends by itself.
//
//	go run -C _bench ./load                    # all tables, three minutes
//	go run -C _bench ./load -quick             # fewer, shorter rounds
//	go run -C _bench ./load -only plateau      # or spike, blip, hole, connect, eviction, crowd, jump, stop, busy
//	go run -C _bench ./load -only plateau -coalesce
package main

import (
	"context"
	"crypto/tls"
	"flag"
	"fmt"
	"log"
	"os"
	"regexp"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

const password = "a password"

var (
	only     = flag.String("only", "", "the `table` to print: plateau, spike, blip, hole, connect, eviction, crowd, jump, stop, busy; empty is all")
	quick    = flag.Bool("quick", false, "fewer and shorter rounds")
	coalesce = flag.Bool("coalesce", false, "put Coalesce before the store")
	verbose  = flag.Bool("v", false, "print the errors of calls that were not decided on stderr")
	one      = flag.String("way", "", "measure one `round trip` only, such as \"20 ms, TLS+AUTH\"")
	keys     = flag.Int("keys", 1000, "number of keys that are charged")
)

func main() {
	log.SetFlags(0)
	if role := roles[os.Getenv(roleVar)]; role != nil {
		role(os.Args[1:])
		return
	}
	flag.Parse()
	redis.SetLogger(quiet{})
	p := &redistest.Program{}
	defer p.End()
	plain, secure := redistest.Server(p), redistest.Server(p)
	if _, err := secure.Do("CONFIG", "SET", "requirepass", password); err != nil {
		p.Fatal(err)
	}
	for _, t := range []struct {
		name  string
		print func(plain, secure string)
	}{{"plateau", plateau}, {"spike", spike}, {"blip", blip}, {"hole", hole}, {"connect", connect}, {"eviction", eviction}, {"crowd", crowd}, {"jump", jump}, {"stop", stop}, {"busy", busy}} {
		if *only == "" || *only == t.name {
			t.print(plain.Addr(), secure.Addr())
			fmt.Println()
		}
	}
}

// A line is a store whose client reaches Redis through a proxy.
type line struct {
	*proxy
	rdb   redis.UniversalClient
	store quota.Store
}

func open(server string, secure bool, rtt, timeout time.Duration, tuned bool) *line {
	p, err := newProxy(server, secure)
	if err != nil {
		log.Fatal(err)
	}
	p.delay.Store(int64(rtt))
	o := &redis.UniversalOptions{Addrs: []string{p.addr()}}
	if tuned {
		o = redisstore.ClientOptions(timeout, p.addr())
	}
	if secure {
		o.Password, o.TLSConfig = password, &tls.Config{InsecureSkipVerify: true}
	}
	l := &line{proxy: p, rdb: redis.NewUniversalClient(o)}
	store, err := redisstore.New(l.rdb, redisstore.Options{Timeout: timeout})
	if err != nil {
		log.Fatal(err)
	}
	if l.store = store; *coalesce {
		l.store = quota.Coalesce(store)
	}
	return l
}

func (l *line) close() {
	l.rdb.Close()
	l.ln.Close()
}

// A count counts calls by their results.
type count struct {
	decided, refused, failed atomic.Int64
	slowest                  atomic.Int64 // how long the slowest call took, in ns
	mu                       sync.Mutex
	why                      map[string]int // how many calls were not decided, by their errors
}

var limit = algorithms.GCRA(1_000_000, time.Second)

func (l *line) ask(c *count, tx *quota.Transaction, key int) bool {
	tx.Charges = append(tx.Charges[:0], quota.Charge{Rule: "r", Key: fmt.Sprint(key % *keys), Limit: limit, Cost: 1})
	begin := time.Now()
	err := l.store.Take(context.Background(), tx)
	took := int64(time.Since(begin))
	for old := c.slowest.Load(); took > old && !c.slowest.CompareAndSwap(old, took); old = c.slowest.Load() {
	}
	if err == nil {
		c.decided.Add(1)
		return true
	}
	if *verbose {
		c.mu.Lock()
		if c.why == nil {
			c.why = map[string]int{}
		}
		c.why[ports.ReplaceAllString(err.Error(), ":port")]++
		c.mu.Unlock()
	}
	if strings.Contains(err.Error(), "busy") {
		c.refused.Add(1)
	} else {
		c.failed.Add(1)
	}
	return false
}

var ports = regexp.MustCompile(`:\d+`)

func (c *count) explain() {
	if *verbose {
		fmt.Fprintln(os.Stderr, c.decided.Load(), "decided;", c.why, "slowest", time.Duration(c.slowest.Load()))
	}
}

// closed lets n callers each make one call after the other for the duration d. After an error
// a caller waits for 50 ms, the default Timeout, and goes on with another key.
func (l *line) closed(n int, d time.Duration) *count {
	c := &count{}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			var tx quota.Transaction
			for k := i; ctx.Err() == nil; k += n {
				if !l.ask(c, &tx, k) {
					time.Sleep(50 * time.Millisecond)
				}
			}
		})
	}
	wg.Wait()
	return c
}

// open makes the given number of calls a second for the duration d. It does not wait for one
// call before the next.
func (l *line) open(rate float64, d time.Duration) *count {
	c := &count{}
	var wg sync.WaitGroup
	begin := time.Now()
	for sent := 0; ; time.Sleep(time.Millisecond) {
		passed := min(time.Since(begin), d)
		for ; float64(sent) < rate*passed.Seconds(); sent++ {
			k := sent
			wg.Go(func() { l.ask(c, new(quota.Transaction), k) })
		}
		if passed == d {
			break
		}
	}
	wg.Wait()
	return c
}

// ready makes calls until a call is decided or the time is over. It returns how long that took,
// and whether a call was decided.
func (l *line) ready(within time.Duration) (time.Duration, bool) {
	begin := time.Now()
	var c count
	for time.Since(begin) < within {
		if l.ask(&c, new(quota.Transaction), 0) {
			return time.Since(begin), true
		}
		time.Sleep(time.Millisecond)
	}
	return within, false
}

type way struct {
	name   string
	secure bool
	rtt    time.Duration
}

var ways = []way{
	{"loopback", false, 0}, {"5 ms", false, 5 * time.Millisecond}, {"20 ms", false, 20 * time.Millisecond},
	{"loopback, TLS+AUTH", true, 0}, {"5 ms, TLS+AUTH", true, 5 * time.Millisecond}, {"20 ms, TLS+AUTH", true, 20 * time.Millisecond},
}

func (w way) open(plain, secure string) *line {
	if w.secure {
		return open(secure, true, w.rtt, 0, true)
	}
	return open(plain, false, w.rtt, 0, true)
}

// plateau measures how many decisions a second 100 to 2,000 concurrent callers get. With more
// callers the number should not fall.
func plateau(plain, secure string) {
	d := 2 * time.Second
	if *quick {
		d = 500 * time.Millisecond
	}
	steps := []int{100, 200, 400, 1000, 2000}
	fmt.Println("Decisions a second, by the number of concurrent callers. The last column is the worst ratio of a rate to the best rate with fewer callers.")
	fmt.Print("| round trip |")
	for _, n := range steps {
		fmt.Printf(" %d |", n)
	}
	fmt.Print(" least |\n| --- |", strings.Repeat(" --- |", len(steps)+1), "\n")
	for _, w := range ways {
		if *one != "" && *one != w.name {
			continue
		}
		l := w.open(plain, secure)
		l.ready(5 * time.Second)
		l.closed(steps[0], d/2)
		fmt.Printf("| %s |", w.name)
		most, least := 0.0, 1.0
		for _, n := range steps {
			c := l.closed(n, d)
			c.explain()
			rate := float64(c.decided.Load()) / d.Seconds()
			if most > 0 {
				least = min(least, rate/most)
			}
			most = max(most, rate)
			fmt.Printf(" %.0f (%d refused, %d failed) |", rate, c.refused.Load(), c.failed.Load())
		}
		fmt.Printf(" %.2f |\n", least)
		l.close()
	}
}

// spike measures calls at 1,000 a second, then two seconds at 6, 20 or 60 times that rate,
// then one second at 1,000 again.
func spike(plain, secure string) {
	times := []float64{6, 20, 60}
	fmt.Println("How many calls were decided: at 1,000 a second, in a spike of 2 s, and in the second after it; and the slowest call of the spike.")
	fmt.Println("| round trip | spike | before | in the spike | slowest call | after |\n| --- | --- | --- | --- | --- | --- |")
	for _, w := range ways {
		if *one != "" && *one != w.name {
			continue
		}
		for _, x := range times {
			l := w.open(plain, secure)
			l.ready(5 * time.Second)
			before := l.open(1000, time.Second)
			in := l.open(1000*x, 2*time.Second)
			after := l.open(1000, time.Second)
			for _, c := range []*count{before, in, after} {
				c.explain()
			}
			share := func(c *count) string {
				d, r, f := c.decided.Load(), c.refused.Load(), c.failed.Load()
				return fmt.Sprintf("%d of %d (%d refused)", d, d+r+f, r)
			}
			fmt.Printf("| %s | %.0f × | %s | %s | %v | %s |\n", w.name, x, share(before), share(in),
				time.Duration(in.slowest.Load()).Round(time.Millisecond), share(after))
			l.close()
		}
	}
}

// blip makes 1,000 calls a second while the proxy holds all answers back for 60 ms.
func blip(plain, secure string) {
	fmt.Println("Calls that were not decided, of 1,000 a second for 2 s, when no answer arrives for 60 ms: without a breaker and with one.")
	fmt.Println("| round trip | store alone | with Breaker |\n| --- | --- | --- |")
	for _, w := range ways[:3] {
		fmt.Printf("| %s |", w.name)
		for _, breaker := range []bool{false, true} {
			l := w.open(plain, secure)
			l.ready(5 * time.Second)
			if breaker {
				l.store = quota.Breaker(l.store, quota.BreakerOptions{})
			}
			time.AfterFunc(500*time.Millisecond, func() { l.stop(60 * time.Millisecond) })
			c := l.open(1000, 2*time.Second)
			c.explain()
			fmt.Printf(" %d |", c.refused.Load()+c.failed.Load())
			l.close()
		}
		fmt.Println()
	}
}

// hole lets the proxy lose all answers for a while, and measures how soon afterwards calls
// are decided again.
func hole(plain, secure string) {
	fmt.Println("Time from the end of a black hole to the first decision, and to the last failure, at 500 calls a second. The client is made by ClientOptions (tuned) or has the defaults of go-redis.")
	fmt.Println("| hole | tuned | defaults |\n| --- | --- | --- |")
	for _, d := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second} {
		fmt.Printf("| %v |", d)
		for _, tuned := range []bool{true, false} {
			l := open(plain, false, time.Millisecond, 0, tuned)
			l.ready(5 * time.Second)
			var first, last atomic.Int64
			var end atomic.Int64
			time.AfterFunc(300*time.Millisecond, func() {
				l.lost.Store(true)
				time.Sleep(d)
				l.lost.Store(false)
				end.Store(time.Now().UnixNano())
			})
			stop := time.Now().Add(300*time.Millisecond + d + 6*time.Second)
			var wg sync.WaitGroup
			for i := 0; time.Now().Before(stop); i++ {
				wg.Go(func() {
					ok := l.ask(&count{}, new(quota.Transaction), i)
					if e := end.Load(); e > 0 {
						if since := time.Now().UnixNano() - e; ok {
							first.CompareAndSwap(0, since)
						} else {
							last.Store(since)
						}
					}
				})
				time.Sleep(2 * time.Millisecond)
			}
			wg.Wait()
			fmt.Printf(" %v, %v |", time.Duration(first.Load()).Round(time.Millisecond), time.Duration(last.Load()).Round(time.Millisecond))
			l.close()
		}
		fmt.Println()
	}
}

// connect measures how soon a new process gets its first decision, by the round trip to
// Redis.
func connect(plain, secure string) {
	fmt.Println("Time to the first decision of a new client, with TLS and AUTH, and how many calls are then decided of 100 a second for 2 s.")
	fmt.Println("| round trip | Timeout | client | first | then |\n| --- | --- | --- | --- | --- |")
	for _, c := range []struct{ rtt, timeout time.Duration }{
		{5 * time.Millisecond, 0}, {20 * time.Millisecond, 0}, {90 * time.Millisecond, 250 * time.Millisecond},
	} {
		for _, tuned := range []bool{true, false} {
			l := open(secure, true, c.rtt, c.timeout, tuned)
			name := map[bool]string{true: "tuned", false: "defaults"}[tuned]
			first, ok := l.ready(5 * time.Second)
			then := l.open(100, 2*time.Second)
			then.explain()
			fmt.Printf("| %v | %v | %s | %v %v | %d of 200 |\n", c.rtt, c.timeout, name, first.Round(time.Millisecond), map[bool]string{false: "never"}[ok], then.decided.Load())
			l.close()
		}
	}
}

// quiet is a logger for go-redis that drops everything.
type quiet struct{}

func (quiet) Printf(context.Context, string, ...any) {}
