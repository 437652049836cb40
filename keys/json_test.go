package keys_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/memstore"
)

// A watched is a body that counts how many of its bytes are read.
type watched struct {
	io.Reader
	n      int
	closed bool
}

func (b *watched) Read(p []byte) (n int, err error) {
	n, err = b.Reader.Read(p)
	b.n += n
	return n, err
}

func (b *watched) Close() error { b.closed = true; return nil }

// TestByJSON checks the key of each body, with and without a known length, and that the
// handler reads the body unchanged.
func TestByJSON(t *testing.T) {
	const max = 64
	deep := strings.Repeat("[", max/2-4) + strings.Repeat("]", max/2-4)
	for _, c := range []struct {
		body string
		want string // "-": the rule does not apply
	}{
		{`{"email":"ann@example.com","password":"x"}`, "ann@example.com"},
		{` { "password" : [1,{"email":2}] , "email" : "ann" } `, "ann"},
		{`{"email":" Ann@Example.COM\n"}`, "ann@example.com"},
		{`{"EMail":"ann"}`, "ann"},
		{`{"\u0065mail":"\u0061nn"}`, "ann"},
		{`{"email":42}`, "42"},
		{`{"email":"42"}`, "42"},
		{`{"email":12345678901234567890}`, "12345678901234567890"},
		{`{"email":-1}`, "-1"},

		{"", "-"},
		{`{}`, "-"},
		{`{"user":"ann"}`, "-"},
		{`{"user":{"email":"ann"}}`, "-"},
		{`{"email":null}`, "-"},
		{`{"email":""}`, "-"},
		{`{"email":"  "}`, "-"},

		{`{"email":"ann","email":"ben"}`, "unreadable"},
		{`{"email":"ann","EMAIL":"ann"}`, "unreadable"},
		{`{"email":"ann","email":null}`, "unreadable"},
		{`{"email":4.0}`, "unreadable"},
		{`{"email":4e0}`, "unreadable"},
		{`{"email":-0}`, "unreadable"},
		{`{"email":true}`, "unreadable"},
		{`{"email":["ann"]}`, "unreadable"},
		{`{"email":{"email":"ann"}}`, "unreadable"},
		{`[{"email":"ann"}]`, "unreadable"},
		{`"ann"`, "unreadable"},
		{`null`, "unreadable"},
		{` `, "unreadable"},
		{`{"email":"ann"} x`, "unreadable"},
		{`{"email":"ann"}{}`, "unreadable"},
		{`{"email":"ann",}`, "unreadable"},
		{`{"email":"ann`, "unreadable"},
		{`{'email':'ann'}`, "unreadable"},
		{"\ufeff" + `{"email":"ann"}`, "unreadable"},
		{"email=ann", "unreadable"},
		{`{"a":` + deep + `}`, "-"},
		{strings.Repeat("[", max), "unreadable"},
		{`{"email":"` + strings.Repeat("a", max-12) + `"}`, strings.Repeat("a", max-12)}, // max bytes, which is too long if the length is unknown
		{`{"email":"` + strings.Repeat("a", max-11) + `"}`, "unreadable"},
		{`{"email":"ann","password":"` + strings.Repeat("a", 1<<20) + `"}`, "unreadable"},
	} {
		for _, chunked := range []bool{false, true} {
			checkByJSON(t, c.body, chunked, max, c.want)
		}
	}
}

// TestByJSONPath: the key is at the end of a path of objects.
func TestByJSONPath(t *testing.T) {
	for _, c := range []struct{ path, body, want string }{
		{"params.name", `{"jsonrpc":"2.0","id":1,"method":"tools/call","params":{"arguments":{"name":"x"},"name":"Search"}}`, "search"},
		{"params.name", `{"Params":{"NAME":"search"}}`, "search"},
		{"params.name", `{"params.name":"x","params":{"name":7}}`, "7"},
		{"a.b.c", `{"a":{"b":{"c":"d"}}}`, "d"},
		{`a\.b`, `{"a.b":"c","a":{"b":"d"}}`, "c"},
		{`a\.b.c`, `{"a.b":{"c":"d"}}`, "d"},
		{`a\b`, `{"a\\b":"c"}`, "c"},

		{"params.name", `{"method":"initialize","name":"x"}`, "-"},
		{"params.name", `{"params":null}`, "-"},
		{"params.name", `{"params":{}}`, "-"},
		{"params.name", `{"params":{"name":null}}`, "-"},
		{"params.name", ``, "-"},

		{"params.name", `[{"params":{"name":"search"}}]`, "unreadable"},
		{"params.name", `{"params":["search"]}`, "unreadable"},
		{"params.name", `{"params":"name"}`, "unreadable"},
		{"params.name", `{"params":{"name":{}}}`, "unreadable"},
		{"params.name", `{"params":{"name":"a"},"params":{"name":"b"}}`, "unreadable"},
		{"params.name", `{"params":{"name":"a"},"Params":null}`, "unreadable"},
		{"params.name", `{"params":{"name":"a","Name":"b"}}`, "unreadable"},
		{"params.name", `null`, "unreadable"},
	} {
		key, ok := keys.ByJSON(c.path, 1<<10)(httptest.NewRequest("POST", "/", strings.NewReader(c.body)))
		if !ok {
			key = "-"
		}
		if key != c.want {
			t.Errorf("%s in %s: got %q, want %q", c.path, c.body, key, c.want)
		}
	}
}

// checkByJSON sends a body to two rules with a key of ByJSON, and then reads it.
func checkByJSON(t *testing.T, text string, chunked bool, max int, want string) {
	t.Helper()
	body := &watched{Reader: iotest.HalfReader(strings.NewReader(text))}
	r := httptest.NewRequest("POST", "/login", body)
	r.ContentLength = int64(len(text))
	if chunked {
		r.ContentLength = -1
	}
	if chunked && len(text) == max {
		want = "unreadable"
	}
	byEmail := keys.ByJSON("email", int64(max))
	for range 2 { // two rules read the body
		key, ok := byEmail(r)
		if !ok {
			key = "-"
		}
		if key != want {
			t.Errorf("%.60q, chunked %v: got %q, want %q", text, chunked, key, want)
		}
	}
	if body.n > max {
		t.Errorf("%.60q, chunked %v: %d bytes were read, want %d at most", text, chunked, body.n, max)
	}
	if got, err := io.ReadAll(r.Body); string(got) != text || err != nil {
		t.Errorf("%.60q, chunked %v: the handler reads %.60q, %v", text, chunked, got, err)
	}
	if r.Body.Close(); !body.closed {
		t.Errorf("%.60q, chunked %v: the body was not closed", text, chunked)
	}
}

// TestByJSONPanics: ByJSON panics on an error in its arguments.
func TestByJSONPanics(t *testing.T) {
	for _, call := range []func(){func() { keys.ByJSON("", 1) }, func() { keys.ByJSON("a..b", 1) }, func() { keys.ByJSON("a.", 1) }, func() { keys.ByJSON("email", 0) }} {
		func() {
			defer func() {
				if got := fmt.Sprint(recover()); !strings.HasPrefix(got, "keys: ByJSON: ") {
					t.Errorf("got %q", got)
				}
			}()
			call()
		}()
	}
}

// TestByJSONBroken: if a body is cut off, the handler reads the same bytes and gets the
// same errors as without ByJSON. It also gets the error of http.MaxBytesReader.
func TestByJSONBroken(t *testing.T) {
	cut := errors.New("cut")
	read := func(key weir.KeyFunc) string {
		r := httptest.NewRequest("POST", "/", io.MultiReader(strings.NewReader(`{"email":"ann"}`), iotest.ErrReader(cut)))
		if key != nil {
			if k, ok := key(r); k != "unreadable" || !ok {
				t.Errorf("got %q, %v", k, ok)
			}
		}
		got, err := io.ReadAll(r.Body)
		_, again := r.Body.Read(make([]byte, 1))
		return fmt.Sprintf("%s, %v, %v", got, err, again)
	}
	if got, want := read(keys.ByJSON("email", 64)), read(nil); got != want {
		t.Errorf("got %s, want %s", got, want)
	}
	r := httptest.NewRequest("POST", "/", nil)
	r.Body = http.MaxBytesReader(nil, io.NopCloser(strings.NewReader(`{"email":"ann"}`)), 5)
	keys.ByJSON("email", 64)(r)
	var tooLarge *http.MaxBytesError
	if got, err := io.ReadAll(r.Body); string(got) != `{"ema` || !errors.As(err, &tooLarge) {
		t.Errorf("got %q, %v; want the error of MaxBytesReader", got, err)
	}
}

// TestByJSONServer sends bodies to a real server: with a known length, in chunks, and cut off
// by a client that hangs up. The limiter counts their keys, and the handler reads every
// admitted body unchanged.
func TestByJSONServer(t *testing.T) {
	type seen struct{ text, err string }
	answers := make(chan seen, 1)
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "login", Key: keys.ByJSON("email", 1<<10), Limits: []weir.Limit{algorithms.FixedWindow(2, 1000*time.Hour)},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(limiter.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		r.Body.Close()
		_, closed := r.Body.Read(make([]byte, 1))
		if !errors.Is(closed, http.ErrBodyReadAfterClose) {
			t.Errorf("after Close: got %v", closed)
		}
		answers <- seen{string(text), fmt.Sprint(err)}
	})))
	defer server.Close()
	long := `{"email":"ann","x":"` + strings.Repeat("y", 300<<10) + `"}`
	for _, c := range []struct {
		body   string
		length int64
		status int
	}{
		{`{"email":"ann"}`, 15, 200}, {`{"email":"Ann"}`, -1, 200}, {`{"email":"ann"}`, 15, 429},
		{long, int64(len(long)), 200}, {long, -1, 200}, {`{"email":1.5}`, -1, 429},
		{`{"email":"ben"}`, -1, 200},
	} {
		r, _ := http.NewRequest("POST", server.URL, io.NopCloser(strings.NewReader(c.body)))
		r.ContentLength = c.length
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != c.status {
			t.Errorf("%.40s, length %d: got %d, want %d", c.body, c.length, res.StatusCode, c.status)
		}
		if c.status == 200 {
			if got := <-answers; got != (seen{c.body, "<nil>"}) {
				t.Errorf("%.40s: the handler read %.40q, %s", c.body, got.text, got.err)
			}
		}
	}
	conn, err := net.Dial("tcp", server.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	io.WriteString(conn, "POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 20\r\n\r\n{\"email\":")
	conn.(*net.TCPConn).CloseWrite()
	// The quota of unreadable bodies is spent.
	if got, _ := io.ReadAll(conn); !bytes.HasPrefix(got, []byte("HTTP/1.1 429 ")) {
		t.Errorf("a body that is cut off: got %.60q, want 429", got)
	}
	conn.Close()
}

// TestByJSONElsewhere: a request of forward auth, which announces a body that is not sent,
// has the key "unreadable".
func TestByJSONElsewhere(t *testing.T) {
	for _, c := range []struct {
		length   int64
		encoding []string
		want     string
	}{{0, nil, ""}, {15, nil, "unreadable"}, {0, []string{"chunked"}, "unreadable"}} {
		r := httptest.NewRequest("POST", "/", nil)
		r.Body, r.ContentLength, r.TransferEncoding = http.NoBody, c.length, c.encoding
		if key, ok := keys.ByJSON("email", 64)(r); key != c.want || ok != (c.want != "") {
			t.Errorf("%d bytes, %q: got %q, %v; want %q", c.length, c.encoding, key, ok, c.want)
		}
	}
}

// TestByJSONOutbound: ByJSON does not change an outgoing request.
func TestByJSONOutbound(t *testing.T) {
	r, _ := http.NewRequest("POST", "http://example.com", strings.NewReader(`{"email":"ann"}`))
	body := r.Body
	if key, ok := keys.ByJSON("email", 64)(r); key != "ann" || !ok || r.Body != body {
		t.Errorf("got %q, %v, another body: %v", key, ok, r.Body != body)
	}
	if got, _ := io.ReadAll(r.Body); string(got) != `{"email":"ann"}` {
		t.Errorf("got %q", got)
	}
}

func ExampleByJSON() {
	key := keys.ByJSON("email", 4096)
	for _, body := range []string{`{"email": "Ann@Example.com"}`, `{}`, `{"email": "ann", "email": "ben"}`} {
		weirtest.Show(key, httptest.NewRequest("POST", "/login", strings.NewReader(body)))
	}
	// Output:
	// "ann@example.com" true
	// "" false
	// "unreadable" true
}

// decoded does what ByJSON does with a body, token by token. It returns the value at a path of a
// JSON object, or "" if it is missing or the body is empty. ok is false if the body is neither
// empty nor an object, or if a member of the path is there twice or has a value of another type.
func decoded(body []byte, field string, path ...string) (value string, ok bool) {
	if len(body) == 0 {
		return "", true
	}
	if !json.Valid(body) {
		return "", false
	}
	d := json.NewDecoder(bytes.NewReader(body))
	d.UseNumber()
	if t, _ := d.Token(); t != json.Delim('{') {
		return "", false
	}
	var found json.RawMessage
	for d.More() {
		name, _ := d.Token()
		var v json.RawMessage
		d.Decode(&v)
		if name, _ := name.(string); !strings.EqualFold(name, field) {
			continue
		}
		if found != nil {
			return "", false
		}
		found = v
	}
	if len(path) > 0 && found != nil && string(found) != "null" {
		return decoded(found, path[0], path[1:]...)
	}
	if found == nil {
		return "", true
	}
	d = json.NewDecoder(bytes.NewReader(found))
	d.UseNumber()
	t, _ := d.Token()
	return tokenText(t)
}

// tokenText returns a string, or a number without fraction and exponent, as text. It returns ""
// for null. ok is false for any other token, and for -0.
func tokenText(t json.Token) (s string, ok bool) {
	switch t := t.(type) {
	case nil:
		return "", true
	case string:
		return t, true
	case json.Number: // so a value has one spelling: 4, not 4.0 or 4e0
		return t.String(), t != "-0" && !strings.ContainsAny(t.String(), ".eE")
	}
	return "", false
}

// FuzzByJSON: ByJSON reads at most max bytes of any body, finds the value that a decoder of
// encoding/json finds, never returns an empty key with ok, and the handler reads the body
// unchanged.
func FuzzByJSON(f *testing.F) {
	for _, s := range []string{``, `{}`, `{"a":1}`, `{"a":"x","A":2}`, `[[[`, `{"a":"\u0000"}`, ` { "b" : [ { "a" : 1 } , "]}\\" ] , "\u0061" : "\"x\ud800" } `, "{\"a\":\"\xff\xff\"}", `{"b":{},"a":-1.5}`, `{"b":true,"a":null}`,
		`{"b":{"a":{"a":"x"},"c":[{}]}}`, `{"b":{"a":1},"B":0}`, `{"b":null}`, `{"b":[{"a":1}]}`} {
		f.Add(s, true)
	}
	f.Fuzz(func(t *testing.T, body string, chunked bool) {
		const max = 100
		watch := &watched{Reader: strings.NewReader(body)}
		r := httptest.NewRequest("POST", "/", watch)
		if r.ContentLength = int64(len(body)); chunked {
			r.ContentLength = -1
		}
		key, ok := keys.ByJSON("a", max)(r)
		if ok == (key == "") || watch.n > max {
			t.Errorf("got %q, %v after %d bytes", key, ok, watch.n)
		}
		want, readable := decoded([]byte(body), "a")
		if want = strings.ToLower(strings.TrimSpace(want)); !readable || len(body) > max || chunked && len(body) == max {
			want = "unreadable"
		}
		if key != want {
			t.Errorf("%q: got %q, want %q", body, key, want)
		}
		if got, err := io.ReadAll(r.Body); string(got) != body || err != nil {
			t.Errorf("got %q, %v", got, err)
		}
		inside, _ := keys.ByJSON("b.a", 1<<20)(httptest.NewRequest("POST", "/", strings.NewReader(body)))
		if want, readable = decoded([]byte(body), "b", "a"); !readable {
			want = "unreadable"
		}
		if want = strings.ToLower(strings.TrimSpace(want)); inside != want {
			t.Errorf("%q: b.a: got %q, want %q", body, inside, want)
		}
	})
}
