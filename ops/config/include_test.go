package config

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/memstore"
)

// ruleOf returns a file with one rule.
func ruleOf(name string) string {
	return "limits:\n- name: " + name + "\n  config: [{limit: 5, period: 3}]\n"
}

// TestInclude checks which files are included, in which order, and that each error names
// its file and line.
func TestInclude(t *testing.T) {
	many := fstest.MapFS{}
	for i := range maxIncluded + 1 {
		many[fmt.Sprintf("etc/many/%04d.yaml", i)] = &fstest.MapFile{Data: []byte(ruleOf(fmt.Sprint("r", i)))}
	}
	for name, text := range map[string]string{
		"d/a.yaml": ruleOf("a"), "d/b.yaml": ruleOf("b"), "d/.hidden.yaml": ruleOf("hidden"), "d/c.yml": ruleOf("c"),
		"d/dir.yaml/x.yaml": ruleOf("x"), "bad.yaml": "limits:\n- name: a\n  config: [{limit: 0, period: 3}]\n",
		"syntax.yaml": "limits: [", "nested.yaml": "include: d/a.yaml\n" + ruleOf("n"), "trusts.yaml": "trusted-proxies: [10.0.0.0/8]\n" + ruleOf("t"),
		"empty.yaml": "", "none.yaml": "key: ip\n", "unknown.yaml": "algoritm: gcra\n" + ruleOf("u"), "large.yaml": "# " + strings.Repeat("x", MaxSize-100),
		"one.yaml": ruleOf("one"),
	} {
		many["etc/"+name] = &fstest.MapFile{Data: []byte(text)}
	}
	for _, tt := range []struct{ text, want string }{
		{"include: d/*.yaml", "a b"},
		{"include: [d/*, one.yaml]\n" + ruleOf("main"), "main a b c one"},
		{"include: [d/b.yaml, ./d/*.yaml]", "b a"},
		{"include: d/.*.yaml", "hidden"},
		{"include: nothing*\n" + ruleOf("main"), "main"},
		{"include: main*.yaml\n" + ruleOf("main"), "main"},

		{"include: [bad.yaml, d/b.yaml]\nlimits:\n- name: m\n  config: [{limit: -1, period: 3}]",
			"etc/main.yaml:4:20: limit is -1; want at least 1\netc/bad.yaml:3:20: limit is 0; want at least 1"},
		{"include: d/a.yaml\n" + ruleOf("a"), `etc/d/a.yaml:2:3: two rules are named "a"; the first is in etc/main.yaml line 3`},
		{"include: syntax.yaml", "etc/syntax.yaml:1:9: not YAML: sequence end token ']' not found"},
		{"include: nested.yaml", "etc/nested.yaml:1:1: include belongs in the file that includes this one"},
		{"include: trusts.yaml", "etc/trusts.yaml:1:1: trusted-proxies belongs in the file that includes this one"},
		{"include: unknown.yaml", "etc/unknown.yaml:1:1: unknown field algoritm in the file; did you mean algorithm?"},
		{"include: empty.yaml", "etc/empty.yaml:1:1: the file is empty; it needs limits"},
		{"include: none.yaml", "etc/none.yaml:1:1: the file has no limits"},
		{"include: main.yaml\n" + ruleOf("a"), "etc/main.yaml:1:10: include: main.yaml has been read already"},
		{"include: [d/a.yaml, d/a.yaml]", "etc/main.yaml:1:21: include: d/a.yaml has been read already"},
		{"include: gone.yaml", "etc/main.yaml:1:10: include: open etc/gone.yaml: file does not exist"},
		{"include: gone.d/*.yaml", "etc/main.yaml:1:10: include: open etc/gone.d: file does not exist"},
		{"include: d", "etc/main.yaml:1:10: include: etc/d is not a file"},
		{"include: nothing*", "etc/main.yaml:1:10: neither the file nor a file that it includes has limits"},
		{"include: ../x.yaml", "etc/main.yaml:1:10: include: ../x.yaml is not below the directory of the file"},
		{"include: d/../../x.yaml", "etc/main.yaml:1:10: include: ../x.yaml is not below the directory of the file"},
		{"include: /etc/passwd", "etc/main.yaml:1:10: include: /etc/passwd is not below the directory of the file"},
		{"include: '*/a.yaml'", "etc/main.yaml:1:10: include: */a.yaml has a wildcard in the name of a directory"},
		{"include: 'd/[a'", "etc/main.yaml:1:10: include: d/[a is no pattern: syntax error in pattern"},
		{"include: []", "etc/main.yaml:1:10: include is an empty list"},
		{"include: 5", "etc/main.yaml:1:10: include is 5; want a string"},
		{"include: many/*", "etc/main.yaml:1:10: include: more than 1000 files"},
		{"include: large.yaml\n" + ruleOf("main") + "#" + strings.Repeat("x", 100), "etc/main.yaml:1:10: include: the files together are larger than 4096 KiB"},
	} {
		many["etc/main.yaml"] = &fstest.MapFile{Data: []byte(tt.text)}
		f, err := Open("etc/main.yaml", memstore.New(memstore.Options{}), Options{FS: many})
		var got []string
		if err != nil {
			got = []string{err.Error()}
		} else {
			for _, r := range f.Rules() {
				got = append(got, r.Name)
			}
		}
		if s := strings.Join(got, " "); s != tt.want {
			t.Errorf("%.50s: got\n%s\nwant\n%s", tt.text, s, tt.want)
		}
	}
}

// TestIncludedDefaults: the fields of a file are the defaults of the files that it includes.
// The fields of an included file are defaults of that file only.
func TestIncludedDefaults(t *testing.T) {
	files := fstest.MapFS{
		"main.yaml": {Data: []byte("trusted-proxies: [10.0.0.0/8]\nkey: [ip, method]\nalgorithm: sliding-log\ninclude: '[ab].yaml'")},
		"a.yaml":    {Data: []byte("algorithm: fixed-window\nkey: ip\n" + ruleOf("a"))},
		"b.yaml":    {Data: []byte(ruleOf("b"))},
	}
	f, err := Open("main.yaml", memstore.New(memstore.Options{}), Options{FS: files})
	must(t, err)
	var got []string
	for _, r := range f.current.Load().rules {
		got = append(got, r.Limits[0].Algorithm.Name()+" by "+r.key.text)
	}
	if want := "fixed-window by ip behind 10.0.0.0/8, sliding-log by ip behind 10.0.0.0/8 + method"; strings.Join(got, ", ") != want {
		t.Errorf("got %q, want %q", got, want)
	}
}

// TestIncludedVersion: the version changes with each change of an included file. If a file
// cannot be loaded, the version stays.
func TestIncludedVersion(t *testing.T) {
	p := newPage(t, "include: '*.part'\n"+ruleOf("a"), Options{})
	seen := map[string]bool{p.Version(): true}
	for _, change := range []struct{ name, text string }{
		{"b.part", ruleOf("b")}, {"b.part", ruleOf("c")}, {"d.part", ruleOf("d")}, {"b.part", ""},
	} {
		p.MapFS[change.name] = &fstest.MapFile{Data: []byte(change.text)}
		_, err := p.Reload()
		if failed := change.text == ""; failed != (err != nil) || failed != (p.Err() != nil) || seen[p.Version()] != failed {
			t.Errorf("%v: the version is %s, the error %v", change, p.Version(), err)
		}
		seen[p.Version()] = true
	}
	delete(p.MapFS, "b.part")
	if c, err := p.Reload(); err != nil || p.Err() != nil || len(c) != 1 || c[0].Rule != "c" {
		t.Errorf("without b.part: %v, %v, %v", c, err, p.Err())
	}
}

// TestWatchInclude: Watch notices included files that are added, changed, replaced and
// removed, also after a file with an error.
func TestWatchInclude(t *testing.T) {
	for _, tt := range []struct {
		name string
		put  func(t *testing.T, dir, text string) // changes dir/d/x.yaml
	}{
		{"in place", func(t *testing.T, dir, text string) {
			must(t, os.WriteFile(dir+"/d/x.yaml", []byte(text), 0o644))
		}},
		{"a ConfigMap of Kubernetes", func(t *testing.T, dir, text string) {
			if runtime.GOOS == "windows" {
				t.Skip("Windows cannot replace a link to a directory")
			}
			version, err := os.MkdirTemp(dir+"/d", "..")
			must(t, err)
			must(t, os.WriteFile(version+"/x.yaml", []byte(text), 0o644))
			must(t, os.Symlink(version, dir+"/d/..tmp"))
			must(t, os.Rename(dir+"/d/..tmp", dir+"/d/..data"))
			if _, err := os.Lstat(dir + "/d/x.yaml"); err != nil {
				must(t, os.Symlink("..data/x.yaml", dir+"/d/x.yaml"))
			}
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			dir := t.TempDir()
			must(t, os.Mkdir(dir+"/d", 0o755))
			must(t, os.WriteFile(dir+"/r.yaml", []byte("include: d/*.yaml\n"+ruleOf("a")), 0o644))
			watch(t, filepath.Join(dir, "r.yaml"), nil, func(t *testing.T, w *watched) {
				tt.put(t, dir, ruleOf("b"))
				w.wait("rule added rule=b limits=5 per 3s")
				w.wait("rules that no handler names rules=[a b]")
				tt.put(t, dir, strings.Replace(ruleOf("b"), "5", "6", 1))
				w.wait("from=5 per 3s to=6 per 3s")
				tt.put(t, dir, "limits: 1")
				w.wait("d/x.yaml:1:9: limits is 1")
				tt.put(t, dir, strings.Replace(ruleOf("b"), "5", "7", 1))
				w.wait("from=6 per 3s to=7 per 3s")
				must(t, os.Remove(dir+"/d/x.yaml"))
				w.wait("rule removed rule=b limits=7 per 3s lost=true")

				must(t, os.WriteFile(dir+"/r.yaml", []byte("include: e.yaml\n"+ruleOf("a")), 0o644)) // includes another file, which does not exist yet
				w.wait("r.yaml:1:10: include: ")
				must(t, os.WriteFile(dir+"/e.yaml", []byte(ruleOf("e")), 0o644))
				w.wait("rule added rule=e")
			})
		})
	}
}

// TestWatchBusyDirectory: names that come and go in an included directory, and that no pattern matches, delay
// no reload.
func TestWatchBusyDirectory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		fsys := fstest.MapFS{"r.yaml": {Data: []byte("include: d/*.yaml\n" + ruleOf("a"))}, "d/b.yaml": {Data: []byte(ruleOf("b"))}}
		var mu sync.Mutex
		f, err := Open("r.yaml", memstore.New(memstore.Options{}), Options{FS: lockedFS{fsys, &mu}})
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		go f.Watch(ctx)
		time.Sleep(lookEvery / 2) // each look then finds other names
		for i := range 20 {
			time.Sleep(lookEvery)
			mu.Lock()
			delete(fsys, fmt.Sprintf("d/b.yaml.%d", i))
			delete(fsys, fmt.Sprintf("d/.b%d.yaml", i))
			fsys[fmt.Sprintf("d/b.yaml.%d", i+1)] = &fstest.MapFile{}
			fsys[fmt.Sprintf("d/.b%d.yaml", i+1)] = &fstest.MapFile{}
			if i == 2 {
				fsys["d/c.yaml"] = &fstest.MapFile{Data: []byte(ruleOf("c"))}
			}
			mu.Unlock()
		}
		if n := len(f.Rules()); n != 3 {
			t.Errorf("got %d rules, want 3", n)
		}
	})
}

// A lockedFS can change while it is read.
type lockedFS struct {
	fs fstest.MapFS
	mu *sync.Mutex
}

func (l lockedFS) Open(name string) (fs.File, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.fs.Open(name)
}

// TestAddedRule: Unused returns a rule that a reload added, until Handler is called with its
// name. From then on the rule is enforced.
func TestAddedRule(t *testing.T) {
	p := newPage(t, limitOf(1), Options{})
	a := p.Handler("a")(ok)
	p.mustWrite(t, "limits: [{name: a, config: [{limit: 1, period: 1h}]}, {name: b, key: global, config: [{limit: 2, period: 1h}]}]")
	before := fmt.Sprint(p.Unused())
	b := p.Handler("b")(ok)
	got := fmt.Sprintln(before, p.Unused(), get(a), get(a), get(b), get(b), get(b))
	if want := "[b] [] 200 429 200 200 429\n"; got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	if len(p.Limiters()) != 2 {
		t.Error("Limiters does not return the limiters of both handlers")
	}
}

// TestIncludeLink: a symbolic link may lead out of the directory of the file. If the file that it
// leads to has errors, the error names their places, but quotes nothing: who may write a link
// must not read by it what the program may read. Links within the directory are quoted.
func TestIncludeLink(t *testing.T) {
	dir, outside := t.TempDir(), t.TempDir()
	must(t, os.Mkdir(dir+"/d", 0o755))
	must(t, os.WriteFile(dir+"/r.yaml", []byte("include: d/*.yaml\n"+ruleOf("a")), 0o644))
	link := dir + "/d/x.yaml"
	for _, tt := range []struct{ name, target, text, want string }{
		{"an unknown field", outside + "/secret", "hunter2: 1\n", "d/x.yaml:1:1: "},
		{"a value", outside + "/secret", "limits: [{name: hunter2, config: hunter2}]\n", "d/x.yaml:1:34: "},
		{"no YAML", outside + "/secret", "a: 'hunter2\n", "d/x.yaml:1:"},
		{"no mapping", outside + "/secret", "root:hunter2:0:0\n", "d/x.yaml:1:"},
		{"two rules of a name", outside + "/secret", ruleOf("a"), "d/x.yaml:2:3: "},
		{"no mistake", outside + "/secret", ruleOf("b"), "<nil>"},
		{"within the directory", dir + "/d/..data", "hunter2: 1\n", "d/x.yaml:1:1: unknown field hunter2"},
	} {
		os.Remove(link)
		must(t, os.WriteFile(tt.target, []byte(tt.text), 0o644))
		if err := os.Symlink(tt.target, link); err != nil && runtime.GOOS == "windows" {
			t.Skip(err) // not every user may make links
		} else {
			must(t, err)
		}
		_, err := Open(dir+"/r.yaml", memstore.New(memstore.Options{}), Options{})
		got := fmt.Sprint(err)
		if !strings.Contains(got, tt.want) || strings.Contains(got, "hunter2") != strings.Contains(tt.want, "hunter2") {
			t.Errorf("%s: got %s, want %s", tt.name, got, tt.want)
		}
	}
}
