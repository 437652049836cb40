package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"go/types"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// public are the packages that users import.
var public = []string{
	".", "algorithms", "headers", "memstore", "quota", "quota/optional", "quota/storetest", "redisstore", "redisstore/stack",
	"contrib/credit", "contrib/jsonrpc", "contrib/lease", "contrib/llm", "contrib/regions", "contrib/weirchi", "contrib/weirgrpc",
	"ops", "ops/admin", "ops/config", "ops/overrides", "ops/watch", "ops/weirotel", "ops/weirprom",
}

// withoutExample are exported names that neither an example nor a page shows, with
// the reason.
var withoutExample = map[string]string{
	"weir.Admission.WriteMetadata":       "weirgrpc calls it",
	"weir.RefusedError.Unwrap":           "errors.As calls it",
	"quota.ErrLimit":                     "a Limiter uses it",
	"quota.Limit.Redundant":              "a Limiter calls it",
	"credit.Paid":                        "stores set it",
	"quota.Limit.Fault":                  "a Limiter calls it",
	"quota.Limit.Divide":                 "package regions calls it",
	"memstore.Store.Instant":             "a Limiter calls it",
	"memstore.Store.TakeEach":            "Coalesce calls it",
	"redisstore.Store.TakeEach":          "Coalesce calls it",
	"redisstore.Store.Track":             "Hybrid calls it",
	"redisstore.Store.LoadOverrides":     "overrides.Live calls it",
	"redisstore.Store.SaveOverride":      "overrides.Live calls it",
	"redisstore.Store.Heartbeat":         "package stack calls it",
	"redisstore.Heartbeat.Lost":          "package stack calls it",
	"redisstore.Store.CompareLimits":     "package stack calls it",
	"stack.Store.Announce":               "weir.New calls it",
	"regions.Store.Announce":             "weir.New calls it",
	"stack.Store.Undivided":              "cmd/weir calls it",
	"stack.Store.Stores":                 "weirprom.New calls it",
	"llm.Transport.RoundTrip":            "http.Client calls it",
	"llm.Transport.CloseIdleConnections": "http.Client calls it",
	"weir.ReportAtLeast":                 "llm.Transport calls it",
	"weirprom.Collector.Collect":         "Prometheus calls it",
	"weirprom.Collector.Describe":        "Prometheus calls it",
}

// TestExamples: every exported function, method and variable of the public packages is
// shown by an example of its name, or used in an example or in the code of a page. Every
// exported constant is shown in the same ways or named in a page. Types need no example of
// their own.
func TestExamples(t *testing.T) {
	shown, named := shownNames(t)
	for _, dir := range public {
		pkg := filepath.Base(filepath.Join("weir", dir))
		for _, f := range parseDir(t, dir, ".go") {
			for name, kind := range exported(f) {
				ok := shown[pkg+"."+name] || shown[filepath.Join(dir, name)] || kind == token.CONST && named[name]
				if _, method, isMethod := strings.Cut(name, "."); isMethod {
					ok = shown["."+method] || shown[filepath.Join(dir, method)]
				}
				switch _, excused := withoutExample[pkg+"."+name]; {
				case !ok && !excused:
					t.Errorf("no example shows %s.%s", pkg, name)
				case ok && excused:
					t.Errorf("an example shows %s.%s: remove it from withoutExample", pkg, name)
				}
			}
		}
	}
}

// shownNames returns the names that examples and the code of pages show, and the names that
// the text of pages has.
func shownNames(t *testing.T) (shown, named map[string]bool) {
	t.Helper()
	shown, named = map[string]bool{}, map[string]bool{}
	for _, dir := range public {
		for _, f := range parseDir(t, dir, "_test.go") {
			showExamples(f, dir, shown)
		}
	}
	for _, b := range blocksOf(t, "go") {
		for _, m := range regexp.MustCompile(`(\w+)\.([A-Z]\w*)`).FindAllStringSubmatch(b.text, -1) {
			shown[m[0]], shown["."+m[2]] = true, true
		}
	}
	for _, page := range pages(t) {
		for _, m := range regexp.MustCompile("[`.]([A-Z]\\w*)`").FindAllStringSubmatch(read(t, page), -1) {
			named[m[1]] = true
		}
	}
	return shown, named
}

// parseDir parses the files in dir whose names end in suffix. With the suffix ".go" it
// leaves out the test files.
func parseDir(t *testing.T, dir, suffix string) (files []*ast.File) {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join(root, dir, "*"+suffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if suffix == ".go" && strings.HasSuffix(path, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

// showExamples adds to shown what the examples of a file show: "watch/NewRecorder" for the name
// of an example, "quota.Allow" for a name of a package that an example uses, and ".Keys" for
// a method that it uses.
func showExamples(f *ast.File, dir string, shown map[string]bool) {
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || !strings.HasPrefix(fn.Name.Name, "Example") {
			continue
		}
		for part := range strings.SplitSeq(strings.TrimPrefix(fn.Name.Name, "Example"), "_") {
			shown[filepath.Join(dir, part)] = true
		}
		ast.Inspect(fn, func(n ast.Node) bool {
			if n, ok := n.(*ast.SelectorExpr); ok {
				shown["."+n.Sel.Name] = true
				if x, ok := n.X.(*ast.Ident); ok {
					shown[x.Name+"."+n.Sel.Name] = true
				}
			}
			return true
		})
	}
}

// exported returns the exported functions, methods (as Type.Method), variables and
// constants of a file, with token.FUNC, VAR or CONST. It leaves out methods named String,
// because programs print values instead of calling String.
func exported(f *ast.File) map[string]token.Token {
	names := map[string]token.Token{}
	ast.FileExports(f)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if name := funcName(d); ast.IsExported(name) && !strings.HasSuffix(name, ".String") {
				names[name] = token.FUNC
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				if s, ok := s.(*ast.ValueSpec); ok {
					for _, n := range s.Names {
						names[n.Name] = d.Tok
					}
				}
			}
		}
	}
	return names
}

// funcName returns the name of a function, or Type.Method.
func funcName(d *ast.FuncDecl) string {
	if d.Recv == nil {
		return d.Name.Name
	}
	return strings.TrimPrefix(types.ExprString(d.Recv.List[0].Type), "*") + "." + d.Name.Name
}

// TestAbilities: docs/extending.md names every ability of an algorithm and of a store, with its
// methods.
func TestAbilities(t *testing.T) {
	page, found := read(t, "docs/extending.md"), 0
	for _, file := range []string{"quota/optional/optional.go", "redisstore/scripted.go", "contrib/lease/lease.go", "contrib/credit/algorithm.go"} {
		f, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, file), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok {
				return true
			}
			ability, ok := spec.Type.(*ast.InterfaceType)
			if !ok || !spec.Name.IsExported() {
				return false
			}
			found++
			_, row, _ := strings.Cut(page, "| `"+f.Name.Name+"."+spec.Name.Name+"` |")
			row, _, _ = strings.Cut(row, "\n")
			for _, m := range ability.Methods.List {
				for _, name := range m.Names {
					if !strings.Contains(row, "`"+name.Name+"`") {
						t.Errorf("docs/extending.md: no table has %s.%s with the method %s, which %s declares", f.Name.Name, spec.Name.Name, name.Name, file)
					}
				}
			}
			return false
		})
	}
	if found < 16 {
		t.Errorf("got %d abilities, want those of four packages", found)
	}
}
