package accesslog

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
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

// jsonFields reads a line with a JSON object.
func jsonFields(line string) (f *fields, is Format, err error) {
	var l jsonLine
	if err := json.Unmarshal([]byte(line), &l); err != nil {
		return nil, Caddy, fmt.Errorf("want a line of JSON: %s", cut(err.Error()))
	}
	switch {
	case l.RequestMethod != "":
		return &fields{time: l.StartUTC, peer: l.ClientHost, user: l.ClientUsername, method: l.RequestMethod, uri: l.RequestPath,
			host: l.RequestHost, forwarded: l.ForwardedFor}, Traefik, nil
	case l.RemoteAddr != "":
		f, err = l.nginx()
		return f, Nginx, err
	case l.TS != nil:
		f, err = l.caddy()
		return f, Caddy, err
	}
	return nil, Caddy, errors.New("the JSON is not that of Caddy or Traefik, and has no remote_addr, as a log of nginx with the names of its variables")
}

func (l *jsonLine) caddy() (*fields, error) {
	var r struct {
		RemoteIP   string      `json:"remote_ip"`
		RemoteAddr string      `json:"remote_addr"` // before Caddy 2.5
		Method     string      `json:"method"`
		Host       string      `json:"host"`
		URI        string      `json:"uri"`
		Headers    http.Header `json:"headers"`
	}
	if json.Unmarshal(l.Request, &r) != nil {
		return nil, errNoRequest
	}
	f := &fields{time: l.TS, peer: cmp.Or(r.RemoteIP, r.RemoteAddr), user: l.UserID, method: r.Method, uri: r.URI, host: r.Host,
		header: r.Headers}
	if f.peer == "@" { // a Unix socket
		f.peer = noAddress
	}
	// The time of the line is the time at which the request ended.
	if at, err := instant(l.TS); err == nil {
		if d, ok := l.Duration.(float64); ok && d > 0 && d < 1e6 {
			f.time = at.Add(-time.Duration(d * float64(time.Second)))
		}
	}
	return f, nil
}

func (l *jsonLine) nginx() (*fields, error) {
	f := &fields{time: l.nginxTime(), peer: l.RemoteAddr, user: l.RemoteUser, host: l.Host, forwarded: l.NginxForwards}
	switch {
	case l.Method != nil && l.URI != nil:
		f.method, f.uri = *l.Method, *l.URI
	case l.Request == nil && l.Method != nil:
		return nil, errors.New("the line has request_method and no request_uri")
	case l.Request == nil:
		return nil, errors.New("the line has neither request nor request_method")
	default:
		json.Unmarshal(l.Request, &f.request) // $request; otherwise the line has no request
	}
	return f, nil
}

// nginxTime returns the time of a line, with the milliseconds of msec in the zone of the other variables.
func (l *jsonLine) nginxTime() any {
	text := cmp.Or(l.TimeISO, l.TimeLocal)
	zoned, errText := instant(text)
	exact, err := instant(l.Msec)
	switch {
	case l.Msec == nil:
		return text
	case err == nil && errText == nil:
		return exact.In(zoned.Location())
	}
	return l.Msec
}

// cut shortens the text of another package's error, which may quote what clients send.
func cut(s string) string { return s[:min(len(s), 200)] }
