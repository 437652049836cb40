// Package sfv parses the structured header fields (RFC 9651) that servers use for limits:
// Lists and Dictionaries of Items, without Inner Lists.
package sfv

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A Member is an Item of a List or a Dictionary, with its parameters.
type Member struct {
	Key    string // in a Dictionary; "" in a List
	Value  any    // a string, an int64, a ByteSequence, or a value of an unexported type
	Params map[string]any
}

// A ByteSequence is the decoded value of a Byte Sequence.
type ByteSequence string

// other stands for a value that no field about limits uses: a Decimal, Token, Boolean, Date
// or Display String. Such a value must be well-formed, but what it says is ignored.
type other struct{}

const (
	digits  = "0123456789"
	lower   = "abcdefghijklmnopqrstuvwxyz"
	upper   = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"
	keyText = lower + digits + "_-.*"
	tchar   = upper + lower + digits + "!#$%&'*+-.^_`|~" // RFC 9110, 5.6.2
)

// Parse parses a Dictionary or a List of Items, as RFC 9651, 4.2 says. If the field has any
// mistake, ok is false and the field must be ignored. The time of Parse is linear in the
// length of the field.
func Parse(field string, dictionary bool) (members []Member, ok bool) {
	p := parser{strings.Trim(field, " ")}
	for p.rest != "" {
		var m Member
		if dictionary {
			m.Key, m.Value, ok = p.pair()
		} else {
			m.Value, ok = p.value()
		}
		for ok && p.take(";") {
			p.span(" ")
			var key string
			var value any
			key, value, ok = p.pair()
			if m.Params == nil {
				m.Params = map[string]any{}
			}
			m.Params[key] = value
		}
		if !ok {
			return nil, false
		}
		members = append(members, m)
		p.span(" \t")
		if p.rest == "" {
			break
		}
		if !p.take(",") {
			return nil, false
		}
		if p.span(" \t"); p.rest == "" {
			return nil, false
		}
	}
	return members, true
}

type parser struct{ rest string }

// take skips s if it comes next, and reports whether it did.
func (p *parser) take(s string) (ok bool) {
	p.rest, ok = strings.CutPrefix(p.rest, s)
	return ok
}

// span skips the characters of a set that come next, and returns them.
func (p *parser) span(set string) string {
	rest := strings.TrimLeft(p.rest, set)
	s := p.rest[:len(p.rest)-len(rest)]
	p.rest = rest
	return s
}

// until skips everything up to and including the next c, and returns the text before c.
func (p *parser) until(c string) (s string, ok bool) {
	s, p.rest, ok = strings.Cut(p.rest, c)
	return s, ok
}

// pair parses key=value, or a key without a value, which means key=?1.
func (p *parser) pair() (key string, value any, ok bool) {
	key = p.span(keyText)
	if key == "" || !strings.Contains(lower+"*", key[:1]) {
		return "", nil, false
	}
	if !p.take("=") {
		return key, other{}, true
	}
	value, ok = p.value()
	return key, value, ok
}

// value parses a bare item of any type.
func (p *parser) value() (any, bool) {
	switch {
	case p.take(`"`):
		return p.text()
	case p.take(":"):
		s, ok := p.until(":")
		// Padding may be missing (RFC 9651, 4.2.7). Line ends, which encoding/base64
		// ignores, are refused.
		raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
		return ByteSequence(raw), ok && err == nil && !strings.ContainsAny(s, "\r\n")
	case p.take("?"):
		return other{}, p.take("0") || p.take("1")
	case p.take("@"):
		n, ok := p.number()
		_, integer := n.(int64)
		return other{}, ok && integer
	case p.take(`%"`):
		return p.display()
	case p.rest != "" && strings.Contains(upper+lower+"*", p.rest[:1]):
		p.span(tchar + ":/")
		return other{}, true
	}
	return p.number()
}

// number parses an Integer or a Decimal.
func (p *parser) number() (any, bool) {
	sign := ""
	if p.take("-") {
		sign = "-"
	}
	whole := p.span(digits)
	if p.take(".") {
		fraction := p.span(digits)
		return other{}, 1 <= len(whole) && len(whole) <= 12 && 1 <= len(fraction) && len(fraction) <= 3
	}
	if len(whole) > 15 {
		return nil, false
	}
	n, err := strconv.ParseInt(sign+whole, 10, 64)
	return n, err == nil
}

// text parses the rest of a String.
func (p *parser) text() (any, bool) {
	var b strings.Builder
	for i := 0; i < len(p.rest); i++ {
		switch c := p.rest[i]; {
		case c == '"':
			p.rest = p.rest[i+1:]
			return b.String(), true
		case c == '\\':
			i++
			if i == len(p.rest) || p.rest[i] != '"' && p.rest[i] != '\\' {
				return nil, false
			}
			b.WriteByte(p.rest[i])
		case c < ' ' || c > '~':
			return nil, false
		default:
			b.WriteByte(c)
		}
	}
	return nil, false
}

// display parses the rest of a Display String.
func (p *parser) display() (any, bool) {
	s, ok := p.until(`"`)
	if !ok || strings.ContainsFunc(s, func(r rune) bool { return r < ' ' || r > '~' }) {
		return nil, false
	}
	first, rest, _ := strings.Cut(s, "%")
	b := []byte(first)
	for more := len(first) < len(s); more; {
		var piece string
		piece, rest, more = strings.Cut(rest, "%")
		if len(piece) < 2 || strings.Trim(piece[:2], digits+"abcdef") != "" {
			return nil, false
		}
		c, _ := strconv.ParseUint(piece[:2], 16, 8)
		b = append(append(b, byte(c)), piece[2:]...)
	}
	return other{}, utf8.Valid(b)
}
