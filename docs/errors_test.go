package docs_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

var (
	errorEnd  = regexp.MustCompile(`[.!:;,\n]$`)
	errorWant = regexp.MustCompile(`[^;] want `)
)

// TestErrorTexts: the texts of errors and panics have the form of CONTRIBUTING.md, as far as their
// constants show it: a panic begins with its package, no text ends with
// punctuation, and a semicolon stands before "want".
func TestErrorTexts(t *testing.T) {
	found := 0
	set := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "xtest" || name == "docs" || name == "tools" || name == "testdata" || name == "storetest" || name[0] == '.' && name != ".." || name[0] == '_'):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name := nameOf(call.Fun)
			if name != "panic" && name != "New" && name != "Errorf" && name != "errorf" && name != "invalid" {
				return true
			}
			var parts []string // the constants of the text, from left to right
			ast.Inspect(call, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					part, _ := strconv.Unquote(lit.Value)
					parts = append(parts, part)
				}
				return true
			})
			if len(parts) == 0 {
				return true
			}
			found++
			text := strings.Join(parts, "…")
			own := cmp.Or(programs[f.Name.Name], f.Name.Name) + ": "
			switch where := set.Position(call.Pos()); {
			case name == "panic" && !strings.HasPrefix(text, own) && !strings.HasPrefix(text, "%s: "):
				t.Errorf("%s: the panic %q does not begin with %q", where, text, own)
			case errorWant.MatchString(text):
				t.Errorf("%s: %q has no semicolon before want", where, text)
			case errorEnd.MatchString(parts[0]):
				t.Errorf("%s: %q ends with punctuation", where, text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 250 {
		t.Errorf("found only %d texts", found)
	}
}
