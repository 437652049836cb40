package config

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/counters"
)

// fieldsPage is a page with a table of fields under each heading of tables. It also has the
// names of all keys, algorithms and dialects.
const fieldsPage = "../docs/files.md"

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

// TestNamesOnPage: docs/files.md has the names of all keys, algorithms and dialects.
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
	for _, l := range counters.All {
		if name := l.Algorithm.Name(); !strings.Contains(string(text), "`"+name+"`") {
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
