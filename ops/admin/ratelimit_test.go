package admin_test

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/quota"
)

// TestRateLimit: RateLimit shows the quota of the caller under each kind of rule. The clock of
// synctest begins at 2000-01-01, Unix time 946684800.
func TestRateLimit(t *testing.T) {
	none := func(*http.Request) (string, bool) { return "", false }
	two := weir.Rule{Name: "two", Key: byUser, Limits: []weir.Limit{algorithms.AnchoredWindow(100, time.Hour), algorithms.AnchoredWindow(8, time.Minute)}}
	priced := hourly("priced", 10)
	priced.Cost = func(*http.Request) int64 { return 3 }
	listed := hourly("listed", 5)
	listed.ForKey = weir.When(func(key string) bool { return key == "anna" }, weir.Allowed())
	shadow := hourly("shadow", 5)
	shadow.Enforce = weir.Percent(0)
	banning := hourly("banning", 1)
	banning.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: 2 * time.Hour}
	denying := hourly("denying", 5)
	denying.ForKey = func(string) weir.Policy { return weir.Denied() }
	hidden := weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.AnchoredWindow(9, time.Hour)}, Private: true}
	deniesHidden := denying
	deniesHidden.Private = true
	settled := hourly("settled", 5)
	settled.Settle = func(weir.Outcome) int64 { return 5 }
	tiers := weir.Rule{Name: "tiers", Key: byUser, Policy: func(r *http.Request) weir.Policy {
		return map[string]weir.Policy{"anna": weir.Limited(algorithms.AnchoredWindow(7, time.Hour)), "bad": weir.Limited(weir.Limit{}), "ben": weir.Unlimited()}[r.Header.Get("X-User")]
	}}
	for _, tt := range []struct {
		name   string
		rules  []weir.Rule
		user   string
		spend  int
		status int
		want   string
	}{
		{"one", []weir.Rule{hourly("api", 5)}, "anna", 2, 200, `{"resources":{"api":{"limit":5,"used":2,"remaining":3,"reset":946688400}},"rate":{"limit":5,"used":2,"remaining":3,"reset":946688400}}`},
		{"spent", []weir.Rule{hourly("api", 5)}, "anna", 9, 200, `{"resources":{"api":{"limit":5,"used":5,"remaining":0,"reset":946688400}},"rate":{"limit":5,"used":5,"remaining":0,"reset":946688400}}`},
		{"the tightest", []weir.Rule{two}, "anna", 2, 200, `{"resources":{"two":{"limit":8,"used":2,"remaining":6,"reset":946684860}},"rate":{"limit":8,"used":2,"remaining":6,"reset":946684860}}`},
		{"the first is rate", []weir.Rule{hourly("web", 4), hourly("api", 5)}, "anna", 1, 200, `{"resources":{"api":{"limit":5,"used":1,"remaining":4,"reset":946688400},"web":{"limit":4,"used":1,"remaining":3,"reset":946688400}},"rate":{"limit":4,"used":1,"remaining":3,"reset":946688400}}`},
		{"private", []weir.Rule{hidden, hourly("api", 5)}, "anna", 2, 200, `{"resources":{"api":{"limit":5,"used":2,"remaining":3,"reset":946688400}},"rate":{"limit":5,"used":2,"remaining":3,"reset":946688400}}`},
		{"only private", []weir.Rule{hidden}, "anna", 2, 200, `{"resources":{}}`},
		{"denied by a private rule", []weir.Rule{deniesHidden}, "anna", 0, 429, `{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal Usage Detected","status":429}`},
		{"costs", []weir.Rule{priced}, "anna", 1, 200, `{"resources":{"priced":{"limit":10,"used":3,"remaining":7,"reset":946688400}},"rate":{"limit":10,"used":3,"remaining":7,"reset":946688400}}`},
		{"settled", []weir.Rule{settled}, "anna", 0, 200, `{"resources":{"settled":{"limit":5,"used":0,"remaining":5,"reset":946684800}},"rate":{"limit":5,"used":0,"remaining":5,"reset":946684800}}`},
		{"no rule applies", []weir.Rule{hourly("api", 5)}, "", 0, 200, `{"resources":{}}`},
		{"a rule that does not apply", []weir.Rule{{Name: "none", Key: none, Limits: two.Limits}}, "anna", 0, 200, `{"resources":{}}`},
		{"allowed", []weir.Rule{listed}, "anna", 0, 200, `{"resources":{}}`},
		{"shadow", []weir.Rule{shadow}, "anna", 1, 200, `{"resources":{}}`},
		{"tiers", []weir.Rule{tiers}, "anna", 1, 200, `{"resources":{"tiers":{"limit":7,"used":1,"remaining":6,"reset":946688400}},"rate":{"limit":7,"used":1,"remaining":6,"reset":946688400}}`},
		{"a tier without limits", []weir.Rule{tiers}, "ben", 1, 200, `{"resources":{}}`},
		{"a tier that is wrong", []weir.Rule{tiers}, "bad", 0, 503, `{"title":"Service Unavailable","status":503,"detail":"the store failed"}`},
		{"banned", []weir.Rule{banning}, "anna", 2, 200, `{"resources":{"banning":{"limit":1,"used":1,"remaining":0,"reset":946692000}},"rate":{"limit":1,"used":1,"remaining":0,"reset":946692000}}`},
		{"denied", []weir.Rule{denying}, "anna", 0, 429, `{"type":"https://iana.org/assignments/http-problem-types#abnormal-usage-detected","title":"Abnormal Usage Detected","status":429}`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				store := memstore.New(memstore.Options{})
				l := must(t, store, tt.rules...)
				spend(l, tt.user, tt.spend)
				h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Logger: slog.New(slog.DiscardHandler)})
				if err != nil {
					t.Fatal(err)
				}
				for range 2 { // RateLimit spends nothing, so both answers are the same
					w := send(http.HandlerFunc(h.RateLimit), "GET", "/rate_limit", "", "X-User", tt.user)
					if got := strings.TrimSpace(w.Body.String()); w.Code != tt.status || got != tt.want {
						t.Errorf("got %d\n%s\nwant %d\n%s", w.Code, got, tt.status, tt.want)
					}
				}
			})
		})
	}
}

// TestShareOfReplica: while each replica counts its share, /rate_limit and /explain show the share, like
// header fields, and no units as spent that others may spend.
func TestShareOfReplica(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := quota.Share(memstore.New(memstore.Options{}), 4)
		api := hourly("api", 100)
		api.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(8, time.Minute), Duration: time.Hour}
		l := must(t, store, api)
		h := newAdmin(t, store, l)
		send(l.Handler(http.NotFoundHandler()), "GET", "/", "", "X-User", "anna")
		want := `"api":{"limit":25,"used":1,"remaining":24,`
		if got := send(http.HandlerFunc(h.RateLimit), "GET", "/rate_limit", "", "X-User", "anna").Body.String(); !strings.Contains(got, want) {
			t.Errorf("/rate_limit: got %s, want %s", got, want)
		}
		want = `"quota":25,"period":3600,"burst":25,"remaining":24,"next_after":3600,"reset_after":3600,"spent":1}`
		if got := send(h, "GET", "/explain?rule=api&key=anna", "").Body.String(); !strings.Contains(got, want) || strings.Contains(got, "refusals that bring a ban") {
			t.Errorf("/explain: got %s, want %s", got, want)
		}
	})
}

// TestRateLimitBehindAnother: behind an outer limiter, RateLimit shows only the limiters of its
// Handler, and does not change the header fields of the outer limiter.
func TestRateLimitBehindAnother(t *testing.T) {
	store := memstore.New(memstore.Options{})
	none := hourly("none", 5)
	none.Key = func(*http.Request) (string, bool) { return "", false }
	h := newAdmin(t, store, must(t, store, none), must(t, store, hourly("api", 5)))
	outer := must(t, store, hourly("outer", 9)).Handler(http.HandlerFunc(h.RateLimit))
	w := send(outer, "GET", "/rate_limit", "", "X-User", "anna")
	if got := w.Body.String(); !strings.HasPrefix(got, `{"resources":{"api":{"limit":5,"used":0,"remaining":5,`) || strings.Contains(got, "outer") {
		t.Errorf("got %s, want api alone", got)
	}
	if got := w.Header().Get("X-RateLimit-Limit"); got != "9" {
		t.Errorf("got X-RateLimit-Limit: %s, want that of the outer limiter, 9", got)
	}
	if w := send(http.HandlerFunc(h.RateLimit), "POST", "/rate_limit", ""); w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
		t.Errorf("POST: got %d, Allow: %s", w.Code, w.Header().Get("Allow"))
	}
}

// TestRateLimitWarnsOfNothing: requests to RateLimit, which cost nothing, look like no misconfiguration.
func TestRateLimitWarnsOfNothing(t *testing.T) {
	store, log := memstore.New(memstore.Options{}), new(weirtest.Log)
	l := must(t, store, hourly("api", 5))
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Logger: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{"anna", ""} {
		for range 300 {
			send(http.HandlerFunc(h.RateLimit), "GET", "/rate_limit", "", "X-User", user)
		}
	}
	if log.String() != "" {
		t.Errorf("got the log %q, want none", log)
	}
}

// TestRateLimitFailures: while the store fails, requests of clients cause one line a second.
func TestRateLimitFailures(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := new(weirtest.Log)
		memory := memstore.New(memstore.Options{})
		store := weirtest.StoreFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if tx.Mode == quota.ModePeek { // the look-up of a ban
				return errors.New("down")
			}
			return memory.Take(ctx, tx)
		})
		rule := hourly("api", 5)
		rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute}
		l := must(t, store, rule)
		h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Logger: slog.New(slog.NewTextHandler(log, nil))})
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			if w := send(http.HandlerFunc(h.RateLimit), "GET", "/rate_limit", "", "X-User", "anna"); w.Code != 503 {
				t.Fatalf("got %d, want 503", w.Code)
			}
		}
		if lines := strings.Count(log.String(), "err=down"); lines != 1 {
			t.Errorf("got %d lines, want 1:\n%s", lines, log)
		}
	})
}
