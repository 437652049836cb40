package admin_test

import (
	"bytes"
	"fmt"
	"html"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/ops/watch"
)

// A site is a server with a limiter and, at /admin/, its admin handler with overrides and all
// observers. The rule api allows each user 2 requests an hour, has a penalty, and can deny
// networks. The rule ip is in shadow.
type site struct {
	t       *testing.T
	limiter *weir.Limiter
	admin   http.Handler
	server  *httptest.Server
	log     bytes.Buffer
}

func newSite(t *testing.T) *site {
	s := &site{t: t}
	store := memstore.New(memstore.Options{})
	live := overrides.NewLive(overrides.LiveOptions{})
	recorder := watch.NewRecorder(100, 1000)
	rule := hourly("api", 2)
	rule.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(5, time.Hour), Duration: 10 * time.Minute}
	rule.ForKey, rule.Policy = live.Of("api", nil), weir.When(live.DenyFrom("api", weir.ClientAddr()), weir.Denied())
	addresses := weir.Rule{Name: "ip", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Hour)}, Enforce: weir.Percent(0)}
	var err error
	s.limiter, err = weir.New(store, weir.Options{Rules: []weir.Rule{rule, addresses}, Observe: recorder.Observe})
	if err != nil {
		t.Fatal(err)
	}
	s.admin, err = admin.New(store, admin.Options{
		Limiters: func() []*weir.Limiter { return []*weir.Limiter{s.limiter} }, Overrides: live, File: file{},
		Recorder: recorder, Logger: slog.New(slog.NewTextHandler(&s.log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.Handle("/admin/", http.StripPrefix("/admin", s.admin))
	s.server = httptest.NewServer(mux)
	t.Cleanup(s.server.Close)
	return s
}

// from sends a request of a user from an address through the limiter, and returns the status.
func (s *site) from(user, addr string) int {
	r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
	r.Header.Set("X-User", user)
	r.RemoteAddr = addr + ":4711"
	s.limiter.Handler(served).ServeHTTP(w, r)
	return w.Code
}

// json sends a request to the admin handler, and checks the status and a part of the answer.
func (s *site) json(method, path, body string, code int, want string) {
	s.t.Helper()
	w := send(s.admin, method, path, body)
	if got := w.Body.String(); w.Code != code || !strings.Contains(got, want) {
		s.t.Errorf("%s %s: got %d, %s, want %d, %s", method, path, w.Code, got, code, want)
	}
}

// page requests the page of operators or, if form is not nil, posts the form and follows the
// redirect. It checks that the page has no inline scripts and styles.
func (s *site) page(query string, form url.Values, fields ...string) (status int, text string) {
	s.t.Helper()
	method, body := "GET", ""
	if form != nil {
		method, body = "POST", form.Encode()
	}
	r, err := http.NewRequest(method, s.server.URL+"/admin/"+query, strings.NewReader(body))
	if err != nil {
		s.t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	for i := 0; i < len(fields); i += 2 {
		r.Header.Set(fields[i], fields[i+1])
	}
	res, err := s.server.Client().Do(r)
	if err != nil {
		s.t.Fatal(err)
	}
	defer res.Body.Close()
	data, err := io.ReadAll(res.Body)
	if err != nil {
		s.t.Fatal(err)
	}
	const csp = "default-src 'none'; style-src 'self'; script-src 'self'; connect-src 'self'; img-src data:; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
	if got := res.Header.Get("Content-Security-Policy"); got != csp {
		s.t.Errorf("%s: got the policy %q", query, got)
	}
	rest := strings.Replace(string(data), `<script src="refresh.js" defer></script>`, "", 1)
	if bad := regexp.MustCompile(`(?i)<script|<style| style=| on\w+=|javascript:`).FindString(rest); bad != "" {
		s.t.Errorf("%s: the page has %q, which the policy forbids", query, bad)
	}
	return res.StatusCode, string(data)
}

// TestExplain: /explain says whether a key is refused, and names each reason.
func TestExplain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which no time passes
		s := newSite(t)
		for range 3 {
			s.from("alice", "192.0.2.1")
		}
		s.json("GET", "/explain?rule=api&key=alice", "", 200, `"remaining":0,`)
		const from = "&from=198.51.100.7"
		s.json("GET", "/explain?rule=api&key=alice"+from, "", 200, `"spent":2}],"refused":true,"because":["the limit 1h has none of 2 units left; the next one is available in 1h"],"past":["1 of the 5 refusals that bring a ban are counted","this process has refused the key 1 times in the last hour, the last time 1 s ago (limited)"],"refusals":1}`)
		s.json("GET", "/explain?key=bob"+from, "", 200, `"refused":false,"because":[],"unseen":true}`)
		s.json("GET", "/explain?rule=ip&key=192.0.2.1", "", 200, `"refused":false,"because":["the rule is in shadow, so it refuses no request"]`)
		s.json("POST", "/override?rule=api&prefix=al", `{"denied": true, "note": "ticket 7"}`, 200, `"prefix":"al","denied":true`)
		s.json("GET", "/explain?rule=api&key=alice", "", 200, `"refused":true,"because":["an override denies the key, such as a ban by an operator"],"past":["1 of the 5 refusals that bring a ban are counted","this process has refused the key 1 times in the last hour, the last time 1 s ago (limited)"],"note":"ticket 7"`)
		s.json("POST", "/override?rule=api&key=alice", `{"unlimited": true}`, 200, `alice`)
		s.json("GET", "/explain?rule=api&key=alice"+from, "", 200, `"refused":false,"because":["a list or an override of the rule allows the key"]`)
		s.json("POST", "/ban?rule=api&key=carol", `{"seconds": 90}`, 200, `carol`)
		s.json("GET", "/explain?rule=api&key=carol", "", 200, `"refused":true,"because":["the key is banned for another 1m30s"]`)
		s.json("GET", "/state?rule=api&key=carol", "", 200, `"reset_after":0}]}]}`)
		s.json("POST", "/explain?rule=api&key=carol", "", 405, `/explain accepts only GET and HEAD`)
	})
}

// TestTopAndBans: /top lists the keys that are refused most. /bans lists a banned key until its
// ban is lifted.
func TestTopAndBans(t *testing.T) {
	s := newSite(t)
	for user, n := range map[string]int{"alice": 4, "mallory": 9} {
		for range n {
			s.from(user, "192.0.2.1")
		}
	}
	for _, path := range []string{"/top", "/top?rule=api&seconds=60"} {
		s.json("GET", path, "", 200, `"top":[{"rule":"api","key":"mallory","count":7,"error":0,"reason":"ban","ago":`)
		s.json("GET", path, "", 200, `{"rule":"api","key":"alice","count":2,"error":0,"reason":"limit","ago":`)
	}
	s.json("GET", "/top?rule=ip", "", 200, `"top":[]}`)
	s.json("GET", "/top?seconds=3601", "", 400, `seconds is \"3601\"; want a number above 0, and at most 3600`)
	s.json("GET", "/refusals?rule=api&key=alice", "", 200, `"count":2,"rule":"api","key":"alice","reason":"limit","limit":"1h","retry_after":3`)
	s.json("GET", "/refusals", "", 200, `"key":"mallory","reason":"ban","retry_after":3`)
	s.json("GET", "/refusals", "", 200, `"route":"GET /"`)
	s.json("GET", "/refusals?rule=ip", "", 200, `{"refusals":[]}`)
	s.json("GET", "/refusals?rule=app", "", 404, `there is no rule`)
	s.json("GET", "/top?rule=app", "", 404, `there is no rule`)
	s.json("GET", "/bans", "", 200, `{"bans":[{"rule":"api","key":"mallory","banned_for":`)
	s.expect("?tab=keys", nil, 200, `href="./?rule=api&amp;key=mallory"`, `href="./?do=unban&amp;rule=api&amp;key=mallory#main"`)
	s.json("POST", "/ban?rule=api&key=trudy", `{"seconds": 3600}`, 200, `trudy`)
	s.json("POST", "/ban?rule=api&key=trudy", `{"seconds": 1e-6}`, 200, `trudy`) // changes nothing
	s.json("GET", "/bans?rule=api", "", 200, `{"bans":[{"rule":"api","key":"trudy","banned_for":`)
	for _, key := range []string{"mallory", "trudy"} {
		s.json("POST", "/unban?rule=api&key="+key, "", 200, `"banned_for":0`)
	}
	s.json("GET", "/bans", "", 200, `{"bans":[]}`)
	bare := newAdmin(t, memstore.New(memstore.Options{}), s.limiter)
	for path, code := range map[string]int{"/top": 404, "/refusals": 404, "/bans": 200} {
		if w := send(bare, "GET", path, ""); w.Code != code {
			t.Errorf("%s without an observer: got %d, %s", path, w.Code, w.Body)
		}
	}
}

// TestBanNetwork: all requests from a banned network are refused until it is unbanned, and the ban
// is logged. Other changes of a network, such as a reset, are errors.
func TestBanNetwork(t *testing.T) {
	s := newSite(t)
	s.json("POST", "/ban?rule=api&network=192.0.2.0/24", `{"seconds": 600, "note": "scrapers"}`, 200, `"network":"192.0.2.0/24","denied":true,"ends_after":`)
	s.json("GET", "/bans", "", 200, `"network":"192.0.2.0/24","banned_for":`)
	for _, list := range []string{"/bans", "/overrides"} {
		if text := send(s.admin, "GET", list, "").Body.String(); regexp.MustCompile(`\.\d{7}`).MatchString(text) {
			t.Errorf("%s: got %s, want microseconds", list, text)
		}
	}
	if got := fmt.Sprint(s.from("alice", "192.0.2.7"), s.from("alice", "192.0.3.7")); got != "429 200" {
		t.Errorf("got %s", got)
	}
	s.json("GET", "/explain?rule=api&key=192.0.2.7", "", 200, `"refused":true`)
	s.json("POST", "/reset?rule=api&network=192.0.2.0/24", ``, 400, `the network 192.0.2.0/24 is no single key: it can only have an override that denies it`)
	s.json("POST", "/override?rule=api&network=192.0.2.0/24", `{"limits": [{"quota": 7}]}`, 400, `can only be denied`)
	s.json("POST", "/override?rule=api&network=198.51.100.0/24", `{"denied": true}`, 200, `198.51.100.0/24`)
	s.json("POST", "/ban?rule=ip&key=192.0.2.0/24", `{"seconds": 600}`, 400, `to refuse a network, use the parameter network`)
	s.json("POST", "/unban?rule=api&network=192.0.2.0/24", ``, 200, `198.51.100.0/24`)
	s.json("POST", "/unban?rule=api&network=192.0.2.0/24", ``, 404, `has no override`)
	if got := s.from("alice", "192.0.2.7"); got != 200 {
		t.Errorf("after the unban: got %d", got)
	}
	if log := s.log.String(); !strings.Contains(log, `change="POST /ban" rule=api key="the network 192.0.2.0/24" body="{\"seconds\": 600, \"note\": \"scrapers\"}"`) {
		t.Errorf("the log has no line for the ban:\n%s", log)
	}
}

// TestTryLimits: /try says how many recent requests other limits would have refused, and is not
// logged as a change.
func TestTryLimits(t *testing.T) {
	s := newSite(t)
	for user, n := range map[string]int{"alice": 4, "bob": 1, "carol": 2} {
		for range n {
			s.from(user, "192.0.2.1")
		}
	}
	s.json("POST", "/try?rule=api", `{"limits": [{"quota": 1}]}`, 200,
		`"requests":7,"were_refused":2,"refused":4,"keys":3,"refused_keys":2,"top":[{"rule":"api","key":"alice","count":3,"error":0},{"rule":"api","key":"carol","count":1,"error":0}]}`)
	s.json("POST", "/try?rule=api", `{"limits": [{"quota": 3, "period": 60, "algorithm": "gcra"}, {"name": "1h", "quota": 5}]}`, 200, `"refused":1,`)
	s.json("POST", "/try?rule=api", `{"limits": []}`, 400, `there are no limits to try`)
	s.json("POST", "/try?rule=api", `{"limits": [{"quota": 0}]}`, 400, `quota is 0; want at least 1`)
	s.json("POST", "/try?rule=api", `{"limits": [{"quota": 1, "algorithm": "gccra"}]}`, 400, `unknown algorithm`)
	s.json("POST", "/try", `{"limits": [{"quota": 1}]}`, 400, `the query has no rule`)
	s.json("GET", "/try?rule=api", ``, 405, `/try accepts only POST`)
	if strings.Contains(s.log.String(), "admin: change made") {
		t.Errorf("a trial is logged as a change:\n%s", s.log.String())
	}
}

// expect requests the page, or posts a form, and checks the status and parts of the page.
func (s *site) expect(query string, form url.Values, code int, want ...string) {
	s.t.Helper()
	status, text := s.page(query, form)
	for _, w := range want {
		if status != code || !strings.Contains(text, w) {
			s.t.Errorf("%s %v: got %d, want %d and %q in\n%s", query, form, status, code, w, text)
		}
	}
}

// do returns the form for a change of a key under the rule api. more has names and values in turn.
func do(what, key string, more ...string) url.Values {
	form := url.Values{"do": {what}, "rule": {"api"}, "key": {key}, "from": {"198.51.100.7"}}
	if network, ok := strings.CutPrefix(key, "/"); ok {
		form.Del("key")
		form.Set("network", network)
	}
	for i := 0; i < len(more); i += 2 {
		form.Add(more[i], more[i+1])
	}
	return form
}

// TestLiteralKeys: a client that is refused under a key it has made up, such as "*" or "0.0.0.0/1", is
// banned alone, by the page and by the API, whether the ban is one of a penalty or an override.
func TestLiteralKeys(t *testing.T) {
	for _, key := range []string{"*", "c*", "0.0.0.0/1", "0.0.0.0/0", "::/0"} {
		for _, what := range []string{"ban", "deny", "override"} {
			s := newSite(t)
			s.from(key, "203.0.113.9")
			if status, page := s.page("?rule=api&key="+url.QueryEscape(key), nil); status != 200 || strings.Contains(page, "<h3>Network") {
				t.Errorf("%q: got %d, and the page takes it for a network, or not: %s", key, status, page)
			}
			if what == "override" {
				s.json("POST", "/override?rule=api&key="+url.QueryEscape(key), `{"denied": true}`, 200, `"listed":"deny"`)
			} else if what == "ban" {
				s.expect("", do("ban", key, "seconds", "600"), 200, "banned it for 10m")
			} else {
				s.expect("", do("deny", key, "seconds", "600"), 200, "refused all its requests")
			}
			if got := fmt.Sprint(s.from(key, "203.0.113.9"), s.from("customer-1", "192.0.2.1"), s.from("bob", "192.0.2.1")); got != "429 200 200" {
				t.Errorf("%s of %q: the client itself and two others got %s, want 429 200 200", what, key, got)
			}
		}
	}
}

// TestRaiseOfBanned: new limits do not lift a ban, and the page and the API say so. Where the page shows a
// key that is refused by a ban, it offers to lift the ban instead of another one.
func TestRaiseOfBanned(t *testing.T) {
	s := newSite(t)
	for range 8 {
		s.from("alice", "192.0.2.1")
	}
	if status, page := s.page("", nil); status != 200 || strings.Count(page, ">Unban</a>") == 0 || strings.Contains(page, `do=ban&amp;rule=api&amp;key=alice`) {
		t.Errorf("the first tab offers no unban, or another ban:\n%s", page)
	}
	s.expect("?rule=api&do=override&key=alice", nil, 200, "The key is banned for another", "New limits do not lift the ban.")
	s.expect("", do("override", "alice", "limit", "", "quota", "50", "seconds", "3600"), 200,
		`<div class="note warn" role="status" id="done"><p><b>Done, but not all.</b>`, "The key is banned for another", "so its requests are still refused: lift the ban, too.")
	s.json("GET", "/changes", "", 200, `"warning":"the key is banned for another `)
	if got := s.from("alice", "192.0.2.1"); got != 429 {
		t.Errorf("got %d, want 429", got)
	}
	s.expect("", do("unban", "alice"), 200, `<div class="note done"`)
	if got := s.from("alice", "192.0.2.1"); got != 200 {
		t.Errorf("after both: got %d, want 200", got)
	}
}

// TestUnseen: of a key that nobody has used, such as a misspelled one, the page says so, names similar
// keys that were refused, and offers no ban.
func TestUnseen(t *testing.T) {
	s := newSite(t)
	for range 3 {
		s.from("acme-key", "192.0.2.1")
	}
	for typed, similar := range map[string]bool{"acme": true, "acme-kee": true, "my-acme-key": true, "other": false} {
		_, page := s.page("?rule=api&key="+typed, nil)
		if !strings.Contains(page, "This key has spent nothing") || strings.Contains(page, "Similar keys:") != similar ||
			strings.Contains(page, `key=acme-key"><bdi class="key">acme-key`) != similar || strings.Contains(page, ">Ban</a>") == similar {
			t.Errorf("%s: want a note, similar keys: %v, and a ban only without them; got\n%s", typed, similar, page)
		}
	}
	s.json("GET", "/explain?rule=api&key=acme", "", 200, `"unseen":true,"similar":["acme-key"]`)
	if _, page := s.page("?rule=api&key=acme-key", nil); strings.Contains(page, "has spent nothing") || !strings.Contains(page, ">Ban</a>") {
		t.Errorf("a key that is known: got\n%s", page)
	}
}

// TestFailedBody: the log line of a failed change has the body that was sent.
func TestFailedBody(t *testing.T) {
	s := newSite(t)
	s.json("POST", "/override?rule=ip&key=192.0.2.1", `{"denied": true, "note": "ticket 9"}`, 409, "")
	if want := `body="{\"denied\": true, \"note\": \"ticket 9\"}" err=`; !strings.Contains(s.log.String(), want) {
		t.Errorf("got the log\n%s\nwant %s", &s.log, want)
	}
}

// TestPage: the page shows what the rules do, whom they refuse, and why.
func TestPage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) { // in which no time passes
		s := newSite(t)
		const nasty = `<script>alert("x")</script>`
		for _, user := range []string{"alice", "alice", "alice", nasty, nasty, nasty} {
			s.from(user, "192.0.2.1")
		}
		s.expect("", nil, 200, `<dt>Rules</dt><dd>v7 <small>3 reloaded, 2 failed</small></dd>`, "was not reloaded, so the rules in force are older than the file: rules.yaml:3:7: a mistake",
			`<dt>Refused</dt><dd>2.0/s <small>33 %</small></dd>`, `<dt>Counts in</dt><dd>memory</dd>`, "<small>2 per 1h</small>", "<em>shadow</em><small>1,000 per 1h</small>",
			`data-label="allowed">4</td>`, `data-label="refused">2</td>`, `data-label="near limit">2</td>`, `data-label="refused, last minute">33 %</td>`,
			`<a href="./?rule=api&amp;key=alice"><bdi class="key">alice</bdi></a> <small>api</small>`, `data-label="in 5 min">1</td>`, "&lt;script&gt;alert(", `key=%3Cscript%3Ealert%28%22x%22%29`,
			`data-label="by">limit 1h</td>`, `<bdi>GET /</bdi>`)
		s.expect("?tab=refusals&rule=api", nil, 200, "Recent refusals under api", `<bdi class="key">alice</bdi>`)
		s.expect("?tab=refusals&rule=api&key=bob", nil, 200, "None.")
		s.expect("?tab=rules", nil, 200, "1h: 2 per 1h (anchored-window)", "no key: shadow", "a ban of 10m after 5 refusals in 1h")
		s.expect("?key=alice&rule=", nil, 200, `api: <span class="no">refused</span>`, "<p>The limit 1h has none of 2 units left; the next one is available in", `ip: <span class="yes">allowed</span>`,
			"has refused the key 1 times in the last hour, the last time 1 s ago (limited)", `data-label="by">limit 1h</td>`)
		s.expect("?key=bob&rule=", nil, 200, `api: <span class="">allowed by its limits</span>`, "Not known: a list or the Policy of the rule may allow or deny the client by its address, which is not given")
		s.expect("?key=2001:db8::9", nil, 200, `Looked up: <bdi class="key">2001:db8::/64</bdi>`)
		s.expect("?key=alice&from=here", nil, 400, "from is &#34;here&#34;; want an address")
		s.expect("?key="+url.QueryEscape(nasty), nil, 200, `value="&lt;script&gt;alert(&#34;x&#34;)&lt;/script&gt;"`)
		s.expect("?tab=refusals&key="+url.QueryEscape("a\u202eb\x00c\u0301\u0302\u0303"), nil, 200, `<bdi class="key">a\u202eb\x00c`+"\u0301\u0302"+`\u0303</bdi>`)
		s.expect("?rule=api&quota=1&period=3600", nil, 200, "This limit would have refused <b>4</b> of 6 requests", "from 2 of 2 keys. The limits in force refused 2.")
		s.expect("?tab=changes", nil, 200, "None since this process began.")

		// The page shows the error in a query.
		s.expect("?rule=app&key=alice", nil, 404, "there is no rule &#34;app&#34;")
		s.expect("?rule=api&quota=many", nil, 400, "the number of units is &#34;many&#34;")
		s.expect("?tab=tabs", nil, 404, "there is no tab &#34;tabs&#34;")
		if w := send(s.admin, "DELETE", "/", ""); w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD, POST" {
			t.Errorf("DELETE /: got %d, %v", w.Code, w.Header())
		}
		for path, media := range map[string]string{"/style.css": "text/css; charset=utf-8", "/refresh.js": "text/javascript; charset=utf-8"} {
			if w := send(s.admin, "GET", path, ""); w.Code != 200 || w.Header().Get("Content-Type") != media || w.Body.Len() == 0 {
				t.Errorf("%s: got %d, %v", path, w.Code, w.Header())
			}
		}
	})
}

// TestForms: each change of the page is confirmed in a form, and its result is shown, with a form
// that undoes it. The forms change what the JSON requests change.
func TestForms(t *testing.T) {
	s := newSite(t)
	for range 3 {
		s.from("alice", "192.0.2.1")
	}
	undo := regexp.MustCompile(`name="change" value="(\w+)"`)
	for _, tt := range []struct {
		ask    string // parameters of the form that asks
		wants  string // in that form
		form   url.Values
		result string
		served int // what alice gets then
	}{
		{"do=reset&key=alice", "Reset usage of", do("reset", "alice"), "refunded units: 2 of 1h", 200},
		{"do=override&key=alice", `Units, now 2 per 1h <input name="quota" type="number" min="1" required value="4">`, do("override", "alice", "limit", "", "quota", "50", "seconds", "3600", "note", "ticket 7"), "set custom limits: 50, until ", 200},
		{"do=remove&key=alice", "The limits of the rule apply to the key again", do("remove", "alice"), "removed its override: set custom limits: 50", 429},
		{"do=ban&key=alice", `<button class="danger" name="do" value="ban">Ban</button>`, do("ban", "alice", "seconds", "600"), "banned it for 10m", 429},
		{"do=unban&key=alice", "Its strikes and earlier bans are forgotten, too", do("unban", "alice"), "lifted its ban, which had 10m left", 429},
		{"do=ban&network=192.0.2.0/24", "Every request from this network is refused", do("ban", "/192.0.2.0/24", "seconds", "600", "note", "scrapers"), "refused all its requests, until ", 429},
		{"do=unban&network=192.0.2.0/24", "Lift the ban of", do("unban", "/192.0.2.0/24"), "removed its override: refused all its requests", 429},
	} {
		s.expect("?rule=api&"+tt.ask, nil, 200, tt.wants, "You can undo this.", `<form method="post" action="./?rule=api&amp;`)
		status, text := s.page("", tt.form)
		if status != 200 || !strings.Contains(text, "<b>Done.</b>") || !strings.Contains(text, tt.result) || undo.FindString(text) == "" {
			t.Errorf("%v: got %d, want %q and a form that undoes it in\n%s", tt.form, status, tt.result, text)
		}
		if got := s.from("alice", "192.0.2.1"); got != tt.served {
			t.Errorf("%v: then alice got %d, want %d", tt.form, got, tt.served)
		}
	}
	status, text := s.page("", do("ban", "eve", "seconds", "600"))
	id := undo.FindStringSubmatch(text)
	if status != 200 || id == nil {
		t.Fatalf("got %d, %s", status, text)
	}
	undoIt := url.Values{"do": {"undo"}, "change": {id[1]}, "tab": {"changes"}}
	s.expect("", undoIt, 200, "undid: banned it for 10m", `<td role="cell" class="act">undone</td>`)
	s.expect("", undoIt, 409, "the change is undone already")
	if got := s.from("eve", "192.0.2.1"); got != 200 {
		t.Errorf("after the ban was undone: got %d", got)
	}
	if n := strings.Count(s.log.String(), "admin: change made"); n != 9 {
		t.Errorf("%d changes are logged, want 9:\n%s", n, s.log.String())
	}

	// The page shows the error in a form, and offers no change that is impossible.
	s.expect("", do("override", "alice", "seconds", "3600"), 400, `role="alert">`, "the form has no limits")
	s.expect("", do("override", "alice", "quota", "0"), 400, "quota is 0; want at least 1")
	s.expect("", do("remove", "alice"), 404, "has no override of the key &#34;alice&#34;")
	s.expect("", do("explode", "alice"), 400, "the form has an unknown action")
	s.expect("", url.Values{"do": {"undo"}, "change": {"ABC"}}, 404, "this process knows no change &#34;ABC&#34;")
	s.expect("?rule=ip&key=192.0.2.1&do=ban", nil, 409, "offers no such change")
	s.expect("?rule=api&key=&do=override", nil, 409, "offers no such change")
	s.expect("?key=alice&do=ban", nil, 400, "the query has no rule")
	if _, text := s.page("?rule=ip&key=192.0.2.1", nil); strings.Contains(text, "do=ban") || strings.Contains(text, "do=override") {
		t.Error("the page offers a ban under a rule that has none")
	}
	if status, text := s.page("", do("reset", "alice"), "Sec-Fetch-Site", "cross-site"); status != 403 || !strings.Contains(text, "the request comes from another origin") {
		t.Errorf("from another origin: got %d, %s", status, text)
	}
}

// TestFormsOfOddKeys: a browser replaces bytes that are no UTF-8, and NULs and line ends in fields, but the
// ban that it sends from the page's form is one of the key that the client has.
func TestFormsOfOddKeys(t *testing.T) {
	form := regexp.MustCompile(`(?s)<form method="post" action="\./([^"]*)" class="fields">(.*?)</form>`)
	hidden := regexp.MustCompile(`<input type="hidden" name="([^"]*)" value="([^"]*)">`)
	for _, key := range []string{"caf\xe9", "a\x00b", "a\nb", "a\rb", "a+b & c", "\"><b>", "\u202ea"} {
		s := newSite(t)
		s.from(key, "192.0.2.1")
		_, text := s.page("?do=ban&rule=api&key="+url.QueryEscape(key), nil)
		m := form.FindStringSubmatch(strings.ToValidUTF8(text, "\ufffd"))
		if m == nil {
			t.Fatalf("%q: no form in\n%s", key, text)
		}
		fields := url.Values{"do": {"ban"}, "seconds": {"600"}}
		for _, f := range hidden.FindAllStringSubmatch(m[2], -1) {
			value := strings.NewReplacer("\r\n", "\n", "\r", "\n").Replace(html.UnescapeString(f[2]))
			fields.Add(f[1], strings.ReplaceAll(value, "\n", "\r\n"))
		}
		s.expect(html.UnescapeString(m[1]), fields, 200, "banned it for 10m")
		if got := s.from(key, "192.0.2.1"); got != 429 {
			t.Errorf("%q: after its ban the client got %d, want 429", key, got)
		}
	}
}

// TestPageStoreFails: if the store fails, the page says so.
func TestPageStoreFails(t *testing.T) {
	store := failing{}
	l := must(t, store, hourly("api", 2))
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{l} }, Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	w := send(h, "GET", "/?key=alice", "")
	if text := w.Body.String(); w.Code != 503 || !strings.Contains(text, "the store failed") || !strings.Contains(text, "<dt>Counts in</dt><dd>the store</dd>") {
		t.Errorf("got %d, %s", w.Code, text)
	}
}

// TestSimilarKeys: a part of a key, in upper or lower case, finds keys that were refused, that are
// banned, and that have an override.
func TestSimilarKeys(t *testing.T) {
	s := newSite(t)
	for range 3 {
		s.from("Acme-refused", "192.0.2.1")
	}
	s.json("POST", "/ban?rule=api&key=acme-banned", `{"seconds":600}`, 200, "")
	s.json("POST", "/override?rule=api&key=acme-raised", `{"limits":[{"quota":50}]}`, 200, "")
	s.json("GET", "/explain?rule=api&key=ACME", "", 200, `"similar":["Acme-refused","acme-banned","acme-raised"]`)
	s.expect("?rule=api&key=acme", nil, 200, "Similar keys:", `key=Acme-refused">`, `key=acme-banned">`, `key=acme-raised">`)
}

// TestAtThree: a customer calls because requests get 429. One look-up says why, the link next to the
// reason and one form end it, and the customer's next request is answered as the page then says.
func TestAtThree(t *testing.T) {
	for _, tt := range []struct {
		requests int    // that the customer has sent
		because  string // on the page
		link     string // what the page offers
		fields   []string
	}{
		{3, "The limit 1h has none of 2 units left", "override", []string{"limit", "", "quota", "50", "seconds", "3600"}},
		{9, "The key is banned for another 10m", "unban", nil},
	} {
		s := newSite(t)
		for range tt.requests {
			s.from("acme-7", "192.0.2.1")
		}
		status, text := s.page("?key=acme-7", nil)
		if status != 200 || !strings.Contains(text, `api: <span class="no">refused</span>`) || !strings.Contains(text, tt.because) {
			t.Errorf("got %d, want %q in\n%s", status, tt.because, text)
		}
		link := regexp.MustCompile(`href="\./(\?do=` + tt.link + `&amp;[^"#]*)`).FindStringSubmatch(text)
		if link == nil {
			t.Fatalf("the page offers no %s in\n%s", tt.link, text)
		}
		s.expect(strings.ReplaceAll(link[1], "&amp;", "&"), nil, 200, `name="do" value="`+tt.link+`"`)
		_, text = s.page("", do(tt.link, "acme-7", tt.fields...))
		if tt.link == "unban" { // the limit still refuses, and the page says so
			if !strings.Contains(text, `api: <span class="no">refused</span>`) {
				t.Errorf("after the ban: got\n%s", text)
			}
			if got := s.from("acme-7", "192.0.2.1"); got != 429 {
				t.Errorf("after the ban: got %d, want 429, as the page says", got)
			}
			_, text = s.page("", do("reset", "acme-7"))
		}
		if !strings.Contains(text, `api: <span class="yes">allowed</span>`) {
			t.Errorf("%s: want allowed in\n%s", tt.link, text)
		}
		if got := s.from("acme-7", "192.0.2.1"); got != 200 {
			t.Errorf("%s: then the customer got %d, want 200, as the page says", tt.link, got)
		}
	}
}
