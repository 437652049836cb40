package docs_test

import (
	"cmp"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// words are terms that readers would not search for, each as an expression that finds no other
// use of the words, the term to write instead, and a text that the expression finds.
var words = []struct{ term, instead, found string }{
	{`by hand`, "manually", "set by hand"},
	{`in clear`, "in plain text", "keys in clear"},
	{`heed(s|ed|ing)?`, "handles", "it heeds the answer"},
	{`mend(s|ed|ing)?`, "fix", "have been mended"},
	{`mistakes?`, "error, bug, misconfiguration", "a file with a mistake"},
	{`beside`, "compared with, next to", "beside the best peer"},
	{`one word:`, "one of", "one word: memory or open"},
	{`(free|whole) again`, "available, full", "the quota is whole again"},
	{`beginnings? of (keys?|the keys?|a key)|(shorter|longer|longest|that|same) beginning`, "prefix", "the longest beginning"},
	{`(its|their|no|cancelled|caller's|several) turns?|turns? (is|are|comes?|of a request)|(reserves?|gives?|lose|gets?) (a|the|its) turn`, "slot, place in the queue", "waits for its turn"},
	{`(give|gives|giving|gave|given)( \w+){0,3} back`, "refund, return, release", "gives the unit back"},
	{`(an|same|each|every|next|last) ask`, "call, query, check", "the same ask"},
	{`ask(s|ed|ing)? (the|its|a|another|other|second|each|all|any) (central |shared |primary |second )?(stores?|database|slots?|Redis|nodes?)|ask(s|ed|ing)? Redis|stores? (is|are) not asked`, "call, query", "asks the store"},
	{`over (its|their|the|a) limits?`, "exceeds its limit", "a key over its limit"},
	{`takes? no more than`, "at most", "takes no more than 5"},
	{`any span|one or two spans|in (every|each|that) span|spans? of (time|\d+ (s|seconds))`, "interval", "in any span of P"},
	{`shortest way`, "normalized", "written in the shortest way"},
	{`told`, "reports, returns, knows", "clients are told"},
	{`limits? of requests in flight`, "concurrency limit", "a limit of requests in flight"},
	{`(requests?|calls?|keys?|they|it) pass(es|ed)?( now| by default| all the same)?[,.;:]|(lets?|let) (\w+ ){0,3}pass|pass(es|ed|ing)? (requests?|a request|it|them) on`, "is allowed, is forwarded", "the request passes."},
	{`(TTLs?|leases?|bans?|overrides?|states?|grants?) (ends?|ended|lives?)`, "expires", "until its TTL ends"},
	{`of (its|their|your|his|her) own([.,;:)]| (and|or|that|which|with|under|for|in|to|if|from)\b|$)`, "separate, its own", "a module of its own"},
	{`decides? (alike|transactions?|a transaction|the charges|all charges)|decid(e|es|ed) bit for bit`, "evaluates, returns the same decisions", "both decide alike"},
}

// TestWords: pages and the comments of exported names use the words that the field uses.
func TestWords(t *testing.T) {
	finds := make([]*regexp.Regexp, len(words))
	for i, w := range words {
		finds[i] = regexp.MustCompile(`(?i)\b(?:` + w.term + `)(?:\b|$|\s)`)
		if !finds[i].MatchString(w.found) {
			t.Errorf("%q does not match %q", w.term, w.found)
		}
	}
	check := func(place func(line int) string, text string) {
		text = withoutCode(text)
		flat := strings.ReplaceAll(text, "\n", " ")
		for i, find := range finds {
			for _, at := range find.FindAllStringIndex(flat, -1) {
				t.Errorf("%s: %q: write %s", place(strings.Count(text[:at[0]], "\n")), flat[max(0, at[0]-30):min(len(flat), at[1]+20)], words[i].instead)
			}
		}
	}
	for _, page := range pages(t) {
		_, prose := split(t, page)
		check(func(line int) string { return page + ":" + strconv.Itoa(line+1) }, strings.Join(prose, "\n"))
	}
	for _, c := range exportedComments(t) {
		check(func(line int) string { return c.file + ":" + strconv.Itoa(c.line+line) }, c.text)
	}
}

var codeSpan = regexp.MustCompile("`[^`]*`|\"[^\"`]{1,60}\"")

// withoutCode replaces code and quotations by dots, and keeps the length and the lines of the text.
func withoutCode(text string) string {
	return codeSpan.ReplaceAllStringFunc(text, func(code string) string {
		return strings.Map(func(r rune) rune {
			if r == '\n' {
				return r
			}
			return '.'
		}, code)
	})
}

// A docComment documents an exported name, or a package.
type docComment struct {
	file string
	line int
	text string
}

// exportedComments returns the comments of packages that users may import.
func exportedComments(t testing.TB) (list []docComment) {
	t.Helper()
	fset := token.NewFileSet()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.ContainsAny(name[:1], "._") || name == "internal" || name == "cmd" || name == "tools" || name == "docs" || name == "testdata"):
			return fs.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		for _, group := range exportedDocs(f) {
			if group != nil {
				p := fset.Position(group.Pos())
				list = append(list, docComment{strings.TrimPrefix(path, root+"/"), p.Line, group.Text()})
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(list) < 500 {
		t.Errorf("found %d comments of exported names, want more", len(list))
	}
	return list
}

// exportedDocs returns the comments of the package of f and of its exported names; some may be
// nil.
func exportedDocs(f *ast.File) (list []*ast.CommentGroup) {
	list = append(list, f.Doc)
	for _, d := range f.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			if d.Name.IsExported() && (d.Recv == nil || ast.IsExported(receiver(d))) {
				list = append(list, d.Doc)
			}
		case *ast.GenDecl:
			for _, s := range d.Specs {
				switch s := s.(type) {
				case *ast.ValueSpec:
					if s.Names[0].IsExported() {
						list = append(list, d.Doc, s.Doc, s.Comment)
					}
				case *ast.TypeSpec:
					if s.Name.IsExported() {
						list = append(list, d.Doc, s.Doc, s.Comment)
						ast.Inspect(s.Type, func(n ast.Node) bool {
							if field, ok := n.(*ast.Field); ok && (len(field.Names) == 0 || field.Names[0].IsExported()) {
								list = append(list, field.Doc, field.Comment)
							}
							return true
						})
					}
				}
			}
		}
	}
	slices.SortFunc(list, func(a, b *ast.CommentGroup) int { return cmp.Compare(pos(a), pos(b)) })
	return slices.Compact(list)
}

func pos(g *ast.CommentGroup) token.Pos {
	if g == nil {
		return token.NoPos
	}
	return g.Pos()
}

// receiver returns the name of the type whose method d is.
func receiver(d *ast.FuncDecl) (name string) {
	ast.Inspect(d.Recv.List[0].Type, func(n ast.Node) bool {
		if id, ok := n.(*ast.Ident); ok && name == "" {
			name = id.Name
		}
		return true
	})
	return name
}
