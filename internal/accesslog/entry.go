// Package accesslog reads the access logs of web servers, and replays them through the rules of a
// Limiter, to find out which of the requests the rules would have refused.
package accesslog

import (
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

// has reports whether the lines of a log contain a part of requests that the key or the cost of a
// rule reads. The part is given by one of the names that config.File.Reads returns.
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

// An entry represents a request in a log.
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
	read, is, err := fieldsOf(line, f)
	switch {
	case f != 0 && f >= Caddy && is != f && err == nil: // a line from another program
		return nil, f, errNoRequest
	case f != 0:
		is = f
	}
	if err != nil {
		return nil, is, err
	}
	e, err := read.entry()
	return e, is, err
}

// fieldsOf reads the fields of a line, and returns the format that they are in.
func fieldsOf(line string, f Format) (*fields, Format, error) {
	switch {
	case f >= Caddy || f == 0 && strings.HasPrefix(line, "{"):
		return jsonFields(line)
	case f == Envoy || f == 0 && strings.HasPrefix(line, "[") && strings.Contains(line, `] "`):
		return envoyFields(line)
	case f == HAProxy || f == 0 && haproxyLine.MatchString(line):
		return haproxyFields(line)
	default:
		return commonFields(line)
	}
}

// fields holds the texts of a line, in the form in which the format writes them. A missing text is
// "" or "-".
type fields struct {
	time           any    // see instant
	peer           string // an address, perhaps with a port, or noAddress
	user, host     string
	request        string // such as GET / HTTP/1.1; if it is empty, method and uri have its parts
	method, uri    string
	referer, agent string
	forwarded      string      // X-Forwarded-For
	header         http.Header // in place of the three above
}

// noAddress is the peer of a request that came over a Unix socket, as nginx writes it.
const noAddress = "unix:"

// entry returns the request that the fields describe.
func (f *fields) entry() (e *entry, err error) {
	e = &entry{user: noDash(f.user), host: noDash(f.host), method: noDash(f.method), uri: noDash(f.uri), header: http.Header{}}
	if f.request != "" {
		var rest string
		e.method, rest, _ = strings.Cut(f.request, " ")
		e.uri, rest, _ = strings.Cut(rest, " ")
		if !strings.HasPrefix(rest, "HTTP/") || e.uri == "" {
			return nil, errNoRequest
		}
	}
	if e.method == "" {
		return nil, errNoRequest
	}
	if e.at, err = instant(f.time); err != nil {
		return nil, err
	}
	if us := e.at.UnixMicro(); us <= 0 || us >= latest {
		return nil, fmt.Errorf("the time is %s; want one from 1970 to 2199", e.at.Format(time.RFC3339))
	}
	if e.peer, err = address(f.peer); err != nil {
		return nil, err
	}
	set := func(name, value string) {
		if noDash(value) != "" {
			e.header[name] = []string{value}
		}
	}
	set("Referer", f.referer)
	set("User-Agent", f.agent)
	if isForwardedFor(f.forwarded) {
		set("X-Forwarded-For", f.forwarded)
	}
	for name, values := range f.header {
		e.header[http.CanonicalHeaderKey(name)] = values
	}
	return e, nil
}

// address returns the address in a text, which may have a port. It is not valid for noAddress.
func address(text string) (netip.Addr, error) {
	if text == noAddress {
		return netip.Addr{}, nil
	}
	if a, err := netip.ParseAddr(text); err == nil {
		return a, nil
	}
	a, err := netip.ParseAddrPort(text)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("the client is %s; want an address", quote(text))
	}
	return a.Addr(), nil
}

// isForwardedFor reports whether a text is a value of X-Forwarded-For: addresses, separated by commas.
func isForwardedFor(text string) bool {
	if noDash(text) == "" {
		return false
	}
	for part := range strings.SplitSeq(text, ",") {
		if _, err := address(strings.TrimSpace(part)); err != nil {
			return false
		}
	}
	return true
}

func noDash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

// Times in a log must be before latest: the year 2200, in µs since 1970.
const latest = 7_258_118_400_000_000

// layout is the form of the time in the Common Log Format.
const layout = "02/Jan/2006:15:04:05 -0700"

// layouts contains the forms of times in all formats. HAProxy writes no time zone, so UTC is
// assumed.
var layouts = []string{layout, time.RFC3339Nano, "2006-01-02T15:04:05.999Z0700", "2006/01/02 15:04:05.999", "02/Jan/2006:15:04:05.000"}

// instant reads a time: a number of seconds, milliseconds or nanoseconds since 1970, a text, or a time.Time.
func instant(v any) (time.Time, error) {
	switch v := v.(type) {
	case time.Time:
		return v, nil
	case float64:
		for _, unit := range []float64{1e6, 1e3, 1e-3} { // in µs
			if us := v * unit; us >= 0 && us < latest {
				return time.UnixMicro(int64(math.Round(us))).UTC(), nil
			}
		}
	case string:
		for _, layout := range layouts {
			if t, err := time.Parse(layout, v); err == nil {
				return t, nil
			}
		}
		if n, err := strconv.ParseFloat(v, 64); err == nil {
			return instant(n)
		}
	}
	return time.Time{}, fmt.Errorf("the time is %s; want one such as %s or %s, or a number of seconds since 1970",
		quote(fmt.Sprint(v)), layout, time.RFC3339)
}

// quote quotes a text from a log for an error, and cuts it to 60 bytes.
func quote(s string) string { return strconv.Quote(s[:min(len(s), 60)]) }

// commonFields reads a line of the Common Log Format,
//
//	host ident user [time] "request" status bytes
//
// which may begin with the name of a virtual host, as in Apache's vhost_combined, and continue with
// "referer" "user agent" and, as in nginx's format main, with "X-Forwarded-For". Other formats have
// a different value in place of X-Forwarded-For, such as the time in seconds. Clients choose the
// user name, which may contain spaces and brackets, but servers escape the quotation marks that
// clients send. The time therefore ends at the first `] "`.
func commonFields(line string) (*fields, Format, error) {
	before, rest, ok := strings.Cut(line, `] "`)
	i := strings.LastIndexByte(before, '[')
	if !ok || i < 0 || strings.HasPrefix(line, "[") {
		return nil, Common, errors.New(`want a line such as 192.0.2.1 - - [02/Jan/2006:15:04:05 -0700] "GET / HTTP/1.1" 200 512`)
	}
	f, is := &fields{time: before[i+1:]}, Common
	f.request, rest, ok = quoted(rest)
	status, rest, _ := strings.Cut(strings.TrimPrefix(rest, " "), " ")
	if code, err := strconv.Atoi(status); !ok || err != nil || code < 0 || code > 999 {
		return nil, Common, errors.New("the line has no request in quotation marks and a status behind it")
	}
	_, rest, _ = strings.Cut(rest, ` "`) // after the bytes
	for _, value := range []*string{&f.referer, &f.agent, &f.forwarded} {
		if *value, rest, ok = quoted(rest); !ok {
			break
		}
		is, rest = Combined, strings.TrimPrefix(rest, ` "`)
	}
	var ident string
	f.peer, rest, _ = strings.Cut(strings.TrimSuffix(before[:i], " "), " ")
	ident, f.user, _ = strings.Cut(rest, " ")
	if _, err := address(f.peer); err != nil { // the name of a virtual host, or an error
		if _, err := address(ident); err == nil {
			f.host, f.peer = f.peer, ident
			_, f.user, _ = strings.Cut(f.user, " ")
		}
	}
	return f, is, nil
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

// An envoyLine is a line of Envoy's default format
// (https://www.envoyproxy.io/docs/envoy/latest/configuration/observability/access_log/usage), or of
// Istio's, which has three more fields before the sizes, and the addresses at the end. Envoy does
// not escape quotation marks that clients send, so a line with more quotation marks than the format
// has cannot be read.
var envoyLine = regexp.MustCompile(`^\[([^]]+)\] "([^" ]* [^" ]* [^" ]*)" \d+ \S+ ` +
	`(?:\S+ \S+ "[^"]*" )?\S+ \S+ \S+ \S+ "([^"]*)" "([^"]*)" "[^"]*" "([^"]*)" "[^"]*"(?: \S+ \S+ \S+ (\S+)(?: \S+)*)?$`)

// envoyFields reads a line of Envoy. The default format contains the address of the peer only as
// the last address in X-Forwarded-For: Envoy appends the address (use_remote_address) before it
// writes the log.
func envoyFields(line string) (*fields, Format, error) {
	m := envoyLine.FindStringSubmatch(line)
	if m == nil {
		return nil, Envoy, errors.New("the line begins as one of Envoy and is not in its default format")
	}
	f := &fields{time: m[1], request: m[2], forwarded: m[3], agent: m[4], host: m[5], peer: m[6]}
	if f.peer == "" {
		i := strings.LastIndexByte(f.forwarded, ',')
		f.forwarded, f.peer = f.forwarded[:max(i, 0)], strings.TrimSpace(f.forwarded[i+1:])
	}
	if noDash(f.peer) == "" {
		f.peer = noAddress
	}
	return f, Envoy, nil
}

// A haproxyLine is a line of HAProxy's option httplog, with or without the prefix that syslog adds
// (https://docs.haproxy.org/3.2/configuration.html#8.2.3). HAProxy escapes quotation marks of
// clients.
var haproxyLine = regexp.MustCompile(`^(?:[^"]*?\bhaproxy\[\d+\]: )?` +
	`(\S+):\d+ \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d\.\d{3})\]` +
	` \S+ \S+ [-+/\d]+ -?\d+ [+\d]+ \S+ \S+ \S{4} [+/\d]+ [/\d]+ (?:\{[^"]*\} )?"([^"]*)"?$`)

func haproxyFields(line string) (*fields, Format, error) {
	m := haproxyLine.FindStringSubmatch(line)
	if m == nil {
		return nil, HAProxy, errNoRequest // a line that is not about a request, but, for example, about a server that is down
	}
	return &fields{peer: m[1], time: m[2], request: m[3]}, HAProxy, nil
}
