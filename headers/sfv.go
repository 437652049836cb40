package headers

import (
	"encoding/base64"
	"strconv"
	"strings"
	"unicode/utf8"
)

// A member is an Item in the List or Dictionary of a structured field (RFC 9651).
type member struct {
	key    string  // in a Dictionary; "" in a List
	value  any     // a string, an int64, a byteSequence or other
	params []param // only the parameters that a field about limits uses
}

type param struct {
	key   string
	value any
}

// param returns the value of a parameter, or nil if the member has no such parameter.
func (m *member) param(key string) any {
	for i := range m.params {
		if m.params[i].key == key {
			return m.params[i].value
		}
	}
	return nil
}

// setParam sets a parameter if a field about limits uses it. If a parameter occurs twice, the last
// value applies.
func (m *member) setParam(key string, value any) {
	for i := range m.params {
		if m.params[i].key == key {
			m.params[i].value = value
			return
		}
	}
	switch key {
	case quotaParam, unitParam, windowParam, partitionParam, remainingParam, timeParam:
		m.params = append(m.params, param{key, value})
	}
}

// A byteSequence is the decoded value of a Byte Sequence.
type byteSequence string

// An otherItem represents a value that no field about limits uses: a Decimal, Token, Boolean, Date
// or Display String. Such a value must be well-formed, but is otherwise ignored.
type otherItem struct{}

// parseMembers parses a Dictionary or a List of Items without Inner Lists, according to RFC 9651,
// section 4.2. If the field has any error, ok is false and the field must be ignored. The running
// time of parseMembers is linear in the length of the field.
func parseMembers(field string, dictionary bool) (members []member, ok bool) {
	p := parser{strings.Trim(field, " ")}
	for p.rest != "" {
		var m member
		if dictionary {
			m.key, m.value, ok = p.pair()
		} else {
			m.value, ok = p.value()
		}
		for ok && p.take(';') {
			p.span(isSpace)
			var key string
			var value any
			key, value, ok = p.pair()
			m.setParam(key, value)
		}
		if !ok {
			return nil, false
		}
		members = append(members, m)
		p.span(isBlank)
		if p.rest == "" {
			break
		}
		if !p.take(',') {
			return nil, false
		}
		if p.span(isBlank); p.rest == "" {
			return nil, false
		}
	}
	return members, true
}

type parser struct{ rest string }

// If c is the next character, take skips it and returns true.
func (p *parser) take(c byte) bool {
	if p.rest == "" || p.rest[0] != c {
		return false
	}
	p.rest = p.rest[1:]
	return true
}

// span skips and returns the next characters for which accept returns true.
func (p *parser) span(accept func(c byte) bool) string {
	i := 0
	for i < len(p.rest) && accept(p.rest[i]) {
		i++
	}
	s := p.rest[:i]
	p.rest = p.rest[i:]
	return s
}

func isSpace(c byte) bool { return c == ' ' }
func isBlank(c byte) bool { return c == ' ' || c == '\t' }
func isDigit(c byte) bool { return '0' <= c && c <= '9' }
func isLower(c byte) bool { return 'a' <= c && c <= 'z' }
func isAlpha(c byte) bool { return isLower(c | ' ') }
func isKey(c byte) bool   { return isLower(c) || isDigit(c) || strings.IndexByte("_-.*", c) >= 0 }
func isToken(c byte) bool { // tchar of RFC 9110, 5.6.2, and two more
	return isAlpha(c) || isDigit(c) || strings.IndexByte("!#$%&'*+-.^_`|~:/", c) >= 0
}

// pair parses key=value, or a key without a value, which means key=?1.
func (p *parser) pair() (key string, value any, ok bool) {
	key = p.span(isKey)
	if key == "" || !isLower(key[0]) && key[0] != '*' {
		return "", nil, false
	}
	if !p.take('=') {
		return key, otherItem{}, true
	}
	value, ok = p.value()
	return key, value, ok
}

// value parses a bare item of any type.
func (p *parser) value() (any, bool) {
	switch {
	case p.take('"'):
		return p.text()
	case p.take(':'):
		s, rest, ok := strings.Cut(p.rest, ":")
		p.rest = rest
		// Padding may be missing (RFC 9651, 4.2.7). Line ends, which encoding/base64 would ignore,
		// are errors.
		raw, err := base64.RawStdEncoding.DecodeString(strings.TrimRight(s, "="))
		return byteSequence(raw), ok && err == nil && !strings.ContainsAny(s, "\r\n")
	case p.take('?'):
		return otherItem{}, p.take('0') || p.take('1')
	case p.take('@'):
		n, ok := p.number()
		_, integer := n.(int64)
		return otherItem{}, ok && integer
	case p.take('%'):
		return otherItem{}, p.take('"') && p.display()
	case p.rest != "" && (isAlpha(p.rest[0]) || p.rest[0] == '*'):
		p.span(isToken)
		return otherItem{}, true
	}
	return p.number()
}

// number parses an Integer or a Decimal.
func (p *parser) number() (any, bool) {
	negative := p.take('-')
	whole := p.span(isDigit)
	if p.take('.') {
		fraction := p.span(isDigit)
		return otherItem{}, 1 <= len(whole) && len(whole) <= 12 && 1 <= len(fraction) && len(fraction) <= 3
	}
	n, err := strconv.ParseInt(whole, 10, 64)
	if negative {
		n = -n
	}
	return n, err == nil && len(whole) <= 15
}

// text parses the rest of a String.
func (p *parser) text() (any, bool) {
	s := p.span(isText)
	if p.take('"') {
		return s, true // no character of the String is escaped
	}
	b := []byte(s)
	for {
		switch {
		case p.take('"'):
			return string(b), true
		case !p.take('\\') || p.rest == "" || p.rest[0] != '"' && p.rest[0] != '\\':
			return nil, false
		}
		b = append(b, p.rest[0])
		p.rest = p.rest[1:]
		b = append(b, p.span(isText)...)
	}
}

func isText(c byte) bool { return ' ' <= c && c <= '~' && c != '"' && c != '\\' }

// display parses the rest of a Display String.
func (p *parser) display() bool {
	var b []byte
	for {
		b = append(b, p.span(func(c byte) bool { return ' ' <= c && c <= '~' && c != '"' && c != '%' })...)
		switch {
		case p.take('"'):
			return utf8.Valid(b)
		case !p.take('%') || len(p.rest) < 2 || strings.Trim(p.rest[:2], "0123456789abcdef") != "":
			return false
		}
		c, _ := strconv.ParseUint(p.rest[:2], 16, 8)
		b, p.rest = append(b, byte(c)), p.rest[2:]
	}
}
