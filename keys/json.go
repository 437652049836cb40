package keys

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/jsonbody"
)

// unreadable is the key of requests in whose body ByJSON cannot read the value.
const unreadable = "unreadable"

// ByJSON limits each value of a field of a JSON body, such as the user name of a login. The
// body must be an object. A field of an object inside it has a path: "params.name" is the
// tool that an MCP client calls. In a name that has a dot itself, write \. for it: "a\.b".
// Names match in upper and lower case, as in encoding/json. The value is a string, or a number
// without fraction and exponent. The key is the value in lower case without spaces around it, so
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
// no JSON object, such as a JSON-RPC batch, or nested deeper than encoding/json reads. It is
// also so if the body has the field twice or with a value of another type, or if the request
// announces a body without sending it, as in forward auth. A body of unknown length (chunked) must be
// shorter than max. The Content-Type is ignored, because many handlers ignore it.
//
// The rule does not apply if the body is empty, or if the field, or an object on the path to
// it, is missing or null, or if the field is an empty string. Use [weir.FirstOf] to give such requests another key.
//
// Anyone can send the name of another user and spend the quota of that user: see
// [ByBasicAuthUser].
//
// For an outgoing request, ByJSON reads the copy that GetBody returns, if there is one.
// It panics if field, or a name of its path, is empty, or max is below 1.
func ByJSON(field string, max int64) weir.KeyFunc {
	path := strings.Split(strings.ReplaceAll(field, `\.`, "\x00"), ".")
	for i, name := range path {
		path[i] = strings.ReplaceAll(name, "\x00", ".")
	}
	switch {
	case slices.Contains(path, ""):
		panic(fmt.Sprintf("keys: ByJSON: field is %q; want a name on each side of a dot", field))
	case max < 1:
		panic(fmt.Sprintf("keys: ByJSON: max is %d; want at least 1", max))
	}
	return func(r *http.Request) (string, bool) {
		if r.ContentLength > max {
			return unreadable, true
		}
		body, whole := jsonbody.Peek(r, max)
		if !whole {
			return unreadable, true
		}
		value, ok := valueAt(body, path)
		if !ok {
			return unreadable, true
		}
		return nonempty(strings.ToLower(strings.TrimSpace(value)))
	}
}

// valueAt returns the value at a path of a JSON object, or "" if it is missing or the body is
// empty. ok is false if the body is neither empty nor an object, or if a member of the path is
// there twice, or is neither an object nor, at the end, a value that the function text takes.
func valueAt(body []byte, path []string) (s string, ok bool) {
	value, ok := jsonbody.Value(body)
	if !ok || value == nil {
		return "", ok
	}
	for _, name := range path {
		if value[0] != '{' {
			return "", false
		}
		if value, ok = jsonbody.Member(value, name); !ok || value == nil || value[0] == 'n' {
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
		return jsonbody.Unquote(value), true
	case '{', '[', 't', 'f':
		return "", false
	}
	s = string(value) // so a value has one spelling: 4, not 4.0 or 4e0
	return s, s != "-0" && !strings.ContainsAny(s, ".eE")
}
