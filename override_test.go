package weir_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// overrides returns a Rule.Overrides that looks keys up in m.
func overrides(m map[string][]weir.Limit) func(string) ([]weir.Limit, bool) {
	return func(key string) ([]weir.Limit, bool) {
		limits, ok := m[key]
		return limits, ok
	}
}

// TestOverridesReplace: an override gets the fields that it leaves out, and its stored
// name, from the limit that it replaces.
func TestOverridesReplace(t *testing.T) {
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
		{"of two none is meant", []weir.Limit{minute, day}, []weir.Limit{{Quota: 200}}, "", "it has no algorithm"},
		{"twice the same", []weir.Limit{minute}, []weir.Limit{{Name: "1m", Quota: 2}, {Quota: 3, Period: time.Minute}}, "", `two limits named "1m"`},
		{"not limited", []weir.Limit{minute}, nil, "", ""},
		{"refused", []weir.Limit{minute}, []weir.Limit{{}}, " - 0/0s burst 0", ""},
		{"below nothing", []weir.Limit{minute}, []weir.Limit{{Quota: -1}}, "", "quota -1 is below 1"},
	} {
		l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
			{Name: "api", Key: weir.ByIP(), Limits: tt.rule, Overrides: overrides(map[string][]weir.Limit{"alice": tt.key})},
		}})
		if err != nil {
			t.Fatal(err)
		}
		limits, ok, err := l.LimitsOf("api", "alice")
		var texts []string
		for _, l := range limits {
			algorithm := "-"
			if l.Algorithm != nil {
				algorithm = l.Algorithm.Name()
			}
			texts = append(texts, fmt.Sprintf("%s %s %d/%v burst %d", l.Name, algorithm, l.Quota, l.Period, l.Burst))
		}
		if got := strings.Join(texts, "; "); ok != (tt.wrong == "") || got != tt.want || (err != nil) != (tt.wrong != "") || err != nil && !strings.Contains(err.Error(), tt.wrong) {
			t.Errorf("%s: got %q, %v, %v, want %q and %q", tt.name, got, ok, err, tt.want, tt.wrong)
		}
		if limits, _, _ := l.LimitsOf("api", "bob"); len(limits) != len(tt.rule) {
			t.Errorf("%s: bob has %v", tt.name, limits)
		}
	}
}

// TestOverridesInForce: an override applies from the next request on. What the key has
// spent still counts, and the names in the header fields stay the same.
func TestOverridesInForce(t *testing.T) {
	for name, store := range map[string]weir.Store{"memory": memory(), "hybrid": quota.Hybrid(memory(), quota.HybridOptions{MaxKeys: 100})} {
		table := map[string][]weir.Limit{}
		mux := http.NewServeMux()
		l, err := weir.New(store, weir.Options{
			Headers: headers.IETF, Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), OnError: weir.FailClosed,
			Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)}, Overrides: overrides(table)}},
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
		table["alice"] = []weir.Limit{{Quota: 3}}
		step("alice", 200, `"api";q=3;w=3600000`)
		step("alice", 429, `"api";q=3;w=3600000`)
		table["alice"] = []weir.Limit{}
		step("alice", 200, "")
		table["alice"] = []weir.Limit{{Quota: 0}}
		step("alice", 429, "")
		table["alice"] = []weir.Limit{{Quota: -1}}
		step("alice", 429, two)
		delete(table, "alice")
		step("alice", 429, two)
		step("bob", 200, two)
		table["carol"] = []weir.Limit{{Name: "1000h", Quota: 5}, algorithms.FixedWindow(9, time.Hour)}
		step("carol", 200, `"api/1000h";q=5;w=3600000, "api/1h";q=9;w=3600`)
	}
}

// TestOverridesOfTiers: under LimitsFor, an override replaces limits of the tier of the
// request. What the key has spent still counts. An override that fits no limit of the tier is
// logged, and the tier's limits stay in force. LimitsFor is not called for a key that is not
// limited or is refused.
func TestOverridesOfTiers(t *testing.T) {
	const h = 1000 * time.Hour
	tiers := map[string][]weir.Limit{
		"free": {algorithms.FixedWindow(2, h)},
		"pro":  {algorithms.FixedWindow(4, h), algorithms.GCRA(50, time.Hour).Named("pace")},
		"odd":  {{}},
		"none": {},
	}
	const (
		free   = `"api";q=2;w=3600000`
		pro    = `"api/1000h";q=4;w=3600000, "api/pace";q=50;w=3600`
		ignore = `msg="weir: could not use an override" rule=api err="weir: rule \"api\": limit`
	)
	type step struct {
		override []weir.Limit // nil means none
		tier     string
		code     int
		policy   string
		logged   string
	}
	for _, c := range []struct {
		name  string
		steps []step
		calls int // of LimitsFor
	}{
		{"a quota", []step{
			{nil, "free", 200, free, ""}, {nil, "free", 200, free, ""}, {nil, "free", 429, free, ""},
			{[]weir.Limit{{Quota: 3}}, "free", 200, `"api";q=3;w=3600000`, ""},
			{[]weir.Limit{{Quota: 3}}, "free", 429, `"api";q=3;w=3600000`, ""},
			{nil, "free", 429, free, ""},
		}, 6},
		{"one of two limits, by name or period", []step{
			{[]weir.Limit{{Name: "pace", Quota: 90}}, "pro", 200, `"api/pace";q=90;w=3600`, ""},
			{[]weir.Limit{{Name: "pace", Quota: 90}, {Period: h, Quota: 8}}, "pro", 200, `"api/pace";q=90;w=3600, "api/1000h";q=8;w=3600000`, ""},
		}, 2},
		{"complete", []step{
			{[]weir.Limit{algorithms.FixedWindow(3, h)}, "free", 200, `"api";q=3;w=3600000`, ""},
			{[]weir.Limit{algorithms.FixedWindow(3, h)}, "none", 200, `"api";q=3;w=3600000`, ""},
		}, 2},
		{"fits no limit", []step{
			{[]weir.Limit{{Quota: 9}}, "pro", 200, pro, ignore + ` \"\": it has no algorithm, and replaces none of the limits \"1000h\", \"pace\": the override of a key is ignored"`},
			{[]weir.Limit{{Quota: -9}}, "free", 200, free, ignore + ` \"1000h\": quota -9 is below 1: `},
			{[]weir.Limit{{Quota: 9}}, "none", 200, "", ignore + ` \"\": it has no algorithm: `},
		}, 3},
		{"an invalid tier", []step{{[]weir.Limit{{Quota: 9}}, "odd", 503, "", "it has no algorithm: LimitsFor or Overrides returned it"}}, 1},
		{"not limited, refused", []step{{[]weir.Limit{}, "free", 200, "", ""}, {[]weir.Limit{{}}, "free", 429, "", ""}}, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			table, calls := map[string][]weir.Limit{}, 0
			var log bytes.Buffer
			handler := must(t, memory(), weir.Options{
				Headers: headers.IETF, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Overrides: overrides(table), LimitsFor: func(r *http.Request) []weir.Limit {
					calls++
					return tiers[r.Header.Get("Tier")]
				}}},
			}).Handler(served)
			for i, s := range c.steps {
				time.Sleep(time.Minute) // each step may log a line
				if log.Reset(); s.override == nil {
					delete(table, "alice")
				} else {
					table["alice"] = s.override
				}
				res := do(handler, ask("/", "", "User", "alice", "Tier", s.tier))
				if got := res.Header.Get("RateLimit-Policy"); res.StatusCode != s.code || got != s.policy {
					t.Errorf("%s, step %d: got %d, %q, want %d, %q", c.name, i, res.StatusCode, got, s.code, s.policy)
				}
				if !strings.Contains(log.String(), s.logged) || (log.Len() > 0) != (s.logged != "") {
					t.Errorf("%s, step %d: got the log %q, want %q", c.name, i, &log, s.logged)
				}
			}
			if calls != c.calls {
				t.Errorf("%s: LimitsFor was called %d times, want %d", c.name, calls, c.calls)
			}
		})
	}
}

// TestOverridesInShadow: an override of Quota 0 refuses no request if the rule is in
// shadow, and no request that Allow lets pass. It refuses a preflight as a deny does.
func TestOverridesInShadow(t *testing.T) {
	table := overrides(map[string][]weir.Limit{"mallory": {{}}})
	for _, tt := range []struct {
		name   string
		rule   weir.Rule
		method string
		want   int
	}{
		{"refused", weir.Rule{}, "GET", 429},
		{"in shadow", weir.Rule{Shadow: 1}, "GET", 200},
		{"allowed", weir.Rule{Allow: func(string) bool { return true }}, "GET", 200},
		{"preflight", weir.Rule{}, "OPTIONS", 429},
	} {
		tt.rule.Name, tt.rule.Key, tt.rule.Overrides = "api", weir.ByHeader("User"), table
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

// TestOverridesBounded: if Overrides makes a new list for each request, the limits still
// apply, and a bounded number of lists is kept.
func TestOverridesBounded(t *testing.T) {
	l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute)},
		Overrides: func(string) ([]weir.Limit, bool) { return []weir.Limit{{Quota: 20}}, true },
	}}})
	if err != nil {
		t.Fatal(err)
	}
	for range 3 * weir.MaxOverrides / 2 {
		if limits, _, err := l.LimitsOf("api", "alice"); err != nil || limits[0].Quota != 20 {
			t.Fatal(limits, err)
		}
	}
	if n := weir.PreparedOverrides(l); n > weir.MaxOverrides {
		t.Errorf("%d lists are kept, more than %d", n, weir.MaxOverrides)
	}
}

// TestOverridesAllocate: a request makes no more than its two allocations, whether its key
// has an override or not.
func TestOverridesAllocate(t *testing.T) {
	own := []weir.Limit{{Quota: 1 << 20}}
	for _, key := range []string{"192.0.2.1", "192.0.2.2"} {
		l, _ := weir.New(memory(), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1<<20, time.Minute)}, Overrides: overrides(map[string][]weir.Limit{key: own}),
		}}})
		h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		w, r := &nullWriter{http.Header{}}, ask("/", "192.0.2.1:4")
		h.ServeHTTP(w, r)
		if got := testing.AllocsPerRun(100, func() { clear(w.h); h.ServeHTTP(w, r) }); got > 2 && !race {
			t.Errorf("%s: %v allocations, want 2", key, got)
		}
	}
}

// BenchmarkOverrides compares a rule without Overrides, a key that has no override, and a
// key that has one.
func BenchmarkOverrides(b *testing.B) {
	table := map[string][]weir.Limit{"192.0.2.2": {{Quota: 1 << 30}}}
	for i := range 10_000 {
		table[fmt.Sprintf("198.51.%d.%d", i/256, i%256)] = []weir.Limit{{Quota: 5}}
	}
	for _, bb := range []struct {
		name, remote string
		f            func(string) ([]weir.Limit, bool)
	}{
		{"none", "192.0.2.1:4", nil},
		{"other", "192.0.2.1:4", overrides(table)},
		{"own", "192.0.2.2:4", overrides(table)},
	} {
		b.Run(bb.name, func(b *testing.B) {
			l, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1<<30, time.Second)}, Overrides: bb.f}}})
			if err != nil {
				b.Fatal(err)
			}
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			w, r := &nullWriter{http.Header{}}, ask("/", bb.remote)
			b.ReportAllocs()
			for b.Loop() {
				h.ServeHTTP(w, r)
			}
		})
	}
}

// The map has customers with limits of their own. All other keys have the limits of the
// rule.
func ExampleLimiter_LimitsOf() {
	table := map[string][]weir.Limit{
		"alice":   {{Quota: 1000}}, // instead of 100, in the same period
		"monitor": {},              // not limited
		"mallory": {{Quota: 0}},    // refused
	}
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-User"),
		Limits:    []weir.Limit{algorithms.GCRA(100, time.Minute)},
		Overrides: func(key string) ([]weir.Limit, bool) { limits, ok := table[key]; return limits, ok },
	}}})
	if err != nil {
		panic(err)
	}
	for _, user := range []string{"alice", "bob", "monitor"} {
		limits, _, _ := limiter.LimitsOf("api", user)
		for _, l := range limits {
			fmt.Println(user, l.Quota, "per", l.StoredName())
		}
	}
	// Output:
	// alice 1000 per 1m
	// bob 100 per 1m
}

// TestLimitsOfUnknown: if LimitsOf does not know the limits of a key, ok is false.
func TestLimitsOfUnknown(t *testing.T) {
	minute := algorithms.GCRA(100, time.Minute)
	invalid := func(string) ([]weir.Limit, bool) { return []weir.Limit{{Quota: -1}}, true }
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "asks", Key: weir.Global(), LimitsFor: func(*http.Request) []weir.Limit { return []weir.Limit{minute} }},
		{Name: "asks, invalid", Key: weir.Global(), LimitsFor: func(*http.Request) []weir.Limit { return nil }, Overrides: invalid},
		{Name: "invalid", Key: weir.Global(), Limits: []weir.Limit{minute}, Overrides: invalid},
	}})
	for rule, wrong := range map[string]string{
		"asks": "", "asks, invalid": "", "invalid": "quota -1 is below 1", "no rule": `no rule "no rule"`,
	} {
		if limits, ok, err := l.LimitsOf(rule, "alice"); ok || len(limits) > 0 || !failsWith(err, wrong) {
			t.Errorf("%s: got %v, %v, %v, want no limits, false and the error %q", rule, limits, ok, err, wrong)
		}
	}
}
