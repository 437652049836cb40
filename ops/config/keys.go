package config

import (
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/keys"
)

// The keys that a file can use without Options.Keys. The keys from headerKey on have
// an argument.
var builtinKeys = []string{"ip", "global", "method", "route", "basic-auth-user", headerKey, cookieKey, pathKey, jsonKey, firstOf}

// maxJSON is how many bytes of a body the key json reads at most.
const maxJSON = 64 << 10

const (
	headerKey     = "header"
	cookieKey     = "cookie"
	pathKey       = "path"
	jsonKey       = "json"
	firstOf       = "first-of"
	contentLength = "content-length"
)

// A kind says what the keys of a key function look like.
type kind int

const (
	kindText  kind = iota // any text that a client sends
	kindNamed             // any text that a function of the program returns
	kindIP
	kindGlobal
	kindMethod
	kindRoute
	kindHost
	kindLower // text in lower case
	kindJoined
	kindFirst
)

// A key is a key function and a text that describes it.
type key struct {
	fn   weir.KeyFunc
	text string
	kind kind

	parts []key // of kindJoined and kindFirst
}

// reads adds to sources what k reads of a request.
func (k *key) reads(sources []string) []string {
	if len(k.parts) == 0 {
		name, _, _ := strings.Cut(k.text, " behind ") // of ip
		return append(sources, strings.TrimSuffix(name, " by Forwarded"))
	}
	for i := range k.parts {
		sources = k.parts[i].reads(sources)
	}
	return sources
}

// key reads a name, a name with an argument, a list of keys, or first-of.
func (d *decoder) key(n ast.Node, what string) key {
	switch v := n.(type) {
	case *ast.SequenceNode:
		parts, keys, text := d.keys(n, what)
		if len(keys) > 0 {
			return key{fn: weir.Join(keys...), text: strings.Join(text, " + "), kind: kindJoined, parts: parts}
		}
	case *ast.MappingNode: // {first-of: […]}; {header: X}, as some parsers read [header:X]
		if len(v.Values) != 1 {
			d.errorf(n, "a key that is a mapping has one field: %s, %s, %s, %s or %s", firstOf, headerKey, cookieKey, pathKey, jsonKey)
			break
		}
		for name, arg := range d.mapping(n, "key", []string{firstOf, headerKey, cookieKey, pathKey, jsonKey}) {
			if name != firstOf {
				if s := d.text(arg, name); s != "" {
					return d.keyWith(arg, name, s)
				}
			} else if parts, keys, text := d.keys(arg, firstOf); len(keys) > 0 {
				return key{fn: weir.FirstOf(keys...), text: "first of (" + strings.Join(text, ", ") + ")", kind: kindFirst, parts: parts}
			}
		}
	default:
		s := d.text(n, what)
		if name, arg, found := strings.Cut(s, ":"); found {
			return d.keyWith(n, name, arg)
		}
		if s != "" {
			return d.keyNamed(n, s)
		}
	}
	return key{}
}

// keys reads a list of keys. It returns nil after an error.
func (d *decoder) keys(n ast.Node, what string) (parts []key, fns []weir.KeyFunc, text []string) {
	for _, e := range d.list(n, what) {
		k := d.key(e, "key")
		if k.fn == nil {
			return nil, nil, nil
		}
		parts, fns, text = append(parts, k), append(fns, k.fn), append(text, k.text)
	}
	return parts, fns, text
}

// noKeys are the names of the values of weir.NoKey.
var noKeys = []string{"skip", "share", "refuse"}

// noKey reads what a missing key means.
func (d *decoder) noKey(n ast.Node, what string) weir.NoKey {
	return weir.NoKey(max(0, d.choice(n, what, noKeys)))
}

// ipKey returns the key ip.
func (d *decoder) ipKey() key {
	text, separator := "ip", " behind "
	for _, t := range d.trusted {
		text, separator = text+separator+t.String(), ", "
	}
	if d.forwarded {
		return key{fn: keys.ByForwarded(d.trusted...), text: text + " by Forwarded", kind: kindIP}
	}
	return key{fn: weir.ByIP(d.trusted...), text: text, kind: kindIP}
}

// keyNamed returns the key of a name without an argument.
func (d *decoder) keyNamed(n ast.Node, name string) key {
	switch name {
	case "ip":
		return d.ipKey()
	case "global":
		return key{fn: weir.Global(), text: name, kind: kindGlobal}
	case "method":
		return key{fn: keys.ByMethod(), text: name, kind: kindMethod}
	case "route":
		return key{fn: keys.ByRoute(), text: name, kind: kindRoute}
	case "basic-auth-user":
		return key{fn: keys.ByBasicAuthUser(), text: name}
	}
	fn := d.o.Keys[name]
	if fn == nil {
		known := append(slices.Clone(builtinKeys[:5]), "header:NAME", "cookie:NAME", "path:NAME", "json:NAME")
		d.errorf(n, "unknown key %s%s", name, suggest(name, append(known, slices.Sorted(maps.Keys(d.o.Keys))...)))
	}
	return key{fn: fn, text: name, kind: kindNamed}
}

// keyWith returns the key of a name with an argument, such as header:X-Tenant.
func (d *decoder) keyWith(n ast.Node, name, arg string) key {
	text := name + ":" + arg
	switch {
	case !slices.Contains([]string{headerKey, cookieKey, pathKey, jsonKey}, name):
		d.errorf(n, "unknown key %s%s", text, suggest(name, []string{headerKey, cookieKey, pathKey, jsonKey}))
	case arg == "":
		d.errorf(n, "key %s has no name after the colon", text)
	case name == pathKey:
		return key{fn: keys.ByPathValue(arg), text: text}
	case name == jsonKey && slices.Contains(strings.Split(strings.ReplaceAll(arg, `\.`, "-"), "."), ""):
		d.errorf(n, "key %s has an empty name in its path", text)
	case name == jsonKey:
		return key{fn: keys.ByJSON(arg, maxJSON), text: text, kind: kindLower}
	case !isToken(arg):
		d.errorf(n, "key %s: no %s has such a name", text, name)
	case name == headerKey:
		k := key{fn: weir.ByHeader(arg), text: text}
		if strings.EqualFold(arg, "Host") {
			k.kind = kindHost
		}
		return k
	case name == cookieKey:
		return key{fn: keys.ByCookie(arg), text: text}
	}
	return key{}
}

// isToken reports whether s can be the name of a header field or a cookie (RFC 9110,
// 5.6.2).
func isToken(s string) bool {
	for _, c := range s {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && !strings.ContainsRune("!#$%&'*+-.^_`|~", c) {
			return false
		}
	}
	return s != ""
}

// trustedProxies reads a list of networks and addresses. An address is a network of one, and an
// IPv4-mapped network becomes IPv4.
func (d *decoder) trustedProxies(n ast.Node, what string) (prefixes []netip.Prefix) {
	for _, e := range d.list(n, what) {
		s := d.text(e, what)
		if s == "" {
			continue
		}
		p, err := netip.ParsePrefix(s)
		if a, errAddr := netip.ParseAddr(s); err != nil && errAddr == nil && a.Zone() == "" {
			p, err = netip.PrefixFrom(a, a.BitLen()), nil
		}
		switch {
		case err != nil:
			d.errorf(e, "%s: %q is neither a network such as 10.0.0.0/8 nor an address", what, s)
		case addr.Unmap(p).Bits() == 0:
			d.errorf(e, "%s: %s trusts every client, so every client could choose its key", what, s)
			continue // ByIP would panic
		case p != p.Masked():
			d.errorf(e, "%s: %s has bits after its length; did you mean %s?", what, s, p.Masked())
		}
		prefixes = append(prefixes, addr.Unmap(p))
	}
	return prefixes
}

// proxyHeader reads which header field of the trusted proxies names the client, and reports
// whether it is Forwarded.
func (d *decoder) proxyHeader(n ast.Node, what string) bool {
	const xff, forwarded = "x-forwarded-for", "forwarded"
	s := d.text(n, what)
	is := strings.ToLower(s)
	switch {
	case s == "":
	case is != xff && is != forwarded:
		d.errorf(n, "unknown proxy-header %s; known are %s, %s", s, xff, forwarded)
	case d.fields["trusted-proxies"] == nil:
		d.errorf(n, "proxy-header needs trusted-proxies, and the file has none")
	}
	return is == forwarded
}

// A cost is what a request costs: n units if n > 0, or else what fn returns.
type cost struct {
	n    int64
	fn   func(r *http.Request) int64
	text string
}

func (d *decoder) cost(n ast.Node, what string) cost {
	s, ok := n.(*ast.StringNode)
	if !ok {
		v := d.atLeast1(n, what)
		return cost{v, func(*http.Request) int64 { return v }, fmt.Sprint(v)}
	}
	fn := d.o.Costs[s.Value]
	if s.Value == contentLength {
		fn = func(r *http.Request) int64 { return r.ContentLength }
	}
	if fn == nil {
		d.errorf(n, "unknown cost %q%s", s.Value, suggest(s.Value, append(slices.Sorted(maps.Keys(d.o.Costs)), contentLength)))
	}
	return cost{fn: fn, text: s.Value}
}

// checkName returns an error for an entry of Options.Keys or Options.Costs that is nil, or
// whose name a file could not use.
func checkName(field, name string, isNil bool, builtin []string) error {
	switch {
	case name == "" || strings.Contains(name, ":"):
		return fmt.Errorf("config: Options.%s: the name is %q; want one without a colon", field, name)
	case isNil:
		return fmt.Errorf("config: Options.%s: %q is nil", field, name)
	case slices.Contains(builtin, name):
		return fmt.Errorf("config: Options.%s: the name %q is built in", field, name)
	}
	return nil
}

// ipKey returns the key that weir.ByIP makes of an address, or of the first address of a
// network. If v is neither, ok is false.
func ipKey(v string) (from netip.Addr, key string, ok bool) {
	from, err := netip.ParseAddr(v)
	if p, errNet := netip.ParsePrefix(v); errNet == nil {
		from, err = p.Masked().Addr(), nil
	}
	if err != nil {
		return from, "", false
	}
	key, ok = weir.ByIP()(&http.Request{RemoteAddr: netip.AddrPortFrom(from, 1).String(), Header: http.Header{}})
	return from, key, ok
}
