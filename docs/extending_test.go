package docs_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"strings"
	"testing"
)

// TestAbilities: docs/extending.md names every ability of an algorithm and of a store, with its
// methods.
func TestAbilities(t *testing.T) {
	page, found := read(t, "docs/extending.md"), 0
	for _, file := range []string{"quota/abilities.go", "redisstore/generate.go", "lease/lease.go"} {
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
	if found < 18 {
		t.Errorf("got %d abilities, want those of three packages", found)
	}
}
