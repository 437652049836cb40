package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/nesting"
)

// A decoder reads nodes of YAML and collects the mistakes in them. The value that it
// returns for a node with a mistake must not be used.
type decoder struct {
	path  string
	store weir.Store
	o     *Options
	errs  []*Error

	fields     map[string]ast.Node // of the file
	included   []*decoder          // of the files that it includes
	isIncluded bool
	outside    bool // a symbolic link to a file outside of the directory of the file that includes it

	trusted   []netip.Prefix // trusted-proxies
	forwarded bool           // proxy-header is forwarded
	ip        weir.KeyFunc   // the key ip
}

// errorf adds a mistake at the place of n.
func (d *decoder) errorf(n ast.Node, format string, args ...any) {
	line, column := 1, 1
	if t := firstToken(n); t != nil && t.Position != nil {
		line, column = t.Position.Line, t.Position.Column
	}
	d.add(line, column, fmt.Sprintf(format, args...))
}

// firstToken returns the first token of a node. GetToken of a mapping would return
// its first colon.
func firstToken(n ast.Node) *token.Token {
	switch v := n.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return firstToken(v.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return firstToken(v.Key)
	}
	return n.GetToken()
}

// parse returns the only document of a file, or nil after a mistake.
func (d *decoder) parse(data []byte) ast.Node {
	if len(data) > MaxSize {
		d.errorf(nil, "the file is larger than %d KiB", MaxSize>>10)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
			d.add(i+1, 1, "the line is not UTF-8 text")
			return nil
		}
	}
	tokens := lexer.Tokenize(string(data))
	if t := nesting.TooDeep(tokens, maxDepth); t != nil {
		d.add(t.Position.Line, t.Position.Column, "nested too deeply")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		d.syntaxError(err)
		return nil
	}
	switch docs := file.Docs; {
	case len(docs) == 0 || len(docs) == 1 && docs[0].Body == nil:
		d.errorf(nil, "the file is empty; it needs limits")
		return nil
	case len(docs) > 1:
		d.errorf(docs[1].Body, "the file has more than one document")
		return nil
	}
	return file.Docs[0].Body
}

// syntaxError adds an error of the parser.
func (d *decoder) syntaxError(err error) {
	line, column, text := 1, 1, err.Error()
	var syntax yaml.Error
	if errors.As(err, &syntax) {
		text = syntax.GetMessage()
		if t := syntax.GetToken(); t != nil && t.Position != nil {
			line, column = t.Position.Line, t.Position.Column
		}
	}
	d.add(line, column, "not YAML: "+text)
}

// maxDepth is how deep lists and mappings in one line may be nested.
const maxDepth = 16

// mapping returns the values of a mapping by field. Its parameters are the name of the mapping
// in messages, such as "a rule", the fields that the mapping may have, and the fields that
// it must have.
func (d *decoder) mapping(n ast.Node, what string, known []string, required ...string) map[string]ast.Node {
	before := len(d.errs)
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.wrongType(n, what, "a mapping")
		return nil
	}
	fields, lines := map[string]ast.Node{}, map[string]int{}
	for _, v := range m.Values {
		name, key := "", firstToken(v.Key)
		if key != nil {
			name = key.Value
		}
		switch {
		case lines[name] > 0:
			d.errorf(v, "%s has the field %s twice; the first is in line %d", what, name, lines[name])
			continue
		case name == "<<":
			d.errorf(v, "merge keys are not supported; the top of the file has defaults for all rules")
			continue
		case !slices.Contains(known, name) && d.isIncluded && what == theFile && slices.Contains(fileFields, name):
			d.errorf(v, "%s belongs in the file that includes this one", name)
			continue
		case !slices.Contains(known, name):
			d.errorf(v, "unknown field %s in %s%s", name, what, suggestField(name, known))
			continue
		}
		fields[name], lines[name] = v.Value, key.Position.Line
	}
	for _, name := range required {
		if fields[name] == nil && len(d.errs) == before { // after another mistake the field may be there, misspelt
			d.errorf(n, "%s has no %s", what, name)
		}
	}
	return fields
}

// suggestField is suggest for the names of fields. It also knows names that other
// libraries use for these fields.
func suggestField(name string, known []string) string {
	for _, s := range [][2]string{
		{"quota", "limit"}, {"max", "limit"}, {"requests", "limit"}, {"window", "period"}, {"interval", "period"},
		{"rules", "limits"}, {"limits", "config"}, {"dialect", "headers"}, {"trusted", "trusted-proxies"}, {"zone", "timezone"},
	} {
		if s[0] == name && slices.Contains(known, s[1]) {
			return "; did you mean " + s[1] + "?"
		}
	}
	return suggest(name, known)
}

// list returns the elements of a list. An empty list is a mistake.
func (d *decoder) list(n ast.Node, what string) []ast.Node {
	s, ok := n.(*ast.SequenceNode)
	switch {
	case !ok:
		d.wrongType(n, what, "a list")
		return nil
	case len(s.Values) == 0:
		d.errorf(n, "%s is an empty list", what)
	}
	return s.Values
}

// text returns a string. An empty string is a mistake.
func (d *decoder) text(n ast.Node, what string) (string, bool) {
	s, ok := n.(*ast.StringNode)
	switch {
	case !ok:
		d.wrongType(n, what, "a string")
		return "", false
	case s.Value == "":
		d.errorf(n, "%s is an empty string", what)
		return "", false
	}
	return s.Value, true
}

// wrongType adds the mistake that the node n does not have the wanted type.
func (d *decoder) wrongType(n ast.Node, what, want string) {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.errorf(n, "%s is %s, which is not supported; the top of the file has defaults for all rules", what, describe(n))
	default:
		d.errorf(n, "%s is %s; want %s", what, describe(n), want)
	}
}

// describe returns a short text for the value of a node.
func describe(n ast.Node) string {
	switch v := n.(type) {
	case *ast.StringNode:
		return strconv.Quote(v.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode, *ast.BoolNode:
		return n.GetToken().Value
	case *ast.MappingNode:
		return "a mapping"
	case *ast.SequenceNode:
		return "a list"
	case *ast.LiteralNode:
		return "a block of text"
	case *ast.AnchorNode:
		return "an anchor"
	case *ast.AliasNode:
		return "an alias"
	case *ast.TagNode:
		return "tagged"
	case nil, *ast.NullNode:
		return "empty"
	}
	return "something else"
}
