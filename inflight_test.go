package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

func inFlight(n int64, lease time.Duration) []weir.Rule {
	return []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.InFlight(n, lease)}}}
}

// TestInFlight: a request holds its unit until its handler returns or panics, even if that
// takes longer than the lease or the client hangs up, through every decorator.
func TestInFlight(t *testing.T) {
	for name, around := range map[string]func(weir.Store) weir.Store{
		"alone":    func(s weir.Store) weir.Store { return s },
		"hybrid":   func(s weir.Store) weir.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"breaker":  func(s weir.Store) weir.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"fallback": func(s weir.Store) weir.Store { return quota.Fallback(s, memory(), quota.FallbackOptions{}) },
		"coalesce": func(s weir.Store) weir.Store { return quota.Coalesce(s) },
		"share":    func(s weir.Store) weir.Store { return quota.Share(s, 1) },
		"lease":    func(s weir.Store) weir.Store { return lease.New(s, lease.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := around(memory())
				done := make(chan func())
				h := must(t, store, weir.Options{Headers: headers.IETF, Rules: inFlight(2, time.Minute)}).
					Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (<-done)() }))
				start := func(ctx context.Context) {
					go func() {
						defer func() { _ = recover() }()
						h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4").WithContext(ctx))
					}()
					synctest.Wait()
				}
				held := func(want int64) {
					t.Helper()
					look := take(t, store, 0, quota.Charge{Rule: "api", Key: "192.0.2.1", Limit: algorithms.InFlight(2, time.Minute)})
					if got := 2 - look.Decisions[0].Remaining; got != want {
						t.Errorf("after %v: got %d in flight, want %d", time.Since(time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC)), got, want)
					}
				}
				end := func(f func()) { done <- f; synctest.Wait() }
				gone, hangUp := context.WithCancel(t.Context())

				start(t.Context())
				start(gone)
				held(2)
				res := do(h, ask("/", "192.0.2.1:4"))
				if got := fmt.Sprint(res.StatusCode, res.Header["Ratelimit-Policy"], res.Header["Ratelimit"], res.Header["Retry-After"]); got != `429 ["api";q=2;qu="concurrent-requests"] ["api";r=0] []` {
					t.Errorf("a third request: got %s", got)
				}
				hangUp() // the handler still runs
				held(2)
				end(func() {})
				held(1)
				start(t.Context())
				end(func() { panic(http.ErrAbortHandler) })
				held(1)
				for range 20 { // for ten times the lease, so the unit is renewed
					time.Sleep(31 * time.Second)
					held(1)
				}
				end(func() {})
				held(0)
				time.Sleep(time.Hour) // a timer that is left would renew the units
				held(0)
			})
		})
	}
}

// TestInFlightModel: in random schedules of requests that begin and end, the store counts
// exactly the requests in flight.
func TestInFlightModel(t *testing.T) {
	schedules := rounds.N(3000, 100_000)
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 8))
	for schedules > 0 {
		synctest.Test(t, func(t *testing.T) {
			store := memory()
			for range 500 { // several schedules in one bubble of synctest, because making a bubble takes longer than a schedule
				schedules--
				newFlights(t, r, store, strconv.Itoa(schedules)).run(t, seed)
			}
		})
	}
}

// flights has a limit of requests in flight, and the requests of its key that are in
// flight.
type flights struct {
	r     *rand.Rand
	store weir.Store
	key   string
	n     int64
	limit weir.Limit
	h     http.Handler
	enter chan chan bool // receives the channel of each request that begins
	held  []chan bool    // a value that is sent to one of them ends its request; true makes the handler panic
}

func newFlights(t *testing.T, r *rand.Rand, store weir.Store, key string) *flights {
	f := &flights{r: r, store: store, key: key, n: 1 + r.Int64N(4), enter: make(chan chan bool, 1)}
	f.limit = algorithms.InFlight(f.n, time.Duration(2+r.IntN(100))*time.Millisecond)
	limits := []weir.Limit{f.limit}
	if r.IntN(2) == 0 { // with a second limit, which refuses some requests
		limits = append(limits, algorithms.FixedWindow(8, 1000*time.Hour))
	}
	f.h = must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: limits}}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		leave := make(chan bool)
		f.enter <- leave
		if <-leave {
			panic(http.ErrAbortHandler)
		}
	}))
	return f
}

// run takes twelve steps. After each step it compares what the store counts with the
// requests in flight.
func (f *flights) run(t *testing.T, seed uint64) {
	t.Helper()
	for range 12 {
		f.step()
		synctest.Wait()
		select {
		case leave := <-f.enter:
			f.held = append(f.held, leave)
		default:
		}
		if int64(len(f.held)) > f.n {
			t.Fatalf("seed %d: %d in flight, want at most %d", seed, len(f.held), f.n)
		}
		look := take(t, f.store, 0, quota.Charge{Rule: "api", Key: f.key, Limit: f.limit})
		if got := f.n - look.Decisions[0].Remaining; got != int64(len(f.held)) {
			t.Fatalf("seed %d: the store counts %d of %d in flight", seed, got, len(f.held))
		}
	}
	for _, leave := range f.held {
		leave <- false
	}
	synctest.Wait()
}

// step ends a request, sleeps, or sends a request.
func (f *flights) step() {
	switch k := f.r.IntN(4); {
	case k == 0 && len(f.held) > 0:
		i := f.r.IntN(len(f.held))
		f.held[i] <- f.r.IntN(3) == 0
		f.held = slices.Delete(f.held, i, i+1)
	case k == 1:
		time.Sleep(time.Duration(f.r.Int64N(int64(2 * f.limit.Period))))
	default:
		go func() {
			defer func() { _ = recover() }()
			f.h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4", "Key", f.key))
		}()
	}
}

// TestInFlightRefused: a request that is refused holds no unit, not even of a rule in
// shadow.
func TestInFlightRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		flight := algorithms.InFlight(3, time.Hour)
		api := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{flight}, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(1, time.Hour), Duration: time.Hour}}
		shadow := weir.Rule{Name: "shadow", Key: weir.Global(), Limits: []weir.Limit{flight}, Enforce: weir.Percent(0)}
		other := weir.Rule{Name: "other", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)}}
		l := must(t, store, weir.Options{Rules: []weir.Rule{api, shadow, other}})
		again := must(t, store, weir.Options{Rules: []weir.Rule{api}}) // another process, which has not learned of the ban
		var during int64
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { during = left(t, store, "shadow", flight) }))
		for i, want := range []int{200, 429, 200} {
			if i == 2 {
				if err := l.Ban(t.Context(), "api", "", time.Hour); err != nil {
					t.Fatal(err)
				}
				h, want = again.Handler(served), 429 // the call that finds the ban has also charged the request, so the unit is given back
			}
			if got := do(h, ask("/", "192.0.2.1:4")).StatusCode; got != want {
				t.Errorf("request %d: got %d, want %d", i, got, want)
			}
			if a, b := left(t, store, "api", flight), left(t, store, "shadow", flight); a != 3 || b != 3 || during != 2 {
				t.Errorf("request %d: got %d and %d left, want 3 and 3; during the first request %d, want 2", i, a, b, during)
			}
		}
	})
	_, err := quota.Reserve(t.Context(), memory(), time.Hour, quota.Charge{Rule: "api", Limit: algorithms.InFlight(1, time.Minute), Cost: 2})
	var limited *quota.LimitedError
	if !errors.As(err, &limited) || limited.RetryAfter() != quota.Never {
		t.Errorf("got %v, want a LimitedError", err)
	}
}

func left(t *testing.T, store weir.Store, rule string, l weir.Limit) int64 {
	t.Helper()
	return take(t, store, 0, quota.Charge{Rule: rule, Limit: l}).Decisions[0].Remaining
}

// TestInFlightOutbound: an outgoing request is in flight until the body of its response is
// closed.
func TestInFlightOutbound(t *testing.T) {
	store, flight := memory(), algorithms.InFlight(1, time.Minute)
	fail := false
	l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "partner", Key: weir.Global(), Limits: []weir.Limit{flight}}}})
	rt := transport(t, l, weir.TransportOptions{Base: roundTripper(func(r *http.Request) (*http.Response, error) {
		if fail {
			return nil, errDown
		}
		return httptest.NewRecorder().Result(), nil
	})})
	send := func() (*http.Response, error) { return rt.RoundTrip(httptest.NewRequest("GET", "/", nil)) }
	res, err := send()
	if err != nil || left(t, store, "partner", flight) != 0 {
		t.Fatalf("got %v, and %d left, want none", err, left(t, store, "partner", flight))
	}
	if _, err := send(); !errors.As(err, new(*quota.LimitedError)) {
		t.Errorf("a second: got error %v", err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	res.Body.Close()
	fail = true
	if _, err := send(); !errors.Is(err, errDown) || left(t, store, "partner", flight) != 1 {
		t.Errorf("got %v, and %d left, want 1", err, left(t, store, "partner", flight))
	}
}

// TestInFlightProcesses: three processes with 64 goroutines each never have more than 10
// requests in flight together. If a process is killed with 10 requests in flight, its units
// are free after the lease.
func TestInFlightProcesses(t *testing.T) {
	addr := redistest.Server(t).Addr()
	rdb := redis.NewClient(&redis.Options{Addr: addr})
	defer rdb.Close()
	process := func(lease time.Duration, job string) *exec.Cmd {
		cmd := exec.Command(os.Args[0], "-test.run=^TestInFlightProcess$")
		cmd.Env = append(os.Environ(), "WEIR_IN_FLIGHT="+addr, "WEIR_LEASE="+lease.String(), "WEIR_JOB="+job)
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		return cmd
	}
	var all []*exec.Cmd
	for range 3 {
		all = append(all, process(time.Minute, "work"))
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
	}
	ctx := t.Context()
	most, _ := rdb.Get(ctx, "most").Int()
	served, _ := rdb.Get(ctx, "served").Int()
	if most > 10 || served < 100 {
		t.Errorf("got %d in flight at once, want at most 10; %d were served", most, served)
	}

	const lease = 2 * time.Second
	store := redisAt(t, addr, 5*time.Second)
	look := func() quota.Decision {
		return take(t, store, 0, quota.Charge{Rule: "api", Key: "hang", Limit: algorithms.InFlight(10, lease)}).Decisions[0]
	}
	hangs := process(lease, "hang")
	until(t, func() bool { return rdb.Get(ctx, "hanging").Val() == "10" && look().Remaining == 0 })
	time.Sleep(2 * lease)
	until(t, func() bool { return look().Remaining == 0 }) // the units are renewed
	if err := hangs.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = hangs.Wait()
	killed := look()
	until(t, func() bool { return look().Remaining == 10 })
	if killed.ResetAfter > lease { // the server measures this, because a busy machine may notice the end late
		t.Errorf("when the process was killed: got %+v, want all free after %v", killed, lease)
	}
}

// until waits for a condition that depends on another process, for at most 30 s.
func until(t *testing.T, ok func() bool) {
	t.Helper()
	for range 3000 {
		if ok() {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Fatal("got nothing after 30 seconds")
}

// TestInFlightProcess is one of the processes that TestInFlightProcesses starts.
func TestInFlightProcess(t *testing.T) {
	addr, job := os.Getenv("WEIR_IN_FLIGHT"), os.Getenv("WEIR_JOB")
	if addr == "" {
		t.Skip("only TestInFlightProcesses starts it")
	}
	lease, err := time.ParseDuration(os.Getenv("WEIR_LEASE"))
	if err != nil {
		t.Fatal(err)
	}
	rdb := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 16})
	ctx := context.Background()
	count := redis.NewScript(`
local n = redis.call('INCRBY', 'now', ARGV[1])
if n > tonumber(redis.call('GET', 'most') or 0) then redis.call('SET', 'most', n) end
if ARGV[1] == '1' then redis.call('INCR', 'served') end`)
	add := func(n int) {
		if err := count.Run(ctx, rdb, nil, n).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
	}
	var unknown atomic.Int64
	h := must(t, redisAt(t, addr, 10*time.Second), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.InFlight(10, lease)}}},
		OnError: func(_ *http.Request, err error) error { unknown.Add(1); return err },
	}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
		if job == "hang" {
			rdb.Incr(ctx, "hanging")
			time.Sleep(time.Hour)
		}
		add(1)
		time.Sleep(time.Millisecond)
		add(-1)
	}))
	together(64, func(int) {
		for range 40 {
			h.ServeHTTP(httptest.NewRecorder(), ask("/", "192.0.2.1:4", "Key", job))
		}
	})
	if unknown.Load() > 0 {
		t.Logf("%d requests were not decided", unknown.Load())
	}
}

// TestInFlightPanics: if the store panics while a unit is renewed, the panic is logged as
// an error.
func TestInFlightPanics(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next := memstore.New(memstore.Options{})
		var log bytes.Buffer
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if tx.Mode == quota.ModeForce {
				panic("a mistake")
			}
			return next.Take(ctx, tx)
		})
		l := must(t, store, weir.Options{Rules: inFlight(2, time.Minute), Logger: slog.New(slog.NewTextHandler(&log, nil))})
		do(l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(40 * time.Second) })), ask("/", ""))
		if !strings.Contains(log.String(), "the store panicked: a mistake") {
			t.Errorf("got the log %q", &log)
		}
	})
}
