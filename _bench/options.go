package main

import (
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
)

// A variant is a plain Limiter with one option. The plain Limiter has one GCRA limit for each
// client address, in memory.
type variant struct {
	name    string
	why     string // the reason, if it takes more than atMost, or allocates more than the plain Limiter
	refused bool   // its requests are refused, and compared with those that the plain Limiter refuses

	// change changes the options of the plain Limiter, whose only rule has only the limit l;
	// nil changes nothing.
	change func(o *weir.Options, l weir.Limit)

	request func(r *http.Request)                              // changes each request; nil changes none
	wrap    func(l *weir.Limiter, o weir.Options) http.Handler // replaces the handler l.Handler(ok), if not nil
}

// fieldValues is the reason for allocations of a Dialect whose values are new each time.
const fieldValues = "new strings for the field values"

// atMost is how many times as long as a plain request a request with an option may take without
// a reason in the table.
const atMost = 1.5

var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })

// open returns a handler that limits the requests to ok.
func (v *variant) open() http.Handler {
	l := algorithms.GCRA(plenty/10, time.Second)
	if v.refused {
		l = algorithms.GCRA(1, 1000*time.Hour)
	}
	o := weir.Options{
		Rules:  []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{l}}},
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)),
	}
	if v.change != nil {
		v.change(&o, l)
	}
	limiter := must(weir.New(memstore.New(memstore.Options{}), o))
	if v.wrap != nil {
		return v.wrap(limiter, o)
	}
	return limiter.Handler(ok)
}

// rule returns a change of the only rule.
func rule(change func(r *weir.Rule, l weir.Limit)) func(*weir.Options, weir.Limit) {
	return func(o *weir.Options, l weir.Limit) { change(&o.Rules[0], l) }
}

func dialect(d headers.Dialect) func(*weir.Options, weir.Limit) {
	return func(o *weir.Options, _ weir.Limit) { o.Headers = d }
}

// tiers returns a Policy that chooses limits by a header field.
func tiers(limits ...weir.Limit) func(*http.Request) weir.Policy {
	byTier := map[string]weir.Policy{"": weir.Limited(limits...), "gold": weir.Limited(algorithms.GCRA(1000, time.Minute))}
	return func(r *http.Request) weir.Policy { return byTier[r.Header.Get("Tier")] }
}

// periods returns n limits with periods and quotas of their own: none of them is redundant.
func periods(l weir.Limit, n int) []weir.Limit {
	limits := make([]weir.Limit, n)
	for i := range limits {
		limits[i] = algorithms.GCRA(l.Quota*int64(i+2)/4, l.Period*time.Duration(i+1))
	}
	return limits
}

// manyRules returns n rules like the first one, with names of their own.
func manyRules(n int) func(*weir.Options, weir.Limit) {
	return func(o *weir.Options, _ weir.Limit) {
		for i := range n - 1 {
			r := o.Rules[0]
			r.Name = fmt.Sprint("r", i)
			o.Rules = append(o.Rules, r)
		}
	}
}

func byKey(key weir.KeyFunc) func(*weir.Options, weir.Limit) {
	return rule(func(r *weir.Rule, _ weir.Limit) { r.Key = key })
}

func field(name, value string) func(*http.Request) {
	values := []string{value}
	return func(r *http.Request) { r.Header[name] = values }
}

// A jsonBody is a body that each request reads from its beginning.
type jsonBody struct{ strings.Reader }

func (*jsonBody) Close() error { return nil }

func login() func(*http.Request) {
	const text = `{"email":"ann@example.com","password":"correct horse battery staple"}`
	b := &jsonBody{}
	return func(r *http.Request) {
		b.Reset(text)
		r.Body, r.ContentLength = b, int64(len(text))
	}
}

func preflight(r *http.Request) {
	r.Method = http.MethodOptions
	r.Header["Origin"], r.Header["Access-Control-Request-Method"] = origin, put
}

var origin, put = []string{"https://example.com"}, []string{"PUT"}

// penalty bans a key after some strikes.
func penalty(strikes int64) func(*weir.Options, weir.Limit) {
	return rule(func(r *weir.Rule, _ weir.Limit) {
		r.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(strikes, time.Minute), Duration: 24 * time.Hour}
	})
}

// overridden gives a key a limit of its own.
func overridden(key string) func(*weir.Options, weir.Limit) {
	return rule(func(r *weir.Rule, l weir.Limit) {
		l.Quota /= 2
		r.ForKey = must(overrides.New(overrides.Entry{Key: key, Limits: []weir.Limit{l}})).ForKey
	})
}

// A noNetwork is a RoundTripper that answers at once.
type noNetwork struct{ res http.Response }

func (n *noNetwork) RoundTrip(*http.Request) (*http.Response, error) { return &n.res, nil }

// sends sends each request through a Transport.
func sends(l *weir.Limiter, _ weir.Options) http.Handler {
	t := must(l.Transport(weir.TransportOptions{Base: &noNetwork{http.Response{StatusCode: http.StatusOK, Body: http.NoBody}}}))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if res, err := t.RoundTrip(r); err == nil {
			w.WriteHeader(res.StatusCode)
		}
	})
}

// client is the address of all requests.
const client = "192.0.2.1"

var variants = []variant{
	{name: "plain"},
	{name: "plain, refused", refused: true},

	{name: "`NoFromContext`", change: func(o *weir.Options, _ weir.Limit) { o.NoFromContext = true }},
	{name: "`Observe`", change: func(o *weir.Options, _ weir.Limit) { o.Observe = func(weir.Event) {} }},
	{name: "`Observe`, refused", refused: true, change: func(o *weir.Options, _ weir.Limit) { o.Observe = func(weir.Event) {} }},
	{name: "`MaxWait`, nobody waits", why: "the general path; a place in the queue is taken and released", change: func(o *weir.Options, _ weir.Limit) { o.MaxWait = time.Second }},
	{name: "`FreePreflights`, another request", change: func(o *weir.Options, _ weir.Limit) { o.Rules[0].FreePreflights = true }},
	{name: "`FreePreflights`, a preflight", why: "reads nine fields of the request", request: preflight, change: func(o *weir.Options, _ weir.Limit) { o.Rules[0].FreePreflights = true }},
	{name: "`headers.Exposed`", change: func(o *weir.Options, _ weir.Limit) { o.Headers = headers.Exposed }},
	{name: "`OnLimited`, refused", why: "the handler gets the decision in a copy of the request, as for an allowed request", refused: true, change: func(o *weir.Options, _ weir.Limit) { o.OnLimited = http.HandlerFunc(weir.Refuse) }},

	{name: "`headers.IETF`", why: fieldValues, change: dialect(headers.IETF)},
	{name: "`headers.Draft07`", why: fieldValues, change: dialect(headers.Draft07)},
	{name: "`headers.Draft06`", change: dialect(headers.Draft06)},
	{name: "`headers.GitHub`", change: dialect(headers.GitHub)},
	{name: "`headers.OpenAI`", why: fieldValues, change: dialect(headers.OpenAI)},
	{name: "`headers.Anthropic`", why: fieldValues, change: dialect(headers.Anthropic)},
	{name: "`headers.Twitter`", change: dialect(headers.Twitter)},
	{name: "`headers.None`", change: dialect(headers.None)},
	{name: "`headers.IETF`, refused", why: fieldValues, refused: true, change: dialect(headers.IETF)},

	{name: "`Policy`, one limit", why: "the request is copied, with a context that is not cancelled when the client hangs up, and the limit is looked up by its value", change: rule(func(r *weir.Rule, l weir.Limit) { r.Limits, r.Policy = nil, tiers(l) })},
	{name: "`Policy`, two limits", why: "the same, and two states", change: rule(func(r *weir.Rule, l weir.Limit) { r.Limits, r.Policy = nil, tiers(periods(l, 2)...) })},
	{name: "`ForKey`, another key", why: "the general path; the table is read for each request", change: overridden("198.51.100.7")},
	{name: "`ForKey`, the key", why: "the same, and the prepared limits of the key are looked up", change: overridden(client)},
	{name: "lists of `Allowed` and `Denied`, another key", why: "the general path; each list parses the address in the key, once", change: rule(func(r *weir.Rule, _ weir.Limit) {
		r.ForKey = weir.When(must(weir.KeyList("198.51.100.7")), weir.Allowed(), weir.When(must(weir.KeyList("198.51.100.8")), weir.Denied()))
	})},
	{name: "`Denied`, the key", refused: true, change: rule(func(r *weir.Rule, _ weir.Limit) { r.ForKey = weir.When(must(weir.KeyList(client)), weir.Denied()) })},
	{name: "`Denied` networks, another address", why: "the general path; the request is copied, and the client's address is found and parsed again", change: rule(func(r *weir.Rule, _ weir.Limit) {
		r.Policy = weir.When(must(weir.AddrList(weir.ClientAddr(), "198.51.100.0/24")), weir.Denied())
	})},
	{name: "`Cost`", change: rule(func(r *weir.Rule, _ weir.Limit) { r.Cost = func(*http.Request) int64 { return 2 } })},
	{name: "`Settle`, the cost stays", why: "the ResponseWriter is wrapped, and the decision is kept until the handler returns, so its memory is not reused", change: rule(func(r *weir.Rule, _ weir.Limit) { r.Settle = weir.RefundErrors })},
	{name: "`Settle`, a refund", why: "the same, and a second call of the store", change: rule(func(r *weir.Rule, _ weir.Limit) { r.Settle = weir.ChargeOnly(http.StatusTeapot) })},
	{name: "`Enforce: weir.Percent(0)`", why: "keeps the charges in shadow apart, in separate memory", change: rule(func(r *weir.Rule, _ weir.Limit) { r.Enforce = weir.Percent(0) })},
	{name: "`Penalty`", why: "the general path; the store looks up a second limit, the ban, whose code is slower than GCRA", change: penalty(10)},
	{name: "`Penalty`, a strike", why: "a second call of the store, which counts the strike", refused: true, change: penalty(1 << 24)},
	{name: "`Penalty`, banned", refused: true, change: penalty(1)},
	{name: "`RetryJitter`, refused", refused: true, change: rule(func(r *weir.Rule, _ weir.Limit) { r.RetryJitter = time.Second })},

	{name: "requests in flight", why: "a second call of the store releases the unit, and a timer renews it; the decision is kept meanwhile", change: rule(func(r *weir.Rule, _ weir.Limit) { r.Limits = []weir.Limit{algorithms.InFlight(1000, time.Minute)} })},
	{name: "three limits", why: "three states", change: rule(func(r *weir.Rule, l weir.Limit) { r.Limits = periods(l, 3) })},
	{name: "three rules", why: "three keys and three states", change: manyRules(3)},
	{name: "twenty rules", why: "twenty keys and twenty states", change: manyRules(20)},
	{name: "two Limiters, one in the other", why: "two decisions; the inner Limiter writes the fields of both", wrap: func(l *weir.Limiter, o weir.Options) http.Handler {
		o.Rules[0].Name = "inner"
		return l.Handler(must(weir.New(memstore.New(memstore.Options{}), o)).Handler(ok))
	}},
	{name: "`Transport`", why: "a second limit, the pause; the response is checked for a pause, and the memory is not reused", wrap: sends},

	{name: "key behind two trusted proxies", why: "parses three addresses, and compares each with the trusted prefixes", change: byKey(weir.ByIP(netip.MustParsePrefix(client+"/32"), netip.MustParsePrefix("10.0.0.0/8"))),
		request: field("X-Forwarded-For", "203.0.113.9, 198.51.100.7, 10.0.0.2")},
	{name: "key of 129 bytes, hashed", why: "SHA-256 of three blocks, and a new string", change: byKey(weir.ByHeader("X-Key")), request: field("X-Key", strings.Repeat("k", 129))},
	{name: "`weir.Hashed`", why: "HMAC-SHA256 of four blocks, and a new string", change: byKey(weir.Hashed([]byte("16 random bytes."), weir.ByHeader("X-Key"))), request: field("X-Key", "k-1234567890")},
	{name: "`weir.ByJSON`, 70 bytes", why: "reads the body, checks that it is JSON, and keeps it for the handler", change: byKey(weir.ByJSON("email", 4096)), request: login()},
	{name: "`Join` of two keys", why: "a new string", change: byKey(weir.Join(weir.ByIP(), weir.ByMethod()))},
	{name: "`FirstOf`, the second key", why: "a new string", change: byKey(weir.FirstOf(weir.ByHeader("X-Key"), weir.ByIP()))},
}

// optionsTable measures what a request costs with each option.
func optionsTable(o options) ([]*table, error) {
	rounds := o.pick(400, 1)
	t := &table{title: "Options", place: "options", header: []string{"option", "ns", "× plain", "allocations", "bytes", "why"},
		note: fmt.Sprintf("The times are the minimum of %d alternating rounds on %s. The ratios compare them with the plain minimum. In brackets is the median of each round's ratio, which includes garbage collections.", rounds, time.Now().Format("2 January 2006"))}
	type contender struct {
		http.Handler
		r    *http.Request
		want int
		costs
	}
	contenders := make([]contender, len(variants))
	for i := range variants {
		c := &contenders[i]
		c.Handler, c.r, c.want = variants[i].open(), httptest.NewRequest("GET", "/", nil), http.StatusOK
		c.r.RemoteAddr = client + ":4711"
		if variants[i].refused {
			c.want = http.StatusTooManyRequests
		}
	}
	_, err := interleave(len(variants), rounds, func(i int) (float64, error) {
		c := &contenders[i]
		ns, err := c.measure(c, c.r, variants[i].request, 500, c.want)
		if err != nil {
			err = fmt.Errorf("%s: %w", variants[i].name, err)
		}
		return ns, err
	})
	if err != nil {
		return nil, err
	}
	for i := range variants {
		v, c, plain := &variants[i], &contenders[i], &contenders[0]
		if v.refused {
			plain = &contenders[1]
		}
		t.add(v.name, fmt.Sprintf("%.0f", c.ns.least()), fmt.Sprintf("%.2f (%.2f)", c.ns.least()/plain.ns.least(), c.ns.over(plain.ns).median()),
			fmt.Sprintf("%.0f", c.allocs.median()), fmt.Sprintf("%.0f", c.bytes.median()), v.why)
	}
	return []*table{t}, nil
}
