package config

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"github.com/goccy/go-yaml/token"

	"github.com/seed83679106/weir"
)

// A decoder reads nodes of YAML and keeps what is wrong with them. What it
// returns for a wrong one is of no use.
type decoder struct {
	path  string
	store weir.Store
	o     *Options
	errs  []*Error

	trusted   []netip.Prefix // trusted-proxies
	forwarded bool           // their field is Forwarded
}

func (d *decoder) errorf(n ast.Node, format string, args ...any) {
	line, column := 1, 1
	if t := first(n); t != nil && t.Position != nil {
		line, column = t.Position.Line, t.Position.Column
	}
	d.add(line, column, fmt.Sprintf(format, args...))
}

// first returns the token that a node begins with. A mapping itself says where
// its first colon is.
func first(n ast.Node) *token.Token {
	switch v := n.(type) {
	case nil:
		return nil
	case *ast.MappingNode:
		if !v.IsFlowStyle && len(v.Values) > 0 {
			return first(v.Values[0].Key)
		}
	case *ast.MappingValueNode:
		return first(v.Key)
	}
	return n.GetToken()
}

// parse returns the only document of a file, or nil.
func (d *decoder) parse(data []byte) ast.Node {
	if len(data) > MaxSize {
		d.errorf(nil, "the file is larger than %d KiB", MaxSize>>10)
		return nil
	}
	data = bytes.TrimPrefix(data, []byte("\ufeff"))
	for i, line := range bytes.Split(data, []byte("\n")) {
		if !utf8.Valid(line) || bytes.IndexByte(line, 0) >= 0 {
			d.add(i+1, 1, "the line is not text in UTF-8")
			return nil
		}
	}
	tokens := lexer.Tokenize(string(data))
	if t := tooDeep(tokens); t != nil {
		d.add(t.Position.Line, t.Position.Column, "nested too deeply")
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, column, text := 1, 1, err.Error()
		var syntax yaml.Error
		if errors.As(err, &syntax) {
			text = syntax.GetMessage()
			if t := syntax.GetToken(); t != nil && t.Position != nil {
				line, column = t.Position.Line, t.Position.Column
			}
		}
		d.add(line, column, "not YAML: "+text)
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

// tooDeep returns the token at which lists and mappings nest deeper than any
// file needs. The parser's time grows with the square of the depth.
func tooDeep(tokens token.Tokens) *token.Token {
	const most = 16
	flow, entries, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType: // "- - - x" nests on one line
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

// mapping returns the values of a mapping by field, nil for those that are not
// there. what names it in messages: "a rule".
func (d *decoder) mapping(n ast.Node, what string, known []string, required ...string) map[string]ast.Node {
	before := len(d.errs)
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.wrongType(n, what, "a mapping")
		return nil
	}
	fields, lines := map[string]ast.Node{}, map[string]int{}
	for _, v := range m.Values {
		name, key := "", first(v.Key)
		if key != nil {
			name = key.Value
		}
		switch {
		case lines[name] > 0:
			d.errorf(v, "%s has the field %s twice; the first is in line %d", what, name, lines[name])
			continue
		case name == "<<":
			d.errorf(v, "merging is not supported; the top of the file has defaults for all rules")
			continue
		case !slices.Contains(known, name):
			d.errorf(v, "unknown field %s in %s%s", name, what, meantField(name, known))
			continue
		}
		fields[name], lines[name] = v.Value, key.Position.Line
	}
	for _, name := range required {
		if fields[name] == nil && len(d.errs) == before { // or it may be there, misspelt
			d.errorf(n, "%s has no %s", what, name)
		}
	}
	return fields
}

// meantField knows what others call a field.
func meantField(name string, known []string) string {
	for _, s := range [][2]string{
		{"quota", "limit"}, {"max", "limit"}, {"requests", "limit"}, {"window", "period"}, {"interval", "period"},
		{"rules", "limits"}, {"limits", "config"}, {"dialect", "headers"}, {"trusted", "trusted-proxies"}, {"zone", "timezone"},
	} {
		if s[0] == name && slices.Contains(known, s[1]) {
			return "; did you mean " + s[1] + "?"
		}
	}
	return meant(name, known)
}

// list returns the elements of a list that has some.
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

// text returns a string that is not empty.
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

// atLeast1 returns a whole number in decimal. YAML knows others, and programs
// disagree about what 010 is.
func (d *decoder) atLeast1(n ast.Node, what string) int64 {
	switch n.(type) {
	case *ast.IntegerNode:
	case *ast.FloatNode:
		d.errorf(n, "%s is %s; want a whole number", what, n.GetToken().Value)
		return 0
	default:
		d.wrongType(n, what, "a whole number")
		return 0
	}
	s := n.GetToken().Value
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case errors.Is(err, strconv.ErrRange):
		d.errorf(n, "%s %s is too large", what, s)
		return 0
	case err != nil, strings.HasPrefix(strings.TrimLeft(s, "+-"), "0") && v != 0:
		d.errorf(n, "%s is %s; want decimal digits", what, s)
		return 0
	case v < 1:
		d.errorf(n, "%s is %d; want at least 1", what, v)
		return 0
	}
	return v
}

// duration returns a span of time: a number of seconds, or what
// time.ParseDuration reads, with days and weeks before it.
func (d *decoder) duration(n ast.Node, what string) time.Duration {
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode:
	default:
		d.wrongType(n, what, "seconds, or a duration such as 60s, 1m or 1d")
		return 0
	}
	s := n.GetToken().Value
	span, ok := parseDuration(s)
	switch {
	case !ok && what == "period":
		d.errorf(n, "%s %q is not a duration; write seconds, or 60s, 1m, 1d, or day, week, month for those of the calendar", what, s)
	case !ok:
		d.errorf(n, "%s %q is not a duration; write seconds, or 60s, 1m, 1d", what, s)
	case span <= 0:
		d.errorf(n, "%s is %s; want more than 0", what, s)
	case span < time.Microsecond, span%time.Microsecond != 0:
		d.errorf(n, "%s %s is not in whole microseconds", what, s)
	}
	return span
}

func parseDuration(s string) (total time.Duration, ok bool) {
	for _, u := range []struct {
		name string
		d    time.Duration
	}{{"w", 7 * 24 * time.Hour}, {"d", 24 * time.Hour}} {
		digits, rest, found := strings.Cut(s, u.name)
		if !found {
			continue
		}
		n, err := strconv.ParseUint(digits, 10, 63)
		if err != nil || n > uint64((1<<63-1-total)/u.d) {
			return 0, false
		}
		total += time.Duration(n) * u.d
		if s = rest; s == "" {
			return total, true
		}
	}
	if total == 0 && strings.Trim(s, "+-.0123456789") == "" {
		s += "s"
	}
	d, err := time.ParseDuration(s)
	return total + d, err == nil && total+d >= total == (d >= 0)
}

// share returns a part of the whole: true and 100% are all of it, false is nothing.
func (d *decoder) share(n ast.Node, what string) float64 {
	switch v := n.(type) {
	case *ast.BoolNode:
		if v.Value {
			return 1
		}
		return 0
	case *ast.StringNode:
		if digits, ok := strings.CutSuffix(v.Value, "%"); ok && digits != "" && strings.Trim(digits, ".0123456789") == "" {
			if share, err := strconv.ParseFloat(digits, 64); err == nil && share <= 100 {
				return share / 100
			}
		}
	}
	d.errorf(n, "%s is %s; want true, false or a percentage, 0%% to 100%%", what, describe(n))
	return 0
}

func (d *decoder) wrongType(n ast.Node, what, want string) {
	switch n.(type) {
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.errorf(n, "%s is %s, which is not supported; the top of the file has defaults for all rules", what, describe(n))
	default:
		d.errorf(n, "%s is %s; want %s", what, describe(n), want)
	}
}

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
