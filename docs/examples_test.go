package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// public are the packages that users import.
var public = []string{".", "admin", "algorithms", "config", "memstore", "redisstore", "storetest", "watch", "weirchi", "weirotel", "weirprom"}

// withoutExample are exported functions that no example shows, with the reason.
var withoutExample = map[string]string{
	"storetest.Run":               "it takes a *testing.T: see docs/extending.md",
	"storetest.Tests":             "for those who run the suite in a way of their own",
	"memstore.Store.TakeEach":     "Coalesce calls it",
	"redisstore.Store.TakeEach":   "Coalesce calls it",
	"weirprom.Collector.Collect":  "Prometheus calls it",
	"weirprom.Collector.Describe": "Prometheus calls it",
}

// TestExamples: an example shows every exported function, method and error of the
// public packages, by its own name or by its use. Types are shown by the functions
// that take and return them.
func TestExamples(t *testing.T) {
	fset, shown := token.NewFileSet(), map[string]bool{}
	parse := func(dir string, tests bool) (list []*ast.File) {
		paths, err := filepath.Glob(filepath.Join(root, dir, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		for _, path := range paths {
			if strings.HasSuffix(path, "_test.go") != tests {
				continue
			}
			f, err := parser.ParseFile(fset, path, nil, parser.SkipObjectResolution)
			if err != nil {
				t.Fatal(err)
			}
			list = append(list, f)
		}
		return list
	}
	for _, dir := range public {
		for _, f := range parse(dir, true) {
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
						shown["."+n.Sel.Name] = true // a method of something
						if x, ok := n.X.(*ast.Ident); ok {
							shown[x.Name+"."+n.Sel.Name] = true // weir.Allow
						}
					}
					return true
				})
			}
		}
	}
	for _, dir := range public {
		pkg := filepath.Base(dir)
		if dir == "." {
			pkg = "weir"
		}
		need := func(name, method string) {
			text := pkg + "." + name
			ok := shown[text] || shown[filepath.Join(dir, name)]
			if method != "" {
				text += "." + method
				ok = shown["."+method] || shown[filepath.Join(dir, method)]
			}
			switch _, excused := withoutExample[text]; {
			case !ok && !excused:
				t.Errorf("no example shows %s", text)
			case ok && excused:
				t.Errorf("an example shows %s: strike it from withoutExample", text)
			}
		}
		for _, f := range parse(dir, false) {
			for _, d := range f.Decls {
				switch d := d.(type) {
				case *ast.FuncDecl:
					switch {
					case !d.Name.IsExported() || d.Recv != nil && d.Name.Name == "String":
					case d.Recv == nil:
						need(d.Name.Name, "")
					default:
						receiver := d.Recv.List[0].Type
						if star, ok := receiver.(*ast.StarExpr); ok {
							receiver = star.X
						}
						if name, ok := receiver.(*ast.Ident); ok && name.IsExported() {
							need(name.Name, d.Name.Name)
						}
					}
				case *ast.GenDecl:
					for _, s := range d.Specs {
						if s, ok := s.(*ast.ValueSpec); ok && d.Tok == token.VAR {
							for _, n := range s.Names {
								if n.IsExported() {
									need(n.Name, "")
								}
							}
						}
					}
				}
			}
		}
	}
}
