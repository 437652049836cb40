// Package docs_test checks the documentation: Go code in pages compiles, files of rules
// load, commands, links and named tests exist, and example clients obey the server.
package docs_test

import (
	"bufio"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// root is the directory to which the paths of pages are relative.
const root = ".."

// A block is a code block of a page: the text between two fences.
type block struct {
	page string // such as README.md or docs/guide.md
	line int    // number of its first line, from 1
	info string // what follows the opening fence: go, sh, yaml, or nothing
	text string
}

func (b block) String() string { return fmt.Sprintf("%s:%d", b.page, b.line) }

// pages returns the pages of this directory, and those that stand next to what they describe.
func pages(t testing.TB) []string {
	t.Helper()
	found, err := filepath.Glob("*.md")
	if err != nil || len(found) == 0 {
		t.Fatalf("got pages %q and error %v, want some pages", found, err)
	}
	list := []string{"README.md", "CHANGELOG.md", ".github/CONTRIBUTING.md", ".github/SECURITY.md", "_examples/README.md", "ops/watch/DIAGNOSTICS.md",
		"contrib/regions/README.md", "redisstore/internal/queue/README.md", "internal/xtest/histories/README.md",
		"internal/xtest/million/README.md", "_bench/README.md", "_bench/throttle/README.md", "cmd/weir/FLAGS.md", "cmd/weir/LOGS.md",
		"ops/config/FIELDS.md", "ops/weirprom/METRICS.md"}
	for _, name := range found {
		list = append(list, "docs/"+name)
	}
	return list
}

func read(t testing.TB, page string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root, page))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// split returns the code blocks of a page, and its lines. Lines that belong to blocks are
// empty in prose.
func split(t testing.TB, page string) (blocks []block, prose []string) {
	t.Helper()
	in := false
	lines := bufio.NewScanner(strings.NewReader(read(t, page)))
	for n := 1; lines.Scan(); n++ {
		info, fence := strings.CutPrefix(strings.TrimSpace(lines.Text()), "```")
		switch {
		case fence && !in:
			in = true
			blocks = append(blocks, block{page: page, line: n + 1, info: info})
		case fence:
			in = false
		case in:
			blocks[len(blocks)-1].text += lines.Text() + "\n"
		}
		if in || fence {
			prose = append(prose, "")
		} else {
			prose = append(prose, lines.Text())
		}
	}
	if in {
		t.Errorf("%s: the last block has no end", page)
	}
	return blocks, prose
}

// blocksOf returns all blocks, of all pages, in one language.
func blocksOf(t testing.TB, language string) (list []block) {
	for _, page := range pages(t) {
		blocks, _ := split(t, page)
		for _, b := range blocks {
			if b.info == language {
				list = append(list, b)
			}
		}
	}
	return list
}

// TestBlocks: every block of a page has a language that one of these tests checks. Blocks
// without a language are output of programs.
func TestBlocks(t *testing.T) {
	known := map[string]bool{"": true, "go": true, "sh": true, "yaml": true, "python": true, "js": true, "redis-acl": true, "nginx": true, "promql": true}
	for _, page := range pages(t) {
		blocks, _ := split(t, page)
		for _, b := range blocks {
			if !known[b.info] {
				t.Errorf("%v: no test checks blocks of %q", b, b.info)
			}
		}
	}
}

var (
	link   = regexp.MustCompile(`\]\(([^)\s]+)\)`)
	image  = regexp.MustCompile(`(?:src|srcset)="([^"]+)"`)
	noSlug = regexp.MustCompile(`[^\p{L}\p{N} _-]`)
)

// slugs returns the anchors that GitHub makes from the headings of a page.
func slugs(prose []string) map[string]bool {
	list := map[string]bool{}
	for _, line := range prose {
		if title := strings.TrimLeft(line, "#"); title != line && strings.HasPrefix(title, " ") {
			list[strings.ReplaceAll(noSlug.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-")] = true
		}
	}
	return list
}

// TestLinks: every page, heading and file that a page links to exists.
func TestLinks(t *testing.T) {
	for _, page := range pages(t) {
		_, prose := split(t, page)
		for n, line := range prose {
			for _, m := range append(link.FindAllStringSubmatch(line, -1), image.FindAllStringSubmatch(line, -1)...) {
				checkLink(t, page, n+1, m[1])
			}
		}
	}
}

// checkLink reports a link whose file or heading does not exist.
func checkLink(t *testing.T, page string, n int, to string) {
	t.Helper()
	if strings.Contains(to, "://") {
		return
	}
	name, anchor, _ := strings.Cut(to, "#")
	target := page
	if name != "" {
		target = filepath.Join(filepath.Dir(page), name)
	}
	if _, err := os.Stat(filepath.Join(root, target)); err != nil {
		t.Errorf("%s:%d: %v", page, n, err)
	} else if anchor != "" {
		if _, there := split(t, target); !slugs(there)[anchor] {
			t.Errorf("%s:%d: %s has no heading %q", page, n, target, anchor)
		}
	}
}

// declared returns the names of all tests, fuzz tests, benchmarks and examples in the
// repository.
func declared(t testing.TB) map[string]bool {
	t.Helper()
	declaration := regexp.MustCompile(`(?m)^func ((?:Test|Fuzz|Benchmark|Example)\w*)\(`)
	names := map[string]bool{}
	err := filepath.WalkDir(root, func(path string, d os.DirEntry, err error) error {
		if err == nil && d.IsDir() && (d.Name() == "testdata" || d.Name() == ".git") { // npm and git write there
			return filepath.SkipDir
		}
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		data, err := os.ReadFile(path)
		for _, m := range declaration.FindAllSubmatch(data, -1) {
			names[string(m[1])] = true
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return names
}

// TestNamedTests: every test that a page names exists.
func TestNamedTests(t *testing.T) {
	proof := regexp.MustCompile("`((?:Test|Fuzz|Benchmark|Example)[A-Z_]\\w*)`")
	known, found := declared(t), 0
	for _, page := range pages(t) {
		_, prose := split(t, page)
		for n, line := range prose {
			for _, m := range proof.FindAllStringSubmatch(line, -1) {
				if found++; !known[m[1]] {
					t.Errorf("%s:%d: there is no %s", page, n+1, m[1])
				}
			}
		}
	}
	if found < 20 {
		t.Errorf("pages name %d tests, want more: are the names still written as `TestX`?", found)
	}
}

// The longest that pages may be. The words of a page are what wc -w counts.
const (
	readmeLines, readmeWords = 160, 1000
	pageLines                = 200
	docsPages, docsWords     = 25, 36_000 // all pages of docs together
)

// TestLength: the pages are no longer than that.
func TestLength(t *testing.T) {
	n, all := 0, 0
	for _, page := range pages(t) {
		text := read(t, page)
		lines, words, most := strings.Count(text, "\n"), len(strings.Fields(text)), pageLines
		if page == "README.md" {
			most = readmeLines
			if words > readmeWords {
				t.Errorf("%s has %d words, want %d at most", page, words, readmeWords)
			}
		}
		if lines > most {
			t.Errorf("%s has %d lines, want %d at most", page, lines, most)
		}
		if strings.HasPrefix(page, "docs/") {
			n, all = n+1, all+words
		}
	}
	if n > docsPages || all > docsWords {
		t.Errorf("docs has %d pages and %d words, want %d and %d at most: shorten a page that you change", n, all, docsPages, docsWords)
	}
}

// TestReaders: the first line of every page in docs says whom it serves, as does
// docs/README.md, which lists every page under its readers.
func TestReaders(t *testing.T) {
	const index = "docs/README.md"
	readers := map[string]string{
		"## Use the library": "users of the library",
		"## Run the service": "those who run `weir serve`",
		"## Operate":         "operators",
		"## Contribute":      "contributors",
	}
	listed := map[string][]string{}
	_, prose := split(t, index)
	reader := ""
	for _, line := range prose {
		if strings.HasPrefix(line, "## ") {
			reader = readers[line]
		}
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			name, _, _ := strings.Cut(m[1], "#")
			if page := "docs/" + name; reader != "" && !slices.Contains(listed[page], reader) {
				listed[page] = append(listed[page], reader)
			}
		}
	}
	for _, page := range pages(t) {
		if !strings.HasPrefix(page, "docs/") || page == index {
			continue
		}
		want := "*For " + strings.Join(listed[page], " and ") + ".*"
		if _, prose := split(t, page); !strings.HasPrefix(prose[2], want) {
			t.Errorf("%s begins with %.60q, want %q, because %s lists it so", page, prose[2], want, index)
		}
	}
}
