package scene

import (
	"encoding/json"
	"fmt"
	"go/format"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/ops/config"
)

// codes returns the code for every deployment under some algorithms, and for one deployment under all.
func codes(t *testing.T) (all []code) {
	for _, k := range kinds {
		set, err := parseLink("quota=20&period=60&burst=5")
		if err != nil {
			t.Fatal(err)
		}
		if k.extra {
			set.Period = 24 * 60 * 60
		}
		if k.queue {
			set = set.queued()
		}
		few := k.name != "gcra" && k.name != "calendar" && !k.queue // their code differs in one call only
		for _, d := range []Deployment{{}, {Proxy: true}, {Whose: "key"}, {Whose: "account"}} {
			for _, down := range []string{"", "memory", "open", "closed"} {
				d.Several, d.Down = down != "", down
				if few && d != (Deployment{}) {
					continue
				}
				all = append(all, code{&k, &set, d})
			}
		}
	}
	return all
}

// TestCode compiles each program that the page can show, together with its test, runs the test, and
// reads the file of rules. So that one call of the go command does this, the programs become packages
// of one test.
func TestCode(t *testing.T) {
	rounds.Slow(t, "compiles 50 packages")
	dir, files := t.TempDir(), map[string]string{}
	here, err := os.Getwd()
	if err != nil {
		t.Fatal(err)
	}
	add := func(path, text string) {
		real := filepath.Join(dir, strings.ReplaceAll(path, "/", "-"))
		if err := os.WriteFile(real, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		files[filepath.Join(here, "generated", path)] = real
	}
	imports, calls := "", ""
	tests := regexp.MustCompile(`(?m)^func (Test\w+)`)
	for i, c := range codes(t) {
		name := fmt.Sprintf("v%d", i)
		for file, text := range map[string]string{"main.go": c.program(), "main2.go": c.test()} { // not _test.go, so that another package can call the test
			if formatted, err := format.Source([]byte(text)); err != nil || string(formatted) != text {
				t.Errorf("%s, %+v: gofmt changes %s: %v\n%s", c.name, c.Deployment, file, err, text)
			}
			add(name+"/"+file, strings.Replace(text, "package main", "package "+name, 1))
		}
		imports += fmt.Sprintf("\t%q\n", "github.com/seed83679106/weir/_examples/playground/scene/generated/"+name)
		for _, test := range tests.FindAllStringSubmatch(c.test(), -1) {
			calls += fmt.Sprintf("\tt.Run(%q, %s.%s)\n", fmt.Sprintf("%s %s %+v", test[1], c.name, c.Deployment), name, test[1])
		}
		rules := filepath.Join(dir, name+".yaml")
		if err := os.WriteFile(rules, []byte(c.yaml()), 0o644); err != nil {
			t.Fatal(err)
		}
		options := config.Options{} // as weir serve has them
		if !strings.Contains(c.yaml(), "# weir serve ") {
			options.Keys = map[string]weir.KeyFunc{"account": func(*http.Request) (string, bool) { return "", false }}
		}
		if err := config.Check(rules, options); err != nil {
			t.Errorf("%s, %+v: %v\n%s", c.name, c.Deployment, err, c.yaml())
		}
	}
	add("all_test.go", "package generated\n\nimport (\n\t\"testing\"\n\n"+imports+")\n\nfunc TestAll(t *testing.T) {\n"+calls+"}\n")
	overlay, _ := json.Marshal(map[string]any{"Replace": files})
	if err := os.WriteFile(filepath.Join(dir, "overlay.json"), overlay, 0o644); err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(dir, "generated.test")
	out, err := exec.Command("go", "test", "-c", "-vet=off", "-overlay", filepath.Join(dir, "overlay.json"), "-o", binary, "./generated").CombinedOutput()
	if err == nil {
		out, err = exec.Command(binary, "-test.v").CombinedOutput()
	}
	if n, want := strings.Count(string(out), "--- PASS: TestAll/"), strings.Count(calls, "t.Run"); err != nil || n != want {
		t.Errorf("%d of %d tests pass: %v\n%s", n, want, err, out)
	}
}

// TestFlags: the flags in files of rules are flags of weir serve. Files that need more than weir serve,
// a key of a program or a MaxWait, do not name it.
func TestFlags(t *testing.T) {
	page, err := os.ReadFile("../../../cmd/weir/FLAGS.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range codes(t) {
		head, _, _ := strings.Cut(c.yaml(), "\n")
		if !c.Several {
			continue
		}
		if c.Whose == "account" || c.queue {
			if strings.Contains(c.yaml(), "weir serve") {
				t.Errorf("%s, %+v: weir serve cannot do this:\n%s", c.name, c.Deployment, c.yaml())
			}
			continue
		}
		flags := regexp.MustCompile(` (-[a-z-]+)`).FindAllStringSubmatch(head, -1)
		if len(flags) != 4 || !strings.HasSuffix(head, " "+c.Down) {
			t.Errorf("%+v: %s", c.Deployment, head)
		}
		for _, flag := range flags {
			if !strings.Contains(string(page), "`"+flag[1]+"`") {
				t.Errorf("weir serve has no flag %s", flag[1])
			}
		}
	}
}
