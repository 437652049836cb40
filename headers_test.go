package weir_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/http/httputil"
	"net/textproto"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/weirtest"
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

// TestOneDialect: the fields of nested limiters are in the dialect of the outermost, and headers.None
// there hides them all, so no response has half of a dialect or a field in two forms.
func TestOneDialect(t *testing.T) {
	for _, c := range []struct {
		name         string
		outer, inner headers.Dialect
		allowed      string
		refused      string // by the inner
	}{
		{"None around the default", headers.None, 0, "", "Retry-After: 3600"},
		{"None around IETF", headers.None, headers.IETF, "", "Retry-After: 3600"},
		{"IETF around None", headers.IETF, headers.None,
			`Ratelimit: "client";r=0;t=3600, "all";r=8;t=3600, Ratelimit-Policy: "client";q=2;w=3600, "all";q=10;w=3600`,
			`Ratelimit: "client";r=0;t=3600, Ratelimit-Policy: "client";q=2;w=3600, "all";q=10;w=3600, Retry-After: 3600`},
		{"draft 06 around IETF", headers.Draft06, headers.IETF,
			"Ratelimit-Limit: 2, Ratelimit-Policy: 2;w=3600, Ratelimit-Remaining: 0, Ratelimit-Reset: 3600",
			"Ratelimit-Limit: 2, Ratelimit-Policy: 2;w=3600, Ratelimit-Remaining: 0, Ratelimit-Reset: 3600, Retry-After: 3600"},
		{"IETF around draft 07", headers.IETF, headers.Draft07,
			`Ratelimit: "client";r=0;t=3600, "all";r=8;t=3600, Ratelimit-Policy: "client";q=2;w=3600, "all";q=10;w=3600`,
			`Ratelimit: "client";r=0;t=3600, Ratelimit-Policy: "client";q=2;w=3600, "all";q=10;w=3600, Retry-After: 3600`},
		{"the default around OpenAI", 0, headers.OpenAI,
			"X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946688400",
			"Retry-After: 3600, X-Ratelimit-Limit: 2, X-Ratelimit-Remaining: 0, X-Ratelimit-Reset: 946688400"},
		{"OpenAI around Anthropic", headers.OpenAI, headers.Anthropic,
			"X-Ratelimit-Limit-Requests: 2, X-Ratelimit-Remaining-Requests: 0, X-Ratelimit-Reset-Requests: 1h0m0s",
			"Retry-After: 3600, Retry-After-Ms: 3600000, X-Ratelimit-Limit-Requests: 2, X-Ratelimit-Remaining-Requests: 0, X-Ratelimit-Reset-Requests: 1h0m0s"},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			limiter := func(d headers.Dialect, rule string, units int64) *weir.Limiter {
				return must(t, store, weir.Options{Headers: d, OnLimited: okay, Rules: []weir.Rule{
					{Name: rule, Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(units, time.Hour)}}}})
			}
			h := limiter(c.outer, "all", 10).Handler(limiter(c.inner, "client", 2).Handler(served))
			do(h, ask("/", ""))
			if got := fields(do(h, ask("/", ""))); got != c.allowed {
				t.Errorf("%s, allowed:\n got %s\nwant %s", c.name, got, c.allowed)
			}
			if got := fields(do(h, ask("/", ""))); got != c.refused {
				t.Errorf("%s, refused:\n got %s\nwant %s", c.name, got, c.refused)
			}
		})
	}
}

// TestPrivate: clients learn nothing of a private rule, whether it is beside their own rule or around
// it. A refusal by it says when to come back, and shows no limit that has units left. The program
// knows the rule.
func TestPrivate(t *testing.T) {
	const visible = "X-Ratelimit-Limit: 4, X-Ratelimit-Remaining: 3, X-Ratelimit-Reset: 946688400"
	all := weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(2, time.Hour)}, Private: true}
	client := weir.Rule{Name: "client", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(4, time.Hour)}}
	for _, nested := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			var seen []string
			var refused weir.Refusal
			store, observe := memstore.New(memstore.Options{}), func(e weir.Event) { refused = e.Refusal }
			handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				for _, c := range weir.FromContext(r.Context()).Charges {
					seen = append(seen, c.Rule)
				}
			})
			h := must(t, store, weir.Options{Rules: []weir.Rule{all, client}, Observe: observe}).Handler(handler)
			want := "[all client]"
			if nested {
				inner := must(t, store, weir.Options{Rules: []weir.Rule{client}})
				h = must(t, store, weir.Options{Rules: []weir.Rule{all}, Observe: observe}).Handler(inner.Handler(handler))
				want = "[client]"
			}
			if got := fields(do(h, ask("/", ""))); got != visible || fmt.Sprint(seen) != want {
				t.Errorf("nested %v: got %s and FromContext with %v, want %s and %s", nested, got, seen, visible, want)
			}
			do(h, ask("/", "192.0.2.2:1"))
			res := do(h, ask("/", ""))
			body, _ := io.ReadAll(res.Body)
			got := fmt.Sprint(res.StatusCode, " ", fields(res), " ", string(body), refused.Rule)
			if want := `429 Cache-Control: no-store, Retry-After: 3600, X-Content-Type-Options: nosniff ` +
				`{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota Exceeded","status":429}` + "\nall"; got != want {
				t.Errorf("nested %v, refused:\n got %s\nwant %s", nested, got, want)
			}
		})
	}
}

// TestPrivateViolated: of the limits that refuse a request, the body names those that are not
// private, whatever rule has the longest wait and so the status.
func TestPrivateViolated(t *testing.T) {
	for _, c := range []struct {
		all, client time.Duration
		want        string
	}{
		{time.Hour, time.Minute, `"status":503,"violated-policies":["client"]`},
		{time.Minute, time.Hour, `"status":429,"violated-policies":["client"]`},
	} {
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, c.all)}, Status: 503, Private: true},
			{Name: "client", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, c.client)}},
		}}).Handler(served)
		do(h, ask("/", ""))
		res := do(h, ask("/", ""))
		body, _ := io.ReadAll(res.Body)
		if got := string(body); !strings.Contains(got, c.want) || res.Header.Get("X-RateLimit-Remaining") != "0" {
			t.Errorf("got %s with %s, want %s with 0 left", got, fields(res), c.want)
		}
	}
}

// TestRefusedFields: a refusal by something else than limits, such as a ban, never says that units
// are left: not when the process learns of the ban, not later, and not under another limiter.
func TestRefusedFields(t *testing.T) {
	for _, nested := range []bool{false, true} {
		for _, dialect := range []headers.Dialect{0, headers.IETF, headers.GitHub | headers.Draft07} {
			store := memstore.New(memstore.Options{})
			limiter := func() *weir.Limiter {
				return must(t, store, weir.Options{Headers: dialect, Rules: []weir.Rule{{
					Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(40, time.Hour)},
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Hour},
					Policy: func(r *http.Request) weir.Policy {
						if r.URL.Path == "/denied" {
							return weir.Denied()
						}
						return weir.Policy{}
					},
				}}})
			}
			if err := limiter().Ban(t.Context(), "api", "192.0.2.7", time.Hour); err != nil {
				t.Fatal(err)
			}
			h := limiter().Handler(served) // learns of the ban from the store
			if nested {
				h = must(t, store, weir.Options{Headers: dialect, Rules: []weir.Rule{
					{Name: "all", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(40, time.Hour)}}}}).Handler(h)
			}
			for i, path := range []string{"/", "/", "/denied"} {
				res := do(h, ask(path, "192.0.2.7:1"))
				for name := range res.Header {
					if strings.Contains(name, "Ratelimit") || res.StatusCode != 429 || (res.Header.Get("Retry-After") == "") != (i == 2) {
						t.Errorf("%#x, nested %v, refusal %d: got %d with %s", dialect, nested, i, res.StatusCode, fields(res))
					}
				}
			}
		}
	}
}

// TestShareFields: while a fallback decides for one of four replicas, the fields agree with each other:
// they show the share of the replica, whose Remaining can indeed be spent. Then they show the limit again.
func TestShareFields(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const whole = `Ratelimit: "api";r=%d;t=60, Ratelimit-Policy: "api";q=100;w=60, ` +
			`X-Ratelimit-Limit: 100, X-Ratelimit-Remaining: %[1]d, X-Ratelimit-Reset: 946684860, X-Ratelimit-Resource: api, X-Ratelimit-Used: %[2]d`
		const share = `Ratelimit: "api";r=%d;t=60, Ratelimit-Policy: "api";q=25;w=60, ` +
			`X-Ratelimit-Limit: 25, X-Ratelimit-Remaining: %[1]d, X-Ratelimit-Reset: 946684860, X-Ratelimit-Resource: api, X-Ratelimit-Used: %[2]d`
		down, redis, replicas := false, memory(), -1
		primary := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if down {
				return errDown
			}
			return redis.Take(ctx, tx)
		})
		store := quota.Fallback(primary, quota.Share(memory(), 4), quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
		h := must(t, store, weir.Options{Headers: headers.GitHub | headers.IETF, Rules: []weir.Rule{
			{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.FixedWindow(100, time.Minute)}}}}).Handler(
			http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { replicas = weir.FromContext(r.Context()).Replicas }))
		for i, c := range []struct {
			down     bool
			want     string
			replicas int
		}{
			{true, fmt.Sprintf(share, 24, 1), 4}, {true, fmt.Sprintf(share, 23, 2), 4},
			{false, fmt.Sprintf(whole, 99, 1), 0}, {true, fmt.Sprintf(share, 22, 3), 4}, {false, fmt.Sprintf(whole, 98, 2), 0},
		} {
			down = c.down
			if got := fields(do(h, ask("/", ""))); got != c.want || replicas != c.replicas {
				t.Errorf("request %d:\n got %s, %d replicas\nwant %s, %d", i, got, replicas, c.want, c.replicas)
			}
		}
	})
}

// okay answers a refused request with 200.
var okay = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

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

// TestMalformedQuality: a malformed q of Accept does not reject the range.
func TestMalformedQuality(t *testing.T) {
	h := refusing(t)
	for _, q := range []string{"", ".", "x", "2", "0x", "-0", "1e9"} {
		r := ask("/", "")
		r.Header.Set("Accept", "application/json;q="+q)
		if got := do(h, r).Header.Get("Content-Type"); got != "application/problem+json" {
			t.Errorf("q=%s: got %q", q, got)
		}
	}
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
		fmt.Println(weir.FromContext(r.Context()).Decision("search").Remaining, "left")
	}))
	do(handler, ask("/", "192.0.2.1:1234"))
	// Output: 9 left
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

// TestStatus: a refusal has the Status of its rule, whether a limit, a ban or a deny
// refuses. The body has the same status. If several rules refuse, the Status of the rule
// that Refusal names counts.
func TestStatus(t *testing.T) {
	hourly := []weir.Limit{algorithms.FixedWindow(1, time.Hour)}
	byUser := weir.ByHeader("User")
	plain := weir.Rule{Name: "plain", Key: byUser, Limits: hourly}
	overload := weir.Rule{Name: "overload", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Minute)}, Status: 503}
	forbidden := weir.Rule{Name: "forbidden", Key: byUser, Limits: hourly, Status: 403, ForKey: weir.When(func(key string) bool { return key == "pest" }, weir.Denied())}
	banned := weir.Rule{Name: "banned", Key: byUser, Limits: hourly, Status: 403,
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Hour), Duration: 2 * time.Hour}}
	for _, c := range []struct {
		rules    []weir.Rule
		user     string
		asks     int
		status   int
		kind     string
		violated string
	}{
		{[]weir.Rule{plain}, "ann", 2, 429, "quota-exceeded", "[plain]"},
		{[]weir.Rule{overload}, "ann", 2, 503, "temporary-reduced-capacity", "[overload]"},
		{[]weir.Rule{forbidden}, "ann", 2, 403, "quota-exceeded", "[forbidden]"},
		{[]weir.Rule{forbidden}, "pest", 1, 403, "abnormal-usage-detected", "[]"},
		{[]weir.Rule{banned}, "ann", 2, 403, "abnormal-usage-detected", "[]"}, // this refusal begins the ban
		{[]weir.Rule{banned}, "ann", 3, 403, "abnormal-usage-detected", "[]"}, // the process remembers the ban
		{[]weir.Rule{overload, forbidden}, "ann", 2, 403, "quota-exceeded", "[overload forbidden]"},
		{[]weir.Rule{overload, plain}, "ann", 2, 429, "quota-exceeded", "[overload plain]"},
		{[]weir.Rule{plain, banned}, "ann", 3, 403, "abnormal-usage-detected", "[]"},
	} {
		for _, custom := range []http.Handler{nil, http.HandlerFunc(weir.Refuse)} {
			synctest.Test(t, func(t *testing.T) {
				h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: c.rules, OnLimited: custom}).Handler(served)
				var res *http.Response
				for range c.asks {
					res = do(h, ask("/", "192.0.2.1:4", "User", c.user))
				}
				var body struct {
					Type     string
					Status   int
					Violated []string `json:"violated-policies"`
				}
				if err := json.NewDecoder(res.Body).Decode(&body); err != nil {
					t.Error(err)
				}
				kind := strings.TrimPrefix(body.Type, "https://iana.org/assignments/http-problem-types#")
				if res.StatusCode != c.status || body.Status != c.status || kind != c.kind || fmt.Sprint(body.Violated) != c.violated {
					t.Errorf("%s, OnLimited %v: got %d and %+v, want %d, %s, %s", c.rules[len(c.rules)-1].Name, custom != nil, res.StatusCode, body, c.status, c.kind, c.violated)
				}
			})
		}
	}
}

type jitterCase struct {
	name  string
	rules []weir.Rule
	exact int64 // seconds; -1: no Retry-After
	more  int64
}

// TestRetryJitter: Retry-After is the wait plus 0 to RetryJitter. Retry-After,
// retry-after-ms and the text of the answer have the same jitter, and no other header field
// has it.
func TestRetryJitter(t *testing.T) {
	const wait, jitter = 30, 10 // s
	window := func(name string, d time.Duration) weir.Rule {
		return weir.Rule{Name: name, Key: weir.ByIP(), Limits: []weir.Limit{algorithms.AnchoredWindow(1, d)}}
	}
	jittered := window("jittered", wait*time.Second)
	jittered.RetryJitter = jitter * time.Second
	bans := jittered
	bans.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Hour), Duration: wait * time.Second}
	costly := jittered
	costly.Cost = func(*http.Request) int64 { return 2 }
	denies := jittered
	denies.ForKey = func(string) weir.Policy { return weir.Denied() }
	for _, c := range []jitterCase{
		{"no jitter", []weir.Rule{window("api", wait*time.Second)}, wait, 0},
		{"jitter", []weir.Rule{jittered}, wait, jitter},
		{"a ban", []weir.Rule{bans}, wait, jitter},
		{"the rule that refuses for longer has no jitter", []weir.Rule{jittered, window("hour", time.Hour)}, 3600, 0},
		{"the rule that refuses for longer has jitter", []weir.Rule{window("second", time.Second), jittered}, wait, jitter},
		{"never", []weir.Rule{costly}, -1, 0},
		{"a deny", []weir.Rule{denies}, -1, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			checkJitter(t, c)
		})
	}
}

// checkJitter has a key refused 300 times, and checks the Retry-After of each refusal.
func checkJitter(t *testing.T, c jitterCase) {
	var refusal weir.Refusal
	h := must(t, memstore.New(memstore.Options{}), weir.Options{
		Rules: c.rules, Headers: headers.OpenAI | headers.IETF | headers.Twitter, Observe: func(e weir.Event) { refusal = e.Refusal },
	}).Handler(served)
	for range 2 { // from the second refusal on, a ban comes from memory
		do(h, ask("/", "192.0.2.1:4"))
	}
	seen, fields := map[int64]bool{}, ""
	for range 300 {
		res := do(h, ask("/", "192.0.2.1:4", "Accept", "text/plain"))
		text, _ := io.ReadAll(res.Body)
		after := res.Header.Get("Retry-After")
		if c.exact < 0 {
			if after != "" || refusal.RetryAfter != quota.Never {
				t.Fatalf("%s: got Retry-After %q and %v, want none", c.name, after, refusal.RetryAfter)
			}
			continue
		}
		seen[checkRetryAfter(t, c, res.Header, string(text))] = true
		res.Header.Del("Retry-After")
		res.Header.Del("Retry-After-Ms")
		others := fmt.Sprint(res.Header)
		if fields != "" && others != fields {
			t.Fatalf("%s: got other fields %s, want %s", c.name, others, fields)
		}
		fields = others
		if refusal.RetryAfter != time.Duration(c.exact)*time.Second {
			t.Fatalf("%s: the Refusal says %v, want %ds", c.name, refusal.RetryAfter, c.exact)
		}
	}
	if c.more > 0 && len(seen) < int(c.more) || c.more == 0 && len(seen) > 1 {
		t.Errorf("%s: got %d different waits in 300 refusals", c.name, len(seen))
	}
}

// checkRetryAfter compares the wait in the header fields and in the text with c, and
// returns the seconds of Retry-After.
func checkRetryAfter(t *testing.T, c jitterCase, h http.Header, text string) (seconds int64) {
	t.Helper()
	after := h.Get("Retry-After")
	seconds, _ = strconv.ParseInt(after, 10, 64)
	ms, _ := strconv.ParseInt(h.Get("Retry-After-Ms"), 10, 64)
	if seconds < c.exact || seconds > c.exact+c.more || (ms+999)/1000 != seconds || ms < 1000*c.exact || !strings.Contains(text, "in "+after+" seconds") {
		t.Fatalf("%s: got %q, %d ms and %q; want %d to %d s", c.name, after, ms, text, c.exact, c.exact+c.more)
	}
	return seconds
}

// TestRefusalReported: handlers get the same Refusal whether Observe is set or not, and Observe
// gets it too. Neither sees the charges that look up bans.
func TestRefusalReported(t *testing.T) {
	for _, observed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			reportRefusals(t, observed)
		})
	}
}

// reportRefusals sends requests that a limit, a ban, a deny or a failed store refuses, and
// checks what handlers and observers get.
func reportRefusals(t *testing.T, observed bool) {
	mem, gone := memstore.New(memstore.Options{}), false
	store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if gone {
			return errors.New("gone")
		}
		return mem.Take(ctx, tx)
	})
	var event, told string
	o := weir.Options{
		Rules: []weir.Rule{
			{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(9, time.Second)}},
			{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.FixedWindow(1, time.Minute)},
				ForKey:  weir.When(func(key string) bool { return key == "pest" }, weir.Denied()),
				Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Hour), Duration: 10 * time.Minute}},
		},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			told = refusalText(weir.FromContext(r.Context()))
			weir.Refuse(w, r)
		}),
		OnError: weir.FailClosed,
	}
	if observed {
		o.Observe = func(e weir.Event) {
			checkEvent(t, e)
			event = refusalText(&weir.Admission{Transaction: *e.Transaction, Refusal: e.Refusal})
		}
	}
	l := must(t, store, o)
	elsewhere := must(t, store, o)
	h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		told = refusalText(weir.FromContext(r.Context()))
	}))
	for i, step := range []struct {
		after time.Duration
		key   string
		want  string
		retry string
	}{
		{0, "a", "0s, 2 charges, true, 0s", ""},
		{0, "a", "limit api 1m0s, 2 charges, false, 1m0s", "60"},
		{0, "a", "ban api 10m0s, 2 charges, false, 10m0s", "600"},
		{time.Second, "a", "ban api 9m59s, 0 charges, false, 9m59s", "599"},      // the process remembers the ban
		{10 * time.Second, "a", "ban api 9m49s, 2 charges, false, 9m49s", "589"}, // after 10 s the store is asked again
		{time.Second, "pest", "deny api 2562047h47m16.854775807s, 0 charges, false, 2562047h47m16.854775807s", ""},
		{0, "b", "0s, 2 charges, true, 0s", ""},
	} {
		time.Sleep(step.after)
		told, event = "", ""
		res := do(h, ask("/", "192.0.2.1:4", "Key", step.key))
		if told != step.want || res.Header.Get("Retry-After") != step.retry {
			t.Errorf("step %d: got %s, Retry-After %q, want %s, %q", i, told, res.Header.Get("Retry-After"), step.want, step.retry)
		}
		if observed && event != told {
			t.Errorf("step %d: got %s in the event, %s in the request", i, event, told)
		}
	}
	// Another process learns of the ban from a charge that fits.
	time.Sleep(5 * time.Minute)
	if res := do(elsewhere.Handler(served), ask("/", "192.0.2.1:4", "Key", "a")); told != "ban api 4m48s, 2 charges, false, 4m48s" || res.StatusCode != 429 {
		t.Errorf("elsewhere: got %d, %s, want 429 and a ban", res.StatusCode, told)
	}
	gone, event = true, ""
	if res := do(h, ask("/", "192.0.2.1:4", "Key", "b")); res.StatusCode != 503 || observed && !strings.HasPrefix(event, "error all 0s") {
		t.Errorf("the store away: got %d, %s, want 503 and an error of rule all", res.StatusCode, event)
	}
	gone = false

	checkOutbound(t, l)
}

// refusalText returns a Refusal, with its charges, as text.
func refusalText(t *weir.Admission) string {
	return strings.TrimLeft(fmt.Sprintf("%v %s %v, %d charges, %v, %v", t.Refusal.Reason, t.Refusal.Rule, t.Refusal.RetryAfter, len(t.Charges), t.Allowed(), t.RetryAfter()), " ")
}

// checkEvent checks the key of an event.
func checkEvent(t *testing.T, e weir.Event) {
	t.Helper()
	if e.Refusal.Reason != 0 && !strings.Contains("a b pest", e.Key) {
		t.Errorf("got key %q of %v", e.Key, e.Refusal)
	}
}

// checkOutbound sends requests of a denied and a banned key through Transport, and checks
// the errors.
func checkOutbound(t *testing.T, l *weir.Limiter) {
	t.Helper()
	client := &http.Client{Transport: transport(t, l, weir.TransportOptions{Base: roundTrip(func(*http.Request) (*http.Response, error) { return nil, errors.New("sent") })})}
	for _, tt := range []struct{ key, want string }{
		{"pest", `weir: rule "api" denies the key`},
		{"a", `weir: rule "api" has banned the key, retry after 4m48s`},
	} {
		r, _ := http.NewRequest("GET", "http://192.0.2.1/", nil)
		r.Header.Set("Key", tt.key)
		_, err := client.Do(r)
		var limited *weir.RefusedError
		if !errors.As(err, &limited) || limited.Error() != tt.want || len(limited.Admission.Charges) > 2 {
			t.Errorf("%s: got %v, want %s", tt.key, err, tt.want)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// TestRefusalOfLimits: if several limits refuse, the Refusal names the rule of the limit
// with the longest wait.
func TestRefusalOfLimits(t *testing.T) {
	var got weir.Event
	h := must(t, memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{
			{Name: "short", Key: weir.ByHeader("A"), Limits: []weir.Limit{algorithms.AnchoredWindow(1, time.Minute)}},
			{Name: "long", Key: weir.ByHeader("B"), Limits: []weir.Limit{algorithms.AnchoredWindow(1, time.Minute), algorithms.AnchoredWindow(1, time.Hour)}},
			{Name: "tried", Key: weir.ByHeader("C"), Limits: []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)}, Enforce: weir.Percent(0)},
		},
		Observe: func(e weir.Event) { got = e },
	}).Handler(served)
	for i, want := range []string{"false  ", "false limit long b", "true limit tried c"} {
		key := "b"
		if i == 2 {
			key = "b2"
		}
		do(h, ask("/", "192.0.2.1:4", "A", fmt.Sprint("a", i/2), "B", key, "C", "c"))
		if text := fmt.Sprint(got.Shadow, " ", got.Refusal.Reason, " ", got.Refusal.Rule, " ", got.Key); strings.TrimSpace(text) != strings.TrimSpace(want) && i > 0 {
			t.Errorf("request %d: got %s, want %s", i, text, want)
		}
	}
}

// TestReasons: the names of the reasons, which logs and metrics show, stay the same.
func TestReasons(t *testing.T) {
	const want = "limit ban deny error pause no-key"
	if got := fmt.Sprint(weir.ReasonLimit, weir.ReasonBan, weir.ReasonDeny, weir.ReasonError, weir.ReasonPause, weir.ReasonNoKey); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if none := weir.Reason(0).String() + (weir.ReasonNoKey + 1).String(); none != "" {
		t.Errorf("got %q for no reason, want nothing", none)
	}
}

// OnLimited prints why each request is refused.
func ExampleRefusal() {
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Rules: []weir.Rule{{
			Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Minute), Duration: 24 * time.Hour},
		}},
		OnLimited: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			f := weir.FromContext(r.Context()).Refusal
			fmt.Println(f.Reason, f.Rule, f.RetryAfter.Round(time.Hour))
			weir.Refuse(w, r)
		}),
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	for range 3 {
		do(l.Handler(served), ask("/", "192.0.2.1:4"))
	}
	// Output:
	// limit api 1h0m0s
	// ban api 24h0m0s
}

type misnamed struct {
	quota.Algorithm
	name string
}

func (n misnamed) Name() string { return n.name }

// TestAlgorithmNames: an algorithm whose name is empty or not printable ASCII is refused,
// with an error that quotes the name.
func TestAlgorithmNames(t *testing.T) {
	for name, ok := range map[string]bool{
		"mine": true, "my algorithm": true, "": false, "two\nlines": false, "tab\t": false, "größer": false, "\x7f": false,
	} {
		limit := algorithms.GCRA(9, time.Second)
		limit.Algorithm = misnamed{limit.Algorithm, name}
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: limit, Cost: 1}}}
		_, err := weir.New(storeFunc(nil), weir.Options{Rules: []weir.Rule{{Name: "r", Key: weir.Global(), Limits: []weir.Limit{limit}}}})
		for what, err := range map[string]error{"Limit.Validate": limit.Validate(), "Transaction.Validate": tx.Validate(), "New": err} {
			if (err == nil) != ok {
				t.Errorf("%s of an algorithm named %q: got %v, want it valid: %v", what, name, err, ok)
			}
			if err != nil && !strings.Contains(err.Error(), fmt.Sprintf("%q", name)) {
				t.Errorf("%s of an algorithm named %q: got %v, want an error that names it", what, name, err)
			}
		}
	}
}

// TestAcceptIsBounded: a refusal reads only the first 2048 bytes of Accept.
func TestAcceptIsBounded(t *testing.T) {
	const html, text = "text/html; charset=utf-8", "text/plain; charset=utf-8"
	mega := strings.Repeat(",", 1<<20)
	for _, tt := range []struct {
		name   string
		accept []string
		want   string
	}{
		{"HTML", []string{"text/html"}, html},
		{"HTML after some", []string{strings.Repeat("image/png,", 100) + "text/html"}, html},
		{"HTML before a megabyte", []string{"text/html," + mega}, html},
		{"HTML after a megabyte", []string{mega + "text/html"}, text},
		{"HTML in a line after it", []string{mega, "text/html"}, text},
		{"HTML after many lines", append(strings.Split(mega, ","), "text/html"), text},
		{"HTML cut", []string{strings.Repeat(" ", 2040) + "text/html,*/*"}, text},
		{"parameters", []string{"text/html" + strings.Repeat(";", 1<<20)}, text},
	} {
		r := weirtest.Get()
		r.Header["Accept"] = tt.accept
		w := httptest.NewRecorder()
		weir.Refuse(w, r)
		if got := w.Header().Get("Content-Type"); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}

// BenchmarkRefuseAcceptMegabyte measures a refusal of a request with an Accept of a megabyte.
func BenchmarkRefuseAcceptMegabyte(b *testing.B) {
	r := weirtest.Get()
	r.Header["Accept"] = []string{strings.Repeat(",", 1<<20)}
	for b.Loop() {
		weir.Refuse(httptest.NewRecorder(), r)
	}
}

// everyDialect are rate-limit fields as servers send them.
var everyDialect = []string{
	"X-RateLimit-Limit", "X-RateLimit-Remaining", "X-RateLimit-Reset", "X-RateLimit-Used", "X-RateLimit-Resource", "X-RateLimit-Limit-Minute",
	"x-ratelimit-remaining-tokens", "x-ratelimit-reset-project-tokens", "anthropic-ratelimit-input-tokens-limit", "anthropic-ratelimit-tokens-reset",
	"x-rate-limit-limit", "RateLimit", "RateLimit-Policy", "RateLimit-Limit", "RateLimit-Remaining", "RateLimit-Reset",
}

// TestKeepHeaders: a client of a reverse proxy sees the limits of the Limiters around it and none of
// the upstream's, after interim responses and a change of the protocol too.
func TestKeepHeaders(t *testing.T) {
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		if r.URL.Path == "/103" {
			h.Set("Link", "</a.css>")
			h.Set("X-RateLimit-Remaining", "777")
			w.WriteHeader(http.StatusEarlyHints)
			w.WriteHeader(http.StatusEarlyHints)
			h.Del("Link")
		}
		for _, name := range everyDialect {
			h.Set(name, "777")
		}
		h.Set("Retry-After", "9")
		h.Set("X-Upstream", "yes")
		switch r.URL.Path {
		case "/429":
			w.WriteHeader(429)
		case "/101":
			h.Set("Connection", "Upgrade")
			h.Set("Upgrade", "websocket")
			w.WriteHeader(101)
			return
		case "/trailer":
			h.Set("Trailer", "X-Ratelimit-Used")
			w.WriteHeader(200)
		case "/undeclared": // a trailer that no field has announced
			defer h.Set(http.TrailerPrefix+"X-Ratelimit-Used", "777")
		}
		io.Copy(w, r.Body)
	}))
	defer upstream.Close()
	target, _ := url.Parse(upstream.URL)
	proxy := weir.KeepHeaders(&httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(target) }})
	rule := func(name string, quota int64) weir.Rule {
		return weir.Rule{Name: name, Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(quota, 1000*time.Hour)}}
	}
	settled, unlimited := rule("api", 9), rule("api", 9)
	settled.Settle = weir.RefundErrors
	unlimited.Policy = func(*http.Request) weir.Policy { return weir.Unlimited() }
	for _, c := range []struct {
		name string
		h    http.Handler
		want string // of X-RateLimit-Limit and RateLimit-Policy
	}{
		{"one", must(t, memory(), weir.Options{Rules: []weir.Rule{rule("api", 9)}}).Handler(proxy), "[9] []"},
		{"IETF", must(t, memory(), weir.Options{Headers: headers.IETF, Rules: []weir.Rule{rule("api", 9)}}).Handler(proxy), `[] ["api";q=9;w=3600000]`},
		{"None", must(t, memory(), weir.Options{Headers: headers.None, Rules: []weir.Rule{rule("api", 9)}}).Handler(proxy), "[] []"},
		{"Settle", must(t, memory(), weir.Options{Rules: []weir.Rule{settled}}).Handler(proxy), "[9] []"},
		{"NoFromContext", must(t, memory(), weir.Options{Rules: []weir.Rule{rule("api", 9)}, NoFromContext: true}).Handler(proxy), "[9] []"},
		{"unlimited", must(t, memory(), weir.Options{Rules: []weir.Rule{unlimited}}).Handler(proxy), "[] []"},
		{"store down", must(t, failing{errDown}, weir.Options{Rules: []weir.Rule{rule("api", 9)}, Logger: slog.New(slog.DiscardHandler)}).Handler(proxy), "[] []"},
		{"two", must(t, memory(), weir.Options{Rules: []weir.Rule{rule("all", 8)}}).Handler(must(t, memory(), weir.Options{Rules: []weir.Rule{rule("api", 9)}}).Handler(proxy)), "[8] []"},
		{"two gateways", must(t, memory(), weir.Options{Rules: []weir.Rule{rule("all", 12)}}).Handler(weir.KeepHeaders(must(t, memory(), weir.Options{Rules: []weir.Rule{rule("api", 9)}}).Handler(proxy))), "[12] []"},
	} {
		outer := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Outer", "yes")
			if r.URL.RawQuery != "" {
				w = unwrapped{w}
			}
			c.h.ServeHTTP(w, r)
		})
		server := httptest.NewServer(outer)
		defer server.Close()
		for _, path := range []string{"/200", "/103", "/100", "/429", "/101", "/trailer", "/undeclared", "/101?unwrapped"} {
			r, _ := http.NewRequest("POST", server.URL+path, strings.NewReader("the body"))
			r = r.WithContext(httptrace.WithClientTrace(r.Context(), &httptrace.ClientTrace{Got1xxResponse: func(code int, h textproto.MIMEHeader) error {
				if slices.Contains(h["X-Ratelimit-Remaining"], "777") {
					t.Errorf("%s%s: the interim response has the field of the upstream: %v", c.name, path, h)
				}
				return nil
			}}))
			path, _, _ = strings.Cut(path, "?")
			if path == "/100" {
				r.Header.Set("Expect", "100-continue")
			}
			if path == "/101" {
				r.Header = http.Header{"Connection": {"Upgrade"}, "Upgrade": {"websocket"}}
			}
			res, err := http.DefaultClient.Do(r)
			if err != nil {
				t.Fatal(err)
			}
			var body []byte
			if path != "/101" {
				body, _ = io.ReadAll(res.Body)
			}
			res.Body.Close()
			h := res.Header
			if got := fmt.Sprint(h["X-Ratelimit-Limit"], h["Ratelimit-Policy"]); got != c.want {
				t.Errorf("%s%s: got %s, want %s", c.name, path, got, c.want)
			}
			for _, name := range everyDialect {
				if values := h.Values(name); len(values) > 1 || strings.Join(values, "") == "777" || slices.Contains(res.Trailer.Values(name), "777") {
					t.Errorf("%s%s: %s: %q, trailer %q", c.name, path, name, values, res.Trailer)
				}
			}
			if fmt.Sprint(h["Retry-After"], h["X-Upstream"], h["X-Outer"]) != "[9] [yes] [yes]" {
				t.Errorf("%s%s: other fields differ: %v", c.name, path, h)
			}
			if want := map[string]int{"/429": 429, "/101": 101}[path]; want != 0 && res.StatusCode != want || path != "/101" && string(body) != "the body" {
				t.Errorf("%s%s: %d %q", c.name, path, res.StatusCode, body)
			}
		}
	}
}

// TestKeepHeadersSilent: a handler that writes nothing, or deletes a field, is served as it is without
// KeepHeaders.
func TestKeepHeadersSilent(t *testing.T) {
	limit := weir.Middleware(memory(), "api", weir.Global(), algorithms.FixedWindow(9, time.Hour))
	w := httptest.NewRecorder()
	w.Header().Set("X-Outer", "yes")
	limit(weir.KeepHeaders(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Add("X-Ratelimit-Limit", "7")
		w.Header().Del("X-Outer")
	}))).ServeHTTP(w, ask("/", ""))
	if got := fmt.Sprint(w.Header()["X-Ratelimit-Limit"], w.Header()["X-Outer"]); got != "[9] []" {
		t.Errorf("got %s", got)
	}
}

// TestKeepHeadersAround: KeepHeaders around a Limiter deletes the Limiter's fields, and says so once. It
// logs nothing inside a Limiter, even if that Limiter writes no fields or keeps the original request.
func TestKeepHeadersAround(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	limited := func(o weir.Options) func(http.Handler) http.Handler {
		o.Rules = []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}}
		return must(t, memory(), o).Handler
	}
	proxy := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.Header().Add("X-Ratelimit-Limit", "7") })
	for name, c := range map[string]struct {
		h    http.Handler
		want int // lines
	}{
		"around":                   {weir.KeepHeaders(limited(weir.Options{})(proxy)), 1},
		"inside":                   {limited(weir.Options{})(weir.KeepHeaders(proxy)), 0},
		"inside, no fields":        {limited(weir.Options{Headers: headers.None})(weir.KeepHeaders(proxy)), 0},
		"inside, without a copy":   {limited(weir.Options{NoFromContext: true})(weir.KeepHeaders(proxy)), 0},
		"without fields to delete": {weir.KeepHeaders(served), 0},
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 {
			do(c.h, ask("/", "192.0.2.1:4"))
		}
		if got := log.String(); strings.Count(got, "\n") != c.want || c.want == 1 && !strings.Contains(got, "no Limiter around KeepHeaders") {
			t.Errorf("%s: got %q, want %d lines", name, got, c.want)
		}
	}
}

// TestResetOfLowered: after a limit was lowered, the fields say when the key has its whole quota again,
// which is sooner than the store may forget what the key spent under the larger limit.
func TestResetOfLowered(t *testing.T) {
	for name, tt := range map[string]struct {
		before, after weir.Limit
		spent         int64
		want          int // seconds
	}{
		"a lower quota":   {algorithms.GCRA(1000, time.Minute), algorithms.GCRA(10, time.Minute), 900, 60},
		"a smaller burst": {algorithms.TokenBucket(300, 60, time.Minute), algorithms.TokenBucket(5, 60, time.Minute), 300, 5},
		"the same":        {algorithms.GCRA(1000, time.Minute), algorithms.GCRA(1000, time.Minute), 500, 30},
		"a window":        {algorithms.SlidingWindow(1000, time.Hour), algorithms.SlidingWindow(10, time.Hour), 900, 7200},
	} {
		synctest.Test(t, func(t *testing.T) {
			time.Sleep(time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)))
			store := memstore.New(memstore.Options{})
			take(t, store, 0, quota.Charge{Rule: "api", Key: "ann", Limit: tt.before, Cost: tt.spent})
			l := must(t, store, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByHeader("User"), Limits: []weir.Limit{tt.after}}}})
			h := l.Handler(served)
			got, _ := strconv.Atoi(do(h, ask("/", "", "User", "ann")).Header.Get("X-RateLimit-Reset"))
			got -= int(time.Now().Unix())
			if got < tt.want || got > tt.want+1 {
				t.Errorf("%s: got a reset after %d s, want %d", name, got, tt.want)
			}
			time.Sleep(time.Duration(got) * time.Second)
			d := take(t, store, 0, quota.Charge{Rule: "api", Key: "ann", Limit: tt.after}).Decisions[0]
			if all := tt.after.Capacity(); d.Remaining != all {
				t.Errorf("%s: after the reset %d remain, want %d", name, d.Remaining, all)
			}
		})
	}
}
