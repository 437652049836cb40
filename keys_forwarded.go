package weir

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ByForwarded is [ByIP] for proxies that write the field Forwarded (RFC 7239) in
// place of X-Forwarded-For. It reads Forwarded and never X-Forwarded-For, as ByIP
// reads that and never this one: a proxy sets one of them and may pass the other on
// as a client wrote it, so that to believe whichever is there would be to believe
// the client.
//
// The field is read from the right. An element whose "for" is hidden ("_gazonk"),
// "unknown" or missing ends the walk as one that is no address does, and the trusted
// hop that sent it is the key. Ports are ignored.
func ByForwarded(trusted ...netip.Prefix) KeyFunc {
	size, proxies := sizes{32, 64}, newProxies("ByForwarded", forwarded, trusted)
	return func(r *http.Request) (string, bool) { return proxies.key(r, size), true }
}

// ForwardedAddr is the address that [ByForwarded] limits, without its networks. ok is
// false for peers that have none.
func ForwardedAddr(trusted ...netip.Prefix) AddrFunc {
	return newProxies("ForwardedAddr", forwarded, trusted).addr
}

// The fields that say where a request comes from.
const (
	forwarded    = "Forwarded"
	forwardedFor = "X-Forwarded-For"
)

// cutLast cuts the last element off a list, at the last comma that is in no quoted
// string. It looks from the right: what a client wrote to the left, such as a quote
// that is never closed, can't change what the proxy wrote after it.
func cutLast(list string) (before, last string) {
	quoted := false
	for i := len(list) - 1; i >= 0; i-- {
		switch list[i] {
		case ',':
			if !quoted {
				return list[:i], list[i+1:]
			}
		case '"':
			if !quoted {
				quoted = true
				break
			}
			n := i
			for n > 0 && list[n-1] == '\\' {
				n--
			}
			quoted = (i-n)%2 == 1 // it is escaped
			i = n
		}
	}
	return "", list
}

// forwardedNode parses "for=192.0.2.1;proto=http" and returns the address as
// parseAddr does, or an invalid one if the element has none, or several.
func forwardedNode(element string) (addr netip.Addr, text string) {
	found := false
	for element != "" {
		name, rest, ok := strings.Cut(element, "=")
		if !ok {
			if strings.Trim(name, "; \t") != "" {
				return netip.Addr{}, ""
			}
			break
		}
		name = strings.Trim(name, "; \t")
		var value string
		if value, element, ok = pairValue(strings.TrimLeft(rest, " \t")); !ok {
			return netip.Addr{}, ""
		}
		if !strings.EqualFold(name, "for") {
			continue
		}
		if found {
			return netip.Addr{}, "" // RFC 7239, section 4: once at most
		}
		found = true
		if addr, text = parseAddr(hiddenPort(value)); !addr.IsValid() {
			return netip.Addr{}, ""
		}
	}
	return addr, text
}

// pairValue returns the value that s begins with, a token or a quoted string, and
// what stands behind it and its semicolon.
func pairValue(s string) (value, rest string, ok bool) {
	if !strings.HasPrefix(s, `"`) {
		value, rest, _ = strings.Cut(s, ";")
		return strings.TrimRight(value, " \t"), rest, !strings.Contains(value, `"`)
	}
	s = s[1:]
	end := strings.IndexAny(s, `"\`)
	if end < 0 {
		return "", "", false
	}
	value = s[:end]
	if s[end] == '\\' {
		if value, end = unescape(s); end < 0 {
			return "", "", false
		}
	}
	rest = strings.TrimLeft(s[end+1:], " \t")
	if rest != "" && rest[0] != ';' {
		return "", "", false
	}
	return value, rest, true
}

// unescape returns a quoted string as it is meant, up to the length of an address
// with all that may come with it, and where its end is; -1 is nowhere.
func unescape(s string) (value string, end int) {
	var b [129]byte // parseAddr refuses as many
	n := 0
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return string(b[:n]), i
		case '\\':
			if i++; i == len(s) {
				return "", -1
			}
		}
		if n < len(b) {
			b[n] = s[i]
			n++
		}
	}
	return "", -1
}

// hiddenPort removes an obfuscated port: "192.0.2.1:_http" is 192.0.2.1.
func hiddenPort(node string) string {
	i := strings.LastIndex(node, ":_")
	if i < 0 || i+2 == len(node) {
		return node
	}
	for _, c := range []byte(node[i+2:]) {
		if (c < '0' || c > '9') && (c|0x20 < 'a' || c|0x20 > 'z') && c != '.' && c != '_' && c != '-' {
			return node
		}
	}
	return node[:i]
}

// walk returns the rightmost address of the lists in fields that is not trusted, or
// the last that is. It goes in place: a megabyte of it costs time proportional to the
// entries that are trusted, and no memory.
func (p *proxies) walk(fields []string, addr netip.Addr, text string) (netip.Addr, string) {
	// Several fields are one list: the last entry of the last one is nearest.
	for _, list := range slices.Backward(fields) {
		for list != "" {
			var entry string
			if p.field == forwarded {
				list, entry = cutLast(list)
			} else {
				i := strings.LastIndexByte(list, ',')
				list, entry = list[:max(i, 0)], list[i+1:]
			}
			if entry = strings.TrimSpace(entry); entry == "" {
				continue // lists may have empty elements: RFC 9110, section 5.6.1
			}
			hop, s := netip.Addr{}, ""
			if p.field == forwarded {
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
