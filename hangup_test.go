package weir_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A moment says when the client of a request hangs up.
type moment string

const (
	beforeAsking   moment = "gone before the limiter"
	beforeDeciding moment = "gone before the decision"
	afterDeciding  moment = "gone before the store answers"
	whileServed    moment = "gone while it is served"
)

var moments = []moment{beforeAsking, beforeDeciding, afterDeciding, whileServed}

// goneKey is the context key of a channel that is closed when the client is gone.
type goneKey struct{}

func untilGone(ctx context.Context, at, now moment) {
	if gone, ok := ctx.Value(goneKey{}).(<-chan struct{}); ok && at == now {
		<-gone
	}
}

// A patient store waits until the client has hung up. The field when says whether it waits
// before or after it decides, or not at all.
type patient struct {
	next quota.Store
	when moment
}

func (p patient) Take(ctx context.Context, t *quota.Transaction) error {
	untilGone(ctx, beforeDeciding, p.when)
	err := p.next.Take(ctx, t)
	untilGone(ctx, afterDeciding, p.when)
	return err
}

func (p patient) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	return p.next.(quota.Batcher).TakeEach(ctx, ts)
}

// A protocol is a way to send n requests whose client hangs up on each.
type protocol struct {
	name     string
	connects bool // every request takes a new connection
	send     func(t *testing.T, addr string, n int)
}

var protocols = []protocol{
	{"HTTP/1.1 and a close", true, func(t *testing.T, addr string, n int) {
		slots := make(chan struct{}, 32)
		var wg sync.WaitGroup
		for range n {
			slots <- struct{}{}
			wg.Go(func() {
				defer func() { <-slots }()
				conn := dial(t, addr)
				io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
				conn.Close()
			})
		}
		wg.Wait()
	}},
	{"HTTP/2 and RST_STREAM", false, func(t *testing.T, addr string, n int) {
		const streams = 50 // requests of one connection; servers close a connection that resets many more requests
		for ; n > 0; n -= streams {
			conn := dial(t, addr)
			go io.Copy(io.Discard, conn)
			io.WriteString(conn, "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"+frame(4, 0, 0, ""))
			for i := range uint32(min(n, streams)) {
				const get = "\x82\x86\x84\x01\x01x"                                                  // GET, http, /, authority x
				io.WriteString(conn, frame(1, 5, 2*i+1, get)+frame(3, 0, 2*i+1, "\x00\x00\x00\x08")) // CANCEL
			}
			t.Cleanup(func() { conn.Close() })
		}
	}},
}

func dial(t *testing.T, addr string) net.Conn {
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Error(err)
		return &net.TCPConn{}
	}
	return conn
}

// frame returns a frame of HTTP/2 (RFC 9113, 4.1).
func frame(kind, flags byte, stream uint32, payload string) string {
	head := binary.BigEndian.AppendUint32(nil, uint32(len(payload))<<8|uint32(kind))
	return string(binary.BigEndian.AppendUint32(append(head, flags), stream)) + payload
}

// serveGone serves n requests, whose clients hang up at the given moment. It returns how
// often the handler ran and how often OnError was called.
func serveGone(t *testing.T, store quota.Store, limit quota.Limit, p protocol, when moment, n int) (ran, failed int64) {
	t.Helper()
	var handled, errs atomic.Int64
	l := must(t, store, weir.Options{
		Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []quota.Limit{limit}}},
		OnError: func(*http.Request, error) error {
			errs.Add(1)
			return nil // as the default OnError does
		},
	})
	limited := l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		handled.Add(1)
		untilGone(r.Context(), whileServed, when)
	}))
	var all sync.WaitGroup
	all.Add(n)
	server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer all.Done()
		ctx := context.WithValue(r.Context(), goneKey{}, r.Context().Done())
		untilGone(ctx, beforeAsking, when)
		limited.ServeHTTP(w, r.WithContext(ctx))
	}))
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	defer server.Close()
	p.send(t, server.Listener.Addr().String(), n)
	done := make(chan struct{})
	go func() { all.Wait(); close(done) }()
	select {
	case <-done:
	case <-time.After(time.Minute):
		t.Fatal("requests were lost on the way")
	}
	return handled.Load(), errs.Load()
}

// TestGone: a request whose client hangs up is charged, over both protocols and at every
// moment of the decision. The handler runs only for requests that the limit allows.
func TestGone(t *testing.T) {
	forever := func(units int64) quota.Limit { return algorithms.FixedWindow(units, 1000*time.Hour) }
	same := func(s quota.Store) quota.Store { return s }
	memory := func() quota.Store { return memstore.New(memstore.Options{}) }
	type wrap = func(quota.Store) quota.Store
	type redis = func() quota.Store
	for _, c := range []struct {
		name  string
		want  int64 // how often the handler runs
		store func(t *testing.T, base wrap, redis redis) quota.Store
	}{
		{"memory", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return base(memory()) }},
		{"Redis", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return base(redis()) }},
		{"Hybrid", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Hybrid(base(memory()), quota.HybridOptions{})
		}},
		{"Coalesce", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return quota.Coalesce(base(memory())) }},
		{"Lease", 5, func(t *testing.T, base wrap, redis redis) quota.Store { return leasing(t, base(memory())) }},
		{"Breaker and Fallback", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Fallback(quota.Breaker(base(memory()), quota.BreakerOptions{}), memory(), quota.FallbackOptions{})
		}},
		{"Share", 2, func(t *testing.T, base wrap, redis redis) quota.Store { return quota.Share(base(memory()), 2) }},
		{"the README's", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Fallback(quota.Hybrid(quota.Breaker(base(redis()), quota.BreakerOptions{}), quota.HybridOptions{MaxKeys: 100_000}), quota.Share(memory(), 4), quota.FallbackOptions{})
		}},
		{"the README's with leases", 5, func(t *testing.T, base wrap, redis redis) quota.Store {
			return quota.Fallback(quota.Breaker(leasing(t, quota.Coalesce(base(redis()))), quota.BreakerOptions{}), memory(), quota.FallbackOptions{})
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			addr := ""
			redis := func() quota.Store {
				if addr == "" {
					addr = redistest.Server(t).Addr()
				}
				return redisAt(t, addr, 20*time.Second)
			}
			for _, p := range protocols {
				n := goneRequests(c.name, p)
				for _, when := range moments {
					waits := func(s quota.Store) quota.Store { return patient{s, when} }
					limit := forever(5).Named(p.name + ", " + string(when))
					store := c.store(t, same, redis)
					checkGone(t, waits(store), store, limit, p, when, n, c.want) // the client hangs up while the outermost store is asked
					if when == beforeDeciding || when == afterDeciding {
						store := c.store(t, waits, redis)
						checkGone(t, store, store, limit.Named(limit.Name+", inside"), p, when, n, c.want) // the client hangs up while the innermost store is asked
					}
				}
			}
		})
	}
}

// checkGone sends n requests, whose clients hang up, to a Limiter with the first of two
// stores. It expects that the handler runs want times, and that the quota is then used up in
// the second store.
func checkGone(t *testing.T, front, store quota.Store, limit quota.Limit, p protocol, when moment, n int, want int64) {
	t.Helper()
	ran, failed := serveGone(t, front, limit, p, when, n)
	if ran != want || failed > 0 {
		t.Errorf("%s: the handler ran %d times of %d and %d failed, want %d and 0", limit.Name, ran, n, failed, want)
	}
	if err := quota.Wait(t.Context(), store, 0, quota.Charge{Rule: "api", Key: "127.0.0.1", Limit: limit, Cost: 1}); !errors.As(err, new(*quota.LimitedError)) {
		t.Errorf("%s: afterwards got %v, want the quota used up", limit.Name, err)
	}
}

// goneRequests returns how many requests TestGone sends to a store over the protocol p.
func goneRequests(store string, p protocol) int {
	if store != "memory" && p.connects { // a machine has only 28,000 ports for connections
		return min(rounds.N(50, 200), 200)
	}
	return rounds.N(50, 1000)
}

func leasing(t testing.TB, next quota.Store) *lease.Store {
	l := lease.New(next, lease.Options{})
	t.Cleanup(func() { l.Close(context.Background()) })
	return l
}

// TestGoneWhileTheStoreFails: an error of the store reaches the log, OnError, Observe and a
// breaker even if the client has hung up.
func TestGoneWhileTheStoreFails(t *testing.T) {
	for _, failure := range []error{errors.New("away"), context.Canceled, context.DeadlineExceeded} {
		for _, when := range moments[:3] {
			ctx, hangUp := context.WithCancel(t.Context())
			breaker := quota.Breaker(storeFunc(func(ctx context.Context, _ *quota.Transaction) error {
				if when != beforeAsking {
					hangUp()
				}
				return failure
			}), quota.BreakerOptions{Failures: 1, Cooldown: time.Hour})
			var out bytes.Buffer
			var told, seen error
			h := must(t, breaker, weir.Options{
				Rules:   []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []quota.Limit{algorithms.GCRA(1, time.Hour)}}},
				Logger:  slog.New(slog.NewTextHandler(&out, nil)),
				Observe: func(e weir.Event) { seen = e.Err },
				OnError: func(_ *http.Request, err error) error { told = err; return err },
			}).Handler(served)
			if when == beforeAsking {
				hangUp()
			}
			do(h, ask("/", "").WithContext(ctx))
			if told != failure || seen != failure || !strings.Contains(out.String(), failure.Error()) || !isOpen(breaker) {
				t.Errorf("%s, store fails with %q: OnError was told %v, Observe %v, the log %q, the breaker is open: %v",
					when, failure, told, seen, out.String(), isOpen(breaker))
			}
			hangUp()
		}
	}
}

// TestGoneLookup: the context that Policy gets does not end when the client hangs up.
func TestGoneLookup(t *testing.T) {
	ctx, hangUp := context.WithCancel(context.WithValue(t.Context(), quotaKey{}, "gold"))
	hangUp()
	h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Policy: func(r *http.Request) weir.Policy {
		if r.Context().Err() != nil || r.Context().Value(quotaKey{}) != "gold" {
			return weir.Unlimited()
		}
		return weir.Limited(algorithms.GCRA(1, time.Hour))
	}}}}).Handler(served)
	for _, want := range []int{200, 429} {
		if got := do(h, ask("/", "").WithContext(ctx)).StatusCode; got != want {
			t.Errorf("got %d, want %d", got, want)
		}
	}
}

type goneCase struct {
	when moment
	used int64 // units that are spent before the request
	err  error
	left time.Duration // how long the next request must then wait
	sent bool
}

// waysToWait has functions that send a request. A charge of the rule jobs may delay the
// request by up to an hour.
var waysToWait = []struct {
	name string
	send func(ctx context.Context, t *testing.T, store quota.Store, c quota.Charge) (sent bool, err error)
}{
	{"Wait", func(ctx context.Context, _ *testing.T, store quota.Store, c quota.Charge) (bool, error) {
		err := quota.Wait(ctx, store, time.Hour, c)
		return err == nil, err
	}},
	{"RoundTrip", func(ctx context.Context, t *testing.T, store quota.Store, c quota.Charge) (sent bool, err error) {
		l := must(t, store, weir.Options{MaxWait: time.Hour, Rules: []weir.Rule{{Name: "jobs", Key: func(*http.Request) (string, bool) { return "", true }, Limits: []quota.Limit{c.Limit}}}})
		_, err = transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { sent = true; return response(200), nil })}).RoundTrip(ask("/", "").WithContext(ctx))
		return sent, err
	}},
}

// TestGoneByHand: if the context of the caller ends before the call, or before the turn of
// the request, Wait and RoundTrip return the error of the context and leave no unit spent.
// If the context ends during the decision, but the request need not wait, the request is
// sent. The limit is 2 an hour, and 1 or 2 units are spent before the request.
func TestGoneByHand(t *testing.T) {
	for _, c := range []goneCase{
		{beforeAsking, 1, context.Canceled, 0, false},
		{beforeAsking, 2, context.Canceled, 30 * time.Minute, false},
		{beforeDeciding, 1, nil, 30 * time.Minute, true},
		{beforeDeciding, 2, context.Canceled, 30 * time.Minute, false},
		{afterDeciding, 1, nil, 30 * time.Minute, true},
		{afterDeciding, 2, context.Canceled, 30 * time.Minute, false},
	} {
		for _, way := range waysToWait {
			synctest.Test(t, func(t *testing.T) {
				memory := memstore.New(memstore.Options{})
				limit := algorithms.GCRA(2, time.Hour)
				charge := quota.Charge{Rule: "jobs", Limit: limit, Cost: c.used}
				reserve(t, memory, 0, charge)
				ctx, hangUp := context.WithCancel(t.Context())
				hangUpIf := func(now moment) {
					if c.when == now {
						hangUp()
					}
				}
				store := storeFunc(func(ctx context.Context, t *quota.Transaction) error {
					hangUpIf(beforeDeciding)
					defer hangUpIf(afterDeciding)
					return memory.Take(ctx, t)
				})
				charge.Cost = 1
				hangUpIf(beforeAsking)
				sent, err := way.send(ctx, t, store, charge)
				if !errors.Is(err, c.err) || sent != c.sent {
					t.Errorf("%s, %s, %d spent: got %v, sent: %v; want %v, %v", way.name, c.when, c.used, err, sent, c.err, c.sent)
				}
				if r := reserve(t, memory, time.Hour, charge); r.Delay() != c.left {
					t.Errorf("%s, %s, %d spent: the next waits %v, want %v", way.name, c.when, c.used, r.Delay(), c.left)
				}
			})
		}
	}
}

// TestHangUpsEverywhere: if clients hang up at random instants, exactly as many requests are
// served as the limit allows, and each refusal is a strike, through every decorator, with
// MaxWait and without. A request costs two units and gets one back, so the limit allows a
// request as long as two units are left. The test is for the race detector too.
func TestHangUpsEverywhere(t *testing.T) {
	memory := func() quota.Store { return memstore.New(memstore.Options{}) }
	for _, c := range []struct {
		name  string
		store func(leases func(next quota.Store) quota.Store) quota.Store
	}{
		{"memory", func(func(quota.Store) quota.Store) quota.Store { return memory() }},
		{"Hybrid", func(func(quota.Store) quota.Store) quota.Store { return quota.Hybrid(memory(), quota.HybridOptions{}) }},
		{"Coalesce", func(func(quota.Store) quota.Store) quota.Store { return quota.Coalesce(memory()) }},
		{"Coalesce, joined", func(func(quota.Store) quota.Store) quota.Store { // calls that take a while are shared
			slow := &distant{Store: memory()}
			slow.Trip.Store(int64(20 * time.Microsecond))
			return quota.Coalesce(slow)
		}},
		{"Lease", func(lease func(quota.Store) quota.Store) quota.Store { return lease(memory()) }},
		{"Breaker", func(func(quota.Store) quota.Store) quota.Store {
			return quota.Breaker(memory(), quota.BreakerOptions{})
		}},
		{"Fallback", func(func(quota.Store) quota.Store) quota.Store {
			return quota.Fallback(failing{errors.New("away")}, memory(), quota.FallbackOptions{})
		}},
		{"Share", func(func(quota.Store) quota.Store) quota.Store { return quota.Share(memory(), 1) }},
		{"all", func(lease func(quota.Store) quota.Store) quota.Store {
			return quota.Fallback(quota.Breaker(lease(quota.Hybrid(quota.Coalesce(memory()), quota.HybridOptions{})), quota.BreakerOptions{}), quota.Share(memory(), 4), quota.FallbackOptions{})
		}},
	} {
		for _, wait := range []time.Duration{0, time.Nanosecond, time.Hour} {
			var leases *lease.Store
			store := c.store(func(next quota.Store) quota.Store {
				leases = lease.New(next, lease.Options{})
				return leases
			})
			checkHangUps(t, c.name, wait, store, leases)
		}
	}
}

// The quota of TestHangUpsEverywhere, and the number of strikes that begins a ban.
const hangUpQuota, hangUpStrikes = 100, 700

// checkHangUps sends requests whose clients hang up, and checks how many were served and refused.
func checkHangUps(t *testing.T, name string, wait time.Duration, store quota.Store, leases *lease.Store) {
	t.Helper()
	const clients, each = 8, 75
	var n hangUpCounts
	h := n.handler(t, store, wait)
	together(clients, func(int) { hangUpAtRandom(t, h, each) })
	if leases != nil { // leased units that are left are given back
		if err := leases.Close(t.Context()); err != nil {
			t.Error(err)
		}
	}
	for n.banned.Load() == 0 && n.refused.Load() < hangUpStrikes { // units that were given back are spent, and then each request is a strike
		do(h, ask("/", "192.0.2.1:4"))
	}
	if n.ran.Load() != hangUpQuota-1 || n.failed.Load() > 0 {
		t.Errorf("%s, MaxWait %v: the handler ran %d times and %d failed, want %d and 0", name, wait, n.ran.Load(), n.failed.Load(), hangUpQuota-1)
	}
	if n.refused.Load() != hangUpStrikes-1 || n.banned.Load() != 1 {
		t.Errorf("%s, MaxWait %v: the limit refused %d times before a ban, and %d bans refused, want %d and 1", name, wait, n.refused.Load(), n.banned.Load(), hangUpStrikes-1)
	}
}

// hangUpCounts has the numbers of requests that ran, that failed, and that a limit or a ban refused.
type hangUpCounts struct{ ran, failed, refused, banned atomic.Int64 }

// handler returns a limited handler that counts in n what happens to its requests.
func (n *hangUpCounts) handler(t *testing.T, store quota.Store, wait time.Duration) http.Handler {
	t.Helper()
	return must(t, store, weir.Options{
		Rules: []weir.Rule{{
			Name: "api", Key: weir.ByIP(), Limits: []quota.Limit{algorithms.FixedWindow(hangUpQuota, 1000*time.Hour)},
			Cost: func(*http.Request) int64 { return 2 }, Settle: func(o weir.Outcome) int64 { return o.Cost - 1 },
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(hangUpStrikes, 1000*time.Hour), Duration: time.Hour},
		}},
		MaxWait: wait,
		OnError: func(_ *http.Request, err error) error { n.failed.Add(1); return err },
		Observe: n.observe,
	}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { n.ran.Add(1) }))
}

// observe counts the refusals of the limit and of bans.
func (n *hangUpCounts) observe(e weir.Event) {
	switch e.Refusal.Reason {
	case weir.ReasonLimit:
		n.refused.Add(1)
	case weir.ReasonBan:
		n.banned.Add(1)
	}
}

// hangUpAtRandom sends n requests. The client of every fourth request hangs up before the
// request is sent, and the other clients hang up at random instants.
func hangUpAtRandom(t *testing.T, h http.Handler, n int) {
	for i := range n {
		ctx, hangUp := context.WithCancel(t.Context())
		if i%4 == 0 {
			hangUp()
		}
		go hangUp()
		do(h, ask("/", "192.0.2.1:4").WithContext(ctx))
	}
}
