package peers

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/didip/tollbooth/v7"
	tollbooth8 "github.com/didip/tollbooth/v8"
	toll8limiter "github.com/didip/tollbooth/v8/limiter"
	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"
	"github.com/throttled/throttled/v2"
	throttledstore "github.com/throttled/throttled/v2/store/memstore"
	"github.com/ulule/limiter/v3"
	"github.com/ulule/limiter/v3/drivers/middleware/stdlib"
	"github.com/ulule/limiter/v3/drivers/store/memory"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/weirchi"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

type middleware = func(http.Handler) http.Handler

func ulule(units int64, period time.Duration, options ...limiter.Option) middleware {
	return stdlib.NewMiddleware(limiter.New(memory.NewStore(), limiter.Rate{Limit: units, Period: period}, options...)).Handler
}

func toll(perSecond float64) middleware {
	return func(next http.Handler) http.Handler {
		return tollbooth.LimitHandler(tollbooth.NewLimiter(perSecond, nil), next)
	}
}

func throttle(t *testing.T, keys, perMinute int) middleware {
	t.Helper()
	store, err := throttledstore.NewCtx(keys)
	if err != nil {
		t.Fatal(err)
	}
	l, err := throttled.NewGCRARateLimiterCtx(store, throttled.RateQuota{MaxRate: throttled.PerMin(perMinute), MaxBurst: perMinute - 1})
	if err != nil {
		t.Fatal(err)
	}
	return (&throttled.HTTPRateLimiterCtx{RateLimiter: l, VaryBy: &throttled.VaryBy{RemoteAddr: true}}).RateLimit
}

func ours(limit weir.Limit) middleware {
	return weir.Middleware(memstore.New(memstore.Options{MaxKeys: 10}), "api", weir.ByIP(), limit)
}

// A client describes a request: its path, the address of its sender, and its
// X-Forwarded-For.
type client struct{ path, addr, forwarded string }

func (c client) ask(m http.Handler) *httptest.ResponseRecorder {
	r := httptest.NewRequest("GET", c.path, nil)
	r.RemoteAddr = c.addr
	if c.forwarded != "" {
		r.Header.Set("X-Forwarded-For", c.forwarded)
	}
	w := httptest.NewRecorder()
	m.ServeHTTP(w, r)
	return w
}

var ok = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {})

var somebody = client{"/", "192.0.2.1:1234", ""}

// admitted sends n requests through m, the i-th as client of(i), and returns how many of
// them are admitted.
func admitted(m middleware, n int, of func(i int) client) (count int) {
	h := m(ok)
	for i := range n {
		if of(i).ask(h).Code == http.StatusOK {
			count++
		}
	}
	return count
}

func TestRetryAfter(t *testing.T) {
	for _, test := range []struct {
		name string
		m    middleware
		want string
	}{
		{"httprate", httprate.LimitByIP(3, time.Minute), "60"},
		{"ulule", ulule(3, time.Minute), ""},
		{"tollbooth", toll(3), ""},
		{"throttled", throttle(t, 10, 3), "20"},
		{"weir", ours(algorithms.GCRA(3, time.Minute)), "20"},
	} {
		h := test.m(ok)
		for range 3 {
			somebody.ask(h)
		}
		w := somebody.ask(h)
		if got := w.Header().Get("Retry-After"); w.Code != http.StatusTooManyRequests || got != test.want {
			t.Errorf("%s: got %d, Retry-After %q, want 429, %q", test.name, w.Code, got, test.want)
		}
	}
}

func TestForgedAddress(t *testing.T) {
	forged := func(i int) client { return client{"/", "192.0.2.1:1234", fmt.Sprintf("198.51.100.%d", i)} }
	for _, test := range []struct {
		name string
		m    middleware
		want int // of 20
	}{
		{"httprate LimitByIP", httprate.LimitByIP(3, time.Minute), 3},
		{"httprate LimitByRealIP", httprate.LimitByRealIP(3, time.Minute), 20},
		{"ulule", ulule(3, time.Minute), 3},
		{"ulule that trusts the field", ulule(3, time.Minute, limiter.WithTrustForwardHeader(true)), 20},
		{"tollbooth", toll(1), 20},
		{"throttled", throttle(t, 100, 3), 3},
		{"weir", ours(algorithms.GCRA(3, time.Minute)), 3},
	} {
		if got := admitted(test.m, 20, forged); got != test.want {
			t.Errorf("%s: got %d of 20 admitted, want %d", test.name, got, test.want)
		}
	}
}

func TestIPv6(t *testing.T) {
	neighbours := func(i int) client { return client{"/", fmt.Sprintf("[2001:db8::%x]:1234", i+1), ""} }
	for _, test := range []struct {
		name string
		m    middleware
		want int // of 20
	}{
		{"httprate", httprate.LimitByIP(3, time.Minute), 3},
		{"ulule", ulule(3, time.Minute), 20},
		{"tollbooth", toll(1), 1},
		{"throttled", throttle(t, 100, 3), 20},
		{"weir", ours(algorithms.GCRA(3, time.Minute)), 3},
	} {
		if got := admitted(test.m, 20, neighbours); got != test.want {
			t.Errorf("%s: got %d of 20 admitted, want %d", test.name, got, test.want)
		}
	}
}

// TestTollbooth8: tollbooth 8 limits nothing until it is told where to find the address.
func TestTollbooth8(t *testing.T) {
	toll8 := func(set func(*toll8limiter.Limiter)) middleware {
		return func(next http.Handler) http.Handler {
			l := tollbooth8.NewLimiter(1, nil)
			set(l)
			return tollbooth8.LimitHandler(l, next)
		}
	}
	remote := toll8(func(l *toll8limiter.Limiter) { l.SetIPLookup(toll8limiter.IPLookup{Name: "RemoteAddr"}) })
	forged := func(i int) client { return client{"/", "192.0.2.1:1234", fmt.Sprint("10.0.0.", i)} }
	if n := admitted(toll8(func(*toll8limiter.Limiter) {}), 20, forged); n != 20 {
		t.Errorf("without SetIPLookup: got %d of 20 admitted, want all", n)
	}
	if n := admitted(remote, 20, forged); n != 1 {
		t.Errorf("by RemoteAddr: got %d of 20 admitted, want 1", n)
	}
}

// TestEmptyKeys: requests for which a key function of httprate returns "" share one quota.
// tollbooth does not limit a request that lacks the field by which it limits.
func TestEmptyKeys(t *testing.T) {
	each := func(i int) client { return client{"/", fmt.Sprintf("192.0.2.%d:1234", i), ""} }
	nobody := httprate.Limit(5, time.Minute, httprate.WithKeyFuncs(func(*http.Request) (string, error) { return "", nil }))
	if n := admitted(nobody, 20, each); n != 5 {
		t.Errorf("httprate: got %d of 20 admitted, want 5", n)
	}
	byField := func(next http.Handler) http.Handler {
		l := tollbooth.NewLimiter(1, nil)
		l.SetHeader("X-Key", nil)
		return tollbooth.LimitHandler(l, next)
	}
	if n := admitted(byField, 20, func(int) client { return somebody }); n != 20 {
		t.Errorf("tollbooth: got %d of 20 admitted, want all", n)
	}
}

func TestPaths(t *testing.T) {
	made := func(i int) client { return client{"/" + strconv.Itoa(i), "192.0.2.1:1234", ""} }
	if got := admitted(toll(1), 20, made); got != 20 {
		t.Errorf("tollbooth: got %d of 20 paths admitted, want 20", got)
	}
	byRoute := func(next http.Handler) http.Handler {
		r := chi.NewRouter()
		r.Use(weirchi.FindRoute, weir.Middleware(memstore.New(memstore.Options{}), "api", weir.Join(weir.ByIP(), weir.ByRoute()), algorithms.GCRA(3, time.Minute)))
		r.Handle("/{item}", next)
		r.Handle("/other/{item}", next)
		return r
	}
	if got := admitted(byRoute, 20, made); got != 3 {
		t.Errorf("weir: got %d of 20 paths of one route admitted, want 3", got)
	}
	two := func(i int) client {
		return client{[]string{"", "/other"}[i%2] + "/" + strconv.Itoa(i), "192.0.2.1:1234", ""}
	}
	if got := admitted(byRoute, 20, two); got != 6 {
		t.Errorf("weir: got %d of 20 paths of two routes admitted, want 6", got)
	}
}

// TestReset: the reset field is a Unix time with some libraries, and a number of seconds to
// wait with the others.
func TestReset(t *testing.T) {
	for _, test := range []struct {
		name, field string
		m           middleware
		unix        bool
	}{
		{"httprate", "X-RateLimit-Reset", httprate.LimitByIP(3, time.Minute), true},
		{"ulule", "X-RateLimit-Reset", ulule(3, time.Minute), true},
		{"tollbooth", "RateLimit-Reset", toll(3), false},
		{"throttled", "X-RateLimit-Reset", throttle(t, 10, 3), false},
		{"weir", "X-RateLimit-Reset", ours(algorithms.GCRA(3, time.Minute)), true},
	} {
		got, err := strconv.ParseInt(somebody.ask(test.m(ok)).Header().Get(test.field), 10, 64)
		if err != nil || (got > 1e9) != test.unix {
			t.Errorf("%s: got %s %d, %v; want Unix seconds: %v", test.name, test.field, got, err, test.unix)
		}
	}
}

// TestHTTPRateRounds: 0.51 s into a window, 10 requests of the window before count as 9.49.
// httprate rounds this down and admits one more request; Weir admits none.
func TestHTTPRateRounds(t *testing.T) {
	for _, test := range []struct {
		name string
		m    func() middleware
		want int
	}{
		{"httprate", func() middleware { return httprate.LimitByIP(10, 10*time.Second) }, 1},
		{"weir", func() middleware { return ours(algorithms.SlidingWindow(10, 10*time.Second)) }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := test.m()(ok) // the bubble begins at a multiple of 10 s
			for range 10 {
				somebody.ask(h)
			}
			time.Sleep(10*time.Second + 510*time.Millisecond)
			got := 0
			for range 5 {
				if somebody.ask(h).Code == http.StatusOK {
					got++
				}
			}
			if got != test.want {
				t.Errorf("%s: got %d more admitted after half a second, want %d", test.name, got, test.want)
			}
		})
	}
}

// TestFloodFrees: after a flood of new keys, throttled's store has forgotten a key that was
// refused before. Weir's store still refuses it.
func TestFloodFrees(t *testing.T) {
	for _, test := range []struct {
		name string
		m    middleware
		want int
	}{
		{"throttled", throttle(t, 10, 3), http.StatusOK},
		{"weir", ours(algorithms.GCRA(3, time.Minute)), http.StatusTooManyRequests},
	} {
		h := test.m(ok)
		for range 4 {
			somebody.ask(h)
		}
		for i := range 100 {
			client{"/", fmt.Sprintf("198.51.100.%d:1", i), ""}.ask(h)
		}
		if got := somebody.ask(h).Code; got != test.want {
			t.Errorf("%s: got %d after the flood, want %d", test.name, got, test.want)
		}
	}
}

// TestRefusedAreFree: refused requests cost nothing. A client that sent 500 requests is
// later admitted as often as one that sent 60.
func TestRefusedAreFree(t *testing.T) {
	for _, test := range []struct {
		name string
		m    func() middleware
	}{
		{"httprate", func() middleware { return httprate.LimitByIP(10, 10*time.Second) }},
		{"tollbooth", func() middleware { return toll(10) }},
		{"throttled", func() middleware { return throttle(t, 10, 60) }},
		{"weir", func() middleware { return ours(algorithms.SlidingWindow(10, 10*time.Second)) }},
	} {
		var got [2]int
		for i, n := range []int{60, 500} {
			synctest.Test(t, func(t *testing.T) {
				h := test.m()(ok)
				for range n {
					somebody.ask(h)
				}
				time.Sleep(15 * time.Second)
				for range 60 {
					if somebody.ask(h).Code == http.StatusOK {
						got[i]++
					}
				}
			})
		}
		if got[0] == 0 || got[0] != got[1] {
			t.Errorf("%s: got %d admitted after 60 requests and %d after 500, want equal numbers above 0", test.name, got[0], got[1])
		}
	}
}

// Stores that fail, as if their server were away.
type (
	failingCounter struct{ httprate.LimitCounter }
	failingStore   struct{ limiter.Store }
	failingGCRA    struct{ throttled.GCRAStoreCtx }
	failingWeir    struct{}
)

var errAway = errors.New("dial tcp 10.0.0.7:6379: refused")

func (failingCounter) Config(int, time.Duration) {}
func (failingCounter) Get(string, time.Time, time.Time) (int, int, error) {
	return 0, 0, errAway
}
func (failingStore) Get(context.Context, string, limiter.Rate) (limiter.Context, error) {
	return limiter.Context{}, errAway
}
func (failingGCRA) GetWithTime(context.Context, string) (int64, time.Time, error) {
	return 0, time.Time{}, errAway
}
func (failingWeir) Take(context.Context, *quota.Transaction) error { return errAway }

func TestStoreFails(t *testing.T) {
	gcra, err := throttled.NewGCRARateLimiterCtx(failingGCRA{}, throttled.RateQuota{MaxRate: throttled.PerMin(3)})
	if err != nil {
		t.Fatal(err)
	}
	const panics = 0
	for _, test := range []struct {
		name  string
		m     middleware
		want  int
		tells bool // the body of the response has the text of the error
	}{
		{"httprate", httprate.Limit(3, time.Minute, httprate.WithLimitCounter(failingCounter{})), http.StatusPreconditionRequired, true},
		{"ulule", stdlib.NewMiddleware(limiter.New(failingStore{}, limiter.Rate{Limit: 3, Period: time.Minute})).Handler, panics, false},
		{"throttled", (&throttled.HTTPRateLimiterCtx{RateLimiter: gcra}).RateLimit, http.StatusInternalServerError, false},
		{"weir", weir.Middleware(failingWeir{}, "api", weir.ByIP(), algorithms.GCRA(3, time.Minute)), http.StatusOK, false},
	} {
		got, body := func() (code int, body string) {
			defer func() {
				if recover() != nil {
					code = panics
				}
			}()
			w := somebody.ask(test.m(ok))
			return w.Code, w.Body.String()
		}()
		if got != test.want || strings.Contains(body, errAway.Error()) != test.tells {
			t.Errorf("%s: got %d %q, want %d, and the error told: %v", test.name, got, body, test.want, test.tells)
		}
	}
}
