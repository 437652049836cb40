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

// ByJSON uses a field of the JSON request body as the key, such as the user name in a login
// request. The body must be an object. A field of a nested object is named by its path. For
// example, "params.name" is the tool that an MCP client calls. If a name contains a dot, escape the
// dot: "a\.b". As in encoding/json, names match regardless of case. The value must be a string, or
// a number without a fraction or exponent. The key is the value in lower case without surrounding
// spaces, so a client gets no fresh quota by sending "Ann@Example.com ". If your handler ignores
// other differences as well, such as dots, plus signs or accents, write a KeyFunc that also ignores
// them.
//
// ByJSON reads at most the first max bytes of the body. The handler can still read the whole body,
// and receives any read error that ByJSON encountered. The rule is charged before the rest of the
// body arrives. A slow client can delay its own request for as long as the server's ReadTimeout
// allows.
//
// If ByJSON cannot read the value, the key is "unreadable", so all such requests share one quota.
// This happens if the body is longer than max bytes, is truncated, is nested more deeply than
// encoding/json allows, or is not a JSON object (a JSON-RPC batch, for example, is an array). It
// also happens if the body contains the field twice, if the field's value has another type, or if
// the request declares a body but does not send it, as in forward auth. A body of unknown length
// (chunked) must be shorter than max bytes. ByJSON ignores the Content-Type, because many handlers
// do.
//
// A request has no key if the body is empty, if the field or an object on its path is missing or
// null, or if the field is an empty string. Use [weir.FirstOf] to give such requests another key.
//
// Anyone can spend another user's quota by sending that user's name: see [ByBasicAuthUser].
//
// For an outgoing request with a GetBody function, ByJSON reads the copy of the body that GetBody
// returns. ByJSON panics if the field's path or a name in it is empty, or if max is less than 1.
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
