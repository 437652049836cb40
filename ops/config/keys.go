package config

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/ops/overrides"
)

// A file can use these keys without Options.Keys. The keys from headerKey on have an argument.
var builtinKeys = []string{"ip", "global", "method", "route", "basic-auth-user", headerKey, cookieKey, pathKey,
	jsonKey, firstOf, hashedKey}

// maxJSON is the maximum number of bytes of a body that the key json reads.
const maxJSON = 64 << 10

const (
	headerKey     = "header"
	cookieKey     = "cookie"
	pathKey       = "path"
	jsonKey       = "json"
	firstOf       = "first-of"
	hashedKey     = "hashed"
	urgency       = "urgency" // only a class
	contentLength = "content-length"
)

// A kind describes which keys a key function returns.
type kind int

const (
	kindText  kind = iota // text that a client sends
	kindNamed             // text that a function of the program returns
	kindFixed             // one of few texts, or a pattern
	kindIP
	kindJoined
	kindFirst
	kindHashed
)

// simpleKeys are the keys that need neither an argument nor a setting of the file.
var simpleKeys = map[string]key{
	"global":          {fn: weir.Global(), kind: kindFixed, hint: hintForGlobal},
	"method":          {fn: weir.ByMethod(), kind: kindFixed, hint: hintForMethod},
	"route":           {fn: weir.ByRoute(), kind: kindFixed, hint: hintForRoute},
	"basic-auth-user": {fn: weir.ByBasicAuthUser(), hint: hintForFolded},
}

// keysOfNames contains functions that make the keys whose argument is a name.
var keysOfNames = map[string]func(name string) key{
	headerKey: func(name string) key {
		if strings.EqualFold(name, "Host") {
			return key{fn: weir.ByHeader(name), kind: kindFixed, hint: hintForHost}
		}
		return key{fn: weir.ByHeader(name)}
	},
	cookieKey: func(name string) key { return key{fn: weir.ByCookie(name)} },
	pathKey:   func(name string) key { return key{fn: weir.ByPathValue(name), hint: hintForPath} },
	jsonKey:   func(name string) key { return key{fn: weir.ByJSON(name, maxJSON), hint: hintForFolded} },
}

// A key holds a key function and a text that describes it.
type key struct {
	fn   weir.KeyFunc
	text string
	kind kind

	parts []key                   // of kindJoined and kindFirst, or the key that kindHashed hashes
	net   weir.KeyFunc            // of kindIP: like fn, but for the address of the peer
	hash  func(key string) string // of kindHashed
	hint  func(e entry) string    // returns what to write if no key can match e, or ""; nil if a key may be any text
}

// stored converts e, an entry for keys of k, into an entry of a table.
func (k *key) stored(e entry) overrides.Entry {
	e.text = k.hashed(e.text, false)
	return e.override()
}

// hashed returns the text of a key, in which the parts that k hashes are replaced by their hashes.
// If keep is true, parts that already look like a hash stay unchanged.
func (k *key) hashed(text string, keep bool) string {
	switch k.kind {
	case kindHashed:
		if keep && isHash(text) {
			return text
		}
		return k.hash(text)
	case kindFirst: // see weir.FirstOf
		for i := range k.parts {
			index := fmt.Sprint(i, ":")
			if rest, ok := strings.CutPrefix(text, index); ok && rest != "" {
				return index + k.parts[i].hashed(rest, keep)
			}
		}
	case kindJoined:
		return k.hashedParts(text, keep)
	}
	return text
}

// credentials returns the name of a header field with credentials that k contains in plain text, or
// "" if there is none.
func (k *key) credentials() string {
	for _, name := range []string{"Authorization", "Proxy-Authorization"} {
		if strings.EqualFold(k.text, headerKey+":"+name) {
			return name
		}
	}
	for i := range k.parts {
		if name := k.parts[i].credentials(); name != "" && k.kind != kindHashed {
			return name
		}
	}
	return ""
}

// hashedParts is like hashed, but for a key that weir.Join returns, in which each part is preceded
// by its length and a colon, and followed by a comma. It returns any other text unchanged.
func (k *key) hashedParts(text string, keep bool) (joined string) {
	rest := text
	for i := range k.parts {
		length, after, _ := strings.Cut(rest, ":")
		n, err := strconv.Atoi(length)
		if err != nil || n < 0 || n >= len(after) || after[n] != ',' {
			return text
		}
		part := k.parts[i].hashed(after[:n], keep)
		joined, rest = fmt.Sprint(joined, len(part), ":")+part+",", after[n+1:]
	}
	if rest != "" {
		return text
	}
	return joined
}

// isHash reports whether text looks like a result of weir.HashedKey.
func isHash(text string) bool {
	b, err := base64.RawURLEncoding.Strict().DecodeString(text)
	return err == nil && len(b) == 16
}

// EntryOf returns e, whose Key or Prefix an operator has typed, in the form in which it is stored
// under the named rule. If the rule's keys are hashed, EntryOf replaces e.Key with its
// [weir.HashedKey], unless e.Key looks like a hashed key: 22 characters, as in the logs. If no
// request can have such a key, EntryOf returns an error that describes the rule's keys. It returns
// e unchanged if e is for all keys or a network, or if there is no such rule.
func (f *File) EntryOf(rule string, e overrides.Entry) (overrides.Entry, error) {
	return f.entryOf(rule, e, true)
}

// KeyOf is like EntryOf for a key that a program has from a request. It hashes every key of a rule
// that hashes keys, because an API key may look like a hashed key.
func (f *File) KeyOf(rule, key string) (string, error) {
	e, err := f.entryOf(rule, overrides.Entry{Key: key}, false)
	return e.Key, err
}

// entryOf returns e in the form in which it is stored. If typed is true, e may have a text that the logs
// show in place of a key.
func (f *File) entryOf(rule string, e overrides.Entry, typed bool) (overrides.Entry, error) {
	r := ruleNamed(f.current.Load().rules, rule)
	is := entry{text: e.Key, isPrefix: e.Prefix != ""}
	if is.isPrefix {
		is.text = e.Prefix
	}
	switch {
	case r == nil, is.text == "", is.text[0] == 0: // weir.NoKeyShare has a key that begins with a 0
		return e, nil
	case typed && r.key.kind == kindHashed && isHash(is.text), typed && r.key.kind != kindHashed && strings.HasPrefix(is.text, "sha256:"):
		return e, nil
	}
	if want := r.key.hintForValue(is); want != "" {
		return e, fmt.Errorf("config: %s is never the key of rule %q: %s", is.quoted(), rule, want)
	}
	if !is.isPrefix {
		e.Key = r.key.hashed(e.Key, typed)
	}
	return e, nil
}

// reads appends to sources the parts of a request that k reads.
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
			return key{fn: weir.Join(keys...), text: strings.Join(text, " + "), kind: kindJoined, hint: hintForJoined, parts: parts}
		}
	case *ast.MappingNode: // {first-of: […]}; {header: X}, as some parsers read [header:X]
		if len(v.Values) != 1 {
			d.errorf(n, "a key that is a mapping has one field: %s, %s, %s, %s, %s or %s", firstOf, hashedKey, headerKey,
				cookieKey, pathKey, jsonKey)
			break
		}
		for name, arg := range d.mapping(n, "key", []string{firstOf, hashedKey, headerKey, cookieKey, pathKey, jsonKey}) {
			if name == hashedKey {
				return d.hashed(n, d.key(arg, hashedKey))
			}
			if name != firstOf {
				if s := d.text(arg, name); s != "" {
					return d.keyWith(arg, name, s)
				}
			} else if parts, keys, text := d.keys(arg, firstOf); len(keys) > 0 {
				if i := slices.IndexFunc(parts, key.always); i >= 0 && i < len(parts)-1 {
					d.errorf(arg, "%s: every request has the key %s, so the keys after it are never used", firstOf, text[i])
				}
				return key{fn: weir.FirstOf(keys...), text: "first of (" + strings.Join(text, ", ") + ")", kind: kindFirst,
					hint: hintForFirst(len(parts)), parts: parts}
			}
		}
	default:
		return d.keyText(n, d.text(n, what))
	}
	return key{}
}

// always reports whether every request has a key of k.
func (k key) always() bool {
	switch k.kind {
	case kindJoined, kindHashed:
		return !slices.ContainsFunc(k.parts, func(part key) bool { return !part.always() })
	case kindFirst:
		return slices.ContainsFunc(k.parts, key.always)
	}
	return k.kind == kindIP || k.text == "global" || k.text == "method" || k.text == "route"
}

// keyText reads a key that is a string. For an empty string, it returns the zero key.
func (d *decoder) keyText(n ast.Node, s string) key {
	switch name, arg, found := strings.Cut(s, ":"); {
	case found && name == hashedKey && arg != "":
		return d.hashed(n, d.keyText(n, arg))
	case found:
		return d.keyWith(n, name, arg)
	case s != "":
		return d.keyNamed(n, s)
	}
	return key{}
}

// hashed returns a key that hashes another key.
func (d *decoder) hashed(n ast.Node, of key) key {
	if of.fn == nil {
		return key{}
	}
	secret := d.o.Secret
	if len(secret) < storedkey.MinSecret {
		d.errorf(n, "a hashed key needs a secret: Options.Secret, or -key-secret-file of weir serve")
		return key{}
	}
	return key{fn: weir.Hashed(secret, of.fn), text: "hashed " + of.text, kind: kindHashed, parts: []key{of},
		hash: func(key string) string { return weir.HashedKey(secret, key) }, hint: hintForHashed(&of)}
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

// noKeys contains the names that files use for the values of weir.NoKey.
var noKeys = []string{"skip", "share", "refuse"}

// noKey reads what happens to requests without a key.
func (d *decoder) noKey(n ast.Node, what string) weir.NoKey {
	return weir.NoKey(max(0, d.choice(n, what, noKeys)))
}

// ipKey returns the key ip.
func (d *decoder) ipKey() key { return d.addrKey("ip", addr.Usual) }

// addrKey returns the key of networks of the given sizes.
func (d *decoder) addrKey(text string, size addr.Sizes) key {
	function, field := "weir: ByIP", addr.ForwardedFor
	if d.forwarded {
		function, field = "weir: ByForwarded", addr.Forwarded
	}
	by := func(trusted []netip.Prefix) weir.KeyFunc {
		proxies := addr.NewProxies(function, field, trusted)
		return func(r *http.Request) (string, bool) { return proxies.Key(r, size), true }
	}
	return key{fn: by(d.trusted), text: text + d.proxySuffix(), kind: kindIP, hint: hintForIP, net: by(nil)}
}

// proxySuffix returns the suffix of the text of a key that is an address.
func (d *decoder) proxySuffix() (text string) {
	separator := " behind "
	for _, t := range d.trusted {
		name := unix
		if t.IsValid() {
			name = t.String()
		}
		text, separator = text+separator+name, ", "
	}
	if d.forwarded {
		text += " by Forwarded"
	}
	return text
}

// networkKey returns the key ip:24/48, which groups addresses of IPv4 and IPv6 into networks of these
// lengths.
func (d *decoder) networkKey(n ast.Node, arg string) key {
	first, second, _ := strings.Cut(arg, "/")
	ipv4, err4 := strconv.Atoi(first)
	ipv6, err6 := strconv.Atoi(second)
	if err4 != nil || err6 != nil || ipv4 < 1 || ipv4 > 32 || ipv6 < 1 || ipv6 > 128 {
		d.errorf(n, "key ip:%s is not valid; want the lengths of networks of IPv4 and IPv6, such as ip:32/48", arg)
		return key{}
	}
	return d.addrKey("ip:"+arg, addr.Sizes{IPv4: ipv4, IPv6: ipv6})
}

// keyNamed returns the key of a name without an argument.
func (d *decoder) keyNamed(n ast.Node, name string) key {
	if name == "ip" {
		return d.ipKey()
	}
	if k, ok := simpleKeys[name]; ok {
		k.text = name
		return k
	}
	fn := d.o.Keys[name]
	if fn == nil {
		known := append(slices.Clone(builtinKeys[:5]), "header:NAME", "cookie:NAME", "path:NAME", "json:NAME", "hashed:KEY")
		d.errorf(n, "unknown key %s%s", name, suggest(name, append(known, slices.Sorted(maps.Keys(d.o.Keys))...)))
	}
	return key{fn: fn, text: name, kind: kindNamed}
}

// keyWith returns the key of a name with an argument, such as header:X-Tenant.
func (d *decoder) keyWith(n ast.Node, name, arg string) key {
	text := name + ":" + arg
	make, known := keysOfNames[name]
	switch {
	case name == "ip":
		return d.networkKey(n, arg)
	case !known:
		d.errorf(n, "unknown key %s%s", text, suggest(name, []string{headerKey, cookieKey, pathKey, jsonKey}))
	case arg == "":
		d.errorf(n, "key %s has no name after the colon", text)
	case name == jsonKey && slices.Contains(strings.Split(strings.ReplaceAll(arg, `\.`, "-"), "."), ""):
		d.errorf(n, "key %s has an empty name in its path", text)
	case (name == headerKey || name == cookieKey) && !isToken(arg):
		d.errorf(n, "key %s: no %s has such a name", text, name)
	default:
		k := make(arg)
		k.text = text
		return k
	}
	return key{}
}

// isToken reports whether s can be the name of a header field or a cookie (RFC 9110, 5.6.2).
func isToken(s string) bool { return (&http.Cookie{Name: s}).Valid() == nil }

const unix = "unix" // in trusted-proxies: the peers on Unix sockets

// trustedProxies reads a list of networks and addresses. An address becomes a network that contains
// only this address, an IPv4-mapped network becomes an IPv4 network, and unix becomes the zero Prefix.
func (d *decoder) trustedProxies(n ast.Node, what string) (prefixes []netip.Prefix) {
	for _, e := range d.list(n, what) {
		s := d.text(e, what)
		if s == "" {
			continue
		}
		p, ok := addr.Network(s)
		given, err := netip.ParsePrefix(s)
		switch {
		case !ok && s != unix:
			d.errorf(e, "%s: %q is no network such as 10.0.0.0/8, no address, and not unix", what, s)
		case addr.TooWide(p):
			d.errorf(e, "%s: %s trusts every client or many of them, so these could choose their keys", what, s)
			continue // ByIP would panic
		case err == nil && given != given.Masked():
			d.errorf(e, "%s: %s has bits after its length; did you mean %s?", what, s, given.Masked())
		}
		prefixes = append(prefixes, p)
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

// A cost determines the cost of a request: n units if n > 0, and otherwise the number that fn
// returns.
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

// keyFrom returns the key that fn returns for a request from the address v or, if v is a network,
// from its first address. If v is neither an address nor a network, ok is false.
func keyFrom(v string, fn weir.KeyFunc) (from netip.Addr, key string, ok bool) {
	network, ok := addr.Network(v)
	if !ok {
		return from, "", false
	}
	from = network.Addr()
	key, ok = fn(&http.Request{RemoteAddr: netip.AddrPortFrom(from, 1).String(), Header: http.Header{}})
	return from, key, ok
}
