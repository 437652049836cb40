package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestPolicyNeverFailsOpen: by default, a mistake of Policy lets no request pass
// unlimited. A limit that cannot be counted exactly is charged as the nearest limit that can
// be counted. Any other mistake is an error: Transport returns it, and the default of
// OnError answers 503. A rule in shadow refuses no request. Each mistake is logged without
// the key.
func TestPolicyNeverFailsOpen(t *testing.T) {
	uncountable := algorithms.GCRA(math.MaxInt64, time.Hour) // meant as "unlimited"
	passes := func(*http.Request, error) error { return nil }
	for _, c := range []struct {
		limits  []weir.Limit
		shadow  float64
		onError func(*http.Request, error) error
		status  int
		shown   string // X-RateLimit-Limit
		sent    bool   // Transport sends the request
		logged  string
	}{
		{[]weir.Limit{algorithms.GCRA(5, time.Hour)}, 0, nil, 200, "5", true, ""},
		{[]weir.Limit{uncountable}, 0, nil, 200, "1125899906842624", true, "quota 1125899906842624 can"},
		{[]weir.Limit{uncountable}, 0, passes, 200, "1125899906842624", true, "quota 1125899906842624 can"},
		{[]weir.Limit{algorithms.GCRA(5, time.Minute), uncountable}, 0, nil, 200, "5", true, "quota 1125899906842624 can"},
		{[]weir.Limit{algorithms.FixedWindow(math.MaxInt64, time.Hour)}, 0, nil, 200, "1125899906842624", true, "quota 1125899906842624 can"},
		{[]weir.Limit{uncountable}, 1, nil, 200, "", true, "quota 1125899906842624 can"},
		{[]weir.Limit{algorithms.GCRA(0, time.Hour)}, 0, nil, 503, "", false, "quota is 0; want at least 1"},
		{[]weir.Limit{uncountable, algorithms.GCRA(0, time.Hour)}, 0, nil, 503, "", false, "quota is 0; want at least 1"},
		{nil, 0, nil, 503, "", false, "the policy is zero, and the rule has no Limits"},
		{nil, 0, passes, 200, "", false, "the policy is zero, and the rule has no Limits"},
		{nil, 1, nil, 200, "", true, "the policy is zero, and the rule has no Limits"},
		{[]weir.Limit{{}}, 0, nil, 503, "", false, "the Algorithm is nil"},
		{[]weir.Limit{algorithms.GCRA(1, math.MaxInt64/1000*1000)}, 0, nil, 503, "", false, "want at most 2^50 µs"},
		{[]weir.Limit{algorithms.GCRA(0, time.Hour)}, 0, passes, 200, "", false, "quota is 0; want at least 1"},
		{[]weir.Limit{algorithms.GCRA(0, time.Hour)}, 1, nil, 200, "", true, "quota is 0; want at least 1"},
	} {
		given := append([]weir.Limit(nil), c.limits...)
		rule := weir.Rule{Name: "api", Key: weir.ByHeader("User"), Enforce: weir.Percent(100 - 100*c.shadow), Policy: func(*http.Request) weir.Policy { return weir.Limited(given...) }}
		var log bytes.Buffer
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}, OnError: c.onError, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		res := do(l.Handler(served), ask("/", "", "User", "ann@example.com"))
		if shown := res.Header.Get("X-RateLimit-Limit"); res.StatusCode != c.status || shown != c.shown {
			t.Errorf("%v in shadow %v: got %d, %q; want %d, %q", c.limits, c.shadow, res.StatusCode, shown, c.status, c.shown)
		}
		if !strings.Contains(log.String(), c.logged) || (log.Len() == 0) != (c.logged == "") || strings.Contains(log.String(), "ann@") {
			t.Errorf("%v in shadow %v: got the log %q, want %q and no key", c.limits, c.shadow, &log, c.logged)
		}
		out := transport(t, l, weir.TransportOptions{Base: &partner{}})
		if _, err := out.RoundTrip(ask("/", "", "User", "ann@example.com")); (err == nil) != c.sent {
			t.Errorf("%v in shadow %v: Transport returns %v, want it sent: %v", c.limits, c.shadow, err, c.sent)
		}
		if c.logged == "" {
			given[0], rule.Buffer = algorithms.GCRA(1, 1<<50*time.Microsecond), 7*time.Microsecond // in all more than 2^50 µs
			buffered := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.DiscardHandler)})
			if _, err := transport(t, buffered, weir.TransportOptions{Base: &partner{}}).RoundTrip(ask("/", "", "User", "ann")); err == nil || !strings.Contains(err.Error(), "buffer of 7µs") {
				t.Errorf("with a buffer: Transport returns %v", err)
			}
			rule.Enforce = weir.Percent(0)
			buffered = must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.NewTextHandler(&log, nil))})
			if _, err := transport(t, buffered, weir.TransportOptions{Base: &partner{}}).RoundTrip(ask("/", "", "User", "ann")); err != nil || strings.Count(log.String(), "\n") != 1 || !strings.Contains(log.String(), "buffer of 7µs") {
				t.Errorf("with a buffer, in shadow: Transport returns %v, and logs %q", err, &log)
			}
			given[0] = c.limits[0]
		}
		if !slices.Equal(given, c.limits) {
			t.Errorf("%v: the Limiter has changed what Policy returned", c.limits)
		}
	}
}

// forKey returns a Rule.ForKey that looks keys up in m.
func forKey(m map[string]weir.Policy) func(string) weir.Policy {
	return func(key string) weir.Policy { return m[key] }
}

// TestForKeyReplaces: a limit of a key gets the fields that it leaves out, and its stored name,
// from the limit that it replaces.
func TestForKeyReplaces(t *testing.T) {
	minute, day := algorithms.GCRA(20, time.Minute), algorithms.Calendar(500, algorithms.Day, time.UTC)
	bucket := algorithms.TokenBucket(50, 10, time.Second).Named("steady")
	for _, tt := range []struct {
		name  string
		rule  []weir.Limit
		key   []weir.Limit
		want  string
		wrong string
	}{
		{"only a quota", []weir.Limit{minute}, []weir.Limit{{Quota: 200}}, "1m gcra 200/1m0s burst 0", ""},
		{"another period keeps the name", []weir.Limit{minute}, []weir.Limit{{Quota: 200, Period: time.Hour}}, "1m gcra 200/1h0m0s burst 0", ""},
		{"a burst is inherited", []weir.Limit{bucket}, []weir.Limit{{Quota: 30}}, "steady token-bucket 30/1s burst 50", ""},
		{"or replaced", []weir.Limit{bucket}, []weir.Limit{{Quota: 30, Burst: 90}}, "steady token-bucket 30/1s burst 90", ""},
		{"not by another algorithm", []weir.Limit{bucket}, []weir.Limit{algorithms.FixedWindow(30, time.Second)}, "steady fixed-window 30/1s burst 0", ""},
		{"by period", []weir.Limit{minute, day}, []weir.Limit{{Quota: 200, Period: time.Minute}}, "1m gcra 200/1m0s burst 0", ""},
		{"by name", []weir.Limit{minute, day}, []weir.Limit{{Name: "day", Quota: 9}, {Name: "1m", Quota: 3}}, "day calendar 9/24h0m0s burst 0; 1m gcra 3/1m0s burst 0", ""},
		{"one of its own", []weir.Limit{minute, day}, []weir.Limit{algorithms.GCRA(7, time.Hour)}, "1h gcra 7/1h0m0s burst 0", ""},
		{"of two none is meant", []weir.Limit{minute, day}, []weir.Limit{{Quota: 200}}, "", "the Algorithm is nil"},
		{"twice the same", []weir.Limit{minute}, []weir.Limit{{Name: "1m", Quota: 2}, {Quota: 3, Period: time.Minute}}, "", `two limits are named "1m"`},
		{"a quota of 0", []weir.Limit{minute}, []weir.Limit{{}}, "", "quota is 0; want at least 1"},
		{"below nothing", []weir.Limit{minute}, []weir.Limit{{Quota: -1}}, "", "quota is -1; want at least 1"},
	} {
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
			{Name: "api", Key: weir.ByIP(), Limits: tt.rule, ForKey: forKey(map[string]weir.Policy{"alice": weir.Limited(tt.key...)})},
		}})
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.PolicyOf("api", "alice")
		var texts []string
		for _, l := range p.Limits() {
			texts = append(texts, fmt.Sprintf("%s %s %d/%v burst %d", l.Name, l.Algorithm.Name(), l.Quota, l.Period, l.Burst))
		}
		if got := strings.Join(texts, "; "); got != tt.want || !failsWith(err, tt.wrong) {
			t.Errorf("%s: got %q, %v, want %q and %q", tt.name, got, err, tt.want, tt.wrong)
		}
		if p, _ := l.PolicyOf("api", "bob"); len(p.Limits()) != len(tt.rule) {
			t.Errorf("%s: bob has %v", tt.name, p.Limits())
		}
	}
}

// TestForKeyInForce: the policy of a key applies from the next request on. What the key has
// spent still counts, and the names in the header fields stay the same.
func TestForKeyInForce(t *testing.T) {
	for name, store := range map[string]weir.Store{"memory": memory(), "hybrid": quota.Hybrid(memory(), quota.HybridOptions{MaxKeys: 100})} {
		table := map[string]weir.Policy{}
		mux := http.NewServeMux()
		l, err := weir.New(store, weir.Options{
			Headers: headers.IETF, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), OnError: weir.FailClosed,
			Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)}, ForKey: forKey(table)}},
		})
		if err != nil {
			t.Fatal(err)
		}
		mux.Handle("/", l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
		step := func(user string, wantCode int, wantField string) {
			t.Helper()
			w := httptest.NewRecorder()
			r := ask("/", "192.0.2.1:4", "User", user)
			mux.ServeHTTP(w, r)
			if got := w.Header().Get("RateLimit-Policy"); w.Code != wantCode || got != wantField {
				t.Errorf("%s: %s got %d, %q, want %d, %q", name, user, w.Code, got, wantCode, wantField)
			}
		}
		two := `"api";q=2;w=3600000`
		step("alice", 200, two)
		step("alice", 200, two)
		step("alice", 429, two)
		table["alice"] = weir.Limited(weir.Limit{Quota: 3})
		step("alice", 200, `"api";q=3;w=3600000`)
		step("alice", 429, `"api";q=3;w=3600000`)
		table["alice"] = weir.Unlimited()
		step("alice", 200, "")
		table["alice"] = weir.Denied()
		step("alice", 429, "")
		table["alice"] = weir.Limited(weir.Limit{Quota: -1})
		step("alice", 429, two)
		delete(table, "alice")
		step("alice", 429, two)
		step("bob", 200, two)
		table["carol"] = weir.Limited(weir.Limit{Name: "1000h", Quota: 5}, algorithms.FixedWindow(9, time.Hour))
		step("carol", 200, `"api/1000h";q=5;w=3600000, "api/1h";q=9;w=3600`)
	}
}

// TestForKeyOfTiers: a limit of a key replaces limits of the tier of the request. What the key has
// spent still counts. A policy that fits no limit of the tier is logged, and the tier's limits stay
// in force. A key that is denied is refused in an unlimited tier too.
func TestForKeyOfTiers(t *testing.T) {
	const h = 1000 * time.Hour
	tiers := map[string]weir.Policy{
		"free": weir.Limited(algorithms.FixedWindow(2, h)),
		"pro":  weir.Limited(algorithms.FixedWindow(4, h), algorithms.GCRA(50, time.Hour).Named("pace")),
		"odd":  weir.Limited(weir.Limit{}),
		"none": weir.Unlimited(),
	}
	const (
		free   = `"api";q=2;w=3600000`
		pro    = `"api/1000h";q=4;w=3600000, "api/pace";q=50;w=3600`
		ignore = `msg="weir: policy of ForKey ignored" rule=api err="weir: rule \"api\": a Policy or ForKey returned an invalid limit: limit`
	)
	type step struct {
		own    weir.Policy
		tier   string
		code   int
		policy string
		logged string
	}
	for _, c := range []struct {
		name  string
		steps []step
	}{
		{"a quota", []step{
			{weir.Policy{}, "free", 200, free, ""}, {weir.Policy{}, "free", 200, free, ""}, {weir.Policy{}, "free", 429, free, ""},
			{weir.Limited(weir.Limit{Quota: 3}), "free", 200, `"api";q=3;w=3600000`, ""},
			{weir.Limited(weir.Limit{Quota: 3}), "free", 429, `"api";q=3;w=3600000`, ""},
			{weir.Policy{}, "free", 429, free, ""},
		}},
		{"one of two limits, by name or period", []step{
			{weir.Limited(weir.Limit{Name: "pace", Quota: 90}), "pro", 200, `"api/pace";q=90;w=3600`, ""},
			{weir.Limited(weir.Limit{Name: "pace", Quota: 90}, weir.Limit{Period: h, Quota: 8}), "pro", 200, `"api/pace";q=90;w=3600, "api/1000h";q=8;w=3600000`, ""},
		}},
		{"complete", []step{
			{weir.Limited(algorithms.FixedWindow(3, h)), "free", 200, `"api";q=3;w=3600000`, ""},
			{weir.Limited(algorithms.FixedWindow(3, h)), "none", 200, `"api";q=3;w=3600000`, ""},
		}},
		{"fits no limit", []step{
			{weir.Limited(weir.Limit{Quota: 9}), "pro", 200, pro, ignore + ` \"\": the Algorithm is nil, and the limit replaces none of the limits \"1000h\", \"pace\""`},
			{weir.Limited(weir.Limit{Quota: -9}), "free", 200, free, ignore + ` \"1000h\": quota is -9; want at least 1"`},
			{weir.Limited(weir.Limit{Quota: 9}), "none", 200, "", ignore + ` \"\": the Algorithm is nil"`},
		}},
		{"an invalid tier", []step{{weir.Limited(weir.Limit{Quota: 9}), "odd", 503, "", `a Policy or ForKey returned an invalid limit: limit \"\": the Algorithm is nil`}}},
		{"unlimited, denied", []step{{weir.Unlimited(), "free", 200, "", ""}, {weir.Denied(), "free", 429, "", ""}, {weir.Denied(), "none", 429, "", ""}}},
	} {
		synctest.Test(t, func(t *testing.T) {
			table := map[string]weir.Policy{}
			var log bytes.Buffer
			handler := must(t, memory(), weir.Options{
				Headers: headers.IETF, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), ForKey: forKey(table), Policy: func(r *http.Request) weir.Policy {
					return tiers[r.Header.Get("Tier")]
				}}},
			}).Handler(served)
			for i, s := range c.steps {
				time.Sleep(time.Minute) // each step may log a line
				log.Reset()
				table["alice"] = s.own
				res := do(handler, ask("/", "", "User", "alice", "Tier", s.tier))
				if got := res.Header.Get("RateLimit-Policy"); res.StatusCode != s.code || got != s.policy {
					t.Errorf("%s, step %d: got %d, %q, want %d, %q", c.name, i, res.StatusCode, got, s.code, s.policy)
				}
				if !strings.Contains(log.String(), s.logged) || (log.Len() > 0) != (s.logged != "") {
					t.Errorf("%s, step %d: got the log %q, want %q", c.name, i, &log, s.logged)
				}
			}
		})
	}
}

// TestDenied: a denied key is refused, unless the rule is in shadow or its Policy allows the
// request. Preflights are refused too.
// TestClass: a class is admitted only while its headroom is left, and other requests get the headroom.
// Its header fields and its Retry-After are those of the class. It neither waits nor collects strikes.
func TestClass(t *testing.T) {
	for _, maxWait := range []time.Duration{0, time.Hour} {
		synctest.Test(t, func(t *testing.T) {
			var headroom int64
			l := must(t, memstore.New(memstore.Options{}), weir.Options{
				MaxWait: maxWait,
				Rules: []weir.Rule{{
					Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Minute).WithBurst(10)},
					Class: weir.ByHeader("Class"), Headroom: map[string]int{"batch": 25},
					Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(2, time.Hour), Duration: time.Hour},
				}},
				Observe: func(e weir.Event) { headroom = e.Transaction.Charges[0].Headroom },
			})
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			send := func(class string, status int, remaining, retryAfter string) {
				t.Helper()
				res := do(h, ask("/", "", "Class", class))
				got := []string{fmt.Sprint(res.StatusCode), res.Header.Get("X-RateLimit-Remaining"), res.Header.Get("Retry-After")}
				if want := []string{fmt.Sprint(status), remaining, retryAfter}; !slices.Equal(got, want) {
					t.Fatalf("MaxWait %v: class %q: got %q, want %q", maxWait, class, got, want)
				}
			}
			for i := range 7 {
				send("batch", 200, fmt.Sprint(6-i), "")
			}
			for range 5 {
				send("batch", 429, "0", "7") // a unit is available each 6.67 s
			}
			if headroom != 3 { // 25% of 10, rounded up
				t.Errorf("got a charge with headroom %d, want 3", headroom)
			}
			send("", 200, "2", "")
			send("unknown", 200, "1", "")
			send("batch", 429, "0", "20") // until 4 units are available
			time.Sleep(20 * time.Second)
			send("batch", 200, "0", "")
			send("batch", 429, "0", "7")
		})
	}
}

// TestClassInShadow: the rules in shadow of a request that must leave headroom are charged, too.
func TestClassInShadow(t *testing.T) {
	var events []string
	rule := func(name string, enforce float64) weir.Rule {
		return weir.Rule{Name: name, Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)},
			Class: weir.ByHeader("Class"), Headroom: map[string]int{"batch": 50}, Enforce: weir.Percent(enforce)}
	}
	l := must(t, memstore.New(memstore.Options{}), weir.Options{
		MaxWait: time.Hour,
		Rules:   []weir.Rule{{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, 1000*time.Hour)}}, rule("shadow", 0)},
		Observe: func(e weir.Event) { events = append(events, fmt.Sprint(e.Shadow, e.Refusal.Reason, e.Err)) },
	})
	h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 2 {
		do(h, ask("/", "", "Class", "batch"))
	}
	want := []string{"false  <nil>", "true  <nil>", "false  <nil>", "true limit <nil>"}
	if !slices.Equal(events, want) {
		t.Errorf("got %q, want %q", events, want)
	}
}

// TestClassInvalid: New rejects a headroom without classes, and one that is no part of a limit.
func TestClassInvalid(t *testing.T) {
	class := weir.ByUrgency()
	for _, c := range []struct {
		quota    int64
		class    weir.KeyFunc
		headroom map[string]int
		want     string
	}{
		{100, class, map[string]int{"7": 1, "6": 99}, ""},
		{100, class, nil, "one of Class and Headroom is set"},
		{100, nil, map[string]int{"7": 30}, "one of Class and Headroom is set"},
		{100, class, map[string]int{"8": 30}, `has the class "8"; want the classes of ByUrgency, "0" to "7"`},
		{100, class, map[string]int{"batch": 30}, `has the class "batch"`},
		{100, class, map[string]int{"": 30}, `has the class ""`},
		{100, weir.ByHeader("Class"), map[string]int{"batch": 30}, ""},
		{100, class, map[string]int{"7": 0}, `the Headroom of class "7" is 0%; want 1% to 99%`},
		{100, class, map[string]int{"7": 100}, `the Headroom of class "7" is 100%; want 1% to 99%`},
		{10, class, map[string]int{"7": 91}, "holds 10, of which a Headroom of 91% leaves nothing"},
	} {
		err := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(c.quota, time.Minute)},
			Class: c.class, Headroom: c.headroom}.Validate()
		if c.want == "" && err != nil || c.want != "" && !failsWith(err, c.want) {
			t.Errorf("%v: got %v, want %q", c.headroom, err, c.want)
		}
	}
	invalid := weir.Rule{Name: "api", Key: weir.Global(), Limits: []weir.Limit{{Quota: 9, Period: time.Minute}},
		Class: class, Headroom: map[string]int{"7": 30}}
	if err := invalid.Validate(); !failsWith(err, "lgorithm") {
		t.Errorf("a limit without an algorithm: got %v, want an error that says so", err)
	}
}

func TestDenied(t *testing.T) {
	table := forKey(map[string]weir.Policy{"mallory": weir.Denied()})
	for _, tt := range []struct {
		name   string
		rule   weir.Rule
		method string
		want   int
	}{
		{"refused", weir.Rule{}, "GET", 429},
		{"in shadow", weir.Rule{Enforce: weir.Percent(0)}, "GET", 200},
		{"allowed", weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Allowed() }}, "GET", 200},
		{"preflight", weir.Rule{}, "OPTIONS", 429},
	} {
		tt.rule.Name, tt.rule.Key, tt.rule.ForKey = "api", weir.ByHeader("User"), table
		tt.rule.Limits = []weir.Limit{algorithms.GCRA(10, time.Minute)}
		l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{tt.rule}})
		if err != nil {
			t.Fatal(err)
		}
		w, r := httptest.NewRecorder(), ask("/", "192.0.2.1:4", "User", "mallory")
		if r.Method = tt.method; r.Method == "OPTIONS" {
			r.Header.Set("Origin", "https://example.com")
			r.Header.Set("Access-Control-Request-Method", "PUT")
		}
		l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})).ServeHTTP(w, r)
		if w.Code != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, w.Code, tt.want)
		}
	}
}

// TestPoliciesBounded: however many policies a rule makes up, their limits apply, and their memory
// is bounded. Equal policies are kept once, wherever they lie in memory.
func TestPoliciesBounded(t *testing.T) {
	if race {
		t.Skip("its heap is that of one goroutine")
	}
	n, zones := int64(0), false
	tier := func(*http.Request) weir.Policy {
		if zones { // calendars whose zones differ
			return weir.Limited(algorithms.Calendar(n, algorithms.Day, time.FixedZone("", int(n)%(1<<16))))
		}
		return weir.Limited(algorithms.GCRA(n, time.Minute))
	}
	l := must(t, memory(), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Policy: tier, ForKey: func(string) weir.Policy { return weir.Limited(weir.Limit{Quota: n}) },
	}}})
	h := l.Handler(served)
	send := func(requests, different int64) (grown int64) {
		before := heap()
		for i := range requests {
			n = 1 + i%different
			if got := do(h, ask("/", "192.0.2.1:4")).Header.Get("X-RateLimit-Limit"); got != fmt.Sprint(n) {
				t.Fatalf("got the limit %s, want %d", got, n)
			}
		}
		return heap() - before
	}
	if got := send(1000, 3); got > 1<<20 {
		t.Errorf("3 policies, used again and again: the heap has grown by %d bytes", got)
	}
	for _, zones = range []bool{false, true} {
		if got := send(60_000, 60_000); got > 60<<20 { // without a bound it is 150 MB
			t.Errorf("60,000 policies: the heap has grown by %d bytes", got)
		}
	}
	runtime.KeepAlive(l)
}

// TestPolicyChanges: a list of limits that the program changes is read again for each request, and
// the list of another algorithm is not taken for it. Algorithms need not be comparable.
func TestPolicyChanges(t *testing.T) {
	limits := make([]weir.Limit, 1)
	h := must(t, memory(), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Limited(limits...) },
	}}}).Handler(served)
	odd := algorithms.GCRA(1<<30, time.Second)
	odd.Algorithm = struct {
		quota.Algorithm
		_ []int
	}{Algorithm: odd.Algorithm}
	for _, c := range []struct {
		limit weir.Limit
		want  string
	}{
		{algorithms.GCRA(9, time.Hour), "9"}, {algorithms.GCRA(7, time.Hour), "7"}, {algorithms.FixedWindow(7, time.Hour), "7"},
		{algorithms.GCRA(7, time.Hour).WithBurst(3), "3"}, {algorithms.GCRA(9, time.Hour), "9"}, {odd, "1073741824"}, {odd, "1073741824"},
	} {
		limits[0] = c.limit
		if got := do(h, ask("/", "192.0.2.1:4")).Header.Get("X-RateLimit-Limit"); got != c.want {
			t.Errorf("%v: got the limit %s, want %s", c.limit, got, c.want)
		}
	}
}

// TestPolicyAllocates: a request makes at most two more allocations for the request that Policy
// gets, and none for ForKey.
func TestPolicyAllocates(t *testing.T) { synctest.Test(t, testPolicyAllocates) } // see TestHandlerAllocates

func testPolicyAllocates(t *testing.T) {
	two := []weir.Limit{algorithms.GCRA(1<<20, time.Minute), algorithms.FixedWindow(1<<30, time.Hour)}
	tier := func(*http.Request) weir.Policy { return weir.Limited(two...) }
	own := func(key string) func(string) weir.Policy {
		return forKey(map[string]weir.Policy{key: weir.Limited(weir.Limit{Name: "1m", Quota: 1 << 19})})
	}
	for _, c := range []struct {
		name string
		rule weir.Rule
		want float64
	}{
		{"another key", weir.Rule{Limits: two, ForKey: own("192.0.2.2")}, 4},
		{"a key", weir.Rule{Limits: two, ForKey: own("192.0.2.1")}, 4},
		{"a tier", weir.Rule{Policy: tier}, 6},
		{"a key in a tier", weir.Rule{Policy: tier, ForKey: own("192.0.2.1")}, 6},
	} {
		c.rule.Name, c.rule.Key = "api", weir.ByIP()
		h := must(t, memory(), weir.Options{Rules: []weir.Rule{c.rule}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w, r := &nullWriter{http.Header{}}, ask("/", "192.0.2.1:4")
		h.ServeHTTP(w, r)
		if got := testing.AllocsPerRun(100, func() { clear(w.h); h.ServeHTTP(w, r) }); got > c.want && !race {
			t.Errorf("%s: %v allocations, want %v", c.name, got, c.want)
		}
	}
}

// BenchmarkPolicy compares a rule with the same two limits for everybody, in a tier, and in place
// of others by the key, next to 10,000 other keys.
func BenchmarkPolicy(b *testing.B) {
	two := []weir.Limit{algorithms.GCRA(1<<30, time.Second), algorithms.FixedWindow(1<<35, time.Minute)}
	table := map[string]weir.Policy{"192.0.2.2": weir.Limited(two...)}
	for i := range 10_000 {
		table[fmt.Sprintf("198.51.%d.%d", i/256, i%256)] = weir.Limited(weir.Limit{Quota: 5})
	}
	for _, bb := range []struct {
		name, remote string
		rule         weir.Rule
	}{
		{"Limits", "192.0.2.1:4", weir.Rule{Limits: two}},
		{"Policy", "192.0.2.1:4", weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Limited(two...) }}},
		{"ForKey, another key", "192.0.2.1:4", weir.Rule{Limits: two, ForKey: forKey(table)}},
		{"ForKey", "192.0.2.2:4", weir.Rule{Limits: two, ForKey: forKey(table)}},
	} {
		b.Run(bb.name, func(b *testing.B) {
			bb.rule.Name, bb.rule.Key = "api", weir.ByIP()
			l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{bb.rule}})
			if err != nil {
				b.Fatal(err)
			}
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			w, r := &nullWriter{http.Header{}}, ask("/", bb.remote)
			b.ReportAllocs()
			for b.Loop() {
				clear(w.h)
				h.ServeHTTP(w, r)
			}
		})
	}
}

// TestWhen: Allowed of either function beats Denied of the other, Denied beats limits, and limits
// and Unlimited of ForKey beat those of Policy. Without a key, Policy allows and denies.
func TestWhen(t *testing.T) {
	said := map[string]weir.Policy{
		"nothing": {}, "allowed": weir.Allowed(), "denied": weir.Denied(), "unlimited": weir.Unlimited(),
		"limited": weir.Limited(algorithms.FixedWindow(8, time.Hour)), "quota": weir.Limited(weir.Limit{Quota: 9}),
	}
	is := func(word string) func(string) bool { return func(key string) bool { return key == word } }
	if weir.When[string](nil, weir.Denied(), nil) != nil {
		t.Error("When of nil functions is not nil")
	}
	h := must(t, memory(), weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
		ForKey: weir.When(is("denied"), weir.Denied(), nil, weir.When(is("denied"), weir.Allowed()), forKey(said)),
		Policy: weir.When(nil, weir.Denied(), func(r *http.Request) weir.Policy { return said[r.Header.Get("Tier")] }),
	}}}).Handler(served)
	for _, c := range []struct{ tier, none, nothing, allowed, denied, unlimited, limited, quota string }{
		{"nothing", "200 ", "200 5", "200 ", "429 ", "200 ", "200 8", "200 9"},
		{"allowed", "200 ", "200 ", "200 ", "200 ", "200 ", "200 ", "200 "},
		{"denied", "429 ", "429 ", "200 ", "429 ", "429 ", "429 ", "429 "},
		{"unlimited", "200 ", "200 ", "200 ", "429 ", "200 ", "200 8", "200 "},
		{"limited", "200 ", "200 8", "200 ", "429 ", "200 ", "200 8", "200 9"},
	} {
		for key, want := range map[string]string{"": c.none, "nothing": c.nothing, "allowed": c.allowed, "denied": c.denied, "unlimited": c.unlimited, "limited": c.limited, "quota": c.quota} {
			r := ask("/", "192.0.2.1:4", "Tier", c.tier)
			if key != "" {
				r.Header.Set("Key", key)
			}
			res := do(h, r)
			if got := fmt.Sprint(res.StatusCode, " ", res.Header.Get("X-RateLimit-Limit")); got != want {
				t.Errorf("a key that is %s in a tier that is %s: got %q, want %q", key, c.tier, got, want)
			}
		}
	}
}

// The map has customers with policies of their own. All other keys have the limits of the
// rule.
func ExampleLimiter_PolicyOf() {
	table := map[string]weir.Policy{
		"alice":   weir.Limited(weir.Limit{Quota: 1000}), // instead of 100, in the same period
		"monitor": weir.Unlimited(),
		"mallory": weir.Denied(),
	}
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-User"),
		Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
		ForKey: func(key string) weir.Policy { return table[key] },
	}}})
	if err != nil {
		panic(err)
	}
	for _, user := range []string{"alice", "bob", "mallory"} {
		policy, _ := limiter.PolicyOf("api", user)
		for _, l := range policy.Limits() {
			fmt.Println(user, l.Quota, "per", l.Label())
		}
		if policy.Is(weir.Denied()) {
			fmt.Println(user, "is denied")
		}
	}
	// Output:
	// alice 1000 per 1m
	// bob 100 per 1m
	// mallory is denied
}

// TestPolicyOf: PolicyOf returns what is known without a request, and otherwise the zero Policy.
func TestPolicyOf(t *testing.T) {
	minute := []weir.Limit{algorithms.GCRA(100, time.Minute)}
	tier := func(*http.Request) weir.Policy { return weir.Limited(minute...) }
	invalid := func(string) weir.Policy { return weir.Limited(weir.Limit{Quota: -1}) }
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "asks", Key: weir.Global(), Policy: tier},
		{Name: "asks, invalid", Key: weir.Global(), Policy: tier, ForKey: invalid},
		{Name: "asks, denied", Key: weir.Global(), Policy: tier, ForKey: func(string) weir.Policy { return weir.Denied() }},
		{Name: "invalid", Key: weir.Global(), Limits: minute, ForKey: invalid},
		{Name: "limits", Key: weir.Global(), Limits: minute, Policy: tier},
	}})
	for _, c := range []struct {
		rule  string
		want  weir.Policy
		wrong string
	}{
		{"asks", weir.Policy{}, ""}, {"asks, invalid", weir.Policy{}, ""}, {"asks, denied", weir.Denied(), ""},
		{"invalid", weir.Policy{}, "quota is -1; want at least 1"}, {"limits", weir.Limited(minute...), ""}, {"no rule", weir.Policy{}, `no rule "no rule"`},
	} {
		if p, err := l.PolicyOf(c.rule, "alice"); !p.Is(c.want) || len(p.Limits()) != len(c.want.Limits()) || !failsWith(err, c.wrong) {
			t.Errorf("%s: got %v, %v, want %v and the error %q", c.rule, p, err, c.want, c.wrong)
		}
	}
	for _, rule := range l.Rules() {
		of, err := l.PolicyOf(rule.Name, "alice")
		if p, also := rule.PolicyOf("alice"); !p.Is(of) || len(p.Limits()) != len(of.Limits()) || (also == nil) != (err == nil) || rule.Validate() != nil {
			t.Errorf("%s: the rule alone: got %v, %v, want %v, %v", rule.Name, p, also, of, err)
		}
	}
	if _, err := (weir.Rule{Name: "api"}).PolicyOf(""); !failsWith(err, `rule "api": the Key is nil`) || !failsWith(weir.Rule{Name: "api"}.Validate(), `rule "api": the Key is nil`) {
		t.Errorf("a rule without a key: got %v", err)
	}
}

// TestShadow: a rule in shadow decides as an enforced rule would, but refuses no request
// and writes no header fields. It charges no request that another rule refuses.
func TestShadow(t *testing.T) {
	var events []weir.Event
	for _, enforce := range []weir.Enforcement{{}, weir.Percent(0)} {
		events = events[:0]
		l := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules: []weir.Rule{
				{Name: "old", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)}},
				{Name: "new", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(2, time.Hour)}, Enforce: enforce},
			},
			Observe: func(e weir.Event) {
				events = append(events, copied(e))
			},
		})
		h := l.Handler(served)
		var statuses []int
		for range 7 {
			res := do(h, ask("/", "192.0.2.1:4"))
			statuses = append(statuses, res.StatusCode)
			if want := map[weir.Enforcement]string{{}: "2", weir.Percent(0): "5"}[enforce]; res.Header.Get("X-RateLimit-Limit") != want {
				t.Errorf("enforced for %v: got X-RateLimit-Limit %q, want %s", enforce, res.Header.Get("X-RateLimit-Limit"), want)
			}
		}
		want := map[weir.Enforcement]string{{}: "[200 200 429 429 429 429 429]", weir.Percent(0): "[200 200 200 200 200 429 429]"}[enforce]
		if got := fmt.Sprint(statuses); got != want {
			t.Errorf("enforced for %v: got %s, want %s", enforce, got, want)
		}
		var seen []bool
		for _, e := range events {
			if e.Shadow {
				seen = append(seen, e.Transaction.Allowed())
			}
		}
		if want := map[weir.Enforcement]string{{}: "[]", weir.Percent(0): "[true true false false false]"}[enforce]; fmt.Sprint(seen) != want {
			t.Errorf("enforced for %v: got decisions %v in shadow, want %s", enforce, seen, want)
		}
	}
}

// TestShadowWaits: if all rules are in shadow, Observe gets the waits that MaxWait would
// cause, but no request is delayed or counted in MaxWaiting.
func TestShadowWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seen []string
		start := time.Now()
		h := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules:   []weir.Rule{{Name: "new", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Second)}, Enforce: weir.Percent(0)}},
			MaxWait: 3 * time.Second, MaxWaiting: 1,
			Observe: func(e weir.Event) {
				seen = append(seen, fmt.Sprint(e.Shadow, e.Transaction.Allowed(), e.Transaction.Wait))
			},
		}).Handler(served)
		for range 5 {
			if res := do(h, ask("/", "192.0.2.1:4")); res.StatusCode != 200 {
				t.Errorf("got %d, want 200", res.StatusCode)
			}
		}
		if d := time.Since(start); d > 0 {
			t.Errorf("requests were delayed by %v", d)
		}
		// An enforced rule would delay the requests by these waits.
		if want := "[true true 0s true true 1s true true 2s true true 3s true false 0s]"; fmt.Sprint(seen) != want {
			t.Errorf("got %v, want %s", seen, want)
		}
	})
}

// TestRamp: a rule is enforced for the percentage of keys that Enforce says. The keys are the same
// in every Limiter, and a key stays enforced as the percentage rises.
func TestRamp(t *testing.T) {
	const keys = 10_000
	enforced := func(percent float64) map[int]bool {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{
			Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Hour)}, Enforce: weir.Percent(percent),
				Cost: func(*http.Request) int64 { return 2 }}},
		}).Handler(served)
		is := map[int]bool{}
		for k := range keys {
			if do(h, ask("/", "192.0.2.1:4", "Key", fmt.Sprint("user", k))).StatusCode == 429 {
				is[k] = true
			}
		}
		return is
	}
	var before map[int]bool
	for _, percent := range []float64{0, 10, 25, 50, 99, 100} {
		now, share := enforced(percent), percent/100
		want := keys * share
		if diff := math.Abs(float64(len(now)) - want); diff > 5*math.Sqrt(keys*share*(1-share)) {
			t.Errorf("%v%%: got %d keys of %d enforced, want about %v", percent, len(now), keys, want)
		}
		for k := range before {
			if !now[k] {
				t.Fatalf("%v%%: key %d was enforced before and is not now", percent, k)
			}
		}
		before = now
	}
}

// A share is how many units of a limit a group may always use.
type share struct {
	group string
	units int64
}

// shares returns one rule for each set of groups. The groups of a set together use at most what
// the shares of the others leave. A request is charged under the sets that have its group.
func shares(group weir.KeyFunc, limit func(units int64) weir.Limit, total int64, all ...share) (rules []weir.Rule) {
	for set := 1; set < 1<<len(all); set++ {
		left, names := total, []string{}
		for i, s := range all {
			if set&(1<<i) == 0 {
				left -= s.units
			} else {
				names = append(names, s.group)
			}
		}
		rules = append(rules, weir.Rule{
			Name: strings.Join(names, "+"),
			Key: func(r *http.Request) (string, bool) {
				g, ok := group(r)
				for _, name := range names {
					if ok && g == name {
						return "all", true
					}
				}
				return "", false
			},
			Limits: []weir.Limit{limit(left)},
		})
	}
	return rules
}

// shared is a limit of which groups have shares.
type shared struct {
	limiter *weir.Limiter
	store   weir.Store
	total   int64
	shares  []share
	done    [][]func()    // for a concurrency limit
	times   [][]int64     // when each group got a unit, in µs
	own     []quota.Limit // for a meter: the share as a limit
}

func newShared(t *testing.T, r *rand.Rand, limit func(int64) weir.Limit) *shared {
	s := &shared{store: memstore.New(memstore.Options{})}
	for i := range 2 + r.IntN(3) {
		s.shares = append(s.shares, share{string(rune('a' + i)), int64(1 + r.IntN(4))})
		s.total += s.shares[i].units
		s.own = append(s.own, limit(s.shares[i].units))
	}
	s.total += int64(r.IntN(5)) // what the groups lend to each other
	s.done, s.times = make([][]func(), len(s.shares)), make([][]int64, len(s.shares))
	s.limiter = must(t, s.store, weir.Options{Rules: shares(weir.ByHeader("Group"), limit, s.total, s.shares...)})
	return s
}

// ask reports whether a request of the group i is admitted.
func (s *shared) ask(i int) bool {
	a, err := s.limiter.Admit(ask("/", "", "Group", s.shares[i].group))
	if err != nil {
		return false
	}
	s.done[i] = append(s.done[i], func() { a.Done(weir.Outcome{}) })
	s.times[i] = append(s.times[i], a.At.UnixMicro())
	return true
}

// used returns how many units a group uses: those in flight, or those of the window that begins
// after since.
func (s *shared) used(i int, since int64) (n int64) {
	for _, at := range s.times[i] {
		if at > since {
			n++
		}
	}
	return n
}

// TestShares: whatever the groups do, all together never use more than the limit, and no group is
// refused while it uses less than its share. A group that is alone gets what the shares of the
// others leave. This holds for concurrency limits, fixed windows, sliding logs and, if the share is
// a limit of its own, for GCRA and the buckets.
func TestShares(t *testing.T) {
	const period = time.Second
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 16))
	for name, limit := range map[string]func(int64) weir.Limit{
		"in flight":    func(n int64) weir.Limit { return algorithms.InFlight(n, time.Hour) },
		"fixed window": func(n int64) weir.Limit { return algorithms.FixedWindow(n, period) },
		"sliding log":  func(n int64) weir.Limit { return algorithms.SlidingLog(n, period) },
		"gcra":         func(n int64) weir.Limit { return algorithms.GCRA(n, period) },
		"token bucket": func(n int64) weir.Limit { return algorithms.TokenBucket(n, n, period) },
	} {
		for n := range rounds.N(60, 300) {
			synctest.Test(t, func(t *testing.T) {
				s := newShared(t, r, limit)
				own := memstore.New(memstore.Options{})
				for range 150 {
					now := time.Now().UnixMicro()
					i, sum := r.IntN(len(s.shares)), int64(0)
					used, below := int64(0), false
					switch name {
					case "in flight":
						used = int64(len(s.done[i]))
						for g := range s.shares {
							sum += int64(len(s.done[g]))
						}
					default:
						since := now - period.Microseconds()
						if name == "fixed window" {
							since = now - now%period.Microseconds() - 1
						}
						used = s.used(i, since)
						for g := range s.shares {
							sum += s.used(g, since)
						}
					}
					below = used < s.shares[i].units
					meter := name == "gcra" || name == "token bucket"
					charge := quota.Charge{Rule: "own", Key: fmt.Sprint(i), Limit: s.own[i], Cost: 1}
					if meter { // the group is below its share if the share would admit the request
						peek, err := quota.Peek(t.Context(), own, charge)
						if err != nil {
							t.Fatal(err)
						}
						below = peek.Allowed()
					}
					admitted := s.ask(i)
					if admitted && meter {
						if err := own.Take(t.Context(), &quota.Transaction{Mode: quota.ModeForce, Charges: []quota.Charge{charge}}); err != nil {
							t.Fatal(err)
						}
					}
					if below && !admitted {
						t.Fatalf("%s, seed %d, round %d: group %d was refused below its share: %d used of %v, total %d", name, seed, n, i, used, s.shares, s.total)
					}
					if admitted && !meter && sum >= s.total {
						t.Fatalf("%s, seed %d, round %d: %d used, want at most %d", name, seed, n, sum+1, s.total)
					}
					switch r.IntN(3) {
					case 0:
						time.Sleep(time.Duration(r.Int64N(int64(period) / 5)).Truncate(time.Microsecond))
					case 1:
						if k := r.IntN(len(s.done)); len(s.done[k]) > 0 {
							s.done[k][0]()
							s.done[k] = s.done[k][1:]
						}
					}
				}
				for _, all := range s.done {
					for _, done := range all {
						done()
					}
				}
				time.Sleep(2 * period)
				alone, most := int64(0), s.total
				for s.ask(0) {
					alone++
				}
				for _, other := range s.shares[1:] {
					most -= other.units
				}
				if alone != most {
					t.Errorf("%s: a group alone got %d units, want %d", name, alone, most)
				}
				for _, done := range s.done[0][len(s.done[0])-int(alone):] {
					done()
				}
			})
		}
	}
}

// TestSharesOfMany: with a limiter of the shares, and one of what they leave, no group is refused
// while it uses less than its share either, and all together never use more than the limit.
func TestSharesOfMany(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 17))
	const groups, each, rest = 20, 3, 10
	store, most := memstore.New(memstore.Options{}), int64(0)
	own := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "own", Key: weir.ByHeader("Group"), Limits: []weir.Limit{algorithms.InFlight(each, time.Hour)}}}})
	pool := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "rest", Key: weir.Global(), Limits: []weir.Limit{algorithms.InFlight(rest, time.Hour)}}}})
	var done [groups][]*weir.Admission
	for n := range rounds.N(20_000, 300_000) {
		i, sum := r.IntN(groups), int64(0)
		if r.IntN(2) == 0 {
			i = r.IntN(3) // few groups ask for more than their share
		}
		for g := range done {
			sum += int64(len(done[g]))
		}
		if k := len(done[i]); k > 0 && r.IntN(5) < 2 {
			j := r.IntN(k)
			done[i][j].Done(weir.Outcome{})
			done[i] = append(done[i][:j], done[i][j+1:]...)
			continue
		}
		req := ask("/", "", "Group", fmt.Sprint(i))
		a, err := own.Admit(req)
		if err != nil {
			a, err = pool.Admit(req)
		}
		if err != nil {
			if len(done[i]) < each {
				t.Fatalf("seed %d, round %d: group %d was refused with %d of %d units", seed, n, i, len(done[i]), each)
			}
			continue
		}
		done[i] = append(done[i], a)
		if most = max(most, sum+1); most > groups*each+rest {
			t.Fatalf("seed %d, round %d: %d in flight, want at most %d", seed, n, most, groups*each+rest)
		}
	}
	for g := range done {
		for _, a := range done[g] {
			a.Done(weir.Outcome{})
		}
	}
}

// eachStore runs a test over memory and over Redis.
func eachStore(t *testing.T, test func(t *testing.T, store weir.Store)) {
	t.Run("memory", func(t *testing.T) { test(t, memstore.New(memstore.Options{})) })
	t.Run("redis", func(t *testing.T) {
		rdb := redis.NewClient(&redis.Options{Addr: redistest.Server(t).Addr()})
		defer rdb.Close()
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		test(t, store)
	})
}

// TestLimitJoins: if a rule gains or loses limits, the limits that stay keep their counts.
// Header fields show a single limit without a name under the name of the rule.
func TestLimitJoins(t *testing.T) {
	three := []weir.Limit{algorithms.GCRA(3, 1000*time.Hour), algorithms.SlidingLog(3, 1000*time.Hour), algorithms.AnchoredWindow(3, 1000*time.Hour)}
	joins := algorithms.GCRA(100, time.Minute)
	eachStore(t, func(t *testing.T, store weir.Store) {
		for i, l := range three {
			rules := []struct {
				limits []weir.Limit
				want   string
			}{
				{[]weir.Limit{l}, "200 r 2"},
				{[]weir.Limit{l, joins}, "200 r/1000h 1"},
				{[]weir.Limit{joins, l}, "200 r/1000h 0"},
				{[]weir.Limit{l}, "429 r 0"},
				{[]weir.Limit{l.Named("1000h")}, "429 r/1000h 0"},
				{[]weir.Limit{joins.Named("other"), l}, "429 r/1000h 0"},
				{[]weir.Limit{l.Named("another")}, "200 r/another 2"},
			}
			for step, tt := range rules {
				limiter := must(t, store, weir.Options{Headers: headers.IETF, Rules: []weir.Rule{{
					Name: "r", Key: weir.ByHeader("Key"), Limits: tt.limits, ForKey: noPolicy,
				}}})
				if got := named(limiter, fmt.Sprint("rules ", i), "r"); got != tt.want {
					t.Errorf("%v, step %d: got %s, want %s", l, step, got, tt.want)
				}
			}

			// Policy changes the limits to those of another tier, and back.
			tiers := map[string][]weir.Limit{"free": {l}, "paid": {joins, l}}
			limiter := must(t, store, weir.Options{Headers: headers.IETF, Rules: []weir.Rule{{
				Name: "r", Key: weir.ByHeader("Key"),
				Policy: func(r *http.Request) weir.Policy { return weir.Limited(tiers[r.Header.Get("Tier")]...) },
			}}})
			for step, tt := range []struct{ tier, want string }{
				{"free", "200 r 2"}, {"paid", "200 r/1000h 1"}, {"free", "200 r 0"}, {"paid", "429 r/1000h 0"}, {"free", "429 r 0"},
			} {
				if got := named(limiter, fmt.Sprint("tiers ", i), "r", "Tier", tt.tier); got != tt.want {
					t.Errorf("%v, tier %s at step %d: got %s, want %s", l, tt.tier, step, got, tt.want)
				}
			}
		}
	})
}

// named sends one request to a limiter. It returns the status and, for the limit whose
// period is 1000 hours, its name in header fields and how many units are left.
func named(l *weir.Limiter, key string, rule string, fields ...string) string {
	got := do(l.Handler(served), ask("/", "192.0.2.1:4", append([]string{"Key", key}, fields...)...))
	items := strings.Split(got.Header.Get("Ratelimit"), ", ")
	i := slices.IndexFunc(items, func(s string) bool { return !strings.Contains(s, "/1m\"") && !strings.Contains(s, "/other\"") })
	if i < 0 {
		return fmt.Sprint(got.StatusCode, " ", items)
	}
	name, rest, _ := strings.Cut(items[i], ";r=")
	left, _, _ := strings.Cut(rest, ";")
	return fmt.Sprint(got.StatusCode, " ", strings.Trim(name, `"`), " ", left)
}

// TestStoredName: a charge that is made by hand counts together with the charges of a
// Limiter if its limit has the same label and period.
func TestStoredName(t *testing.T) {
	l := algorithms.GCRA(3, 1000*time.Hour)
	eachStore(t, func(t *testing.T, store weir.Store) {
		for name, store := range map[string]weir.Store{"plain": store, "Hybrid": quota.Hybrid(store, quota.HybridOptions{})} {
			limiter := must(t, store, weir.Options{Rules: []weir.Rule{{Name: name, Key: weir.Global(), Limits: []weir.Limit{l}}}})
			do(limiter.Handler(served), ask("/", "192.0.2.1:4"))
			for left, charge := range map[string]weir.Limit{"2": l, "2 ": l.Named("1000h"), "3": l.Named("1000 h")} {
				look := peek(t, store, quota.Charge{Rule: name, Limit: charge})
				if got := fmt.Sprint(look.Decisions[0].Remaining); got != strings.TrimSpace(left) {
					t.Errorf("%s: %v: got %s left, want %s", name, charge, got, left)
				}
			}
			// A refusal that Hybrid remembers for the limit without a name holds for the
			// limit with the stored name too.
			for range 4 {
				take(t, store, 0, quota.Charge{Rule: name, Limit: l, Cost: 1})
			}
			if got := take(t, store, 0, quota.Charge{Rule: name, Limit: l.Named(l.Label()), Cost: 1}); got.Allowed() {
				t.Errorf("%s: got a unit beyond the quota by the stored name", name)
			}
			two := quota.Transaction{Charges: []quota.Charge{{Limit: l, Cost: 1}, {Limit: l.Named("1000h"), Cost: 1}}}
			if err := store.Take(t.Context(), &two); err == nil {
				t.Errorf("%s: got no error for one state that is charged twice", name)
			}
		}
	})
}

// TestLongKeyIsItsDigest: a long key and its digest are the same key in every store.
func TestLongKeyIsItsDigest(t *testing.T) {
	long := strings.Repeat("x", 900_000)
	for name, store := range map[string]weir.Store{
		"memory":   memstore.New(memstore.Options{}),
		"Hybrid":   quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{}),
		"Lease":    lease.New(memstore.New(memstore.Options{}), lease.Options{}),
		"Coalesce": quota.Coalesce(memstore.New(memstore.Options{})),
	} {
		limit := algorithms.FixedWindow(3, 24*time.Hour)
		for i, key := range []string{long, storedkey.Of(long), long, long, storedkey.Of(long)} {
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: key, Limit: limit, Cost: 1}}}
			if err := store.Take(context.Background(), &tx); err != nil || tx.Allowed() != (i < 3) {
				t.Errorf("%s: charge %d: got %v, %v, want %v", name, i+1, tx.Allowed(), err, i < 3)
			}
		}
		twice := quota.Transaction{Charges: []quota.Charge{
			{Rule: "api", Key: long, Limit: limit, Cost: 1}, {Rule: "api", Key: storedkey.Of(long), Limit: limit, Cost: 1},
		}}
		if err := store.Take(context.Background(), &twice); !errors.Is(err, quota.ErrDuplicate) {
			t.Errorf("%s: both at once: got %v, want ErrDuplicate", name, err)
		}
	}
}

// TestLongKeys: keys of 900 kB, which net/http lets clients send, are kept in no store,
// cache, ban or list of offenders.
func TestLongKeys(t *testing.T) {
	const n, size = 60, 900_000
	limit := algorithms.FixedWindow(1, 24*time.Hour)
	rule := weir.Rule{Name: "api", Key: weir.ByHeader("X-Api-Key"), Limits: []weir.Limit{limit}}
	banning := rule
	banning.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Hour}
	ample := rule
	ample.Limits = []weir.Limit{algorithms.FixedWindow(1000, 24*time.Hour)}
	recorder := watch.NewRecorder(n, 1)
	memory := func() weir.Store { return memstore.New(memstore.Options{}) }
	for _, tt := range []struct {
		name  string
		store weir.Store
		o     weir.Options
	}{
		{"memory", memory(), weir.Options{Rules: []weir.Rule{rule}}},
		{"Lease", lease.New(memory(), lease.Options{TTL: time.Hour}), weir.Options{Rules: []weir.Rule{ample}}},
		{"Hybrid", quota.Hybrid(memory(), quota.HybridOptions{}), weir.Options{Rules: []weir.Rule{rule}}},
		{"Coalesce", quota.Coalesce(memory()), weir.Options{Rules: []weir.Rule{rule}}},
		{"Penalty", memory(), weir.Options{Rules: []weir.Rule{banning}}},
		{"Recorder", memory(), weir.Options{Rules: []weir.Rule{rule}, Observe: recorder.Observe}},
		{"Recorder by hand", memory(), weir.Options{Rules: []weir.Rule{rule}, Observe: func(e weir.Event) {
			if len(e.Transaction.Charges) == 1 {
				long := e.Transaction.Charges[0].Key + strings.Repeat("x", size)
				recorder.Observe(weir.Event{Transaction: &quota.Transaction{
					Charges: []quota.Charge{{Rule: "api", Key: long, Limit: limit, Cost: 1}}, Result: quota.Result{Decisions: []quota.Decision{{}}},
				}})
			}
		}}},
	} {
		h := must(t, tt.store, tt.o).Handler(served)
		before := heap()
		for i := range n {
			key := fmt.Sprint(i, strings.Repeat("x", size))
			for range 2 {
				do(h, ask("/", "192.0.2.1:4", "X-Api-Key", key))
			}
		}
		if kept := heap() - before; kept > 5<<20 {
			t.Errorf("%s: %d keys of %d bytes keep %d bytes, want less than 5 MB", tt.name, n, size, kept)
		}
		runtime.KeepAlive(h)
	}
	keys, _ := recorder.Top(time.Hour)
	for _, r := range keys {
		if !strings.HasPrefix(r.Key, "sha256:") {
			t.Fatalf("the recorder has %.20q, of %d bytes, want digests", r.Key, len(r.Key))
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // pools drop their memory at the second run
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLongKeyInLists: ForKey gets the whole key. A KeyList finds a long key by its
// digest too.
func TestLongKeyInLists(t *testing.T) {
	long := strings.Repeat("x", 500)
	for _, entry := range []string{long, storedkey.Of(long), "xxx*"} {
		list, err := weir.KeyList(entry)
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.ByHeader("X-Api-Key"), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
			ForKey: weir.When(func(key string) bool { seen = append(seen, key); return list(key) }, weir.Denied()),
		}}}).Handler(served)
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", long)).StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("denied by %.20q: got %d, want 429", entry, got)
		}
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", "y"+long)).StatusCode; got != http.StatusOK {
			t.Errorf("not denied by %.20q: got %d, want 200", entry, got)
		}
		if !slices.Equal(seen, []string{long, "y" + long}) {
			t.Errorf("ForKey saw keys of %d and %d bytes, want them whole", len(seen[0]), len(seen[1]))
		}
	}
}

// TestLongKeyBanned: Ban, Banned and Unban treat a long key and its digest as the same key.
func TestLongKeyBanned(t *testing.T) {
	long := strings.Repeat("x", 500)
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-Api-Key"), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(9, time.Minute), Duration: time.Hour},
	}}})
	h, ctx := l.Handler(served), context.Background()
	for _, keys := range [][2]string{{long, storedkey.Of(long)}, {storedkey.Of(long), long}} {
		if err := l.Ban(ctx, "api", keys[0], time.Hour); err != nil {
			t.Fatal(err)
		}
		if rest, err := l.Banned(ctx, "api", keys[1]); rest == 0 || err != nil {
			t.Errorf("banned as %.10q: got %v, %v of %.10q, want an hour", keys[0], rest, err, keys[1])
		}
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", long)).StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("banned as %.10q: got %d, want 429", keys[0], got)
		}
		if _, err := l.Unban(ctx, "api", keys[1]); err != nil {
			t.Fatal(err)
		}
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", long)).StatusCode; got != http.StatusOK {
			t.Errorf("no longer banned as %.10q: got %d, want 200", keys[0], got)
		}
	}
}

// TestPenaltyCosts: besides the call for the decision, a strike costs one call of the store.
// The strike that begins a ban costs one call too, or two calls if the process has not seen
// the earlier strikes.
func TestPenaltyCosts(t *testing.T) {
	for _, decorated := range []func(weir.Store) weir.Store{
		func(s weir.Store) weir.Store { return s },
		func(s weir.Store) weir.Store { return lease.New(s, lease.Options{}) },
		func(s weir.Store) weir.Store { return quota.Share(s, 2) },
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			mem := memstore.New(memstore.Options{})
			store := decorated(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				calls++
				return mem.Take(ctx, tx)
			}))
			strikes := 4
			if _, ok := store.(*lease.Store); !ok && decorated(mem) != weir.Store(mem) {
				strikes = 8 // Share halves the strikes
			}
			_, ask := penalized(t, store, algorithms.AnchoredWindow(int64(strikes), time.Minute))
			_, elsewhere := penalized(t, store, algorithms.AnchoredWindow(int64(strikes), time.Minute))
			for i, step := range []struct {
				after time.Duration
				ask   func(time.Duration, string) string
				key   string
				want  string
				calls int
			}{
				{0, ask, "a", "200", 1},
				{0, ask, "a", "429 1", 2},
				{0, ask, "a", "429 1", 2},
				{0, ask, "a", "429 1", 2},
				{0, ask, "a", "429 10 banned", 2},
				{0, ask, "a", "429 10 banned", 0},
				{10 * time.Second, ask, "a", "200", 1},
				{0, ask, "b", "200", 1},
				{0, ask, "b", "429 1", 2},
				{0, ask, "b", "429 1", 2},
				{0, ask, "b", "429 1", 2},
				{0, elsewhere, "b", "429 10 banned", 3},
				{0, ask, "b", "429 10 banned", 1},
			} {
				calls = 0
				if got := step.ask(step.after, step.key); got != step.want || calls != step.calls {
					t.Errorf("step %d: got %s in %d calls, want %s in %d", i, got, calls, step.want, step.calls)
				}
			}
		})
	}
}

// TestPenaltyOfOneStrike: if one strike begins a ban, the first refusal bans the key with
// one more call of the store.
func TestPenaltyOfOneStrike(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, mem := 0, memstore.New(memstore.Options{})
		_, ask := penalized(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			calls++
			return mem.Take(ctx, tx)
		}), algorithms.FixedWindow(1, time.Minute))
		for i, want := range []string{"200 in 1", "429 10 banned in 2", "429 10 banned in 0"} {
			calls = 0
			if got := ask(0, "a") + fmt.Sprint(" in ", calls); got != want {
				t.Errorf("request %d: got %s calls, want %s", i, got, want)
			}
		}
	})
}

// TestUnbanForgets: Unban forgets strikes and earlier bans, so the next ban needs all
// strikes and lasts as long as a first ban.
func TestUnbanForgets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, ask := penalized(t, memstore.New(memstore.Options{}), algorithms.AnchoredWindow(3, 5*time.Second))
		for range 3 {
			ask(0, "a") // two strikes, which are forgotten too
		}
		time.Sleep(time.Second)
		if err := l.Ban(t.Context(), "api", "a", 24*time.Hour); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, err := l.Unban(t.Context(), "api", "a"); err != nil {
				t.Fatal(err)
			}
			for j, want := range []string{"200", "429 1", "429 1", "429 10 banned"} {
				if got := ask(0, "a"); got != want {
					t.Errorf("request %d after the lifting of ban %d: got %s, want %s", j, i, got, want)
				}
			}
			time.Sleep(time.Second)
		}
	})
}

// TestChangesFellBack: an operator's change that only the second store of a Fallback has made is an error,
// because other processes, and this one once the first store works again, do not know it.
func TestChangesFellBack(t *testing.T) {
	var down atomic.Bool
	first := memory()
	store := quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if down.Load() {
			return errDown
		}
		return first.Take(ctx, tx)
	}), memory(), quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
	limit := algorithms.GCRA(5, time.Minute)
	l, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Limits: []weir.Limit{limit},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(3, time.Minute), Duration: time.Minute},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for _, fails := range []bool{false, true, false} {
		down.Store(fails)
		for name, change := range map[string]func() error{
			"Ban":   func() error { return l.Ban(t.Context(), "api", "a", time.Hour) },
			"Unban": func() error { _, err := l.Unban(t.Context(), "api", "b"); return err },
			"Reset": func() error {
				_, err := quota.Reset(t.Context(), store, quota.Charge{Rule: "api", Key: "a", Limit: limit})
				return err
			},
		} {
			if err := change(); errors.Is(err, quota.ErrFellBack) != fails || !fails && err != nil {
				t.Errorf("%s, outage %v: got %v", name, fails, err)
			}
		}
	}
}

// TestPenaltyTriesAgain: if the store fails when a ban should begin, the next refusal
// begins it.
func TestPenaltyTriesAgain(t *testing.T) {
	for _, tt := range []struct {
		name      string
		elsewhere bool // the third refusal comes from a process that has not seen the others
		calls     int  // how many calls succeed; the first is the decision
	}{
		{"the ban", false, 1},
		{"the strike", true, 1},
		{"the ban after the strike", true, 2},
	} {
		synctest.Test(t, func(t *testing.T) {
			mem, left := memstore.New(memstore.Options{}), 1000
			store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				if left--; left < 0 {
					return errors.New("away")
				}
				return mem.Take(ctx, tx)
			})
			_, ask := penalized(t, store, algorithms.SlidingLog(3, 5*time.Second))
			_, third := penalized(t, store, algorithms.SlidingLog(3, 5*time.Second))
			if !tt.elsewhere {
				third = ask
			}
			ask(0, "a")
			ask(0, "a")
			ask(0, "a")
			left = tt.calls
			if got := third(0, "a"); got != "429 1" {
				t.Errorf("%s fails: got %s, want 429 1", tt.name, got)
			}
			left = 1000
			if got := ask(0, "a"); got != "429 10 banned" {
				t.Errorf("%s failed: got %s of the next refusal, want 429 10 banned", tt.name, got)
			}
		})
	}
}

// TestPenaltyTogether: concurrent strikes begin only one ban. Each later ban is twice as
// long as the one before, up to MaxDuration.
func TestPenaltyTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		mem := memstore.New(memstore.Options{})
		_, ask := penalized(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			time.Sleep(time.Millisecond) // so that the 100 calls overlap
			return mem.Take(ctx, tx)
		}), algorithms.FixedWindow(3, 5*time.Second))
		for _, want := range []string{"429 10 banned", "429 20 banned", "429 40 banned", "429 40 banned"} {
			ask(0, "a")
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() { ask(0, "a") })
			}
			wg.Wait()
			if got := ask(0, "a"); got != want {
				t.Errorf("got %s after 100 refusals at once, want %s", got, want)
			}
			time.Sleep(40 * time.Second)
		}
	})
}

// TestRetryAfterOfABan: if a limit refuses for longer than a ban lasts, Retry-After is the
// wait for the limit, unless the process answers from memory.
func TestRetryAfterOfABan(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Minute), Duration: time.Minute},
		}}}).Handler(served)
		for range 5 {
			do(h, ask("/", "192.0.2.1:4"))
		}
		for i, step := range []struct {
			after time.Duration
			want  string
		}{
			{0, "3600"}, {0, "3600"}, {0, "60"}, {7 * time.Second, "53"}, // the process remembers the ban for the last two
			{3 * time.Second, "3590"}, {49 * time.Second, "3541"}, {time.Second, "3540"}, {time.Second, "3539"},
		} {
			time.Sleep(step.after)
			if got := do(h, ask("/", "192.0.2.1:4")).Header.Get("Retry-After"); got != step.want {
				t.Errorf("step %d: got Retry-After %s, want %s", i, got, step.want)
			}
		}
	})
}

// TestRetryAfterOfSeveral: if several rules ban or deny a request, the Refusal names a deny
// if there is one, and otherwise the longest ban, whatever the order of the rules.
func TestRetryAfterOfSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		rule := func(name string) weir.Rule {
			return weir.Rule{
				Name: name, Key: weir.ByHeader(name), Limits: []weir.Limit{algorithms.GCRA(5, time.Hour)},
				Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(100, time.Minute), Duration: time.Minute},
				ForKey:  weir.When(func(key string) bool { return key == "denied" }, weir.Denied()),
			}
		}
		var got weir.Event
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{rule("A"), rule("B"), rule("C")}, Observe: func(e weir.Event) { got = e }})
		for _, b := range []struct {
			rule, key string
			d         time.Duration
		}{{"A", "short", 6 * time.Second}, {"B", "long", 9 * time.Second}, {"C", "short", 7 * time.Second}} {
			if err := l.Ban(t.Context(), b.rule, b.key, b.d); err != nil {
				t.Fatal(err)
			}
		}
		for _, c := range []struct{ a, b, c, want string }{
			{"short", "ann", "ann", "6 ban A short"},
			{"ann", "long", "short", "9 ban B long"},
			{"short", "long", "short", "9 ban B long"},
			{"short", "ann", "short", "7 ban C short"},
			{"denied", "long", "short", " deny A denied"},
			{"short", "long", "denied", " deny C denied"},
		} {
			res := do(l.Handler(served), ask("/", "192.0.2.1:4", "A", c.a, "B", c.b, "C", c.c))
			said := fmt.Sprint(res.Header.Get("Retry-After"), " ", got.Refusal.Reason, " ", got.Refusal.Rule, " ", got.Key)
			if res.StatusCode != 429 || said != c.want || len(got.Transaction.Charges) != 0 {
				t.Errorf("%v: got %d %q and %d charges, want 429 %q and none", c, res.StatusCode, said, len(got.Transaction.Charges), c.want)
			}
		}
	})
}

// TestBanOfUnlimited: a ban of a key that has become unlimited does not hold, whether this process
// remembers the ban or not, and holds again when the key has limits.
func TestBanOfUnlimited(t *testing.T) {
	store, own := memstore.New(memstore.Options{}), weir.Policy{}
	limiter := func() *weir.Limiter {
		return must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)},
			ForKey:  func(string) weir.Policy { return own },
			Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(3, time.Hour), Duration: time.Minute}}}})
	}
	knows, knowsNot := limiter(), limiter()
	ban(t, knows, "ann", time.Minute)
	for _, c := range []struct {
		policy weir.Policy
		status int
	}{{weir.Unlimited(), 200}, {weir.Policy{}, 429}, {weir.Unlimited(), 200}} {
		own = c.policy
		for _, l := range []*weir.Limiter{knows, knowsNot} {
			if got := do(l.Handler(served), ask("/", "", "User", "ann")).StatusCode; got != c.status {
				t.Errorf("policy %v, remembered %v: got %d, want %d", c.policy, l == knows, got, c.status)
			}
		}
	}
}

// TestDenyBeforeErrors: if the Policy of one rule fails, a request that another rule denies
// is still refused.
func TestDenyBeforeErrors(t *testing.T) {
	fails := weir.Rule{Name: "tier", Key: weir.Global(), Policy: func(*http.Request) weir.Policy { return weir.Limited(weir.Limit{}) }}
	denies := weir.Rule{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(5, time.Hour)}, ForKey: func(string) weir.Policy { return weir.Denied() }}
	for _, rules := range [][]weir.Rule{{fails, denies}, {denies, fails}} {
		var events []weir.Event
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: rules, Observe: func(e weir.Event) { events = append(events, copied(e)) }}).Handler(served)
		if got := do(h, ask("/", "192.0.2.1:4")).StatusCode; got != 429 || len(events) != 1 || events[0].Refusal.Reason != weir.ReasonDeny {
			t.Errorf("%s first: got %d and %+v, want 429 and one deny", rules[0].Name, got, events)
		}
	}
}

// TestStrikesAreOnesOwn: if one rule would only delay a request and another rule refuses
// it, the first rule counts no strike.
func TestStrikesAreOnesOwn(t *testing.T) {
	for _, limit := range []weir.Limit{algorithms.GCRA(1, time.Second), algorithms.LeakyBucket(5, 1, time.Second)} {
		synctest.Test(t, func(t *testing.T) {
			l := must(t, memstore.New(memstore.Options{}), weir.Options{MaxWait: 3 * time.Second, Rules: []weir.Rule{
				{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{limit},
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute}},
				{Name: "user", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Hour)}},
			}})
			h := l.Handler(served)
			for _, want := range []int{200, 429, 429} {
				if got := do(h, ask("/", "192.0.2.1:4", "User", "ann")).StatusCode; got != want {
					t.Errorf("%v: got %d, want %d", limit, got, want)
				}
			}
			if rest, err := l.Banned(t.Context(), "address", "192.0.2.1"); rest != 0 || err != nil {
				t.Errorf("%v: got a ban of %v, %v, of an address whose requests would only wait", limit, rest, err)
			}
			for i := range 6 { // more requests than can wait within MaxWait
				go do(h, ask("/", "192.0.2.1:4", "User", fmt.Sprint(i)))
				synctest.Wait()
			}
			if rest, err := l.Banned(t.Context(), "address", "192.0.2.1"); rest == 0 || err != nil {
				t.Errorf("%v: got no ban, %v, of an address that was refused", limit, err)
			}
			time.Sleep(time.Minute) // until no request waits
		})
	}
}

// TestRetryAfterOfBans: Retry-After is the rest of the ban or, if the store was called, the wait of
// a limit that refuses for longer, whichever rule it is of. A process that knows of the ban calls the
// store once in 10 s.
func TestRetryAfterOfBans(t *testing.T) {
	address := weir.Rule{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Second)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Minute}}
	user := weir.Rule{Name: "user", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(5, time.Hour)}}
	for _, rules := range [][]weir.Rule{{address, user}, {user, address}} {
		synctest.Test(t, func(t *testing.T) {
			calls, mem := 0, memstore.New(memstore.Options{})
			l := must(t, storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				calls++
				return mem.Take(ctx, tx)
			}), weir.Options{Rules: rules})
			h := l.Handler(served)
			for range 5 {
				do(h, ask("/", "192.0.2.1:4", "User", "ann"))
			}
			for i, step := range []struct {
				after time.Duration
				user  string
				want  string
				calls bool
			}{
				{0, "ann", "3600", true}, {0, "ann", "60", false}, {0, "bob", "60", false}, {0, "", "60", false},
				{7 * time.Second, "ann", "53", false}, {3 * time.Second, "ann", "3590", true},
				{49 * time.Second, "ann", "3541", true}, {time.Second, "ann", "3540", true}, // this request begins no ban, because the address has room
			} {
				time.Sleep(step.after)
				calls = 0
				res := do(h, ask("/", "192.0.2.1:4", "User", step.user))
				if got := res.Header.Get("Retry-After"); res.StatusCode != 429 || got != step.want || (calls > 0) != step.calls {
					t.Errorf("%s first, step %d: got %d, Retry-After %q, in %d calls; want 429, %q, %v", rules[0].Name, i, res.StatusCode, got, calls, step.want, step.calls)
				}
			}
		})
	}
}

func ExampleLimiter_Ban() {
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Hour},
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	ctx := context.Background()
	fmt.Println(l.Ban(ctx, "api", "192.0.2.7", time.Hour))
	rest, err := l.Banned(ctx, "api", "192.0.2.7")
	fmt.Println(rest.Round(time.Minute), err)
	fmt.Println(l.Unban(ctx, "api", "192.0.2.7"))
	fmt.Println(l.Offenses(ctx, "api", "192.0.2.7"))
	// Output:
	// <nil>
	// 1h0m0s <nil>
	// true <nil>
	// 0s 0s 0 <nil>
}

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
		store := weirtest.Redis(t, server.Addr(), 10*time.Second) // for a busy machine
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
	_, unbanned := l.Unban(t.Context(), "web", "a")
	for _, err := range []error{l.Ban(t.Context(), "web", "a", time.Second), l.Ban(t.Context(), "api", "a", 0), unbanned} {
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

// TestShadowOfUnlimited: a rule in shadow does not call the store for a key that it does not limit.
func TestShadowOfUnlimited(t *testing.T) {
	var sent []int
	next := memory()
	store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		sent = append(sent, len(tx.Charges))
		return next.Take(ctx, tx)
	})
	limits := []weir.Limit{algorithms.GCRA(10, time.Minute)}
	h := must(t, store, weir.Options{Rules: []weir.Rule{
		{Name: "enforced", Key: weir.Global(), Limits: limits},
		{Name: "in shadow", Key: weir.ByHeader("User"), Limits: limits, Enforce: weir.Percent(0),
			ForKey: forKey(map[string]weir.Policy{"free": weir.Unlimited(), "friend": weir.Allowed(), "pest": weir.Denied()})},
	}}).Handler(served)
	for user, want := range map[string]string{"": "[1]", "free": "[1]", "friend": "[1]", "pest": "[1]", "ann": "[1 1]"} {
		sent = nil
		if got := do(h, ask("/", "", "User", user)).StatusCode; got != 200 || fmt.Sprint(sent) != want {
			t.Errorf("user %q: got %d after transactions of %v charges, want %s", user, got, sent, want)
		}
	}
}

// TestNoCostOfBanned: Cost, which may read the body, is not called for a request that a known ban
// refuses, and once for any other.
func TestNoCostOfBanned(t *testing.T) {
	calls := 0
	l := must(t, memory(), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute), algorithms.GCRA(100, time.Hour)},
		Cost:    func(*http.Request) int64 { calls++; return 1 },
		Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Minute), Duration: time.Minute},
	}}})
	if err := l.Ban(t.Context(), "api", "192.0.2.1", time.Hour); err != nil {
		t.Fatal(err)
	}
	for addr, want := range map[string]string{"192.0.2.1:4": "429 0", "192.0.2.2:4": "200 1"} {
		calls = 0
		status := do(l.Handler(served), ask("/", addr)).StatusCode
		if got := fmt.Sprint(status, calls); got != want {
			t.Errorf("%s: got status and calls of Cost %s, want %s", addr, got, want)
		}
	}
}

// noPolicy says nothing of any key. With ForKey a rule may have limits that refuse nothing.
func noPolicy(string) weir.Policy { return weir.Policy{} }

// ban bans a key of the rule api for the duration d.
func ban(t *testing.T, l *weir.Limiter, key string, d time.Duration) {
	t.Helper()
	if err := l.Ban(t.Context(), "api", key, d); err != nil {
		t.Fatal(err)
	}
}

// unban lifts the ban of a key of the rule api.
func unban(t *testing.T, l *weir.Limiter, key string) {
	t.Helper()
	if _, err := l.Unban(t.Context(), "api", key); err != nil {
		t.Fatal(err)
	}
}

// checkBan compares with want for how long a key of the rule api is still banned.
func checkBan(t *testing.T, l *weir.Limiter, key, when string, want time.Duration) {
	t.Helper()
	if rest, err := l.Banned(t.Context(), "api", key); err != nil || rest != want {
		t.Errorf("%s: got a ban of %v, %v, want %v", when, rest, err, want)
	}
}
