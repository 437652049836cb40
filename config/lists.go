package config

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/goccy/go-yaml/ast"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/keys"
)

// A keyList is an allow or a deny list.
type keyList struct {
	text    string                     // the entries as the file has them
	hasKey  func(key string) bool      // nil if no entry is compared with keys
	hasAddr func(r *http.Request) bool // nil if no entry is compared with addresses
}

// keyList reads the allow or the deny list of the rule.
func (d *ruleDecoder) keyList(n ast.Node, what string) (l keyList) {
	before := len(d.errs)
	var entries, inKeys, inAddrs []string
	for _, e := range d.list(n, what) {
		s := d.text(e, what)
		if s == "" {
			continue
		}
		entries = append(entries, s)
		isKey, isAddr := d.listEntry(e, what, s)
		if isKey {
			inKeys = append(inKeys, s)
		}
		if isAddr {
			inAddrs = append(inAddrs, s)
		}
	}
	if len(d.errs) > before {
		return l
	}
	l.text = strings.Join(entries, ", ")
	if len(inKeys) > 0 {
		list, _ := keys.NewList(inKeys...) // listEntry has checked each
		l.hasKey = list.Has
	}
	if len(inAddrs) > 0 {
		list, _ := keys.NewAddrList(inAddrs...)
		l.hasAddr = list.Match(d.clientAddr())
	}
	return l
}

// clientAddr returns the function that finds the address of the client.
func (d *decoder) clientAddr() keys.AddrFunc {
	if d.forwarded {
		return keys.ForwardedAddr(d.trusted...)
	}
	return keys.ClientAddr(d.trusted...)
}

// listEntry reports whether an entry is compared with the keys of the rule, with the
// addresses of requests, or with both. An address or a network is compared with the
// address of the request, whatever the key is. If the key is ip and the entry contains such
// keys, it is compared with the key instead. It is also compared with keys that a function
// of the program returns. An entry of a deny list is also compared with keys that clients
// choose. An entry of an allow list is not, because a client must not be exempt if it
// chooses a name that looks like an address.
func (d *ruleDecoder) listEntry(n ast.Node, what, s string) (isKey, isAddr bool) {
	k := &d.s.key
	list, errKey := keys.NewList(s)
	if _, err := keys.NewAddrList(s); err == nil {
		if k.kind == kindIP {
			_, key, _ := ipKey(s)
			isKey = list.Has(key) // false if the key of an IPv6 address is a larger network
			return isKey, !isKey
		}
		return k.kind == kindNamed || (k.kind == kindText || k.kind == kindLower) && what == "deny", true
	}
	if errKey != nil {
		d.errorf(n, "%s: %v", what, errors.Unwrap(errKey))
	} else if want := k.instead(newEntry(s)); want != "" {
		d.errorf(n, "%s: %q is never the key of this rule: %s", what, s, want)
	}
	return true, false
}

var methods = []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "CONNECT", "OPTIONS", "TRACE", "other"}

// An entry of a list stands for the key that is equal to the entry. If the entry ends with
// *, it stands for all keys that begin with the part before the *.
type entry struct {
	text, start string
	isStart     bool
}

func newEntry(text string) entry {
	start, isStart := strings.CutSuffix(text, "*")
	return entry{text, start, isStart}
}

func (e entry) matches(key string) bool {
	return key == e.text || e.isStart && strings.HasPrefix(key, e.start)
}

// instead returns what to write instead of an entry that is no address and that no key
// of k can match. It returns "" if a key may match the entry.
func (k *key) instead(e entry) string {
	switch k.kind {
	case kindIP:
		if !e.matches("unknown") && !(e.isStart && strings.Trim(e.start, "0123456789abcdef.:/") == "") {
			return "want an address such as 192.0.2.1 or a network such as 2001:db8::/64"
		}
	case kindGlobal:
		return "global has one key, the empty one; only addresses and networks can match"
	case kindMethod:
		if !slices.ContainsFunc(methods, e.matches) {
			return "want one of " + strings.Join(methods, ", ") + ", an address or a network"
		}
	case kindRoute:
		if !e.matches("unmatched") && !strings.ContainsAny(e.start, "/.") {
			return "want a pattern such as /users/{id}, or /users/*, an address or a network"
		}
	case kindLower:
		if lower := strings.ToLower(e.text); lower != e.text {
			return fmt.Sprintf("its keys are in lower case; want %q", lower)
		}
	case kindHost:
		return e.insteadOfHost()
	case kindJoined:
		return e.insteadOfJoined()
	case kindFirst:
		for i := range k.parts {
			if begin := fmt.Sprint(i, ":"); e.matches(begin) || strings.HasPrefix(e.start, begin) {
				return ""
			}
		}
		return fmt.Sprintf("a key of first-of begins with the index of the key that applied, from 0; want %q, an address or a network", "0:"+e.text)
	}
	return ""
}

func (e entry) insteadOfHost() string {
	if e.isStart {
		if lower := strings.ToLower(e.text); lower != e.text {
			return fmt.Sprintf("hosts are in lower case; want %q", lower)
		}
	} else if host, _ := weir.ByHeader("Host")(&http.Request{Host: e.text, URL: &url.URL{}}); host != e.text {
		return fmt.Sprintf("hosts are in lower case and without port; want %q", host)
	}
	return ""
}

func (e entry) insteadOfJoined() string {
	after := strings.TrimLeft(e.start, "0123456789")
	hasLength := len(after) < len(e.start)
	if hasLength && (strings.HasPrefix(after, ":") || after == "" && e.isStart) {
		return ""
	}
	return `a list of keys makes a key such as "5:alice,3:GET,", each part after its length; want such a key, an address or a network`
}
