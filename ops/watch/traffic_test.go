package watch_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
)

// TestTry: limits that are tried on recorded requests refuse as many requests as a rule in
// shadow with the same limits refused when the requests came.
func TestTry(t *testing.T) {
	for _, limits := range [][]weir.Limit{
		{algorithms.GCRA(5, time.Minute)},
		{algorithms.SlidingLog(20, time.Minute).Named("a"), algorithms.SlidingLog(3, time.Second).Named("b")},
		{algorithms.FixedWindow(10, time.Minute).Named("a"), algorithms.TokenBucket(4, 1, 5*time.Second).Named("b")},
		{algorithms.AnchoredWindow(7, time.Minute)}, {algorithms.SlidingWindow(7, time.Minute)}, {algorithms.LeakyBucket(7, 1, 9*time.Second)},
	} {
		synctest.Test(t, func(t *testing.T) {
			tryBesideShadow(t, limits)
		})
	}
	if _, err := watch.NewRecorder(1, 1).Try("api"); err == nil {
		t.Error("Try without limits: got no error")
	}
	if _, err := watch.NewRecorder(1, 1).Try("api", algorithms.InFlight(2, time.Minute)); err == nil {
		t.Error("Try of requests in flight: got no error")
	}
	if _, err := watch.NewRecorder(1, 1).Try("api", weir.Limit{Quota: 1}); err == nil {
		t.Error("Try of an invalid limit: got no error")
	}
}

// tryBesideShadow sends requests through a limiter with a rule in shadow that has the limits, and
// then tries the limits on the recorded requests.
func tryBesideShadow(t *testing.T, limits []weir.Limit) {
	recorder, inShadow, were := watch.NewRecorder(1, 2000), 0, 0
	observe := func(e weir.Event) {
		recorder.Observe(e)
		switch {
		case e.Refusal.Reason != weir.ReasonLimit:
		case e.Shadow:
			inShadow++
		default:
			were++
		}
	}
	cost := func(r *http.Request) int64 { return int64(len(r.URL.RawQuery)) }
	h := limiter(t, memstore.New(memstore.Options{}), observe,
		weir.Rule{Name: "api", Key: weir.ByHeader("K"), Cost: cost, Limits: []weir.Limit{algorithms.GCRA(50, time.Minute)}},
		weir.Rule{Name: "tried", Key: weir.ByHeader("K"), Cost: cost, Limits: limits, Enforce: weir.Percent(0)}).Handler(http.NotFoundHandler())
	r := rand.New(rand.NewPCG(1, 2))
	for range 900 {
		q := httptest.NewRequest("GET", "/?"+strings.Repeat("x", 1+r.IntN(2)), nil)
		q.Header.Set("K", fmt.Sprint(r.IntN(5)))
		h.ServeHTTP(httptest.NewRecorder(), q)
		time.Sleep(time.Duration(r.IntN(500)) * time.Millisecond)
	}
	got, err := recorder.Try("tried", limits...)
	if err != nil || got.Requests != 900-were || got.Refused != inShadow || got.WereRefused != inShadow || got.Keys != 5 || inShadow == 0 {
		t.Errorf("%v: got %+v, %v; a rule in shadow refused %d of %d", limits, got, err, inShadow, 900-were)
	}
	if got, err := recorder.Try("api", algorithms.GCRA(50, time.Minute)); err != nil || got.Requests != 900 || got.Refused != were || got.WereRefused != were {
		t.Errorf("the limits of their time: got %+v, %v; %d were refused", got, err, were)
	}
	if got, err := recorder.Try("new", limits...); err != nil || got.Requests != 0 {
		t.Errorf("an unknown rule: got %+v, %v", got, err)
	}
}

// TestTrafficBounded: a Recorder remembers the last n requests with their keys, or fewer if keys
// are long. Observe allocates nothing.
func TestTrafficBounded(t *testing.T) {
	e := refused("")
	e.Refusal, e.Transaction.Decisions[0].Allowed = weir.Refusal{}, true
	charge := &e.Transaction.Charges[0]
	charge.Cost = 1
	for _, tt := range []struct{ n, length, min, max int }{
		{100, 8, 100, 100}, {100, 32, 100, 100}, {100, 64, 45, 50}, {1, 128, 1, 1}, {10, 128, 1, 10}, {100, 3, 100, 100},
	} {
		recorder := watch.NewRecorder(1, tt.n)
		var i int
		keys := make([]string, 1000)
		for i := range keys {
			keys[i] = fmt.Sprintf("%0*d", tt.length, i%1000)
		}
		allocs := testing.AllocsPerRun(5000, func() {
			charge.Key = keys[i%1000]
			e.Transaction.At = time.UnixMicro(int64(i))
			recorder.Observe(e)
			i++
		})
		got, err := recorder.Try("api", algorithms.FixedWindow(1, time.Hour))
		if err != nil || got.Requests < tt.min || got.Requests > tt.max || got.Keys != got.Requests || allocs != 0 {
			t.Errorf("%+v: got %+v, %v, %v allocations", tt, got, err, allocs)
		}
		if want := time.UnixMicro(int64(i - 1)); !got.To.Equal(want) || !got.From.Equal(want.Add(-time.Duration(got.Requests-1)*time.Microsecond)) {
			t.Errorf("%+v: got the requests from %v to %v, want the last before %v", tt, got.From, got.To, want)
		}
	}
}

// TestTrafficKeys: Top of a Trial has the keys of the recorded requests.
func TestTrafficKeys(t *testing.T) {
	recorder := watch.NewRecorder(1, 10)
	e := refused("")
	e.Transaction.Charges[0].Cost = 1
	for i := range 100 {
		e.Transaction.At = time.UnixMicro(int64(i))
		e.Transaction.Charges[0].Key = fmt.Sprintf("key %0*d", 20, i%3)
		recorder.Observe(e)
	}
	got, err := recorder.Try("api", algorithms.FixedWindow(2, time.Hour))
	want := "api key 00000000000000000000 2 0 , api key 00000000000000000001 1 0 , api key 00000000000000000002 1 0 "
	if err != nil || brief(got.Top) != want || got.RefusedKeys != 3 || got.WereRefused != 10 {
		t.Errorf("got %+v, %v, want the keys %s", got, err, want)
	}
}

// TestBans: Keys returns the n bans that end last, until they end.
func TestBans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := watch.NewRecorder(3, 1)
		l := limiter(t, memstore.New(memstore.Options{}), recorder.Observe, weir.Rule{
			Name: "api", Key: weir.ByHeader("K"), Limits: []weir.Limit{algorithms.GCRA(1, 10*time.Second)},
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(2, time.Hour), Duration: time.Minute},
		})
		h := l.Handler(http.NotFoundHandler())
		for i, key := range []string{"a", "b", "c", "d"} { // d takes the place of a, whose ban ends first
			for range 3 + i {
				ask(h, "K", key)
			}
			time.Sleep(time.Second)
		}
		ask(h, "K", "e")
		if got := fmt.Sprint(names(recorder.Bans())); got != "[d c b]" {
			t.Errorf("got %s", got)
		}
		time.Sleep(57 * time.Second)
		if got := fmt.Sprint(names(recorder.Bans())); got != "[d c]" {
			t.Errorf("after 57 s: got %s", got)
		}
	})
}

// TestBansFlood: of ten times as many bans as a Recorder remembers, it remembers those that expire
// last. With a search for the ban that expires first, the test takes minutes.
func TestBansFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const n = 20_000
		recorder := watch.NewRecorder(n, 1)
		until := func(i int) time.Duration { return time.Duration(1+i*7919%(10*n)) * time.Second } // each number once
		for i := range 10 * n {
			for _, d := range []time.Duration{until(i*3) / 2, until(i)} { // the second time, the ban is known
				recorder.Observe(weir.Event{Key: fmt.Sprint(i), Refusal: weir.Refusal{Reason: weir.ReasonBan, Rule: "api", RetryAfter: d}})
			}
		}
		bans := recorder.Bans()
		for i, b := range bans {
			k, _ := strconv.Atoi(b.Key)
			if want := time.Duration(10*n-i) * time.Second; until(k) != want || !b.Until.Equal(time.Now().Add(want)) {
				t.Fatalf("ban %d: got the ban of %q until %v, want the one that lasts %v", i, b.Key, b.Until, want)
			}
		}
		if time.Sleep(until(0) + 9*n*time.Second); len(bans) != n || len(recorder.Bans()) != n-1 {
			t.Errorf("got %d bans, and %d after the first of them, want %d and one less", len(bans), len(recorder.Bans()), n)
		}
	})
}

func names(bans []watch.Banned) (keys []string) {
	for _, b := range bans {
		keys = append(keys, b.Key)
	}
	return keys
}

// An operator tries a quota of 30 on the requests that a quota of 100 admitted.
func ExampleRecorder_Try() {
	recorder := watch.NewRecorder(1, 100_000)
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(100, time.Hour)}}},
		Observe: recorder.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for i := range 60 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", []string{"alice", "alice", "bob"}[i%3])
		l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	}
	trial, err := recorder.Try("api", algorithms.FixedWindow(30, 1000*time.Hour))
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(trial.Refused, "of", trial.Requests, "requests, of", trial.RefusedKeys, "of", trial.Keys, "clients")
	for _, k := range trial.Top {
		fmt.Println(k.Key, k.Count)
	}
	// Output:
	// 10 of 60 requests, of 1 of 2 clients
	// alice 10
}

func ExampleRecorder_Bans() {
	recorder := watch.NewRecorder(1000, 1)
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{
			Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Hour), Duration: time.Minute},
		}},
		Observe: recorder.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "mallory")
		l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	}
	for _, b := range recorder.Bans() {
		fmt.Println(b.Rule, b.Key)
	}
	// Output: api mallory
}

func BenchmarkTraffic(b *testing.B) {
	recorder, e := watch.NewRecorder(1, 100_000), refused("192.0.2.1")
	e.Transaction.Charges[0].Cost = 1
	b.ReportAllocs()
	for b.Loop() {
		recorder.Observe(e)
	}
}
