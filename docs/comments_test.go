package docs_test

import (
	"go/ast"
	"go/doc/comment"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// notGo are the beginnings of the code blocks of package comments that are no Go.
var notGo = []string{
	"Fallback ─▶",                    // stack: which store is around which
	"GET  /rules", `{"key": "192.0.`, // admin: paths, and JSON
	"limits:\n", "trusted-proxies: ", // config: files
}

// TestPackageComments: the comment of every public package begins with a sentence, and then a
// whole program, or a whole call if other packages take what the package returns. A vocabulary
// is the last section. The Go code compiles.
func TestPackageComments(t *testing.T) {
	packages := slices.Concat(imported, []string{"net", "github.com/go-chi/chi/v5/middleware", "github.com/prometheus/client_golang/prometheus/promhttp", "github.com/seed83679106/weir/jsonrpc"})
	b := newBuilder(t, root, packages...)
	given := b.given(t, "testdata/given.go")
	for _, dir := range public {
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
			b.page(t, blocks, packages, given)
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
		f, program, err := b.parse(block{page: "broken", line: 1, text: text}, packages)
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
