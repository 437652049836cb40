package envoy

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	common "github.com/envoyproxy/go-control-plane/envoy/extensions/common/ratelimit/v3"
)

// descriptor returns the descriptor that a text such as "key1=value1 subkey1=x" describes.
func descriptor(text string) *common.RateLimitDescriptor {
	d := &common.RateLimitDescriptor{}
	for field := range strings.FieldsSeq(text) {
		key, value, _ := strings.Cut(field, "=")
		d.Entries = append(d.Entries, &common.RateLimitDescriptor_Entry{Key: key, Value: value})
	}
	return d
}

// TestFind: a descriptor gets the limit that Envoy's service chooses. The cases are from that
// service's tests of values, nesting, wildcards, shadow mode and unlimited limits.
func TestFind(t *testing.T) {
	c, err := Load("testdata/limits.yaml", false)
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ descriptor, want string }{
		{"", "none"},
		{"key1=something", "none"},
		{"key1=value1", "none"},                  // the limits are deeper
		{"key2=value2 subkey=subvalue", "none"},  // the descriptor is deeper
		{"key5=value5 subkey5=subvalue", "none"}, // no descriptor of the file has this value
		{"key5=value5 subkey5=subvalue5", "25 DAY key5_value5.subkey5_subvalue5"},
		{"key5=value5", "15 DAY key5_value5."},
		{"key1=value1 subkey1=something", "5 SECOND key1_value1.subkey1"},
		{"key1=value1 subkey1=subvalue1", "10 SECOND key1_value1.subkey1_subvalue1 shadow"},
		{"key2=something", "20 MINUTE key2. shadow"},
		{"key2=value2", "30 MINUTE key2_value2."},
		{"key2=value3", "none"}, // its descriptor has no limit
		{"key3=foo", "1 HOUR key3."},
		{"key4=foo", "1 DAY key4."},
		{"key6=foo", "0 UNKNOWN key6. unlimited"},
		{"key7=unspecified", "70 MINUTE key7."}, // detailed_metric is ignored, so the limit's labels lack the value unspecified
		{"banned=x", "0 SECOND banned."},
		{"noVal=foo1", "20 MINUTE noVal."},
		{"noVal=", "20 MINUTE noVal."},
		{"wild=foo1", "20 MINUTE wild_foo*."},
		{"wild=foo", "20 MINUTE wild_foo*."},
		{"wild=bar", "none"},
		{"noWild=foo", "20 MINUTE noWild_foo."},
		{"noWild=foo1", "none"},
		{"midWild=barab", "20 MINUTE midWild_bar*b."},
		{"midWild=bar123b", "20 MINUTE midWild_bar*b."},
		{"midWild=barb", "20 MINUTE midWild_bar*b."},
		{"midWild=bara", "none"},
		{"midWild=xbarb", "none"},
		{"midWild=ba", "none"},
		{"multiWild=foo123bar456baz", "10 MINUTE multiWild_foo*bar*baz."},
		{"multiWild=foobarbaz", "10 MINUTE multiWild_foo*bar*baz."},
		{"multiWild=foo123baz", "none"},
		{"multiWild=bar456baz", "none"},
		{"multiWild=foobaz", "none"},
		{"nestedWild=val1 wild=goo2", "20 MINUTE nestedWild_val1.wild_goo*"},
		{"nestedWild=val1 wild=foo2", "none"}, // wild=foo* is a wildcard of the level above
		{"file=test1", "50 MINUTE file_test1."},
		{"file=test2", "100 MINUTE file_test*."},
	} {
		var a hit
		a.find(c.domains["test-domain"], descriptor(tt.descriptor))
		got := "none"
		if l := a.limit; l != nil {
			got = fmt.Sprintf("%d %v %s.%s", l.proto.RequestsPerUnit, l.proto.Unit, l.labels[1], l.labels[2])
			if l.shadow {
				got += " shadow"
			}
			if l.unlimited {
				got += " unlimited"
			}
		}
		if got != tt.want {
			t.Errorf("%s: got %s, want %s", tt.descriptor, got, tt.want)
		}
	}
}

// TestKeys: each value has a count of its own, even under a limit for all values or for a
// wildcard. The values of a wildcard with share_threshold have one count. A client cannot make
// up a value that is counted together with other descriptors.
func TestKeys(t *testing.T) {
	c, err := Load("testdata/limits.yaml", false)
	if err != nil {
		t.Fatal(err)
	}
	key := func(text string) string {
		var a hit
		a.find(c.domains["test-domain"], descriptor(text))
		return string(a.key)
	}
	for _, tt := range []struct {
		a, b string
		same bool
	}{
		{"noVal=a", "noVal=b", false},
		{"wild=foo1", "wild=foo2", false},
		{"files=files/a.pdf", "files=files/sub/b.csv", true},
		{"file=test1", "file=test2", false},
		{"file=test2", "file=test3", true},
		{"user=user/1 action=read", "user=user/2 action=read", true},
		{"user=user/1 action=read", "user=user/1 action=write", false},
		{"noVal=a1:b", "noVal=a", false},
	} {
		if got := key(tt.a) == key(tt.b); got != tt.same {
			t.Errorf("%s and %s are counted together: %v, want %v", tt.a, tt.b, got, tt.same)
		}
	}
	if a, b := appendText(appendText(nil, "a"), "1:b"), appendText(appendText(nil, "a1:"), "b"); string(a) == string(b) {
		t.Errorf("two different lists of texts give %s", a)
	}
}

// TestMistakes: the error for a file with a mistake names the line of the mistake.
func TestMistakes(t *testing.T) {
	for _, tt := range []struct{ text, want string }{
		{"descriptors: []", "f.yaml:1: the file has no domain"},
		{"domain: ''", "f.yaml:1: the file has no domain"},
		{"", "f.yaml:1: the file has no domain"},
		{"domain: d\ndescriptors:\n- key: a\n- value: b", "f.yaml:4: a descriptor has no key"},
		{"domain: d\ndescriptors:\n- key: a\n  value: b\n- key: a\n  value: b", "f.yaml:5: two descriptors have the name d.a_b"},
		{"domain: d\ndescriptors:\n- key: a_b\n- key: a\n  value: b", "f.yaml:4: two descriptors have the name d.a_b"},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: foo\n    requests_per_unit: 5", `f.yaml:5: unit is "foo"; want second, minute`},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: unknown", `f.yaml:5: unit is "unknown"`},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    requests_per_unit: 5", `f.yaml:5: unit is ""`},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unlimited: true\n    unit: day", "f.yaml:6: an unlimited rate_limit must not have a unit"},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    name: x\n    unit: day\n    replaces:\n    - name: x", "f.yaml:8: a rate_limit replaces itself"},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: day\n    replaces:\n    - name: ''", "f.yaml:7: an entry of replaces has no name"},
		{"domain: d\ndescriptors:\n- key: a\n  value: b\n  share_threshold: true", "f.yaml:5: share_threshold needs a value with an asterisk"},
		{"domain: d\ndescriptors:\n- key: a\n  ratelimit:\n    unit: day", `f.yaml:4: unknown field "ratelimit"`},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: day\n    requestsperunit: 5", `f.yaml:6: unknown field "requestsperunit"`},
		{"domain: d\ndescriptors:\n- a", "f.yaml:3: "},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: -1", "f.yaml:6: "},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 4294967296", "f.yaml:6: "},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit:\n    unit: day\n    requests_per_unit: 0.5", "f.yaml:6: requests_per_unit is 0.5; want a whole number"},
		{"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: day, requests_per_unit: 2.9}", "f.yaml:4: requests_per_unit is 2.9; want a whole number"},
		{"domain: d\n---\ndomain: e\ndescriptors: []", "f.yaml:3: a second document; want one in each file"},
		{"domain: d\n0.25: x", "f.yaml:2: "},
		{"domain: [", "f.yaml:1: "},
		{"domain: d\ndescriptors:\n- key: \xff", "f.yaml:3: the line is not UTF-8 text"},
		{"domain: d" + strings.Repeat(" ", maxSize), "f.yaml:1: the file is larger than 4 MiB"},
		{"domain: \xff" + strings.Repeat(" ", maxSize), "f.yaml:1: the file is larger than 4 MiB"},
	} {
		if _, err := parse([]file{{path: "f.yaml", data: []byte(tt.text)}}, false); err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%.200q: got %v, want %s", tt.text, err, tt.want)
		}
	}
}

// TestFormat: values that look like numbers or booleans need no quotes, and anchors work.
func TestFormat(t *testing.T) {
	c, err := parse([]file{{path: "f.yaml", data: []byte("---\ndomain: d\ndescriptors:\n- key: port\n  value: 0443\n  rate_limit: &l {unit: day, requests_per_unit: 5}\n- key: on\n  value: true\n  rate_limit: *l\n- key: version\n  value: 1.10\n  rate_limit: *l\n")}}, false)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"port=0443", "on=true", "version=1.10"} {
		var a hit
		if a.find(c.domains["d"], descriptor(text)); a.limit == nil || a.proto.RequestsPerUnit != 5 {
			t.Errorf("%s has no limit", text)
		}
	}
}

// TestForgotten: a limit without a number gets a warning, and the name of a dump by Envoy Gateway is
// ignored, as is an empty document at the end.
func TestForgotten(t *testing.T) {
	for text, warns := range map[string]bool{
		"name: default/eg/http\ndomain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minute}\n":     true,
		"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unit: minute, requests_per_unit: 0}\n---\n": false,
		"domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true}\n":                         false,
	} {
		c, err := parse([]file{{path: "f.yaml", data: []byte(text)}}, false)
		if err != nil || (len(c.Warnings) == 1 && strings.Contains(c.Warnings[0], "f.yaml:5: a rate_limit without requests_per_unit")) != warns {
			t.Errorf("%q: got %v and %+v; want a warning: %v", text, err, c, warns)
		}
	}
}

// TestDirectory: Load reads the files of a directory. Two files with the same domain are a
// mistake, unless merge is true.
func TestDirectory(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"a.yaml":  "domain: d\ndescriptors: [{key: key1, rate_limit: {unit: day, requests_per_unit: 10}}]",
		"b.yml":   "domain: d\ndescriptors: [{key: key2, rate_limit: {unit: day, requests_per_unit: 20}}]",
		".c.yaml": "nothing", "d.txt": "nothing",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := Load(dir, false); err == nil || !strings.Contains(err.Error(), "b.yml:1: another file has the domain d") {
		t.Errorf("got %v, want an error because two files have the same domain", err)
	}
	c, err := Load(dir, true)
	if err != nil {
		t.Fatal(err)
	}
	for _, text := range []string{"key1=x", "key2=x"} {
		var a hit
		if a.find(c.domains["d"], descriptor(text)); a.limit == nil {
			t.Errorf("%s has no limit", text)
		}
	}
	if _, err := Load(filepath.Join(dir, "none"), false); err == nil {
		t.Error("got no error for a directory that does not exist")
	}
	if _, err := Load(t.TempDir(), false); err == nil || !strings.Contains(err.Error(), "has no file *.yaml") {
		t.Errorf("a directory without files: got %v", err)
	}
}

// TestNear: hits above 80 % of a limit and within it are counted as near the limit. The cases
// are from the tests of Envoy's service.
func TestNear(t *testing.T) {
	for _, tt := range []struct{ hits, after, quota, within, near, over uint64 }{
		{1, 11, 15, 1, 0, 0},
		{1, 13, 15, 1, 1, 0},
		{1, 16, 15, 0, 0, 1},
		{3, 5, 20, 3, 0, 0},
		{2, 7, 8, 2, 1, 0},
		{3, 19, 20, 3, 3, 0},
		{3, 22, 20, 0, 1, 2},
		{7, 22, 20, 0, 4, 2},
		{3, 30, 10, 0, 0, 3},
		{0, 5, 5, 0, 0, 0},
		{1, 1, 0, 0, 0, 1},
	} {
		s := newMetrics(nil).statsOf([3]string{"d", "k"})
		s.count(tt.hits, tt.after, tt.quota, 0.8, true)
		got := []uint64{value(t, s.total), value(t, s.within), value(t, s.near), value(t, s.over), value(t, s.shadowed)}
		if want := []uint64{tt.hits, tt.within, tt.near, tt.over, tt.over}; !slices.Equal(got, want) {
			t.Errorf("%+v: got total, within, near, over and shadowed %d, want %d", tt, got, want)
		}
	}
}

// TestAliases: a small file whose aliases stand for billions of descriptors, or for
// themselves, is a mistake that is found at once. Aliases that add little are allowed.
func TestAliases(t *testing.T) {
	laughs := "domain: app\nx: &x0 {key: k, rate_limit: {unit: day, requests_per_unit: 1}}\n"
	for i := range 30 {
		laughs += fmt.Sprintf("x%d: &x%d {key: k, descriptors: [%s*x%d]}\n", i+1, i+1, strings.Repeat(fmt.Sprintf("*x%d, ", i), 20), i)
	}
	lists := "domain: app\ndescriptors:\n- {key: k, descriptors: &a0 [{key: k}]}\n"
	for i := range 30 {
		lists += fmt.Sprintf("- {key: k%d, descriptors: &a%d [{key: x, descriptors: *a%d}, {key: y, descriptors: *a%d}]}\n", i, i+1, i, i)
	}
	deep := "domain: app\ndescriptors: " + strings.Repeat("[", 100_000)
	flat := "domain: app\ndescriptors: " + strings.Repeat("- ", 100_000) + "a"
	for _, tt := range []struct{ name, text, want string }{
		{"lists", lists, "aliases"},
		{"mappings", laughs, "aliases"},
		{"itself", "domain: app\ndescriptors: &a [{key: k, descriptors: *a}]\n", "aliases"},
		{"a merge of itself", "domain: app\ndescriptors:\n- &a\n  key: k\n  <<: *a\n", "aliases"},
		{"deep", deep, "a.yaml:2: nested too deeply"},
		{"deep in a line", flat, "a.yaml:2: nested too deeply"},
		{"a few", "domain: app\ndescriptors:\n- {key: a, rate_limit: &r {unit: day, requests_per_unit: 1}}\n- {key: b, rate_limit: *r}\n", "<nil>"},
	} {
		_, err := parse([]file{{path: "a.yaml", data: []byte(tt.text)}}, false)
		if got := fmt.Sprint(err); !strings.Contains(got, tt.want) || (err == nil) != (tt.want == "<nil>") {
			t.Errorf("%s, %d bytes: got %.200s, want %s", tt.name, len(tt.text), got, tt.want)
		}
	}
}

// TestLink: if a symbolic link in the directory leads out of it, mistakes of the file are not
// quoted. Links within the directory, as Kubernetes mounts a ConfigMap, are.
func TestLink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	for target, want := range map[string]bool{filepath.Join(outside, "secret"): false, filepath.Join(dir, "..data"): true} {
		write(t, target, "hunter2: 1\n")
		link := filepath.Join(dir, "a.yaml")
		os.Remove(link)
		if err := os.Symlink(target, link); err != nil && runtime.GOOS == "windows" {
			t.Skip(err) // not every user may make links
		} else if err != nil {
			t.Fatal(err)
		}
		if _, err := Load(dir, false); err == nil || !strings.Contains(err.Error(), "a.yaml:") || strings.Contains(err.Error(), "hunter2") != want {
			t.Errorf("%s: got %v", target, err)
		} else if strings.Contains(err.Error(), "symbolic link") == want {
			t.Errorf("%s: got %v, want the mistake itself: %v", target, err, want)
		}
	}
}
