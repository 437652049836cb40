package weir_test

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
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

// TestDialects: each dialect sends the expected fields with the second request, which is
// allowed, and with the third, which is refused. The clock shows 2000-01-01T00:00:00.5Z.
func TestDialects(t *testing.T) {
	const all = headers.None<<1 - 1
	seen := headers.XRateLimit // the row of the zero Dialect tests it
	for _, c := range []struct {
		name    string
		dialect headers.Dialect
		allowed string
		refused string // the fields besides Retry-After: 6
	}{
		{"zero", 0,
			"X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946684813",
			"X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946684813"},
		{"IETF", headers.IETF,
			`Ratelimit: "api";r=0;t=6, Ratelimit-Policy: "api";q=10;w=60`,
			`Ratelimit: "api";r=0;t=6, Ratelimit-Policy: "api";q=10;w=60`},
		{"Draft07", headers.Draft07,
			"Ratelimit: limit=2, remaining=0, reset=12, Ratelimit-Policy: 10;w=60",
			"Ratelimit: limit=2, remaining=0, reset=12, Ratelimit-Policy: 10;w=60"},
		{"Draft06", headers.Draft06,
			"Ratelimit-Limit: 2, Ratelimit-Policy: 10;w=60, Ratelimit-Remaining: 0, Ratelimit-Reset: 12",
			"Ratelimit-Limit: 2, Ratelimit-Policy: 10;w=60, Ratelimit-Remaining: 0, Ratelimit-Reset: 12"},
		{"GitHub", headers.GitHub,
			"X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946684813, X-Ratelimit-Resource: api, X-Ratelimit-Used: 2",
			"X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946684813, X-Ratelimit-Resource: api, X-Ratelimit-Used: 2"},
		{"OpenAI", headers.OpenAI,
			"X-Ratelimit-Limit-Requests: 2, X-Ratelimit-Remaining-Requests: 0, X-Ratelimit-Reset-Requests: 12s",
			"Retry-After-Ms: 6000, X-Ratelimit-Limit-Requests: 2, X-Ratelimit-Remaining-Requests: 0, X-Ratelimit-Reset-Requests: 12s"},
		{"Anthropic", headers.Anthropic,
			"Anthropic-Ratelimit-Requests-Limit: 2, Anthropic-Ratelimit-Requests-Remaining: 0, Anthropic-Ratelimit-Requests-Reset: 2000-01-01T00:00:13Z",
			"Anthropic-Ratelimit-Requests-Limit: 2, Anthropic-Ratelimit-Requests-Remaining: 0, Anthropic-Ratelimit-Requests-Reset: 2000-01-01T00:00:13Z"},
		{"Twitter", headers.Twitter,
			"X-Rate-Limit-Limit: 2, X-Rate-Limit-Remaining: 0, X-Rate-Limit-Reset: 946684813",
			"X-Rate-Limit-Limit: 2, X-Rate-Limit-Remaining: 0, X-Rate-Limit-Reset: 946684813"},
		{"None", headers.None, "", ""},
		{"IETF and GitHub", headers.IETF | headers.GitHub,
			`Ratelimit: "api";r=0;t=6, Ratelimit-Policy: "api";q=10;w=60, X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946684813, X-Ratelimit-Resource: api, X-Ratelimit-Used: 2`,
			`Ratelimit: "api";r=0;t=6, Ratelimit-Policy: "api";q=10;w=60, X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946684813, X-Ratelimit-Resource: api, X-Ratelimit-Used: 2`},
	} {
		seen |= c.dialect
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(500 * time.Millisecond)
			h := must(t, memstore.New(memstore.Options{}), weir.Options{Headers: c.dialect, OnLimited: served, Rules: []weir.Rule{
				{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute).WithBurst(2)}}}}).Handler(served)
			do(h, ask("/", ""))
			if got := fields(do(h, ask("/", ""))); got != c.allowed {
				t.Errorf("%s, allowed:\n got %s\nwant %s", c.name, got, c.allowed)
			}
			want := "Retry-After: 6"
			if c.refused != "" {
				want += ", " + c.refused
			}
			got := strings.Split(fields(do(h, ask("/", ""))), ", ")
			slices.Sort(got)
			wanted := strings.Split(want, ", ")
			slices.Sort(wanted)
			if !slices.Equal(got, wanted) {
				t.Errorf("%s, refused:\n got %q\nwant %q", c.name, got, wanted)
			}
		})
	}
	if seen != all {
		t.Errorf("no row has the dialects %#x", all&^seen)
	}
}

func fields(res *http.Response) string {
	var lines []string
	for _, name := range slices.Sorted(maps.Keys(res.Header)) {
		if name != "Content-Type" {
			lines = append(lines, name+": "+res.Header.Get(name))
		}
	}
	return strings.Join(lines, ", ")
}

// TestTightest: a dialect with room for one limit shows the limit that refuses for the
// longest time or, if none refuses, the limit with the smallest share left.
func TestTightest(t *testing.T) {
	day, second := algorithms.FixedWindow(100, 24*time.Hour), algorithms.FixedWindow(2, time.Second)
	for _, c := range []struct {
		name   string
		limits []weir.Limit
		spend  int
		want   string // limit, remaining
	}{
		{"the smaller share", []weir.Limit{day, second}, 1, "2 1"},
		{"whatever the order", []weir.Limit{second, day}, 1, "2 1"},
		{"what refuses", []weir.Limit{day, second}, 3, "2 0"},
		{"the longer wait", []weir.Limit{day.Named("day"), algorithms.FixedWindow(2, time.Hour).Named("hour"), second}, 3, "2 0"},
	} {
		synctest.Test(t, func(t *testing.T) {
			h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: c.limits, ForKey: noPolicy}}}).Handler(served)
			var res *http.Response
			for range c.spend {
				res = do(h, ask("/", ""))
			}
			if got := res.Header.Get("X-RateLimit-Limit") + " " + res.Header.Get("X-RateLimit-Remaining"); got != c.want {
				t.Errorf("%s: got %s, want %s", c.name, got, c.want)
			}
			if len(c.limits) == 3 {
				if got := res.Header.Get("Retry-After"); got != "3600" {
					t.Errorf("%s: Retry-After: got %s, want 3600, the wait of the limit named hour", c.name, got)
				}
			}
		})
	}
}

// TestUnits: dialects that have fields for each unit show the tightest limit of each unit.
func TestUnits(t *testing.T) {
	h := must(t, memstore.New(memstore.Options{}), weir.Options{Headers: headers.OpenAI | headers.IETF | headers.Exposed, Rules: []weir.Rule{
		{Name: "rpm", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(60, time.Minute)}},
		{Name: "tpm", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, 1500*time.Millisecond)}, Unit: "tokens",
			Cost: func(*http.Request) int64 { return 250 }},
	}}).Handler(served)
	res := do(h, ask("/", ""))
	for name, want := range map[string]string{
		"x-ratelimit-limit-requests":     "60",
		"x-ratelimit-remaining-requests": "59",
		"x-ratelimit-reset-requests":     "1s",
		"x-ratelimit-limit-tokens":       "1000",
		"x-ratelimit-remaining-tokens":   "750",
		"x-ratelimit-reset-tokens":       "375ms",
		"ratelimit":                      `"rpm";r=59;t=1, "tpm";r=750;t=1`,
		"ratelimit-policy":               `"rpm";q=60;w=60, "tpm";q=1000;qu="tokens"`, // w is left out for a period of 1.5 s, because w is in whole seconds
		"access-control-expose-headers": "Retry-After, X-Ratelimit-Limit-Requests, X-Ratelimit-Remaining-Requests, X-Ratelimit-Reset-Requests, " +
			"X-Ratelimit-Limit-Tokens, X-Ratelimit-Remaining-Tokens, X-Ratelimit-Reset-Tokens, Ratelimit, Ratelimit-Policy, Retry-After-Ms",
	} {
		if got := res.Header.Get(name); got != want {
			t.Errorf("%s: got %q, want %q", name, got, want)
		}
	}
}

// TestUnknown: header fields leave out limits whose Remaining is unknown (-1).
func TestUnknown(t *testing.T) {
	h := must(t, unknown{}, weir.Options{Headers: headers.XRateLimit | headers.IETF, Rules: []weir.Rule{
		{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(10, time.Second), algorithms.GCRA(100, time.Minute)}}}}).Handler(served)
	res := do(h, ask("/", ""))
	if got, want := res.Header.Get("RateLimit"), `"api/1m";r=7`; got != want {
		t.Errorf("RateLimit: got %s, want %s", got, want)
	}
	if got := res.Header.Get("X-RateLimit-Limit"); got != "100" {
		t.Errorf("X-RateLimit-Limit: got %s, want 100, of the limit whose Remaining is known", got)
	}
	h = weir.Middleware(unknown{}, "api", weir.Global(), algorithms.GCRA(10, time.Second))(served)
	if got := fields(do(h, ask("/", ""))); got != "" {
		t.Errorf("one limit, whose Remaining is unknown: got %s, want no fields", got)
	}
}

type unknown struct{ weir.Store }

func (unknown) Take(_ context.Context, t *quota.Transaction) error {
	t.Decisions = []quota.Decision{{Allowed: true, Remaining: -1}, {Allowed: true, Remaining: 7}}[:len(t.Charges)]
	t.At = time.Unix(0, 0)
	return nil
}

// FuzzAccept: with any value of Accept, a refusal is answered as JSON, text or HTML.
func FuzzAccept(f *testing.F) {
	for _, s := range []string{"", "*/*", "text/html;q=0.5, application/json;q=1", ";;q=,", "text/*;q=2;q=NaN", "\x00/\xff;q=1e9"} {
		f.Add(s)
	}
	h := refusing(f)
	f.Fuzz(func(t *testing.T, accept string) {
		r := ask("/", "")
		r.Header["Accept"] = []string{accept}
		res := do(h, r)
		switch got := res.Header.Get("Content-Type"); got {
		case "application/problem+json", "text/plain; charset=utf-8", "text/html; charset=utf-8":
		default:
			t.Errorf("Accept %q: got %q", accept, got)
		}
		if res.StatusCode != 429 {
			t.Errorf("Accept %q: got %d", accept, res.StatusCode)
		}
	})
}

// refusing returns a handler that refuses every request.
func refusing(tb testing.TB) http.Handler {
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(),
		Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}, Cost: func(*http.Request) int64 { return 2 }}}})
	if err != nil {
		tb.Fatal(err)
	}
	return l.Handler(served)
}

func ExampleMiddleware() {
	store := memstore.New(memstore.Options{})
	limit := weir.Middleware(store, "api", weir.ByIP(), algorithms.GCRA(2, time.Minute))
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))

	for range 3 {
		res := do(handler, ask("/", "192.0.2.1:1234"))
		fmt.Printf("%d, %s left, Retry-After %q\n", res.StatusCode, res.Header.Get("X-RateLimit-Remaining"), res.Header.Get("Retry-After"))
	}
	// Output:
	// 200, 1 left, Retry-After ""
	// 200, 0 left, Retry-After ""
	// 429, 0 left, Retry-After "30"
}

func ExampleNew() {
	login, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Headers: headers.IETF,
		Rules: []weir.Rule{{
			Name: "login", Key: weir.ByIP(),
			Limits: []weir.Limit{algorithms.SlidingLog(20, time.Minute), algorithms.SlidingLog(5, 3*time.Second)},
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	handler := login.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	res := do(handler, ask("/", "192.0.2.1:1234"))
	fmt.Println(res.Header.Get("RateLimit-Policy"))
	fmt.Println(res.Header.Get("RateLimit"))
	// Output:
	// "login/1m";q=20;w=60, "login/3s";q=5;w=3
	// "login/1m";r=19;t=60, "login/3s";r=4;t=3
}

func ExampleFromContext() {
	limit := weir.Middleware(memstore.New(memstore.Options{}), "search", weir.Global(), algorithms.FixedWindow(10, 24*time.Hour))
	handler := limit(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		t := weir.FromContext(r.Context())
		fmt.Println(t.Charges[0].Rule, t.Decisions[0].Remaining)
	}))
	do(handler, ask("/", "192.0.2.1:1234"))
	// Output: search 9
}

// TestPartitionKey: the dialect IETF sends what PartitionKey returns as the parameter pk,
// unless it is empty or longer than 128 bytes. Package headers finds the policy of each limit
// in these fields.
func TestPartitionKey(t *testing.T) {
	limit := algorithms.FixedWindow(5, time.Hour)
	plan := func(key string) string { return map[string]string{"alice": "gold", "bob": "\x00\xff\n"}[key] }
	long := func(key string) string { return strings.Repeat("k", 129) }
	for _, tt := range []struct {
		name           string
		rules          []weir.Rule
		policy, remain string
	}{
		{"one", []weir.Rule{{Name: "a", PartitionKey: plan}}, `"a";q=5;w=3600;pk=:Z29sZA==:`, `"a";r=4;t=3600;pk=:Z29sZA==:`},
		{"two", []weir.Rule{{Name: "a"}, {Name: "b", PartitionKey: plan}}, `"a";q=5;w=3600, "b";q=5;w=3600;pk=:Z29sZA==:`, `"a";r=4;t=3600, "b";r=4;t=3600;pk=:Z29sZA==:`},
		{"none", []weir.Rule{{Name: "a"}}, `"a";q=5;w=3600`, `"a";r=4;t=3600`},
		{"too long", []weir.Rule{{Name: "a", PartitionKey: long}}, `"a";q=5;w=3600`, `"a";r=4;t=3600`},
	} {
		synctest.Test(t, func(t *testing.T) {
			for i := range tt.rules {
				tt.rules[i].Key, tt.rules[i].Limits = weir.ByHeader("K"), []weir.Limit{limit}
			}
			h := must(t, memstore.New(memstore.Options{}), weir.Options{Headers: headers.IETF, Rules: tt.rules})
			for _, key := range []string{"alice", "carol", "bob"} {
				r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
				r.Header.Set("K", key)
				h.Handler(http.NotFoundHandler()).ServeHTTP(w, r)
				policy, remain := fieldFor(key, tt.policy), fieldFor(key, tt.remain)
				if got := w.Header(); got.Get("RateLimit-Policy") != policy || got.Get("RateLimit") != remain {
					t.Errorf("%s, %s: got %s and %s, want %s and %s", tt.name, key, got.Get("RateLimit-Policy"), got.Get("RateLimit"), policy, remain)
				}
				want := firstOfFive(tt.rules)
				if got, _ := headers.Parse(w.Header(), time.Now()); !slices.Equal(got, want) {
					t.Errorf("%s, %s: parsed %+v, want %+v", tt.name, key, got, want)
				}
			}
		})
	}
}

// fieldFor returns what a field of TestPartitionKey, written for alice, is for another key.
func fieldFor(key, field string) string {
	switch key {
	case "bob":
		return strings.ReplaceAll(field, "Z29sZA==", "AP8K")
	case "carol": // PartitionKey returns "" for carol, so there is no pk
		return strings.ReplaceAll(field, ";pk=:Z29sZA==:", "")
	}
	return field
}

// firstOfFive returns the limits that headers report after the first of five requests an hour.
func firstOfFive(rules []weir.Rule) (limits []headers.Limit) {
	for _, rule := range rules {
		limits = append(limits, headers.Limit{Name: rule.Name, Unit: "requests", Limit: 5, Remaining: 4, Window: time.Hour, ResetAfter: time.Hour})
	}
	return limits
}
