package docs_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// words are terms that readers would not search for, each as an expression that finds no other
// use of the words, the term to write instead, and a text that the expression finds. Pages and
// comments must not have the term. name is an expression that finds the words of an identifier,
// such as "give back" of giveBack; no identifier of the library may have it.
var words = []struct{ term, name, instead, found string }{
	{`by hand`, ``, "manually", "set by hand"},
	{`in clear`, ``, "in plain text", "keys in clear"},
	{`heed(s|ed|ing)?`, `heed(s|ed|ing)?`, "handles", "it heeds the answer"},
	{`mend(s|ed|ing)?`, `mend(s|ed|ing)?`, "fix", "have been mended"},
	{`mistakes?`, `mistakes?`, "error, bug, misconfiguration", "a file with a mistake"},
	{`beside`, `beside`, "compared with, next to", "beside the best peer"},
	{`one word:`, ``, "one of", "one word: memory or open"},
	{`(free|whole) again`, ``, "available, full", "the quota is whole again"},
	{`beginnings? of (keys?|the keys?|a key)|(shorter|longer|longest|that|same) beginning`, ``, "prefix", "the longest beginning"},
	{`(its|their|no|cancelled|caller's|several) turns?|turns? (is|are|comes?|of a request)|(reserves?|gives?|lose|gets?) (a|the|its) turn`, `turns?`, "slot, place in the queue", "waits for its turn"},
	{`(give|gives|giving|gave|given)( \w+){0,3} back`, `(give|gives|gave|given) back`, "refund, return, release", "gives the unit back"},
	{`(an|same|each|every|next|last) ask`, `ask(s|ed|er)?`, "call, query, check", "the same ask"},
	{`ask(s|ed|ing)? (the|its|a|another|other|second|each|all|any) (central |shared |primary |second )?(stores?|database|slots?|Redis|nodes?)|ask(s|ed|ing)? Redis|stores? (is|are) not asked`, ``, "call, query", "asks the store"},
	{`over (its|their|the|a) limits?`, ``, "exceeds its limit", "a key over its limit"},
	{`takes? no more than`, ``, "at most", "takes no more than 5"},
	{`any span|one or two spans|in (every|each|that) span|spans? of (time|\d+ (s|seconds))`, ``, "interval", "in any span of P"},
	{`shortest way`, ``, "normalized", "written in the shortest way"},
	{`told`, `told`, "reports, returns, knows", "clients are told"},
	{`limits? of requests in flight`, ``, "concurrency limit", "a limit of requests in flight"},
	{`(requests?|calls?|keys?|they|it) pass(es|ed)?( now| by default| all the same)?[,.;:]|(lets?|let) (\w+ ){0,3}pass|pass(es|ed|ing)? (requests?|a request|it|them) on`, ``, "is allowed, is forwarded", "the request passes."},
	{`(TTLs?|leases?|bans?|overrides?|states?|grants?) (ends?|ended|lives?)`, ``, "expires", "until its TTL ends"},
	{`of (its|their|your|his|her) own([.,;:)]| (and|or|that|which|with|under|for|in|to|if|from)\b|$)`, ``, "separate, its own", "a module of its own"},
	{`decides? (alike|transactions?|a transaction|the charges|all charges)|decid(e|es|ed) bit for bit`, ``, "evaluates, returns the same decisions", "both decide alike"},
	{`verdicts?`, `verdicts?`, "decision, result", "the verdict of a request"},
	{`(set|put|laid) aside`, `aside`, "reserved, in shadow", "units that are set aside"},
	{`inquir(y|ies)`, `inquir(y|ies)`, "what was decided", "an inquiry of a request"},
	{`bystanders?`, `bystanders?`, "hook", "a bystander of each rule"},
	{`riders?`, `riders?`, "hook", "a rider meets each rule"},
	{`ow(e|es|ed|ing)`, `ow(e|es|ed|ing)`, "debt, charged", "what is owed"},
	{`status strip`, `strip`, "status bar", "the status strip"},
	{`stays? of a request`, `stays?`, "slot, ticket", "the stay of a request"},
	{`hash mix`, `mix(ed|es)?`, "hash", "a hash mix"},
}

var finds, findNames = func() (terms, names []*regexp.Regexp) {
	for _, w := range words {
		terms = append(terms, regexp.MustCompile(`(?i)\b(?:`+w.term+`)(?:\b|$|\s)`))
		name := (*regexp.Regexp)(nil)
		if w.name != "" {
			name = regexp.MustCompile(`\b(?:` + w.name + `)\b`)
		}
		names = append(names, name)
	}
	return terms, names
}()

// TestWords: pages use the words that the field uses.
func TestWords(t *testing.T) {
	for i, w := range words {
		if !finds[i].MatchString(w.found) {
			t.Errorf("%q does not match %q", w.term, w.found)
		}
	}
	for _, page := range pages(t) {
		_, prose := split(t, page)
		inProse(strings.Join(prose, "\n"), func(line int, text, instead string) {
			t.Errorf("%s:%d: %q: write %s", page, line+1, text, instead)
		})
	}
}

// inProse calls report for each use of a term in a text, with its line from 0.
func inProse(text string, report func(line int, text, instead string)) {
	text = withoutCode(text)
	flat := strings.ReplaceAll(text, "\n", " ")
	for i, find := range finds {
		for _, at := range find.FindAllStringIndex(flat, -1) {
			report(strings.Count(text[:at[0]], "\n"), flat[max(0, at[0]-30):min(len(flat), at[1]+20)], words[i].instead)
		}
	}
}

// inName calls report if an identifier has one of the words.
func inName(name string, report func(text, instead string)) {
	split := strings.ToLower(capital.ReplaceAllString(name, "$1 $2"))
	split = strings.ReplaceAll(split, "_", " ")
	for i, find := range findNames {
		if find != nil && find.MatchString(split) {
			report(name, words[i].instead)
		}
	}
}

var capital = regexp.MustCompile(`([a-z0-9])([A-Z])`)

// TestWordsOfCode: the comments and identifiers of the library, in Go and in Lua, and the texts that
// its programs print and log, use these words too. It prints a line for each package and word.
func TestWordsOfCode(t *testing.T) {
	uses := map[string]map[string][]string{} // by package and advice, where
	counts := map[string]int{}
	files := 0
	report := func(path string, line int, text, instead string) {
		dir := filepath.ToSlash(filepath.Dir(path))
		if uses[dir] == nil {
			uses[dir] = map[string][]string{}
		}
		counts[dir]++
		uses[dir][instead] = append(uses[dir][instead], fmt.Sprintf("%s:%d %s", filepath.Base(path), line, strings.TrimSpace(text)))
	}
	for _, path := range librarySources(t) {
		files++
		name := strings.TrimPrefix(filepath.ToSlash(path), root+"/")
		if strings.HasSuffix(path, ".lua") {
			luaWords(read(t, name), func(line int, text, instead string) { report(name, line, text, instead) })
			continue
		}
		fset := token.NewFileSet()
		f, err := parser.ParseFile(fset, path, nil, parser.ParseComments|parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, group := range f.Comments {
			first := fset.Position(group.Pos()).Line
			inProse(group.Text(), func(line int, text, instead string) { report(name, first+line, text, instead) })
		}
		ast.Inspect(f, func(n ast.Node) bool {
			if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING && strings.Contains(lit.Value, " ") {
				first := fset.Position(lit.Pos()).Line
				inProse(lit.Value[1:len(lit.Value)-1], func(line int, text, instead string) { report(name, first+line, text, instead) })
			}
			return true
		})
		for id, line := range declaredIn(fset, f) {
			inName(id, func(text, instead string) { report(name, line, text, instead) })
		}
	}
	for _, page := range []string{"ops/admin/page.html", "_examples/playground/server/page/try.html"} {
		inProse(regexp.MustCompile(`<[^>]*>|{{[^}]*}}`).ReplaceAllString(read(t, page), " "), func(line int, text, instead string) { report(page, line+1, text, instead) })
	}
	if files < 150 {
		t.Errorf("found %d files of the library, want more", files)
	}
	for _, dir := range slices.Sorted(maps.Keys(uses)) {
		t.Errorf("%s: %d uses of words that readers would not search for", dir, counts[dir])
		for _, instead := range slices.Sorted(maps.Keys(uses[dir])) {
			list := uses[dir][instead]
			slices.Sort(list)
			if n := len(list); n > 6 {
				list = append(list[:6], fmt.Sprintf("and %d more", n-6))
			}
			t.Logf("  write %s: %s", instead, strings.Join(list, "; "))
		}
	}
}

// librarySources returns the files in Go and Lua of all packages that are no tests.
func librarySources(t testing.TB) (paths []string) {
	t.Helper()
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		name := d.Name()
		switch {
		case err != nil:
			return err
		case d.IsDir() && path != root && (strings.ContainsAny(name[:1], "._") || name == "docs" || name == "testdata" || name == "test" || name == "xtest"):
			return fs.SkipDir
		case !d.IsDir() && (strings.HasSuffix(name, ".lua") || strings.HasSuffix(name, ".go") && !strings.HasSuffix(name, "_test.go")):
			paths = append(paths, path)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return paths
}

// declaredIn returns the identifiers that a file declares, each with a line: uses of names that
// other packages declare are not of this file.
func declaredIn(fset *token.FileSet, f *ast.File) map[string]int {
	names := map[string]int{}
	add := func(ids ...*ast.Ident) {
		for _, id := range ids {
			if id != nil && names[id.Name] == 0 {
				names[id.Name] = fset.Position(id.Pos()).Line
			}
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.FuncDecl:
			add(n.Name)
		case *ast.TypeSpec:
			add(n.Name)
		case *ast.ValueSpec:
			add(n.Names...)
		case *ast.Field:
			add(n.Names...)
		case *ast.AssignStmt:
			if n.Tok == token.DEFINE {
				for _, x := range n.Lhs {
					if id, ok := x.(*ast.Ident); ok {
						add(id)
					}
				}
			}
		case *ast.RangeStmt:
			for _, x := range []ast.Expr{n.Key, n.Value} {
				if id, ok := x.(*ast.Ident); ok && n.Tok == token.DEFINE {
					add(id)
				}
			}
		}
		return true
	})
	return names
}

var luaIdentifier = regexp.MustCompile(`[A-Za-z_]\w*`)

// luaWords calls report for each use of a word in a comment of Lua or in an identifier.
func luaWords(text string, report func(line int, text, instead string)) {
	n, comment, first := 0, "", 0
	flush := func() {
		inProse(comment, func(line int, text, instead string) { report(first+line, text, instead) })
		comment = ""
	}
	for line := range strings.Lines(text) {
		n++
		code, prose, found := strings.Cut(line, "--")
		for _, id := range luaIdentifier.FindAllString(stringsOfLua.ReplaceAllString(code, "''"), -1) {
			inName(id, func(text, instead string) { report(n, text, instead) })
		}
		if !found || strings.TrimSpace(code) != "" {
			flush()
		}
		if found {
			if comment == "" {
				first = n
			}
			comment += strings.TrimSpace(prose) + "\n"
		}
	}
	flush()
}

var stringsOfLua = regexp.MustCompile(`'[^']*'|"[^"]*"`)

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
