package admin_test

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/config"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
	"github.com/seed83679106/weir/quota"
)

// An answered is what the tests read of an answer of /explain or /state.
type answered struct {
	Detail string
	Rules  []struct {
		Rule, Unchecked string
		LookedUp        *string `json:"looked_up"`
		Overridden      bool
		Limits          []struct {
			Name             string
			Quota, Remaining int64
			Classes          map[string]int64
		}
		Refused                *bool
		Because, Unknown, Past []string
	}
}

func answerOf(t *testing.T, h http.Handler, method, target, body string) (code int, a answered) {
	t.Helper()
	w := send(h, method, target, body)
	if err := json.Unmarshal(w.Body.Bytes(), &a); err != nil {
		t.Fatalf("%s %s: %v in %s", method, target, err, w.Body)
	}
	return w.Code, a
}

// TestExplainLooksUp: /explain looks up what the rule looks up for a request of the client: the
// /64 or the hash of an address, the digest of a long key, and the lists of addresses. It names
// the key, and what cannot be known.
func TestExplainLooksUp(t *testing.T) {
	long := strings.Repeat("a", 200)
	for name, store := range map[string]func(t *testing.T) weir.Store{
		"memory": func(*testing.T) weir.Store { return weirtest.Memory() },
		"Redis":  func(t *testing.T) weir.Store { return weirtest.Redis(t, redistest.Server(t).Addr(), 10*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			live := overrides.NewLive(overrides.LiveOptions{})
			one := []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)}
			secret := []byte("a secret of the program")
			s := store(t)
			l := must(t, s,
				weir.Rule{Name: "ip", Key: weir.ByIP(), Limits: one},
				weir.Rule{Name: "hash", Key: weir.Hashed(secret, weir.ByIP()), Limits: one},
				weir.Rule{Name: "user", Key: byUser, Limits: one, ForKey: live.Of("user", nil), Policy: weir.When(live.DenyFrom("user", weir.ClientAddr()), weir.Denied())},
				weir.Rule{Name: "office", Key: byUser, Limits: one, Policy: weir.When(func(r *http.Request) bool { return r.Header["X-Never"][0] == "set" }, weir.Allowed())},
			)
			h, err := admin.New(s, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Overrides: live, Logger: slog.New(slog.DiscardHandler)})
			if err != nil {
				t.Fatal(err)
			}
			from := func(addr, user string) {
				r := httptest.NewRequest("GET", "/", nil)
				r.RemoteAddr, r.Header["X-User"], r.Header["X-Never"] = addr, []string{user}, []string{""}
				l.Handler(served).ServeHTTP(httptest.NewRecorder(), r)
			}
			from("[2001:db8:1:2::5]:4711", long)
			from("192.0.2.1:4711", "alice")
			if w := send(h, "POST", "/ban?rule=user&network=203.0.113.0/24", `{"seconds": 600}`); w.Code != 200 {
				t.Fatal(w.Body)
			}
			hashed, _ := weir.Hashed(secret, weir.ByIP())(&http.Request{RemoteAddr: "192.0.2.1:1"})
			digest := (&quota.Charge{Key: long}).StoredKey()
			const yes, no, unknown = "refused", "passes", "not known"
			const list, shape, whole = "a list or the Policy of the rule may allow or deny the client by ", "this may be no key of the rule", "the key is a digest"
			for _, tt := range []struct {
				rule, key, from string
				lookedUp        string
				want            string
				unknown         string
			}{
				{"ip", "2001:db8:1:2::/64", "", "", yes, ""},
				{"ip", "2001:db8:1:2::9", "", "2001:db8:1:2::/64", yes, ""},
				{"ip", "2001:db8:1:3::9", "", "2001:db8:1:3::/64", no, ""},
				{"ip", "::ffff:192.0.2.1", "", "192.0.2.1", yes, ""},
				{"ip", "2001:db8::/32", "", "", unknown, `no request has this key: a request from 2001:db8:: has the key "2001:db8::/64"`},
				{"hash", "192.0.2.1", "", hashed, yes, ""},
				{"hash", hashed, "", "", yes, ""},
				{"user", "alice", "198.51.100.7", "", yes, ""},
				{"user", long, "198.51.100.7", "", yes, ""},
				{"user", digest, "198.51.100.7", "", yes, whole},
				{"user", "bob", "", "", unknown, list},
				{"user", "bob", "203.0.113.7", "", yes, ""},
				{"user", "bob", "::ffff:203.0.113.7", "", yes, ""},
				{"user", "bob", "198.51.100.7", "", no, ""},
				{"user", "203.0.113.7", "", "", yes, ""},
				{"user", "198.51.100.7", "", "", unknown, shape},
				{"office", "bob", "198.51.100.7", "", unknown, list},
			} {
				q := url.Values{"rule": {tt.rule}, "key": {tt.key}}
				if tt.from != "" {
					q.Set("from", tt.from)
				}
				code, a := answerOf(t, h, "GET", "/explain?"+q.Encode(), "")
				if code != 200 {
					t.Fatalf("%v: got %d, %s", q, code, a.Detail)
				}
				r, got, lookedUp := a.Rules[0], unknown, ""
				if r.Refused != nil {
					got = map[bool]string{true: yes, false: no}[*r.Refused]
				}
				if r.LookedUp != nil {
					lookedUp = *r.LookedUp
				}
				says := slices.ContainsFunc(r.Unknown, func(s string) bool { return strings.HasPrefix(s, tt.unknown) })
				if got != tt.want || lookedUp != tt.lookedUp || len(r.Unknown) > 0 != (tt.unknown != "") || tt.unknown != "" && !says {
					t.Errorf("%v: got %s, looked up %q, unknown %q; want %+v", q, got, lookedUp, r.Unknown, tt)
				}
			}
			if code, a := answerOf(t, h, "GET", "/explain?key=a&from=b", ""); code != 400 || a.Detail != `from is "b"; want an address` {
				t.Errorf("got %d, %s", code, a.Detail)
			}
		})
	}
}

// TestExplainClasses: /state says what is left to each class, and /explain which classes are refused.
// The page shows both.
func TestExplainClasses(t *testing.T) {
	store := memstore.New(memstore.Options{})
	l := weirtest.New(t, store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(10, 1000*time.Hour).Named("total")},
		Class: weir.ByHeader("Class"), Headroom: map[string]int{"batch": 25, "nightly": 75},
	}}})
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }})
	if err != nil {
		t.Fatal(err)
	}
	for range 4 {
		weirtest.Do(l.Handler(http.NotFoundHandler()), weirtest.Get("Class: batch"))
	}
	_, a := answerOf(t, h, "GET", "/explain?rule=api&key=", "")
	r := &a.Rules[0]
	if got, want := fmt.Sprint(r.Limits[0].Remaining, r.Limits[0].Classes), "6 map[batch:3 nightly:0]"; got != want {
		t.Errorf("got %s left, want %s", got, want)
	}
	want := "requests of the class nightly are refused: they leave 75% of the limit total to others, which has 6 of 10 units left"
	if got := strings.Join(r.Because, "; "); got != want || r.Refused == nil || *r.Refused {
		t.Errorf("got %q, refused %v; want %q and false", got, r.Refused, want)
	}
	for path, want := range map[string]string{
		"/rules":                  `"headroom":{"batch":25,"nightly":75}`,
		"/?tab=rules":             "class batch leaves 25%; class nightly leaves 75%",
		"/?tab=key&rule=api&key=": "class batch: 3 left; class nightly: 0 left",
	} {
		if got := send(h, "GET", path, "").Body.String(); !strings.Contains(got, want) {
			t.Errorf("%s: want %q in %s", path, want, got)
		}
	}
}

// TestExplainUnnamed: if the operator does not name a rule, each rule looks up its own key of the
// client: a customer behind the address of an office that floods does not pass.
func TestExplainUnnamed(t *testing.T) {
	store := memstore.New(memstore.Options{})
	one := []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)}
	l := must(t, store,
		weir.Rule{Name: "client", Key: weir.ByIP(), Limits: one},
		weir.Rule{Name: "user", Key: byUser, Limits: one},
		weir.Rule{Name: "everybody", Key: weir.Global(), Limits: []weir.Limit{algorithms.AnchoredWindow(9, time.Hour)}},
	)
	h := newAdmin(t, store, l)
	spend(l, "flood", 5) // from 192.0.2.1
	const yes, no, unknown = "refused", "passes", "not known"
	for _, tt := range []struct {
		query    string
		want     [3]string
		lookedUp [3]string
	}{
		{"key=anna&from=192.0.2.1", [3]string{yes, no, no}, [3]string{"192.0.2.1", "-", ""}},
		{"key=anna&from=198.51.100.7", [3]string{no, no, no}, [3]string{"198.51.100.7", "-", ""}},
		{"key=anna&from=2001:db8::1", [3]string{no, no, no}, [3]string{"2001:db8::/64", "-", ""}},
		{"key=anna", [3]string{unknown, no, no}, [3]string{"-", "-", ""}},
		{"key=flood", [3]string{unknown, yes, no}, [3]string{"-", "-", ""}},
		{"key=192.0.2.1", [3]string{yes, unknown, no}, [3]string{"-", "-", ""}},
	} {
		code, a := answerOf(t, h, "GET", "/explain?"+tt.query, "")
		if code != 200 || len(a.Rules) != 3 {
			t.Fatalf("%s: got %d, %+v", tt.query, code, a)
		}
		for i, r := range a.Rules {
			got, lookedUp := unknown, "-"
			if r.Refused != nil {
				got = map[bool]string{true: yes, false: no}[*r.Refused]
			}
			if r.LookedUp != nil {
				lookedUp = *r.LookedUp
			}
			if got != tt.want[i] || lookedUp != tt.lookedUp[i] {
				t.Errorf("%s, %s: got %s of %q, want %s of %q (unknown: %q)", tt.query, r.Rule, got, lookedUp, tt.want[i], tt.lookedUp[i], r.Unknown)
			}
		}
	}
	if _, a := answerOf(t, h, "GET", "/explain?rule=client&key=anna&from=192.0.2.1", ""); a.Rules[0].LookedUp != nil {
		t.Error("a key of a rule that the query names was replaced")
	}
	page := send(h, "GET", "/?key=anna&from=192.0.2.1", "").Body.String()
	for _, want := range []string{`client: <span class="no">refused</span>`, `Looked up: <bdi class="key">192.0.2.1</bdi>`, "All requests share one key under this rule."} {
		if !strings.Contains(page, want) {
			t.Errorf("the page lacks %s", want)
		}
	}
	without := send(h, "GET", "/?key=anna", "").Body.String()
	_, client, _ := strings.Cut(without, "client: <span")
	if client, _, _ = strings.Cut(client, "</section>"); !strings.Contains(client, "Not known: the rule counts clients by their address, which is not given.") || strings.Contains(client, "<table") || strings.Contains(client, "do=") {
		t.Errorf("without the address of the client, the page offers changes of what is no key: %s", client)
	}
	if n := strings.Count(page, "All clients at this address, such as the users of an office, share the key."); n != 1 {
		t.Errorf("the page says of %d rules that an address is shared, want 1", n)
	}
}

// TestExplainUnnamedKey: a key of a rule is looked up as it is typed, also if the operator does not name the
// rule and the rule falls back to the address of a client, or derives its keys from it.
func TestExplainUnnamedKey(t *testing.T) {
	plain := func(r *http.Request) (string, bool) { // the keys of users and addresses have no prefixes
		if user := r.Header.Get("X-User"); user != "" {
			return user, true
		}
		return weir.ByIP()(r)
	}
	for name, key := range map[string]weir.KeyFunc{
		"FirstOf": weir.FirstOf(byUser, weir.ByIP()),
		"Join":    weir.Join(weir.ByIP(), func(r *http.Request) (string, bool) { return r.Method, true }),
		"Hashed":  weir.Hashed([]byte("a secret of the program"), weir.ByIP()),
		"plain":   plain,
		"or all":  weir.FirstOf(byUser, weir.Global()),
	} {
		store, recorder, quiet := memstore.New(memstore.Options{}), watch.NewRecorder(10, 1), slog.New(slog.DiscardHandler)
		rule := weir.Rule{Name: name, Key: key, Limits: []weir.Limit{algorithms.AnchoredWindow(1, time.Hour)}}
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{rule}, Observe: recorder.Observe, Logger: quiet})
		if err != nil {
			t.Fatal(err)
		}
		o := admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Logger: quiet}
		if name == "plain" {
			o.Recorder = recorder // which knows the key
		}
		h, err := admin.New(store, o)
		if err != nil {
			t.Fatal(err)
		}
		spend(l, "anna", 2)
		found, _ := recorder.Top(time.Minute)
		doubt := "[]"
		if o.Recorder == nil {
			doubt = "[this may be no key of the rule: name the rule if it is one]"
			if _, a := answerOf(t, h, "GET", "/explain?key=bob&from=192.0.2.1", ""); a.Rules[0].Refused != nil {
				t.Errorf("%s: got %+v for what is no key of the rule, want that it is not known", name, a.Rules[0])
			}
		}
		for _, from := range []string{"", "&from=198.51.100.7"} {
			_, a := answerOf(t, h, "GET", "/explain?key="+url.QueryEscape(found[0].Key)+from, "")
			if r := a.Rules[0]; r.Refused == nil || !*r.Refused || r.LookedUp != nil || fmt.Sprint(r.Unknown) != doubt {
				t.Errorf("%s, %q%s: got %+v, want refused, nothing else looked up, and unknown %s", name, found[0].Key, from, r, doubt)
			}
		}
	}
}

// TestExplainDenied: /explain says that an override denies a key only if one does, not if the deny list of
// a file does.
func TestExplainDenied(t *testing.T) {
	store, live := memstore.New(memstore.Options{}), overrides.NewLive(overrides.LiveOptions{})
	files := fstest.MapFS{"r.yaml": {Data: []byte("limits: [{name: api, key: 'header:X-User', deny: [mallory, al1], config: [{limit: 5, period: 1h}]}]")}}
	f, err := config.Open("r.yaml", store, config.Options{FS: files, Overrides: live, Limiter: weir.Options{Logger: slog.New(slog.DiscardHandler)}})
	if err != nil {
		t.Fatal(err)
	}
	f.Handler("api")
	const list, override = "[a list or an override of the rule denies the key]", "[an override denies the key, such as a ban by an operator]"
	for _, o := range []admin.Options{{}, {Overrides: live}} {
		o.Limiters, o.Logger = f.Limiters, slog.New(slog.DiscardHandler)
		h, err := admin.New(store, o)
		if err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"mallory": list}
		if o.Overrides != nil {
			send(h, "POST", "/override?rule=api&prefix=al", `{"limits": [{"quota": 9}]}`)
			send(h, "POST", "/override?rule=api&key=eve", `{"denied": true}`)
			want["al1"], want["eve"] = list, override
		}
		for key, want := range want {
			if _, a := answerOf(t, h, "GET", "/explain?rule=api&key="+key, ""); fmt.Sprint(a.Rules[0].Because) != want {
				t.Errorf("Options.Overrides %v, %s: got %q, want %s", o.Overrides != nil, key, a.Rules[0].Because, want)
			}
		}
	}
}

// TestExplainPast: /explain says that a key was banned before, and how many refusals count towards
// the next ban.
func TestExplainPast(t *testing.T) {
	bans := func(t *testing.T, store weir.Store, d time.Duration) (past func() []string) {
		rule := hourly("login", 1)
		rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(2, time.Hour), Duration: d}
		l := must(t, store, rule)
		h := newAdmin(t, store, l)
		past = func() []string {
			_, a := answerOf(t, h, "GET", "/explain?key=eve", "")
			return a.Rules[0].Past
		}
		var got []string
		for _, n := range []int{0, 2, 1} { // the third request begins a ban
			spend(l, "eve", n)
			got = append(got, fmt.Sprint(past()))
		}
		if want := []string{"[]", "[1 of the 2 refusals that bring a ban are counted]"}; !slices.Equal(got[:2], want) {
			t.Errorf("got %q, want %q", got, want)
		}
		return past
	}
	synctest.Test(t, func(t *testing.T) {
		past := bans(t, memstore.New(memstore.Options{}), 12*time.Hour)
		if got := past(); len(got) > 0 {
			t.Errorf("banned: got %q", got)
		}
		time.Sleep(36 * time.Hour)
		if got := fmt.Sprint(past()); got != "[the last ban of the key ended 24h ago]" {
			t.Errorf("got %q", got)
		}
	})
	t.Run("Redis", func(t *testing.T) {
		past := bans(t, weirtest.Redis(t, redistest.Server(t).Addr(), 10*time.Second), time.Millisecond)
		got := past()
		for len(got) == 0 { // the ban lasts for a millisecond
			got = past()
		}
		if !strings.HasPrefix(got[0], "the last ban of the key ended ") || !strings.HasSuffix(got[0], "s ago") {
			t.Errorf("got %q", got)
		}
	})
}

// TestOverrideOfTiers: a customer in a tier gets a larger quota by its quota alone.
// If Options.Policy is not set, the answer says what was not checked.
func TestOverrideOfTiers(t *testing.T) {
	tiers := map[string][]weir.Limit{
		"alice": {algorithms.AnchoredWindow(1, time.Hour)},
		"pro":   {algorithms.AnchoredWindow(1, time.Hour), algorithms.GCRA(9, time.Minute)},
	}
	tier := func(key string) weir.Policy {
		if limits, ok := tiers[key]; ok {
			return weir.Limited(limits...)
		}
		return weir.Unlimited()
	}
	for _, known := range []bool{true, false} {
		store, live := memstore.New(memstore.Options{}), overrides.NewLive(overrides.LiveOptions{})
		l, err := weir.New(store, weir.Options{Logger: slog.New(slog.DiscardHandler), Rules: []weir.Rule{{
			Name: "api", Key: byUser, ForKey: live.Of("api", nil),
			Policy: func(r *http.Request) weir.Policy { return tier(r.Header.Get("X-User")) },
		}}})
		if err != nil {
			t.Fatal(err)
		}
		o := admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Overrides: live, Logger: slog.New(slog.DiscardHandler)}
		if known {
			o.Policy = func(_ context.Context, _, key string) (weir.Policy, error) { return tier(key), nil }
		}
		h, err := admin.New(store, o)
		if err != nil {
			t.Fatal(err)
		}
		if n := spend(l, "alice", 2); n != 1 {
			t.Fatalf("%d served", n)
		}
		for _, tt := range []struct {
			key, body   string
			code        int // if Options.Policy is set
			codeUnknown int
			detail      string
		}{
			{"alice", `{"limits": [{"quota": 3}]}`, 200, 200, ""},
			{"pro", `{"limits": [{"quota": 3}]}`, 400, 200, `the Algorithm is nil, and the limit replaces none of the limits "1h", "1m"`},
			{"pro", `{"limits": [{"quota": 3}, {"quota": 4}]}`, 400, 200, ``},
			{"pro", `{"limits": [{"name": "1h", "quota": 3}, {"period": 60, "quota": 4}]}`, 200, 200, ""},
			{"stranger", `{"limits": [{"quota": 3}]}`, 400, 200, "the Algorithm is nil"},
			{"pro", `{"limits": [{"algorithm": "gcra", "quota": 9007199254740993, "period": 3600}]}`, 400, 200, "can be counted"},
			{"stranger", `{"limits": [{"algorithm": "gcra", "quota": 3, "period": 60}]}`, 200, 200, ""},
			{"mallory", `{"denied": true}`, 200, 200, ""},
		} {
			code, a := answerOf(t, h, "POST", "/override?rule=api&key="+url.QueryEscape(tt.key), tt.body)
			want := tt.code
			if !known {
				want = tt.codeUnknown
			}
			if code != want || known && !strings.Contains(a.Detail, tt.detail) {
				t.Errorf("Options.Policy %v: %s %s: got %d, %s; want %d, %s", known, tt.key, tt.body, code, a.Detail, want, tt.detail)
			}
			unchecked := !known && !strings.Contains(tt.body, "denied")
			if code == 200 && len(a.Rules) > 0 && (a.Rules[0].Unchecked != "") != unchecked {
				t.Errorf("Options.Policy %v: %s %s: got %q", known, tt.key, tt.body, a.Rules[0].Unchecked)
			}
		}
		if got := send(h, "POST", "/override?rule=api&prefix=x", `{"limits": [{"quota": 3}]}`).Body.String(); !strings.Contains(got, `"unchecked":"the override was not compared`) {
			t.Errorf("got %s", got)
		}
		if n := spend(l, "alice", 9); n != 2 {
			t.Errorf("%d served after the quota was raised from 1 to 3, want 2", n)
		}
		if known {
			if _, a := answerOf(t, h, "GET", "/state?key=alice", ""); fmt.Sprint(a.Rules[0].Limits) != "[{1h 3 0 map[]}]" {
				t.Errorf("got %v", a.Rules[0].Limits)
			}
		}
	}
}

// TestOverrideWithoutEffect: an override or a ban that can have no effect is refused, and the
// answer says what is missing.
func TestOverrideWithoutEffect(t *testing.T) {
	store, live := memstore.New(memstore.Options{}), overrides.NewLive(overrides.LiveOptions{})
	table, err := overrides.New(overrides.Entry{Key: "alice", Unlimited: true})
	if err != nil {
		t.Fatal(err)
	}
	without, other, with, penal := hourly("without", 2), hourly("other", 2), hourly("with", 2), hourly("penal", 2)
	other.ForKey, with.ForKey = table.ForKey, live.Of("with", table.ForKey)
	penal.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(5, time.Hour), Duration: time.Minute}
	l := must(t, store, without, other, with, penal)
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Overrides: live, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	const hook, network = "set the ForKey of the rule to a function of overrides.Live.Of", "set Options.Overrides, and the Policy of the rule to one of weir.When and overrides.Live.DenyFrom"
	for _, tt := range []struct {
		path, rule, key, body string
		code                  int
		want                  string
	}{
		{"override", "without", "a", `{"limits": [{"quota": 5}]}`, 409, hook},
		{"override", "without", "a", `{"denied": true}`, 409, hook},
		{"override", "other", "a", `{"unlimited": true}`, 409, hook},
		{"override", "missing", "a", `{"denied": true}`, 404, `there is no rule "missing"`},
		{"override", "with", "a", `{"denied": true}`, 200, ""},
		{"override", "with", "/192.0.2.0/24", `{"denied": true}`, 409, network},
		{"override", "with", "192.0.2.0/24", `{"limits": [{"quota": 5}]}`, 200, ""}, // a key
		{"ban", "with", "/192.0.2.0/24", `{"seconds": 60}`, 409, network},
		{"ban", "penal", "/192.0.2.0/24", `{"seconds": 60}`, 409, network},
		{"ban", "with", "a", `{"seconds": 60}`, 409, `has no penalty`},
		{"ban", "penal", "a", `{"seconds": 60}`, 200, ""},
	} {
		q := url.Values{"rule": {tt.rule}, "key": {tt.key}}
		if network, ok := strings.CutPrefix(tt.key, "/"); ok {
			q = url.Values{"rule": {tt.rule}, "network": {network}}
		}
		w := send(h, "POST", "/"+tt.path+"?"+q.Encode(), tt.body)
		var p struct{ Detail string }
		json.Unmarshal(w.Body.Bytes(), &p)
		if w.Code != tt.code || !strings.Contains(p.Detail, tt.want) {
			t.Errorf("%s %s under %s, %s: got %d, %s, want %d, %s", tt.path, tt.key, tt.rule, tt.body, w.Code, p.Detail, tt.code, tt.want)
		}
	}
	page := send(h, "GET", "/?rule=without&key=a", "").Body.String()
	if strings.Contains(page, "Set limit") {
		t.Error("the page offers an override that would have no effect")
	}
}

// TestKeysInJSON: keys that are not valid UTF-8 can be told apart and changed, and no character of a key
// changes how an answer looks in a terminal.
func TestKeysInJSON(t *testing.T) {
	store, recorder := memstore.New(memstore.Options{}), watch.NewRecorder(100, 1)
	rule := hourly("api", 1)
	rule.Key = weir.ByHeader("X-Key")
	live := overrides.NewLive(overrides.LiveOptions{})
	rule.ForKey = live.Of("api", nil)
	l, err := weir.New(store, weir.Options{Rules: []weir.Rule{rule}, Observe: recorder.Observe, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Recorder: recorder, Overrides: live})
	if err != nil {
		t.Fatal(err)
	}
	keys := []string{"\xffa", "\xfea", "\u202eb\U000e0041\u0085"}
	for _, key := range keys {
		for range 2 {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-Key", key)
			l.Handler(served).ServeHTTP(httptest.NewRecorder(), r)
		}
	}
	for _, key := range keys {
		if w := send(h, "POST", "/override?rule=api&key="+url.QueryEscape(key), `{"denied": true}`); w.Code != 200 {
			t.Fatal(w.Body)
		}
	}
	for _, list := range []string{"top", "refusals", "overrides"} {
		text := send(h, "GET", "/"+list, "").Body.String()
		if strings.ContainsFunc(text, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }) {
			t.Errorf("/%s: got %q, want escapes", list, text)
		}
		var answer map[string]json.RawMessage
		var entries []struct{ Key, Query string }
		if err := errors.Join(json.Unmarshal([]byte(text), &answer), json.Unmarshal(answer[list], &entries)); err != nil {
			t.Fatal(err)
		}
		found := map[string]bool{}
		for _, e := range entries {
			q, err := url.ParseQuery(e.Query)
			if key := q.Get("key"); err != nil || (e.Query == "") != utf8.ValidString(key) || e.Query != "" && q.Get("rule") != "api" {
				t.Errorf("/%s: got %+v", list, e)
			}
			found[cmp.Or(q.Get("key"), e.Key)] = true
		}
		if len(found) != 3 || !found[keys[0]] || !found[keys[1]] || !found[keys[2]] {
			t.Errorf("/%s: got %+v, want the three keys", list, entries)
		}
	}
	page := send(h, "GET", "/", "").Body.String()
	for _, key := range []string{`>\xffa<`, `>\xfea<`, `>\u202eb\U000e0041\u0085<`} {
		if !strings.Contains(page, key) {
			t.Errorf("the page has no %s", key)
		}
	}
}
