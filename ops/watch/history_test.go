package watch_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"
	"unicode/utf8"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

// sum returns the counts of the newest n intervals together.
func sum(recorder *watch.Recorder, rule string, n int) (c watch.Count) {
	counts, _ := recorder.History(rule)
	for _, o := range counts[len(counts)-n:] {
		c.Add(o)
	}
	return c
}

// fails returns a store that fails.
func fails(err error) weir.Store {
	return storeFunc(func(context.Context, *quota.Transaction) error { return err })
}

// TestHistory: each request counts once for all rules together, and under each rule as that rule
// decided. A request that another rule refused counts under no further rule.
func TestHistory(t *testing.T) {
	recorder := watch.NewRecorder(1, 10)
	api, ip, shadow := rule("api", weir.ByHeader("K"), 5), rule("ip", weir.ByIP(), 100), rule("shadow", weir.Global(), 2)
	shadow.Enforce = weir.Percent(0)
	api.ForKey = func(key string) weir.Policy { return map[string]weir.Policy{"bad": weir.Denied()}[key] }
	h := limiter(t, memstore.New(memstore.Options{}), recorder.Observe, api, ip, shadow).Handler(http.NotFoundHandler())
	for range 7 {
		ask(h, "K", "a") // 5 pass, of which the last leaves 0 of 5; 2 are refused
	}
	for range 3 {
		ask(h, "K", "bad")
	}
	down := limiter(t, fails(quota.ErrBusy), recorder.Observe, rule("api", weir.ByIP(), 1)).Handler(http.NotFoundHandler())
	ask(down)
	open := limiter(t, fails(errors.New("away")), recorder.Observe, rule("api", weir.ByIP(), 1)).Handler(http.NotFoundHandler())
	ask(open)
	for _, tt := range []struct {
		rule string
		want watch.Count
	}{
		{"", watch.Count{Allowed: 5, Refused: 5, Shadow: 3, Failed: 2, Passed: 1}},
		{"api", watch.Count{Allowed: 5, Refused: 5, Near: 1}},
		{"ip", watch.Count{Allowed: 5}},
		{"shadow", watch.Count{Allowed: 2, Shadow: 3, Near: 1}},
		{"unknown", watch.Count{}},
	} {
		if got := sum(recorder, tt.rule, 180); got != tt.want {
			t.Errorf("%q: got %+v, want %+v", tt.rule, got, tt.want)
		}
	}
	if cause, at := recorder.Failure(); cause != "error" || at.IsZero() {
		t.Errorf("the last failure: got %q at %v", cause, at)
	}
}

// TestHistoryTime: each interval has the requests of its 5 s, whether or not there were requests
// before it, and whatever the clock of the store says: it may be wrong, step, or stand still.
func TestHistoryTime(t *testing.T) {
	for name, at := range map[string]func(i int) time.Time{
		"right":     func(int) time.Time { return time.Now() },
		"ahead":     func(int) time.Time { return time.Now().Add(time.Hour) },
		"steps":     func(i int) time.Time { return time.Now().Add(time.Duration(i%3) * -time.Minute) },
		"not told":  func(int) time.Time { return time.Time{} },
		"alternate": func(i int) time.Time { return time.Now().Add(time.Duration(i%2) * time.Hour) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				recorder := watch.NewRecorder(10, 10)
				for i := range 60 { // seconds
					if i < 20 || i >= 40 {
						e := refused("a")
						e.Transaction.Charges[0].Cost, e.Transaction.At = 1, at(i)
						recorder.Observe(e)
					}
					time.Sleep(time.Second)
				}
				counts, since := recorder.History("api")
				var got []int64
				for _, c := range counts[len(counts)-13:] {
					got = append(got, c.Refused)
				}
				if want := "[5 5 5 5 0 0 0 0 5 5 5 5 0]"; fmt.Sprint(got) != want || since != 0 {
					t.Errorf("got %v, since %v, want %s", got, since, want)
				}
				if r, _ := recorder.Find("api", "a"); r.Count != 40 || time.Since(r.Last) != time.Second {
					t.Errorf("got %+v, last %v ago, want 40, 1s ago", r, time.Since(r.Last))
				}
				time.Sleep(14*time.Minute + 50*time.Second)
				if got := sum(recorder, "api", 180).Refused; got != 5 {
					t.Errorf("after 15m50s: got %d, want those of the last 5 s", got)
				}
				time.Sleep(24 * time.Hour)
				if got := sum(recorder, "api", 180); got != (watch.Count{}) {
					t.Errorf("after a day: got %+v", got)
				}
			})
		})
	}
}

// TestTopWindows: Keys has the refusals of the asked minutes, and nothing is left after an hour.
func TestTopWindows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := watch.NewRecorder(10, 1)
		for minute := range 30 {
			for range 10 {
				recorder.Observe(refused("all"))
				if minute < 10 {
					recorder.Observe(refused("old"))
				}
			}
			time.Sleep(time.Minute)
		}
		for range 50 {
			recorder.Observe(refused("new"))
		}
		time.Sleep(10 * time.Second)
		for _, tt := range []struct {
			d    time.Duration
			want string
			over time.Duration
		}{
			{time.Hour, "api all 300 0 limit, api old 100 0 limit, api new 50 0 limit", 30*time.Minute + 10*time.Second},
			{5 * time.Minute, "api new 50 0 limit, api all 40 0 limit", 4*time.Minute + 10*time.Second},
			{0, "api new 50 0 limit", 10 * time.Second},
		} {
			keys, over := recorder.Top(tt.d)
			if got := brief(keys); got != tt.want || over != tt.over {
				t.Errorf("%v: got %s over %v, want %s over %v", tt.d, got, over, tt.want, tt.over)
			}
		}
		time.Sleep(59 * time.Minute)
		if got := brief(keysOf(recorder)); got != "api new 50 0 limit" {
			t.Errorf("59 minutes later: got %s", got)
		}
		time.Sleep(time.Minute)
		if _, ok := recorder.Find("api", "new"); ok || len(keysOf(recorder)) > 0 {
			t.Errorf("an hour later: got %v", keysOf(recorder))
		}
	})
}

// TestTopFlood: in an hour, 200,000 made-up keys do not make a Top of 100 keys forget a key that is
// refused more often than every hundredth request, and they rank below it in every window.
func TestTopFlood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := watch.NewRecorder(100, 1)
		for i := range 200_000 {
			recorder.Observe(refused(fmt.Sprint(i)))
			if i%50 == 0 {
				recorder.Observe(refused("offender"))
				time.Sleep(900 * time.Millisecond)
			}
		}
		for _, d := range []time.Duration{5 * time.Minute, time.Hour} {
			keys, over := recorder.Top(d)
			if want := int64(over/(900*time.Millisecond)) - 3; keys[0].Key != "offender" || keys[0].AtLeast() < want {
				t.Errorf("%v: got %+v first, want the offender with at least %d", d, keys[0], want)
			}
		}
		lines, leftOut := recorder.Recent(1000), int64(0)
		for _, l := range lines {
			leftOut += l.LeftOut
		}
		if over := time.Since(lines[len(lines)-1].At); len(lines) != 100 || over < 20*time.Second || leftOut < 20*int64(over/time.Second) {
			t.Errorf("got %d lines over %v, with %d left out", len(lines), over, leftOut)
		}
	})
}

// TestRecent: refusals of a key within 10 s are one line, which has the limit and the route of
// the first. A route has no query, is valid UTF-8, and is bounded.
func TestRecent(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		recorder := watch.NewRecorder(100, 1)
		r := rule("api", weir.ByHeader("K"), 1)
		r.Limits = append(r.Limits, algorithms.GCRA(1, time.Second))
		h := limiter(t, memstore.New(memstore.Options{}), recorder.Observe, r).Handler(http.NotFoundHandler())
		for i, path := range []string{"/", "/a?secret=1", "/b", "/c"} { // the first is allowed
			askPath(h, path, "a")
			if i == 2 {
				time.Sleep(11 * time.Second)
			}
		}
		var got []string
		for _, l := range recorder.Recent(10) {
			got = append(got, fmt.Sprintln(l.Key, l.Count, l.Reason, l.Limit, l.Route, time.Since(l.Last)))
		}
		if want := "a 1 limit 1000h GET /c 0s\na 2 limit 1000h GET /a 11s\n"; strings.Join(got, "") != want {
			t.Errorf("got %s, want %s", got, want)
		}
		mux := http.NewServeMux()
		mux.Handle("GET /users/{id}", h)
		askPath(mux, "/users/7", "d")
		askPath(mux, "/users/8", "d")
		if l := recorder.Recent(1)[0]; l.Route != "GET /users/{id}" {
			t.Errorf("behind a mux: got the route %q", l.Route)
		}
		for key, path := range map[string]string{"long": "/" + strings.Repeat("0", 500), "hostile": "/%ff%0a" + strings.Repeat("é", 500)} {
			askPath(h, "/", key)
			askPath(h, path, key)
			if l := recorder.Recent(1)[0]; l.Key != key || !utf8.ValidString(l.Route) || len(l.Route) > 130 || !strings.HasSuffix(l.Route, "…") {
				t.Errorf("%s: got %q", key, l.Route)
			}
		}
	})
}

func askPath(h http.Handler, path, key string) {
	r := httptest.NewRequest("GET", path, nil)
	r.Header.Set("K", key)
	h.ServeHTTP(httptest.NewRecorder(), r)
}

// An operator reads what the rules have done in the last minute, and who was refused most.
func ExampleRecorder_History() {
	recorder := watch.NewRecorder(1000, 100_000)
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules:   []weir.Rule{{Name: "api", Key: weir.ByHeader("X-User"), Limits: []weir.Limit{algorithms.GCRA(100, time.Hour)}}},
		Observe: recorder.Observe,
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 130 {
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "alice")
		l.Handler(http.NotFoundHandler()).ServeHTTP(httptest.NewRecorder(), r)
	}
	counts, _ := recorder.History("api")
	var minute watch.Count
	for _, c := range counts[len(counts)-int(time.Minute/watch.HistoryEvery):] {
		minute.Add(c)
	}
	fmt.Println(minute.Allowed, "allowed,", minute.Refused, "refused,", minute.Near, "near the limit")
	if alice, ok := recorder.Find("api", "alice"); ok {
		fmt.Println("alice was refused at least", alice.AtLeast(), "times")
	}
	cause, _ := recorder.Failure()
	fmt.Printf("the store failed: %q\n", cause)
	// Output:
	// 100 allowed, 30 refused, 20 near the limit
	// alice was refused at least 30 times
	// the store failed: ""
}
