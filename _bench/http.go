package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"time"

	tollbooth "github.com/didip/tollbooth/v7"
	tblimiter "github.com/didip/tollbooth/v7/limiter"
	"github.com/go-chi/httprate"
	"github.com/sethvargo/go-limiter/httplimit"
	"github.com/sethvargo/go-limiter/memorystore"
	"github.com/throttled/throttled/v2"
	throttledmem "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	ululehttp "github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	ululemem "github.com/ulule/limiter/v3/drivers/store/memory"
	"golang.org/x/time/rate"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// A response is a ResponseWriter that keeps the status and header fields and discards the
// body.
type response struct {
	header http.Header
	status int
}

func (r *response) Header() http.Header         { return r.header }
func (r *response) Write(p []byte) (int, error) { return len(p), nil }
func (r *response) WriteHeader(status int)      { r.status = status }

// middlewares are the contenders as middleware. Each middleware limits the requests of a client
// address and sets header fields.
var middlewares = []struct {
	name string
	open func(quota int64, period time.Duration) func(http.Handler) http.Handler
}{
	{weirName, func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		return weir.Middleware(memstore.New(memstore.Options{}), "api", weir.ByIP(), algorithms.GCRA(quota, period))
	}},
	{weirName + ", NoFromContext", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		return weirWith(weir.Options{NoFromContext: true}, quota, period)
	}},
	{weirName + ", Observe", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		return weirWith(weir.Options{Observe: func(weir.Event) {}}, quota, period)
	}},
	{"httprate", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		return httprate.LimitByIP(int(quota), period)
	}},
	{"go-limiter", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		if quota == plenty {
			quota, period = 1<<40, time.Hour
		}
		s := must(memorystore.New(&memorystore.Config{Tokens: uint64(quota), Interval: period}))
		return must(httplimit.NewMiddleware(s, httplimit.IPKeyFunc())).Handle
	}},
	{byHandName, byHand},
	{"throttled", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		l := must(throttled.NewGCRARateLimiterCtx(must(throttledmem.NewCtx(1<<16)), throttled.RateQuota{MaxRate: throttled.PerDuration(int(quota), period), MaxBurst: int(quota) - 1}))
		h := throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{RemoteAddr: true}}
		return h.RateLimit
	}},
	{"ulule", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		return ululehttp.NewMiddleware(limiter.New(ululemem.NewStore(), limiter.Rate{Period: period, Limit: quota})).Handler
	}},
	{"tollbooth", func(quota int64, period time.Duration) func(http.Handler) http.Handler {
		l := tollbooth.NewLimiter(float64(quota)/period.Seconds(), &tblimiter.ExpirableOptions{DefaultExpirationTTL: time.Hour}).SetBurst(int(quota))
		return func(next http.Handler) http.Handler { return tollbooth.LimitHandler(l, next) }
	}},
}

const byHandName = "x/time/rate in a map, by hand"

// byHand is what many programs have in place of a library: a rate.Limiter for each client address. The
// targets compare with libraries, and with byHand where fields are new each time.
func byHand(quota int64, period time.Duration) func(http.Handler) http.Handler {
	var limiters sync.Map
	every := rate.Limit(float64(quota) / period.Seconds())
	limit := strconv.FormatInt(quota, 10)
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			host, _, _ := net.SplitHostPort(r.RemoteAddr)
			l, ok := limiters.Load(host)
			if !ok {
				l, _ = limiters.LoadOrStore(host, rate.NewLimiter(every, int(quota)))
			}
			allowed := l.(*rate.Limiter).Allow()
			w.Header().Set("X-RateLimit-Limit", limit)
			w.Header().Set("X-RateLimit-Remaining", strconv.Itoa(max(0, int(l.(*rate.Limiter).Tokens()))))
			if !allowed {
				w.Header().Set("Retry-After", strconv.Itoa(int(1/float64(every))+1))
				http.Error(w, "Too Many Requests", http.StatusTooManyRequests)
				return
			}
			next.ServeHTTP(w, r)
		})
	}
}

// weirWith returns Weir's middleware with the options and a limit for each client address.
func weirWith(o weir.Options, quota int64, period time.Duration) func(http.Handler) http.Handler {
	o.Rules = []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(quota, period)}}}
	return must(weir.New(memstore.New(memstore.Options{}), o)).Handler
}

// costs are what requests to a handler take, one measurement for each round.
type costs struct{ ns, allocs, bytes series }

// measure sends ops requests to a handler and adds what one of them takes to c. It returns the
// ns, or an error if an answer has another status than want. change, if not nil, changes r
// before each request.
func (c *costs) measure(h http.Handler, r *http.Request, change func(*http.Request), ops, want int) (float64, error) {
	w := &response{header: http.Header{}}
	serve := func() {
		clear(w.header)
		if change != nil {
			change(r)
		}
		h.ServeHTTP(w, r)
	}
	for range 3 { // the first refusal follows a request that is allowed, and the first bans
		serve()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	start := time.Now()
	for range ops {
		if serve(); w.status != want {
			return 0, fmt.Errorf("a wrong decision: got %d, want %d", w.status, want)
		}
	}
	ns := float64(time.Since(start)) / float64(ops)
	runtime.ReadMemStats(&after)
	c.ns = append(c.ns, ns)
	c.allocs = append(c.allocs, float64(after.Mallocs-before.Mallocs)/float64(ops))
	c.bytes = append(c.bytes, float64(after.TotalAlloc-before.TotalAlloc)/float64(ops))
	return ns, nil
}

// middleware measures a whole request through the middleware of each contender.
func middleware(o options) ([]*table, error) {
	t := &table{title: "Whole middleware with fields", note: fmt.Sprintf("ns, bytes and allocations per request; ns are the least of %d rounds (and the median). Weir puts the decision into the context of the request, for handlers, and copies the request for this; NoFromContext turns this off.", o.short()),
		header: []string{"", "allowed", "B", "allocations", "Remaining falls", "B", "allocations", "denied", "B", "allocations"}}
	cells := make([][]any, len(middlewares))
	for i, m := range middlewares {
		cells[i] = []any{m.name}
	}
	verdicts := []any{"**target**"}
	for _, s := range []struct {
		name   string
		quota  int64
		period time.Duration
		status int
		target float64
		allocs int
	}{{"allowed", plenty, time.Second, http.StatusOK, 0.55, 2}, {"falls", 1_000_000, 24 * time.Hour, http.StatusOK, 0.85, 2}, {"denied", 1, time.Hour, http.StatusTooManyRequests, 0.3, 0}} {
		handlers := make([]http.Handler, len(middlewares))
		for i, m := range middlewares {
			handlers[i] = m.open(s.quota, s.period)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) }))
		}
		r := httptest.NewRequest("GET", "/", nil)
		r.RemoteAddr = "192.0.2.1:4711"
		all := make([]costs, len(handlers))
		results, err := interleave(len(handlers), o.short(), func(i int) (float64, error) {
			ns, err := all[i].measure(handlers[i], r, nil, 500, s.status)
			if err != nil {
				err = fmt.Errorf("%s: %s: %w", s.name, middlewares[i].name, err)
			}
			return ns, err
		})
		if err != nil {
			return nil, err
		}
		var peers []float64
		ch := chart{File: "middleware-" + s.name, Title: "Whole middleware with fields: " + s.name, Unit: "ns"}
		for i, res := range results {
			cells[i] = append(cells[i], res.leastAndMedian(), fmt.Sprintf("%.0f", all[i].bytes.median()), fmt.Sprintf("%.0f", all[i].allocs.median()))
			if name := middlewares[i].name; !strings.HasPrefix(name, weirName) && (name != byHandName || s.name == "falls") {
				peers = append(peers, res.least())
			}
			ch.Bars = append(ch.Bars, bar{middlewares[i].name, res.least()})
		}
		if s.name != "falls" {
			t.charts = append(t.charts, ch)
		}
		verdicts = append(verdicts, against(results[0].least(), peers, s.target), "", fmt.Sprintf("at most %d", s.allocs))
	}
	for _, c := range cells {
		t.add(c...)
	}
	t.add(verdicts...)
	crowded, err := oneClient(o)
	return []*table{t, crowded}, err
}

// oneClient measures the requests of one client on several goroutines. Like a server, the process has
// other data: with an empty heap, it would collect its garbage after every 4 MB, and the time that this
// takes depends on other programs more than on the contender.
func oneClient(o options) (*table, error) {
	other := make([]byte, 64<<20)
	defer runtime.KeepAlive(other)
	rounds := o.pick(7, 1)
	t := &table{title: "The middleware, one client on several goroutines", note: fmt.Sprintf("ns per allowed request, in a process with 64 MB of other data: the median of %d rounds (and the least).", rounds), header: []string{""}}
	cells := make([][]any, len(middlewares))
	for i, m := range middlewares {
		cells[i] = []any{m.name}
	}
	verdicts := []any{"**target**"}
	for _, goroutines := range []int{1, 2, 8} {
		t.header = append(t.header, fmt.Sprint(goroutines))
		handlers := make([]http.Handler, len(middlewares))
		for i, m := range middlewares {
			handlers[i] = m.open(plenty, time.Second)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(http.StatusOK) }))
		}
		results, err := interleave(len(handlers), rounds, func(i int) (float64, error) {
			runtime.GC() // so that each contender collects only its own garbage
			ns, err := nsPerCheck(func() check { return requestsOf(handlers[i]) }, keysOf(1), goroutines, o.pick(300_000, 800), true)
			if err != nil {
				err = fmt.Errorf("%d goroutines: %s: %w", goroutines, middlewares[i].name, err)
			}
			return ns, err
		})
		if err != nil {
			return nil, err
		}
		var peers []float64
		for i, r := range results {
			cells[i] = append(cells[i], fmt.Sprintf("%.0f (%.0f)", r.median(), r.least()))
			if name := middlewares[i].name; !strings.HasPrefix(name, weirName) && name != byHandName {
				peers = append(peers, r.median())
			}
		}
		verdicts = append(verdicts, against(results[0].median(), peers, 0.75))
	}
	for _, c := range cells {
		t.add(c...)
	}
	t.add(verdicts...)
	return t, nil
}

// requestsOf returns a check that sends a request of the client of its key to a handler.
func requestsOf(h http.Handler) check {
	w, r, client := &response{header: http.Header{}}, httptest.NewRequest("GET", "/", nil), ""
	return func(key string) (bool, error) {
		clear(w.header)
		if key != client { // net/http formats the address once for each connection
			client, r.RemoteAddr = key, key+":4711"
		}
		h.ServeHTTP(w, r)
		return w.status == http.StatusOK, nil
	}
}
