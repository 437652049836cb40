// Package jsonbody reads values of JSON bodies, and leaves the bodies to the handler.
package jsonbody

import (
	"bytes"
	"encoding/json"
	"io"
	"iter"
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"
)

// Peek returns the first max bytes of the body of a request, and lets the handler read it
// again. whole is false if the body may be longer, cannot be read, or was announced and not
// sent.
func Peek(r *http.Request, max int64) (head []byte, whole bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return nil, r.ContentLength <= 0 && len(r.TransferEncoding) == 0 // otherwise the body was not sent, as in forward auth
	}
	body := r.Body
	if r.GetBody != nil { // the request is outgoing, and a RoundTripper must not change it
		var err error
		if body, err = r.GetBody(); err != nil {
			return nil, false
		}
		defer body.Close()
	}
	head, err := io.ReadAll(io.LimitReader(body, max))
	whole = err == nil && (int64(len(head)) < max || r.ContentLength == max)
	if r.GetBody == nil {
		if err == nil && int64(len(head)) < max {
			err = io.EOF
		}
		r.Body = &rereader{rest: body, head: head, err: err}
	}
	return head, whole
}

// A rereader is a body that returns its first bytes, head, a second time. Like a body of
// net/http, it may be closed during a Read.
type rereader struct {
	rest io.ReadCloser

	mu   sync.Mutex
	head []byte // the bytes that Read has not returned yet
	err  error  // the error after head; nil means that rest follows
}

func (b *rereader) Read(p []byte) (n int, err error) {
	b.mu.Lock()
	n = copy(p, b.head)
	b.head = b.head[n:]
	err = b.err
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
	b.head, b.err = nil, nil // a later Read returns the error of the closed body
	b.mu.Unlock()
	return b.rest.Close()
}

// Value returns the value in a body, or nil if the body is empty. ok is false if the body is
// no JSON.
func Value(body []byte) (value []byte, ok bool) {
	switch {
	case len(body) == 0:
		return nil, true
	case !json.Valid(body):
		return nil, false
	}
	return next(body), true
}

// Member returns the value of a member of a valid object, or nil if it has none. The name
// matches in upper and lower case, as in encoding/json. ok is false if there are several. A
// decoder that reads the body token by token takes three times as long.
func Member(object []byte, name string) (value []byte, ok bool) {
	for rest := next(object[1:]); rest[0] != '}'; rest = next(rest) {
		var n, v []byte
		n, rest = cut(rest)
		v, rest = cut(next(rest))
		if !strings.EqualFold(Unquote(n), name) {
			continue
		}
		if value != nil {
			return nil, false
		}
		value = v
	}
	return value, true
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
	depth, quoted := 0, false
	for i := 0; ; i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case depth == 0 && (c == '}' || c == ']' || strings.IndexByte(between, c) >= 0):
			return s[:i], s[i:]
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
}

// Unquote returns the text of a valid JSON string.
func Unquote(s []byte) (text string) {
	if bytes.IndexByte(s, '\\') < 0 && utf8.Valid(s) {
		return string(s[1 : len(s)-1])
	}
	_ = json.Unmarshal(s, &text)
	return text
}
