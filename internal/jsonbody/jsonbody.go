// Package jsonbody reads values from the JSON bodies of requests, which handlers can still read.
package jsonbody

import (
	"bytes"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

// A Text holds the beginning of a request's body. A body is parsed at most once, however many rules
// read it.
type Text struct {
	Head  []byte
	Whole bool // false if the body may be longer, cannot be read, or was declared but not sent

	parsed bool
	value  []byte
	ok     bool
}

// Peek returns the first max bytes of the body of a request, and lets the handler read it again.
// Further calls return the same Text until the body is read, except for an outgoing request with
// GetBody, which a RoundTripper must not change.
func Peek(r *http.Request, max int64) *Text {
	if r.Body == nil || r.Body == http.NoBody {
		return &Text{Whole: r.ContentLength <= 0 && len(r.TransferEncoding) == 0} // otherwise the body was not sent, as in forward auth
	}
	body := r.Body
	if r.GetBody != nil {
		var err error
		if body, err = r.GetBody(); err != nil {
			return &Text{}
		}
		defer body.Close()
	} else if b, ok := body.(*rereader); ok {
		if t := b.again(max, r.ContentLength); t != nil {
			return t
		}
	}
	head, err := io.ReadAll(io.LimitReader(body, max))
	if err == nil && int64(len(head)) < max {
		err = io.EOF
	}
	t := textOf(head, err, max, r.ContentLength)
	if r.GetBody == nil {
		r.Body = &rereader{rest: body, text: t, head: head, err: err}
	}
	return t
}

// textOf returns the Text of the first max bytes of a body that begins with head. After head,
// reading the body returned err.
func textOf(head []byte, err error, max, length int64) *Text {
	n := int64(len(head))
	return &Text{Head: head[:min(n, max)], Whole: err == io.EOF && n < max || n == max && length == max}
}

// Value returns the value in the body, or nil if the body is empty. If the body is not whole, or is
// not valid JSON in UTF-8, ok is false.
func (t *Text) Value() (value []byte, ok bool) {
	if !t.parsed {
		t.parsed, t.ok = true, t.Whole && (len(t.Head) == 0 || utf8.Valid(t.Head) && json.Valid(t.Head))
		if t.ok {
			t.value = next(t.Head)
		}
	}
	return t.value, t.ok
}

// A rereader is a body that returns its first bytes, head, a second time. Like a body of
// net/http, it may be closed during a Read.
type rereader struct {
	rest io.ReadCloser

	mu   sync.Mutex
	text *Text  // nil once the body is read
	head []byte // the bytes that Read has not returned yet
	err  error  // the error after head; nil means that rest follows
}

// again returns the Text of the first max bytes, or nil if it is not known, or no longer known.
func (b *rereader) again(max, length int64) *Text {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.text == nil || int64(len(b.head)) < max && b.err == nil {
		return nil
	}
	t := textOf(b.head, b.err, max, length)
	if len(t.Head) == len(b.text.Head) && t.Whole == b.text.Whole {
		return b.text
	}
	return t
}

func (b *rereader) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	n = copy(p, b.head)
	b.text, b.head, err = nil, b.head[n:], b.err
	if len(b.head) == 0 {
		b.head = nil // otherwise a long response would keep it in memory
	}
	b.mu.Unlock()
	switch {
	case n > 0 || len(p) == 0:
		return n, nil
	case err != nil:
		return 0, err
	}
	return b.rest.Read(p)
}

func (b *rereader) Close() error {
	b.mu.Lock()
	b.text, b.head, b.err = nil, nil, nil // a later Read returns the error of the closed body
	b.mu.Unlock()
	return b.rest.Close()
}

// Member returns the value of a member of a valid object, or nil if the object has no such member.
// Names are compared as Matches compares them. If there are several such members, ok is false. A
// decoder that reads the body token by token takes three times as long.
func Member(object []byte, name string) (value []byte, ok bool) {
	_, value, n := Find(object, name)
	if n > 1 {
		return nil, false
	}
	return value, true
}

// Find returns the last member of a valid object whose name Matches the given name, and how many
// such members there are.
func Find(object []byte, name string) (found, value []byte, n int) {
	for f, v := range Members(object) {
		if Matches(f, name) {
			found, value, n = f, v, n+1
		}
	}
	return found, value, n
}

// Members returns the names, as JSON strings, and the values of a valid object.
func Members(object []byte) iter.Seq2[[]byte, []byte] {
	return func(yield func(name, value []byte) bool) {
		for rest := next(object[1:]); rest[0] != '}'; rest = next(rest) {
			var n, v []byte
			n, rest = cut(rest)
			if v, rest = cut(next(rest)); !yield(n, v) {
				return
			}
		}
	}
}

// Matches reports whether the most lenient decoder that handlers use would match inBody, which is a
// name in a body, as a JSON string, with the given name. For example, encoding/json ignores case,
// and encoding/json/v2 with case:ignore ignores dashes and underscores as well.
func Matches(inBody []byte, name string) bool {
	b := inBody[1 : len(inBody)-1]
	if string(b) == name {
		return true
	}
	if bytes.IndexByte(b, '\\') >= 0 {
		b = []byte(Unquote(inBody))
	}
	for n := []byte(name); ; {
		c, i := fold(b)
		d, j := fold(n)
		if c != d || i == 0 {
			return c == d
		}
		b, n = b[i:], n[j:]
	}
}

// fold returns the first rune of a name that is neither a dash nor an underscore, and the number
// of bytes up to its end. In place of the rune, it returns the smallest rune that differs from it
// only in case. It returns −1 and 0 if there is no such rune.
func fold(name []byte) (r rune, n int) {
	for n < len(name) {
		r, size := utf8.DecodeRune(name[n:])
		if n += size; r == '-' || r == '_' {
			continue
		}
		for {
			other := unicode.SimpleFold(r)
			if other <= r {
				return other, n
			}
			r = other
		}
	}
	return -1, 0
}

// At returns the value at a path of a JSON object, or "" if it is missing or the body is empty. ok
// is false if the body is neither empty nor a whole object, if a member of the path occurs twice or
// is not an object, or if the function text does not accept the value at the end.
func (t *Text) At(path ...string) (s string, ok bool) {
	value, ok := t.Value()
	if !ok || value == nil {
		return "", ok
	}
	for _, name := range path {
		if value[0] != '{' {
			return "", false
		}
		if value, ok = Member(value, name); !ok || value == nil || value[0] == 'n' {
			return "", ok
		}
	}
	return text(value)
}

// text returns a string, or a number without fraction and exponent, as text. ok is false for any
// other value, and for -0.
func text(value []byte) (s string, ok bool) {
	switch value[0] {
	case '"':
		return Unquote(value), true
	case '{', '[', 't', 'f':
		return "", false
	}
	s = string(value) // each number is accepted in only one form: 4, but not 4.0 or 4e0
	return s, s != "-0" && !strings.ContainsAny(s, ".eE")
}

// Elements returns the elements of a valid array.
func Elements(array []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for rest := next(array[1:]); rest[0] != ']'; rest = next(rest) {
			var v []byte
			if v, rest = cut(rest); !yield(v) {
				return
			}
		}
	}
}

const between = " \t\r\n,:" // what separates the names and values of an object

func next(s []byte) []byte { return bytes.TrimLeft(s, between) }

// cut cuts the first name or value off the rest of a valid object or array.
func cut(s []byte) (value, rest []byte) {
	depth := 0
	for i := 0; ; i++ {
		switch c := s[i]; {
		case c == '"':
			for escaped := true; escaped; {
				i += 1 + bytes.IndexByte(s[i+1:], '"')
				escaped = false
				for j := i - 1; s[j] == '\\'; j-- {
					escaped = !escaped
				}
			}
		case c == '{' || c == '[':
			depth++
		case depth == 0 && (c == '}' || c == ']' || strings.IndexByte(between, c) >= 0):
			return s[:i], s[i:]
		case c == '}' || c == ']':
			depth--
		}
	}
}

// Unquote returns the text of a valid JSON string.
func Unquote(s []byte) (text string) {
	if bytes.IndexByte(s, '\\') < 0 {
		return string(s[1 : len(s)-1])
	}
	_ = json.Unmarshal(s, &text)
	return text
}
