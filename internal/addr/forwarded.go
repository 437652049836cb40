package addr

import (
	"net/netip"
	"strings"
)

// cutLast cuts the last element off a list, at the last comma outside of quoted strings. The list
// is read from the right, so that what a client wrote on the left, such as an open quote, cannot
// change how the entries of the proxies on the right are read.
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
			quoted = (i-n)%2 == 1 // the quote is escaped
			i = n
		}
	}
	return "", list
}

// forwardedNode parses "for=192.0.2.1;proto=http" and returns the address as parseAddr does. The
// address is invalid if the element contains no address or several addresses, or is malformed.
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
			return netip.Addr{}, "" // RFC 7239, section 4: "for" occurs at most once
		}
		found = true
		if addr, text = parseAddr(hiddenPort(value)); !addr.IsValid() {
			return netip.Addr{}, ""
		}
	}
	return addr, text
}

// pairValue cuts the value, a token or a quoted string, off the start of s. The rest may begin with
// the semicolon that ends the value. If the value is malformed, ok is false.
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

// unescape removes the backslashes of a quoted string, whose opening quote is not in s. It returns
// at most as many bytes as parseAddr may need. It also returns the index of the closing quote, or
// -1 if there is none.
func unescape(s string) (value string, end int) {
	var b [129]byte // parseAddr refuses longer texts
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

// hiddenPort removes an obfuscated port (RFC 7239): "192.0.2.1:_http" becomes "192.0.2.1".
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
