package docs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/importer"
	"go/parser"
	"go/token"
	"go/types"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/config"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/memstore"
)

// imported are the packages that code in pages may use without an import declaration. A
// block with an import declaration must import everything that it uses.
var imported = []string{
	"context", "errors", "fmt", "io", "log", "log/slog", "math/rand/v2", "net/http", "net/http/httptest", "net/http/httputil", "net/netip", "net/url", "os",
	"strconv", "strings", "sync", "testing", "testing/synctest", "time",
	"github.com/go-chi/chi/v5", "github.com/redis/go-redis/v9", "github.com/redis/go-redis/extra/redisprometheus/v9", "github.com/redis/go-redis/extra/redisotel/v9",
	"github.com/seed83679106/weir/weirotel", "go.opentelemetry.io/otel",
	"github.com/seed83679106/weir", "github.com/seed83679106/weir/algorithms", "github.com/seed83679106/weir/config", "github.com/seed83679106/weir/credit", "github.com/seed83679106/weir/headers", "github.com/seed83679106/weir/keys", "github.com/seed83679106/weir/lease", "github.com/seed83679106/weir/llm", "github.com/seed83679106/weir/overrides", "github.com/seed83679106/weir/regions",
	"github.com/seed83679106/weir/weirprom", "github.com/prometheus/client_golang/prometheus", "github.com/seed83679106/weir/memstore", "github.com/seed83679106/weir/quota", "github.com/seed83679106/weir/redisstore", "github.com/seed83679106/weir/stack", "github.com/seed83679106/weir/storetest", "github.com/seed83679106/weir/watch", "github.com/seed83679106/weir/admin", "github.com/seed83679106/weir/weirchi",
	"github.com/seed83679106/weir/weirgrpc", "google.golang.org/grpc", "google.golang.org/grpc/credentials", "google.golang.org/protobuf/proto",
}

// A builder type-checks code against the compiled packages that a module requires.
type builder struct {
	fset     *token.FileSet
	importer types.Importer
}

// newBuilder compiles packages and their dependencies with the go command, in the module of
// dir.
func newBuilder(t *testing.T, dir string, packages ...string) *builder {
	t.Helper()
	cmd := exec.Command("go", append([]string{"list", "-export", "-deps", "-json=ImportPath,Export"}, packages...)...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		if dir != root && os.Getenv("CI") == "" {
			t.Skipf("the module %s: %v: %s", dir, err, stderr.String()) // a machine without network may lack its dependencies
		}
		if strings.Contains(stderr.String(), "/weirprom") {
			t.Fatalf("pages show weirprom, which is a module of its own: run this test in the workspace of go.work, without GOWORK=off: %s", stderr.String())
		}
		t.Fatalf("go list in %s: %v: %s", dir, err, stderr.String())
	}
	exports := map[string]string{}
	for d := json.NewDecoder(bytes.NewReader(out)); ; {
		var p struct{ ImportPath, Export string }
		if err := d.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		exports[p.ImportPath] = p.Export
	}
	b := &builder{fset: token.NewFileSet()}
	b.importer = importer.ForCompiler(b.fset, "gc", func(path string) (io.ReadCloser, error) {
		if exports[path] == "" {
			return nil, fmt.Errorf("no package %s", path)
		}
		return os.Open(exports[path])
	})
	return b
}

// parse parses the code of a block: a program, or declarations, or statements. Declarations
// and statements become part of a package named page.
func (b *builder) parse(code block, packages []string) (f *ast.File, program bool, err error) {
	line := fmt.Sprintf("//line %s:%d\n", code.page, code.line)
	whole := func(before, after string) (*ast.File, error) {
		return parser.ParseFile(b.fset, "", before+"\n"+line+code.text+after, parser.SkipObjectResolution)
	}
	if f, err = whole("", ""); err == nil {
		return f, true, nil
	}
	imports := "package page\nimport ("
	for _, path := range packages {
		imports += fmt.Sprintf("%q;", path)
	}
	imports += ")\n"
	if f, err = whole("package page", ""); err == nil && len(f.Imports) > 0 {
		return f, false, nil
	}
	if f, err = whole(imports, ""); err == nil {
		return f, false, nil
	}
	f, err = whole(imports+"func _() error {", "\nreturn nil }")
	return f, false, err
}

// check type-checks files as one package. Unless they are a program, it ignores unused variables
// and imports, which fragments may have.
func (b *builder) check(program bool, files ...*ast.File) (errs []error) {
	c := types.Config{Importer: b.importer, Error: func(err error) {
		if e := (types.Error{}); program || !errors.As(err, &e) || !e.Soft {
			errs = append(errs, err)
		}
	}}
	c.Check("page", b.fset, files, nil)
	return errs
}

// page checks the blocks of a page: each program by itself, and all other blocks as one
// package, together with the given files.
func (b *builder) page(t *testing.T, blocks []block, packages []string, given ...*ast.File) {
	files := given
	for _, code := range blocks {
		f, program, err := b.parse(code, packages)
		if err != nil {
			t.Errorf("%v: %v", code, err)
			continue
		}
		if !program {
			files = append(files, f)
			continue
		}
		for _, err := range b.check(true, f) {
			t.Error(err)
		}
	}
	for _, err := range b.check(false, files...) {
		t.Error(err)
	}
}

// given parses the file at path, which declares the names that fragments of pages may use.
func (b *builder) given(t *testing.T, path string) *ast.File {
	t.Helper()
	f, err := parser.ParseFile(b.fset, path, nil, parser.SkipObjectResolution)
	if err != nil {
		t.Fatal(err)
	}
	f.Name.Name = "page"
	return f
}

// TestGo: the Go code in every page compiles. docs/migration.md shows code of other
// libraries, so its code is checked in the module docs/_peers, which requires them.
func TestGo(t *testing.T) {
	const migration, frameworks = "docs/migration.md", "docs/frameworks.md" // the latter has the code of docs/_frameworks, as TestPage there says
	byPage := map[string][]block{}
	for _, code := range blocksOf(t, "go") {
		byPage[code.page] = append(byPage[code.page], code)
	}
	b := newBuilder(t, root, imported...)
	given := b.given(t, "testdata/given.go")
	for page, blocks := range byPage {
		if page != migration && page != frameworks {
			t.Run(page, func(t *testing.T) { b.page(t, blocks, imported, given) })
		}
	}
	t.Run(migration, func(t *testing.T) {
		// own is the list imported without the packages that docs/_peers does not
		// require, and with packages of the other libraries
		own := []string{"github.com/go-chi/httprate", "github.com/didip/tollbooth/v7"}
		for _, path := range imported {
			if !strings.Contains(path, "redis") && !strings.HasSuffix(path, "/config") && !strings.Contains(path, "prom") && !strings.Contains(path, "otel") && !strings.Contains(path, "grpc") && !strings.HasSuffix(path, "/storetest") {
				own = append(own, path)
			}
		}
		b := newBuilder(t, "_peers", append([]string{"."}, own...)...)
		b.page(t, byPage[migration], own, b.given(t, "testdata/given_peers.go"))
	})
	// Broken code must not pass.
	for _, text := range []string{"x := weir.NoSuchThing", "func f() int { return headers.IETF }", "if {", "store.Take(ctx)", "y := undefined"} {
		f, _, err := b.parse(block{page: "broken", line: 1, text: text + "\n"}, imported)
		if err == nil && len(b.check(false, given, f)) == 0 {
			t.Errorf("%q passed, want an error", text)
		}
	}
}

// TestYAML: package config loads every file of rules in the pages.
func TestYAML(t *testing.T) {
	for _, b := range blocksOf(t, "yaml") {
		_, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{
			FS:    fstest.MapFS{"rules.yaml": {Data: []byte(b.text)}},
			Keys:  map[string]weir.KeyFunc{"account": keys.ByContext("account")},
			Costs: map[string]func(*http.Request) int64{"tokens": func(*http.Request) int64 { return 1 }},
		})
		if err != nil {
			t.Errorf("%v: %v", b, err)
		}
	}
}

// TestGuideInAFile: limits and keys in the column "in a file" of docs/guide.md load.
func TestGuideInAFile(t *testing.T) {
	code, found := regexp.MustCompile("`([^`]+)`"), 0
	column := "" // what the second cells of a table have: limits or keys
	_, prose := split(t, "docs/guide.md")
	for n, line := range prose {
		cells := strings.Split(line, " | ")
		if len(cells) < 3 {
			column = ""
			continue
		}
		switch cells[1] {
		case "in a file":
			column = "limits: [{name: a, config: [%s]}]"
			continue
		case "`key` in a file":
			column = "limits: [{name: a, key: %s, config: [{limit: 1, period: 1}]}]"
			continue
		}
		m := code.FindStringSubmatch(cells[1])
		if column == "" || m == nil {
			continue
		}
		found++
		_, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{
			FS:   fstest.MapFS{"rules.yaml": {Data: fmt.Appendf(nil, column, m[1])}},
			Keys: map[string]weir.KeyFunc{"account": keys.ByContext("account")},
		})
		if err != nil {
			t.Errorf("docs/guide.md:%d: %s: %v", n+1, m[1], err)
		}
	}
	if found < 18 {
		t.Errorf("found %d limits and keys, want more: are the columns still named so?", found)
	}
}

// TestShell: every program, file, test and flag in the commands of the pages exists.
func TestShell(t *testing.T) {
	known := declared(t)
	for _, b := range blocksOf(t, "sh") {
		for i, line := range strings.Split(strings.TrimSpace(strings.ReplaceAll(b.text, "\\\n", " ")), "\n") {
			checkShell(t, b.page, b.line+i, line, known)
		}
	}
	inline := regexp.MustCompile("`(go (?:run|test) [^`]+)`")
	for _, page := range pages(t) {
		_, prose := split(t, page)
		for n, line := range prose {
			for _, m := range inline.FindAllStringSubmatch(line, -1) {
				checkShell(t, page, n+1, m[1], known)
			}
		}
	}
	for _, line := range []string{"go run ./_examples/none", "go run ./_examples/basic -addres x", "go run ./_examples/chat -once", "go run ./cmd/weir serve -limits cmd/limits.yaml", "go test -run TestNone ./docs", "curl --retri 3 x", "frob x", "go tst ./..."} {
		if strings.HasPrefix(line, "curl") && curlFlags() == "" {
			t.Log("no curl: its flags are not checked")
			continue
		}
		if len(shellFaults(line, known)) == 0 {
			t.Errorf("%q passed, want a fault", line)
		}
	}
}

// checkShell reports the mistakes in a command of a page.
func checkShell(t *testing.T, page string, n int, command string, known map[string]bool) {
	t.Helper()
	for _, fault := range shellFaults(command, known) {
		t.Errorf("%s:%d: %s: %s", page, n, command, fault)
	}
}

var flagName = regexp.MustCompile(`(?:flag|fs)\.\w+\((?:&[\w.]+, )?"([\w-]+)"`)

// shellFaults returns the mistakes in a line of shell, which has one command and perhaps a
// comment.
func shellFaults(line string, known map[string]bool) (faults []string) {
	line, _, _ = strings.Cut(line, " #")
	words := strings.Fields(line)
	if len(words) == 0 || words[0] == "#" {
		return nil
	}
	c := shellLine{known: known, words: words, dir: root}
	switch program := words[0]; {
	case program == "go" && !strings.Contains(" run test get vet tool ", " "+words[1]+" "):
		c.fault("no such command")
	case program != "go" && program != "curl" && program != "redis-cli":
		c.fault("this test does not know the program")
	}
	for i := range words {
		c.check(i)
	}
	return c.faults
}

// A shellLine is a line of shell, whose words are checked from left to right.
type shellLine struct {
	known  map[string]bool // the names of tests
	words  []string
	dir    string // the folder of the module
	flags  string // the flags of the program that go run runs
	faults []string
}

func (c *shellLine) fault(format string, args ...any) {
	c.faults = append(c.faults, fmt.Sprintf(format, args...))
}

func (c *shellLine) mustExist(path string) {
	if _, err := os.Stat(path); err != nil {
		c.fault("%v", err)
	}
}

// check adds the mistakes in the i-th word.
func (c *shellLine) check(i int) {
	w, before, program := c.words[i], c.words[max(0, i-1)], c.words[0]
	switch {
	case before == "-C":
		c.dir = filepath.Join(root, w)
		if _, err := os.Stat(filepath.Join(c.dir, "go.mod")); err != nil {
			c.fault("there is no module: %v", err)
		}
	case strings.HasPrefix(w, "_examples/"), strings.HasPrefix(w, "cmd/"):
		c.mustExist(filepath.Join(root, w))
	case strings.HasPrefix(w, "./"):
		path := filepath.Join(c.dir, strings.TrimSuffix(w, "..."))
		c.mustExist(path)
		if c.words[1] == "run" {
			c.flags = flagsOf(path)
		}
	case program == "go" && c.words[1] == "test" && (before == "-run" || before == "-bench"):
		kind := map[string]string{"-run": "Test", "-bench": "Benchmark"}[before]
		for pattern := range strings.SplitSeq(strings.Trim(w, "'"), "|") {
			if !isKnown(c.known, kind, pattern) {
				c.fault("there is no %s with %s in its name", strings.ToLower(kind), pattern)
			}
		}
	case c.flags != "" && strings.HasPrefix(w, "-") && !strings.Contains(c.flags, " "+w+" "):
		c.fault("the program has no flag %s", w)
	case program == "curl" && strings.HasPrefix(w, "--"):
		if flags := curlFlags(); flags != "" && !strings.Contains(flags, " "+w+" ") {
			c.fault("curl has no flag %s", w)
		}
	}
}

// isKnown reports whether pattern, of go test, selects a known function whose name begins
// with kind. A pattern for all functions always does.
func isKnown(known map[string]bool, kind, pattern string) bool {
	if strings.Trim(pattern, "^$.") == "" {
		return true
	}
	for name := range known {
		if strings.HasPrefix(name, kind) && strings.Contains(name, pattern) {
			return true
		}
	}
	return false
}

// flagsOf returns the flags of the program in dir, each between spaces.
func flagsOf(dir string) string {
	list := " "
	sources, _ := filepath.Glob(filepath.Join(dir, "*.go"))
	for i := 0; i < len(sources); i++ {
		data, _ := os.ReadFile(sources[i])
		if bytes.Contains(data, []byte("demo.Run(")) { // demo.Run defines more flags
			shared, _ := filepath.Glob(filepath.Join(dir, "..", "internal", "*", "*.go"))
			sources = append(sources, shared...)
		}
		for _, m := range flagName.FindAllStringSubmatch(string(data), -1) {
			list += "-" + m[1] + " "
		}
	}
	return list
}

// curlFlags returns the flags of the installed curl, each between spaces, or "" if curl is
// not installed. If curl is missing and the variable CI is set, it returns spaces only, so
// that TestShell fails.
func curlFlags() string {
	out, err := exec.Command("curl", "--help", "all").Output()
	if err != nil && os.Getenv("CI") == "" {
		return ""
	}
	return " " + strings.Join(strings.Fields(string(out)), " ") + " "
}
