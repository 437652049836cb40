package config

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
)

// A page is a File whose text a test can change.
type page struct {
	fstest.MapFS
	*File
}

func newPage(t *testing.T, text string, o Options) *page {
	p := &page{MapFS: fstest.MapFS{"r.yaml": {Data: []byte(text)}}}
	o.FS = p.MapFS
	f, err := Open("r.yaml", memstore.New(memstore.Options{}), o)
	if err != nil {
		t.Fatal(err)
	}
	p.File = f
	return p
}

// all returns the middleware of all rules.
func (p *page) all(t *testing.T) func(http.Handler) http.Handler {
	t.Helper()
	limit, err := p.HandlerOfAll()
	if err != nil {
		t.Fatal(err)
	}
	return limit
}

// write changes the text and reloads.
func (p *page) write(text string) (Changes, error) {
	p.MapFS["r.yaml"] = &fstest.MapFile{Data: []byte(text)}
	return p.Reload()
}

func (p *page) mustWrite(t *testing.T, text string) Changes {
	t.Helper()
	c, err := p.write(text)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// get sends a request to a handler and returns the status.
func get(h http.Handler) int {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w.Code
}

var ok = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})

func limitOf(n int) string {
	return fmt.Sprintf("limits: [{name: a, config: [{limit: %d, period: 1h}]}]", n)
}

func TestReloadHoldsAtOnce(t *testing.T) {
	for _, algorithm := range []string{"sliding-log", "fixed-window", "sliding-window", "anchored-window", "gcra"} {
		p := newPage(t, "algorithm: "+algorithm+"\n"+limitOf(5), Options{})
		h := p.Handler("a")(ok)
		var got []int
		for range 4 {
			got = append(got, get(h))
		}
		p.mustWrite(t, "algorithm: "+algorithm+"\n"+limitOf(4)) // lowered to the units spent
		got = append(got, get(h))
		p.mustWrite(t, "algorithm: "+algorithm+"\n"+limitOf(6)) // raised by two
		for range 3 {
			got = append(got, get(h))
		}
		if want := "[200 200 200 200 429 200 200 429]"; fmt.Sprint(got) != want {
			t.Errorf("%s: got %v, want %s", algorithm, got, want)
		}
	}
}

// TestAdmit: Admit decides by the rules in force, together with Handler.
func TestAdmit(t *testing.T) {
	p := newPage(t, limitOf(2), Options{})
	admit, h := p.Admit("a"), p.Handler("a")(ok)
	asked := func() bool {
		a, err := admit(httptest.NewRequest("GET", "/", nil))
		if err == nil {
			a.Done(weir.Outcome{})
		}
		return err == nil
	}
	got := fmt.Sprint(asked(), get(h), asked())
	p.mustWrite(t, limitOf(3))
	got += fmt.Sprint(" ", asked(), asked())
	if want := "true 200 false true false"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if _, err := p.write("limits: [{name: b, config: [{limit: 1, period: 1h}]}]"); err == nil {
		t.Error("a file without the rule was loaded")
	}
}

func TestReloadOfBadFile(t *testing.T) {
	p := newPage(t, limitOf(2)+"\n", Options{})
	h := p.Handler("a")(ok)
	get(h)
	before := fmt.Sprint(p.Rules()[0].Limits)
	for _, tt := range []struct{ text, want string }{
		{"limits: [{name: a, config: [{limit: 0, period: 1h}]}]", "r.yaml:1:37: limit is 0; want at least 1"},
		{"", "r.yaml:1:1: the file is empty; it needs limits"},
		{strings.Replace(limitOf(9), "name: a", "name: ab", 1), `config: r.yaml has no rule "a", which a handler needs; did you mean ab?`},
	} {
		if c, err := p.write(tt.text); err == nil || err.Error() != tt.want || c != nil {
			t.Errorf("Reload of %q returned %v, %v; want %s", tt.text, c, err, tt.want)
		}
		if after := fmt.Sprint(p.Rules()[0].Limits); after != before {
			t.Errorf("after %q the limits are %v, not %v", tt.text, after, before)
		}
	}
	delete(p.MapFS, "r.yaml")
	if _, err := p.Reload(); err == nil {
		t.Error("Reload of a missing file: got no error")
	}
	p.MapFS["r.yaml"] = &fstest.MapFile{Mode: fs.ModeNamedPipe, Data: []byte(limitOf(9))} // opening a real one would block
	if _, err := p.Reload(); err == nil || err.Error() != "config: r.yaml is not a file" {
		t.Errorf("Reload of a named pipe: got error %v", err)
	}
	if a, b := get(h), get(h); a != 200 || b != 429 {
		t.Errorf("after bad files the second request got %d and the third %d", a, b)
	}
}

// TestReloadDuringRequest: a request that has begun keeps its limits during a reload. The
// reload and later requests do not wait for that request.
func TestReloadDuringRequest(t *testing.T) {
	var page *page
	o := Options{Limiter: weir.Options{Observe: func(e weir.Event) {
		if c := e.Transaction.Charges[0]; c.Limit.Quota == 5 {
			page.mustWrite(t, limitOf(1)) // after the decision, before its header fields are written
		}
	}}}
	page = newPage(t, limitOf(5), o)
	h := page.Handler("a")(ok)
	for _, want := range []string{"200 5", "429 1"} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("X-RateLimit-Limit")); got != want {
			t.Errorf("got %s, want %s", got, want)
		}
	}
}

func TestChanges(t *testing.T) {
	const before = `
algorithm: sliding-log
limits:
- name: login
  config: [{limit: 20, period: 60}, {limit: 5, period: 3}]
- name: upload
  config: [{limit: 10, period: 60}]
- name: gone
  config: [{limit: 1, period: 1}, {limit: 30, period: 60}]
`
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", before + "# a remark\n", ""},
		{"a limit", strings.Replace(before, "limit: 20", "limit: 10", 1),
			"login: limit 1m (sliding-log): 20 per 1m → 10 per 1m"},
		{"a period of a limit named after it", strings.Replace(before, "period: 60}, {limit: 5", "period: 90}, {limit: 5", 1),
			"login: limit 90s (sliding-log): added: 20 per 90s\nlogin: limit 1m (sliding-log): removed: 20 per 1m; its counts are lost"},
		{"a period of the only limit", strings.Replace(before, "limit: 10, period: 60", "limit: 10, period: day", 1),
			"upload: limit day (calendar): added: 10 per day\nupload: limit 1m (sliding-log): removed: 10 per 1m; its counts are lost"},
		{"an algorithm", strings.Replace(before, "name: upload", "name: upload\n  algorithm: gcra\n  burst: 3", 1),
			"upload: limit 1m (gcra): added: 10 per 1m, 3 at once\nupload: limit 1m (sliding-log): removed: 10 per 1m; its counts are lost"},
		{"a key and what it trusts", "key: [ip, header:X]\ntrusted-proxies: [10.0.0.0/8, 192.0.2.1]\n" + strings.Replace(before, "name: login", "name: login\n  key: {first-of: [header:Y, ip]}", 1),
			"login: key: ip → first of (header:Y, ip behind 10.0.0.0/8, 192.0.2.1/32); its counts are lost\n" +
				"upload: key: ip → ip behind 10.0.0.0/8, 192.0.2.1/32 + header:X; its counts are lost\n" +
				"gone: key: ip → ip behind 10.0.0.0/8, 192.0.2.1/32 + header:X; its counts are lost"},
		{"the rest", strings.Replace(before, "name: upload", "name: upload\n  cost: content-length\n  headers: [ietf, github]\n  enforce: 12.5%", 1),
			"upload: cost: 1 → content-length\nupload: unit: requests → content-bytes\nupload: headers: x-ratelimit → ietf, github\nupload: enforce: 100% → 12.5%"},
		{"lists and penalties", strings.NewReplacer(
			"name: login", "name: login\n  allow: [10.0.0.0/8, 192.0.2.7]\n  penalty: {strikes: {limit: 10, period: 60}, for: 10m}",
			"name: upload", "name: upload\n  deny: [203.0.113.66]\n  penalty: {strikes: {limit: 3, period: day, algorithm: calendar}, for: 2d, most: 1w}").Replace(before),
			"login: allow: added: 10.0.0.0/8, 192.0.2.7\nlogin: penalty: added: 10 per 1m (anchored-window), for 10m to 1d\n" +
				"upload: deny: added: 203.0.113.66\nupload: penalty: added: 3 per day (calendar), for 2d to 7d"},
		{"rules", strings.Replace(before, "name: gone", "name: new", 1),
			"new: added: 1 per 1s; 30 per 1m\ngone: removed: 1 per 1s; 30 per 1m; its counts are lost"},
		{"a limit beside the only one", strings.Replace(before, "[{limit: 10, period: 60}]", "[{limit: 3, period: 1}, {limit: 10, period: 60}]", 1),
			"upload: limit 1s (sliding-log): added: 3 per 1s"},
		{"one limit less", strings.Replace(before, "[{limit: 20, period: 60}, ", "[", 1),
			"login: limit 1m (sliding-log): removed: 20 per 1m; its counts are lost"},
	} {
		p := newPage(t, before, Options{})
		if got := p.mustWrite(t, tt.text).String(); got != tt.want {
			t.Errorf("%s:\ngot:\n%s\nwant:\n%s", tt.name, got, tt.want)
		}
	}
}

// TestReloadKeepsCounts: a reload that adds or removes limits keeps the counts of the limits
// that stay. If counts are lost, the changes say so.
func TestReloadKeepsCounts(t *testing.T) {
	const hour = "{limit: 4, period: 1h}"
	p := newPage(t, "algorithm: sliding-log\nlimits: [{name: a, config: ["+hour+"]}]", Options{})
	h := p.Handler("a")(ok)
	for i, step := range []struct {
		rule   string
		lost   bool
		status int
	}{
		{"config: [" + hour + "]", false, 200},
		{"config: [" + hour + ", {limit: 3, period: 1s}]", false, 200},
		{"config: [{limit: 3, period: 1s}, " + hour + ", {limit: 15, period: 1d}]", false, 200},
		{"cost: 1, enforce: 100%, headers: ietf, config: [" + hour + ", {limit: 15, period: 1d}]", true, 200}, // the limit per second is gone
		{"config: [" + hour + ", {limit: 15, period: 1d}]", false, 429},
		{"config: [{limit: 5, period: 60m}, {limit: 15, period: 1d}]", false, 200},
		{"config: [{limit: 5, period: 90m}, {limit: 15, period: 1d}]", true, 200},
		{"config: [{limit: 1, period: 90m}, {limit: 15, period: 1d}]", false, 429},
		{"algorithm: gcra, config: [{limit: 1, period: 90m}]", true, 200},
		{"algorithm: gcra, key: global, config: [{limit: 1, period: 90m}]", true, 200},
		{"algorithm: gcra, key: global, config: [{limit: 1, period: 90m}, {limit: 2, period: 1d, algorithm: sliding-log}]", false, 429},
	} {
		lost := false
		for _, c := range p.mustWrite(t, fmt.Sprintf("algorithm: sliding-log\nlimits: [{name: a, %s}]", step.rule)) {
			lost = lost || c.Lost
		}
		if got := get(h); got != step.status || lost != step.lost {
			t.Errorf("step %d, %s: got %d, counts lost: %v; want %d and %v", i, step.rule, got, lost, step.status, step.lost)
		}
	}
}

// TestReloadOfListsAndPenalties: a list or a penalty is no longer in force after a reload of
// a file without it. A ban outlasts reloads that keep the penalty.
func TestReloadOfListsAndPenalties(t *testing.T) {
	const plain = "limits: [{name: a, key: 'header:Key', config: [{limit: 1, period: 1h}]}]"
	with := func(field string) string { return strings.Replace(plain, "config", field+", config", 1) }
	const penalty = "penalty: {strikes: {limit: 2, period: 1m}, for: 2h}"
	p := newPage(t, plain, Options{})
	h := p.Handler("a")(ok)
	for i, step := range []struct{ text, key, want string }{
		{plain, "alice", "200 "},
		{plain, "alice", "429 3600"},
		{with("allow: [{prefix: ali}]"), "alice", "200 "},
		{with("allow: [{prefix: ali}]"), "bob", "200 "},
		{with("deny: [bob]"), "bob", "429 "},
		{plain, "bob", "429 3600"},
		{with(penalty), "bob", "429 3600"},
		{with(penalty), "bob", "429 7200"},
		{with("enforce: 100%, " + penalty), "bob", "429 7200"},
		{plain, "bob", "429 3600"},
	} {
		p.mustWrite(t, step.text)
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Key", step.key)
		h.ServeHTTP(w, r)
		if got := fmt.Sprint(w.Code, " ", w.Header().Get("Retry-After")); got != step.want {
			t.Errorf("step %d: %s got %s, want %s", i, step.key, got, step.want)
		}
	}
	if c := p.mustWrite(t, with("allow: [alice], "+penalty)); len(c) != 2 {
		t.Errorf("got changes %v, want two", c)
	}
	const want = "a: allow: removed: alice\na: penalty: removed: 2 per 1m (anchored-window), for 2h to 1d; its counts are lost"
	if c := p.mustWrite(t, plain).String(); c != want {
		t.Errorf("got changes:\n%s\nwant:\n%s", c, want)
	}
}

func TestLimiters(t *testing.T) {
	p := newPage(t, "limits:\n- {name: a, config: [{limit: 1, period: 1}]}\n- {name: b, config: [{limit: 1, period: 1}]}\n- {name: c, config: [{limit: 1, period: 1}]}", Options{})
	names := func() (names []string) {
		for _, l := range p.Limiters() {
			for _, r := range l.Rules() {
				names = append(names, fmt.Sprint(r.Name, r.Limits[0].Quota))
			}
		}
		return names
	}
	if got := names(); got != nil {
		t.Errorf("before there are handlers: got rules %v", got)
	}
	p.Handler("b")
	p.Handler("a", "b")
	p.Handler("b")
	if got := fmt.Sprint(names()); got != "[b1 a1 b1]" {
		t.Errorf("got rules %v, want those of two handlers", got)
	}
	p.mustWrite(t, "limits:\n- {name: a, config: [{limit: 2, period: 1}]}\n- {name: b, config: [{limit: 3, period: 1}]}")
	if got := fmt.Sprint(names()); got != "[b3 a2 b3]" {
		t.Errorf("after a reload: got rules %v", got)
	}
}

// TestHandlerOfAll: the handler of all rules enforces the rules that the file has after each
// reload. If the rules cannot be charged together, it is an error.
func TestHandlerOfAll(t *testing.T) {
	differ := newPage(t, "limits: [{name: a, config: [{limit: 1, period: 1h}]}, {name: b, headers: ietf, config: [{limit: 1, period: 1h}]}]", Options{})
	if h, err := differ.HandlerOfAll(); h != nil || err == nil || !strings.Contains(err.Error(), "their headers differ") {
		t.Errorf("rules with different headers: got a handler: %v, error %v", h != nil, err)
	}
	p := newPage(t, limitOf(3), Options{})
	h := p.all(t)(ok)
	for _, step := range []struct {
		file string
		want []int
	}{
		{limitOf(3), []int{200, 200}},
		{"limits: [{name: b, config: [{limit: 1, period: 1h}]}, {name: a, config: [{limit: 3, period: 1h}]}]", []int{200, 429}}, // rule b is new; a refusal by b spends nothing under a
		{"limits: [{name: b, config: [{limit: 2, period: 1h}]}]", []int{200, 429}},                                              // rule a is removed
	} {
		p.mustWrite(t, step.file)
		var got []int
		for range step.want {
			got = append(got, get(h))
		}
		if fmt.Sprint(got) != fmt.Sprint(step.want) || len(p.Unused()) > 0 {
			t.Errorf("%s: got %d, unused %s; want %d, none", step.file, got, p.Unused(), step.want)
		}
	}
	if _, err := p.write("limits: [{name: a, headers: ietf, config: [{limit: 1, period: 1h}]}, {name: b, config: [{limit: 1, period: 1h}]}]"); err == nil {
		t.Error("got rules with different headers, want an error")
	}
}

func TestTrustedProxies(t *testing.T) {
	p := newPage(t, limitOf(1), Options{})
	for _, tt := range []struct{ field, want string }{
		{"", "[]"},
		{"trusted-proxies: [10.0.0.0/8, '::1']\n", "[10.0.0.0/8 ::1/128]"},
		{"trusted-proxies: [192.0.2.1]\n", "[192.0.2.1/32]"},
		{"trusted-proxies: ['::ffff:10.0.0.0/104', '::ffff:192.0.2.1']\n", "[10.0.0.0/8 192.0.2.1/32]"},
		{"trusted-proxies: [unix, 192.0.2.1]\n", "[invalid Prefix 192.0.2.1/32]"},
	} {
		p.mustWrite(t, tt.field+limitOf(1))
		if got := fmt.Sprint(p.TrustedProxies()); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.field, got, tt.want)
		}
	}
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = "@" // of a Unix socket
	r.Header.Set("X-Forwarded-For", "192.0.2.7")
	for trusted, want := range map[string]string{"unix": "192.0.2.7", "192.0.2.1": "unknown"} {
		p.mustWrite(t, "trusted-proxies: ["+trusted+"]\n"+limitOf(1))
		if got, _ := p.ByIP()(r); got != want {
			t.Errorf("%s trusted: got the key %s for a Unix socket, want %s", trusted, got, want)
		}
	}
}

func TestHandlerMistakes(t *testing.T) {
	p := newPage(t, "limits:\n- {name: a, config: [{limit: 1, period: 1}]}\n- {name: b, headers: ietf, config: [{limit: 1, period: 1}]}\n"+
		"- {name: a/x, config: [{limit: 1, period: 1}]}\n- {name: c, config: [{name: x, limit: 1, period: 1}]}\n- {name: c/x, config: [{limit: 1, period: 1}]}\n", Options{})
	for _, tt := range []struct {
		names []string
		want  string
	}{
		{nil, `config: r.yaml: rules [] together: weir: Rules is empty`},
		{[]string{"aa"}, `config: r.yaml has no rule "aa", which a handler needs; did you mean a?`},
		{[]string{"a", "b"}, `config: r.yaml: rules "a" and "b" are charged together, but their headers differ`},
		{[]string{"a", "a"}, `config: r.yaml: rules ["a" "a"] together: weir: two rules are named "a"`},
		{[]string{"c/x", "c"}, `config: r.yaml: rules ["c/x" "c"] together: weir: header fields could not tell two limits apart: both are named "c/x"`},
	} {
		got := func() (v any) {
			defer func() { v = recover() }()
			p.Handler(tt.names...)
			return nil
		}()
		if fmt.Sprint(got) != tt.want {
			t.Errorf("Handler(%q) panicked with %v, want %s", tt.names, got, tt.want)
		}
	}
}

func TestOptionsMistakes(t *testing.T) {
	store := memstore.New(memstore.Options{})
	for _, tt := range []struct {
		store weir.Store
		o     Options
		want  string
	}{
		{nil, Options{}, "config: the store is nil"},
		{(*memstore.Store)(nil), Options{}, "config: the store is nil"},
		{store, Options{Limiter: weir.Options{Rules: []weir.Rule{{}}}}, "config: Options.Limiter.Rules is set; want nil, because the file has the rules"},
		{store, Options{Limiter: weir.Options{MaxWait: -1}}, "weir: MaxWait is -1ns; want at least 0"},
		{store, Options{Keys: map[string]weir.KeyFunc{"ip": weir.Global()}}, `config: Options.Keys: the name "ip" is built in`},
		{store, Options{Keys: map[string]weir.KeyFunc{"g": weir.Global(), "ip": nil, "h": nil, "e:": nil, "f": nil, "": nil}}, `config: Options.Keys: the name is ""; want one without a colon`}, // the first in order
		{store, Options{Keys: map[string]weir.KeyFunc{"a:b": weir.Global()}}, `config: Options.Keys: the name is "a:b"; want one without a colon`},
		{store, Options{Keys: map[string]weir.KeyFunc{"user": nil}}, `config: Options.Keys: "user" is nil`},
		{store, Options{Costs: map[string]func(*http.Request) int64{"content-length": func(*http.Request) int64 { return 1 }}}, `config: Options.Costs: the name "content-length" is built in`},
	} {
		if _, err := Open("testdata/good/published.yaml", tt.store, tt.o); err == nil || err.Error() != tt.want {
			t.Errorf("got %v, want %s", err, tt.want)
		}
	}
}

// TestWaitInFlight: with a MaxWait, a request waits for a unit of a concurrency limit of a file,
// also of an override.
func TestWaitInFlight(t *testing.T) {
	const rule = "limits:\n- name: a\n  key: ip\n  config: [{limit: 1, period: 60"
	for _, text := range []string{
		rule + ", algorithm: in-flight}]\n",
		rule + "}]\n  overrides: [{value: 192.0.2.1, config: [{limit: 1, period: 60, algorithm: in-flight}]}]\n",
	} {
		synctest.Test(t, func(t *testing.T) {
			f, err := open(text, Options{Limiter: weir.Options{MaxWait: 5 * time.Second}})
			if err != nil {
				t.Fatal(err)
			}
			h := (&page{File: f}).all(t)(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(3 * time.Second) }))
			var statuses [3]int
			var wg sync.WaitGroup
			for i := range statuses {
				wg.Go(func() { statuses[i] = get(h) })
				synctest.Wait()
			}
			wg.Wait()
			if want := [3]int{200, 200, 429}; statuses != want {
				t.Errorf("%s\ngot %v, want %v", text, statuses, want)
			}
		})
	}
}

func TestTooLarge(t *testing.T) {
	text := limitOf(1) + "\n#" + strings.Repeat("x", MaxSize-len(limitOf(1))-2)
	if _, err := open(text, Options{}); err != nil {
		t.Errorf("%d bytes: %v", len(text), err)
	}
	const want = "r.yaml:1:1: the file is larger than 4096 KiB"
	if _, err := open(text+"x", Options{}); err == nil || err.Error() != want {
		t.Errorf("%d bytes: got %v, want %s", len(text)+1, err, want)
	}
}

// TestPeriodName: Open gives limits the same names as weir.New.
func TestPeriodName(t *testing.T) {
	for d := range map[time.Duration]bool{time.Microsecond: true, 1500 * time.Millisecond: true, 90 * time.Second: true, 3 * time.Hour: true, 48 * time.Hour: true} {
		var name string
		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
			Rules:   []weir.Rule{{Name: "a", Key: weir.Global(), Limits: []weir.Limit{algorithms.FixedWindow(1, d), algorithms.AnchoredWindow(1, d).Named("x")}}},
			Observe: func(e weir.Event) { name = e.Transaction.Charges[0].Limit.Name },
		})
		if err != nil {
			t.Fatal(err)
		}
		if get(limiter.Handler(ok)); period.Name(d) != name {
			t.Errorf("period.Name(%v) is %s, and weir.New says %s", d, period.Name(d), name)
		}
	}
}

// TestReloadUnderLoad reloads while clients send requests over real connections. No request
// is charged by an old and a new rule together, and units that were spent stay spent.
func TestReloadUnderLoad(t *testing.T) {
	const reloads, clients = 1000, 4
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	text := func(n int) string {
		return fmt.Sprintf("algorithm: sliding-log\nlimits:\n- {name: a, key: global, config: [{limit: %d, period: 1h}]}\n- {name: b, key: global, config: [{limit: %d, period: 1h}]}\n", n, n)
	}
	const plenty = 1 << 19
	var errs, odd atomic.Int64
	p := newPage(t, text(plenty), Options{Limiter: weir.Options{Logger: log, Observe: func(e weir.Event) {
		if e.Err != nil {
			errs.Add(1)
		}
		if c := e.Transaction.Charges; len(c) != 2 || c[0].Limit.Quota != c[1].Limit.Quota {
			odd.Add(1)
		}
	}}})
	h := p.Handler("a", "b")(ok)
	srv := httptest.NewServer(h)
	defer srv.Close()

	var sent, answered atomic.Int64
	stop := weirtest.Meanwhile(clients, func(int) bool {
		sent.Add(1)
		resp, err := srv.Client().Get(srv.URL)
		if err != nil {
			t.Error(err)
			return false
		}
		io.Copy(io.Discard, resp.Body)
		resp.Body.Close()
		if resp.StatusCode == http.StatusOK {
			answered.Add(1)
		}
		return true
	})
	for i := range reloads {
		if i%10 == 5 {
			p.mustNotLoad(t, "limits: [")
		}
		p.mustWrite(t, text(plenty+i%2))
		more := answered.Load()
		if i%100 == 0 { // let ten requests come before the next reload
			more += 10
		}
		for answered.Load() < more {
			runtime.Gosched()
		}
	}
	stop()
	if sent.Load() != answered.Load() || errs.Load() > 0 || odd.Load() > 0 {
		t.Errorf("of %d requests %d got 200; %d errors, %d saw half a reload", sent.Load(), answered.Load(), errs.Load(), odd.Load())
	}

	// Every answered request has spent a unit, so a limit that is higher by 1 admits one more.
	p.mustWrite(t, text(int(answered.Load())+1))
	if a, b := get(h), get(h); a != 200 || b != 429 {
		t.Errorf("after %d requests the last one that fits got %d and the next %d", answered.Load(), a, b)
	}
	t.Logf("%d requests, %d reloads", answered.Load(), reloads)
}

// mustNotLoad writes a text with an error and expects an error of Reload.
func (p *page) mustNotLoad(t *testing.T, text string) {
	t.Helper()
	if _, err := p.write(text); err == nil {
		t.Error("Reload of a file with a mistake: got no error")
	}
}

// TestReloadIsNoConflict: a reload that changes a limit, or its algorithm, logs no warning about two
// Limiters with one rule, because the new one replaces the old one. A second File does.
func TestReloadIsNoConflict(t *testing.T) {
	var log weirtest.Log
	o := Options{Limiter: weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	p := newPage(t, limitOf(1), o)
	h := p.Handler("a")(ok)
	p.mustWrite(t, limitOf(2))
	p.mustWrite(t, strings.Replace(limitOf(2), "limit:", "algorithm: fixed-window, limit:", 1))
	if get(h); log.String() != "" {
		t.Errorf("got the log %q, want none", log.String())
	}
	fsys := fstest.MapFS{"b.yaml": {Data: []byte(limitOf(7))}}
	other, err := Open("b.yaml", p.store, Options{FS: fsys, Limiter: o.Limiter})
	if err != nil {
		t.Fatal(err)
	}
	other.Handler("a")
	if !strings.Contains(log.String(), "rule of one name in two Limiters over one store") {
		t.Errorf("two files with one rule: got the log %q", log.String())
	}
}

// TestReloadsMakeLimiters: many reloads within a minute log no warning that a handler makes a Limiter for
// each request.
func TestReloadsMakeLimiters(t *testing.T) {
	var log weirtest.Log
	limit := func(n int) string { return strings.Replace(limitOf(n), "name: a", "name: reloaded", 1) }
	p := newPage(t, limit(1), Options{Limiter: weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
	p.Handler("reloaded")
	for n := range 12 {
		p.mustWrite(t, limit(n+2))
	}
	if log.String() != "" {
		t.Errorf("got the log %q, want none", log.String())
	}
}

// TestCredentials: a warning names each rule that stores credentials in plain text.
func TestCredentials(t *testing.T) {
	for key, want := range map[string]string{
		"header:authorization":                                  "Authorization",
		"[ip, {first-of: [header:Proxy-Authorization, ip]}]":    "Proxy-Authorization",
		"header:X-Tenant":                                       "",
		"hashed:header:Authorization":                           "",
		"[ip, hashed:header:Authorization]":                     "",
		"{hashed: [ip, header:Authorization]}":                  "",
		"{first-of: [hashed:header:Authorization, header:X-A]}": "",
	} {
		var log weirtest.Log
		o := Options{Secret: []byte("0123456789abcdef"), Limiter: weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}}
		newPage(t, strings.Replace(limitOf(1), "name: a", "name: a, key: "+key, 1), o)
		if got := log.String(); strings.Contains(got, "rule=a field="+want+" ") != (want != "") || want == "" && got != "" {
			t.Errorf("%s: got the log %q, want a line about %q", key, got, want)
		}
	}
}

// TestWarnedOnce: a warning about Options.Limiter comes from the Limiter of a handler, and not from Open, too.
func TestWarnedOnce(t *testing.T) {
	var log weirtest.Log
	o := Options{Limiter: weir.Options{MaxWaiting: 500, Logger: slog.New(slog.NewTextHandler(&log, nil))}}
	newPage(t, limitOf(1), o).Handler("a")
	if n := strings.Count(log.String(), "MaxWaiting without MaxWait"); n != 1 {
		t.Errorf("got %d lines, want 1:\n%s", n, log.String())
	}
}

// TestCredentialsReloaded: a reload by Reload warns too, once for each changed file.
func TestCredentialsReloaded(t *testing.T) {
	var log weirtest.Log
	p := newPage(t, limitOf(1), Options{Limiter: weir.Options{Logger: slog.New(slog.NewTextHandler(&log, nil))}})
	text := strings.Replace(limitOf(1), "name: a", "name: a, key: header:Authorization", 1)
	for range 2 {
		p.mustWrite(t, text)
	}
	if n := strings.Count(log.String(), "rule=a field=Authorization"); n != 1 {
		t.Errorf("got %d lines, want 1:\n%s", n, log.String())
	}
}

func TestReloadLeaksNothing(t *testing.T) {
	p := newPage(t, limitOf(1), Options{})
	h := p.Handler("a")(ok)
	get(h)
	measure := func() (goroutines int, heap uint64) {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return runtime.NumGoroutine(), m.HeapAlloc
	}
	for i := range 100 { // warm up
		p.mustWrite(t, limitOf(i+2))
	}
	g0, h0 := measure()
	for i := range 1000 {
		p.mustWrite(t, limitOf(i+2))
		p.Handler("a") // the same names share a limiter
	}
	g1, h1 := measure()
	runtime.KeepAlive(p)
	runtime.KeepAlive(h)
	if g1 > g0 || h1 > h0+64<<10 {
		t.Errorf("1,000 reloads: goroutines %d → %d, heap %d → %d bytes", g0, g1, h0, h1)
	}
	t.Logf("heap %d → %d bytes", h0, h1)
}

// TestHandlerAllocs: the Handler of a File allocates no more than the Handler of a Limiter.
func TestHandlerAllocs(t *testing.T) {
	p := newPage(t, limitOf(1_000_000), Options{})
	l, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: p.Rules()})
	if err != nil {
		t.Fatal(err)
	}
	count := func(h http.Handler) float64 {
		r := httptest.NewRequest("GET", "/", nil)
		w := httptest.NewRecorder()
		var n float64
		synctest.Test(t, func(*testing.T) { // both at the same time, as in TestHandlerAllocates of weir
			n = testing.AllocsPerRun(1000, func() { h.ServeHTTP(w, r) })
		})
		return n
	}
	if got, want := count(p.Handler("a")(ok)), count(l.Handler(ok)); got > want {
		t.Errorf("%v allocations, a Limiter has %v", got, want)
	}
}

// TestReloadsAreCounted checks Reloads, Unused and Version after files with new rules, files
// without a change, and files with an error.
func TestReloadsAreCounted(t *testing.T) {
	rule := func(names ...string) string {
		text := "limits:\n"
		for _, name := range names {
			text += "- {name: " + name + ", config: [{limit: 5, period: 3}]}\n"
		}
		return text
	}
	p := newPage(t, rule("a"), testOptions)
	p.Handler("a")
	first := p.Version()
	for _, step := range []struct {
		text           string
		loaded, failed int64
		unused         string
	}{
		{rule("a"), 0, 0, "[]"}, // no change
		{rule("a", "b", "c"), 1, 0, "[b c]"},
		{rule("b"), 1, 1, "[b c]"}, // a handler needs rule a
		{"limits: []", 1, 2, "[b c]"},
		{rule("a"), 2, 2, "[]"},
	} {
		before := p.Version()
		_, err := p.write(step.text)
		loaded, failed := p.Reloads()
		if got := fmt.Sprint(p.Unused()); loaded != step.loaded || failed != step.failed || got != step.unused {
			t.Errorf("%s: got %d loaded, %d failed, unused %s, want %v", step.text, loaded, failed, got, step)
		}
		if err != nil && p.Version() != before {
			t.Errorf("%s: another version after %v", step.text, err)
		}
	}
	if p.Version() != first || len(first) != 12 {
		t.Errorf("got the versions %q and %q of the same rules", first, p.Version())
	}
	delete(p.MapFS, "r.yaml")
	if _, err := p.Reload(); err == nil {
		t.Error("Reload of a missing file: got no error")
	}
	if _, failed := p.Reloads(); failed != 3 {
		t.Errorf("%d failures, want 3", failed)
	}
}

// TestLoaded: Loaded is when the rules in force were loaded, and Changed is what that changed. A file
// that did not change, and one that is wrong, leave both as they were.
func TestLoaded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := newPage(t, limitOf(2), Options{})
		const changed = "[a: limit 1h (gcra): 2 per 1h → 3 per 1h]"
		opened := time.Now()
		for _, step := range []struct {
			text    string
			want    time.Duration // after Open
			changed string
		}{{limitOf(2), 0, "[]"}, {limitOf(3), 2 * time.Minute, changed}, {"limits: 5", 2 * time.Minute, changed}, {limitOf(3) + "\n", 4 * time.Minute, "[]"}} {
			time.Sleep(time.Minute)
			p.write(step.text)
			if got := p.Loaded().Sub(opened); got != step.want {
				t.Errorf("%q: got %v after Open, want %v", step.text, got, step.want)
			}
			p.all(t) // a new handler leaves it as it was, too
			if got := fmt.Sprint(p.Changed()); got != step.changed {
				t.Errorf("%q: got %s, want %s", step.text, got, step.changed)
			}
		}
	})
}

// A recorder is a slog.Handler that sends the text of each record to a channel.
type recorder chan string

func (r recorder) Enabled(context.Context, slog.Level) bool { return true }
func (r recorder) WithAttrs([]slog.Attr) slog.Handler       { return r }
func (r recorder) WithGroup(string) slog.Handler            { return r }
func (r recorder) Handle(_ context.Context, rec slog.Record) error {
	s := rec.Message
	rec.Attrs(func(a slog.Attr) bool {
		s += fmt.Sprintf(" %s=%v", a.Key, a.Value)
		return true
	})
	r <- s
	return nil
}

// A watched is a File for which Watch runs until the test ends.
type watched struct {
	*File
	t       *testing.T
	records recorder
}

// watch runs f in a bubble, in which the time between two looks at the files takes no time.
func watch(t *testing.T, path string, fsys fs.FS, f func(t *testing.T, w *watched)) {
	synctest.Test(t, func(t *testing.T) {
		w := &watched{t: t, records: make(recorder, 100)}
		var err error
		w.File, err = Open(path, memstore.New(memstore.Options{}),
			Options{FS: fsys, Limiter: weir.Options{Logger: slog.New(w.records)}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan error)
		go func() { done <- w.Watch(ctx) }()
		defer func() {
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Watch returned %v", err)
			}
		}()
		f(t, w)
	})
}

// wait returns when a record with that text was logged.
func (w *watched) wait(text string) {
	w.t.Helper()
	deadline := time.After(3 * lookEvery)
	for {
		select {
		case r := <-w.records:
			if strings.Contains(r, text) {
				return
			}
			w.t.Logf("skipped: %s", r)
		case <-deadline:
			w.t.Fatalf("no record with %q", text)
		}
	}
}

func (w *watched) waitChange(from, to int) {
	w.t.Helper()
	w.wait(fmt.Sprintf("from=%d per 1h to=%d per 1h", from, to))
	if got := w.Rules()[0].Limits[0].Quota; got != int64(to) {
		w.t.Errorf("the limit is %d, want %d", got, to)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatch(t *testing.T) {
	write := func(t *testing.T, path string, n int) {
		t.Helper()
		must(t, os.MkdirAll(filepath.Dir(path), 0o755))
		must(t, os.WriteFile(path, []byte(limitOf(n)), 0o644))
	}
	link := func(t *testing.T, target, path string) { // atomically, as ln -sfT does
		t.Helper()
		if runtime.GOOS == "windows" {
			t.Skip("Windows cannot replace a link to a directory")
		}
		must(t, os.Symlink(target, path+".tmp"))
		must(t, os.Rename(path+".tmp", path))
	}
	// Each case creates a file with a limit of 1, and changes the limit to 2 and to 3.
	for _, tt := range []struct {
		name   string
		path   string
		create func(t *testing.T, dir string)
		change func(t *testing.T, dir string, n int)
	}{
		{"in place", "r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/r.yaml", 1) },
			func(t *testing.T, dir string, n int) { write(t, dir+"/r.yaml", n) },
		},
		{"renamed over, as editors do", "r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/r.yaml", 1) },
			func(t *testing.T, dir string, n int) {
				write(t, dir+"/r.yaml~", n)
				must(t, os.Rename(dir+"/r.yaml~", dir+"/r.yaml"))
			},
		},
		{"removed and made again", "r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/r.yaml", 1) },
			func(t *testing.T, dir string, n int) {
				must(t, os.Remove(dir+"/r.yaml"))
				write(t, dir+"/r.yaml", n)
			},
		},
		{"a ConfigMap of Kubernetes", "etc/r.yaml",
			func(t *testing.T, dir string) {
				write(t, dir+"/etc/..1/r.yaml", 1)
				link(t, "..1", dir+"/etc/..data")
				link(t, "..data/r.yaml", dir+"/etc/r.yaml")
			},
			func(t *testing.T, dir string, n int) {
				write(t, fmt.Sprintf("%s/etc/..%d/r.yaml", dir, n), n)
				link(t, fmt.Sprintf("..%d", n), dir+"/etc/..data")
				must(t, os.RemoveAll(fmt.Sprintf("%s/etc/..%d", dir, n-1)))
			},
		},
		{"a link to the directory", "current/conf/r.yaml",
			func(t *testing.T, dir string) {
				write(t, dir+"/releases/1/conf/r.yaml", 1)
				link(t, dir+"/releases/1", dir+"/current")
			},
			func(t *testing.T, dir string, n int) {
				write(t, fmt.Sprintf("%s/releases/%d/conf/r.yaml", dir, n), n)
				link(t, fmt.Sprintf("%s/releases/%d", dir, n), dir+"/current")
			},
		},
		{"what a link leads to", "r.yaml",
			func(t *testing.T, dir string) {
				write(t, dir+"/other/r.yaml", 1)
				link(t, "other/r.yaml", dir+"/r.yaml")
			},
			func(t *testing.T, dir string, n int) { write(t, dir+"/other/r.yaml", n) },
		},
		{"the directory removed and made again", "conf/r.yaml",
			func(t *testing.T, dir string) { write(t, dir+"/conf/r.yaml", 1) },
			func(t *testing.T, dir string, n int) {
				must(t, os.RemoveAll(dir+"/conf"))
				write(t, dir+"/conf/r.yaml", n)
			},
		},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			tt.create(t, dir)
			watch(t, filepath.Join(dir, tt.path), nil, func(t *testing.T, w *watched) {
				for n := 2; n <= 3; n++ {
					tt.change(t, dir, n)
					w.waitChange(n-1, n)
				}
			})
		})
	}
}

// TestWatchMistake: Watch logs each error of a file, and loads the next file without a
// error. It ignores changes of other files in the directory.
func TestWatchMistake(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	must(t, os.WriteFile(path, []byte(limitOf(1)), 0o644))
	watch(t, path, nil, func(t *testing.T, w *watched) {
		must(t, os.WriteFile(path, []byte("limits: [{name: a, config: [{limit: 0, period: x}]}]"), 0o644))
		w.wait("r.yaml:1:37: limit is 0")
		w.wait("r.yaml:1:48: period is \"x\"")
		must(t, os.WriteFile(path+".log", []byte("noise"), 0o644))
		must(t, os.Remove(path))
		w.wait("rules not reloaded err=config: open")
		must(t, os.WriteFile(path, []byte(limitOf(2)), 0o644))
		w.waitChange(1, 2)
	})
}

// TestWatchCut: if a program cuts the file at the end of a line, the rest is a valid file
// with fewer rules. The log then says which rules and limits were removed, and no line has
// an empty value.
func TestWatchCut(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	const first = "limits:\n- name: a\n  config:\n  - {limit: 10, period: 1h}\n"
	must(t, os.WriteFile(path, []byte(first+"  - {limit: 1, period: 3s}\n- {name: b, config: [{limit: 5, period: 3s}]}\n"), 0o644))
	watch(t, path, nil, func(t *testing.T, w *watched) {
		must(t, os.WriteFile(path, []byte(first), 0o644))
		w.wait("config: rule changed rule=a part=limit 3s (gcra) from=1 per 3s lost=true")
		w.wait("config: rule removed rule=b limits=5 per 3s lost=true")
		must(t, os.WriteFile(path, []byte(strings.Replace(first, "1h}", "1h}\n  - {limit: 1, period: 3s}", 1)), 0o644))
		w.wait("config: rule changed rule=a part=limit 3s (gcra) to=1 per 3s")
	})
}

// TestWatchWriting: a file that changes from one look to the next is not loaded before it has stayed
// the same.
func TestWatchWriting(t *testing.T) {
	path := filepath.Join(t.TempDir(), "r.yaml")
	must(t, os.WriteFile(path, []byte(limitOf(1)), 0o644))
	watch(t, path, nil, func(t *testing.T, w *watched) {
		for n := 2; n < 10; n++ {
			must(t, os.WriteFile(path, []byte(limitOf(n)), 0o644))
			time.Sleep(lookEvery * 2 / 5)
			synctest.Wait()
			if got := w.Rules()[0].Limits[0].Quota; got != 1 {
				t.Errorf("after %d changes, the limit is %d, want 1", n-1, got)
			}
		}
		w.waitChange(1, 9)
	})
}

func TestWatchFS(t *testing.T) {
	dir := t.TempDir()
	must(t, os.WriteFile(dir+"/r.yaml", []byte(limitOf(1)), 0o644))
	watch(t, "r.yaml", os.DirFS(dir), func(t *testing.T, w *watched) {
		must(t, os.WriteFile(dir+"/r.yaml", []byte(limitOf(2)), 0o644))
		w.waitChange(1, 2)
	})
}
