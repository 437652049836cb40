package keys

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/seed83679106/weir"
)

// unreadable is the key of requests whose body does not say which value it has.
const unreadable = "unreadable"

// ByJSON limits each value of a field of a JSON body: the user name of a login. The body is
// an object, and the field one of its own, not one of an object in it. Its name matches in
// upper and lower case, as in encoding/json. The value is a string, or a whole number
// without fraction and exponent. The key is the string in lower case without spaces around
// it, so that "Ann@Example.com " is no fresh quota. If your handler ignores more than that
// (dots, plus signs, accents), write a KeyFunc that ignores it too.
//
// It reads the first max bytes of the body at most, and the handler reads them again: the
// same bytes, then the rest, and the same error. The rule is charged before the rest
// arrives. A slow client holds its request for as long as the server's ReadTimeout allows.
//
// It fails towards limiting. Requests whose body does not say which value it has share the
// key "unreadable": the body is longer than max, is cut off, is no JSON object, is nested
// deeper than encoding/json reads, has the field twice, or the value is of another type; or
// the request says that it has a body that is not there, as in forward auth. A body of
// unknown length (chunked) must be shorter than max. A client therefore gains one quota by
// such bodies, which it shares with all of them, and no more. The Content-Type is ignored,
// because handlers ignore it.
//
// If the body is empty, or an object without the field or with null or an empty string in
// it, the rule does not apply. [weir.FirstOf] names a key for such requests.
//
// Anyone can send the name of another user and spend the quota of that user: see
// [ByBasicAuthUser].
//
// In a request that goes out, ByJSON reads the copy that GetBody returns, if there is one.
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

// peek returns the body of a request, and leaves it to be read again. whole is false if it
// is longer than max or cannot be read. peek does not begin a body that says that it is
// longer.
func peek(r *http.Request, max int64) (head []byte, whole bool) {
	switch {
	case r.Body == nil || r.Body == http.NoBody:
		return nil, r.ContentLength <= 0 && len(r.TransferEncoding) == 0 // or it is elsewhere, as in forward auth
	case r.ContentLength > max:
		return nil, false
	}
	body := r.Body
	if r.GetBody != nil { // it goes out, and a RoundTripper must not change it
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

// A rereader is a body of which the head was read. It is safe to close it during a Read, as
// it is for a body of net/http.
type rereader struct {
	rest io.ReadCloser

	mu   sync.Mutex
	head []byte // not read again yet
	err  error  // that came after it; nil: read on
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
	b.head, b.err = nil, nil // a Read says what the body says of one that is closed
	b.mu.Unlock()
	return b.rest.Close()
}

// valueOf returns the value of a field of a JSON object, "" if it has none. ok is false if
// the body is no object, or does not say one value.
func valueOf(body []byte, field string) (value string, ok bool) {
	if len(body) == 0 {
		return "", true
	}
	if !json.Valid(body) { // then no call of the decoder fails
		return "", false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, _ := d.Token(); t != json.Delim('{') {
		return "", false
	}
	found := false
	for d.More() {
		name, _ := d.Token()
		if name, _ := name.(string); !strings.EqualFold(name, field) {
			var skipped json.RawMessage
			d.Decode(&skipped)
			continue
		}
		if found {
			return "", false
		}
		found = true
		t, _ := d.Token()
		if value, ok = text(t); !ok {
			return "", false
		}
	}
	return value, true
}

// text returns a string or a whole number as text, and "" for null.
func text(t json.Token) (s string, ok bool) {
	switch t := t.(type) {
	case nil:
		return "", true
	case string:
		return t, true
	case json.Number: // the same number has one text, unless it is -0 or has one of .eE
		return t.String(), t != "-0" && !strings.ContainsAny(t.String(), ".eE")
	}
	return "", false
}
