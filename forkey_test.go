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

// TestPoliciesBounded: however many policies a rule makes up, their limits apply, and a bounded
// number of lists is kept. Equal lists are kept once, wherever they lie in memory.
func TestPoliciesBounded(t *testing.T) {
	n, zones := int64(0), false
	tier := func(*http.Request) weir.Policy {
		if zones { // calendars whose zones differ
			return weir.Limited(algorithms.Calendar(5, algorithms.Day, time.FixedZone("", int(n)%(1<<16))))
		}
		return weir.Limited(algorithms.GCRA(n, time.Minute))
	}
	l := must(t, memory(), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Policy: tier, ForKey: func(string) weir.Policy { return weir.Limited(weir.Limit{Quota: n}) },
	}}})
	for _, c := range []struct {
		requests, different int64
		zones               bool
		want                int
	}{
		{1000, 3, false, 2 * 3},
		{weir.MaxPrepared, weir.MaxPrepared, false, weir.MaxPrepared},
		{1000, 1000, true, weir.MaxPrepared},
	} {
		zones = c.zones
		for i := range c.requests {
			n = 1 + i%c.different
			res := do(l.Handler(served), ask("/", fmt.Sprintf("10.%d.%d.%d:4", i>>16, i>>8&255, i&255)))
			if got := res.Header.Get("X-RateLimit-Limit"); got != fmt.Sprint(n) {
				t.Fatalf("got the limit %s, want %d", got, n)
			}
		}
		if got := weir.Prepared(l); got > c.want {
			t.Errorf("%+v: %d lists are kept", c, got)
		}
	}
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
func TestPolicyAllocates(t *testing.T) {
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
		{"another key", weir.Rule{Limits: two, ForKey: own("192.0.2.2")}, 2},
		{"a key", weir.Rule{Limits: two, ForKey: own("192.0.2.1")}, 2},
		{"a tier", weir.Rule{Policy: tier}, 4},
		{"a key in a tier", weir.Rule{Policy: tier, ForKey: own("192.0.2.1")}, 4},
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
// of others by the key, beside 10,000 other keys.
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
			fmt.Println(user, l.Quota, "per", l.StoredName())
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
