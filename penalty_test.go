package weir_test

import (
	"context"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// penalized returns a Limiter of one request per second. If a key exhausts strikes, the
// Limiter bans it for 10 s, then 20 s, then 40 s. The returned function sleeps, sends a
// request with a key, and returns the status, Retry-After and whether the key is banned.
func penalized(t *testing.T, store weir.Store, strikes weir.Limit) (*weir.Limiter, func(after time.Duration, key string) string) {
	l := must(t, store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Second)},
		Penalty: &weir.Penalty{Strikes: strikes, Duration: 10 * time.Second, MaxDuration: 40 * time.Second},
	}}})
	h := l.Handler(served)
	return l, func(after time.Duration, key string) string {
		time.Sleep(after)
		res := do(h, ask("/", "192.0.2.1:4", "Key", key))
		body, _ := io.ReadAll(res.Body)
		said := fmt.Sprint(res.StatusCode)
		if after := res.Header.Get("Retry-After"); after != "" {
			said += " " + after
		}
		if strings.Contains(string(body), "abnormal-usage") {
			said += " banned"
		}
		return said
	}
}

// TestPenalty: the third strike begins a ban, bans get longer, other keys are not affected,
// and Unban lifts a ban.
func TestPenalty(t *testing.T) {
	for _, strikes := range []weir.Limit{
		algorithms.AnchoredWindow(3, 5*time.Second), algorithms.SlidingLog(3, 5*time.Second),
		algorithms.SlidingWindow(3, 5*time.Second), algorithms.FixedWindow(3, 5*time.Second),
		algorithms.GCRA(3, 500*time.Second), algorithms.TokenBucket(3, 3, 500*time.Second),
	} {
		t.Run(strikes.Algorithm.Name(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				walkPenalty(t, strikes)
			})
		})
	}
}

// walkPenalty expects that the third refusal within 5 s begins a ban.
func walkPenalty(t *testing.T, strikes weir.Limit) {
	store := memstore.New(memstore.Options{})
	l, ask := penalized(t, store, strikes)
	_, elsewhere := penalized(t, store, strikes)
	for i, step := range []struct {
		after time.Duration
		ask   func(time.Duration, string) string
		key   string
		want  string
	}{
		{0, ask, "a", "200"},
		{0, ask, "a", "429 1"},
		{0, elsewhere, "a", "429 1"},
		{0, ask, "b", "200"},
		{0, ask, "a", "429 10 banned"}, // the third refusal
		{0, elsewhere, "a", "429 10 banned"},
		{9 * time.Second, ask, "a", "429 1 banned"},
		{0, ask, "b", "200"},
		{time.Second - time.Microsecond, elsewhere, "a", "429 1 banned"},
		{time.Microsecond, ask, "a", "200"},
		{0, ask, "a", "429 1"},
		{0, ask, "a", "429 1"},
		{0, elsewhere, "a", "429 20 banned"},
		{20 * time.Second, ask, "a", "200"},
		{0, ask, "a", "429 1"},
		{0, ask, "a", "429 1"},
		{0, ask, "a", "429 40 banned"},
		{40 * time.Second, ask, "a", "200"},
		{0, ask, "a", "429 1"},
		{0, ask, "a", "429 1"},
		{0, ask, "a", "429 40 banned"}, // MaxDuration
		{0, ask, "b", "200"},
	} {
		if got := step.ask(step.after, step.key); got != step.want {
			t.Fatalf("step %d: got %s, want %s", i, got, step.want)
		}
	}

	checkBan(t, l, "a", "after the third ban", 40*time.Second)
	unban(t, l, "a")
	checkBan(t, l, "a", "after it was lifted", 0)
	if got := ask(time.Second, "a"); got != "200" {
		t.Errorf("got %s after the ban was lifted, want 200", got)
	}
	if got := elsewhere(10*time.Second, "a"); got != "200" {
		t.Errorf("got %s elsewhere, 10 s after the ban was lifted, want 200", got)
	}
	ban(t, l, "a", 3*time.Second) // the ban that was lifted had 29 s left
	for _, ask := range []func(time.Duration, string) string{ask, elsewhere} {
		if got := ask(0, "a"); !strings.HasSuffix(got, "banned") {
			t.Errorf("got %s after another ban, want it banned", got)
		}
	}
	if got := ask(time.Minute, "a"); got != "200" {
		t.Errorf("got %s when all bans are over, want 200", got)
	}
}

// TestPenaltyAtRest: in each process, the requests of a banned key ask the store about once
// in 10 s.
func TestPenaltyAtRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, calls := memstore.New(memstore.Options{}), 0
		l, ask := penalized(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			calls++
			return store.Take(ctx, tx)
		}), algorithms.AnchoredWindow(3, 5*time.Second))
		ban(t, l, "a", time.Minute)
		calls = 0
		for range 599 {
			if got := ask(100*time.Millisecond, "a"); !strings.HasSuffix(got, "banned") {
				t.Fatalf("got %s, want it banned", got)
			}
		}
		if calls > 10 { // each call is a decision that also looks up the ban
			t.Errorf("got %d calls in a minute, want at most 10", calls)
		}
		if got := ask(100*time.Millisecond, "a"); got != "200" {
			t.Errorf("got %s after a minute, want 200", got)
		}
	})
}

// TestPenaltyShared: two processes that share a Redis count strikes together, and both
// enforce the ban.
func TestPenaltyShared(t *testing.T) {
	server := redistest.Server(t)
	var limiters []*weir.Limiter
	for range 2 {
		rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
		t.Cleanup(func() { rdb.Close() })
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		limiters = append(limiters, must(t, store, weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.SlidingWindow(4, time.Minute), Duration: time.Minute},
		}}}))
	}
	for i, want := range []string{"", "quota", "quota", "quota", "abnormal", "abnormal", "abnormal"} {
		res := do(limiters[i%2].Handler(served), ask("/", "192.0.2.1:4"))
		if body, _ := io.ReadAll(res.Body); !strings.Contains(string(body), want) || (want == "") != (res.StatusCode == 200) {
			t.Errorf("request %d: got %d, %s, want %s", i, res.StatusCode, body, want)
		}
	}
	unban(t, limiters[0], "")
	checkBan(t, limiters[1], "", "after it was lifted elsewhere", 0)
}

// TestPenaltyRefuses: New and Rule.Validate refuse a Penalty with impossible numbers. Ban refuses a duration
// of 0, and Ban and Unban refuse a rule that does not exist.
func TestPenaltyRefuses(t *testing.T) {
	good := weir.Penalty{Strikes: algorithms.FixedWindow(3, time.Minute), Duration: time.Minute}
	for _, tt := range []struct {
		change func(*weir.Penalty)
		want   string
	}{
		{func(p *weir.Penalty) {}, ""},
		{func(p *weir.Penalty) { p.Duration = 0 }, "Duration is 0s; want"},
		{func(p *weir.Penalty) { p.Duration = -time.Second }, "Duration is -1s; want"},
		{func(p *weir.Penalty) { p.Duration = time.Microsecond + 1 }, "Duration is 1.001µs; want"},
		{func(p *weir.Penalty) { p.MaxDuration = time.Second }, "MaxDuration is 1s; want whole microseconds, at least Duration, 1m0s"},
		{func(p *weir.Penalty) { p.Strikes = weir.Limit{} }, "the Algorithm is nil"},
		{func(p *weir.Penalty) { p.Strikes.Quota = 0 }, "quota is 0"},
		{func(p *weir.Penalty) { p.MaxDuration = math.MaxInt64 / 1000 * 1000 }, "the longest ban is 2562047h47m16.854775s; want at most"},
	} {
		p := good
		tt.change(&p)
		rule := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}, Penalty: &p}
		_, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}})
		if alone := rule.Validate(); fmt.Sprint(alone) != fmt.Sprint(err) {
			t.Errorf("%+v: got %v from Validate, want %v as from New", p, alone, err)
		}
		if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !strings.Contains(err.Error(), "api")) {
			t.Errorf("%+v: got %v, want %q", p, err, tt.want)
		}
	}
	l, _ := penalized(t, memstore.New(memstore.Options{}), good.Strikes)
	for _, err := range []error{l.Ban(t.Context(), "web", "a", time.Second), l.Ban(t.Context(), "api", "a", 0), l.Unban(t.Context(), "web", "a")} {
		if err == nil {
			t.Error("got no error for an impossible ban")
		}
	}
}

func ExamplePenalty() {
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Minute)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Minute), Duration: 15 * time.Minute},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 3 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		fmt.Println(w.Code, max("0", w.Header().Get("Retry-After")))
	}
	// Output:
	// 200 0
	// 429 60
	// 429 900
}
