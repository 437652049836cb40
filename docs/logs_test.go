package docs_test

import (
	"cmp"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"maps"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// attributes are all names of attributes of log lines, each with the one thing that it stands
// for. duration marks those whose value is the text of period.Rounded.
var attributes = map[string]string{
	"addr":         "the address of a peer",
	"addresses":    "the addresses that the service listens on",
	"advice":       "what to do about an outage, unlike fix, which is for a misconfiguration",
	"after":        duration + "how long a state lasted that has ended",
	"asked":        duration + "what a server has asked for",
	"behind":       duration + "by how much the store's clock is behind that of the process",
	"body":         "the body of a change by an operator",
	"bytes":        "a size",
	"cause":        "the class of err: quota.Cause",
	"change":       "method and path of a change by an operator",
	"changes":      "how many changes a reload made",
	"code":         "the code of a diagnosis, such as WEIR001",
	"decided":      "how many decisions a second store has made",
	"domain":       "a domain of Envoy's rate limit service",
	"effect":       "what the event means for requests",
	"err":          "an error",
	"field":        "the name of a header field",
	"fields":       "the names of the header fields in a request that can have the client's address",
	"file":         "the path of a file",
	"files":        "how many files were loaded",
	"evicted":      "how many keys Redis has evicted",
	"fix":          "what to do",
	"from":         "the text of a part of a rule before a reload",
	"function":     "the name of a key function",
	"key":          "a key, only of a change by an operator or from a function of the user",
	"likely":       "the probable reason",
	"limit":        "the stored name of a limit",
	"limits":       "the text of limits, such as 50 per 1m",
	"loaded":       "how many limits of Envoy's rate limit service were loaded",
	"lost":         "true if a reload lost counts",
	"max_bytes":    "the largest size",
	"max_pause":    duration + "TransportOptions.MaxPause",
	"max_wait":     duration + "Options.MaxWait",
	"method":       "a gRPC method",
	"network":      "private or public: where a peer is",
	"other_limits": "the text of the limits of another rule or process",
	"other_rule":   "the name of a second rule",
	"overrides":    "how many overrides there are",
	"part":         "a part of a rule or of an answer, such as cost",
	"path":         "the path of a request to package admin",
	"passed":       "whether a request passed that could not be decided",
	"period":       duration + "the period of a limit",
	"reason":       "why a request was refused",
	"refused":      "how many calls a breaker has refused",
	"region":       "the name of a region",
	"retry_after":  duration + "the wait after which a request would pass",
	"rule":         "the name of a rule",
	"rules":        "the names of rules",
	"shadow":       "true if only rules in shadow are concerned",
	"status":       "the status code of a response",
	"store":        "where the counts are: memory, or the addresses of Redis",
	"text":         "a text of another library or a warning about a setting",
	"timeout":      duration + "http.Server.WriteTimeout",
	"to":           "the text of a part of a rule after a reload",
	"unit":         "the unit of a rule",
	"unlogged":     "how many such lines were left out before this one",
	"version":      "the version of the rules or of the program",
	"who":          "the operator who made a change",
}

const duration = "duration: "

// A logged is a call that logs a line, directly or through a wrapper.
type logged struct {
	where    string
	messages []string
	keys     []string
}

var (
	messagePosition = map[string]int{"Debug": 0, "Info": 0, "Warn": 0, "Error": 0, "DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1, "Log": 2, "LogAttrs": 2}
	messageForm     = regexp.MustCompile(`^[a-z]+: [a-z][A-Za-z0-9 /=_-]*[A-Za-z0-9]$`)
)

// programs has the prefixes of packages whose names readers of a log do not know.
var programs = map[string]string{"main": "weir", "addr": "weir", "outbound": "weir"}

// A wrapper is a function that logs a message which it gets as an argument, after a prefix.
type wrapper struct {
	position, attrs int // of the message and of the first attribute
	prefix          string
}

// TestLogLines: log lines have the form of CONTRIBUTING.md. It finds the calls in the source, so a
// new line is checked too. -v prints them.
func TestLogLines(t *testing.T) {
	c := logCollector{t: t, set: token.NewFileSet(), wrappers: map[string][]wrapper{}, seen: map[string]logged{}, faults: map[string]bool{}, unused: maps.Clone(attributes)}
	files := map[string]*ast.File{}
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "xtest" || name == "docs" || name == "testdata" || name[0] == '.' && name != ".." || name[0] == '_'):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		files[path], err = parser.ParseFile(c.set, path, nil, parser.SkipObjectResolution)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for known := -1; known < len(c.wrappers); { // until no wrapper of a wrapper is new
		known = len(c.wrappers)
		for _, path := range slices.Sorted(maps.Keys(files)) {
			c.dir = filepath.Dir(path)
			c.file(files[path])
		}
	}
	for _, where := range slices.Sorted(maps.Keys(c.seen)) {
		l := c.seen[where]
		t.Logf("%s\t%s\t%s", strings.Join(l.messages, " | "), strings.Join(l.keys, " "), where)
		for _, m := range l.messages {
			if !messageForm.MatchString(m) || len(m) > 80 {
				t.Errorf("%s: the message %q is not package: what happened, in lower case, without punctuation, of at most 80 bytes", where, m)
			}
		}
		for _, k := range l.keys {
			if attributes[k] == "" {
				t.Errorf("%s: the attribute %q is none of attributes: use the word that stands for this thing there, or add one", where, k)
			}
			delete(c.unused, k)
		}
	}
	for k := range c.unused {
		t.Errorf("no line has the attribute %q: remove it from attributes", k)
	}
	if len(c.seen) < 60 {
		t.Errorf("found only %d calls that log", len(c.seen))
	}
}

type logCollector struct {
	t        *testing.T
	set      *token.FileSet
	dir      string               // of the file
	wrappers map[string][]wrapper // by directory and name of the function, or by the name of a variable that has it
	seen     map[string]logged    // by the position
	unused   map[string]string
	faults   map[string]bool
}

func (c *logCollector) file(f *ast.File) {
	imported := map[string]bool{}
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		name := path[strings.LastIndex(path, "/")+1:]
		if i.Name != nil {
			name = i.Name.Name
		}
		imported[name] = name != "slog"
	}
	for _, d := range f.Decls {
		fn, ok := d.(*ast.FuncDecl)
		if !ok || fn.Body == nil {
			continue
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.AssignStmt:
				for i, right := range n.Rhs {
					if i < len(n.Lhs) {
						c.alias(n.Lhs[i], right)
					}
				}
			case *ast.KeyValueExpr:
				c.alias(n.Key, n.Value)
			case *ast.CallExpr:
				c.call(f, fn, n, imported)
			}
			return true
		})
	}
}

// alias notes that a variable or a field has the function of a wrapper.
func (c *logCollector) alias(variable, value ast.Expr) {
	for _, w := range c.wrappers[c.dir+":"+nameOf(value)] {
		if name := nameOf(variable); name != "" && !slices.Contains(c.wrappers[name], w) {
			c.wrappers[name] = append(c.wrappers[name], w)
		}
	}
}

func isVariadic(f *ast.Field) bool {
	_, ok := f.Type.(*ast.Ellipsis)
	return ok
}

// nameOf returns the last name of an expression such as l.log.warn.
func nameOf(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

func (c *logCollector) call(f *ast.File, fn *ast.FuncDecl, call *ast.CallExpr, imported map[string]bool) {
	name := nameOf(call.Fun)
	if s, ok := call.Fun.(*ast.SelectorExpr); ok {
		if x, ok := s.X.(*ast.Ident); ok && imported[x.Name] || len(call.Args) > 0 && nameOf(call.Args[0]) == "nil" {
			return // a function of another package, or a conversion such as redis.Error(nil)
		}
	} else if messagePosition[name] != 0 || name == "Error" {
		return
	}
	ways := append(slices.Clip(c.wrappers[c.dir+":"+name]), c.wrappers[name]...)
	if position, ok := messagePosition[name]; ok && len(call.Args) > position {
		ways = []wrapper{{position, position + 1, ""}}
	}
	where := c.set.Position(call.Pos()).String()
	if name == "With" && len(call.Args) > 0 {
		c.seen[where] = logged{where, nil, c.keys(where, fn, call, 0)}
		return
	}
	var l logged
	for _, w := range ways {
		if len(call.Args) <= w.position {
			return
		}
		for _, m := range c.texts(where, fn, call.Args[w.position], w.prefix) {
			l.messages = append(l.messages, m)
			if own := cmp.Or(programs[f.Name.Name], f.Name.Name); !strings.HasPrefix(m, own+": ") && !slices.Contains(c.wrappers[name], w) {
				c.fault("%s: the message %q does not begin with %q, the package", where, m, own)
			}
		}
		l.keys = c.keys(where, fn, call, w.attrs)
	}
	if l.messages != nil || l.keys != nil {
		c.seen[where] = l
	}
}

// fault reports an error once, because files are read several times.
func (c *logCollector) fault(format string, args ...any) {
	if text := fmt.Sprintf(format, args...); !c.faults[text] {
		c.faults[text] = true
		c.t.Error(text)
	}
}

// texts returns the messages that e can be, behind prefix. If e is a parameter of fn, then fn is a
// wrapper.
func (c *logCollector) texts(where string, fn *ast.FuncDecl, e ast.Expr, prefix string) (texts []string) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, _ := strconv.Unquote(e.Value)
		return []string{prefix + text}
	case *ast.BinaryExpr:
		if left, ok := e.X.(*ast.BasicLit); ok {
			text, _ := strconv.Unquote(left.Value)
			return c.texts(where, fn, e.Y, prefix+text)
		}
	case *ast.Ident:
		position := 0
		for _, p := range fn.Type.Params.List {
			for _, n := range p.Names {
				if n.Name == e.Name {
					name, w := c.dir+":"+fn.Name.Name, wrapper{position, fn.Type.Params.NumFields(), prefix}
					if last := fn.Type.Params.List[len(fn.Type.Params.List)-1]; isVariadic(last) {
						w.attrs--
					}
					if !slices.Contains(c.wrappers[name], w) {
						c.wrappers[name] = append(c.wrappers[name], w)
					}
					return nil
				}
				position++
			}
		}
		ast.Inspect(fn.Body, func(n ast.Node) bool {
			if a, ok := n.(*ast.AssignStmt); ok && len(a.Lhs) == len(a.Rhs) {
				for i := range a.Lhs {
					if b, ok := a.Rhs[i].(*ast.BinaryExpr); ok && nameOf(b.Y) == e.Name {
						continue
					}
					if nameOf(a.Lhs[i]) == e.Name {
						texts = append(texts, c.texts(where, fn, a.Rhs[i], prefix)...)
					}
				}
			}
			return true
		})
		if texts != nil {
			return texts
		}
	}
	c.fault("%s: the message is no constant", where)
	return nil
}

// keys returns the names of the attributes of a call, which begin at the argument first. If they
// are a slice, it looks for them in fn.
func (c *logCollector) keys(where string, fn *ast.FuncDecl, call *ast.CallExpr, first int) (keys []string) {
	add := func(args []ast.Expr) {
		for i := 0; i+1 < len(args); i += 2 {
			lit, ok := args[i].(*ast.BasicLit)
			if !ok {
				continue
			}
			key, err := strconv.Unquote(lit.Value)
			if err != nil {
				continue
			}
			keys = append(keys, key)
			rounds := false
			if value, ok := args[i+1].(*ast.CallExpr); ok {
				rounds = nameOf(value.Fun) == "Rounded"
			}
			if is := strings.HasPrefix(attributes[key], duration); is != rounds {
				c.fault("%s: the attribute %q is a duration: %v; is the text of period.Rounded: %v", where, key, is, rounds)
			}
		}
	}
	if !call.Ellipsis.IsValid() {
		add(call.Args[min(first, len(call.Args)):])
		return keys
	}
	ast.Inspect(fn.Body, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.CompositeLit:
			if a, ok := n.Type.(*ast.ArrayType); ok && nameOf(a.Elt) == "any" {
				add(n.Elts)
			}
		case *ast.CallExpr:
			if nameOf(n.Fun) == "append" && !n.Ellipsis.IsValid() {
				add(n.Args[1:])
			}
		}
		return true
	})
	return keys
}

var (
	errorEnd  = regexp.MustCompile(`[.!:;,\n]$`)
	errorWant = regexp.MustCompile(`[^;] want `)
)

// TestErrorTexts: the texts of errors and panics have the form of CONTRIBUTING.md, as far as their
// constants show it: a panic begins with its package, no text ends with
// punctuation, and a semicolon stands before "want".
func TestErrorTexts(t *testing.T) {
	found := 0
	set := token.NewFileSet()
	err := filepath.WalkDir("..", func(path string, d fs.DirEntry, err error) error {
		switch name := d.Name(); {
		case err != nil:
			return err
		case d.IsDir() && (name == "xtest" || name == "docs" || name == "testdata" || name == "storetest" || name[0] == '.' && name != ".." || name[0] == '_'):
			return filepath.SkipDir
		case d.IsDir() || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go"):
			return nil
		}
		f, err := parser.ParseFile(set, path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		ast.Inspect(f, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok || len(call.Args) == 0 {
				return true
			}
			name := nameOf(call.Fun)
			if name != "panic" && name != "New" && name != "Errorf" && name != "errorf" && name != "invalid" {
				return true
			}
			var parts []string // the constants of the text, from left to right
			ast.Inspect(call, func(n ast.Node) bool {
				if lit, ok := n.(*ast.BasicLit); ok && lit.Kind == token.STRING {
					part, _ := strconv.Unquote(lit.Value)
					parts = append(parts, part)
				}
				return true
			})
			if len(parts) == 0 {
				return true
			}
			found++
			text := strings.Join(parts, "…")
			own := cmp.Or(programs[f.Name.Name], f.Name.Name) + ": "
			switch where := set.Position(call.Pos()); {
			case name == "panic" && !strings.HasPrefix(text, own) && !strings.HasPrefix(text, "%s: "):
				t.Errorf("%s: the panic %q does not begin with %q", where, text, own)
			case errorWant.MatchString(text):
				t.Errorf("%s: %q has no semicolon before want", where, text)
			case errorEnd.MatchString(parts[0]):
				t.Errorf("%s: %q ends with punctuation", where, text)
			}
			return true
		})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if found < 250 {
		t.Errorf("found only %d texts", found)
	}
}
