package envoy

import (
	"fmt"
	"slices"
	"strings"

	ratelimit "github.com/envoyproxy/go-control-plane/envoy/service/ratelimit/v3"
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/seed83679106/weir/internal/configfile"
)

// maxDepth is the number of levels to which lists and mappings in one line may be nested. A
// descriptor within another descriptor is two levels deeper.
const maxDepth = 100

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
	r.errs = append(r.errs, fmt.Errorf("%s: %s", r.place(path), fmt.Sprintf(format, args...)))
}

// place returns the name of the file and the line of a YAML path.
func (r *reader) place(path string) string {
	if r.tree == nil {
		return r.file.path + ": " + path
	}
	line := 1
	if p, err := yaml.PathString(path); err == nil {
		if n, err := p.FilterFile(r.tree); err == nil && n != nil {
			line = configfile.First(n).Position.Line
		}
	}
	return fmt.Sprintf("%s:%d", r.file.path, line)
}

// faultIn adds an error for a line.
func (r *reader) faultIn(line int, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.file.path, line, fmt.Sprintf(format, args...)))
}

func (r *reader) read() {
	if len(r.file.data) > maxSize {
		r.faultIn(1, "the file is larger than %d MiB", maxSize>>20)
		return
	}
	tokens, fault := configfile.Tokens(r.file.data, maxDepth)
	if fault != nil {
		r.faultIn(fault.Line, "%s", fault.Text)
		return
	}
	var y fileYAML
	var err error
	if r.tree, err = parser.Parse(tokens, 0); err == nil {
		if r.check(); len(r.errs) > 0 {
			return
		}
		err = yaml.UnmarshalWithOptions(r.file.data, &y, yaml.Strict())
	}
	if err != nil {
		f := configfile.FaultOf(err)
		r.faultIn(f.Line, "%s", f.Text)
		return
	}
	r.add(&y)
}

// add adds the content of the file to the Config.
func (r *reader) add(y *fileYAML) {
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

// maxAliased is the maximum number of nodes to which the aliases in a file may expand. If aliases
// contain other aliases, a few lines can expand to more nodes than fit into memory.
const maxAliased = 100_000

// check adds the errors that yaml.Unmarshal does not find.
func (r *reader) check() {
	c := checker{reader: r, anchors: map[string]int{}}
	for i, doc := range r.tree.Docs {
		if i > 0 && doc.Body != nil {
			r.faultIn(configfile.First(doc.Body).Position.Line, "a second document; want one in each file")
			return
		}
		ast.Walk(&c, doc)
	}
	if c.aliased > maxAliased {
		r.errs = nil
		r.faultIn(1, "the aliases of the file stand for more than %d values", maxAliased)
	}
}

// A checker is an ast.Visitor that counts nodes.
type checker struct {
	*reader
	nodes, aliased int            // the nodes so far, and those to which the aliases so far expand
	anchors        map[string]int // to how many nodes an alias of each anchor expands
}

func (c *checker) Visit(n ast.Node) ast.Visitor {
	c.nodes++
	switch n := n.(type) {
	case *ast.MappingValueNode:
		c.field(n)
	case *ast.AnchorNode:
		name, before := n.Name.GetToken().Value, c.nodes+c.aliased
		c.anchors[name] = maxAliased + 1 // an alias within its own anchor would expand forever
		ast.Walk(c, n.Value)
		c.anchors[name] = c.nodes + c.aliased - before
		return nil
	case *ast.AliasNode:
		c.aliased = min(c.aliased+c.anchors[n.Value.GetToken().Value], maxAliased+1)
		return nil
	}
	return c
}

// field adds an error for a number that yaml.Unmarshal would round, and for a name that is not a
// string, such as 0.25, which it would ignore.
func (r *reader) field(n *ast.MappingValueNode) {
	line := configfile.First(n).Position.Line
	if _, isFloat := n.Value.(*ast.FloatNode); isFloat && n.Key.GetToken().Value == "requests_per_unit" {
		r.faultIn(line, "requests_per_unit is %s; want a whole number", n.Value.GetToken().Value)
	}
	switch n.Key.(type) {
	case *ast.StringNode, *ast.MergeKeyNode:
	default:
		r.faultIn(line, "unknown field %s", n.Key.GetToken().Value)
	}
}

// descriptors adds the descriptors in list to the children of n. The YAML path of n in the file is
// in path, and names lists the nodes from the domain to n.
func (r *reader) descriptors(n *node, list []descriptorYAML, path string, names []string) {
	if len(list) > 0 && len(names) > maxDepth {
		r.errorf(path, "nested too deeply")
		return
	}
	for i, d := range list {
		path := fmt.Sprintf("%s.descriptors[%d]", path, i)
		if d.Key == "" {
			r.errorf(path, "a descriptor has no key")
			continue
		}
		name := string(d.Key)
		if d.Value != "" {
			name += "_" + string(d.Value)
		}
		names := append(slices.Clip(names), name)
		full := strings.Join(names, ".")
		if n.children[name] != nil {
			r.errorf(path, "two descriptors have the name %s", full)
			continue
		}
		child := newNode()
		n.children[name] = child
		if strings.Contains(name, "*") {
			n.wildcards = append(n.wildcards, wildcard{strings.Split(name, "*"), child})
		}
		if d.ShareThreshold {
			if child.shared = string(d.Value); !strings.Contains(name, "*") {
				r.errorf(path+".share_threshold", "share_threshold needs a value with an asterisk")
			}
		}
		if d.DetailedMetric || d.ValueToMetric {
			r.config.Warnings = append(r.config.Warnings,
				r.place(path)+": detailed_metric and value_to_metric are ignored, because clients would choose the labels of metrics")
		}
		if d.RateLimit != nil {
			child.limit = r.limit(&d, path, names)
		}
		r.descriptors(child, d.Descriptors, path, names)
	}
}

// limit returns the limit of d, whose YAML path is given, and adds it to the Config.
func (r *reader) limit(d *descriptorYAML, path string, names []string) *limit {
	metadata, err := structpb.NewStruct(d.Metadata)
	if err != nil {
		r.errorf(path+".metadata", "metadata: %v", err)
	}
	y := d.RateLimit
	path += ".rate_limit"
	unit := ratelimit.RateLimitResponse_RateLimit_Unit(ratelimit.RateLimitResponse_RateLimit_Unit_value[strings.ToUpper(string(y.Unit))])
	switch valid := periods[unit] > 0; {
	case y.Unlimited && valid:
		r.errorf(path+".unit", "an unlimited rate_limit must not have a unit")
	case !y.Unlimited && !valid:
		r.errorf(path, "unit is %q; want second, minute, hour, day, week, month or year", y.Unit)
	}
	units := uint32(0)
	if y.RequestsPerUnit != nil {
		units = *y.RequestsPerUnit
	} else if !y.Unlimited {
		r.config.Warnings = append(r.config.Warnings,
			r.place(path)+": a rate_limit without requests_per_unit refuses every call")
	}
	l := &limit{
		proto:     &ratelimit.RateLimitResponse_RateLimit{Name: string(y.Name), RequestsPerUnit: units, Unit: unit},
		unlimited: y.Unlimited, shadow: d.ShadowMode, quota: d.QuotaMode, metadata: metadata,
		labels: [3]string{names[0], names[1], strings.Join(names[2:], ".")},
	}
	if l.own, err = ownLimit(metadata, l.proto); err != nil {
		r.errorf(path, "metadata.%s: %v", ownField, err)
	}
	for i, replaced := range y.Replaces {
		switch path := fmt.Sprintf("%s.replaces[%d]", path, i); replaced.Name {
		case "":
			r.errorf(path, "an entry of replaces has no name")
		case y.Name:
			r.errorf(path, "a rate_limit replaces itself")
		}
		l.replaces = append(l.replaces, string(replaced.Name))
	}
	r.config.limits = append(r.config.limits, l)
	return l
}

// These types describe a file as Envoy's service reads it. They also describe the JSON form of a
// message from a control plane.
type (
	fileYAML struct {
		Name        text // in files that Envoy Gateway writes; ignored
		Domain      text
		Descriptors []descriptorYAML
	}
	descriptorYAML struct {
		Key            text
		Value          text
		RateLimit      *limitYAML `json:"rate_limit"`
		Descriptors    []descriptorYAML
		ShadowMode     bool `json:"shadow_mode"`
		QuotaMode      bool `json:"quota_mode"`
		ShareThreshold bool `json:"share_threshold"`
		Metadata       map[string]any

		// DetailedMetric and ValueToMetric would add values of requests to the labels of metrics.
		// These fields only cause a warning, because clients must not choose labels.
		DetailedMetric bool `json:"detailed_metric"`
		ValueToMetric  bool `json:"value_to_metric"`
	}
	limitYAML struct {
		RequestsPerUnit *uint32 `json:"requests_per_unit"`
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
