package addr

import (
	"bytes"
	"crypto/tls"
	"fmt"
	"log/slog"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

// TestUnlisted: Proxies warns once about an untrusted peer that seems to be a proxy, and
// the warning has no address.
func TestUnlisted(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old); warned.Store(false); warnedAlike.Store(false) })
	warnedAlike.Store(true) // one client sends all requests
	const private, public = "network=private", "network=public"
	for _, c := range []struct {
		peer  string
		field string
		every int // one in this many requests has the field; see also mostOfThree
		many  int
		want  string // "" for no warning
	}{
		{"10.1.2.3:4", ForwardedFor, 1, 1, private},
		{"10.1.2.3:4", Forwarded, 1, 1, private},
		{"127.0.0.1:4", ForwardedFor, 1, 1, private},
		{"[::1]:4", ForwardedFor, 1, 1, private},
		{"[fd00::1]:4", ForwardedFor, 1, 1, private},
		{"[fe80::1%eth0]:4", ForwardedFor, 1, 1, private},
		{"[::ffff:10.1.2.3]:4", ForwardedFor, 1, 1, private},
		{"100.64.0.1:4", ForwardedFor, 1, 1, private},
		{"@", ForwardedFor, 1, 1, "zero netip.Prefix"}, // a Unix socket, which no network contains
		{"10.1.2.3:4", ForwardedFor, 1000, 1000, private},
		{"10.1.2.3:4", ForwardedFor, mostLooks + 1, mostLooks + 1, ""}, // after mostLooks requests no more are examined
		{"10.1.2.3:4", "X-Real-Ip", 1, 1, private},
		{"192.0.2.1:4", "X-Real-Ip", 1, 2 * mostLooks, ""},
		{"10.1.2.3:4", "X-Other", 1, 2000, ""},
		{"192.0.2.1:4", ForwardedFor, 1, mostLooks - 1, ""},
		{"192.0.2.1:4", ForwardedFor, 1, mostLooks, public},
		{"192.0.2.1:4", ForwardedFor, 2, 2 * mostLooks, ""}, // half of the requests have the field, which clients may have invented
		{"192.0.2.1:4", ForwardedFor, 20, 2 * mostLooks, ""},
		{"172.16.0.1:4", ForwardedFor, 1, 2 * mostLooks, ""},          // this peer is trusted
		{"192.0.2.1:4", ForwardedFor, mostOfThree, mostLooks, public}, // the last request has no field
		{"192.0.2.1:4", Forwarded, mostOfThree, mostLooks, public},
		{"192.0.2.1:4", ForwardedFor, mostOfThree, mostLooks - 1, ""},
	} {
		warned.Store(false)
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 { // askFor makes the same Proxies each time, as a reload of the rules does
			askFor(c.peer, c.field, c.every, c.many, netip.MustParsePrefix("172.16.0.0/12"))
		}
		got := log.String()
		if lines := strings.Count(got, "\n"); lines > 1 || (lines == 1) != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s, %s in each %d of %d: got %q, want %q once", c.peer, c.field, c.every, c.many, got, c.want)
		}
		if c.want == private && c.field != ForwardedFor && !strings.Contains(got, "have it set X-Forwarded-For") {
			t.Errorf("%s: got %q, want the field to set in it", c.peer, got)
		}
		if c.want != "" && (!strings.Contains(got, "field="+c.field) || !strings.Contains(got, "weir: ByIP")) {
			t.Errorf("%s: got %q, want the field and the function in it", c.peer, got)
		}
		host, _, _ := strings.Cut(strings.Trim(c.peer, "[]@"), ":4")
		if strings.Contains(got, "198.51.100.7") || host != "" && strings.Contains(got, host) {
			t.Errorf("%s: got %q, with an address", c.peer, got)
		}
	}
}

// mostOfThree in place of a number of requests says that two of three requests have the
// field, but not the first, the fourth, and so on.
const mostOfThree = -1

// askFor asks new Proxies for the keys of many requests, of which one in `every` has a field.
func askFor(peer, field string, every, many int, trusted ...netip.Prefix) {
	p := NewProxies("weir: ByIP", ForwardedFor, trusted)
	for i := range many {
		r := &http.Request{RemoteAddr: peer, Header: http.Header{}}
		if every == mostOfThree && i%3 > 0 || every != mostOfThree && (i+1)%every == 0 {
			r.Header[field] = []string{"198.51.100.7"}
		}
		p.Key(r, Usual)
	}
}

// TestUnlistedAlone: Proxies that trust no peer warn too.
func TestUnlistedAlone(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old); warned.Store(false) })
	for _, peer := range []string{"10.1.2.3:4", "[fd00::1]:4"} {
		warned.Store(false)
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		askFor(peer, ForwardedFor, 1, 1)
		if got := log.String(); !strings.Contains(got, "network=private") {
			t.Errorf("%s: got %q, want a warning", peer, got)
		}
	}
}

// TestUnlistedUnix: the first request on a Unix socket that is not trusted causes the warning, whether
// or not the proxy names its client, and the warning says how to trust the socket.
func TestUnlistedUnix(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old); warned.Store(false) })
	for _, c := range []struct {
		peer    string
		trusted []netip.Prefix
		want    bool
	}{
		{"@", nil, true},
		{"@", []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, true},
		{"@", []netip.Prefix{{}}, false},
	} {
		warned.Store(false)
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		askFor(c.peer, "X-Other", 1, 2, c.trusted...)
		got := log.String()
		if strings.Count(got, "\n") > 1 || (got != "") != c.want || c.want && !strings.Contains(got, "on a Unix socket\"") {
			t.Errorf("peer %q, trusted %v: got %q, want the warning once: %v", c.peer, c.trusted, got, c.want)
		}
		if c.want && (!strings.Contains(got, "field=none") || !strings.Contains(got, "zero netip.Prefix")) {
			t.Errorf("peer %q, trusted %v: got %q, want the field and what to pass", c.peer, c.trusted, got)
		}
	}
}

// TestEarly: a request over HTTP/3 whose address is not verified yet causes a warning, once.
func TestEarly(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old); warned.Store(false); warnedEarly.Store(false) })
	warned.Store(true)
	for _, c := range []struct {
		major   int
		tls     *tls.ConnectionState
		peer    string
		trusted string
		want    int
	}{
		{3, &tls.ConnectionState{}, "192.0.2.1:4", "10.0.0.0/8", 1},
		{3, &tls.ConnectionState{}, "10.0.0.1:4", "10.0.0.0/8", 1},
		{3, &tls.ConnectionState{HandshakeComplete: true}, "192.0.2.1:4", "10.0.0.0/8", 0},
		{2, &tls.ConnectionState{}, "192.0.2.1:4", "10.0.0.0/8", 0}, // made by a test, or by an adapter
		{3, nil, "192.0.2.1:4", "10.0.0.0/8", 0},
	} {
		warnedEarly.Store(false)
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 { // as a reload makes the same Proxies
			p := NewProxies("weir: ByIP", ForwardedFor, []netip.Prefix{netip.MustParsePrefix(c.trusted)})
			p.Addr(&http.Request{RemoteAddr: c.peer, ProtoMajor: c.major, TLS: c.tls})
		}
		got := log.String()
		if strings.Count(got, "\n") != c.want || strings.Count(got, "Allow0RTT") != c.want || strings.Contains(got, c.peer[:8]) {
			t.Errorf("HTTP/%d, %+v, %s: got %q, want %d lines", c.major, c.tls, c.peer, got, c.want)
		}
	}
}

// TestRemoteAddr: a RemoteAddr that net/http does not set is logged once, with what set it.
func TestRemoteAddr(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old) })
	for remote, want := range map[string]string{
		"": "it is an outgoing request", "203.0.113.7": "address of the peer replaced",
		"203.0.113.7:0": "address of the peer replaced", "203.0.113.7:1": "", "bufconn": "",
	} {
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		p := NewProxies("weir: ByIP", ForwardedFor, nil)
		for range 3 {
			p.Key(&http.Request{RemoteAddr: remote}, Usual)
		}
		if got := log.String(); !strings.Contains(got, want) || strings.Count(got, "\n") != min(1, len(want)) {
			t.Errorf("%q: got %q, want %q once", remote, got, want)
		}
	}
}

// TestAlike: if all of the first 200 requests through trusted proxies have one address, a warning
// names the fields that they have, once and without an address.
func TestAlike(t *testing.T) {
	old := slog.Default()
	t.Cleanup(func() { slog.SetDefault(old); warned.Store(false); warnedAlike.Store(false) })
	client := func(i int) string { return fmt.Sprintf("198.51.100.%d", i%100) }
	for name, c := range map[string]struct {
		field   string
		many    int
		headers func(i int) http.Header
		want    string // "" for no warning
	}{
		"X-Real-IP":         {ForwardedFor, 250, func(i int) http.Header { return http.Header{"X-Real-Ip": {client(i)}} }, "fields=X-Real-Ip effect"},
		"CF-Connecting-IP":  {ForwardedFor, 250, func(i int) http.Header { return http.Header{"Cf-Connecting-Ip": {client(i)}} }, "does not set X-Forwarded-For"},
		"Forwarded":         {ForwardedFor, 250, func(i int) http.Header { return http.Header{Forwarded: {"for=" + client(i)}} }, "fields=Forwarded effect"},
		"X-Forwarded-For":   {Forwarded, 250, func(i int) http.Header { return http.Header{ForwardedFor: {client(i)}} }, "does not set Forwarded"},
		"no field":          {ForwardedFor, 250, func(i int) http.Header { return http.Header{"User-Agent": {client(i)}} }, "fields=none effect"},
		"its own address":   {ForwardedFor, 250, func(i int) http.Header { return http.Header{ForwardedFor: {client(i) + ", 198.51.100.250"}} }, "appends its own address"},
		"few":               {ForwardedFor, 199, func(int) http.Header { return http.Header{} }, ""},
		"many clients":      {ForwardedFor, 250, func(i int) http.Header { return http.Header{ForwardedFor: {client(i)}} }, ""},
		"the 200th differs": {ForwardedFor, 500, func(i int) http.Header { return http.Header{ForwardedFor: {client(max(0, i-198))}} }, ""},
	} {
		warnedAlike.Store(false)
		var log bytes.Buffer
		slog.SetDefault(slog.New(slog.NewTextHandler(&log, nil)))
		for range 3 { // as a reload makes the same Proxies
			p := NewProxies("weir: ByIP", c.field, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})
			for i := range c.many {
				p.Key(&http.Request{RemoteAddr: "10.1.2.3:4", Header: c.headers(i)}, Usual)
			}
		}
		got := log.String()
		if lines := strings.Count(got, "\n"); lines > 1 || (lines == 1) != (c.want != "") || !strings.Contains(got, c.want) {
			t.Errorf("%s: got %q, want %q once", name, got, c.want)
		}
		if strings.Contains(got, "198.51.100") || strings.Contains(got, "10.1.2") {
			t.Errorf("%s: got %q, with an address", name, got)
		}
	}
}

// BenchmarkKey measures the key of a peer that is not trusted.
func BenchmarkKey(b *testing.B) {
	p := NewProxies("weir: ByIP", ForwardedFor, nil)
	r := &http.Request{RemoteAddr: "192.0.2.1:4", Header: http.Header{}}
	b.ReportAllocs()
	for b.Loop() {
		p.Key(r, Usual)
	}
}
