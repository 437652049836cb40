package headers_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/textproto"
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

// noon is when responses come unless a test says otherwise. Its Unix time is 1767355200.
var noon = time.Date(2026, 1, 2, 12, 0, 0, 0, time.UTC)

// header makes a header of lines of text.
func header(text string) http.Header {
	h := http.Header{}
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(line, ":"); ok {
			h.Add(textproto.TrimString(name), textproto.TrimString(value))
		}
	}
	return h
}

// said formats limits as "name:remaining/limit unit per window +reset", with ? for unknown
// numbers.
func said(advice []headers.Limit, retryAfter time.Duration) string {
	number := func(n int64) string { return strings.Replace(fmt.Sprint(n), "-1", "?", 1) }
	var all []string
	for _, a := range advice {
		s := fmt.Sprintf("%s:%s/%s %s", a.Name, number(a.Remaining), number(a.Limit), a.Unit)
		if a.Window > 0 {
			s += " per " + a.Window.String()
		}
		if a.ResetAfter > 0 {
			s += " +" + a.ResetAfter.String()
		}
		all = append(all, s)
	}
	if retryAfter > 0 {
		all = append(all, "retry "+retryAfter.String())
	}
	return strings.Join(all, ", ")
}

// TestParse: Parse reads the responses of well-known servers and of every draft.
func TestParse(t *testing.T) {
	for _, c := range []struct{ name, response, want string }{
		{"nothing", "Content-Type: text/plain", ""},
		{"GitHub", `
			Date: Fri, 02 Jan 2026 12:00:00 GMT
			X-RateLimit-Limit: 5000
			X-RateLimit-Remaining: 4987
			X-RateLimit-Reset: 1767357061
			X-RateLimit-Used: 13
			X-RateLimit-Resource: core`, "core:4987/5000 requests +31m1s"},
		{"GitHub, the used only", "X-RateLimit-Limit: 60\nX-RateLimit-Used: 61", ":0/60 requests"},
		{"OpenAI", `
			x-ratelimit-limit-requests: 60
			x-ratelimit-limit-tokens: 150000
			x-ratelimit-remaining-requests: 59
			x-ratelimit-remaining-tokens: 149984
			x-ratelimit-reset-requests: 1s
			x-ratelimit-reset-tokens: 6m0s`, ":59/60 requests +1s, :149984/150000 tokens +6m0s"},
		{"OpenAI, refused", `
			retry-after: 1
			retry-after-ms: 622
			x-ratelimit-limit-requests: 500
			x-ratelimit-remaining-requests: 0
			x-ratelimit-reset-requests: 120ms`, ":0/500 requests +120ms, retry 622ms"},
		{"Azure: a number, and no limit", "x-ratelimit-remaining-requests: 119\nx-ratelimit-reset-requests: 10", ":119/? requests +10s"},
		{"Groq", "x-ratelimit-limit-tokens: 6000\nx-ratelimit-remaining-tokens: 5234\nx-ratelimit-reset-tokens: 7.66s", ":5234/6000 tokens +7.66s"},
		{"Anthropic", `
			anthropic-ratelimit-requests-limit: 50
			anthropic-ratelimit-requests-remaining: 49
			anthropic-ratelimit-requests-reset: 2026-01-02T12:00:01Z
			anthropic-ratelimit-input-tokens-limit: 50000
			anthropic-ratelimit-input-tokens-remaining: 0
			anthropic-ratelimit-input-tokens-reset: 2026-01-02T13:00:18+01:00
			anthropic-ratelimit-unified-5h-reset: 1767357061
			retry-after: 18`, ":0/50000 input-tokens +18s, :49/50 requests +1s, retry 18s"},
		{"Twitter", "x-rate-limit-limit: 900\nx-rate-limit-remaining: 0\nx-rate-limit-reset: 1767356100", ":0/900 requests +15m0s"},
		{"Shopify", "Retry-After: 2.0\nX-Shopify-Shop-Api-Call-Limit: 40/40", "retry 2s"},
		{"Stripe", "Retry-After: 1\nStripe-Rate-Limited-Reason: global-rate", "retry 1s"},
		{"Discord", `
			X-RateLimit-Limit: 5
			X-RateLimit-Remaining: 0
			X-RateLimit-Reset: 1767355201.5
			X-RateLimit-Reset-After: 1.5`, ":0/5 requests +1.5s"},
		{"Cloudflare", `
			Ratelimit: "default";r=50;t=30
			Ratelimit-Policy: "default";q=1200;w=300
			Retry-After: 42`, "default:50/1200 requests per 5m0s +30s, retry 42s"},
		{"express-rate-limit, legacy", "X-RateLimit-Limit: 100\nX-RateLimit-Remaining: 99\nX-RateLimit-Reset: 1767355260123", ":99/100 requests +1m0.123s"},
		{"seconds from now", "X-RateLimit-Limit: 10\nX-RateLimit-Remaining: 0\nX-RateLimit-Reset: 37", ":0/10 requests +37s"},
		{"unlimited", "X-RateLimit-Limit: -1\nX-RateLimit-Remaining: -1\nX-RateLimit-Reset: 0", ""},
		{"half unlimited", "X-RateLimit-Limit: 18446744073709551615\nX-RateLimit-Remaining: none", ":?/9223372036854775807 requests"},

		{"draft 05", "RateLimit-Limit: 10, 10;w=1, 50;w=60\nRateLimit-Remaining: 9\nRateLimit-Reset: 1", ":9/10 requests +1s"},
		{"draft 06", "RateLimit-Limit: 100\nRateLimit-Remaining: 99\nRateLimit-Reset: 36\nRateLimit-Policy: 100;w=60", ":99/100 requests per 1m0s +36s"},
		{"draft 06, several policies", `
			RateLimit-Policy: 10;w=1;burst=1000;comment="a, b", 1000;w=3600
			RateLimit-Limit: 1000
			RateLimit-Remaining: 3
			RateLimit-Reset: 900`, ":?/10 requests per 1s, :3/1000 requests per 1h0m0s +15m0s"},
		{"draft 07", "RateLimit: limit=100, remaining=50, reset=5\nRateLimit-Policy: 100;w=10", ":50/100 requests per 10s +5s"},
		{"draft 07 without remaining", "RateLimit: limit=100, reset=5", ":?/100 requests +5s"},
		{"draft 07, unknown members", "RateLimit: reset=5, hint=abc, limit=1;x, limit=100;note=\"limit=7\"", ":?/100 requests +5s"},
		{"draft 08 to 11", `RateLimit-Policy: "burst";q=100;w=60,"daily";q=1000;w=86400
			RateLimit: "default";r=50;t=30`, "burst:?/100 requests per 1m0s, daily:?/1000 requests per 24h0m0s, default:50/? requests +30s"},
		{"partitions", `RateLimit-Policy: "peruser";q=65535;qu="content-bytes";w=10;pk=:sdfjLJUOUH==:
			RateLimit-Policy: "peruser";q=100;w=60;pk=:cHsdsRa894==:
			RateLimit: "peruser";r=7;pk=:cHsdsRa894:, "peruser";r=9;t=1;pk=:sdfjLJUOUH==:`,
			"peruser:9/65535 content-bytes per 10s +1s, peruser:7/100 requests per 1m0s"},
		{"partitions of one policy", `RateLimit-Policy: "a";q=5;w=1
			RateLimit: "a";r=1;pk=:AQ==:, "a";r=2;pk=:Ag==:, "b";r=3`, "a:1/5 requests per 1s, a:2/5 requests per 1s, b:3/? requests"},
		{"two dialects", `RateLimit-Policy: "a";q=5;w=1
			RateLimit: "a";r=4
			X-RateLimit-Limit: 5
			X-RateLimit-Remaining: 4`, "a:4/5 requests per 1s, :4/5 requests"},
		{"another's policies", "RateLimit-Policy: \"\";q=5, 5;w=2\nRateLimit-Limit: 5\nRateLimit-Remaining: 1", ":?/5 requests, :1/5 requests per 2s"},
	} {
		if got := said(headers.Parse(header(c.response), noon)); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// TestClocks: a time counts from the Date of the response, or from the reader's clock if
// Date is missing or absurd.
func TestClocks(t *testing.T) {
	const reset = "Retry-After: Fri, 02 Jan 2026 12:01:00 GMT\nX-RateLimit-Limit: 9\nX-RateLimit-Reset: 1767355260\n"
	for _, c := range []struct{ name, response, want string }{
		{"no Date", reset, ":?/9 requests +1m0s, retry 1m0s"},
		{"the server is slow", reset + "Date: Fri, 02 Jan 2026 10:59:30 GMT", ":?/9 requests +1h1m30s, retry 1h1m30s"},
		{"the server is fast", reset + "Date: Fri, 02 Jan 2026 12:00:50 GMT", ":?/9 requests +10s, retry 10s"},
		{"a Date of no clock", reset + "Date: Thu, 01 Jan 1970 00:00:00 GMT", ":?/9 requests +1m0s, retry 1m0s"},
		{"no Date at all", reset + "Date: tomorrow", ":?/9 requests +1m0s, retry 1m0s"},
		{"a cache", reset + "Age: 30\nDate: Fri, 02 Jan 2026 11:59:30 GMT\nRateLimit: \"a\";r=1", "retry 1m0s"},
		{"a cache that asked", reset + "Age: 0", ":?/9 requests +1m0s, retry 1m0s"},
	} {
		if got := said(headers.Parse(header(c.response), noon)); got != c.want {
			t.Errorf("%s: got %s, want %s", c.name, got, c.want)
		}
	}
}

// TestRetryAfter: Parse reads every form of a wait, caps the wait at a day, and ignores
// malformed waits.
func TestRetryAfter(t *testing.T) {
	for _, c := range []struct {
		after, ms string
		want      time.Duration
	}{
		{"", "", 0},
		{"0", "", 0},
		{"120", "", 2 * time.Minute},
		{" 007 ", "", 7 * time.Second},
		{"2.0", "", 2 * time.Second},
		{"1.5", "", 1500 * time.Millisecond},
		{"0.0000000001", "", 1},
		{"0.9999999991", "", time.Second},
		{"6m0s", "", 6 * time.Minute},
		{"120ms", "", 120 * time.Millisecond},
		{"Fri, 02 Jan 2026 12:00:30 GMT", "", 30 * time.Second},
		{"Friday, 02-Jan-26 12:00:30 GMT", "", 30 * time.Second},
		{"Fri Jan  2 12:00:30 2026", "", 30 * time.Second},
		{"2026-01-02T12:00:30.5Z", "", 30500 * time.Millisecond},
		{"Fri, 02 Jan 2026 11:59:30 GMT", "", 0},
		{"1767355230", "", 30 * time.Second}, // a Unix time where seconds should be
		{"1767355230.25", "", 30250 * time.Millisecond},
		{"1767355230000", "", 30 * time.Second},
		{"1767355170", "", 0},

		// No more than a day.
		{"86399", "", 24*time.Hour - time.Second},
		{"86401", "", 24 * time.Hour},
		{"99999999", "", 24 * time.Hour},
		{"999999999", "", 24 * time.Hour}, // a Unix time of 2001, which means never and not the past
		{"2147483647", "", 24 * time.Hour},
		{"999999999999", "", 24 * time.Hour},
		{"9223372036854775807", "", 24 * time.Hour},
		{strings.Repeat("9", 400), "", 24 * time.Hour},
		{"2562047h", "", 24 * time.Hour},
		{"Fri, 31 Dec 9999 23:59:59 GMT", "", 24 * time.Hour},

		// Malformed waits are ignored.
		{"-1", "", 0}, {"-5s", "", 0}, {"+5", "", 0}, {"1e3", "", 0}, {"0x10", "", 0}, {"1.", "", 0}, {".5", "", 0}, {"1.2.3", "", 0},
		{"NaN", "", 0}, {"soon", "", 0}, {"١٢", "", 0}, {`"5"`, "", 0}, {"5, 6", "", 0}, {strings.Repeat("0h", 200) + "1s", "", 0},

		{"", "622", 622 * time.Millisecond},
		{"", "622.25", 622250 * time.Microsecond},
		{"1", "622", 622 * time.Millisecond},
		{"1", "1400", 1400 * time.Millisecond},
		{"30", "622", 30 * time.Second},
		{"1", "30000", 30 * time.Second},
		{"1", "0", time.Second},
		{"0.5", "0", 500 * time.Millisecond},
		{"1", "soon", time.Second},
		{"", "1767355230000", 24 * time.Hour},
		{"", "9223372036854775807", 24 * time.Hour},
		{"86400", "86399999", 24*time.Hour - time.Millisecond},
	} {
		h := http.Header{}
		h.Set("Retry-After", c.after)
		h.Set("retry-after-ms", c.ms)
		if advice, got := headers.Parse(h, noon); got != c.want || advice != nil {
			t.Errorf("%.60q, %q ms: got %v %v, want %v", c.after, c.ms, advice, got, c.want)
		}
	}
	if _, got := headers.Parse(header("Retry-After: 5\nRetry-After: 7\nRetry-After: 6"), noon); got != 7*time.Second {
		t.Errorf("several: got %v, want the longest, 7s", got)
	}
}

// TestStructured: Parse reads structured fields (RFC 9651), and ignores a field with any
// error in it.
func TestStructured(t *testing.T) {
	const good, void = "a:1/? requests", ""
	for _, c := range []struct{ field, want string }{
		{`"a";r=1`, good},
		{"  \"a\" \t, \t\"b\";r=2  ", "b:2/? requests"}, // a has no r, which is required, so a is skipped
		{`"a"; r=1;t=5`, good + " +5s"},
		{`"a";r=9;r=1`, good}, // the last value of r counts
		{`"a";r=1;x;*y=?0;z=?1;u=1.5;v=-3;w=tok/en:*;s="q\"\\";d=@-1659578233;e=%"f%c3%bc";p=:AQI:;q-_.*9=:aGk=:`, good},
		{`"a\"\\,;b";r=1`, `a"\,;b:1/? requests`},
		{`"a";r=999999999999999`, "a:999999999999999/? requests"},
		{`a;r=2, "a";r=1`, good}, // a Token is no name
		{`"b";r=-5, "a";r=1`, good},
		{`"b";r="1", "a";r=1`, good},
		{`"b";r=1.0, "a";r=1`, good},
		{`"a";r=1;t=-5`, good},
		{`"a";r=1;t="5"`, good},
		{`"a";r=1;t=1767355230`, good + " +30s"},

		{`"a";r=1,`, void}, {`,"a";r=1`, void}, {`"a";r=1,,"b";r=2`, void}, {`"a";r=1 "b"`, void},
		{`"a;r=1`, void}, {`"a\";r=1`, void}, {`"a\n";r=1`, void}, {"\"a\tb\";r=1", void}, {`"ä";r=1`, void}, {`"a\`, void},
		{`"a";r=1000000000000000`, void}, {`"a";r=`, void}, {`"a";r=1;`, void}, {`"a";=1`, void}, {`"a";R=1;r=1`, void}, {`"a";-x=1;r=1`, void},
		{`"a" ;r=1`, void}, {`"a";r =1`, void}, {`"a";r=1;u=1.`, void}, {`"a";r=1;u=1.2345`, void}, {`"a";r=1;u=1234567890123.1`, void}, {`"a";r=1;u=-`, void},
		{`"a";r=1;p=:A`, void}, {`"a";r=1;p=:A:`, void}, {`"a";r=1;p=:!!!!:`, void}, {"\"a\";r=1;p=:A\nQ==:", void}, {`"a";r=1;b=?2`, void}, {`"a";r=1;d=@1.5`, void}, {`"a";r=1;d=@`, void},
		{`"a";r=1;e=%"%C3%BC"`, void}, {`"a";r=1;e=%"%ff"`, void}, {`"a";r=1;e=%"%f"`, void}, {`"a";r=1;e=%"x`, void}, {`"a";r=1;e=%x`, void}, {"\"a\";r=1;e=%\"\t\"", void},
		{`("a" "b");r=1`, void}, {`"a";r=(1)`, void}, {`"a";r=1;{}`, void}, {`;r=1`, void},
		{`limit=1, remaining=1, reset=`, void}, {`limit=1 remaining=1`, void}, {`Limit=1`, void}, {`limit=-5, remaining="1"`, void}, {`limit=-5, remaining=1`, ":1/? requests"}, {`limit, remaining`, void},
		{`limit=1, "a";r=1`, void},
	} {
		if got := said(headers.Parse(http.Header{"Ratelimit": {c.field}}, noon)); got != c.want {
			t.Errorf("%q: got %q, want %q", c.field, got, c.want)
		}
	}
	for _, c := range []struct {
		want  string
		lines []string
	}{
		{good + ", b:2/? requests", []string{`"a";r=1`, `"b";r=2`}},
		{void, []string{`"a";r=1`, `"b";r=`}},
		{void, []string{"", `"a";r=1`}},
		{void, []string{`"a";r=1`, "limit=1"}},
	} {
		if got := said(headers.Parse(http.Header{"Ratelimit": c.lines}, noon)); got != c.want {
			t.Errorf("%q: got %q, want %q", c.lines, got, c.want)
		}
	}
	for field, want := range map[string]string{
		`"a";q=1;w=0`:                        "a:?/1 requests",
		`"a";q=1;w=-1`:                       "a:?/1 requests",
		`"a";q=1;qu=tokens`:                  "a:?/1 requests",
		`"a";q=1;w=999999999999999`:          "a:?/1 requests per 2562047h47m16s",
		`"a", "b";q=-1, -1, 2;w=1, tok, ?1`:  ":?/2 requests per 1s",
		`"a";q=1, "b`:                        void,
		`"a";q=1;pk="text", "a";q=1;pk=:AA`:  void,
		`"a";q=1;qu="` + "\x7f" + `", 100;w`: void,
	} {
		if got := said(headers.Parse(http.Header{"Ratelimit-Policy": {field}}, noon)); got != want {
			t.Errorf("policy %q: got %q, want %q", field, got, want)
		}
	}
}

// hostile has headers of about n bytes that are expensive to read, and how many limits
// Parse returns for each.
var hostile = []struct {
	name string
	of   func(n int) http.Header
	want int
}{
	{"many units", func(n int) http.Header {
		h := http.Header{}
		for i := range n / 40 {
			h[fmt.Sprintf("X-Ratelimit-Limit-U%07d", i)] = []string{"1"}
			h[fmt.Sprintf("Anthropic-Ratelimit-U%07d-Remaining", i)] = []string{"1"}
		}
		return h
	}, 64},
	{"a long unit", func(n int) http.Header {
		return http.Header{"X-Ratelimit-Limit-A" + strings.Repeat("a", n): {"1"}, "X-Ratelimit-Limit-": {"1"}}
	}, 0},
	{"many policies", func(n int) http.Header {
		return http.Header{"Ratelimit-Policy": {strings.Repeat("1,", min(n, 16000)/2) + "1"}, "Ratelimit": {strings.Repeat(`"";r=1,`, min(n, 16000)/7) + `"";r=1`}}
	}, 64},
	{"a long field", func(n int) http.Header {
		return http.Header{"Ratelimit": {strings.Repeat(`"a";r=1,`, n/8) + `"a";r=1`}}
	}, 0},
	{"many lines", func(n int) http.Header {
		line := []string{`"a";r=1`}
		for len(line) < n/8 {
			line = append(line, line...)
		}
		return http.Header{"Ratelimit": line, "Ratelimit-Policy": line, "Retry-After": line, "Retry-After-Ms": line, "X-Ratelimit-Limit": line}
	}, 0},
	{"long numbers", func(n int) http.Header {
		nines := []string{strings.Repeat("9", n/2) + "." + strings.Repeat("9", n/2)}
		return http.Header{"X-Ratelimit-Limit": nines, "X-Ratelimit-Reset": nines, "Retry-After": nines, "Retry-After-Ms": nines, "Date": nines, "Age": {"-" + nines[0]}}
	}, 1},
	{"a long string", func(n int) http.Header { return http.Header{"Ratelimit": {`"` + strings.Repeat(`\"`, n/2)}} }, 0},
	{"a long name", func(n int) http.Header {
		return http.Header{"X-Ratelimit-Resource": {strings.Repeat("a", n)}, "X-Ratelimit-Limit": {strings.Repeat(" ", n) + "1"}}
	}, 1},
	{"many semicolons", func(n int) http.Header {
		return http.Header{"Ratelimit": {"a" + strings.Repeat(";a", min(n, 16000)/2)}, "X-Ratelimit-Limit": {strings.Repeat(";", n)}}
	}, 0},
}

// TestHostile: Parse returns at most 64 limits with short names from a header of a
// megabyte, in at most 6000 allocations, and the same limits each time.
func TestHostile(t *testing.T) {
	for _, c := range hostile {
		h := c.of(1 << 20)
		var advice []headers.Limit
		n := testing.AllocsPerRun(1, func() { advice, _ = headers.Parse(h, noon) })
		if len(advice) != c.want || n > 6000 {
			t.Errorf("%s: got %d limits in %.0f allocations, want %d in 6000 at most", c.name, len(advice), n, c.want)
		}
		for _, a := range advice {
			if len(a.Name)+len(a.Unit) > 1000 {
				t.Errorf("%s: got a name of %d and a unit of %d bytes", c.name, len(a.Name), len(a.Unit))
			}
		}
	}
	h := hostile[0].of(1 << 20)
	first := said(headers.Parse(h, noon))
	if again := said(headers.Parse(h, noon)); again != first || !strings.HasPrefix(first, ":?/1 u0000000") {
		t.Errorf("the same header read twice:\n%s\n%s", first, again)
	}
}

type roundTripCase struct {
	name    string
	dialect headers.Dialect
	named   bool // the limits have names
	reset   func(d time.Duration) (low, high time.Duration)
}

// TestRoundTrip: Parse reads what the middleware writes, in every dialect, even if the
// clocks of server and reader differ by 20 hours.
func TestRoundTrip(t *testing.T) {
	exact := func(d time.Duration) (low, high time.Duration) { return wholeSeconds(d), wholeSeconds(d) }
	date := func(d time.Duration) (low, high time.Duration) { return d, d + 2*time.Second }
	const all = headers.None - 1
	var seen headers.Dialect
	for _, c := range []roundTripCase{
		{"XRateLimit", headers.XRateLimit, false, date},
		{"IETF", headers.IETF, true, exact},
		{"Draft07", headers.Draft07, false, exact},
		{"Draft06", headers.Draft06, false, exact},
		{"GitHub", headers.GitHub, false, date},
		{"OpenAI", headers.OpenAI, false, func(d time.Duration) (low, high time.Duration) { return d, d + time.Millisecond }},
		{"Anthropic", headers.Anthropic, false, date},
		{"Twitter", headers.Twitter, false, date},
	} {
		seen |= c.dialect
		for seed := range uint64(60) {
			synctest.Test(t, func(t *testing.T) {
				c.run(t, seed)
			})
		}
	}
	if seen != all {
		t.Errorf("no row has the dialects %#x", all&^seen)
	}
}

// run reads the fields of twelve responses of a Limiter with three limits, by a clock that is
// wrong.
func (c roundTripCase) run(t *testing.T, seed uint64) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 1))
	time.Sleep(time.Duration(rnd.Int64N(1e10)))
	limit := func() weir.Limit { return randomLimit(rnd) }
	var tx *weir.Admission
	spy := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		tx = weir.FromContext(r.Context())
		w.Header().Set("Date", time.Now().UTC().Format(http.TimeFormat))
	})
	y := limit().Named("y")
	if burst := 1 + rnd.Int64N(3); takesBurst(y) {
		y.Burst = burst
	}
	none := func(string) weir.Policy { return weir.Policy{} } // a rule that has ForKey may have redundant limits
	h := weirtest.New(t, memstore.New(memstore.Options{}), weir.Options{Headers: c.dialect, OnLimited: spy, Rules: []weir.Rule{
		{Name: `a"\`, Key: weir.Global(), Limits: []weir.Limit{limit().Named("x"), y}, ForKey: none},
		{Name: "b", Key: weir.Global(), Limits: []weir.Limit{limit()}, Unit: "tokens", Cost: func(*http.Request) int64 { return rnd.Int64N(4) }},
	}}).Handler(spy)
	for range 12 {
		res := weirtest.Do(h, weirtest.Ask("/", ""))
		skew := time.Duration(rnd.Int64N(int64(40*time.Hour))) - 20*time.Hour
		advice, retry := headers.Parse(res.Header, time.Now().Add(skew))
		told := 0
		for _, a := range advice {
			if a.Remaining < 0 {
				continue // a policy without a Remaining
			}
			told++
			if !tells(c.dialect, c.named, c.reset, a, &tx.Transaction) {
				t.Errorf("%s, seed %d: read %+v\nof %v\nwhich matches none of %+v\n%+v", c.name, seed, a, res.Header, tx.Decisions, tx.Charges)
			}
		}
		if want := c.limits(&tx.Transaction); told != want {
			t.Errorf("%s, seed %d: read %d limits, want %d: %v", c.name, seed, told, want, res.Header)
		}
		if want := c.retryAfter(&tx.Transaction); retry != want {
			t.Errorf("%s, seed %d: read Retry-After %v, want %v: %v", c.name, seed, retry, want, res.Header)
		}
		time.Sleep(time.Duration(rnd.Int64N(int64(2 * time.Second))))
	}
}

func randomLimit(r *rand.Rand) weir.Limit {
	units, period := 1+r.Int64N(9), time.Duration(1+r.IntN(300))*[]time.Duration{time.Millisecond, time.Second, time.Hour}[r.IntN(3)]
	return []func(int64, time.Duration) weir.Limit{algorithms.GCRA, algorithms.FixedWindow, algorithms.AnchoredWindow, algorithms.SlidingWindow, algorithms.SlidingLog}[r.IntN(5)](units, period)
}

// limits returns how many of the three limits of a transaction the dialect reports.
func (c roundTripCase) limits(tx *quota.Transaction) int {
	switch c.dialect {
	case headers.OpenAI, headers.Anthropic:
		return 2
	case headers.IETF:
		refused := 0
		for _, d := range tx.Decisions {
			if !d.Allowed {
				refused++
			}
		}
		if refused > 0 {
			return refused
		}
		return 3
	}
	return 1
}

// retryAfter returns the wait that the dialect reports.
func (c roundTripCase) retryAfter(tx *quota.Transaction) time.Duration {
	wait := tx.RetryAfter()
	if wait == quota.Never {
		wait = 0
	}
	wait = min(wait, 24*time.Hour)
	if c.dialect == headers.OpenAI {
		return (wait + time.Millisecond - 1).Truncate(time.Millisecond)
	}
	return wholeSeconds(wait)
}

// wholeSeconds rounds up.
func wholeSeconds(d time.Duration) time.Duration {
	return (d + time.Second - 1).Truncate(time.Second)
}

// tells reports whether a limit that was read agrees with the decision on one of the
// limits of tx.
func tells(dialect headers.Dialect, named bool, reset func(time.Duration) (low, high time.Duration), a headers.Limit, tx *quota.Transaction) bool {
	for i, c := range tx.Charges {
		d := tx.Decisions[i]
		_, full := c.Limit.Algorithm.Take(quota.State{}, &c.Limit, 0, 0)
		limit, after, unit, window := full.Remaining, d.ResetAfter, "requests", time.Duration(0)
		if c.Rule == "b" && dialect&(headers.IETF|headers.OpenAI|headers.Anthropic) != 0 {
			unit = "tokens"
		}
		if named {
			limit, after = c.Limit.Quota, d.NextAfter
		}
		if whole := c.Limit.Period.Truncate(time.Second); whole == c.Limit.Period && (named || dialect&(headers.Draft06|headers.Draft07) != 0 && limit == c.Limit.Quota) {
			window = whole
		}
		name := ""
		switch {
		case named && c.Rule == "b", dialect == headers.GitHub:
			name = c.Rule
		case named:
			name = c.Rule + "/" + c.Limit.Name
		}
		low, high := reset(after)
		low, high = min(low, 24*time.Hour), min(high, 24*time.Hour)
		if a.Name == name && a.Unit == unit && a.Limit == limit && a.Remaining == d.Remaining && a.Window == window && low <= a.ResetAfter && a.ResetAfter <= high {
			return true
		}
	}
	return false
}

// FuzzParse: what Parse returns is within its bounds and the same each time. Limits that
// the IETF fields can express are read back from them unchanged.
func FuzzParse(f *testing.F) {
	for _, s := range []string{
		"RateLimit-Policy: \"a\";q=1;w=2;qu=\"t\";pk=:AQ==:, 5;w=1\nRateLimit: \"a\\\"\";r=1;t=2;x=%\"%c3%bc\"",
		"RateLimit: limit=100, remaining=50, reset=5\nAge: 0\nDate: Fri, 02 Jan 2026 12:00:00 GMT",
		"RateLimit-Limit: 10, 10;w=1\nRateLimit-Remaining: 9\nRateLimit-Reset: 1",
		"X-RateLimit-Limit: 5000\nX-RateLimit-Used: 1\nX-RateLimit-Reset: 1767357061.5\nX-RateLimit-Resource: core",
		"x-ratelimit-limit-tokens: 5\nx-ratelimit-reset-tokens: 6m0s\nretry-after-ms: 12",
		"anthropic-ratelimit-requests-limit: 50\nanthropic-ratelimit-requests-reset: 2026-01-02T12:00:01Z\nretry-after: 18",
	} {
		f.Add(s, noon.Unix())
	}
	f.Fuzz(func(t *testing.T, text string, unix int64) {
		now := time.Unix(unix, 0)
		h := header(text)
		advice, retry := headers.Parse(h, now)
		if again, r := headers.Parse(h, now); said(again, r) != said(advice, retry) {
			t.Errorf("%q: read %s, then %s", text, said(advice, retry), said(again, r))
		}
		if retry < 0 || retry > 24*time.Hour || len(advice) > 64 {
			t.Errorf("%q: got %d limits, retry after %v", text, len(advice), retry)
		}
		for _, a := range advice {
			checkLimit(t, text, a, now)
		}
	})
}

// checkLimit checks the bounds of a limit that was read. If a structured field can hold the
// limit, checkLimit also writes it and reads it again.
func checkLimit(t *testing.T, text string, a headers.Limit, now time.Time) {
	t.Helper()
	if a.Limit < -1 || a.Remaining < -1 || a.Limit < 0 && a.Remaining < 0 || a.Window < 0 || a.ResetAfter < 0 || a.ResetAfter > 24*time.Hour {
		t.Errorf("%q: got %+v", text, a)
	}
	const most = 999_999_999_999_999
	if strings.ContainsFunc(a.Name+a.Unit, func(r rune) bool { return r < ' ' || r > '~' }) || a.Limit > most || a.Remaining > most || a.Limit < 0 || a.Remaining < 0 {
		return // no structured field can hold it
	}
	quote := strings.NewReplacer(`\`, `\\`, `"`, `\"`).Replace
	a.ResetAfter = a.ResetAfter.Truncate(time.Second)
	back, _ := headers.Parse(header(fmt.Sprintf("RateLimit-Policy: \"%s\";q=%d;qu=\"%s\";w=%d\nRateLimit: \"%s\";r=%d;t=%d",
		quote(a.Name), a.Limit, quote(a.Unit), a.Window/time.Second, quote(a.Name), a.Remaining, a.ResetAfter/time.Second)), now)
	if len(back) != 1 || back[0] != a {
		t.Errorf("%q: got %+v, written and read again %+v", text, a, back)
	}
}

// FuzzRetryAfter: every wait is from 0 to 24 hours, all forms of a wait are read alike, and
// a larger number never gives a shorter wait.
func FuzzRetryAfter(f *testing.F) {
	for _, s := range []string{"2.0", "6m0s", "1767355230", "1767355230000", "Fri, 02 Jan 2026 12:00:30 GMT", "Friday, 02-Jan-26 12:00:30 GMT", "2026-01-02T12:00:30.5Z", "99999999"} {
		f.Add(s, uint32(7))
	}
	read := func(s string) time.Duration {
		_, d := headers.Parse(http.Header{"Retry-After": {s}}, noon)
		return d
	}
	f.Fuzz(func(t *testing.T, s string, n uint32) {
		if d := read(s); d < 0 || d > 24*time.Hour {
			t.Errorf("%q: got %v", s, d)
		}
		if _, d := headers.Parse(http.Header{"Retry-After-Ms": {s}}, noon); d < 0 || d > 24*time.Hour {
			t.Errorf("%q ms: got %v", s, d)
		}
		d := time.Duration(min(n, 86400)) * time.Second
		for _, form := range []string{fmt.Sprint(min(n, 99999999)), fmt.Sprintf("%d.000", min(n, 99999999)), d.String(),
			noon.Add(d).Format(http.TimeFormat), noon.Add(d).Format(time.RFC3339), fmt.Sprint(noon.Add(d).Unix()), fmt.Sprint(noon.Add(d).UnixMilli())} {
			if got := read(form); got != d {
				t.Errorf("%q: got %v, want %v", form, got, d)
			}
		}
		if a, b := read(fmt.Sprint(n)), read(fmt.Sprint(uint64(n)*2)); n < 5e7 && a > b {
			t.Errorf("%d: got %v, and %v of twice as much", n, a, b)
		}
	})
}

// BenchmarkParse measures how long a usual response and a hostile megabyte take.
func BenchmarkParse(b *testing.B) {
	github := header("Content-Type: text/plain\nX-RateLimit-Limit: 5000\nX-RateLimit-Remaining: 4987\nX-RateLimit-Reset: 1767357061")
	ietf := header("Content-Type: text/plain\nRateLimit-Policy: \"burst\";q=100;w=60, \"daily\";q=1000;w=86400\nRateLimit: \"burst\";r=50;t=30, \"daily\";r=10")
	run := func(name string, h http.Header) {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				headers.Parse(h, noon)
			}
		})
	}
	run("nothing", http.Header{"Content-Type": {"text/plain"}})
	run("XRateLimit", github)
	run("IETF", ietf)
	for _, c := range hostile {
		run(c.name, c.of(1<<20))
	}
}

func ExampleParse() {
	response := http.Header{}
	response.Set("RateLimit-Policy", `"burst";q=100;w=60, "daily";q=1000;w=86400`)
	response.Set("RateLimit", `"burst";r=0;t=12, "daily";r=640`)
	response.Set("Retry-After", "12")

	advice, retryAfter := headers.Parse(response, time.Now())
	for _, a := range advice {
		fmt.Printf("%s: %d of %d %s per %v left, more in %v\n", a.Name, a.Remaining, a.Limit, a.Unit, a.Window, a.ResetAfter)
	}
	fmt.Println("come again in", retryAfter)
	// Output:
	// burst: 0 of 100 requests per 1m0s left, more in 12s
	// daily: 640 of 1000 requests per 24h0m0s left, more in 0s
	// come again in 12s
}

// takesBurst reports whether the algorithm of a limit does not ignore its Burst.
func takesBurst(l weir.Limit) bool {
	one, two := l.WithBurst(1), l.WithBurst(2)
	return one.Capacity() != two.Capacity()
}

// TestDelete: Delete deletes and returns what any Dialect sends, except for Retry-After.
func TestDelete(t *testing.T) {
	for dialect := headers.XRateLimit; dialect < headers.None; dialect <<= 1 {
		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Headers: dialect, Rules: []weir.Rule{
			{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, 1000*time.Hour)}},
			{Name: "tokens", Key: weir.Global(), Unit: "project-tokens", Limits: []weir.Limit{algorithms.FixedWindow(9, 1000*time.Hour)}},
		}})
		if err != nil {
			t.Fatal(err)
		}
		limit := limiter.Handler(http.NotFoundHandler())
		limit.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		w := httptest.NewRecorder()
		limit.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		h := w.Header()
		const spelled = "x-ratelimit-LIMIT"
		h[spelled] = []string{"1"}
		deleted := headers.Delete(h)
		for name := range h {
			if name = strings.ToLower(name); strings.Contains(name, "rate") {
				t.Errorf("dialect %#x: %s stays", dialect, name)
			}
		}
		//lint:ignore SA1008 code that writes into the map may spell it so
		if len(deleted) < 3 || deleted[spelled] == nil || h.Get("Retry-After") == "" || h.Get("Content-Type") == "" {
			t.Errorf("dialect %#x: deleted %v of %v", dialect, deleted, h)
		}
	}
}
