package scene

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/seed83679106/weir/config"
)

// TestCode compiles the program and the test that the page shows for each algorithm, runs
// two of the tests, and reads each file of rules.
func TestCode(t *testing.T) {
	if testing.Short() {
		t.Skip("calls the go command 16 times")
	}
	for _, link := range []string{"quota=100&period=60&burst=20", "quota=3&period=86400&wait=90"} {
		set, err := parseLink(link)
		if err != nil {
			t.Fatal(err)
		}
		for _, k := range kinds {
			name := k.name + map[bool]string{true: "wait"}[set.Wait > 0]
			dir := t.TempDir()
			program, test := filepath.Join(dir, "main.go"), filepath.Join(dir, "main_test.go")
			for file, text := range map[string]string{program: k.program(&set), test: k.test(&set)} {
				if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			do := "vet"
			if name == "gcra" || name == "calendarwait" {
				do = "test"
			}
			if out, err := exec.Command("go", do, program, test).CombinedOutput(); err != nil {
				t.Errorf("%s: go %s: %v\n%s", name, do, err, out)
			}
			rules := filepath.Join(dir, name+".yaml")
			if err := os.WriteFile(rules, []byte(k.yaml(&set)), 0o644); err != nil {
				t.Fatal(err)
			}
			if err := config.Check(rules, config.Options{}); err != nil {
				t.Errorf("%s: %v\n%s", name, err, k.yaml(&set))
			}
		}
	}
}
