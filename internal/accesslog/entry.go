// Package accesslog reads the access logs of web servers, and replays them through the rules of a
// Limiter, to find out which of the requests the rules would have refused.
package accesslog

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/netip"
	"regexp"
	"strconv"
	"strings"
	"time"
)

// A Format is the format of a log's lines.
type Format int

const (
	Common   Format = iota + 1 // NCSA Common Log Format: the default of Apache
	Combined                   // the same with Referer and User-Agent: the default of nginx
	Envoy                      // Envoy's default, or Istio's
	HAProxy                    // HAProxy's option httplog
	Caddy                      // the JSON lines of Caddy
	Traefik                    // the JSON lines of Traefik
	Nginx                      // JSON lines with the names of nginx's variables
)

func (f Format) String() string {
	return [...]string{"", "Common Log Format", "Combined Log Format", "Envoy's format", "HAProxy's format", "JSON of Caddy", "JSON of Traefik",
		"JSON of nginx"}[f]
}

// has reports whether the lines of a log contain a part of a request that the key or the cost of a
// rule reads. The parts have the names that config.File.Reads returns.
func (f Format) has(read string) bool {
	switch read {
	case "ip", "global", "method":
		return true
	case "basic-auth-user":
		return f != Envoy && f != HAProxy
	}
	name, ok := strings.CutPrefix(read, "header:")
	switch http.CanonicalHeaderKey(name) {
	case "Authorization", "Proxy-Authorization", "Cookie": // Caddy writes REDACTED
		return false
	case "Referer", "User-Agent":
		return ok && (f == Combined || f == Caddy || f == Envoy && name == "User-Agent")
	}
	return ok && f == Caddy
}

// An entry is a request in a log.
type entry struct {
	at     time.Time
	peer   netip.Addr // not valid if the peer has no address, as on a Unix socket
	user   string
	method string
	uri    string
	host   string
	header http.Header
}

// errNoRequest is the error for a line without an HTTP request, because a client sent something
// else, or because the line is not about a request.
var errNoRequest = errors.New("no HTTP request")

// parse reads a line. It returns errNoRequest, or another error if the line is not in the format.
// If f is 0, any format will do, and parse returns the format of the line.
func parse(line string, f Format) (*entry, Format, error) {
	if f >= Caddy || f == 0 && strings.HasPrefix(line, "{") {
		e, is, err := parseJSON(line)
		if f != 0 && is != f && err == nil {
			e, err = nil, errNoRequest // a line from another program
		}
		return e, cmp.Or(f, is), err
	}
	switch {
	case f == Envoy || f == 0 && strings.HasPrefix(line, "[") && strings.Contains(line, `] "`):
		e, err := parseEnvoy(line)
		return e, Envoy, err
	case f == HAProxy || f == 0 && haproxyLine.MatchString(line):
		e, err := parseHAProxy(line)
		return e, HAProxy, err
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
// which may begin with the name of a virtual host, as in Apache's vhost_combined, and continue
// with "referer" "user agent" and, as in nginx's format main, with "X-Forwarded-For". Clients
// choose the user name, which may contain spaces and brackets, but servers escape the quotation
// marks that clients send. The time therefore ends at the first `] "`.
func parseCommon(line string) (*entry, Format, error) {
	before, rest, ok := strings.Cut(line, `] "`)
	i := strings.LastIndexByte(before, '[')
	if !ok || i < 0 || strings.HasPrefix(line, "[") {
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
	f, err := e.request(rest)
	if err != nil {
		return nil, f, err
	}
	return e, f, e.valid()
}

// request reads what follows the time.
func (e *entry) request(s string) (Format, error) {
	request, rest, ok := quoted(s)
	status, rest, _ := strings.Cut(strings.TrimPrefix(rest, " "), " ")
	if code, err := strconv.Atoi(status); !ok || err != nil || code < 0 || code > 999 {
		return Common, errors.New("the line has no request in quotation marks and a status behind it")
	}
	f := Common
	_, rest, _ = strings.Cut(rest, ` "`) // after the bytes
	for _, name := range []string{"Referer", "User-Agent", "X-Forwarded-For"} {
		value, after, ok := quoted(rest)
		if !ok {
			break
		}
		f, rest = Combined, strings.TrimPrefix(after, ` "`)
		switch {
		case name == "X-Forwarded-For":
			e.forwardedFor(value) // other formats have a different value here, such as the time in seconds
		case value != "-":
			e.header[name] = []string{value}
		}
	}
	e.method, request, _ = strings.Cut(request, " ")
	e.uri, request, _ = strings.Cut(request, " ")
	if !strings.HasPrefix(request, "HTTP/") || e.method == "" || e.uri == "" {
		return f, errNoRequest
	}
	return f, nil
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

// quoted returns a text up to its closing quotation mark, and the rest after the mark. In the
// text, nginx writes a quotation mark as \x22 and Apache as \".
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
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return instant(n)
		}
	}
	return time.Time{}, fmt.Errorf("the time is %s; want a number of seconds since 1970 or a time such as %s",
		quote(fmt.Sprint(v)), time.RFC3339)
}

// latest is the first instant that is too late for a log: the year 2200, in µs since 1970.
const latest = 7_258_118_400_000_000

// valid returns an error if the time of the entry is outside the range in which limits can
// count.
func (e *entry) valid() error {
	if us := e.at.UnixMicro(); us <= 0 || us >= latest {
		return fmt.Errorf("the time is %s; want one from 1970 to 2199", e.at.Format(time.RFC3339))
	}
	return nil
}

// quote quotes a text from a log for an error, and cuts it to 60 bytes.
func quote(s string) string { return strconv.Quote(s[:min(len(s), 60)]) }

// An envoyLine is a line of Envoy's default format
// (https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage), or of
// Istio's, which has three more fields before the sizes, and the addresses at the end. Envoy does
// not escape quotation marks that clients send, so a line with more quotation marks than the format
// cannot be read.
var envoyLine = regexp.MustCompile(`^\[([^]]+)\] "([^" ]*) ([^" ]*) ([^" ]*)" \d+ \S+ ` +
	`(?:\S+ \S+ "[^"]*" )?\S+ \S+ \S+ \S+ "([^"]*)" "([^"]*)" "[^"]*" "([^"]*)" "[^"]*"(?: \S+ \S+ \S+ (\S+)(?: \S+)*)?$`)

// parseEnvoy reads a line of Envoy. The default format contains the address of the peer only as the
// last address in X-Forwarded-For, to which Envoy appends it (use_remote_address) before it writes
// the log.
func parseEnvoy(line string) (e *entry, err error) {
	m := envoyLine.FindStringSubmatch(line)
	if m == nil {
		return nil, errors.New("the line begins as one of Envoy and is not in its default format")
	}
	e = &entry{method: m[2], uri: m[3], host: noDash(m[7]), header: http.Header{}}
	if e.at, err = time.Parse(time.RFC3339Nano, m[1]); err != nil {
		return nil, fmt.Errorf("the time is %s; want one such as %s", quote(m[1]), time.RFC3339Nano)
	}
	if agent := noDash(m[6]); agent != "" {
		e.header["User-Agent"] = []string{agent}
	}
	forwarded, peer := noDash(m[5]), m[8]
	if peer == "" {
		i := strings.LastIndexByte(forwarded, ',')
		forwarded, peer = forwarded[:max(i, 0)], strings.TrimSpace(forwarded[i+1:])
	}
	if forwarded != "" {
		e.forwardedFor(forwarded)
	}
	if peer != "" {
		if err := e.from(peer); err != nil {
			return nil, err
		}
	}
	if !strings.HasPrefix(m[4], "HTTP/") || noDash(e.method) == "" || noDash(e.uri) == "" {
		return nil, errNoRequest
	}
	return e, e.valid()
}

// A haproxyLine is a line of HAProxy's option httplog, with or without the prefix that syslog adds
// (https://docs.haproxy.org/3.2/configuration.html#8.2.3). HAProxy escapes quotation marks of
// clients.
var haproxyLine = regexp.MustCompile(`^(?:[^"]*?\bhaproxy\[\d+\]: )?` +
	`(\S+):\d+ \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d\.\d{3})\]` +
	` \S+ \S+ [-+/\d]+ -?\d+ [+\d]+ \S+ \S+ \S{4} [+/\d]+ [/\d]+ (?:\{[^"]*\} )?"([^"]*)"?$`)

// parseHAProxy reads a line of HAProxy. The time in it has no zone, and is taken as UTC.
func parseHAProxy(line string) (e *entry, err error) {
	m := haproxyLine.FindStringSubmatch(line)
	if m == nil {
		return nil, errNoRequest // a line that is not about a request, but, for example, about a server that is down
	}
	e = &entry{header: http.Header{}}
	if e.at, err = time.Parse("02/Jan/2006:15:04:05.000", m[2]); err != nil {
		return nil, fmt.Errorf("the time is %s; want one such as 02/Jan/2006:15:04:05.000", quote(m[2]))
	}
	if err := e.from(m[1]); err != nil {
		return nil, err
	}
	var protocol string
	e.method, protocol, _ = strings.Cut(m[3], " ")
	e.uri, protocol, _ = strings.Cut(protocol, " ")
	if !strings.HasPrefix(protocol, "HTTP/") || e.method == "" || e.uri == "" {
		return nil, errNoRequest
	}
	return e, e.valid()
}
