package config

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/ops/overrides"
)

// A keyList represents an allow list or a deny list.
type keyList struct {
	text    string                     // the entries as written in the file
	hasKey  func(key string) bool      // nil if no entry is compared with keys
	hasAddr func(r *http.Request) bool // nil if no entry is compared with addresses
}

// keyList reads the allow or the deny list of the rule.
func (d *ruleDecoder) keyList(n ast.Node, what string) (l keyList) {
	before := len(d.errs)
	var texts, addrKeys, inAddrs []string
	var inKeys []overrides.Entry
	seen := map[entry]bool{}
	for _, n := range d.list(n, what) {
		e, ok := d.entry(n, what)
		if !ok || seen[e] {
			continue
		}
		seen[e] = true
		texts = append(texts, e.String())
		isKey, isAddr, isNetwork := d.listEntry(n, what, e)
		switch {
		case isKey && isNetwork:
			addrKeys = append(addrKeys, e.text)
		case isKey:
			o := d.s.key.stored(e)
			o.Denied = true
			inKeys = append(inKeys, o)
		}
		if isAddr {
			inAddrs = append(inAddrs, e.text)
		}
	}
	if len(d.errs) > before {
		return l
	}
	l.text = strings.Join(texts, ", ")
	if len(inKeys)+len(addrKeys) > 0 {
		table, err := overrides.New(inKeys...)
		if err != nil {
			d.errorf(n, "%s: %v", what, errors.Unwrap(err))
			return l
		}
		inNetwork, _ := weir.KeyList(addrKeys...) // listEntry has checked each
		l.hasKey = func(key string) bool { return !table.ForKey(key).Is(weir.Policy{}) || inNetwork(key) }
	}
	if len(inAddrs) > 0 {
		l.hasAddr, _ = weir.AddrList(d.clientAddr(), inAddrs...)
	}
	return l
}

// clientAddr returns the function that finds the address of the client.
func (d *decoder) clientAddr() func(*http.Request) (netip.Addr, bool) {
	if d.forwarded {
		return weir.ForwardedAddr(d.trusted...)
	}
	return weir.ClientAddr(d.trusted...)
}

// listEntry reports whether an entry is compared with the keys of the rule, with the addresses of
// requests, or with both. An address or a network is compared with the address of the request,
// whatever the key is, or with the key instead if the key is ip and the entry contains such keys.
// Such an entry is also compared with keys that a function of the program returns and, in a deny
// list, with keys that clients choose. An allow list is not compared with keys that clients choose,
// because a client could exempt itself by choosing a name that looks like an address. A mapping,
// such as {key: 10.0.0.0/8}, is compared only with keys.
func (d *ruleDecoder) listEntry(n ast.Node, what string, e entry) (isKey, isAddr, isNetwork bool) {
	k := &d.s.key
	if e.plain {
		hasKey, err := weir.KeyList(e.text)
		if _, isNetwork, errAddr := addr.Entry(e.text); isNetwork && errAddr == nil {
			if k.kind == kindIP {
				_, key, _ := keyFrom(e.text, k.net)
				isKey = hasKey(key) // false if the key of an IPv6 address is a larger network
				return isKey, !isKey, true
			}
			return k.kind == kindNamed || k.kind == kindText && what == "deny", true, true
		}
		if err != nil {
			d.errorf(n, "%s: %v", what, errors.Unwrap(err))
			return true, false, false
		}
	}
	if e.isPrefix && e.text == "" {
		d.errorf(n, "%s: an empty prefix would match every key", what)
	} else if want := k.hintFor(e); want != "" {
		d.errorf(n, "%s: %v is never the key of this rule: %s", what, e.quoted(), want)
	}
	return true, false, false
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "other"}

// An entry is an element of a list, or a value of an override. It stands for one key, or for all
// keys with a prefix. No character in an entry has a special meaning, because a client may have
// made up the key.
type entry struct {
	text     string
	isPrefix bool
	plain    bool // written as a string, so it may be an address or a network
}

// entry reads a string, {key: K} or {prefix: P}. A string that ends with an asterisk is an error.
func (d *source) entry(n ast.Node, what string) (e entry, ok bool) {
	m, isMapping := n.(*ast.MappingNode)
	if !isMapping {
		e = entry{text: d.text(n, what), plain: true}
		if start, found := strings.CutSuffix(e.text, "*"); found {
			d.errorf(n, "%s: %q ends with an asterisk: write {prefix: %q} for all keys with this prefix, or {key: %q} for this key alone", what, e.text, start, e.text)
			return e, false
		}
		return e, e.text != ""
	}
	f := d.mapping(n, what, []string{"key", "prefix"})
	if len(m.Values) != 1 || len(f) != 1 {
		d.errorf(n, "%s is a mapping; want one field in it, key or prefix", what)
		return e, false
	}
	if s, isString := f["prefix"].(*ast.StringNode); isString {
		return entry{text: s.Value, isPrefix: true}, true
	}
	if f["prefix"] != nil {
		d.wrongType(f["prefix"], "prefix", "a string")
		return e, false
	}
	e.text = d.text(f["key"], "key")
	return e, e.text != ""
}

// String returns the entry in the form used in the texts of changes.
func (e entry) String() string {
	switch {
	case e.isPrefix && e.text == "":
		return "all keys"
	case e.isPrefix:
		return "prefix " + e.text
	}
	return e.text
}

// quoted returns the entry in the form used in messages.
func (e entry) quoted() string {
	if e.isPrefix {
		return fmt.Sprintf("prefix %q", e.text)
	}
	return strconv.Quote(e.text)
}

// override returns the entry as an entry of a table.
func (e entry) override() overrides.Entry {
	if e.isPrefix {
		return overrides.Entry{Prefix: e.text, All: e.text == ""}
	}
	return overrides.Entry{Key: e.text}
}

func (e entry) matches(key string) bool {
	return key == e.text || e.isPrefix && strings.HasPrefix(key, e.text)
}

// hintFor returns a hint about what to write instead of the entry e, which is not an address, if no
// key of k can match it. Otherwise, the hint is empty.
func (k *key) hintFor(e entry) string {
	if k.hint == nil {
		return ""
	}
	return k.hint(e)
}

func hintForGlobal(entry) string {
	return "global has one key, the empty one; only addresses and networks can match"
}

func hintForMethod(e entry) string {
	if slices.ContainsFunc(methods, e.matches) {
		return ""
	}
	return "want one of " + strings.Join(methods, ", ") + ", an address or a network"
}

func hintForRoute(e entry) string {
	if e.matches("unmatched") || strings.ContainsAny(e.text, "/.") {
		return ""
	}
	return "want a pattern such as /users/{id}, or {prefix: /users/}, an address or a network"
}

func hintForFolded(e entry) string {
	key, _ := weir.Folded(func(*http.Request) (string, bool) { return e.text, true })(nil)
	return e.wanted(key, "its keys are in lower case")
}

func hintForPath(e entry) string {
	r := new(http.Request)
	r.SetPathValue("name", e.text)
	key, _ := weir.ByPathValue("name")(r)
	return e.wanted(key, "its keys have no percent-encoding")
}

func hintForHost(e entry) string {
	if e.isPrefix {
		return e.wanted(strings.ToLower(e.text), "hosts are in lower case")
	}
	host, _ := weir.ByHeader("Host")(&http.Request{Host: e.text, URL: &url.URL{}})
	return e.wanted(host, "hosts are in lower case and without port")
}

// wanted returns a hint for an entry whose text should be different.
func (e entry) wanted(want, why string) string {
	if want == e.text {
		return ""
	}
	return fmt.Sprintf("%s; want %q", why, want)
}

func hintForIP(e entry) string {
	if e.matches("unknown") || e.isPrefix && strings.Trim(e.text, "0123456789abcdef.:/") == "" {
		return ""
	}
	return "want an address such as 192.0.2.1 or a network such as 2001:db8::/64"
}

func hintForFirst(parts int) func(entry) string {
	return func(e entry) string {
		for i := range parts {
			if begin := fmt.Sprint(i, ":"); e.matches(begin) || strings.HasPrefix(e.text, begin) {
				return ""
			}
		}
		return fmt.Sprintf("a key of first-of begins with the index of the key that applied, from 0; want %q, an address or a network", "0:"+e.text)
	}
}

func hintForHashed(of *key) func(entry) string {
	return func(e entry) string {
		if e.isPrefix {
			return "its keys are hashed, so it has none with a prefix; want a whole key"
		}
		return of.hintFor(e)
	}
}

func hintForJoined(e entry) string {
	after := strings.TrimLeft(e.text, "0123456789")
	hasLength := len(after) < len(e.text)
	if hasLength && (strings.HasPrefix(after, ":") || after == "" && e.isPrefix) {
		return ""
	}
	return `a list of keys makes a key such as "5:alice,3:GET,", each part after its length; want such a key, an address or a network`
}
