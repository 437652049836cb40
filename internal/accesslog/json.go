package accesslog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strings"
	"time"
)

// A jsonLine holds the fields of a request in the JSON logs of Caddy, Traefik and nginx. Traefik's
// fields have fixed names. The names of nginx's fields come from its log_format, and are usually
// those of nginx's variables.
type jsonLine struct {
	// Caddy
	TS       any             `json:"ts"`
	Duration any             `json:"duration"`
	UserID   string          `json:"user_id"`
	Request  json.RawMessage `json:"request"` // also nginx, as a text

	// Traefik
	StartUTC, RequestHost, RequestMethod, RequestPath, ClientHost, ClientUsername string
	ForwardedFor                                                                  string `json:"request_X-Forwarded-For"`

	// nginx
	RemoteAddr    string  `json:"remote_addr"`
	RemoteUser    string  `json:"remote_user"`
	TimeISO       string  `json:"time_iso8601"`
	TimeLocal     string  `json:"time_local"`
	Msec          any     `json:"msec"`
	Method        *string `json:"request_method"`
	URI           *string `json:"request_uri"`
	Host          string  `json:"host"`
	NginxForwards string  `json:"http_x_forwarded_for"`
}

// parseJSON reads a line with a JSON object.
func parseJSON(line string) (*entry, Format, error) {
	var l jsonLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return nil, Caddy, fmt.Errorf("want a line of JSON: %s", cut(err.Error()))
	}
	e, f, err := &entry{header: http.Header{}}, Caddy, error(nil)
	switch {
	case l.RequestMethod != "":
		f, err = Traefik, e.traefik(&l)
	case l.RemoteAddr != "":
		f, err = Nginx, e.nginx(&l)
	case l.TS != nil:
		err = e.caddy(&l)
	default:
		err = errors.New("the JSON is not that of Caddy or Traefik, and has no remote_addr, as a log of nginx with the names of its variables")
	}
	if err != nil {
		return nil, f, err
	}
	return e, f, e.valid()
}

func (e *entry) caddy(l *jsonLine) (err error) {
	var r struct {
		RemoteIP   string      `json:"remote_ip"`
		RemoteAddr string      `json:"remote_addr"` // before Caddy 2.5
		Method     string      `json:"method"`
		Host       string      `json:"host"`
		URI        string      `json:"uri"`
		Headers    http.Header `json:"headers"`
	}
	if json.Unmarshal(l.Request, &r) != nil || r.Method == "" {
		return errNoRequest
	}
	e.user, e.method, e.uri, e.host = l.UserID, r.Method, r.URI, r.Host
	for name, values := range r.Headers {
		e.header[http.CanonicalHeaderKey(name)] = values
	}
	if e.at, err = instant(l.TS); err != nil {
		return err
	}
	// The line's time is when the request ended.
	if d, ok := l.Duration.(float64); ok && d > 0 && d < 1e6 {
		e.at = e.at.Add(-time.Duration(d * float64(time.Second)))
	}
	if r.RemoteIP == "@" { // a Unix socket
		return nil
	}
	return e.from(cmp.Or(r.RemoteIP, r.RemoteAddr))
}

func (e *entry) traefik(l *jsonLine) (err error) {
	e.user, e.method, e.uri, e.host = noDash(l.ClientUsername), l.RequestMethod, l.RequestPath, l.RequestHost
	e.forwardedFor(l.ForwardedFor)
	if e.at, err = instant(l.StartUTC); err != nil {
		return err
	}
	return e.from(l.ClientHost)
}

func (e *entry) nginx(l *jsonLine) (err error) {
	e.user, e.host = noDash(l.RemoteUser), l.Host
	var request string
	switch {
	case l.Method != nil && l.URI != nil:
		e.method, e.uri = *l.Method, *l.URI
	case l.Request == nil && l.Method != nil:
		return errors.New("the line has request_method and no request_uri")
	case l.Request == nil:
		return errors.New("the line has neither request nor request_method")
	case json.Unmarshal(l.Request, &request) == nil: // $request
		e.method, request, _ = strings.Cut(request, " ")
		e.uri, _, _ = strings.Cut(request, " ")
	}
	if e.method == "" || e.uri == "" {
		return errNoRequest
	}
	e.forwardedFor(l.NginxForwards)
	if e.at, err = l.nginxTime(); err != nil {
		return err
	}
	return e.from(l.RemoteAddr)
}

// nginxTime returns the time of a line, with the milliseconds of msec in the zone of the other variables.
func (l *jsonLine) nginxTime() (time.Time, error) {
	text := cmp.Or(l.TimeISO, l.TimeLocal)
	if l.Msec == nil {
		return instant(text)
	}
	at, err := instant(l.Msec)
	if zoned, errText := instant(text); err == nil && errText == nil {
		at = at.In(zoned.Location())
	}
	return at, err
}

// from sets the address of the peer, which may have a port.
func (e *entry) from(text string) error {
	peer, err := netip.ParseAddr(text)
	if err != nil {
		if p, errPort := netip.ParseAddrPort(text); errPort == nil {
			peer, err = p.Addr(), nil
		}
	}
	if err != nil && text != "unix:" {
		return fmt.Errorf("the client is %s; want an address", quote(text))
	}
	e.peer = peer
	return nil
}

// forwardedFor sets the field X-Forwarded-For if the text is a valid value: addresses, separated
// by commas.
func (e *entry) forwardedFor(text string) bool {
	for part := range strings.SplitSeq(text, ",") {
		if new(entry).from(strings.TrimSpace(part)) != nil {
			return false
		}
	}
	e.header["X-Forwarded-For"] = []string{text}
	return true
}

func noDash(s string) string {
	if s == "-" {
		return ""
	}
	return s
}

// cut shortens the text of another package's error, which may quote what clients send.
func cut(s string) string { return s[:min(len(s), 200)] }
