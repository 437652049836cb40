// Package envoy is a gRPC service for Envoy's rate limit filter,
// envoy.service.ratelimit.v3.RateLimitService. It takes the place of
// github.com/envoyproxy/ratelimit, here called Envoy's service: it reads the same files and makes
// the same decisions.
//
// Every hit counts, even if it is over the limit. Windows begin at whole multiples of their
// unit since 1970. The store only counts: its fixed windows have a quota above every limit, and
// this package compares the count with the limit.
package envoy

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
	"unicode/utf8"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/lexer"
	"github.com/goccy/go-yaml/parser"

	"github.com/seed83679106/weir/internal/nesting"
	"github.com/seed83679106/weir/internal/symlinks"
)

// These types describe a file as Envoy's service reads it.
type (
	fileYAML struct {
		Domain      text
		Descriptors []descriptorYAML
	}
	descriptorYAML struct {
		Key            text
		Value          text
		RateLimit      *limitYAML `yaml:"rate_limit"`
		Descriptors    []descriptorYAML
		ShadowMode     bool `yaml:"shadow_mode"`
		QuotaMode      bool `yaml:"quota_mode"`
		ShareThreshold bool `yaml:"share_threshold"`

		// DetailedMetric and ValueToMetric would add values of requests to the labels of
		// metrics. They are read and ignored: a client must not choose labels.
		DetailedMetric bool `yaml:"detailed_metric"`
		ValueToMetric  bool `yaml:"value_to_metric"`
	}
	limitYAML struct {
		RequestsPerUnit uint32 `yaml:"requests_per_unit"`
		Unit            text
		Unlimited       bool
		Name            text
		Replaces        []struct{ Name text }
	}
)

// A text is a YAML scalar as it is written in the file: 0443 does not become a number, and true
// does not become a boolean.
type text string

func (t *text) UnmarshalYAML(n ast.Node) error {
	switch n := n.(type) {
	case *ast.TagNode:
		return t.UnmarshalYAML(n.Value)
	case *ast.LiteralNode:
		*t = text(n.Value.Value)
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		*t = text(n.GetToken().Value)
	default:
		return &yaml.SyntaxError{Message: "want a text or a number here", Token: n.GetToken()}
	}
	return nil
}

// Config holds the limits of the files of a directory.
type Config struct {
	domains map[string]*node
	limits  []*limit
}

// A node is a domain, or a descriptor of a file. Its children are the descriptors in it.
type node struct {
	children  map[string]*node // by name: key, or key_value
	wildcards []wildcard       // the children with an asterisk, in the order of the file
	limit     *limit           // nil if the descriptor has no limit
	shared    string           // with share_threshold: the pattern, which is counted in place of the values that match it
}

// A wildcard is a child whose name has asterisks. Each asterisk stands for any text, even an
// empty one.
type wildcard struct {
	parts []string // the name, split at the asterisks
	*node
}

func (w *wildcard) matches(s string) bool {
	first, last := w.parts[0], w.parts[len(w.parts)-1]
	if len(s) < len(first)+len(last) || !strings.HasPrefix(s, first) || !strings.HasSuffix(s, last) {
		return false
	}
	s = s[len(first) : len(s)-len(last)]
	for _, part := range w.parts[1 : len(w.parts)-1] {
		_, after, ok := strings.Cut(s, part)
		if !ok {
			return false
		}
		s = after
	}
	return true
}

// A limit is a rate_limit of a file, or the field limit of a descriptor in a call.
type limit struct {
	proto     *ratelimit.RateLimitResponse_RateLimit // the limit in answers; calls share it, so it never changes
	unlimited bool
	shadow    bool
	quota     bool
	replaces  []string
	*stats
}

// periods are the lengths of the units. A month has 30 days and a year has 365 days, as in
// Envoy's service.
var periods = map[ratelimit.RateLimitResponse_RateLimit_Unit]time.Duration{
	ratelimit.RateLimitResponse_RateLimit_SECOND: time.Second,
	ratelimit.RateLimitResponse_RateLimit_MINUTE: time.Minute,
	ratelimit.RateLimitResponse_RateLimit_HOUR:   time.Hour,
	ratelimit.RateLimitResponse_RateLimit_DAY:    24 * time.Hour,
	ratelimit.RateLimitResponse_RateLimit_WEEK:   7 * 24 * time.Hour,
	ratelimit.RateLimitResponse_RateLimit_MONTH:  30 * 24 * time.Hour,
	ratelimit.RateLimitResponse_RateLimit_YEAR:   365 * 24 * time.Hour,
}

// maxSize is the size of the largest file, in bytes.
const maxSize = 4 << 20

// maxDepth is how deep lists and mappings in one line may be nested. A descriptor in another one
// is two levels deeper.
const maxDepth = 100

// A file is the path and the content of a file of limits.
type file struct {
	path    string
	data    []byte
	outside bool // a symbolic link that leads out of the directory
}

// readFiles returns the file at path. If path is a directory, readFiles returns the files *.yaml
// and *.yml of that directory, sorted by name. Files whose names begin with a dot are left out.
func readFiles(path string) ([]file, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	paths := []string{path}
	if info.IsDir() {
		entries, err := os.ReadDir(path)
		if err != nil {
			return nil, err
		}
		paths = nil
		for _, e := range entries { // sorted by name
			if ext := filepath.Ext(e.Name()); (ext == ".yaml" || ext == ".yml") && e.Name()[0] != '.' {
				paths = append(paths, filepath.Join(path, e.Name()))
			}
		}
	}
	var files []file
	for _, p := range paths {
		data, err := os.ReadFile(p)
		if err != nil {
			return nil, err
		}
		files = append(files, file{p, data, info.IsDir() && symlinks.LeadOut(path, p)})
	}
	return files, nil
}

// Load reads the files of a directory, or one file. Its error lists the errors of all files,
// each with its file and line. If merge is true, several files may have descriptors of the
// same domain.
func Load(path string, merge bool) (*Config, error) {
	files, err := readFiles(path)
	if err != nil {
		return nil, err
	}
	return parse(files, merge)
}

func parse(files []file, merge bool) (*Config, error) {
	c := &Config{domains: map[string]*node{}}
	var errs []error
	for _, f := range files {
		r := reader{config: c, file: f, merge: merge}
		r.read()
		if f.outside && len(r.errs) > 0 { // who may write a link must not read by it what this process may read
			r.errs = []error{fmt.Errorf("%s: %d errors; their texts are not shown, because this path is a symbolic link that leads out of its directory", f.path, len(r.errs))}
		}
		errs = append(errs, r.errs...)
	}
	return c, errors.Join(errs...)
}

// A reader adds a file to a Config.
type reader struct {
	config *Config
	file   file
	merge  bool
	tree   *ast.File
	errs   []error
}

// errorf adds an error for the line of a YAML path such as $.descriptors[0].
func (r *reader) errorf(path, format string, args ...any) {
	line := 1
	if p, err := yaml.PathString(path); err == nil {
		if n, err := p.FilterFile(r.tree); err == nil && n != nil {
			line = lineOf(n)
		}
	}
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.file.path, line, fmt.Sprintf(format, args...)))
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

func newNode() *node { return &node{children: map[string]*node{}} }

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
		if d.RateLimit != nil {
			child.limit = r.limit(&d, at+".rate_limit", names)
		}
		r.descriptors(child, d.Descriptors, at, names)
	}
}

// limit returns the limit of d and adds it to the Config. The argument at is the YAML path of
// the rate_limit of d.
func (r *reader) limit(d *descriptorYAML, at string, names []string) *limit {
	y := d.RateLimit
	unit := ratelimit.RateLimitResponse_RateLimit_Unit(ratelimit.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(string(y.Unit))])
	switch valid := periods[unit] > 0; {
	case y.Unlimited && valid:
		r.errorf(at+".unit", "an unlimited rate_limit must not have a unit")
	case !y.Unlimited && !valid:
		r.errorf(at, "unit is %q; want second, minute, hour, day, week, month or year", y.Unit)
	}
	l := &limit{
		proto:     &ratelimit.RateLimitResponse_RateLimit{Name: string(y.Name), RequestsPerUnit: y.RequestsPerUnit, Unit: unit},
		unlimited: y.Unlimited, shadow: d.ShadowMode, quota: d.QuotaMode, stats: newStats(names),
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
