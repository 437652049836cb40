package addr

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// These are the header fields in which proxies name the client of a request.
const (
	Forwarded    = "Forwarded"
	ForwardedFor = "X-Forwarded-For"
)

// Proxies finds the client of a request from the field Forwarded or X-Forwarded-For of
// trusted peers.
type Proxies struct {
	name     string
	field    string
	trusted  []netip.Prefix
	unlisted unlisted
	alike    alike
}

// NewProxies returns Proxies that trust the given field in requests from peers in the trusted
// networks. It panics if a prefix is invalid or too wide. Messages contain the name of the calling
// function.
func NewProxies(name, field string, trusted []netip.Prefix) *Proxies {
	p := &Proxies{name: name, field: field, trusted: slices.Clone(trusted)}
	for i, t := range trusted {
		if !t.IsValid() && t != (netip.Prefix{}) {
			panic(fmt.Sprintf("%s: trusted prefix of %s has an invalid length", name, t.Addr().String()))
		}
		p.trusted[i] = Unmap(t)
		if TooWide(p.trusted[i]) {
			panic(fmt.Sprintf("%s: %s trusts every client or many of them, so these could choose their keys", name, t.String()))
		}
	}
	return p
}

// TooWide reports whether p contains so many addresses that clients are among them. The widest
// networks of proxies are fc00::/7 and 10.0.0.0/8.
func TooWide(p netip.Prefix) bool { return p.IsValid() && p.Bits() < 7 }

// Unmap returns p as an IPv4 network if it contains only IPv4-mapped addresses. Addresses are
// unmapped before they are compared, so networks must be unmapped too.
func Unmap(p netip.Prefix) netip.Prefix {
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		return netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p
}

// trusts reports whether the peer is trusted. addr comes from parseAddr, so it has no zone
// and is not mapped.
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
	addr, text := p.client(r)
	if !addr.IsValid() {
		return "unknown"
	}
	return size.Key(addr, text)
}

// Addr returns the address of the client. If the client has no address, ok is false.
func (p *Proxies) Addr(r *http.Request) (addr netip.Addr, ok bool) {
	addr, _ = p.client(r)
	return addr, addr.IsValid()
}

// client returns the address of the client, which is invalid if the client has none, and
// the text of the address if it is known without formatting.
func (p *Proxies) client(r *http.Request) (netip.Addr, string) {
	addr, text := parseAddr(r.RemoteAddr)
	if r.TLS != nil && !r.TLS.HandshakeComplete {
		p.warnEarly(r)
	}
	if p.trusts(addr) {
		addr, text = p.walk(r.Header[p.field], addr, text)
		if p.alike.open.Load() < mostAlike {
			p.compare(r, addr)
		}
	} else if p.unlisted.looks.Load() < mostLooks {
		p.look(r, addr)
	}
	if addr.Is6() {
		addr = Outside(addr)
	}
	return addr, text
}

// walk returns the rightmost address of the lists in fields that is not trusted, or the
// leftmost address if all are trusted. If an entry is not an address, walk returns the address of
// the hop that sent the entry. Entries to the left of the result are not parsed.
func (p *Proxies) walk(fields []string, addr netip.Addr, text string) (netip.Addr, string) {
	// If a field occurs several times, its values form one list. The last entry of the last field
	// comes from the nearest proxy.
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
