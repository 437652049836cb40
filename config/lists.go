package config

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
)

// keyList reads a list for a rule with that key, and returns it as the file has it,
// too. Addresses are those of the request, whatever the key is. Where the key is an
// address, or for deny may be one, it is looked for there as well; a name that clients
// choose exempts nobody for looking like an address.
func (d *decoder) keyList(n ast.Node, what string, k *key) (has func(key string) bool, from func(r *http.Request) bool, entries []string) {
	if n == nil {
		return nil, nil, nil
	}
	before := len(d.errs)
	var keys, addrs []string
	for _, e := range d.list(n, what) {
		s, ok := d.text(e, what)
		if !ok {
			continue
		}
		entries = append(entries, s)
		_, errKey := weir.NewKeyList(s)
		if _, err := weir.NewAddrList(s); err == nil {
			inKey := errKey == nil && (k.kind == kindIP || k.kind == kindNamed || k.kind == kindText && what == "deny")
			if inKey {
				keys = append(keys, s)
			}
			if !inKey || k.kind != kindIP {
				addrs = append(addrs, s)
			}
			continue
		}
		if errKey != nil {
			d.errorf(e, "%s: %s", what, strings.TrimPrefix(errKey.Error(), "weir: list: "))
		} else if hint := k.never(s); hint != "" {
			d.errorf(e, "%s: %q is never the key of this rule: %s", what, s, hint)
		}
		keys = append(keys, s)
	}
	if len(d.errs) > before {
		return nil, nil, entries
	}
	if len(keys) > 0 {
		list, err := weir.NewKeyList(keys...)
		if err != nil {
			d.errorf(n, "%s: %v", what, err)
			return nil, nil, entries
		}
		has = list.Has
	}
	if len(addrs) > 0 {
		list, err := weir.NewAddrList(addrs...)
		if err != nil {
			d.errorf(n, "%s: %v", what, err)
			return nil, nil, entries
		}
		addr := weir.ClientAddr(d.trusted...)
		if d.forwarded {
			addr = weir.ForwardedAddr(d.trusted...)
		}
		from = list.Match(addr)
	}
	return has, from, entries
}

// A kind says what the keys of a key function are like.
type kind int

const (
	kindText  kind = iota // anything that clients write
	kindNamed             // anything that a function of the program returns
	kindIP
	kindGlobal
	kindMethod
	kindRoute
	kindHost
	kindJoined
	kindFirst
)

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "other"}

// never returns what to write in place of an entry that is no address and that no key
// of k is or begins with, or "".
func (k *key) never(entry string) string {
	start, isStart := strings.CutSuffix(entry, "*")
	begins := func(key string) bool { return key == entry || isStart && strings.HasPrefix(key, start) }
	digits := len(start) - len(strings.TrimLeft(start, "0123456789"))
	switch k.kind {
	case kindIP:
		if !begins("unknown") && !(isStart && strings.Trim(start, "0123456789abcdef.:/") == "") {
			return "want an address such as 192.0.2.1 or a network such as 2001:db8::/64"
		}
	case kindGlobal:
		return "global has one key, the empty one; only addresses and networks can match"
	case kindMethod:
		if !slices.ContainsFunc(methods, begins) {
			return "want one of " + strings.Join(methods, ", ") + ", an address or a network"
		}
	case kindRoute:
		if !begins("unmatched") && !strings.ContainsAny(start, "/.") {
			return "want a pattern such as /users/{id}, or /users/*, an address or a network"
		}
	case kindHost:
		if host, _ := weir.ByHeader("Host")(&http.Request{Host: start, URL: &url.URL{}}); !isStart && host != start {
			return fmt.Sprintf("hosts are in lower case and without port; want %q", host)
		} else if isStart && strings.ToLower(start) != start {
			return fmt.Sprintf("hosts are in lower case; want %q", strings.ToLower(entry))
		}
	case kindJoined:
		if digits == 0 || digits < len(start) && start[digits] != ':' || digits == len(start) && !isStart {
			return `keys of a list read like "5:alice,3:GET,", each with its length; want that, an address or a network`
		}
	case kindFirst:
		for i := range k.of {
			if place := fmt.Sprint(i, ":"); strings.HasPrefix(start, place) || isStart && strings.HasPrefix(place, start) {
				return ""
			}
		}
		return fmt.Sprintf("keys of first-of begin with the place of the one that applies, from 0; want %q, an address or a network", "0:"+entry)
	}
	return ""
}

// proxyHeader reads which field of the trusted proxies is believed.
func (d *decoder) proxyHeader(n, trusted ast.Node) {
	const xff, forwarded = "x-forwarded-for", "forwarded"
	s, ok := d.text(n, "proxy-header")
	switch {
	case !ok:
	case strings.ToLower(s) != xff && strings.ToLower(s) != forwarded:
		d.errorf(n, "unknown proxy-header %s; known are %s, %s", s, xff, forwarded)
	case trusted == nil:
		d.errorf(n, "proxy-header is a field of trusted-proxies, and the file has none")
	}
	d.forwarded = strings.ToLower(s) == forwarded
}
