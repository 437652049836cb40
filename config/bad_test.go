package config

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
)

var testOptions = Options{
	Keys:  map[string]weir.KeyFunc{"user": weir.ByHeader("X-User")},
	Costs: map[string]func(*http.Request) int64{"tokens": func(*http.Request) int64 { return 1 }},
}

// open opens a file of that text.
func open(text string, o Options) (*File, error) {
	o.FS = fstest.MapFS{"r.yaml": {Data: []byte(text)}}
	return Open("r.yaml", memstore.New(memstore.Options{}), o)
}

// one is a file with one rule of one limit, and more fields of each.
func one(rule, limit string) string {
	return "limits:\n- name: a\n" + rule + "  config:\n  - limit: 5\n    period: 3\n" + limit
}

// bad are files that are not loaded, with all that is said of them. Those that
// a schema can know of are marked.
var bad = []struct {
	name, text string
	structural bool
	want       string // one a line
}{
	{"empty", "", false,
		"1:1: the file is empty; it needs limits"},
	{"only a comment", "# nothing\n", false,
		"1:1: the file is empty; it needs limits"},
	{"null", "~\n", true,
		"1:1: the file is empty; want a mapping"},
	{"text", "limits\n", true,
		`1:1: the file is "limits"; want a mapping`},
	{"a list", "- a\n", true,
		"1:1: the file is a list; want a mapping"},
	{"no limits", "key: ip\n", true,
		"1:1: the file has no limits"},
	{"empty limits", "limits:\n", true,
		"1:9: limits is empty; want a list"},
	{"limits without one", "limits: []\n", true,
		"1:9: limits is an empty list"},
	{"limits is a mapping", "limits: {name: a}\n", true,
		"1:9: limits is a mapping; want a list"},
	{"a rule is text", "limits: [a]\n", true,
		`1:10: a rule is "a"; want a mapping`},
	{"two documents", "limits: []\n---\nlimits: []\n", false,
		"3:1: the file has more than one document"},
	{"a tab", "limits:\n\t- name: a\n", false,
		"2:1: not YAML: found character '\\t' that cannot start any token"},
	{"unclosed list", "limits: [\n", false,
		"1:9: not YAML: sequence end token ']' not found"},
	{"unclosed quote", "limits: \"a\n", false,
		"1:9: not YAML: could not find end character of double-quoted text"},
	{"bad indentation", "limits:\n- name: a\n   key: ip\n", false,
		"2:9: not YAML: mapping value is not allowed in this context"},
	{"not UTF-8", "limits:\n- name: \"\xff\"\n", false,
		"2:1: the line is not text in UTF-8"},
	{"NUL", "limits:\x00\n", false,
		"1:1: the line is not text in UTF-8"},
	{"unknown field", "limts: []\n", true,
		"1:1: unknown field limts in the file; did you mean limits?"},
	{"field of another library", "rules: []\n", true,
		"1:1: unknown field rules in the file; did you mean limits?"},
	{"field with a typo", one("", "    perid: 3\n"), true,
		"6:5: unknown field perid in a limit; did you mean period?"},
	{"quota", one("", "    quota: 3\n"), true,
		"6:5: unknown field quota in a limit; did you mean limit?"},
	{"field that is nothing like one", one("  colour: red\n", ""), true,
		"3:3: unknown field colour in a rule; known are name, key, algorithm, burst, timezone, headers, cost, unit, shadow, allow, deny, penalty, config"},
	{"field that is no text", one("  1: red\n", ""), true,
		"3:3: unknown field 1 in a rule; known are name, key, algorithm, burst, timezone, headers, cost, unit, shadow, allow, deny, penalty, config"},
	{"field with a complex key", one("  ? [a]\n  : b\n", ""), false,
		"4:3: not YAML: found an invalid key for this map"},
	{"duplicate field", one("", "    limit: 6\n"), false,
		"6:5: a limit has the field limit twice; the first is in line 4"},
	{"duplicate field, all the same", one("  key: ip\n  key: ip\n", ""), false,
		"4:3: a rule has the field key twice; the first is in line 3"},
	{"merge key", one("  <<: {key: ip}\n", ""), false,
		"3:3: merging is not supported; the top of the file has defaults for all rules"},
	{"anchor", "key: &k ip\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		"1:6: key is an anchor, which is not supported; the top of the file has defaults for all rules"},
	{"alias", one("  key: *k\n", ""), false,
		"3:8: key is an alias, which is not supported; the top of the file has defaults for all rules"},
	{"anchor bomb", "a: &a [x, x]\nb: &b [*a, *a]\nc: &c [*b, *b]\nlimits: *c\n", false,
		`1:1: unknown field a in the file; known are trusted-proxies, proxy-header, key, algorithm, timezone, headers, limits
2:1: unknown field b in the file; known are trusted-proxies, proxy-header, key, algorithm, timezone, headers, limits
3:1: unknown field c in the file; known are trusted-proxies, proxy-header, key, algorithm, timezone, headers, limits
4:9: limits is an alias, which is not supported; the top of the file has defaults for all rules`},
	{"tag", one("", "    burst: !!int 5\n"), false,
		"6:12: burst is tagged, which is not supported; the top of the file has defaults for all rules"},
	{"rule without a name", "limits:\n- config: [{limit: 5, period: 3}]\n", true,
		"2:3: a rule has no name"},
	{"rule with an empty name", "limits:\n- name: \"\"\n  config: [{limit: 5, period: 3}]\n", true,
		"2:9: name is an empty string"},
	{"name that is a number", "limits:\n- name: 7\n  config: [{limit: 5, period: 3}]\n", true,
		"2:9: name is 7; want a string"},
	{"name that no header can carry", "limits:\n- name: \u00fcber\n  config: [{limit: 5, period: 3}]\n", true,
		`2:9: rule "über": a header field can carry printable ASCII only`},
	{"two rules of a name", "limits:\n- name: a\n  config: [{limit: 5, period: 3}]\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		`4:3: two rules are named "a"; the first is in line 2`},
	{"no config", "limits:\n- name: a\n", true,
		"2:3: a rule has no config"},
	{"empty config", "limits:\n- {name: a, config: []}\n", true,
		"2:21: config is an empty list"},
	{"config is a limit", "limits:\n- name: a\n  config: {limit: 5, period: 3}\n", true,
		"3:11: config is a mapping; want a list"},
	{"no limit", "limits:\n- name: a\n  config: [{period: 3}]\n", true,
		"3:12: a limit has no limit"},
	{"no period", "limits:\n- name: a\n  config: [{limit: 5}]\n", true,
		"3:12: a limit has no period"},
	{"limit of 0", "limits:\n- name: a\n  config: [{limit: 0, period: 3}]\n", true,
		"3:20: limit is 0; want at least 1"},
	{"limit below 0", "limits:\n- name: a\n  config: [{limit: -5, period: 3}]\n", true,
		"3:20: limit is -5; want at least 1"},
	{"limit that is text", "limits:\n- name: a\n  config: [{limit: \"5\", period: 3}]\n", true,
		`3:20: limit is "5"; want a whole number`},
	{"limit with a fraction", "limits:\n- name: a\n  config: [{limit: 2.5, period: 3}]\n", true,
		"3:20: limit is 2.5; want a whole number"},
	{"limit that is empty", "limits:\n- name: a\n  config: [{limit: , period: 3}]\n", true,
		"3:19: limit is empty; want a whole number"},
	{"limit that is a truth", "limits:\n- name: a\n  config: [{limit: true, period: 3}]\n", true,
		"3:20: limit is true; want a whole number"},
	{"limit in octal", "limits:\n- name: a\n  config: [{limit: 010, period: 3}]\n", false,
		"3:20: limit is 010; want decimal digits"},
	{"limit in hexadecimal", "limits:\n- name: a\n  config: [{limit: 0x10, period: 3}]\n", false,
		"3:20: limit is 0x10; want decimal digits"},
	{"limit that is infinite", "limits:\n- name: a\n  config: [{limit: .inf, period: 3}]\n", false,
		"3:20: limit is .inf; want a whole number"},
	{"limit beyond int64", "limits:\n- name: a\n  config: [{limit: 99999999999999999999, period: 3}]\n", false,
		`3:20: limit is "99999999999999999999"; want a whole number`},
	{"limit that no store can count", "limits:\n- name: a\n  config: [{limit: 1125899906842625, period: 3}]\n", false,
		`3:12: limit "3s": quota 1125899906842625 exceeds 2^50`},
	{"period of 0", "limits:\n- name: a\n  config: [{limit: 5, period: 0}]\n", true,
		"3:31: period is 0; want more than 0"},
	{"period below 0", "limits:\n- name: a\n  config: [{limit: 5, period: -3s}]\n", true,
		"3:31: period is -3s; want more than 0"},
	{"period below a microsecond", "limits:\n- name: a\n  config: [{limit: 5, period: 10ns}]\n", false,
		"3:31: period 10ns is not in whole microseconds"},
	{"period in parts of a microsecond", "limits:\n- name: a\n  config: [{limit: 5, period: 1500ns}]\n", false,
		"3:31: period 1500ns is not in whole microseconds"},
	{"period of no unit", "limits:\n- name: a\n  config: [{limit: 5, period: 3 sec}]\n", true,
		`3:31: period "3 sec" is not a duration; write seconds, or 60s, 1m, 1d, or day, week, month for those of the calendar`},
	{"period too long", "limits:\n- name: a\n  config: [{limit: 5, period: 99999999w}]\n", false,
		`3:31: period "99999999w" is not a duration; write seconds, or 60s, 1m, 1d, or day, week, month for those of the calendar`},
	{"period that is a year", "limits:\n- name: a\n  config: [{limit: 5, period: year}]\n", true,
		`3:31: period "year" is not a duration; write seconds, or 60s, 1m, 1d, or day, week, month for those of the calendar`},
	{"period that is a list", "limits:\n- name: a\n  config: [{limit: 5, period: [3]}]\n", true,
		"3:31: period is a list; want seconds, or a duration such as 60s, 1m or 1d"},
	{"unknown algorithm", one("  algorithm: slidinglog\n", ""), true,
		"3:14: unknown algorithm slidinglog; did you mean sliding-log?"},
	{"unknown algorithm at the top", "algorithm: bucket\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", true,
		"1:12: unknown algorithm bucket; known are gcra, token-bucket, leaky-bucket, fixed-window, anchored-window, sliding-window, sliding-log, calendar"},
	{"burst of a log", one("", "    burst: 7\n"), false,
		"6:12: sliding-log has no burst: gcra, token-bucket and leaky-bucket have"},
	{"burst of no limit", one("  burst: 7\n", ""), false,
		"3:10: no limit of the rule has a burst: that is for gcra, token-bucket and leaky-bucket"},
	{"burst of 0", one("  algorithm: gcra\n  burst: 0\n", ""), true,
		"4:10: burst is 0; want at least 1"},
	{"calendar without a window", one("", "    algorithm: calendar\n"), false,
		"5:13: the calendar has no window of 3s; it has day, week and month"},
	{"a day of another algorithm", "limits:\n- name: a\n  config: [{limit: 5, period: day, algorithm: gcra}]\n", false,
		"3:47: gcra has no window of a day; only calendar has"},
	{"timezone of no calendar", one("", "    timezone: UTC\n"), false,
		"6:15: timezone is for the periods day, week and month"},
	{"unknown timezone", "timezone: Europe/Bonn\nlimits:\n- name: a\n  config: [{limit: 5, period: day}]\n", false,
		"1:11: unknown timezone Europe/Bonn; names are such as UTC and Europe/Berlin"},
	{"local timezone", "timezone: Local\nlimits:\n- name: a\n  config: [{limit: 5, period: day}]\n", false,
		"1:11: unknown timezone Local; names are such as UTC and Europe/Berlin"},
	{"unknown key", one("  key: ipp\n", ""), false,
		"3:8: unknown key ipp; did you mean ip?"},
	{"unknown kind of key", one("  key: heder:X-User\n", ""), true,
		"3:8: unknown key heder:X-User; did you mean header?"},
	{"key without a name", one("  key: \"header:\"\n", ""), true,
		"3:8: key header: has no name after the colon"},
	{"key of an impossible header", one("  key: header:X User\n", ""), false,
		"3:8: key header:X User: no header has such a name"},
	{"empty list of keys", one("  key: []\n", ""), true,
		"3:8: key is an empty list"},
	{"unknown key in a list", one("  key: [ip, [usr]]\n", ""), false,
		"3:14: unknown key usr; did you mean user?"},
	{"key with two kinds", one("  key: {first-of: [ip], header: X}\n", ""), true,
		"3:8: a key has one of first-of, header, cookie and path"},
	{"key of an unknown kind", one("  key: {last-of: [ip]}\n", ""), true,
		"3:9: unknown field last-of in key; did you mean first-of?"},
	{"trusted proxy that is no network", "trusted-proxies: [10.0.0.0/8, proxy]\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		`1:31: trusted-proxies: "proxy" is neither a network such as 10.0.0.0/8 nor an address`},
	{"everybody trusted", "trusted-proxies: [0.0.0.0/0]\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		"1:19: trusted-proxies: 0.0.0.0/0 trusts everybody, and everybody could choose a key"},
	{"trusted host in a network", "trusted-proxies: [10.0.0.1/8]\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		"1:19: trusted-proxies: 10.0.0.1/8 has bits after its length; did you mean 10.0.0.0/8?"},
	{"unknown headers", "headers: [ietf, githup]\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", true,
		"1:17: unknown headers githup; did you mean github?"},
	{"headers that share a field", "headers: [ietf, draft-07]\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		"1:10: IETF, Draft07 and Draft06 use the same fields: choose one"},
	{"none and headers", "headers: [none, ietf]\nlimits:\n- name: a\n  config: [{limit: 5, period: 3}]\n", false,
		"1:10: none goes with no other headers"},
	{"unknown cost", one("  cost: token\n", ""), false,
		`3:9: unknown cost "token"; did you mean tokens?`},
	{"cost of 0", one("  cost: 0\n", ""), true,
		"3:9: cost is 0; want at least 1"},
	{"cost that never fits", one("  cost: 6\n", ""), false,
		"3:9: cost 6 never fits in the limit of 5 per 3s, which holds 5: every request would be refused"},
	{"unit in capitals", one("  unit: Tokens\n", ""), true,
		`3:9: unit "Tokens" is not of lower-case letters, digits and hyphens`},
	{"shadow that is no truth", one("  shadow: maybe\n", ""), true,
		`3:11: shadow is "maybe"; want true, false or a percentage, 0% to 100%`},
	{"shadow without a percent sign", one("  shadow: 25\n", ""), true,
		"3:11: shadow is 25; want true, false or a percentage, 0% to 100%"},
	{"shadow of more than all", one("  shadow: 101%\n", ""), true,
		`3:11: shadow is "101%"; want true, false or a percentage, 0% to 100%`},
	{"allow that is no list", one("  allow: 10.0.0.0/8\n", ""), true,
		`3:10: allow is "10.0.0.0/8"; want a list`},
	{"allow of nobody", one("  allow: []\n", ""), true,
		"3:10: allow is an empty list"},
	{"allow of everybody", one("  key: user\n  allow: [alice, \"*\"]\n", ""), true,
		`4:18: allow: entry "*" would name everybody or nobody`},
	{"deny of a number", one("  key: user\n  deny: [alice, 7]\n", ""), true,
		"4:17: deny is 7; want a string"},
	{"deny of an impossible network", one("  key: user\n  deny:\n  - alice\n  - 10.0.0.0/33\n", ""), false,
		`6:5: deny: entry "10.0.0.0/33" is no network: its length is at most 32 for IPv4, as in 10.0.0.0/8, and 128 for IPv6`},
	{"deny of an address with a port", one("  deny: [\"192.0.2.7:443\", 192.0.2.07]\n", ""), false,
		`3:10: deny: entry "192.0.2.7:443" is not as addresses are written, without port, zone, spaces and leading zeros: list 192.0.2.7
3:27: deny: entry "192.0.2.07" is not as addresses are written, without port, zone, spaces and leading zeros: list 192.0.2.7`},
	{"proxy-header without proxies", "proxy-header: forwarded\n" + one("", ""), false,
		"1:15: proxy-header is a field of trusted-proxies, and the file has none"},
	{"proxy-header that nobody reads", "trusted-proxies: [10.0.0.0/8]\nproxy-header: X-Real-IP\n" + one("", ""), true,
		"2:15: unknown proxy-header X-Real-IP; known are x-forwarded-for, forwarded"},
	{"proxy-header that is a list", "trusted-proxies: [10.0.0.0/8]\nproxy-header: [forwarded]\n" + one("", ""), true,
		"2:15: proxy-header is a list; want a string"},
	{"penalty that is a limit", one("  penalty: {limit: 3, period: 60}\n", ""), true,
		"3:13: unknown field limit in a penalty; known are strikes, for, most\n3:23: unknown field period in a penalty; known are strikes, for, most"},
	{"penalty without strikes", one("  penalty: {for: 1m}\n", ""), true,
		"3:12: a penalty has no strikes"},
	{"penalty without a time", one("  penalty: {strikes: {limit: 3, period: 60}}\n", ""), true,
		"3:12: a penalty has no for"},
	{"strikes that are a number", one("  penalty: {strikes: 3, for: 1m}\n", ""), true,
		"3:22: strikes is 3; want a mapping"},
	{"strikes with a name", one("  penalty: {strikes: {name: x, limit: 3, period: 60}, for: 1m}\n", ""), true,
		"3:23: unknown field name in strikes; known are limit, period, algorithm, burst"},
	{"strikes of 0", one("  penalty: {strikes: {limit: 0, period: 60}, for: 1m}\n", ""), true,
		"3:30: limit is 0; want at least 1"},
	{"penalty for no time", one("  penalty: {strikes: {limit: 3, period: 60}, for: 0}\n", ""), true,
		"3:51: for is 0; want more than 0"},
	{"penalty for a day of the calendar", one("  penalty: {strikes: {limit: 3, period: 60}, for: day}\n", ""), true,
		`3:51: for "day" is not a duration; write seconds, or 60s, 1m, 1d`},
	{"penalty of less than its least", one("  penalty: {strikes: {limit: 3, period: 60}, for: 1h, most: 30m}\n", ""), false,
		"3:61: most 30m is less than for 1h"},
	{"two limits of a name", "limits:\n- name: a\n  config:\n  - {limit: 5, period: 60}\n  - {limit: 9, period: 1m}\n", false,
		`5:5: two limits of the rule are named "1m"`},
	{"two limits of a given name", "limits:\n- name: a\n  config:\n  - {name: x, limit: 5, period: 3}\n  - {name: x, limit: 9, period: 1m}\n", false,
		`5:5: two limits of the rule are named "x"`},
	{"limit that never refuses", "limits:\n- name: a\n  config:\n  - {limit: 600, period: 600}\n  - {limit: 10, period: 10}\n", false,
		"4:5: the limit 10m (600 per 10m) can never be the one to refuse: the limit 10s (10 per 10s) admits no more than that"},
	{"the same limit twice", "limits:\n- name: a\n  algorithm: gcra\n  config:\n  - {limit: 10, period: 10}\n  - {limit: 1, period: 1, burst: 10}\n", false,
		"6:5: the limit 1s (1 per 1s, 10 at once) can never be the one to refuse: the limit 10s (10 per 10s) admits no more than that"},
	{"many at once", "keys: ip\nlimits:\n- nam: a\n  config:\n  - {limit: 0, period: x}\n  - {limt: 1}\n- name: b\n  config: [{limit: 5, period: -1}]\n  algorithm: gcr\n", true,
		`1:1: unknown field keys in the file; did you mean key?
3:3: unknown field nam in a rule; did you mean name?
5:13: limit is 0; want at least 1
5:24: period "x" is not a duration; write seconds, or 60s, 1m, 1d, or day, week, month for those of the calendar
6:6: unknown field limt in a limit; did you mean limit?
8:31: period is -1; want more than 0
9:14: unknown algorithm gcr; did you mean gcra?`},
	{"too deep for anybody", "limits: " + strings.Repeat("[", 40), false,
		"1:25: nested too deeply"},
	{"too deep in one line", strings.Repeat("- ", 40), false,
		"1:33: nested too deeply"},
}

func TestBad(t *testing.T) {
	for _, tt := range bad {
		t.Run(tt.name, func(t *testing.T) {
			f, err := open(tt.text, testOptions)
			if f != nil || err == nil {
				t.Fatalf("Open of %q succeeded", tt.text)
			}
			if got := strings.ReplaceAll(err.Error(), "r.yaml:", ""); got != tt.want {
				t.Errorf("%s\ngot:\n%s\nwant:\n%s", tt.text, got, tt.want)
			}
		})
	}
}
