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

		// Traefik, and nginx with the names of its variables.
		{`{"ClientHost":"192.0.2.1","ClientUsername":"-","RequestMethod":"GET","RequestHost":"a.example","RequestPath":"/x?y=1","StartUTC":"2026-01-02T15:04:05.25Z","StartLocal":"x","DownstreamStatus":200,"request_X-Forwarded-For":"203.0.113.9","request_User-Agent":"curl"}`, "JSON of Traefik 15:04:05.25 192.0.2.1  GET /x?y=1 a.example map[X-Forwarded-For:[203.0.113.9]]"},
		{`{"time_iso8601":"2026-01-02T15:04:05+00:00","remote_addr":"192.0.2.1","remote_user":"anna","request":"POST /a HTTP/1.1","status":"200","host":"a.example","http_x_forwarded_for":"-"}`, "JSON of nginx 15:04:05 192.0.2.1 anna POST /a a.example map[]"},
		{`{"time_iso8601":"2026-01-02T15:04:05+00:00","msec":1767366245.500,"remote_addr":"192.0.2.1","request_method":"GET","request_uri":"/b"}`, "JSON of nginx 15:04:05.5 192.0.2.1  GET /b  map[]"},
		{`{"msec":"1767366245.500","remote_addr":"192.0.2.1","request_method":"GET","request_uri":"/b","http_x_forwarded_for":"203.0.113.9, 198.51.100.1"}`, "JSON of nginx 15:04:05.5 192.0.2.1  GET /b  map[X-Forwarded-For:[203.0.113.9, 198.51.100.1]]"},
		// What follows the user agent is X-Forwarded-For only if it is one.
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" "203.0.113.9, 198.51.100.1"`, "Combined Log Format 15:04:05 192.0.2.1  GET /  map[User-Agent:[curl] X-Forwarded-For:[203.0.113.9, 198.51.100.1]]"},
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" "0.003"`, "Combined Log Format 15:04:05 192.0.2.1  GET /  map[User-Agent:[curl]]"},
		{`192.0.2.1 - - [02/Jan/2026:15:04:05 +0000] "GET / HTTP/1.1" 200 5 "-" "curl" 12 "api@docker" "http://10.0.0.5:80" 3ms`, "Combined Log Format 15:04:05 192.0.2.1  GET /  map[User-Agent:[curl]]"},
		// Envoy's default format and Istio's, with the examples of their pages.
		{`[2016-04-15T20:17:00.310Z] "POST /api/v1/locations HTTP/2" 204 - 154 0 226 100 "10.0.35.28" "nsq2http" "cc21d9b0-cf5c-432b-8c7e-98aeb7988cd2" "locations" "tcp://10.0.2.1:80"`, "Envoy's format 20:17:00.31 10.0.35.28  POST /api/v1/locations locations map[User-Agent:[nsq2http]]"},
		{`[2026-01-02T15:04:05.310Z] "GET / HTTP/1.1" 429 RL 0 18 0 - "203.0.113.9,198.51.100.1" "-" "cc21" "a.example" "-"`, "Envoy's format 15:04:05.31 198.51.100.1  GET / a.example map[X-Forwarded-For:[203.0.113.9]]"},
		{`[2026-01-02T15:04:05.310Z] "GET / HTTP/1.1" 200 - 0 18 0 - "-" "curl" "cc21" "a.example" "-"`, "Envoy's format 15:04:05.31 invalid IP  GET / a.example map[User-Agent:[curl]]"},
		{`[2020-11-25T21:26:18.409Z] "GET /status/418 HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "-" "curl/7.73.0-DEV" "84961386-6d84-929d-98bd-c5aee93b5c88" "httpbin:8000" "127.0.0.1:80" inbound|8000|| 127.0.0.1:41854 10.44.1.27:80 10.44.1.23:37652 outbound_.8000_._.httpbin.foo.svc.cluster.local default`, "Envoy's format 21:26:18.409 10.44.1.23  GET /status/418 httpbin:8000 map[User-Agent:[curl/7.73.0-DEV]]"},
		{`[2026-01-02T15:04:05.310Z] "- - -" 400 DPE 0 11 0 - "-" "-" "-" "-" "-"`, "no HTTP request"},
		{`[2026-01-02T15:04:05.310Z] "GET / HTTP/1.1" 200 - 0 18 0 - "203.0.113.9" "x" "198.51.100.1" "curl" "cc21" "a.example" "-"`, "the line begins as one of Envoy and is not in its default format"}, // a client has sent quotation marks
		{`[2026-01-02T15:04:05.310Z] "GET / HTTP/1.1" 200 - 0 18 0 - "unknown" "curl" "cc21" "a.example" "-"`, `the client is "unknown"; want an address`},
		// HAProxy's option httplog, with the examples of its manual, in a syslog and without one.
		{`Feb  6 12:14:14 localhost haproxy[14389]: 10.0.1.2:33317 [06/Feb/2009:12:14:14.655] http-in static/srv1 10/0/30/69/109 200 2750 - - ---- 1/1/1/1/0 0/0 {1wt.eu} {} "GET /index.html HTTP/1.1"`, "HAProxy's format 12:14:14.655 10.0.1.2  GET /index.html  map[]"},
		{`haproxy[674]: 127.0.0.1:33320 [15/Oct/2003:08:32:17.654] px-http px-http/srv1 9/0/7/14/+30 200 +243 - - ---- 3/3/3/3/0 0/0 "GET /image.iso HTTP/1.0"`, "HAProxy's format 08:32:17.654 127.0.0.1  GET /image.iso  map[]"},
		{`2001:db8::1:33313 [06/Feb/2009:12:14:14.655] px-http~ px-http/<NOSRV> -1/-1/-1/-1/+50001 408 +2750 - - cR-- 2/2/2/0/+2 0/0 "<BADREQ>"`, "no HTTP request"},
		{`::ffff:192.0.2.1:33313 [06/Feb/2009:12:14:14.655] px-http~ px-http/<NOSRV> 0/-1/-1/-1/0 429 188 - - PR-- 2/2/0/0/0 0/0 {} "GET /a#22b HTTP/1.1"`, "HAProxy's format 12:14:14.655 ::ffff:192.0.2.1  GET /a#22b  map[]"},
		{`{"level":"info","message":"hello"}`, "the JSON is not that of Caddy or Traefik, and has no remote_addr"},
		{`{"time_iso8601":"2026-01-02T15:04:05+00:00","remote_addr":"192.0.2.1","method":"GET","uri":"/b"}`, "the line has neither request nor request_method"},
		{`{"time_iso8601":"2026-01-02T15:04:05+00:00","remote_addr":"192.0.2.1","request_method":"GET","uri":"/b"}`, "the line has request_method and no request_uri"},
		{`{"time_iso8601":"2026-01-02T15:04:05+00:00","remote_addr":"192.0.2.1","request":""}`, "no HTTP request"},
		{`{"remote_addr":"192.0.2.1","request":"GET / HTTP/1.1"}`, `the time is ""`},
		{`{"remote_addr":{"a":1}}`, "want a line of JSON"},

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
	f.Add(`{"ClientHost":"192.0.2.1","RequestMethod":"GET","RequestPath":"/","StartUTC":"2026-01-02T15:04:05.25Z"}`)
	f.Add(`{"msec":"1767366245.500","remote_addr":"192.0.2.1","request_method":"GET","request_uri":"/b"}`)
	f.Add(`[2026-01-02T15:04:05.310Z] "GET / HTTP/1.1" 429 RL 0 18 0 - "203.0.113.9,198.51.100.1" "-" "cc21" "a.example" "-"`)
	f.Add(`[2026-01-02T15:04:05.310Z] " / HTTP/1.1" 418 - via_upstream - "-" 0 135 3 1 "-" "curl" "84" "a" "127.0.0.1:80" i 127.0.0.1:4 10.44.1.27:80 10.44.1.23:37652 o default`)
	f.Add(`192.0.2.1:33313 [06/Feb/2009:12:14:14.655] in srv/<NOSRV> 0/-1/-1/-1/0 429 188 - - PR-- 2/2/0/0/0 0/0 {} " /a HTTP/1.1"`)
	f.Fuzz(func(t *testing.T, line string) {
		for _, format := range []Format{0, Common, Combined, Envoy, HAProxy, Caddy, Traefik, Nginx} {
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
