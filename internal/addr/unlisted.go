package addr

import (
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
)

// mostLooks is how many requests of untrusted peers are examined for a proxy. Later
// requests only pay for a comparison.
const mostLooks = 1 << 10

// warned says that this process has logged the warning. It is logged once, even if a reload
// of a configuration makes the same Proxies again.
var warned atomic.Bool

// unlisted counts how many requests were examined, and how many of them had each of the two
// fields. A request with both fields counts as one with X-Forwarded-For.
type unlisted struct {
	looks, forwardedFor, forwarded atomic.Int32
	replaced                       atomic.Bool // a RemoteAddr was not that of net/http, and the log says so
}

// look warns if the untrusted peer of a request seems to be a proxy, because all of its
// clients would share one key. A client at a public address may invent the field, so public
// peers cause the warning only if more than half of mostLooks requests have the field. The
// last of these requests decides that, whether it has the field itself or not. The warning
// contains no address.
func (p *Proxies) look(r *http.Request, peer netip.Addr) {
	u, field := &p.unlisted, ""
	n := u.looks.Add(1)
	if _, _, err := net.SplitHostPort(r.RemoteAddr); err != nil && peer.IsValid() && u.replaced.CompareAndSwap(false, true) {
		slog.Warn("weir: address of the peer replaced", "function", p.name, "likely", "RemoteAddr has no port, so a middleware has set it",
			"effect", "if the middleware reads a header field of any peer, as chi's RealIP does, clients can choose their key")
	}
	switch {
	case len(r.Header[ForwardedFor]) > 0:
		field = ForwardedFor
		u.forwardedFor.Add(1)
	case len(r.Header[Forwarded]) > 0:
		field = Forwarded
		u.forwarded.Add(1)
	}
	if field != "" && (!peer.IsGlobalUnicast() || peer.IsPrivate() || carrierNAT.Contains(peer)) { // or the peer has no address
		u.looks.Store(mostLooks)
		p.warn(field, "private")
		return
	}
	if n != mostLooks {
		return
	}
	switch a, b := u.forwardedFor.Load(), u.forwarded.Load(); {
	case a+b <= mostLooks/2:
	case a >= b:
		p.warn(ForwardedFor, "public")
	default:
		p.warn(Forwarded, "public")
	}
}

// warn logs the warning, unless this process has logged it. network is that of the peer: private or public.
func (p *Proxies) warn(field, network string) {
	if warned.CompareAndSwap(false, true) {
		slog.Warn("weir: forwarded requests from a peer in no trusted prefix", "function", p.name, "field", field, "network", network,
			"effect", "if the peer is a proxy, all of its clients share one key", "fix", "list the proxy as trusted")
	}
}
