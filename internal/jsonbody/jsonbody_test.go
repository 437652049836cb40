package jsonbody

import (
	"io"
	"net/http/httptest"
	"strings"
	"testing"
)

// TestIs: a name matches as the most lenient reader matches it.
func TestIs(t *testing.T) {
	for _, c := range []struct {
		inBody, name string
		want         bool
	}{
		{`"user"`, "user", true},
		{`"USER"`, "user", true},
		{`"u-ser"`, "user", true},
		{`"_u__SER-"`, "user", true},
		{`"\u0075\u002dser"`, "user", true},
		{"\"u\u017fer\"", "user", true},   // the long s of encoding/json
		{"\"to\u212aen\"", "token", true}, // the sign of Kelvin
		{`"username"`, "user_name", true},
		{`"user-name"`, "user_name", true},
		{`"ÄRGER"`, "ärger", true},
		{`"use"`, "user", false},
		{`"users"`, "user", false},
		{`"user "`, "user", false},
		{`"u.ser"`, "user", false},
		{`""`, "user", false},
		{`"-"`, "_", true},
		{`"\ud800"`, "user", false},
	} {
		if got := Matches([]byte(c.inBody), c.name); got != c.want {
			t.Errorf("%s, %s: got %v, want %v", c.inBody, c.name, got, c.want)
		}
	}
}

// TestIsAllocates: a name is compared without allocations, because each name of a body is compared
// with each name that rules read.
func TestIsAllocates(t *testing.T) {
	for _, inBody := range []string{`"messages"`, `"max_completion_tokens"`, `"Max-Tokens"`, `"max_tokens"`} {
		b := []byte(inBody)
		if n := testing.AllocsPerRun(100, func() { Matches(b, "max_tokens") }); n != 0 {
			t.Errorf("%s: %v allocations, want 0", inBody, n)
		}
	}
}

// TestOnce: a body is read and parsed once, until the handler reads it, and a longer or shorter
// Peek sees what it would see alone.
func TestOnce(t *testing.T) {
	const text = `{"model":"m","n":1}`
	r := httptest.NewRequest("POST", "/", strings.NewReader(text))
	r.ContentLength = -1
	first := Peek(r, 100)
	value, ok := first.Value()
	if string(value) != text || !ok || Peek(r, 100) != first || Peek(r, 1000) != first {
		t.Errorf("got %s, %v, and another Text", value, ok)
	}
	for max, want := range map[int64]string{5: text[:5], int64(len(text)): text} {
		if short := Peek(r, max); string(short.Head) != want || short.Whole {
			t.Errorf("%d bytes: got %s, whole %v", max, short.Head, short.Whole)
		}
	}
	r = httptest.NewRequest("POST", "/", strings.NewReader(text))
	if short := Peek(r, 5); short.Whole {
		t.Errorf("got %+v", short)
	}
	if long := Peek(r, int64(len(text))); string(long.Head) != text || !long.Whole || Peek(r, 1000).Head == nil {
		t.Errorf("got %+v", long)
	}
	io.CopyN(io.Discard, r.Body, 2)
	if rest := Peek(r, 1000); string(rest.Head) != text[2:] || !rest.Whole {
		t.Errorf("after a handler has read 2 bytes: got %+v", rest)
	}
	if rest, err := io.ReadAll(r.Body); string(rest) != text[2:] || err != nil {
		t.Errorf("the handler reads %s, %v", rest, err)
	}
}
