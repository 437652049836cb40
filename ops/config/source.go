package config

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/configfile"
)

// A source represents one file. The methods of a source read YAML nodes and collect the errors in
// these nodes. If a method adds an error for a node, the value that it returns must not be used.
type source struct {
	path       string
	fields     fields
	isIncluded bool
	outside    bool // a symbolic link to a file outside the directory of the including file
	errs       []*Error
}

// fields holds the values of a mapping.
type fields map[string]ast.Node

// set sets *to to the value that read returns for a field, if the mapping has this field.
func set[T any](f fields, name string, to *T, read func(n ast.Node, what string) T) {
	if n := f[name]; n != nil {
		*to = read(n, name)
	}
}

// errorf adds an error at the place of n.
func (d *source) errorf(n ast.Node, format string, args ...any) {
	line, column := 1, 1
	if t := configfile.First(n); t != nil && t.Position != nil {
		line, column = t.Position.Line, t.Position.Column
	}
	d.add(line, column, fmt.Sprintf(format, args...))
}

// add adds an error. The text may quote the file, so add shortens a long text and replaces
// characters that could control a terminal. A file outside the directory is not quoted, because
// anyone who can create a link in the directory could otherwise read files that only this process
// may read.
func (d *source) add(line, column int, text string) {
	if d.outside {
		text = "an error; its text is not shown, because this path is a symbolic link that leads out of the directory of the file that includes it"
	}
	const maxText = 300
	if len(text) > maxText {
		text = text[:maxText] + "…"
	}
	text = strings.ReplaceAll(text, "\t", `\t`)
	text = strings.Map(func(r rune) rune {
		if !unicode.IsPrint(r) {
			return unicode.ReplacementChar
		}
		return r
	}, text)
	d.errs = append(d.errs, &Error{d.path, max(1, line), max(1, column), text})
}

const theFile = "the file" // in messages

// parseFile reads the fields of a file. known lists the fields that the file may have.
func (d *source) parseFile(data []byte, known []string) {
	root := d.parse(data)
	if len(d.errs) > 0 {
		return
	}
	d.fields = d.mapping(root, theFile, known)
	if d.fields != nil && len(d.errs) == 0 && d.fields["limits"] == nil && d.fields["include"] == nil {
		d.errorf(root, "the file has no limits")
	}
}

// parse returns the only document of a file, or nil after an error.
func (d *source) parse(data []byte) ast.Node {
	if len(data) > MaxSize {
		d.errorf(nil, "the file is larger than %d KiB", MaxSize>>10)
		return nil
	}
	tokens, fault := configfile.Tokens(bytes.TrimPrefix(data, []byte("\ufeff")), maxDepth)
	if fault != nil {
		d.add(fault.Line, fault.Column, fault.Text)
		return nil
	}
	file, err := parser.Parse(tokens, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		f := configfile.FaultOf(err)
		d.add(f.Line, f.Column, "not YAML: "+f.Text)
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

// maxDepth is the number of levels to which lists and mappings in one line may be nested.
const maxDepth = 16

// mapping returns the values of a mapping by field. Messages describe the mapping by the given
// text, such as "a rule". The last two arguments list the fields that the mapping may have and must
// have.
func (d *source) mapping(n ast.Node, what string, known []string, required ...string) fields {
	before := len(d.errs)
	m, ok := n.(*ast.MappingNode)
	if !ok {
		d.wrongType(n, what, "a mapping")
		return nil
	}
	f, lines := fields{}, map[string]int{}
	for _, v := range m.Values {
		name, key := "", configfile.First(v.Key)
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
		f[name], lines[name] = v.Value, key.Position.Line
	}
	for _, name := range required {
		if f[name] == nil && len(d.errs) == before { // after another error, the field may be present but misspelled
			d.errorf(n, "%s has no %s", what, name)
		}
	}
	return f
}

// suggestField is like suggest, for the names of fields. It also recognizes names that other
// libraries use for these fields.
func suggestField(name string, known []string) string {
	for _, s := range [][2]string{
		{"quota", "limit"}, {"max", "limit"}, {"requests", "limit"}, {"window", "period"}, {"interval", "period"},
		{"rules", "limits"}, {"limits", "config"}, {"dialect", "headers"}, {"trusted", "trusted-proxies"},
		{"zone", "timezone"},
	} {
		if s[0] == name && slices.Contains(known, s[1]) {
			return "; did you mean " + s[1] + "?"
		}
	}
	return suggest(name, known)
}

// list returns the elements of a list. An empty list is an error.
func (d *source) list(n ast.Node, what string) []ast.Node {
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

// oneOrMore returns the elements of a list, or n itself if n is not a list.
func (d *source) oneOrMore(n ast.Node, what string) []ast.Node {
	if _, ok := n.(*ast.SequenceNode); ok {
		return d.list(n, what)
	}
	return []ast.Node{n}
}

// text returns a string, or "" after an error. An empty string is an error.
func (d *source) text(n ast.Node, what string) string {
	s, ok := n.(*ast.StringNode)
	switch {
	case !ok:
		d.wrongType(n, what, "a string")
		return ""
	case s.Value == "":
		d.errorf(n, "%s is an empty string", what)
	}
	return s.Value
}

// choice reads one of the known names and returns its index, or -1 after an error.
func (d *source) choice(n ast.Node, what string, known []string) int {
	name := d.text(n, what)
	i := slices.Index(known, name)
	if i < 0 && name != "" {
		d.errorf(n, "unknown %s %s%s", what, name, suggest(name, known))
	}
	return i
}

// wrongType adds the error that the node n does not have the wanted type.
func (d *source) wrongType(n ast.Node, what, want string) {
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
	case nil:
		return "empty"
	case *ast.StringNode:
		return strconv.Quote(v.Value)
	case *ast.IntegerNode, *ast.FloatNode, *ast.InfinityNode, *ast.NanNode, *ast.BoolNode:
		return n.GetToken().Value
	}
	return cmp.Or(valueNames[n.Type()], "something else")
}

// valueNames describes the types of values that are not described by their text.
var valueNames = map[ast.NodeType]string{
	ast.MappingType: "a mapping", ast.SequenceType: "a list", ast.LiteralType: "a block of text",
	ast.AnchorType: "an anchor", ast.AliasType: "an alias", ast.TagType: "tagged", ast.NullType: "empty",
}

// atLeast1 returns a whole number of at least 1. The number must be decimal without
// leading zeros, because versions of YAML disagree about 010.
func (d *source) atLeast1(n ast.Node, what string) int64 {
	_, isInteger := n.(*ast.IntegerNode)
	_, isFloat := n.(*ast.FloatNode)
	if !isInteger && !isFloat {
		d.wrongType(n, what, "a whole number")
		return 0
	}
	s := n.GetToken().Value
	v, err := strconv.ParseInt(s, 10, 64)
	switch {
	case isFloat:
		d.errorf(n, "%s is %s; want a whole number", what, s)
	case errors.Is(err, strconv.ErrRange):
		d.errorf(n, "%s %s is too large", what, s)
	case err != nil, strings.HasPrefix(strings.TrimLeft(s, "+-"), "0") && v != 0:
		d.errorf(n, "%s is %s; want decimal digits", what, s)
	case v < 1:
		d.errorf(n, "%s is %d; want at least 1", what, v)
	default:
		return v
	}
	return 0
}

// duration reads a duration: a number of seconds, or a text such as 1w2d3h, which begins with weeks
// and days, if any, and continues as for time.ParseDuration.
func (d *source) duration(n ast.Node, what string) time.Duration {
	want := "seconds, or a duration such as 60s, 1m or 1d"
	switch n.(type) {
	case *ast.IntegerNode, *ast.FloatNode, *ast.StringNode:
	default:
		d.wrongType(n, what, want)
		return 0
	}
	if what == "period" {
		want += ", or day, week or month"
	}
	s := n.GetToken().Value
	v, ok := parseDuration(s)
	switch {
	case !ok:
		d.errorf(n, "%s is %q; want %s", what, s, want)
	case v <= 0:
		d.errorf(n, "%s is %s; want more than 0", what, s)
	case v < time.Microsecond, v%time.Microsecond != 0:
		d.errorf(n, "%s is %s; want whole microseconds", what, s)
	}
	return v
}

// parseDuration reads a duration as source.duration describes it. ok is false if s is not a
// duration, or is too long for a time.Duration.
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

// boolean reads true or false.
func (d *source) boolean(n ast.Node, what string) bool {
	b, ok := n.(*ast.BoolNode)
	if !ok {
		d.wrongType(n, what, "true or false")
		return false
	}
	return b.Value
}

// enforcement reads a percentage of keys.
func (d *source) enforcement(n ast.Node, what string) weir.Enforcement {
	if percent, ok := percentage(n); ok && percent <= 100 {
		return weir.Percent(percent)
	}
	d.errorf(n, "%s is %s; want a percentage of the keys, 0%% to 100%%", what, describe(n))
	return weir.Enforcement{}
}

// percentage returns the number in a text such as 12.5%. ok is false if n is not such a text.
func percentage(n ast.Node) (percent float64, ok bool) {
	s, _ := n.(*ast.StringNode)
	if s == nil {
		return 0, false
	}
	digits, ok := strings.CutSuffix(s.Value, "%")
	percent, err := strconv.ParseFloat(digits, 64)
	return percent, ok && err == nil && strings.Trim(digits, ".0123456789") == ""
}

// An Error describes a single error in a rules file. The error returned by Open or Reload wraps at
// most 100 Errors, in the order in which they occur in the file. The text of that error has a line
// for each Error.
type Error struct {
	Path         string
	Line, Column int // both from 1; Column counts characters
	Text         string
}

// Error returns a text such as "rules.yaml:3:7: unknown field perid; did you mean period?".
func (e *Error) Error() string {
	return fmt.Sprintf("%s:%d:%d: %s", e.Path, e.Line, e.Column, e.Text)
}

// suggest returns the end of a message about an unknown name: the most similar known name,
// or all known names if none is similar and there are at most 24.
func suggest(name string, known []string) string {
	best := ""
	if len(name) <= 64 {
		best = configfile.Nearest(name, known, 1+len(name)/3)
	}
	switch {
	case best != "":
		return fmt.Sprintf("; did you mean %s?", best)
	case len(known) > 0 && len(known) <= 24:
		return "; known are " + strings.Join(known, ", ")
	}
	return ""
}
