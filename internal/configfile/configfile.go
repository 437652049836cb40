// Package configfile helps to read configuration files: it returns the tokens of YAML, locates
// nodes and errors, checks symbolic links, and suggests corrections for misspelled names.
package configfile

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf8"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/token"
)

// A Fault is an error in a file. Line and Column count from 1.
type Fault struct {
	Line, Column int
	Text         string
}

// Tokens returns the tokens of a YAML file. In one line, lists and mappings may be nested to at
// most the given number of levels. A tab within a plain value is an error, because the lexer drops
// it: "2<tab>0" would be 20.
func Tokens(data []byte, most int) (token.Tokens, *Fault) {
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
			return nil, &Fault{i + 1, 1, "the line is not UTF-8 text"}
		}
	}
	tokens := lexer.Tokenize(string(data))
	for _, t := range tokens {
		if from := strings.TrimSpace(t.Origin); strings.Contains(from, "\t") && !strings.Contains(t.Value, "\t") && !strings.ContainsAny(from[:1], `"'`) {
			return nil, &Fault{t.Position.Line, t.Position.Column, "a tab within a value, which the YAML library would drop; put the value in quotes"}
		}
	}
	if t := tooDeep(tokens, most); t != nil {
		return nil, &Fault{t.Position.Line, t.Position.Column, "nested too deeply"}
	}
	return tokens, nil
}

// FaultOf returns an error of the YAML library as a Fault, with its place if the place is known.
func FaultOf(err error) Fault {
	f := Fault{1, 1, err.Error()}
	var syntax interface { // yaml.Error, an interface, so that package admin need not compile the package yaml
		error
		GetMessage() string
		GetToken() *token.Token
	}
	if errors.As(err, &syntax) {
		f.Text = syntax.GetMessage()
		if t := syntax.GetToken(); t != nil && t.Position != nil {
			f.Line, f.Column = t.Position.Line, t.Position.Column
		}
	}
	return f
}

// First returns the first token of a node. For a mapping, GetToken would return the first colon.
func First(n ast.Node) *token.Token {
	switch v := n.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return First(v.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return First(v.Key)
	}
	return n.GetToken()
}

// If lists and mappings in one line are nested too deeply, tooDeep returns the token at which the
// maximum is exceeded. Otherwise, it returns nil. The parser's time and memory grow with the square
// of this depth. Nesting by indentation needs no bound, because deeper nesting takes more bytes.
func tooDeep(tokens token.Tokens, most int) *token.Token {
	flow, entries, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType: // "- - - x" is three lists in one line
			if t.Position.Line != line {
				line, entries = t.Position.Line, 0
			}
			entries++
		}
		if flow > most || entries > most {
			return t
		}
	}
	return nil
}

// Read returns the content of a file of at most 4 MiB. A larger file, such as /dev/zero, is an error.
func Read(path string) ([]byte, error) {
	const most = 4 << 20
	file, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer file.Close()
	data, err := io.ReadAll(io.LimitReader(file, most+1))
	if len(data) > most {
		err = fmt.Errorf("%s is larger than %d KiB", path, most>>10)
	}
	return data, err
}

// LeadOut reports whether symbolic links lead from name, which is below the directory dir, to a
// file outside dir. If LeadOut cannot find out, it returns true.
func LeadOut(dir, name string) bool {
	below, err := filepath.EvalSymlinks(dir)
	if err != nil {
		return true
	}
	target, err := filepath.EvalSymlinks(name)
	if err != nil {
		return true
	}
	rest, err := filepath.Rel(below, target)
	return err != nil || !filepath.IsLocal(rest)
}

// Nearest returns the known name that has the smallest edit distance from the given name (the first
// of several). If that distance exceeds the maximum, Nearest returns "". An edit inserts, removes
// or replaces a byte, or swaps two neighbours (optimal string alignment); case is ignored. Each
// comparison takes time proportional to the product of the lengths.
func Nearest(name string, known []string, most int) (nearest string) {
	for _, k := range known {
		if n := distance(strings.ToLower(name), strings.ToLower(k)); n <= most {
			nearest, most = k, n-1
		}
	}
	return nearest
}

func distance(a, b string) int {
	prev2, prev, row := make([]int, len(b)+1), make([]int, len(b)+1), make([]int, len(b)+1)
	for j := range prev {
		prev[j] = j
	}
	for i := range len(a) {
		row[0] = i + 1
		for j := range len(b) {
			step := 1
			if a[i] == b[j] {
				step = 0
			}
			row[j+1] = min(prev[j+1]+1, row[j]+1, prev[j]+step)
			if i > 0 && j > 0 && a[i] == b[j-1] && a[i-1] == b[j] {
				row[j+1] = min(row[j+1], prev2[j-1]+1)
			}
		}
		prev2, prev, row = prev, row, prev2
	}
	return prev[len(b)]
}
