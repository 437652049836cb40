package envoy

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strings"
	"unicode/utf8"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed83679106/weir/internal/nesting"
)

// maxDepth is how deep lists and mappings in one line may be nested. A descriptor in another one
// is two levels deeper.
const maxDepth = 100

// A reader adds a file to a Config.
type reader struct {
	config *Config
	old    map[[3]string]*stats // of the Config before, which limits with the same labels keep
	file   file
	merge  bool
	tree   *ast.File
	errs   []error
}

// errorf adds an error for the line of a YAML path such as $.descriptors[0].
func (r *reader) errorf(path, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s: %s", r.place(path), fmt.Sprintf(format, args...)))
}

// place returns the name of the file and the line of a YAML path.
func (r *reader) place(path string) string {
	line := 1
	if p, err := yaml.PathString(path); err == nil {
		if n, err := p.FilterFile(r.tree); err == nil && n != nil {
			line = lineOf(n)
		}
	}
	return fmt.Sprintf("%s:%d", r.file.path, line)
}

// lineOf returns the line where a node begins. A mapping begins with its first key.
func lineOf(n ast.Node) int {
	switch m := n.(type) {
	case *ast.MappingNode:
		if len(m.Values) > 0 && !m.IsFlowStyle {
			n = m.Values[0].Key
		}
	case *ast.MappingValueNode:
		n = m.Key
	}
	return n.GetToken().Position.Line
}

func (r *reader) read() {
	if len(r.file.data) > maxSize {
		r.errs = append(r.errs, fmt.Errorf("%s:1: the file is larger than %d MiB", r.file.path, maxSize>>20))
		return
	}
	if !utf8.Valid(r.file.data) {
		line := slices.IndexFunc(bytes.Split(r.file.data, []byte("\n")), func(line []byte) bool { return !utf8.Valid(line) })
		r.errs = append(r.errs, fmt.Errorf("%s:%d: the line is not UTF-8 text", r.file.path, line+1))
		return
	}
	var y fileYAML
	var err error
	tokens := lexer.Tokenize(string(r.file.data))
	if t := nesting.TooDeep(tokens, maxDepth); t != nil {
		r.errs = append(r.errs, fmt.Errorf("%s:%d: nested too deeply", r.file.path, t.Position.Line))
		return
	}
	if r.tree, err = parser.Parse(tokens, 0); err == nil {
		if tooManyAliases(r.tree) {
			r.errs = append(r.errs, fmt.Errorf("%s:1: the aliases of the file stand for more than %d values", r.file.path, maxAliased))
			return
		}
		err = yaml.UnmarshalWithOptions(r.file.data, &y, yaml.Strict())
	}
	if err != nil {
		r.syntax(err)
		return
	}
	for _, doc := range r.tree.Docs {
		ast.Walk((*fields)(r), doc)
	}
	if len(r.errs) > 0 {
		return
	}
	if y.Domain == "" {
		r.errorf("$", "the file has no domain")
		return
	}
	domain := string(y.Domain)
	n := r.config.domains[domain]
	switch {
	case n == nil:
		n = newNode()
		r.config.domains[domain] = n
	case !r.merge:
		r.errorf("$.domain", "another file has the domain %s as well", domain)
		return
	}
	r.descriptors(n, y.Descriptors, "$", []string{domain})
}

// fields is an ast.Visitor that reports fields whose names are not texts, such as 0.25.
// yaml.Unmarshal ignores such fields.
type fields reader

func (f *fields) Visit(n ast.Node) ast.Visitor {
	if v, ok := n.(*ast.MappingValueNode); ok {
		switch v.Key.(type) {
		case *ast.StringNode, *ast.MergeKeyNode:
		default:
			f.errs = append(f.errs, fmt.Errorf("%s:%d: unknown field %s", f.file.path, lineOf(v), v.Key.GetToken().Value))
		}
	}
	return f
}

// syntax adds an error of the YAML library, with the line of the error if that is known.
func (r *reader) syntax(err error) {
	line := 1
	text := err.Error()
	if e := yaml.Error(nil); errors.As(err, &e) {
		text = e.GetMessage()
		if t := e.GetToken(); t != nil {
			line = t.Position.Line
		}
	}
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.file.path, line, text))
}

// descriptors adds the descriptors in list to the children of n. The argument at is the YAML
// path of n in the file, and names lists the nodes from the domain to n.
func (r *reader) descriptors(n *node, list []descriptorYAML, at string, names []string) {
	for i, d := range list {
		at := fmt.Sprintf("%s.descriptors[%d]", at, i)
		if d.Key == "" {
			r.errorf(at, "a descriptor has no key")
			continue
		}
		name := string(d.Key)
		if d.Value != "" {
			name += "_" + string(d.Value)
		}
		names := append(slices.Clip(names), name)
		full := strings.Join(names, ".")
		if n.children[name] != nil {
			r.errorf(at, "two descriptors have the name %s", full)
			continue
		}
		child := newNode()
		n.children[name] = child
		if strings.Contains(name, "*") {
			n.wildcards = append(n.wildcards, wildcard{strings.Split(name, "*"), child})
		}
		if d.ShareThreshold {
			if child.shared = string(d.Value); !strings.Contains(name, "*") {
				r.errorf(at+".share_threshold", "share_threshold needs a value with an asterisk")
			}
		}
		if d.DetailedMetric || d.ValueToMetric {
			r.config.Warnings = append(r.config.Warnings, r.place(at)+": detailed_metric and value_to_metric are ignored, because clients would choose the labels of metrics")
		}
		if d.RateLimit != nil {
			child.limit = r.limit(&d, at, names)
		}
		r.descriptors(child, d.Descriptors, at, names)
	}
}

// stats returns the metrics of a limit. Limits with the same labels share them.
func (r *reader) stats(names []string) *stats {
	s := newStats(names)
	labels := [3]string{s.domain, s.key1, s.key2}
	s = cmp.Or(r.config.stats[labels], r.old[labels], s)
	r.config.stats[labels] = s
	return s
}

// limit returns the limit of d and adds it to the Config. The argument at is the YAML path of d.
func (r *reader) limit(d *descriptorYAML, at string, names []string) *limit {
	metadata, err := structpb.NewStruct(d.Metadata)
	if err != nil {
		r.errorf(at+".metadata", "metadata: %v", err)
	}
	y := d.RateLimit
	at += ".rate_limit"
	unit := ratelimit.RateLimitResponse_RateLimit_Unit(ratelimit.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(string(y.Unit))])
	switch valid := periods[unit] > 0; {
	case y.Unlimited && valid:
		r.errorf(at+".unit", "an unlimited rate_limit must not have a unit")
	case !y.Unlimited && !valid:
		r.errorf(at, "unit is %q; want second, minute, hour, day, week, month or year", y.Unit)
	}
	l := &limit{
		proto:     &ratelimit.RateLimitResponse_RateLimit{Name: string(y.Name), RequestsPerUnit: y.RequestsPerUnit, Unit: unit},
		unlimited: y.Unlimited, shadow: d.ShadowMode, quota: d.QuotaMode, metadata: metadata, stats: r.stats(names),
	}
	for i, replaced := range y.Replaces {
		switch at := fmt.Sprintf("%s.replaces[%d]", at, i); replaced.Name {
		case "":
			r.errorf(at, "an entry of replaces has no name")
		case y.Name:
			r.errorf(at, "a rate_limit replaces itself")
		}
		l.replaces = append(l.replaces, string(replaced.Name))
	}
	r.config.limits = append(r.config.limits, l)
	return l
}
