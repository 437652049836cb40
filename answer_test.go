package weir_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strconv"
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
