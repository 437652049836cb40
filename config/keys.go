package config

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
)

// The keys that every file has, and what those with an argument begin with.
var builtinKeys = []string{"ip", "global", "method", "route", "basic-auth-user", headerKey, cookieKey, pathKey, firstOf}

const (
	headerKey     = "header"
	cookieKey     = "cookie"
	pathKey       = "path"
	firstOf       = "first-of"
	contentLength = "content-length"
)

// A key is a key function with what it says in words.
type key struct {
	fn   weir.KeyFunc
	text string
	kind kind
	of   int // how many keys kindFirst has
}

// key reads a name, a name with an argument, a list to join, or first-of.
func (d *decoder) key(n ast.Node, trusted []netip.Prefix) key {
	switch v := n.(type) {
	case *ast.SequenceNode:
		keys, text := d.keys(n, "key", trusted)
		if len(keys) > 0 {
			return key{fn: weir.Join(keys...), text: strings.Join(text, " + "), kind: kindJoined}
		}
	case *ast.MappingNode: // {first-of: […]}, {header: X}, which some parsers make of [header:X]
		if len(v.Values) != 1 {
			d.errorf(n, "a key has one of %s, %s, %s and %s", firstOf, headerKey, cookieKey, pathKey)
			break
		}
		for name, arg := range d.mapping(n, "key", []string{firstOf, headerKey, cookieKey, pathKey}) {
			if name != firstOf {
				if s, ok := d.text(arg, name); ok {
					return d.keyWith(arg, name, s)
				}
			} else if keys, text := d.keys(arg, firstOf, trusted); len(keys) > 0 {
				return key{weir.FirstOf(keys...), "first of (" + strings.Join(text, ", ") + ")", kindFirst, len(keys)}
			}
		}
	default:
		s, ok := d.text(n, "key")
		if !ok {
			break
		}
		if kind, arg, found := strings.Cut(s, ":"); found {
			return d.keyWith(n, kind, arg)
		}
		return d.keyNamed(n, s, trusted)
	}
	return key{}
}

func (d *decoder) keys(n ast.Node, what string, trusted []netip.Prefix) (fns []weir.KeyFunc, text []string) {
	for _, e := range d.list(n, what) {
		k := d.key(e, trusted)
		if k.fn == nil {
			return nil, nil
		}
		fns, text = append(fns, k.fn), append(text, k.text)
	}
	return fns, text
}

func (d *decoder) keyNamed(n ast.Node, name string, trusted []netip.Prefix) key {
	switch name {
	case "ip":
		text := name
		for i, t := range trusted {
			text += map[bool]string{true: " behind ", false: ", "}[i == 0] + t.String()
		}
		if d.forwarded {
			return key{fn: weir.ByForwarded(trusted...), text: text + " by Forwarded", kind: kindIP}
		}
		return key{fn: weir.ByIP(trusted...), text: text, kind: kindIP}
	case "global":
		return key{fn: weir.Global(), text: name, kind: kindGlobal}
	case "method":
		return key{fn: weir.ByMethod(), text: name, kind: kindMethod}
	case "route":
		return key{fn: weir.ByRoute(), text: name, kind: kindRoute}
	case "basic-auth-user":
		return key{fn: weir.ByBasicAuthUser(), text: name}
	}
	fn := d.o.Keys[name]
	if fn == nil {
		known := append(slices.Clone(builtinKeys[:5]), "header:NAME", "cookie:NAME", "path:NAME")
		d.errorf(n, "unknown key %s%s", name, meant(name, append(known, sorted(d.o.Keys)...)))
	}
	return key{fn: fn, text: name, kind: kindNamed}
}

func (d *decoder) keyWith(n ast.Node, kind, arg string) key {
	text := kind + ":" + arg
	switch {
	case kind != headerKey && kind != cookieKey && kind != pathKey:
		d.errorf(n, "unknown key %s%s", text, meant(kind, []string{headerKey, cookieKey, pathKey}))
	case arg == "":
		d.errorf(n, "key %s has no name after the colon", text)
	case kind == pathKey:
		return key{fn: weir.ByPathValue(arg), text: text}
	case !isToken(arg):
		d.errorf(n, "key %s: no %s has such a name", text, kind)
	case kind == headerKey:
		k := key{fn: weir.ByHeader(arg), text: text}
		if strings.EqualFold(arg, "Host") {
			k.kind = kindHost
		}
		return k
	case kind == cookieKey:
		return key{fn: weir.ByCookie(arg), text: text}
	}
	return key{}
}

// isToken reports whether s can name a field or a cookie (RFC 9110, 5.6.2).
func isToken(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c) {
			return false
		}
	}
	return s != ""
}

// prefixes reads networks, or addresses, which are networks of one.
func (d *decoder) prefixes(n ast.Node, what string) (prefixes []netip.Prefix) {
	for _, e := range d.list(n, what) {
		s, ok := d.text(e, what)
		if !ok {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if a, errAddr := netip.ParseAddr(s); err != nil && errAddr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		switch {
		case err != nil:
			d.errorf(e, "%s: %q is neither a network such as 10.0.0.0/8 nor an address", what, s)
		case p.Bits() == 0:
			d.errorf(e, "%s: %s trusts everybody, and everybody could choose a key", what, s)
		case p != p.Masked():
			d.errorf(e, "%s: %s has bits after its length; did you mean %s?", what, s, p.Masked())
		}
		prefixes = append(prefixes, p)
	}
	return prefixes
}

// A cost is what a request costs: n units if n > 0, or what fn says.
type cost struct {
	n    int64
	fn   func(r *http.Request) int64
	text string
}

func (d *decoder) cost(n ast.Node) cost {
	s, ok := n.(*ast.StringNode)
	if !ok {
		v := d.atLeast1(n, "cost")
		return cost{v, func(*http.Request) int64 { return v }, fmt.Sprint(v)}
	}
	fn := d.o.Costs[s.Value]
	if s.Value == contentLength {
		fn = func(r *http.Request) int64 { return r.ContentLength }
	}
	if fn == nil {
		d.errorf(n, "unknown cost %q%s", s.Value, meant(s.Value, append(sorted(d.o.Costs), contentLength)))
	}
	return cost{fn: fn, text: s.Value}
}

// checkName refuses names in Options that no file could use.
func checkName(field, name string, isNil bool, taken []string) error {
	switch {
	case name == "" || strings.Contains(name, ":"):
		return fmt.Errorf("config: Options.%s: the name %q is empty or has a colon", field, name)
	case isNil:
		return fmt.Errorf("config: Options.%s: %q is nil", field, name)
	case slices.Contains(taken, name):
		return fmt.Errorf("config: Options.%s: every file has a %q of its own", field, name)
	}
	return nil
}

func sorted[V any](m map[string]V) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
