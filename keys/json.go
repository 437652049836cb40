package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"
	"unicode/utf8"

	"github.com/seed83679106/weir"
)

// unreadable is the key of requests in whose body ByJSON cannot read the value.
const unreadable = "unreadable"

// ByJSON limits each value of a field of a JSON body, such as the user name of a login. The
// body must be an object with the field at its top level. The name of the field matches in
// upper and lower case, as in encoding/json. The value is a string, or a number without
// fraction and exponent. The key is the value in lower case without spaces around it, so
// that a client gets no fresh quota for "Ann@Example.com ". If your handler ignores other
// differences too (dots, plus signs, accents), write a KeyFunc that ignores them.
//
// ByJSON reads at most the first max bytes of the body. The handler still reads the whole
// body, and gets the same error at its end. The rule is charged before the rest of the
// body arrives. A slow client holds its request for as long as the server's ReadTimeout
// allows.
//
// ByJSON fails towards limiting: if it cannot read the value, the key is "unreadable", and
// all such requests share one quota. That is so if the body is longer than max, cut off,
// no JSON object, or nested deeper than encoding/json reads. It is also so if the body has
// the field twice or with a value of another type, or if the request announces a body
// without sending it, as in forward auth. A body of unknown length (chunked) must be
// shorter than max. The Content-Type is ignored, because many handlers ignore it.
//
// The rule does not apply if the body is empty, or if the field is missing, null or an empty
// string. Use [weir.FirstOf] to give such requests another key.
//
// Anyone can send the name of another user and spend the quota of that user: see
// [ByBasicAuthUser].
//
// For an outgoing request, ByJSON reads the copy that GetBody returns, if there is one.
// It panics if field is empty or max is below 1.
func ByJSON(field string, max int64) weir.KeyFunc {
	switch {
	case field == "":
		panic("keys: ByJSON: empty field")
	case max < 1:
		panic(fmt.Sprintf("keys: ByJSON: max is %d", max))
	}
	return func(r *http.Request) (string, bool) {
		body, whole := peek(r, max)
		if !whole {
			return unreadable, true
		}
		value, ok := valueOf(body, field)
		if !ok {
			return unreadable, true
		}
		return nonempty(strings.ToLower(strings.TrimSpace(value)))
	}
}

// peek returns the body of a request, and lets the handler read it again. whole is false
// if the body may be longer than max, cannot be read, or was announced and not sent. peek
// reads nothing if ContentLength exceeds max.
func peek(r *http.Request, max int64) (head []byte, whole bool) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return nil, r.ContentLength <= 0 && len(r.TransferEncoding) == 0 // otherwise the body was not sent, as in forward auth
	case r.ContentLength > max:
		return nil, false
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

// valueOf returns the value of a field of a JSON object, or "" if the field is missing or
// the body is empty. ok is false if the body is neither empty nor an object, or if it has
// the field twice or with a value that the function text refuses. A decoder that reads the
// body token by token takes three times as long.
func valueOf(body []byte, field string) (value string, ok bool) {
	if len(body) == 0 {
		return "", true
	}
	if !json.Valid(body) {
		return "", false
	}
	rest := next(body)
	if rest[0] != '{' {
		return "", false
	}
	found := false
	for rest = next(rest[1:]); rest[0] != '}'; rest = next(rest) {
		var name, v []byte
		name, rest = cut(rest)
		v, rest = cut(next(rest))
		if !strings.EqualFold(unquoted(name), field) {
			continue
		}
		if found {
			return "", false
		}
		found = true
		if value, ok = text(v); !ok {
			return "", false
		}
	}
	return value, true
}

const between = " \t\r\n,:" // what separates the names and values of an object

func next(s []byte) []byte { return bytes.TrimLeft(s, between) }

// cut cuts the first name or value off the rest of a valid object.
func cut(s []byte) (value, rest []byte) {
	depth, quoted := 0, false
	for i := 0; ; i++ {
		switch c := s[i]; {
		case quoted && c == '\\':
			i++
		case c == '"':
			quoted = !quoted
		case quoted:
		case depth == 0 && (c == '}' || strings.IndexByte(between, c) >= 0):
			return s[:i], s[i:]
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
	}
}

// text returns a string, or a number without fraction and exponent, as text. It returns ""
// for null. ok is false for any other value, and for -0.
func text(value []byte) (s string, ok bool) {
	switch value[0] {
	case 'n':
		return "", true
	case '"':
		return unquoted(value), true
	case '{', '[', 't', 'f':
		return "", false
	}
	s = string(value) // so a value has one spelling: 4, not 4.0 or 4e0
	return s, s != "-0" && !strings.ContainsAny(s, ".eE")
}

// unquoted returns the text of a valid JSON string.
func unquoted(s []byte) (text string) {
	if bytes.IndexByte(s, '\\') < 0 && utf8.Valid(s) {
		return string(s[1 : len(s)-1])
	}
	_ = json.Unmarshal(s, &text)
	return text
}
