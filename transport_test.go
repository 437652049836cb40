package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

// A partner is the other side: it notes when requests arrive, and answers.
type partner struct {
	mu       sync.Mutex
	start    time.Time
	arrivals []string // "at: body"
	answer   func(n int, r *http.Request) *http.Response
}

func (p *partner) RoundTrip(r *http.Request) (*http.Response, error) {
	var body []byte
	if r.Body != nil {
		body, _ = io.ReadAll(r.Body)
		r.Body.Close()
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.arrivals = append(p.arrivals, strings.TrimSuffix(fmt.Sprintf("%v %s", time.Since(p.start), body), " "))
	if p.answer != nil {
		if res := p.answer(len(p.arrivals), r); res != nil {
			return res, nil
		}
	}
	return response(200), nil
}

func response(status int, fields ...string) *http.Response {
	h := http.Header{}
	for i := 0; i < len(fields); i += 2 {
		h.Add(fields[i], fields[i+1])
	}
	return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(strings.NewReader("body"))}
}

func outbound(t *testing.T, store weir.Store, p http.RoundTripper, o weir.Options, limit weir.Limit) *http.Client {
	t.Helper()
	o.Rules = []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{limit}}}
	return &http.Client{Transport: must(t, store, o).Transport(p)}
}

func TestTransport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := &partner{start: time.Now()}
		client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: 2 * time.Second}, algorithms.GCRA(1, time.Second))
		var wg sync.WaitGroup
		for i := range 4 {
			wg.Go(func() {
				_, err := client.Get("http://example.com/")
				var limited *weir.LimitedError
				if (i == 3) != errors.As(err, &limited) || i == 3 && limited.RetryAfter() != 3*time.Second {
					t.Errorf("request %d: got %v", i, err)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		if _, err := client.Get("http://example.org/"); err != nil {
			t.Errorf("another host: %v", err)
		}
		if want := []string{"0s", "1s", "2s", "2s"}; !slices.Equal(p.arrivals, want) {
			t.Errorf("arrivals at %v, want %v", p.arrivals, want)
		}
	})
}

// TestTransportPauses: what one replica is told holds for the other.
func TestTransportPauses(t *testing.T) {
	for _, c := range []struct {
		name   string
		answer *http.Response
		want   string
	}{
		{"nothing", nil, "1s"},
		{"Retry-After", response(429, "Retry-After", "30"), "30s"},
		{"a date", response(503, "Retry-After", "Sat, 01 Jan 2000 00:01:00 GMT"), "1m0s"},
		{"nothing remains", response(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "0", "X-RateLimit-Reset", "946684820"), "20s"},
		{"nothing remains, IETF", response(200, "RateLimit", `"default";r=0;t=7`), "7s"},
		{"some remains", response(200, "X-RateLimit-Limit", "10", "X-RateLimit-Remaining", "1", "X-RateLimit-Reset", "946684820"), "1s"},
		{"Retry-After of another status", response(200, "Retry-After", "30"), "1s"},
	} {
		for _, limit := range []weir.Limit{algorithms.GCRA(1, time.Second), algorithms.SlidingLog(1, time.Second), algorithms.LeakyBucket(100, 1, time.Second)} {
			synctest.Test(t, func(t *testing.T) {
				store, start := memstore.New(memstore.Options{}), time.Now()
				told := &partner{start: start, answer: func(int, *http.Request) *http.Response { return c.answer }}
				other := &partner{start: start}
				o := weir.Options{MaxWait: time.Hour}
				one := outbound(t, store, told, weir.Options{}, limit)
				two := outbound(t, store, other, o, limit)
				res, err := one.Get("http://example.com/")
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				if _, err := two.Get("http://example.com/"); err != nil {
					t.Fatal(err)
				}
				if got := other.arrivals[0]; got != c.want {
					t.Errorf("%s, %v: the other replica goes at %s, want %s", c.name, limit, got, c.want)
				}
			})
		}
	}
}

// TestTransportRetries: a 429 is sent again when the pause is over, with its
// body, and only then.
func TestTransportRetries(t *testing.T) {
	again := func(n int, r *http.Request) *http.Response {
		if n < 3 {
			return response(429, "Retry-After", "10")
		}
		return nil
	}
	for _, c := range []struct {
		name    string
		maxWait time.Duration
		body    io.Reader
		status  int
		want    []string
	}{
		{"no body", time.Minute, nil, 200, []string{"0s", "10s", "20s"}},
		{"a body", time.Minute, bytes.NewReader([]byte("order")), 200, []string{"0s order", "10s order", "20s order"}},
		{"a body that can't be sent again", time.Minute, io.MultiReader(strings.NewReader("order")), 429, []string{"0s order"}},
		{"too long", 15 * time.Second, nil, 429, []string{"0s", "10s"}},
		{"no waiting", 0, nil, 429, []string{"0s"}},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{start: time.Now(), answer: again}
			client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: c.maxWait}, algorithms.GCRA(100, time.Second))
			res, err := client.Post("http://example.com/", "text/plain", c.body)
			if err != nil {
				t.Fatal(err)
			}
			if res.StatusCode != c.status || !slices.Equal(p.arrivals, c.want) {
				t.Errorf("%s: got %d, arrivals %q; want %d, %q", c.name, res.StatusCode, p.arrivals, c.status, c.want)
			}
		})
	}
}

// TestTransportPausesTheLine: who waits for his turn already does not go in the
// pause either.
func TestTransportPausesTheLine(t *testing.T) {
	for _, limit := range []weir.Limit{algorithms.GCRA(5, time.Second).WithBurst(1), algorithms.SlidingLog(5, time.Second), algorithms.FixedWindow(5, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			start := time.Now()
			p := &partner{start: start, answer: func(n int, r *http.Request) *http.Response {
				if n == 3 {
					return response(429, "Retry-After", "20")
				}
				return nil
			}}
			store := memstore.New(memstore.Options{})
			var wg sync.WaitGroup
			for range 2 { // replicas
				client := outbound(t, store, p, weir.Options{MaxWait: time.Minute}, limit)
				for range 10 {
					wg.Go(func() {
						if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != 200 {
							t.Errorf("%v: got %v, %v", limit, res, err)
						}
					})
				}
			}
			wg.Wait()
			var paused time.Duration
			for i, s := range p.arrivals {
				at, _ := time.ParseDuration(s)
				if i == 2 {
					paused = at
				}
				if paused < at && at < paused+20*time.Second && i > 2 {
					t.Errorf("%v: arrival %d at %v, in the pause that began at %v", limit, i, at, paused)
				}
			}
			if len(p.arrivals) != 21 {
				t.Errorf("%v: %d arrivals, want 20 and one again", limit, len(p.arrivals))
			}
		})
	}
}

// TestTransportPausesOnce: fifty answers that say the same make one pause, not a
// line of fifty.
func TestTransportPausesOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New(memstore.Options{})
		start := time.Now()
		p := &partner{start: start, answer: func(n int, r *http.Request) *http.Response {
			if time.Since(start) < 10*time.Second {
				return response(429, "Retry-After", "10")
			}
			return nil
		}}
		client := outbound(t, store, p, weir.Options{MaxWait: time.Minute}, algorithms.GCRA(50, time.Second))
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() {
				if res, err := client.Get("http://example.com/"); err != nil || res.StatusCode != 200 {
					t.Errorf("got %v, %v", res, err)
				}
			})
		}
		wg.Wait()
		if took := time.Since(p.start); took > 12*time.Second {
			t.Errorf("took %v, want about ten seconds", took)
		}
	})
}

// TestTransportBuffer: however a request is delayed on its way, up to the
// buffer, the receiver sees no window over the limit.
func TestTransportBuffer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const jitter = 50 * time.Millisecond
		var arrivals []time.Time
		var mu sync.Mutex
		late := roundTripper(func(r *http.Request) (*http.Response, error) {
			mu.Lock()
			n := len(arrivals)
			mu.Unlock()
			time.Sleep(time.Duration(n*7919%51) * time.Millisecond) // 0 to 50 ms
			mu.Lock()
			defer mu.Unlock()
			arrivals = append(arrivals, time.Now())
			return response(200), nil
		})
		client := outbound(t, memstore.New(memstore.Options{}), late, weir.Options{MaxWait: time.Hour, Buffer: jitter}, algorithms.SlidingLog(20, time.Second))
		var wg sync.WaitGroup
		start := time.Now()
		for range 400 {
			wg.Go(func() { client.Get("http://example.com/") })
		}
		wg.Wait()
		slices.SortFunc(arrivals, time.Time.Compare)
		for i := 20; i < len(arrivals); i++ {
			if span := arrivals[i].Sub(arrivals[i-20]); span < time.Second {
				t.Fatalf("21 arrivals within %v", span)
			}
		}
		if took, most := time.Since(start), 19*1050*time.Millisecond+jitter; took > most {
			t.Errorf("400 at 20 a second took %v, want %v at most", took, most)
		}
	})
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func TestTransportErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		quiet := slog.New(slog.NewTextHandler(io.Discard, nil))
		p := &partner{start: time.Now()}
		away := outbound(t, failing{errors.New("away")}, p, weir.Options{Logger: quiet}, algorithms.GCRA(1, time.Second))
		if _, err := away.Get("http://example.com/"); err != nil {
			t.Errorf("the store is away: got %v, want the request sent", err)
		}

		client := outbound(t, memstore.New(memstore.Options{}), p, weir.Options{MaxWait: time.Hour}, algorithms.GCRA(1, time.Minute))
		client.Get("http://example.com/")
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		closed := make(chan bool, 1)
		r, _ := http.NewRequestWithContext(ctx, "POST", "http://example.com/", &closing{closed})
		go func() { time.Sleep(time.Second); cancel() }()
		if _, err := client.Do(r); !errors.Is(err, context.Canceled) {
			t.Errorf("cancelled while waiting: got %v", err)
		}
		if !<-closed {
			t.Error("the body was not closed")
		}
		before := time.Now()
		client.Get("http://example.com/")
		if waited := time.Since(before); waited != 59*time.Second {
			t.Errorf("the next waits %v, want the 59s of the turn that was given back", waited)
		}
	})
}

type closing struct{ closed chan bool }

func (c *closing) Read([]byte) (int, error) { return 0, io.EOF }
func (c *closing) Close() error {
	select {
	case c.closed <- true:
	default:
	}
	return nil
}

func ExampleLimiter_Transport() {
	partner, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "partner", Key: weir.ByHeader("Host"), Limits: []weir.Limit{algorithms.SlidingLog(100, time.Second)}}},
		MaxWait: 10 * time.Second,
		Buffer:  20 * time.Millisecond,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	client := &http.Client{Transport: partner.Transport(roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil }))}
	res, err := client.Get("http://partner.example/orders")
	fmt.Println(res.StatusCode, err)
	// Output: 200 <nil>
}
