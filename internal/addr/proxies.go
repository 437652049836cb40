package addr

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// The fields in which proxies say where a request comes from.
const (
	Forwarded    = "Forwarded"
	ForwardedFor = "X-Forwarded-For"
)

// Proxies are the peers whose field, Forwarded or X-Forwarded-For, is believed.
type Proxies struct {
	name     string
	field    string
	trusted  []netip.Prefix
	unlisted unlisted
}

// NewProxies panics if a prefix is invalid. name is the function that got them.
func NewProxies(name, field string, trusted []netip.Prefix) *Proxies {
	p := &Proxies{name: name, field: field, trusted: slices.Clone(trusted)}
	for i, t := range trusted {
		if !t.IsValid() && t != (netip.Prefix{}) {
			panic(fmt.Sprintf("%s: trusted prefix of %v has an invalid length", name, t.Addr()))
		}
		// An address is compared unmapped, so its prefix must be too.
		if t.Addr().Is4In6() && t.Bits() >= 96 {
			p.trusted[i] = netip.PrefixFrom(t.Addr().Unmap(), t.Bits()-96)
		}
	}
	return p
}

// trusts reports whether the field of a peer is believed. addr is from parseAddr, which
// drops zones and unmaps.
func (p *Proxies) trusts(addr netip.Addr) bool {
	for _, t := range p.trusted {
		if t.Contains(addr) || !t.IsValid() && !addr.IsValid() {
			return true
		}
	}
	return false
}

// Key returns the key of the client. Clients without an address share one key.
func (p *Proxies) Key(r *http.Request, size Sizes) string {
	if len(p.trusted) == 0 && size.IPv4 == 32 { // the key of most peers is part of their name
		if _, n := parseIPv4(r.RemoteAddr); n > 0 {
			return r.RemoteAddr[:n]
		}
	}
	addr, text := p.client(r)
	if !addr.IsValid() {
		return "unknown"
	}
	return size.Key(addr, text)
}

// Addr returns the address of the client; ok is false if it has none.
func (p *Proxies) Addr(r *http.Request) (addr netip.Addr, ok bool) {
	addr, _ = p.client(r)
	return addr, addr.IsValid()
}

// client returns the address of the client, invalid if it has none, and its text if
// that is known without formatting it.
func (p *Proxies) client(r *http.Request) (netip.Addr, string) {
	addr, text := parseAddr(r.RemoteAddr)
	if p.trusts(addr) {
		addr, text = p.walk(r.Header[p.field], addr, text)
	} else if p.unlisted.looks.Load() < mostLooks {
		p.look(r, addr)
	}
	if addr.Is6() {
		addr = Outside(addr)
	}
	return addr, text
}

// walk returns the rightmost address of the lists in fields that is not trusted, or
// the leftmost if all are. An entry that is no address ends the walk at the hop that
// sent it. It takes no memory, and time in proportion to the trusted entries, even for
// a megabyte.
func (p *Proxies) walk(fields []string, addr netip.Addr, text string) (netip.Addr, string) {
	// Several fields are one list: the last entry of the last one is nearest.
	for _, list := range slices.Backward(fields) {
		for list != "" {
			var entry string
			if p.field == Forwarded {
				list, entry = cutLast(list)
			} else {
				i := strings.LastIndexByte(list, ',')
				list, entry = list[:max(i, 0)], list[i+1:]
			}
			if entry = strings.TrimSpace(entry); entry == "" {
				continue // lists may have empty elements: RFC 9110, section 5.6.1
			}
			hop, s := netip.Addr{}, ""
			if p.field == Forwarded {
				hop, s = forwardedNode(entry)
			} else {
				hop, s = parseAddr(entry)
			}
			if !hop.IsValid() {
				return addr, text
			}
			if addr, text = hop, s; !p.trusts(hop) {
				return addr, text
			}
		}
	}
	return addr, text
}
