package weir_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A sharedQuota is a limit that several replicas use up. They share only Redis, and each
// has its own connections.
type sharedQuota struct {
	limit    int
	period   time.Duration
	buffer   time.Duration
	replicas int
	requests int // how many requests all replicas send together, at once
}

// An arrival says when a request reached the receiver, and when its turn was. Redis runs on
// this machine, so both instants are on the same clock.
type arrival struct{ at, turn time.Time }

func (a arrival) late() time.Duration { return a.at.Sub(a.turn) }

const turnField = "Weir-Turn" // in µs since 1970

// TestTransportReplicas: a server that three replicas call sees every request, and no
// period with more requests than the limit. The test is a small form of _bench/throttle.
func TestTransportReplicas(t *testing.T) {
	q := sharedQuota{limit: 20, period: 500 * time.Millisecond, buffer: 40 * time.Millisecond, replicas: 3, requests: 60}
	server := redistest.Server(t)
	for range 5 {
		start := time.Now()
		seen := q.spend(t, server.Addr())
		took := time.Since(start)
		q.checkTurns(t, seen)
		if t.Failed() {
			return
		}
		late := func(a, b arrival) int { return int(a.late() - b.late()) }
		least, most := slices.MinFunc(seen, late).late(), slices.MaxFunc(seen, late).late()
		ideal := time.Duration((q.requests-1)/q.limit) * q.period
		t.Logf("%d requests took %v, %.3f × ideal; they arrived %v to %v after their turns", q.requests, took, took.Seconds()/ideal.Seconds(), least, most)

		over := q.windowsOver(seen)
		switch {
		case over == 0 && took > 10*ideal:
			t.Errorf("%d requests took %v, want less than ten times the ideal %v", q.requests, took, ideal)
			return
		case over == 0:
			return
		case most-least <= q.buffer:
			t.Errorf("%d windows of %v hold more than %d requests, although their delays, %v to %v, differ by no more than the buffer of %v",
				over, q.period, q.limit, least, most, q.buffer)
			return
		}
	}
	t.Skipf("this machine is too busy: it delays requests by more than the buffer of %v", q.buffer)
}

// spend sends the requests to a new receiver, and returns their arrivals in order.
func (q *sharedQuota) spend(t *testing.T, redisAddr string) (seen []arrival) {
	t.Helper()
	var mu sync.Mutex
	receiver := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		at := time.Now()
		turn, err := strconv.ParseInt(r.Header.Get(turnField), 10, 64)
		if err != nil {
			t.Errorf("a request went out unlimited: %v", err)
		}
		mu.Lock()
		defer mu.Unlock()
		seen = append(seen, arrival{at, time.UnixMicro(turn)})
	}))
	defer receiver.Close()

	var wg sync.WaitGroup
	for i := range q.replicas {
		client := q.replica(t, redisAddr)
		for range q.requests*(i+1)/q.replicas - q.requests*i/q.replicas {
			wg.Go(func() {
				res, err := client.Get(receiver.URL)
				if err != nil {
					t.Error(err)
					return
				}
				defer res.Body.Close()
				if _, err := io.Copy(io.Discard, res.Body); err != nil || res.StatusCode != http.StatusOK {
					t.Errorf("got %s, %v, want 200", res.Status, err)
				}
			})
		}
	}
	wg.Wait()
	slices.SortFunc(seen, func(a, b arrival) int { return a.at.Compare(b.at) })
	return seen
}

// replica returns a client with its own Limiter.
func (q *sharedQuota) replica(t *testing.T, redisAddr string) *http.Client {
	t.Helper()
	const patience = 10 * time.Second // the time budget of Redis, for a busy machine
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(patience, redisAddr))
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: patience})
	if err != nil {
		t.Fatal(err)
	}
	limiter := must(t, store, weir.Options{
		Rules: []weir.Rule{{
			Name:   "partner",
			Key:    weir.ByHeader("Host"),
			Limits: []weir.Limit{algorithms.SlidingLog(int64(q.limit), q.period)},
		}},
		MaxWait: time.Minute,
		Observe: func(e weir.Event) {
			if e.Err != nil {
				t.Errorf("the store failed: %v", e.Err)
				return
			}
			turn := e.Transaction.At.Add(e.Transaction.Wait)
			e.Request.Header.Set(turnField, strconv.FormatInt(turn.UnixMicro(), 10))
		},
	})
	base := &http.Transport{MaxIdleConnsPerHost: q.requests}
	t.Cleanup(base.CloseIdleConnections)
	return &http.Client{Transport: transport(t, limiter, weir.TransportOptions{Base: base, Buffer: q.buffer})}
}

// checkTurns checks what does not depend on the speed of the machine: no request is lost, no
// request is sent before its turn, and no period that is longer by the buffer has more turns
// than the limit.
func (q *sharedQuota) checkTurns(t *testing.T, seen []arrival) {
	t.Helper()
	if len(seen) != q.requests {
		t.Errorf("%d requests arrived, want %d", len(seen), q.requests)
	}
	q.checkGaps(t, seen)
}

// checkGaps checks that no request arrives before its turn, and that no period that is longer
// by the buffer has more turns than the limit.
func (q *sharedQuota) checkGaps(t *testing.T, seen []arrival) {
	t.Helper()
	var turns []time.Time
	for _, a := range seen {
		if a.late() < 0 {
			t.Errorf("a request arrived %v before its turn", -a.late())
		}
		turns = append(turns, a.turn)
	}
	slices.SortFunc(turns, time.Time.Compare)
	for i := q.limit; i < len(turns); i++ {
		if gap := turns[i].Sub(turns[i-q.limit]); gap < q.period+q.buffer {
			t.Errorf("turns %d and %d are %v apart, want %v", i-q.limit, i, gap, q.period+q.buffer)
		}
	}
}

// windowsOver counts the periods that begin with an arrival and have more requests than the
// limit.
func (q *sharedQuota) windowsOver(seen []arrival) (n int) {
	for i := q.limit; i < len(seen); i++ {
		if seen[i].at.Sub(seen[i-q.limit].at) < q.period {
			n++
		}
	}
	return n
}

// TestTransportSlowRedis: three processes send 60 requests each while Redis does not answer.
// With MaxWait they wait for Redis and then for their turns. Without it a request is sent
// without a turn only by default, and the log says so. If the process itself is late, the
// store is busy instead, and the request is not sent.
func TestTransportSlowRedis(t *testing.T) {
	failsClosed := func(_ *http.Request, err error) error { return err }
	for _, c := range []struct {
		name      string
		maxWait   time.Duration
		onError   func(*http.Request, error) error
		unlimited bool // requests are sent without a turn
		all       bool // all requests are sent
	}{
		{"waits", time.Minute, nil, false, true},
		{"waits, fails closed", time.Minute, failsClosed, false, true},
		{"fails closed", 0, failsClosed, false, false},
		{"by default", 0, nil, true, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			q := sharedQuota{limit: 50, period: 250 * time.Millisecond, replicas: 3, requests: 180}
			server := redistest.Server(t)
			server.Pause()
			var failures, unlimited, busy atomic.Int64
			var mu sync.Mutex
			var turns []arrival
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				turn, err := strconv.ParseInt(r.Header.Get(turnField), 10, 64)
				if err != nil {
					unlimited.Add(1)
					return response(200), nil
				}
				mu.Lock()
				defer mu.Unlock()
				turns = append(turns, arrival{time.Now(), time.UnixMicro(turn)})
				return response(200), nil
			})
			var log bytes.Buffer
			o := weir.Options{
				Rules:   []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(int64(q.limit), q.period)}}},
				MaxWait: c.maxWait,
				Logger:  slog.New(slog.NewTextHandler(&log, nil)),
				Observe: func(e weir.Event) {
					if e.Err == nil && e.Refusal.Reason == 0 {
						e.Request.Header.Set(turnField, strconv.FormatInt(e.Transaction.At.Add(e.Transaction.Wait).UnixMicro(), 10))
					} else if e.Err != nil && failures.Add(1) == int64(q.requests) { // every request has failed once
						server.Resume()
					}
				},
			}
			var wg sync.WaitGroup
			for range q.replicas {
				client := &http.Client{Transport: transport(t, must(t, redisAt(t, server.Addr(), 50*time.Millisecond), o), weir.TransportOptions{Base: base, OnError: c.onError})}
				for range q.requests / q.replicas {
					wg.Go(func() {
						_, err := client.Get("http://example.com/")
						switch {
						case c.unlimited && errors.Is(err, quota.ErrBusy):
							busy.Add(1)
						case (err != nil) == c.all:
							t.Errorf("got %v", err)
						}
					})
				}
			}
			wg.Wait()
			q.checkGaps(t, turns)
			got := len(turns) + int(unlimited.Load()+busy.Load())
			if (unlimited.Load()+busy.Load() > 0) != c.unlimited || (got == q.requests) != c.all {
				t.Errorf("%d requests sent or refused as busy, %d sent without a turn, %d refused; want all: %v, some without a turn: %v", got, unlimited.Load(), busy.Load(), c.all, c.unlimited)
			}
			if strings.Contains(log.String(), "passed=true") != (unlimited.Load() > 0) {
				t.Errorf("got the log %q, want requests without a limit: %v", log.String(), c.unlimited)
			}
		})
	}
}

// TestTransportPausesEverywhere: a pause, and its end by Unpause, hold in another process
// that shares the store, through every decorator, even if the process has leased units.
func TestTransportPausesEverywhere(t *testing.T) {
	server := redistest.Server(t)
	memory := memstore.New(memstore.Options{})
	for _, shared := range []struct {
		name  string
		store func(t *testing.T) weir.Store
	}{
		{"memory", func(*testing.T) weir.Store { return memory }},
		{"Redis", func(t *testing.T) weir.Store { return redisAt(t, server.Addr(), 10*time.Second) }},
	} {
		for _, d := range []struct {
			name     string
			decorate func(weir.Store) weir.Store
		}{
			{"alone", func(s weir.Store) weir.Store { return s }},
			{"Hybrid", func(s weir.Store) weir.Store { return quota.Hybrid(s, quota.HybridOptions{MaxKeys: 100}) }},
			{"Coalesce", func(s weir.Store) weir.Store { return quota.Coalesce(s) }},
			{"Breaker", func(s weir.Store) weir.Store { return quota.Breaker(s, quota.BreakerOptions{}) }},
			{"Fallback", func(s weir.Store) weir.Store {
				return quota.Fallback(s, memstore.New(memstore.Options{}), quota.FallbackOptions{})
			}},
			{"Share", func(s weir.Store) weir.Store { return quota.Share(s, 3) }},
			{"Lease", func(s weir.Store) weir.Store {
				leases := lease.New(s, lease.Options{})
				t.Cleanup(func() { leases.Close(context.Background()) })
				return leases
			}},
		} {
			t.Run(shared.name+", "+d.name, func(t *testing.T) {
				status := http.StatusOK
				base := roundTripper(func(*http.Request) (*http.Response, error) { return response(status, "Retry-After", "50"), nil })
				replica := func() (*weir.Limiter, *http.Client) {
					l := must(t, d.decorate(shared.store(t)), weir.Options{Rules: []weir.Rule{{
						Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.GCRA(1000, time.Hour)},
					}}})
					return l, &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: base})}
				}
				_, one := replica()
				limiter, two := replica()
				get := func(client *http.Client) string {
					return answerTo(client, "http://"+strings.ToLower(d.name)+".example/")
				}
				var got []string
				got = append(got, get(two))
				status = http.StatusServiceUnavailable
				got = append(got, get(one))
				status = http.StatusOK
				got = append(got, get(one), get(two))
				if err := limiter.Unpause(t.Context(), "partner", strings.ToLower(d.name)+".example"); err != nil {
					t.Error(err)
				}
				got = append(got, get(two))
				if want := []string{"200", "503", "pause", "pause", "200"}; !slices.Equal(got, want) {
					t.Errorf("got %q, want %q", got, want)
				}
			})
		}
	}
}

// answerTo sends a GET request to url, and returns the status, the reason of a refusal or
// the error.
func answerTo(client *http.Client, url string) string {
	res, err := client.Get(url)
	var limited *weir.RefusedError
	if errors.As(err, &limited) {
		return limited.Admission.Refusal.Reason.String()
	}
	if err != nil {
		return err.Error()
	}
	return strconv.Itoa(res.StatusCode)
}
