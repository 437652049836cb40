package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
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

// TestRefusalTold: handlers get the same Refusal whether Observe is set or not, and Observe
// gets it too. Neither sees the charges that look up bans.
func TestRefusalTold(t *testing.T) {
	for _, observed := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			tellRefusals(t, observed)
		})
	}
}

// tellRefusals sends requests that a limit, a ban, a deny or a failed store refuses, and
// checks what handlers and observers get.
func tellRefusals(t *testing.T, observed bool) {
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
			told = tellRefusal(weir.FromContext(r.Context()))
			weir.Refuse(w, r)
		}),
		OnError: weir.FailClosed,
	}
	if observed {
		o.Observe = func(e weir.Event) {
			checkEvent(t, e)
			event = tellRefusal(&weir.Admission{Transaction: *e.Transaction, Refusal: e.Refusal})
		}
	}
	l := must(t, store, o)
	elsewhere := must(t, store, o)
	h := l.Handler(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		told = tellRefusal(weir.FromContext(r.Context()))
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

// tellRefusal returns a Refusal, with its charges, as text.
func tellRefusal(t *weir.Admission) string {
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
