package weir_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestNoKey: a request without a key is not limited, limited together with the other requests
// without a key, or refused, as the rule says. Whatever a client sends as its key, it cannot
// spend the quota of the requests without a key.
func TestNoKey(t *testing.T) {
	key := func(r *http.Request) (string, bool) { return r.Header.Get("Key"), len(r.Header["Key"]) > 0 }
	for _, c := range []struct {
		noKey    weir.NoKey
		statuses string // of two requests with each of the keys, and then two without one
		reasons  string
	}{
		{weir.NoKeySkip, "200 429 200 429 200 429 200 429 200 200", "limit limit limit limit"},
		{weir.NoKeyShare, "200 429 200 429 200 429 200 429 200 429", "limit limit limit limit limit"},
		{weir.NoKeyRefuse, "200 429 200 429 200 429 200 429 400 400", "limit limit limit limit no-key no-key"},
	} {
		var reasons, statuses []string
		rule := weir.Rule{Name: "api", Key: key, NoKey: c.noKey, Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}
		l := must(t, memory(), weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.DiscardHandler), Observe: func(e weir.Event) {
			if e.Refusal.Reason != 0 {
				reasons = append(reasons, e.Refusal.Reason.String())
			}
		}})
		h := l.Handler(served)
		for _, k := range []string{"", "\x00", "\x00\x00", "ann", "no key"} {
			for range 2 {
				r := ask("/", "192.0.2.1:4")
				if k != "no key" {
					r.Header["Key"] = []string{k}
				}
				res := do(h, r)
				statuses = append(statuses, fmt.Sprint(res.StatusCode))
				if body, _ := io.ReadAll(res.Body); res.StatusCode == 400 &&
					(res.Header.Get("Retry-After") != "" || !strings.Contains(string(body), `"type":"about:blank"`)) {
					t.Errorf("NoKey %d: got Retry-After %q and %s", c.noKey, res.Header.Get("Retry-After"), body)
				}
			}
		}
		if got := strings.Join(statuses, " "); got != c.statuses {
			t.Errorf("NoKey %d: got %s, want %s", c.noKey, got, c.statuses)
		}
		if got := strings.Join(reasons, " "); got != c.reasons {
			t.Errorf("NoKey %d: got the reasons %s, want %s", c.noKey, got, c.reasons)
		}
	}
}

// TestNoKeyRefuseBeside: Allowed exempts a request without a key, a longer refusal of
// another rule is told instead, and in shadow nothing is refused.
func TestNoKeyRefuseBeside(t *testing.T) {
	says := func(p weir.Policy) func(*http.Request) weir.Policy {
		return func(*http.Request) weir.Policy { return p }
	}
	for name, c := range map[string]struct {
		change func(r *weir.Rule)
		want   int
	}{
		"plain":     {func(r *weir.Rule) {}, 400},
		"Allowed":   {func(r *weir.Rule) { r.Policy = says(weir.Allowed()) }, 200},
		"Denied":    {func(r *weir.Rule) { r.Policy = says(weir.Denied()) }, 429},
		"Unlimited": {func(r *weir.Rule) { r.Policy = says(weir.Unlimited()) }, 400},
		"Limited":   {func(r *weir.Rule) { r.Policy = says(weir.Limited(r.Limits...)) }, 400},
		"Enforce":   {func(r *weir.Rule) { r.Enforce = weir.Percent(0) }, 200},
		"Status":    {func(r *weir.Rule) { r.Status = 503 }, 400},
	} {
		rule := weir.Rule{Name: "api", Key: weir.ByHeader("Key"), NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}
		c.change(&rule)
		spent := 0
		l := must(t, memory(), weir.Options{Observe: func(e weir.Event) { spent += len(e.Transaction.Charges) }, Rules: []weir.Rule{
			{Name: "address", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(9, time.Hour)}}, rule}})
		if got := do(l.Handler(served), ask("/", "192.0.2.1:4")).StatusCode; got != c.want || (spent == 1) != (c.want == 200) {
			t.Errorf("%s: got %d and %d charges, want %d", name, got, spent, c.want)
		}
	}
	if _, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), NoKey: 3, Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}}}); err == nil {
		t.Error("got no error for NoKey 3")
	}
}

// TestSilence: a rule that limits none of its requests says so once, with the likely reason,
// within its first 200 requests.
func TestSilence(t *testing.T) {
	type account struct{}
	limit := []weir.Limit{algorithms.GCRA(10_000, time.Hour)}
	tiers := map[string]weir.Policy{"free": weir.Limited(limit...), "gold": weir.Limited(limit...), "staff": weir.Unlimited()}
	tier := func(r *http.Request) weir.Policy { return tiers[r.Header.Get("Tier")] }
	zero := func(*http.Request) int64 { return 0 }
	first := func(n int) func(*http.Request) int64 {
		return func(*http.Request) int64 { n--; return int64(max(0, -n)) }
	}
	fixed := func(n int64) func(*http.Request) int64 { return func(*http.Request) int64 { return n } }
	fallsTo := func(n int) func(*http.Request) int64 {
		return func(*http.Request) int64 { n--; return 1 + 10_000*int64(min(1, max(0, n+1))) }
	}
	settle := func(o weir.Outcome) int64 { return 5 }
	lastly := func(n int) weir.KeyFunc {
		return func(*http.Request) (string, bool) {
			n--
			return map[bool]string{true: "batch", false: "people"}[n < 0], true
		}
	}
	classed := func(class weir.KeyFunc, listed string) weir.Rule {
		return weir.Rule{Key: weir.ByIP(), Limits: limit, Class: class, Headroom: map[string]int{listed: 30}}
	}
	named := func(again int) func(*http.Request) weir.Policy { // only request number again has an earlier name
		n := 0
		return func(*http.Request) weir.Policy {
			if n++; n == again {
				return weir.Limited(limit[0].Named("1"))
			}
			return weir.Limited(limit[0].Named(fmt.Sprint(n)))
		}
	}
	quotas := func() func(*http.Request) weir.Policy { // each request has another quota under one name
		n := int64(0)
		return func(*http.Request) weir.Policy {
			n++
			return weir.Limited(algorithms.GCRA(1000+n, time.Hour).Named("hourly"))
		}
	}
	withAccount := ask("/", "192.0.2.1:4")
	withAccount = withAccount.WithContext(context.WithValue(withAccount.Context(), account{}, &account{}))
	for name, c := range map[string]struct {
		rule    weir.Rule
		request *http.Request
		want    string // part of the only line; "" means no line
	}{
		"a limiter before authentication":         {weir.Rule{Key: weir.ByContext(account{}), Limits: limit}, nil, "key missing in each"},
		"a context value that is no string":       {weir.Rule{Key: weir.ByContext(account{}), Limits: limit}, withAccount, "the value for ByContext is no string"},
		"a path value outside of the mux":         {weir.Rule{Key: weir.ByPathValue("room"), Limits: limit}, nil, "key missing in each"},
		"shared":                                  {weir.Rule{Key: weir.ByContext(account{}), NoKey: weir.NoKeyShare, Limits: limit}, nil, "key missing in each"},
		"refused":                                 {weir.Rule{Key: weir.ByContext(account{}), NoKey: weir.NoKeyRefuse, Limits: limit}, nil, "key missing in each"},
		"among other rules":                       {weir.Rule{Key: weir.ByContext(account{}), Limits: limit, ForKey: noPolicy}, nil, "key missing in each"},
		"a key in the last of the first requests": {weir.Rule{Key: after(199), Limits: limit}, nil, ""},
		"five tries by the developer":             {weir.Rule{Key: after(5), Limits: limit}, ask("/", "127.0.0.1:4"), "key missing in each of the first 5 requests"},
		"many tries by the developer":             {weir.Rule{Key: after(1000), Limits: limit}, ask("/", "127.0.0.1:4"), "key missing in each of the first 5 requests"},
		"four tries by the developer":             {weir.Rule{Key: after(4), Limits: limit}, ask("/", "[::1]:4"), ""},
		"five tries through a proxy":              {weir.Rule{Key: after(5), Limits: limit}, ask("/", "127.0.0.1:4", "X-Forwarded-For", "192.0.2.1"), ""},
		"five tries from elsewhere":               {weir.Rule{Key: after(5), Limits: limit}, nil, ""},
		"five tries that are refused":             {weir.Rule{Key: after(5), NoKey: weir.NoKeyRefuse, Limits: limit}, ask("/", "127.0.0.1:4"), ""},
		"a key that comes later":                  {weir.Rule{Key: after(200), Limits: limit}, nil, "key missing in each"},
		"a tier":                                  {weir.Rule{Key: weir.ByIP(), Policy: tier}, ask("/", "192.0.2.1:4", "Tier", "gold"), ""},
		"a name for each request":                 {weir.Rule{Key: weir.ByIP(), Policy: named(0)}, nil, "another limit in each of the first 200 requests"},
		"a quota for each request":                {weir.Rule{Key: weir.ByIP(), Policy: quotas()}, nil, ""},
		"a name that is used again":               {weir.Rule{Key: weir.ByIP(), Policy: named(199)}, nil, ""},
		"a tier without limits on purpose":        {weir.Rule{Key: weir.ByIP(), Policy: tier}, ask("/", "192.0.2.1:4", "Tier", "staff"), ""},
		"an empty key":                            {weir.Rule{Key: func(*http.Request) (string, bool) { return "", true }, Limits: limit}, nil, "key empty"},
		"a key with the port of the peer":         {weir.Rule{Key: func(r *http.Request) (string, bool) { return r.RemoteAddr, true }, Limits: limit}, nil, "port of the peer in a key"},
		"the port among other parts of a key":     {weir.Rule{Key: weir.Join(weir.ByMethod(), func(r *http.Request) (string, bool) { return r.RemoteAddr, true }), Limits: limit}, ask("/", "[2001:db8::1]:4"), "port of the peer in a key"},
		"Global":                                  {weir.Rule{Key: weir.Global(), Limits: limit}, nil, ""},
		"a class that Headroom spells otherwise":  {classed(weir.ByHeader("Tier"), "batch"), ask("/", "192.0.2.1:4", "Tier", "Batch"), "class not in Headroom\" rule=api effect=\"its requests leave nothing to others\" likely=\"Headroom has batch with"},
		"a class that Headroom lacks":             {classed(weir.ByHeader("Tier"), "batch"), ask("/", "192.0.2.1:4", "Tier", "bulk"), "class without headroom in each of the first 200 requests with a class"},
		"a class with headroom":                   {classed(weir.ByHeader("Tier"), "batch"), ask("/", "192.0.2.1:4", "Tier", "batch"), ""},
		"no class":                                {classed(weir.ByHeader("Tier"), "batch"), nil, ""},
		"a class with headroom, at last":          {classed(lastly(199), "batch"), nil, ""},
		"urgencies without headroom":              {classed(weir.ByUrgency(), "7"), nil, ""},
		"a cost of 0":                             {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: zero}, nil, "cost 0 in each"},
		"a cost of 0 with Settle":                 {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: zero, Settle: settle}, nil, "cost 0 in each"},
		"a cost of ContentLength, chunked":        {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: func(r *http.Request) int64 { return -1 }}, nil, "cost negative"},
		"a cost above each limit":                 {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: fixed(10_001)}, nil, "cost above the capacity of a limit"},
		"a cost above each limit, in shadow":      {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: fixed(10_001), Enforce: weir.Percent(0)}, nil, "cost above the capacity of a limit"},
		"a cost above one of two limits":          {weir.Rule{Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Hour), algorithms.GCRA(10, time.Minute)}, Cost: fixed(11)}, nil, "cost above the capacity of a limit"},
		"a cost of all that a limit has":          {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: fixed(10_000)}, nil, ""},
		"a cost above a concurrency limit":        {weir.Rule{Key: weir.ByIP(), Limits: []weir.Limit{algorithms.InFlight(5, time.Minute)}, Cost: fixed(6)}, nil, "cost above the capacity of a limit"},
		"a cost that fits in the 200th request":   {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: fallsTo(199)}, nil, ""},
		"a cost above 0 in the 200th request":     {weir.Rule{Key: weir.ByIP(), Limits: limit, Cost: first(199)}, nil, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var log weirtest.Log
			c.rule.Name = "api"
			h := must(t, memory(), weir.Options{Rules: []weir.Rule{c.rule}, Logger: slog.New(slog.NewTextHandler(&log, nil))}).Handler(served)
			if c.request == nil {
				c.request = ask("/", "192.0.2.1:4")
			}
			for range 1000 {
				do(h, c.request)
			}
			lines := strings.Count(log.String(), "\n")
			if c.want == "" && lines > 0 || c.want != "" && (lines != 1 || !strings.Contains(log.String(), c.want) || !strings.Contains(log.String(), "rule=api effect=")) {
				t.Errorf("got %q, want %q in one line", log.String(), c.want)
			}
		})
	}
}

// TestSilenceOfFull: a concurrency limit that others fill is not one that a cost exceeds, although
// its RetryAfter is Never too.
func TestSilenceOfFull(t *testing.T) {
	var log weirtest.Log
	store, o := memory(), weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Cost: func(*http.Request) int64 { return 2 }, Limits: []weir.Limit{algorithms.InFlight(3, time.Minute)},
	}}}
	a, err := must(t, store, o).Admit(ask("/", "192.0.2.1:4"))
	if err != nil {
		t.Fatal(err)
	}
	defer a.Done(weir.Outcome{})
	full := must(t, store, o)
	for range 250 {
		if a, err := full.Admit(ask("/", "192.0.2.1:4")); err == nil {
			t.Fatalf("got %+v, want a refusal", a)
		}
	}
	if log.String() != "" {
		t.Errorf("got the log %q, want none", log.String())
	}
}

// TestWriteTimeout: a MaxWait that the server's WriteTimeout does not allow is logged once.
func TestWriteTimeout(t *testing.T) {
	for _, c := range []struct {
		maxWait, deadline, writeTimeout time.Duration
		want                            int // lines
	}{
		{10 * time.Second, 0, 5 * time.Second, 1},
		{10 * time.Second, 0, 10 * time.Second, 1},
		{10 * time.Second, 3 * time.Second, 5 * time.Second, 0}, // an http.TimeoutHandler answers earlier
		{4 * time.Second, 0, 5 * time.Second, 0},
		{10 * time.Second, 0, 0, 0},
		{10 * time.Second, 0, -1, 0}, // there is no server
	} {
		var log weirtest.Log
		l := must(t, memory(), weir.Options{MaxWait: c.maxWait, Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(10, time.Minute)}}}})
		ctx := t.Context()
		if c.writeTimeout >= 0 {
			ctx = context.WithValue(ctx, http.ServerContextKey, &http.Server{WriteTimeout: c.writeTimeout})
		}
		if c.deadline > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, c.deadline)
			defer cancel()
		}
		for range 3 {
			do(l.Handler(served), ask("/", "192.0.2.1:4").WithContext(ctx))
		}
		if got := strings.Count(log.String(), "rule=api max_wait=10s timeout="); got != c.want || strings.Count(log.String(), "\n") != c.want {
			t.Errorf("%+v: got %q", c, log.String())
		}
	}
}

// after returns a KeyFunc that finds no key in the first n requests.
func after(n int) weir.KeyFunc {
	return func(*http.Request) (string, bool) { n--; return "ann", n < 0 }
}

// TestUnlimitedIsObserved: Observe gets requests that no rule charges, so that metrics count
// them.
func TestUnlimitedIsObserved(t *testing.T) {
	for _, rules := range [][]weir.Rule{
		{{Name: "api", Key: weir.ByHeader("Key"), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		{{Name: "api", Key: weir.ByHeader("Key"), Policy: func(*http.Request) weir.Policy { return weir.Unlimited() }}},
		{{Name: "api", Key: weir.ByHeader("Key"), Enforce: weir.Percent(0), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
	} {
		var charges []int
		h := must(t, memory(), weir.Options{Rules: rules, Observe: func(e weir.Event) { charges = append(charges, len(e.Transaction.Charges)) }}).Handler(served)
		do(h, ask("/", "192.0.2.1:4"))
		if !slices.Equal(charges, []int{0}) {
			t.Errorf("got events with %d charges, want one event with none", charges)
		}
	}
}

// TestRemade: New warns once if ten Limiters of one rule are made within a minute, as by a handler
// that makes one for each request, and not if they are made more slowly, as by reloads of a file.
func TestRemade(t *testing.T) {
	var log weirtest.Log
	run := rand.Text() // a process warns once about a name
	make := func(rule string) http.Handler {
		l, err := weir.New(memory(), weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Rules: []weir.Rule{{
			Name: rule + run, Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)},
		}}})
		if err != nil {
			t.Fatal(err)
		}
		return l.Handler(served)
	}
	for _, c := range []struct {
		name  string
		every time.Duration
		rule  func(i int) string
		warns int
	}{
		{"for each request", 0, func(int) string { return "remade at once" }, 1},
		{"for a request every six seconds", 6 * time.Second, func(int) string { return "remade often" }, 1},
		{"for a reload every seven seconds", 7 * time.Second, func(int) string { return "remade seldom" }, 0},
		{"for each tenant", 0, func(i int) string { return fmt.Sprint("tenant ", i) }, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			before := len(log.String())
			for i := range 30 {
				time.Sleep(c.every)
				if got := do(make(c.rule(i)), ask("/", "")).StatusCode; got != 200 {
					t.Fatalf("%s: got %d of a new Limiter, want 200", c.name, got)
				}
			}
			if got := strings.Count(log.String()[before:], "ten limiters of one rule made within a minute"); got != c.warns {
				t.Errorf("%s: got %d warnings, want %d: %s", c.name, got, c.warns, log.String()[before:])
			}
		})
	}
}

// TestTwoRulesOfOneName: New warns once if rules of the same name in two Limiters over one
// store share counts under different limits.
func TestTwoRulesOfOneName(t *testing.T) {
	run := rand.Text() // a process warns once about a name
	for name, c := range map[string]struct {
		first, second, third weir.Limit
		apart                bool // the stores are different
		want                 string
	}{
		"the same limits":    {algorithms.GCRA(5, time.Minute), algorithms.GCRA(5, time.Minute), algorithms.GCRA(5, time.Minute), false, ""},
		"another quota":      {algorithms.GCRA(5, time.Minute), algorithms.GCRA(50, time.Minute), algorithms.GCRA(500, time.Minute), false, `limits="1m: 50 per 1m0s (gcra)" other_limits="1m: 5 per 1m0s (gcra)"`},
		"another burst":      {algorithms.GCRA(5, time.Minute), algorithms.GCRA(5, time.Minute).WithBurst(9), algorithms.GCRA(5, time.Minute), false, "9 at once"},
		"another period":     {algorithms.GCRA(5, time.Minute), algorithms.GCRA(5, time.Hour), algorithms.GCRA(5, time.Second), false, ""},
		"a name and periods": {algorithms.GCRA(5, time.Minute).Named("a"), algorithms.GCRA(5, time.Hour).Named("a"), algorithms.GCRA(5, time.Hour).Named("a"), false, ""},
		"another algorithm":  {algorithms.GCRA(5, time.Minute), algorithms.FixedWindow(50, time.Minute), algorithms.SlidingLog(500, time.Minute), false, `other_limits="1m: 5 per 1m0s (gcra)" effect="the algorithms differ, so each counts alone"`},
		"another store":      {algorithms.GCRA(5, time.Minute), algorithms.GCRA(50, time.Minute), algorithms.GCRA(500, time.Minute), true, ""},
	} {
		var log weirtest.Log
		store := memory()
		var kept []*weir.Limiter
		for _, limit := range []weir.Limit{c.first, c.second, c.third} {
			if c.apart {
				store = memory()
			}
			l, err := weir.New(store, weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Rules: []weir.Rule{{Name: name + run, Key: weir.ByIP(), Limits: []weir.Limit{limit}}}})
			if err != nil {
				t.Fatal(err)
			}
			kept = append(kept, l)
		}
		if lines := strings.Count(log.String(), "\n"); c.want == "" && lines > 0 || c.want != "" && (lines != 1 || !strings.Contains(log.String(), c.want)) {
			t.Errorf("%s: got %q, want %q in one line", name, log.String(), c.want)
		}
		runtime.KeepAlive(kept)
	}
}

// TestNewIsStrict: New refuses what does nothing, as package config does.
func TestNewIsStrict(t *testing.T) {
	settle := func(o weir.Outcome) int64 { return o.Cost }
	strikes := func(l weir.Limit) *weir.Penalty { return &weir.Penalty{Strikes: l, Duration: time.Minute} }
	minute := algorithms.GCRA(10, time.Minute)
	for name, c := range map[string]struct {
		rule weir.Rule
		want string // the error; "" means none
	}{
		"a burst of a window":             {weir.Rule{Limits: []weir.Limit{algorithms.FixedWindow(10, time.Minute).WithBurst(5)}}, `weir: rule "api": limit "1m": burst is 5; want 0, because fixed-window has no burst`},
		"a burst as large as the quota":   {weir.Rule{Limits: []weir.Limit{algorithms.SlidingLog(10, time.Minute).WithBurst(10)}}, `weir: rule "api": limit "1m": burst is 10; want 0, because sliding-log has no burst`},
		"a burst of a calendar":           {weir.Rule{Limits: []weir.Limit{algorithms.Calendar(10, algorithms.Day, nil).WithBurst(5)}}, `weir: rule "api": limit "day": burst is 5; want 0, because calendar has no burst`},
		"a burst of requests in flight":   {weir.Rule{Limits: []weir.Limit{algorithms.InFlight(10, time.Minute).WithBurst(5)}}, `weir: rule "api": limit "1m": burst is 5; want 0, because in-flight has no burst`},
		"a burst of a bucket":             {weir.Rule{Limits: []weir.Limit{algorithms.LeakyBucket(5, 10, time.Minute)}}, ""},
		"a limit that never refuses":      {weir.Rule{Limits: []weir.Limit{minute, algorithms.FixedWindow(10_000, time.Hour)}}, `weir: rule "api": limit "1h" never refuses a request that limit "1m" admits: remove it or change its numbers`},
		"the same limit twice":            {weir.Rule{Limits: []weir.Limit{minute, minute.Named("again")}}, `weir: rule "api": limit "1m" never refuses a request that limit "again" admits: remove it or change its numbers`},
		"both limits can refuse":          {weir.Rule{Limits: []weir.Limit{minute, algorithms.FixedWindow(100, time.Hour)}}, ""},
		"an override may raise one limit": {weir.Rule{Limits: []weir.Limit{minute, algorithms.FixedWindow(10_000, time.Hour)}, ForKey: noPolicy}, ""},
		"a debt may exceed one limit":     {weir.Rule{Limits: []weir.Limit{minute, algorithms.FixedWindow(10_000, time.Hour)}, Settle: settle}, ""},
		"Settle of requests in flight":    {weir.Rule{Limits: []weir.Limit{algorithms.InFlight(10, time.Minute)}, Settle: settle}, `weir: rule "api": the Settle is set, but all limits are concurrency limits; want nil, because these release their units themselves`},
		"Settle next to them":             {weir.Rule{Limits: []weir.Limit{algorithms.InFlight(10, time.Hour), minute}, Settle: settle}, ""},
		"strikes of a leaky bucket":       {weir.Rule{Limits: []weir.Limit{minute}, Penalty: strikes(algorithms.LeakyBucket(5, 5, time.Minute))}, `weir: rule "api": penalty strikes: the algorithm is leaky-bucket; want one that can count strikes`},
		"strikes in flight":               {weir.Rule{Limits: []weir.Limit{minute}, Penalty: strikes(algorithms.InFlight(5, time.Minute))}, `weir: rule "api": penalty strikes: the algorithm is in-flight; want one that can count strikes`},
		"a burst of strikes":              {weir.Rule{Limits: []weir.Limit{minute}, Penalty: strikes(algorithms.AnchoredWindow(5, time.Minute).WithBurst(2))}, `weir: rule "api": penalty strikes: burst is 2; want 0, because anchored-window has no burst`},
	} {
		c.rule.Name, c.rule.Key = "api", weir.ByIP()
		_, err := weir.New(memory(), weir.Options{Rules: []weir.Rule{c.rule}})
		if got := fmt.Sprint(err); c.want == "" && err != nil || c.want != "" && got != c.want {
			t.Errorf("%s: got %s, want %q", name, got, c.want)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("ChargeOnly without a status does not panic")
			}
		}()
		weir.ChargeOnly()
	}()
}

// TestNestedLimiters: an outer Limiter bounds what runs between it and an inner one, because
// it keeps the units of requests that the inner one refuses. If all clients share these units,
// a warning says so once.
func TestNestedLimiters(t *testing.T) {
	for _, c := range []struct {
		outer, inner  weir.KeyFunc
		noFromContext bool
		want          string
	}{
		{weir.ByIP(), weir.ByHeader("User"), false, ""},
		{weir.Global(), weir.ByIP(), false, "rule=inner other_rule=outer"},
		{weir.Global(), weir.ByIP(), true, ""},
	} {
		var log weirtest.Log
		limiter := func(name string, key weir.KeyFunc, n int64) *weir.Limiter {
			return must(t, memory(), weir.Options{
				NoFromContext: c.noFromContext, Logger: slog.New(slog.NewTextHandler(&log, nil)),
				Rules: []weir.Rule{{Name: name, Key: key, Limits: []weir.Limit{algorithms.GCRA(n, time.Hour)}}},
			})
		}
		passwords, served := 0, 0
		inner := limiter("inner", c.inner, 5).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))
		h := limiter("outer", c.outer, 20).Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			passwords++ // an expensive check
			inner.ServeHTTP(w, r)
		}))
		for range 1000 {
			do(h, ask("/", "192.0.2.1:4", "User", "ann"))
		}
		if passwords != 20 || served != 5 {
			t.Errorf("got %d checks of passwords and %d requests served, want 20 and 5", passwords, served)
		}
		if lines := strings.Count(log.String(), "\n"); c.want == "" && lines > 0 || c.want != "" && (lines != 1 || !strings.Contains(log.String(), c.want)) {
			t.Errorf("got %q, want %q in one line", log.String(), c.want)
		}
	}
}

// TestDoubled: a Limiter around itself charges each request twice, and says so once.
func TestDoubled(t *testing.T) {
	for name, twice := range map[string]func(l *weir.Limiter) http.Handler{
		"Handler": func(l *weir.Limiter) http.Handler { return l.Handler(l.Handler(served)) },
		"Admit": func(l *weir.Limiter) http.Handler {
			return http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				if a, err := l.Admit(r); err == nil {
					l.Admit(r.WithContext(a.Context()))
				}
			})
		},
		"Admit in a Handler": func(l *weir.Limiter) http.Handler {
			return l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { l.Admit(r) }))
		},
		"Transport in a Handler": func(l *weir.Limiter) http.Handler {
			rt, _ := l.Transport(weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil })})
			return l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
				r = r.Clone(r.Context())
				r.RemoteAddr = "192.0.2.2:4" // another key
				rt.RoundTrip(r)
			}))
		},
	} {
		var log weirtest.Log
		h := twice(must(t, memory(), weir.Options{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Rules:  []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(20, time.Hour)}}},
		}))
		for range 30 {
			do(h, ask("/", "192.0.2.1:4"))
		}
		if got := log.String(); strings.Count(got, "\n") != 1 || !strings.Contains(got, "request charged twice by one Limiter") || !strings.Contains(got, "rule=api") {
			t.Errorf("%s: logged %q", name, got)
		}
	}
}

// TestBothDirections: a Limiter with one rule for incoming and one for outgoing requests charges no
// request twice.
func TestBothDirections(t *testing.T) {
	var log weirtest.Log
	rule := func(name string, outgoing bool) weir.Rule {
		key := func(r *http.Request) (string, bool) { return "all", (r.URL.Host != "") == outgoing }
		return weir.Rule{Name: name, Key: key, Limits: []weir.Limit{algorithms.GCRA(5, time.Hour)}}
	}
	l := must(t, memory(), weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil)), Rules: []weir.Rule{rule("in", false), rule("out", true)}})
	rt := transport(t, l, weir.TransportOptions{Base: roundTripper(func(*http.Request) (*http.Response, error) { return response(200), nil })})
	do(l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		r, _ = http.NewRequestWithContext(r.Context(), "GET", "http://example.com/", nil)
		if _, err := rt.RoundTrip(r); err != nil {
			t.Error(err)
		}
	})), ask("/", "192.0.2.1:4"))
	if log.String() != "" {
		t.Errorf("got %s", log.String())
	}
}

// TestRepeated: two Limiters around each other that charge one key under one rule say so once. They
// say nothing if the keys, the names or the stores differ.
func TestRepeated(t *testing.T) {
	for _, c := range []struct {
		name  string
		key   weir.KeyFunc
		alone bool // the inner Limiter has a store of its own
		want  int
	}{
		{"api", weir.ByIP(), false, 1},
		{"other", weir.ByIP(), false, 0},
		{"api", weir.ByMethod(), false, 0},
		{"api", weir.ByIP(), true, 0},
	} {
		var log weirtest.Log
		store := memory()
		inner := store
		if c.alone {
			inner = memory()
		}
		limiter := func(store weir.Store, rules ...weir.Rule) *weir.Limiter {
			return must(t, store, weir.Options{Rules: rules, Logger: slog.New(slog.NewTextHandler(&log, nil))})
		}
		hourly := []weir.Limit{algorithms.GCRA(5, time.Hour)}
		outer := limiter(store, weir.Rule{Name: "all", Key: weir.ByMethod(), Limits: hourly}, weir.Rule{Name: "api", Key: weir.ByIP(), Limits: hourly})
		h := outer.Handler(limiter(inner, weir.Rule{Name: c.name, Key: c.key, Limits: hourly}).Handler(served))
		for range 30 {
			do(h, ask("/", "192.0.2.1:4"))
		}
		if got := log.String(); strings.Count(got, "\n") != c.want || strings.Count(got, "request charged twice under one rule\" rule=api") != c.want {
			t.Errorf("%s, alone %v: got %q, want %d lines", c.name, c.alone, got, c.want)
		}
	}
}

// TestTimeoutHandler: an http.TimeoutHandler directly inside a concurrency limit, which it would make
// void, is logged. Around the limit, or inside another limit, it is not.
func TestTimeoutHandler(t *testing.T) {
	timeout := func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Second, "") }
	for name, c := range map[string]struct {
		limit weir.Limit
		open  func(l *weir.Limiter)
		want  int
	}{
		"inside":               {algorithms.InFlight(1, time.Minute), func(l *weir.Limiter) { l.Handler(timeout(served)); l.Handler(timeout(served)) }, 1},
		"around":               {algorithms.InFlight(1, time.Minute), func(l *weir.Limiter) { timeout(l.Handler(served)) }, 0},
		"inside another limit": {algorithms.GCRA(1, time.Minute), func(l *weir.Limiter) { l.Handler(timeout(served)) }, 0},
	} {
		var log weirtest.Log
		c.open(must(t, memory(), weir.Options{
			Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Rules:  []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{c.limit}}},
		}))
		if got := log.String(); strings.Count(got, "\n") != c.want || strings.Count(got, "TimeoutHandler inside a concurrency limit\" rule=api") != c.want {
			t.Errorf("%s: logged %q", name, got)
		}
	}
}

// TestStoreThatCannotBeCompared: New takes stores of one type whose values == cannot compare.
func TestStoreThatCannotBeCompared(t *testing.T) {
	type wrapper struct{ weir.Store } // its type is comparable, and what it holds is not
	var kept []*weir.Limiter
	for range 2 {
		kept = append(kept, must(t, wrapper{weirtest.StoreFunc(memory().Take)}, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(5, time.Minute)}}}}))
	}
	runtime.KeepAlive(kept)
}

// TestErrorLog: a store that fails for ten seconds causes ten log lines. Each later line
// says how many errors since the line before were not logged.
func TestErrorLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		h := must(t, failing{errors.New("away")}, weir.Options{
			Logger: slog.New(slog.NewTextHandler(&out, nil)),
			Rules:  []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)}}},
		}).Handler(served)
		for range 1000 {
			do(h, ask("/", ""))
			time.Sleep(10 * time.Millisecond)
		}
		if n := strings.Count(out.String(), "\n"); n != 10 {
			t.Errorf("1000 errors in 10 s are %d lines, want 10:\n%s", n, out.String())
		}
		if !strings.Contains(out.String(), `level=WARN msg="weir: request not decided" rule=api err=away cause=error passed=true unlogged=99`) {
			t.Errorf("got %s, want the error and how many more there were", out.String())
		}
	})
}

// TestErrorLogTask: a log line says what failed. If the request was decided, the line does
// not say that it could not be decided.
func TestErrorLogTask(t *testing.T) {
	givesBack := func(tx *quota.Transaction) bool {
		return slices.ContainsFunc(tx.Charges, func(c quota.Charge) bool { return c.Cost < 0 })
	}
	forces := func(tx *quota.Transaction) bool { return tx.Mode == quota.ModeForce }
	strikes := func(tx *quota.Transaction) bool {
		return slices.ContainsFunc(tx.Charges, func(c quota.Charge) bool { return c.Limit.Name == "penalty strikes" && c.Cost > 0 })
	}
	limits := []weir.Limit{algorithms.GCRA(2, time.Hour)}
	uncountable := []weir.Limit{algorithms.FixedWindow(math.MaxInt64, time.Hour)}
	settles := func(cost int64) weir.Rule {
		return weir.Rule{Limits: limits, Settle: func(weir.Outcome) int64 { return cost }}
	}
	for _, c := range []struct {
		fails func(*quota.Transaction) bool // with which transactions the store fails; nil means with none
		rule  weir.Rule
		want  string
	}{
		{func(*quota.Transaction) bool { return true }, weir.Rule{Limits: limits}, "request not decided"},
		{givesBack, settles(0), "units not refunded"},
		{forces, settles(2), "final cost not charged"},
		{forces, weir.Rule{Limits: []weir.Limit{algorithms.InFlight(9, time.Minute)}}, "request in flight not renewed"},
		{givesBack, weir.Rule{Limits: []weir.Limit{algorithms.InFlight(9, time.Minute)}}, "units not refunded"},
		{strikes, weir.Rule{Limits: limits, Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Hour), Duration: time.Hour}}, "strike not counted"},
		{nil, weir.Rule{Policy: func(*http.Request) weir.Policy { return weir.Limited(uncountable...) }}, "limit of Policy lowered"},
		{nil, weir.Rule{Limits: limits, ForKey: func(string) weir.Policy { return weir.Limited(uncountable...) }}, "policy of ForKey ignored"},
	} {
		synctest.Test(t, func(t *testing.T) {
			var out bytes.Buffer
			l := must(t, failingAt(c.fails), errorLogOptions(&out, c.rule))
			h := l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(40 * time.Second) }))
			for range 3 {
				do(h, ask("/", ""))
			}
			checkTask(t, out.String(), c.want)
		})
	}
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		pauses := func(tx *quota.Transaction) bool { return tx.Charges[0].Limit.Name == "pause" }
		l := must(t, failingAt(pauses), errorLogOptions(&out, weir.Rule{Limits: limits}))
		client := http.Client{Transport: transport(t, l, weir.TransportOptions{Base: &partner{answer: func(int, *http.Request) *http.Response { return response(503, "Retry-After", "9") }}})}
		client.Get("http://example.com/")
		checkTask(t, out.String(), "key not paused")
	})
}

// failingAt returns a store that fails with some transactions.
func failingAt(fails func(*quota.Transaction) bool) weir.Store {
	next := memstore.New(memstore.Options{})
	return storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if fails != nil && fails(tx) {
			return errDown
		}
		return next.Take(ctx, tx)
	})
}

func errorLogOptions(out *bytes.Buffer, rule weir.Rule) weir.Options {
	rule.Name, rule.Key = "api", weir.ByIP()
	return weir.Options{Rules: []weir.Rule{rule}, Logger: slog.New(slog.NewTextHandler(out, nil))}
}

// checkTask expects that each line of a log has a text, and that there is a line.
func checkTask(t *testing.T, log, want string) {
	t.Helper()
	want = `msg="weir: ` + want + `" rule=api err=`
	if n := strings.Count(log, want); n == 0 || n != strings.Count(log, "\n") {
		t.Errorf("got the log %q, want %s in each line", log, want)
	}
}
