package docs_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"go/ast"
	"go/doc/comment"
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
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/config"
)

// imported are the packages that code in pages may use without an import declaration. A
// block with an import declaration must import everything that it uses.
var imported = []string{
	"context", "errors", "fmt", "io", "log", "log/slog", "math/rand/v2", "net/http", "net/http/httptest", "net/http/httputil", "net/netip", "net/url", "os",
	"strconv", "strings", "sync", "testing", "testing/synctest", "time",
	"github.com/go-chi/chi/v5", "github.com/go-chi/chi/v5/middleware", "github.com/redis/go-redis/v9", "github.com/redis/go-redis/extra/redisprometheus/v9", "github.com/redis/go-redis/extra/redisotel/v9",
	"github.com/seed83679106/weir/ops/weirotel", "go.opentelemetry.io/otel",
	"github.com/seed83679106/weir", "github.com/seed83679106/weir/algorithms", "github.com/seed83679106/weir/ops/config", "github.com/seed83679106/weir/contrib/credit", "github.com/seed83679106/weir/headers", "github.com/seed83679106/weir/contrib/lease", "github.com/seed83679106/weir/contrib/llm", "github.com/seed83679106/weir/ops/overrides", "github.com/seed83679106/weir/contrib/regions",
	"github.com/seed83679106/weir/ops/weirprom", "github.com/prometheus/client_golang/prometheus", "github.com/prometheus/client_golang/prometheus/promhttp", "github.com/seed83679106/weir/memstore", "github.com/seed83679106/weir/quota", "github.com/seed83679106/weir/redisstore", "github.com/seed83679106/weir/redisstore/stack", "github.com/seed83679106/weir/quota/storetest", "github.com/seed83679106/weir/ops/watch", "github.com/seed83679106/weir/ops", "github.com/seed83679106/weir/ops/admin", "github.com/seed83679106/weir/contrib/weirchi",
	"github.com/seed83679106/weir/contrib/weirgrpc", "google.golang.org/grpc", "google.golang.org/grpc/credentials", "google.golang.org/protobuf/proto",
}

// ofOtherModules finds imported packages that the root module does not require. They need
// 200 MB of modules, so the code that uses them is checked only if WEIR_LONG is set.
var ofOtherModules = regexp.MustCompile(`go-redis/extra|otel|prom|grpc|protobuf`)

// A source compiles the code of pages, which may import packages.
type source struct {
	*builder
	packages []string
	lacks    *regexp.Regexp // finds code that uses other packages; nil if there are none
}

// newSource returns a source with those of the packages that this run may download.
func newSource(t *testing.T, packages []string) source {
	t.Helper()
	if rounds.Long() {
		return source{newBuilder(t, "../internal/xtest", packages...), packages, nil} // its go.mod requires them all
	}
	var own, other []string
	for _, path := range packages {
		if ofOtherModules.MatchString(path) {
			other = append(other, strings.TrimSuffix(path, "/v9"))
		} else {
			own = append(own, path)
		}
	}
	for i, path := range other {
		other[i] = path[strings.LastIndex(path, "/")+1:]
	}
	return source{newBuilder(t, root, own...), own, regexp.MustCompile(`\b(` + strings.Join(other, "|") + `)\.`)}
}

// page checks those blocks of a page that the source can compile.
func (s source) page(t *testing.T, blocks []block, given ...*ast.File) {
	t.Helper()
	if s.lacks != nil {
		blocks = slices.DeleteFunc(slices.Clone(blocks), func(b block) bool { return s.lacks.MatchString(b.text) })
	}
	s.builder.page(t, blocks, s.packages, given...)
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
		if os.Getenv("CI") == "" {
			t.Skipf("the module %s: %v: %s", dir, err, stderr.String()) // a machine without network may lack its dependencies
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
	const migration, frameworks = "docs/migration.md", "docs/frameworks.md"
	byPage := map[string][]block{}
	_, prose := split(t, frameworks)
	grpc := slices.Index(prose, "## gRPC") + 1 // what stands before it is the code of docs/_frameworks, as TestPage there says
	gateway := read(t, "docs/_llm/gateway.go")
	for _, code := range blocksOf(t, "go") {
		if !(code.page == frameworks && code.line < grpc) && !strings.Contains(gateway, code.text) {
			byPage[code.page] = append(byPage[code.page], code)
		}
	}
	if grpc == 0 || len(byPage[frameworks]) < 2 {
		t.Errorf("found %d blocks of Go about gRPC in %s, want more", len(byPage[frameworks]), frameworks)
	}
	b := newSource(t, imported)
	given := b.given(t, "testdata/given.go")
	for page, blocks := range byPage {
		if page != migration {
			t.Run(page, func(t *testing.T) { b.page(t, blocks, given) })
		}
	}
	t.Run(migration, func(t *testing.T) {
		rounds.Slow(t, "downloads other libraries")
		// own is the list imported without the packages that docs/_peers does not
		// require, and with packages of the other libraries
		own := []string{"github.com/go-chi/httprate", "github.com/didip/tollbooth/v7", "github.com/go-redis/redis_rate/v10"}
		for _, path := range imported {
			if !strings.Contains(path, "/extra/") && !strings.HasSuffix(path, "/stack") && !strings.Contains(path+"/", "/ops/") && !strings.Contains(path, "prom") && !strings.Contains(path, "otel") && !strings.Contains(path, "grpc") && !strings.Contains(path, "protobuf") && !strings.HasSuffix(path, "/storetest") {
				own = append(own, path)
			}
		}
		b := newBuilder(t, "_peers", append([]string{"."}, own...)...)
		b.page(t, byPage[migration], own, b.given(t, "testdata/given_peers.go"))
	})
	// Broken code must not pass.
	for _, text := range []string{"x := weir.NoSuchThing", "func f() int { return headers.IETF }", "if {", "store.Take(ctx)", "y := undefined"} {
		f, _, err := b.parse(block{page: "broken", line: 1, text: text + "\n"}, b.packages)
		if err == nil && len(b.check(false, given, f)) == 0 {
			t.Errorf("%q passed, want an error", text)
		}
	}
}

// TestReadme: the first program of README.md builds, and the test in it passes, in a module that
// downloads nothing.
func TestReadme(t *testing.T) {
	blocks, _ := split(t, "README.md")
	test := slices.IndexFunc(blocks, func(b block) bool { return strings.HasPrefix(b.text, "func Test") })
	if test < 0 || !strings.HasPrefix(blocks[0].text, "package main\n") {
		t.Fatal("README.md has no program and test")
	}
	dir := t.TempDir()
	base, err := filepath.Abs(root)
	if err != nil {
		t.Fatal(err)
	}
	imports := "package main\n\nimport (\n"
	for _, path := range []string{"net/http", "net/http/httptest", "testing", "testing/synctest", "time", module, module + "/algorithms", module + "/memstore"} {
		imports += fmt.Sprintf("\t%q\n", path)
	}
	for name, text := range map[string]string{
		"go.mod":       fmt.Sprintf("module example.com/user\n\ngo 1.25\n\nrequire %s v0.1.0\n\nreplace %[1]s => %q\n", module, base),
		"main.go":      blocks[0].text,
		"main_test.go": imports + ")\n\nfunc search(http.ResponseWriter, *http.Request) {}\n\n" + blocks[test].text,
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	cmd := exec.Command("go", "test", "-vet=off", "-v", ".")
	cmd.Dir = dir // with other GOFLAGS, the standard library would be compiled again
	cmd.Env = append(os.Environ(), "GOTOOLCHAIN=local", "GOPROXY=off", "GOMODCACHE="+t.TempDir())
	if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), "--- PASS: TestSearchLimit") {
		t.Errorf("%v: %s", err, out)
	}
}

// TestYAML: package config loads every file of rules in the pages.
func TestYAML(t *testing.T) {
	for _, b := range blocksOf(t, "yaml") {
		_, err := config.Open("rules.yaml", memstore.New(memstore.Options{}), config.Options{
			FS:    fstest.MapFS{"rules.yaml": {Data: []byte(b.text)}},
			Keys:  map[string]weir.KeyFunc{"account": weir.ByContext("account")},
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
			Keys: map[string]weir.KeyFunc{"account": weir.ByContext("account")},
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
	for _, line := range []string{"go run -C _examples ./none", "go run ./_examples/basic", "go run -C _examples ./basic -addres x", "go run -C _examples ./chat -once", "go run -C cmd/weir . serve -limits cmd/limits.yaml", "go test -run TestNone ./docs", "curl --retri 3 x", "frob x", "go tst ./..."} {
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
	case program == "go" && !strings.Contains(" run test get vet tool list ", " "+words[1]+" "):
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
		if module := moduleOf(path); module != filepath.Clean(c.dir) {
			c.fault("%s is in the module of %s, so the command needs -C", w, module)
		}
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

// moduleOf returns the directory of the module that has the directory dir.
func moduleOf(dir string) string {
	dir = filepath.Clean(dir)
	for {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil || dir == root {
			return dir
		}
		dir = filepath.Dir(dir)
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

// notGo are the beginnings of the code blocks of package comments that are no Go.
var notGo = []string{
	"Fallback ─▶",                    // stack: which store is around which
	"GET  /rules", `{"key": "192.0.`, // admin: paths, and JSON
	"limits:\n", "trusted-proxies: ", // config: files
	"an Algorithm ", "a Store ", // optional: tables
}

// TestPackageComments: the comment of every public package begins with a sentence, and then a
// whole program, or a whole call if other packages take what the package returns. A vocabulary
// is the last section. The Go code compiles.
func TestPackageComments(t *testing.T) {
	packages := slices.Concat(imported, []string{"net", "github.com/seed83679106/weir/contrib/jsonrpc"})
	b := newSource(t, packages)
	given := b.given(t, "testdata/given.go")
	for _, dir := range public {
		if dir == "quota/optional" {
			continue // it has interfaces only, and begins with a table of who uses them
		}
		t.Run(dir, func(t *testing.T) {
			content, blocks := packageComment(t, dir)
			if len(content) < 2 {
				t.Fatal("want a sentence and then code")
			}
			if first, ok := content[1].(*comment.Code); !ok || len(blocks) == 0 || first.Text != blocks[0].text {
				t.Error("no Go code follows the first sentence")
			} else if program, ok := strings.CutPrefix(first.Text, "package main\n"); ok && !strings.Contains(program, "\nfunc main() {\n") {
				t.Errorf("%v: the program has no main", blocks[0])
			}
			b.page(t, blocks, given)
			var headings []string
			for _, c := range content {
				if h, ok := c.(*comment.Heading); ok {
					headings = append(headings, string(h.Text[0].(comment.Plain)))
				}
			}
			if i := slices.Index(headings, "Vocabulary"); i >= 0 && i < len(headings)-1 {
				t.Errorf("%q follows the vocabulary", headings[i+1])
			}
		})
	}
	// A program that does not compile must not pass, even if it only imports too much.
	for _, text := range []string{"package main\n\nfunc main() { weir.New() }\n", "package main\n\nimport \"os\"\n\nfunc main() {}\n"} {
		f, program, err := b.parse(block{page: "broken", line: 1, text: text}, b.packages)
		if err != nil || len(b.check(program, f)) == 0 {
			t.Errorf("%q passed, want an error", text)
		}
	}
}

// packageComment returns the comment of the package in dir, and its Go code.
func packageComment(t *testing.T, dir string) (content []comment.Block, blocks []block) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.PackageClauseOnly|parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		if f.Doc == nil || strings.HasSuffix(path, "_test.go") {
			continue
		}
		if content != nil {
			t.Errorf("%s: the package has another comment", path)
		}
		content = new(comment.Parser).Parse(f.Doc.Text()).Content
		page := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		for _, c := range content {
			if c, ok := c.(*comment.Code); ok && !slices.ContainsFunc(notGo, func(s string) bool { return strings.HasPrefix(c.Text, s) }) {
				blocks = append(blocks, block{page: page, line: lineOf(fset, f, c.Text), text: c.Text})
			}
		}
	}
	return content, blocks
}

// lineOf returns the line of a file at which the code in its package comment begins.
func lineOf(fset *token.FileSet, f *ast.File, code string) int {
	first, _, _ := strings.Cut(code, "\n")
	for _, c := range f.Doc.List {
		if c.Text == "//\t"+first {
			return fset.Position(c.Pos()).Line
		}
	}
	return 1
}
