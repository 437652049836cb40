package config

import (
	"fmt"
	"net/http/httptest"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/ops/overrides"
)

// overridden has overrides of a rule that allows 20 per minute, and the limits that the keys then
// have (want). If the overrides have an error, wrong is a part of the error.
var overridden = []struct{ key, overrides, keys, want, wrong string }{
	{"user", "[{value: alice, config: [{limit: 200}]}]", "alice bob", "1m=200 1m=20", ""},
	{"user", "[{value: [alice, carol], config: [{limit: 200, period: 1h}]}]", "alice bob carol", "1m=200 1m=20 1m=200", ""},
	{"user", "[{value: alice, config: [{limit: 7, burst: 9}]}]", "alice", "1m=7", ""},
	{"user", "[{value: alice, config: [{name: 1m, limit: 7}, {limit: 5, period: 1s}]}]", "alice", "1m=7,1s=5", ""},
	{"user", "[{value: alice, config: [{limit: 7, period: day}]}]", "alice", "1m=7", ""},
	{"user", "[{value: alice, config: unlimited}, {value: mallory, config: denied}]", "alice mallory", " denied", ""},
	{"user", "[{value: {prefix: a}, config: [{limit: 7}]}, {value: {prefix: ali}, config: [{limit: 8}]}, {value: alice, config: [{limit: 9}]}]", "alf alic alice", "1m=7 1m=8 1m=9", ""},
	{"user", "[{value: {prefix: \"\"}, config: [{limit: 7}]}]", "alice", "1m=7", ""},
	{"ip", "[{value: 192.0.2.1, config: [{limit: 7}]}, {value: {prefix: 198.51.}, config: [{limit: 8}]}, {value: '2001:db8:1:2::/64', config: [{limit: 9}]}]", "192.0.2.1 198.51.100.7 2001:db8:1:2::/64", "1m=7 1m=8 1m=9", ""},
	{"[user, method]", "[{value: alice, config: [{limit: 7}], overrides: [{value: POST, config: [{limit: 3}]}]}]", "5:alice,3:GET, 5:alice,4:POST, 3:bob,3:GET,", "1m=7 1m=3 1m=20", ""},
	{"[user, method]", "[{value: {prefix: \"\"}, overrides: [{value: POST, config: [{limit: 3}]}]}]", "5:alice,3:GET, 5:alice,4:POST,", "1m=20 1m=3", ""},
	{"{first-of: [user, ip]}", "[{value: '0:alice', config: [{limit: 7}]}]", "0:alice 1:alice", "1m=7 1m=20", ""},

	{"user", "[{value: alice, config: [{limit: 7}]}, {value: [bob, alice], config: denied}]", "", "", `two overrides have the value "alice"; the first is in line 5`},
	{"user", "[{value: alice, config: unlimitd}]", "", "", `config is "unlimitd"; want a list of limits, unlimited or denied`},
	{"user", "[{value: alice, config: [{limit: 0}]}]", "", "", "limit is 0; want at least 1"},
	{"user", "[{value: alice, config: [{limt: 5}]}]", "", "", "unknown field limt in a limit; did you mean limit?"},
	{"user", "[{values: [alice], config: denied}]", "", "", "unknown field values in an override; did you mean value?"},
	{"user", "[{value: alice}]", "", "", "an override has no config"},
	{"user", "[{value: alice, config: [{limit: 5}, {limit: 6}]}]", "", "", "a limit has no period, and the rule has several"},
	{"user", "[{value: alice, config: [{limit: 600, period: 600}, {limit: 10, period: 10}]}]", "", "", "never refuses a request that"},
	{"user", "[{value: alice, config: [{limit: 5, algorithm: gcra}]}]", "", "", "needs a period"},
	{"user", "[{value: alice, overrides: [{value: GET, config: denied}]}]", "", "", "nested only once, and only if the key is a list"},
	{"[user, method]", "[{value: alice, overrides: [{value: GET, overrides: [{value: x, config: denied}]}]}]", "", "", "nested only once, and only if the key is a list"},
	{"[user, method]", "[{value: alice, overrides: [{value: get, config: denied}]}]", "", "", "want one of GET"},
	{"{first-of: [user, ip]}", "[{value: alice, config: denied}]", "", "", `want "0:alice"`},
	{"ip", "[{value: 10.0.0.0/8, config: denied}]", "", "", `a request from 10.0.0.0 has the key "10.0.0.0"`},
	{"ip", "[{value: '2001:db8::1', config: denied}]", "", "", `has the key "2001:db8::/64"`},
	{"ip", "[{value: alice, config: denied}]", "", "", "want an address"},
	{"user", "[{value: al*, config: denied}]", "", "", `"al*" ends with an asterisk: write {prefix: "al"} for all keys with this prefix, or {key: "al*"} for this key alone`},
	{"user", "[{value: {key: a, prefix: b}, config: denied}]", "", "", "want one field in it, key or prefix"},
	{"user", "[{value: {key: 'al*'}, config: denied}]", "alice al*", "1m=20 denied", ""},
	{"user", "[{value: {key: '*'}, config: denied}, {value: 0.0.0.0/1, config: denied}]", "alice 192.0.2.1 * 0.0.0.0/1", "1m=20 1m=20 denied denied", ""},
	{"hashed:user", "[{value: {prefix: al}, config: denied}]", "", "", "its keys are hashed, so it has none with a prefix; want a whole key"},
	{"hashed:ip", "[{value: alice, config: denied}]", "", "", "want an address"},
	{"ip:24/48", "[{value: 192.0.2.1, config: denied}]", "", "", `a request from 192.0.2.1 has the key "192.0.2.0/24"`},
	{"ip:24/48", "[{value: 192.0.2.0/24, config: denied}, {value: '2001:db8:1::/48', config: [{limit: 7}]}]", "192.0.2.0/24 2001:db8:1::/48", "denied 1m=7", ""},
	{"user", "[]", "", "", "overrides is an empty list"},
	{"user", "{alice: 5}", "", "", "overrides is a mapping; want a list"},
	{"user", `[{value: "", config: denied}]`, "", "", "value is an empty string"},
	{"user", `[{value: "a\u001bb", config: denied}, {value: "a\u001bb", config: denied}]`, "", "", "two overrides have the value"},
}

func TestOverrides(t *testing.T) {
	for _, tt := range overridden {
		f, err := open("limits:\n- name: a\n  algorithm: gcra\n  key: "+tt.key+"\n  overrides: "+tt.overrides+"\n  config: [{limit: 20, period: 60}]\n", testOptions)
		if tt.wrong != "" {
			if err == nil || !strings.Contains(err.Error(), tt.wrong) || strings.Contains(err.Error(), "\x1b") {
				t.Errorf("%s: got %v, want %q", tt.overrides, err, tt.wrong)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tt.overrides, err)
			continue
		}
		f.Handler("a")
		var got []string
		for _, key := range strings.Fields(tt.keys) {
			policy, err := f.Limiters()[0].PolicyOf("a", key)
			if err != nil {
				t.Errorf("%s: %v", tt.overrides, err)
			}
			var texts []string
			if policy.Is(weir.Denied()) {
				texts = append(texts, "denied")
			}
			for _, l := range policy.Limits() {
				texts = append(texts, fmt.Sprintf("%s=%d", l.Name, l.Quota))
			}
			got = append(got, strings.Join(texts, ","))
		}
		if got := strings.Join(got, " "); got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.overrides, got, tt.want)
		}
	}
}

// TestReloadOfOverrides: if a reload changes an override, units spent under it still count,
// and the reported change names the key.
func TestReloadOfOverrides(t *testing.T) {
	text := func(overrides string) string {
		return "limits:\n- name: a\n  key: user\n  algorithm: fixed-window\n  config: [{limit: 2, period: 1000h}]\n" + overrides
	}
	p := newPage(t, text(""), testOptions)
	h := p.Handler("a")(ok)
	ask := func(want int) {
		t.Helper()
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("X-User", "alice")
		if h.ServeHTTP(w, r); w.Code != want {
			t.Errorf("got %d, want %d", w.Code, want)
		}
	}
	ask(200)
	ask(200)
	ask(429)
	for _, step := range []struct {
		overrides, want string
		code            int
	}{
		{"  overrides: [{value: alice, config: [{limit: 3}]}]", "a: override alice: added: 3 per 1000h", 200},
		{"  overrides: [{value: alice, config: [{limit: 3}]}] # said again", "", 429},
		{"  overrides: [{value: alice, config: unlimited}]", "a: override alice: 3 per 1000h → unlimited", 200},
		{"  overrides: [{value: alice, config: denied}]", "a: override alice: unlimited → denied", 429},
		{"", "a: override alice: removed: denied", 429},
	} {
		if got := p.mustWrite(t, text(step.overrides)).String(); got != step.want {
			t.Errorf("got %q, want %q", got, step.want)
		}
		ask(step.code)
	}
}

// TestNetworks: a client with a whole /48, or a /24, cannot escape a limit under a key of that size, behind
// a proxy of either kind and without one.
func TestNetworks(t *testing.T) {
	for _, header := range []string{"", "X-Forwarded-For", "Forwarded"} {
		text := "limits: [{name: a, key: 'ip:24/48', config: [{limit: 5, period: 1h}]}]"
		if header != "" {
			text = "trusted-proxies: [203.0.113.7]\nproxy-header: " + strings.ToLower(header) + "\n" + text
		}
		f, err := open(text, testOptions)
		if err != nil {
			t.Fatal(err)
		}
		h := f.Handler("a")(ok)
		for _, format := range []string{"2001:db8:1:%x::1", "192.0.2.%d"} {
			admitted := 0
			for i := range 200 {
				client := fmt.Sprintf(format, i)
				r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
				r.RemoteAddr = netip.AddrPortFrom(netip.MustParseAddr(client), 4711).String()
				switch header {
				case "X-Forwarded-For":
					r.RemoteAddr = "203.0.113.7:4711"
					r.Header.Set(header, client)
				case "Forwarded":
					r.RemoteAddr = "203.0.113.7:4711"
					if strings.Contains(client, ":") {
						client = `"[` + client + `]"`
					}
					r.Header.Set(header, "for="+client)
				}
				if h.ServeHTTP(w, r); w.Code == 200 {
					admitted++
				}
			}
			if admitted != 5 {
				t.Errorf("%q, %s: %d of 200 networks admitted, want 5", header, format, admitted)
			}
		}
	}
	for key, want := range map[string]string{
		"ip:33/48": "such as ip:32/48", "ip:24": "such as ip:32/48", "ip:0/48": "such as ip:32/48", "ip:24/129": "such as ip:32/48", "ip:a/b": "such as ip:32/48",
	} {
		if _, err := open("limits: [{name: a, key: '"+key+"', config: [{limit: 5, period: 1h}]}]", testOptions); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("key %s: got %v, want %s", key, err, want)
		}
	}
}

// TestHashedKeys: a file can hash keys. The store sees only the digest; lists and overrides have the name.
func TestHashedKeys(t *testing.T) {
	var charged []string
	o := testOptions
	o.Limiter.Observe = func(e weir.Event) {
		for _, c := range e.Transaction.Charges {
			charged = append(charged, c.Key)
		}
	}
	for _, key := range []string{"hashed:user", "{hashed: user}", "'hashed:header:X-User'", "{hashed: {header: X-User}}"} {
		charged = nil
		f, err := open("limits:\n- name: a\n  key: "+key+"\n  deny: [mallory]\n  overrides: [{value: alice, config: [{limit: 2}]}]\n  config: [{limit: 1, period: 1h}]\n", o)
		if err != nil {
			t.Errorf("key %s: %v", key, err)
			continue
		}
		got := ""
		for _, user := range []string{"alice", "alice", "alice", "bob", "bob", "mallory"} {
			r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
			r.Header.Set("X-User", user)
			f.Handler("a")(ok).ServeHTTP(w, r)
			got += fmt.Sprint(w.Code, " ")
		}
		if got != "200 200 429 200 429 429 " {
			t.Errorf("key %s: got %s", key, got)
		}
		if want := weir.HashedKey(o.Secret, "alice"); len(charged) != 5 || charged[0] != want {
			t.Errorf("key %s: charged %q, want %q first", key, charged, want)
		}
		if reads := fmt.Sprint(f.Reads("a")); reads != "[user]" && reads != "[header:X-User]" {
			t.Errorf("key %s reads %s", key, reads)
		}
	}
	o.Secret = nil
	if _, err := open("limits: [{name: a, key: 'hashed:ip', config: [{limit: 1, period: 1h}]}]", o); err == nil || !strings.Contains(err.Error(), "a hashed key needs a secret") {
		t.Errorf("without a secret: got %v", err)
	}
	o.Secret = []byte("short")
	if _, err := open("limits: [{name: a, config: [{limit: 1, period: 1h}]}]", o); err == nil || !strings.Contains(err.Error(), "Options.Secret has 5 bytes; want at least 16") {
		t.Errorf("a short secret: got %v", err)
	}
	o.Secret = make([]byte, 32)
	if _, err := open("limits: [{name: a, config: [{limit: 1, period: 1h}]}]", o); err == nil || !strings.Contains(err.Error(), "Options.Secret has only zero bytes") {
		t.Errorf("an empty secret: got %v", err)
	}
}

// TestFirstOfIP: a key after one that every request has is an error.
func TestFirstOfIP(t *testing.T) {
	for keys, want := range map[string]string{
		"ip, user": "ip", "user, 'ip:24/48', user": "ip:24/48", "method, ip": "method", "user, ip": "", "'header:Host', ip": "",
		"'hashed:ip', user": "hashed ip", "[ip, method], user": "ip + method", "[ip, user], ip": "", "{first-of: [user, ip]}, user": "first of (user, ip)",
	} {
		_, err := open("limits: [{name: a, key: {first-of: ["+keys+"]}, config: [{limit: 1, period: 1h}]}]", testOptions)
		if text := "first-of: every request has the key " + want + ", so the keys after it are never used"; (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), text) {
			t.Errorf("%s: got %v", keys, err)
		}
	}
}

// TestManyOverrides: a file with a megabyte of overrides is loaded, or with a quarter of it
// without WEIR_LONG.
func TestManyOverrides(t *testing.T) {
	var b strings.Builder
	b.WriteString("limits:\n- name: a\n  key: user\n  config: [{limit: 2, period: 60}]\n  overrides:\n")
	for i, size := 0, min(rounds.N(1<<18, 1<<20), 1<<20); b.Len() < size; i++ {
		fmt.Fprintf(&b, "  - {value: customer-%d, config: [{limit: %d}]}\n", i, 10+i%5)
	}
	start := time.Now()
	p := newPage(t, b.String(), testOptions)
	t.Log(time.Since(start), b.Len())
	if c := p.mustWrite(t, strings.Replace(b.String(), "limit: 11", "limit: 99", 1)); len(c) != 1 {
		t.Errorf("got %d changes, want 1", len(c))
	}
}

// TestLiveNetworks: if Options.Overrides denies a network, a rule of the file refuses its
// addresses, whatever the key of the rule, before and after a reload.
func TestLiveNetworks(t *testing.T) {
	live := overrides.NewLive(overrides.LiveOptions{})
	p := newPage(t, "limits: [{name: a, key: global, deny: [203.0.113.7], config: [{limit: 50, period: 1h}]}]", Options{Overrides: live})
	h := p.Handler("a")(ok)
	from := func(addr string) int {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.RemoteAddr = addr + ":4711"
		h.ServeHTTP(w, r)
		return w.Code
	}
	must(t, live.Set(t.Context(), "a", overrides.Entry{Network: netip.MustParsePrefix("192.0.2.0/24"), Denied: true}, 0, ""))
	got := fmt.Sprint(from("192.0.2.7"), from("192.0.3.7"), from("203.0.113.7"))
	p.mustWrite(t, "limits: [{name: a, key: 'header:X', config: [{limit: 50, period: 1h}]}]")
	got += fmt.Sprint(" ", from("192.0.2.7"), from("192.0.3.7"), from("203.0.113.7"))
	if want := "429 200 429 429 200 200"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
}

// TestWords: a rule whose config is unlimited or denied admits or refuses every request,
// except those of keys with overrides, also after a reload.
func TestWords(t *testing.T) {
	text := func(config, overrides string) string {
		return "limits: [{name: a, key: user, config: " + config + ", overrides: " + overrides + "}]"
	}
	const own = "[{value: alice, config: [{limit: 1, period: 1h}]}, {value: bob, config: unlimited}, {value: mallory, config: denied}]"
	p := newPage(t, text("unlimited", own), testOptions)
	h := p.Handler("a")(ok)
	ask := func(user string) string {
		r, w := httptest.NewRequest("GET", "/", nil), httptest.NewRecorder()
		r.Header.Set("X-User", user)
		h.ServeHTTP(w, r)
		return fmt.Sprint(w.Code, w.Header().Get("X-RateLimit-Limit"), w.Header().Get("Retry-After"))
	}
	for _, step := range []struct{ text, change, want string }{
		{"", "", "alice 2001 alice 42913600 bob 200 carol 200 carol 200 mallory 429"},
		{text("denied", own), "a: config: unlimited → denied", "alice 42913600 bob 200 carol 429 mallory 429"},
		{text("[{limit: 2, period: 1h}]", own), "", "carol 2002 bob 200 mallory 429"},
		{text("unlimited", own), "", "carol 200"},
	} {
		if step.text != "" {
			if got := p.mustWrite(t, step.text).String(); step.change != "" && got != step.change {
				t.Errorf("got the change %q, want %q", got, step.change)
			}
		}
		var got []string
		for i, word := range strings.Fields(step.want) {
			if i%2 == 0 {
				got = append(got, word, strings.TrimSpace(ask(word)))
			}
		}
		if got := strings.Join(got, " "); got != step.want {
			t.Errorf("%s:\ngot  %s\nwant %s", step.text, got, step.want)
		}
	}
	for _, bad := range []struct{ config, overrides, want string }{
		{"unlimitd", own, `config is "unlimitd"; want a list of limits, unlimited or denied`},
		{"denied", "[{value: alice, config: [{limit: 1}]}]", "no limit that it could replace"},
		{"unlimited, burst: 5", own, "no limit of the rule has a burst"},
	} {
		if _, err := open(text(bad.config, bad.overrides), testOptions); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: got %v, want %q", bad.config, err, bad.want)
		}
	}
}
