package config

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/test/badfiles"
	"github.com/seed83679106/weir/memstore"
)

// fieldsPage is a page with a table of fields under each heading of tables. It also has the
// names of all keys, algorithms and dialects.
const fieldsPage = "FIELDS.md"

// tables are the tables of the page, one for each mapping of a file of rules. Each has an
// example (file) in which %s stands for a field of the mapping.
var tables = []struct {
	heading        string
	schema         string // the name of the mapping in the schema; "" is the root
	fields, parent []string
	file           string
}{
	{"The file", "", fileFields, nil,
		"%s\ntrusted-proxies: [10.0.0.0/8]\nlimits: [{name: a, config: [{limit: 5, period: 3}, {limit: 900, period: day}]}]"},
	{"A rule", "rule", ruleFields, fileFields,
		"limits:\n- name: a\n  %s\n  config: [{limit: 5, period: 3}]"},
	{"A limit", "limit", limitFields, ruleFields, ""},
	{"An override", "override", overrideFields, nil, ""},
	{"A penalty", "penalty", penaltyFields, nil,
		"limits:\n- name: a\n  penalty: {strikes: {limit: 5, period: 3}, for: 1m, %s}\n  config: [{limit: 5, period: 3}]"},
	{"Strikes", "strikes", strikesFields, nil,
		"limits:\n- name: a\n  penalty: {strikes: {limit: 5, period: 3, %s}, for: 1m}\n  config: [{limit: 5, period: 3}]"},
}

// TestFieldTables: each table has all fields of the decoder in the order of the decoder, with
// their defaults, and marks the fields that the schema requires.
func TestFieldTables(t *testing.T) {
	text, err := os.ReadFile(fieldsPage)
	if err != nil {
		t.Fatal(err)
	}
	schema := readSchema(t)
	for _, tt := range tables {
		required := schema.Required
		if tt.schema != "" {
			required = schema.Defs[tt.schema].Required
		}
		var names []string
		for _, r := range rowsUnder(string(text), tt.heading) {
			name, def := r[0], r[2]
			names = append(names, name)
			what := tt.heading + ": " + name
			switch {
			case strings.HasPrefix(def, "`"):
				checkDefault(t, what, tt.file, name+": "+strings.Trim(def, "`"))
			case def == "as in the file", def == "as in the rule":
				if !slices.Contains(tt.parent, name) {
					t.Errorf("%s: got the default %q, which has no such field", what, def)
				}
			case def != "none" && def != "required" && def != "its period":
				t.Errorf("%s: got the default %q, which this test cannot check", what, def)
			}
			if got, want := def == "required", slices.Contains(required, name); got != want {
				t.Errorf("%s: required is %v on the page, %v in the schema", what, got, want)
			}
		}
		if !slices.Equal(names, tt.fields) {
			t.Errorf("%s: the page has %q, the decoder %q", tt.heading, names, tt.fields)
		}
	}
}

// TestNamesOnPage: FIELDS.md has the names of all keys, algorithms and dialects.
func TestNamesOnPage(t *testing.T) {
	text, err := os.ReadFile(fieldsPage)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range slices.Concat(builtinKeys, dialects, []string{calendar}) {
		if !strings.Contains(string(text), "`"+name+"`") && !strings.Contains(string(text), "`"+name+":NAME`") && !strings.Contains(string(text), "`{"+name+": ") {
			t.Errorf("the page lacks %s", name)
		}
	}
	for _, name := range algorithms.Names() {
		if !strings.Contains(string(text), "`"+name+"`") {
			t.Errorf("the page lacks %s", name)
		}
	}
}

// TestDialectNames: the names of dialects are in the order of the constants of package weir.
func TestDialectNames(t *testing.T) {
	for d, want := range map[headers.Dialect]string{headers.XRateLimit: "x-ratelimit", headers.Twitter: "twitter", headers.None: "none", headers.IETF | headers.Exposed: "ietf, exposed"} {
		if got := headerNames(d); got != want {
			t.Errorf("dialect %#x: got %q, want %q", d, got, want)
		}
	}
}

// rowsUnder returns the cells of the table under a heading. It removes the backquotes of the
// first cell of each row.
func rowsUnder(page, heading string) (rows [][]string) {
	_, after, _ := strings.Cut(page, "\n## "+heading+"\n")
	section, _, _ := strings.Cut(after, "\n## ")
	for _, line := range strings.Split(section, "\n") {
		cells := strings.Split(line, " | ")
		if name, isField := strings.CutPrefix(cells[0], "| `"); isField {
			cells[0] = strings.TrimSuffix(name, "`")
			rows = append(rows, cells)
		}
	}
	return rows
}

// checkDefault checks that a file means the same with a field and without the field.
func checkDefault(t *testing.T, what, file, field string) {
	t.Helper()
	var got []string
	for _, field := range []string{"", field} {
		f, err := open(strings.Replace(file, "%s", field, 1), testOptions)
		if err != nil {
			t.Errorf("%s: %v", what, err)
			return
		}
		got = append(got, fmt.Sprint(f.current.Load().rules[0].facts()))
	}
	if got[0] != got[1] {
		t.Errorf("%s: with %s the rule is\n%s, without\n%s", what, field, got[1], got[0])
	}
}

// TestBurstErrors: what an error about a burst asks for is no other error.
func TestBurstErrors(t *testing.T) {
	const none = "has no burst: only gcra, token-bucket and leaky-bucket have; omit the field"
	for _, tt := range []struct{ config, want string }{
		{"[{limit: 9, period: day, burst: 3}]", "1:60: calendar " + none},
		{"[{limit: 9, period: day, burst: 0}]", "1:60: burst is 0; want at least 1, or omit the field"},
		{"[{limit: 9, period: 1h, algorithm: sliding-log, burst: 3}]", "1:83: sliding-log " + none},
		{"[{limit: 9, period: 1h, burst: 0}]", "1:59: burst is 0; want at least 1, or omit the field"},
		{"[{limit: 9, period: 1h}], penalty: {strikes: {limit: 1, period: 1m, burst: 3}, for: 1h}", "anchored-window " + none},
		{"[{limit: 9, period: day}], burst: 3", strings.Replace("no limit of the rule "+none, "no burst", "a burst", 1)},
		{"[{limit: 9, period: day}], overrides: [{value: 192.0.2.1, config: [{limit: 7, burst: 3}]}]", "calendar " + none},
		{"[{limit: 9, period: day}], overrides: [{value: 192.0.2.1, config: [{limit: 7, period: day, burst: 3}]}]", "calendar " + none},
		{"[{limit: 9, period: 1h}], overrides: [{value: 192.0.2.1, config: [{limit: 7, burst: 0}]}]", "burst is 0; want at least 1, or omit the field"},
	} {
		_, err := open("limits: [{name: a, config: "+tt.config+"}]", Options{})
		if err == nil || !strings.Contains(err.Error(), tt.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %v, want %s", tt.config, err, tt.want)
		}
	}
}

// TestPrivateRule: a rule with private: true is in no header field, and a reload names the change.
func TestPrivateRule(t *testing.T) {
	const file = "limits: [{name: all, key: global, config: [{limit: 1, period: 1h}]%s}, {name: client, config: [{limit: 9, period: 1h}]}]"
	p := newPage(t, fmt.Sprintf(file, ""), Options{})
	h := p.Handler("all", "client")(ok)
	for _, c := range []struct{ private, changes, want string }{
		{", private: true", "all: private: added: true", "9"},
		{", private: false", "all: private: removed: true", "1"},
	} {
		if got := p.mustWrite(t, fmt.Sprintf(file, c.private)).String(); got != c.changes {
			t.Errorf("got %s, want %s", got, c.changes)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		if got := w.Header().Get("X-RateLimit-Limit"); got != c.want {
			t.Errorf("%s: got X-RateLimit-Limit %s, want %s", c.private, got, c.want)
		}
	}
}

// TestAnswer: the fields status and retry-jitter set the status and the Retry-After of
// refusals. A reload that changes them reports the changes and loses no counts.
func TestAnswer(t *testing.T) {
	const before = "limits: [{name: a, config: [{limit: 1, period: 1h}]}]"
	p := newPage(t, before, Options{})
	h := p.Handler("a")(ok)
	get(h)
	if got := get(h); got != 429 {
		t.Errorf("got %d, want 429", got)
	}
	changes := p.mustWrite(t, "limits: [{name: a, status: 503, retry-jitter: 1w, config: [{limit: 1, period: 1h}]}]")
	if got, want := changes.String(), "a: status: 429 → 503\na: retry-jitter: added: 7d"; got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	waits := map[int]bool{}
	for range 20 {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		after, _ := strconv.Atoi(w.Header().Get("Retry-After"))
		if waits[after] = true; w.Code != 503 || after < 3500 {
			t.Errorf("got %d, Retry-After %d; want 503 after an hour or more", w.Code, after)
		}
	}
	if len(waits) < 10 {
		t.Errorf("got %d different waits of 20", len(waits))
	}
}

// TestKeyJSON: the key json:NAME is weir.ByJSON and reads bodies up to 64 KiB.
func TestKeyJSON(t *testing.T) {
	for path, body := range map[string]string{"params.name": `{"params":{"name":"ann"}}`, `a\.b.c`: `{"a.b":{"c":"ann"}}`} {
		h := newPage(t, "limits: [{name: a, key: 'json:"+path+"', deny: [ann], config: [{limit: 1, period: 1h}]}]", Options{}).Handler("a")(ok)
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(body))); w.Code != 429 {
			t.Errorf("%s: got %d, want 429", path, w.Code)
		}
	}
	p := newPage(t, "limits: [{name: a, key: 'json:email', deny: [mallory], config: [{limit: 1, period: 1h}]}]", Options{})
	h := p.Handler("a")(ok)
	for _, c := range []struct {
		body string
		want int
	}{
		{`{"email":"ann"}`, 200}, {`{"email":"ANN"}`, 429}, {`{"email":"mallory"}`, 429}, {`{}`, 200}, {`{}`, 200},
		{`{"email":"ben","x":"` + strings.Repeat("x", 65_000) + `"}`, 200},
		{`{"email":"eve","x":"` + strings.Repeat("x", 66_000) + `"}`, 200}, {`{"email":"eve","x":"` + strings.Repeat("x", 66_000) + `"}`, 429},
	} {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest("POST", "/", strings.NewReader(c.body))); w.Code != c.want {
			t.Errorf("%.30s: got %d, want %d", c.body, w.Code, c.want)
		}
	}
}

type schemaNode struct {
	Properties     map[string]any
	Required, Enum []string
}

type schemaRoot struct {
	schemaNode
	Defs map[string]schemaNode `json:"$defs"`
}

func readSchema(t *testing.T) (s schemaRoot) {
	if err := json.Unmarshal([]byte(Schema()), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaKnows: the JSON schema and the decoder know the same fields, algorithms and
// dialects.
func TestSchemaKnows(t *testing.T) {
	s := readSchema(t)
	known := algorithms.Names()
	for _, tt := range []struct {
		what         string
		schema, code []string
	}{
		{"the file", slices.Collect(maps.Keys(s.Properties)), fileFields},
		{"a rule", slices.Collect(maps.Keys(s.Defs["rule"].Properties)), ruleFields},
		{"a limit", slices.Collect(maps.Keys(s.Defs["limit"].Properties)), limitFields},
		{"a limit of an override", slices.Collect(maps.Keys(s.Defs["ownLimit"].Properties)), limitFields},
		{"an override", slices.Collect(maps.Keys(s.Defs["override"].Properties)), overrideFields},
		{"a penalty", slices.Collect(maps.Keys(s.Defs["penalty"].Properties)), penaltyFields},
		{"strikes", slices.Collect(maps.Keys(s.Defs["strikes"].Properties)), strikesFields},
		{"headers", s.Defs["dialect"].Enum, dialects},
		{"algorithm", s.Defs["algorithm"].Enum, append(known, calendar)},
	} {
		slices.Sort(tt.schema)
		if code := slices.Sorted(slices.Values(tt.code)); !slices.Equal(tt.schema, code) {
			t.Errorf("%s: the schema has %q, the decoder %q", tt.what, tt.schema, code)
		}
	}
}

var testOptions = Options{
	Secret: []byte("0123456789abcdef"),
	Keys:   map[string]weir.KeyFunc{"user": weir.ByHeader("X-User")},
	Costs:  map[string]func(*http.Request) int64{"tokens": func(*http.Request) int64 { return 1 }},
}

// open opens a file with the given text.
func open(text string, o Options) (*File, error) {
	o.FS = fstest.MapFS{"r.yaml": {Data: []byte(text)}}
	return Open("r.yaml", memstore.New(memstore.Options{}), o)
}

func TestBad(t *testing.T) {
	for _, tt := range badfiles.All {
		t.Run(tt.Name, func(t *testing.T) {
			f, err := open(tt.Text, testOptions)
			if f != nil || err == nil {
				t.Fatalf("Open of %q: got no error", tt.Text)
			}
			if got := strings.ReplaceAll(err.Error(), "r.yaml:", ""); got != tt.Want {
				t.Errorf("%s\ngot:\n%s\nwant:\n%s", tt.Text, got, tt.Want)
			}
		})
	}
}

// TestRegions: if the first part of a key is the region, overrides give each region a limit
// of its own. A region without an override has the limit of the rule.
func TestRegions(t *testing.T) {
	h := newPage(t, `
limits:
- name: api
  key: [header:X-Region, ip]
  config: [{limit: 1, period: 1h}]
  overrides: [{value: us, config: [{limit: 3}]}]
`, Options{}).Handler("api")(ok)
	for region, want := range map[string]int{"eu": 1, "us": 3, "ap": 1} {
		admitted := 0
		for range 5 {
			r := httptest.NewRequest("GET", "/", nil)
			r.Header.Set("X-Region", region)
			w := httptest.NewRecorder()
			if h.ServeHTTP(w, r); w.Code == 200 {
				admitted++
			}
		}
		if admitted != want {
			t.Errorf("%s: got %d, want %d", region, admitted, want)
		}
	}
}
