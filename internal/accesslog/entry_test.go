package accesslog

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// TestParse: what each line says, or why it cannot be read.
func TestParse(t *testing.T) {
	for _, tt := range []struct{ line, want string }{
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 -0700] "GET /a?b HTTP/1.1" 200 512`, "Common Log Format 22:04:05 192.0.2.1  GET /a?b  map[]"},
		{`2001:db8::1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/2.0" 200 -`, "Common Log Format 15:04:05 2001:db8::1  GET /  map[]"},
		{`192.0.2.1 - anna [02/Jan/2026:15:04:05 +0530] "POST / HTTP/1.1" 429 0 "http://a/" "curl"`, "Combined Log Format 09:34:05 192.0.2.1 anna POST /  map[Referer:[http://a/] User-Agent:[curl]]"},
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5 "-" "a \x22b\" c" "203.0.113.1, 10.0.0.1"`, `Combined Log Format 15:04:05 192.0.2.1  GET /  map[User-Agent:[a \x22b\" c] X-Forwarded-For:[203.0.113.1, 10.0.0.1]]`},
		{`example.com:443 192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5 "-" "-"`, "Combined Log Format 15:04:05 192.0.2.1  GET / example.com:443 map[]"},
		{`unix: - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5`, "Common Log Format 15:04:05 invalid IP  GET /  map[]"},
		// A client chooses the user, and may not choose the time or the address by it.
		{`192.0.2.1 - a [01/Jan/2020:00:00:00 +0000] b [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5`, "Common Log Format 15:04:05 192.0.2.1 a [01/Jan/2020:00:00:00 +0000] b GET /  map[]"},
		{`192.0.2.1 - a] \x22GET [x [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5`, `Common Log Format 15:04:05 192.0.2.1 a] \x22GET [x GET /  map[]`},
		{`192.0.2.1 - 198.51.100.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5`, "Common Log Format 15:04:05 192.0.2.1 198.51.100.1 - - GET /  map[]"},
		{`{"ts":1767366245.5,"duration":0.25,"user_id":"anna","request":{"remote_ip":"192.0.2.1","method":"GET","host":"a.example","uri":"/","headers":{"x-tenant":["b"]}}}`, "JSON of Caddy 15:04:05.25 192.0.2.1 anna GET / a.example map[X-Tenant:[b]]"},
		{`{"ts":"2026-01-02T15:04:05.500+0100","request":{"remote_addr":"[2001:db8::1]:4","method":"GET","uri":"/"}}`, "JSON of Caddy 14:04:05.5 2001:db8::1  GET /  map[]"},
		{`{"ts":1767366245500,"request":{"remote_ip":"192.0.2.1","method":"GET","uri":"/"}}`, "JSON of Caddy 15:04:05.5 192.0.2.1  GET /  map[]"},
		{`{"ts":1767366245500000000,"request":{"remote_ip":"192.0.2.1","method":"GET","uri":"/"}}`, "JSON of Caddy 15:04:05.5 192.0.2.1  GET /  map[]"},

		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "\x16\x03\x01" 400 157 "-" "-"`, "no HTTP request"},
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "-" 408 0 "-" "-"`, "no HTTP request"},
		{`{"ts":1767366245.5,"logger":"admin","msg":"started"}`, "no HTTP request"},
		{`rubbish`, "want a line such as 192.0.2.1"},
		{`192.0.2.1 - - [02/Jan/2026] "GET / HTTP/1.1" 200 5`, `the time is "02/Jan/2026"`},
		{`192.0.2.1 - - [02/Jan/1960:15:04:05 +0000] "GET / HTTP/1.1" 200 5`, "the time is 1960-01-02T15:04:05Z; want one from 1970 to 2199"},
		{`host.example - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5`, `the client is "host.example"; want an address`},
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1`, "no request in quotation marks"},
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" "http://a/" 200`, "no request in quotation marks"},
		{`{"ts":1767366245.5,"request":{"remote_ip":"a","method":"GET"}}`, `the client is "a"; want an address`},
		{`{"ts":-1,"request":{"remote_ip":"192.0.2.1","method":"GET"}}`, `the time is "-1"`},
		{`{"ts":`, "want a line of JSON"},
	} {
		e, f, err := parse(tt.line, 0)
		if err != nil {
			if !strings.Contains(err.Error(), tt.want) {
				t.Errorf("%s: got %v, want %s", tt.line, err, tt.want)
			}
			continue
		}
		if got := fmt.Sprint(f, " ", e.at.UTC().Format("15:04:05.999"), " ", e.peer, " ", e.user, " ", e.method, " ", e.uri, " ", e.host, " ", e.header); got != tt.want {
			t.Errorf("%s: got\n%s, want\n%s", tt.line, got, tt.want)
		}
	}
}

// FuzzParse: whatever a line has, parse returns an entry that can be replayed or an error.
func FuzzParse(f *testing.F) {
	f.Add(`192.0.2.1 - anna [02/Jan/2026:15:04:05 +0530] "POST / HTTP/1.1" 429 0 "http://a/" "curl"`)
	f.Add(`{"ts":1767366245.5,"duration":0.25,"request":{"remote_ip":"192.0.2.1","method":"GET","host":"a","uri":"/","headers":{"X":["b"]}}}`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, format := range []Format{0, Common, Combined, Caddy} {
			e, is, err := parse(line, format)
			if format != 0 && is != format {
				t.Errorf("%q: a log of %v has a line of %v", line, format, is)
			}
			if err == nil && (e.at.UnixMicro() <= 0 || e.at.UnixMicro() >= latest || e.method == "") {
				t.Errorf("%q: got %+v", line, e)
			}
			if err != nil && !errors.Is(err, errNoRequest) && len(err.Error()) > 500 {
				t.Errorf("%q: an error of %d bytes", line, len(err.Error()))
			}
		}
	})
}

// FuzzWhatClientsChoose: the user, the request, the referrer and the user agent of a client change
// neither the address nor the time of its line, if the server escapes them as nginx does.
func FuzzWhatClientsChoose(f *testing.F) {
	f.Add("anna", "/", "a] \"b", "[01/Jan/2020:00:00:00 +0000] \"")
	f.Add(`" [`, `\`, "\\\"", "\n192.0.2.2 - - ")
	f.Fuzz(func(t *testing.T, user, uri, referer, agent string) {
		const at = "25/Nov/2026:10:00:00 +0100"
		line := fmt.Sprintf(`192.0.2.1 - %s [%s] "GET /%s HTTP/1.1" 200 5 "%s" "%s"`, nginxEscape(user), at, nginxEscape(strings.ReplaceAll(uri, " ", "")), nginxEscape(referer), nginxEscape(agent))
		e, format, err := parse(line, 0)
		want, _ := time.Parse(layout, at)
		if err != nil || format != Combined || e.peer != netip.MustParseAddr("192.0.2.1") || !e.at.Equal(want) || e.method != "GET" {
			t.Errorf("%s: got %+v, %v, %v", line, e, format, err)
		}
	})
}

// nginxEscape escapes a variable of a log_format of nginx: with \xXX the quotation mark, the
// backslash, and what is below 32 or above 126. An empty variable is -.
func nginxEscape(s string) string {
	if s == "" {
		return "-"
	}
	var b strings.Builder
	for _, c := range []byte(s) {
		if c == '"' || c == '\\' || c < 32 || c > 126 {
			fmt.Fprintf(&b, `\x%02X`, c)
		} else {
			b.WriteByte(c)
		}
	}
	return b.String()
}
