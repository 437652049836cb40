// Package accesslog reads the access logs of web servers, and replays them through the rules of
// a Limiter: it says which of the requests the rules would have refused.
package accesslog

import (
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// A Format is how a log writes requests.
type Format int

const (
	Common   Format = iota + 1 // NCSA Common Log Format: the default of Apache
	Combined                   // the same with Referer and User-Agent: the default of nginx
	Caddy                      // the JSON lines of Caddy
)

func (f Format) String() string {
	return [...]string{"", "Common Log Format", "Combined Log Format", "JSON of Caddy"}[f]
}

// has reports whether the lines of a log have what the key or the cost of a rule reads, in the
// words of config.File.Reads.
func (f Format) has(read string) bool {
	switch read {
	case "ip", "global", "method", "basic-auth-user":
		return true
	}
	name, ok := strings.CutPrefix(read, "header:")
	switch http.CanonicalHeaderKey(name) {
	case "Authorization", "Proxy-Authorization", "Cookie": // Caddy writes REDACTED
		return false
	case "Referer", "User-Agent":
		return ok && f >= Combined
	}
	return ok && f == Caddy
}

// An entry is a request of a log.
type entry struct {
	at     time.Time
	peer   netip.Addr // not valid if the peer has no address, as on a Unix socket
	user   string
	method string
	uri    string
	host   string
	header http.Header
}

// errNoRequest is the error of a line that has no HTTP request: what a client sent was none, or
// the line is about something else.
var errNoRequest = errors.New("no HTTP request")

// parse reads a line. It returns errNoRequest, or another error if the line is not in the format.
// If f is 0, any format will do, and parse returns the format of the line.
func parse(line string, f Format) (*entry, Format, error) {
	if f == Caddy || f == 0 && strings.HasPrefix(line, "{") {
		e, err := parseCaddy(line)
		return e, Caddy, err
	}
	e, is, err := parseCommon(line)
	if f == 0 {
		f = is
	}
	return e, f, err
}

// layout is the form of the time in the Common Log Format.
const layout = "02/Jan/2006:15:04:05 -0700"

// parseCommon reads a line of the Common Log Format,
//
//	host ident user [time] "request" status bytes
//
// which may begin with the name of a virtual host, as that of Apache's vhost_combined, and go on
// with "referer" "user agent" and, as nginx's format main, with "X-Forwarded-For". Clients choose
// the user and may write spaces and brackets into it, but no server writes a quotation mark of a
// client unescaped. Therefore the time ends where the first `] "` is.
func parseCommon(line string) (*entry, Format, error) {
	before, rest, ok := strings.Cut(line, `] "`)
	i := strings.LastIndexByte(before, '[')
	if !ok || i < 0 {
		return nil, Common, errors.New(`want a line such as 192.0.2.1 - - [02/Jan/2006:15:04:05 -0700] "GET / HTTP/1.1" 200 512`)
	}
	e := &entry{header: http.Header{}}
	var err error
	if e.at, err = time.Parse(layout, before[i+1:]); err != nil {
		return nil, Common, fmt.Errorf("the time is %s; want one such as %s", quote(before[i+1:]), layout)
	}
	if err := e.who(strings.TrimSuffix(before[:i], " ")); err != nil {
		return nil, Common, err
	}
	request, rest, ok := quoted(rest)
	status, rest, _ := strings.Cut(strings.TrimPrefix(rest, " "), " ")
	if code, err := strconv.Atoi(status); !ok || err != nil || code < 0 || code > 999 {
		return nil, Common, errors.New("the line has no request in quotation marks and a status behind it")
	}
	f := Common
	_, rest, _ = strings.Cut(rest, ` "`) // after the bytes
	for _, name := range []string{"Referer", "User-Agent", "X-Forwarded-For"} {
		value, after, ok := quoted(rest)
		if !ok {
			break
		}
		f, rest = Combined, strings.TrimPrefix(after, ` "`)
		if value != "-" {
			e.header[name] = []string{value}
		}
	}
	e.method, request, _ = strings.Cut(request, " ")
	e.uri, request, _ = strings.Cut(request, " ")
	if !strings.HasPrefix(request, "HTTP/") || e.method == "" || e.uri == "" {
		return nil, f, errNoRequest
	}
	return e, f, e.valid()
}

// who reads the fields before the time.
func (e *entry) who(s string) error {
	host, rest, _ := strings.Cut(s, " ")
	peer, err := netip.ParseAddr(host)
	if err != nil && host != "unix:" {
		virtual := host
		if host, rest, _ = strings.Cut(rest, " "); virtual != "" {
			peer, err = netip.ParseAddr(host)
		}
		if err != nil {
			return fmt.Errorf("the client is %s; want an address", quote(virtual))
		}
		e.host = virtual
	}
	e.peer = peer
	if _, e.user, _ = strings.Cut(rest, " "); e.user == "-" {
		e.user = ""
	}
	return nil
}

// quoted returns a text up to its closing quotation mark, and what follows the mark. In the text,
// nginx writes a quotation mark as \x22 and Apache as \".
func quoted(s string) (text, after string, ok bool) {
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '\\':
			i++
		case '"':
			return s[:i], s[i+1:], true
		}
	}
	return "", s, false
}

// A caddyLine is a line that Caddy writes about a request.
type caddyLine struct {
	TS       any    `json:"ts"`
	Duration any    `json:"duration"`
	UserID   string `json:"user_id"`
	Request  *struct {
		RemoteIP   string      `json:"remote_ip"`
		RemoteAddr string      `json:"remote_addr"` // before Caddy 2.5
		Method     string      `json:"method"`
		Host       string      `json:"host"`
		URI        string      `json:"uri"`
		Headers    http.Header `json:"headers"`
	} `json:"request"`
}

// parseCaddy reads a line of Caddy. The time of the line is when the request ended, so the
// duration, in seconds, is subtracted.
func parseCaddy(line string) (*entry, error) {
	var l caddyLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return nil, fmt.Errorf("want a line of JSON: %v", err)
	}
	if l.Request == nil || l.Request.Method == "" {
		return nil, errNoRequest
	}
	r := l.Request
	e := &entry{user: l.UserID, method: r.Method, uri: r.URI, host: r.Host, header: http.Header{}}
	for name, values := range r.Headers {
		e.header[http.CanonicalHeaderKey(name)] = values
	}
	var err error
	if e.at, err = instant(l.TS); err != nil {
		return nil, err
	}
	if d, ok := l.Duration.(float64); ok && d > 0 && d < 1e6 {
		e.at = e.at.Add(-time.Duration(d * float64(time.Second)))
	}
	if r.RemoteIP == "" {
		peer, err := netip.ParseAddrPort(r.RemoteAddr)
		if e.peer = peer.Addr(); err != nil {
			return nil, fmt.Errorf("the client is %s; want an address", quote(r.RemoteAddr))
		}
	} else if e.peer, err = netip.ParseAddr(r.RemoteIP); err != nil && r.RemoteIP != "@" {
		return nil, fmt.Errorf("the client is %s; want an address", quote(r.RemoteIP))
	}
	return e, e.valid()
}

// instant reads a time as Caddy writes it: a number of seconds, milliseconds or nanoseconds since
// 1970, or a text.
func instant(v any) (time.Time, error) {
	switch v := v.(type) {
	case float64:
		for _, unit := range []float64{1e6, 1e3, 1e-3} { // in µs
			if us := v * unit; us >= 0 && us < latest {
				return time.UnixMicro(int64(math.Round(us))).UTC(), nil
			}
		}
	case string:
		for _, layout := range []string{time.RFC3339Nano, "2006-01-02T15:04:05.999Z0700", "2006/01/02 15:04:05.999", layout} {
			if t, err := time.Parse(layout, v); err == nil {
				return t, nil
			}
		}
	}
	return time.Time{}, fmt.Errorf("the time is %s; want a number of seconds since 1970 or a time such as %s", quote(fmt.Sprint(v)), time.RFC3339)
}

// latest is the first instant that no log has, the year 2200, in µs since 1970.
const latest = 7_258_118_400_000_000

// valid returns an error if no limit can be counted at the time of the entry.
func (e *entry) valid() error {
	if us := e.at.UnixMicro(); us <= 0 || us >= latest {
		return fmt.Errorf("the time is %s; want one from 1970 to 2199", e.at.Format(time.RFC3339))
	}
	return nil
}

// quote quotes a text of a log for an error, cut to 60 bytes.
func quote(s string) string { return strconv.Quote(s[:min(len(s), 60)]) }
