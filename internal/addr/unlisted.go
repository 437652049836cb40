package addr

import (
	"cmp"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
)

// mostLooks is the number of requests from untrusted peers that are examined for a proxy. Later
// requests cost only a comparison.
const mostLooks = 1 << 10

// warned is set when this process has logged the warning, so that it is logged only once, even if a
// reload of a configuration creates the same Proxies again.
var warned atomic.Bool

// realIP is a field that proxies often set in place of the fields above.
const realIP = "X-Real-Ip"

// unlisted counts how many requests were examined, and how many of them had each of the two
// fields. A request with both fields counts only under X-Forwarded-For.
type unlisted struct {
	looks, forwardedFor, forwarded atomic.Int32
	replaced                       atomic.Bool // a RemoteAddr was not the one that net/http sets, and this was logged
}

// look warns if the untrusted peer of a request seems to be a proxy, because all of its clients
// would share one key. A client at a public address may forge the field, so public peers cause the
// warning only if more than half of mostLooks requests have the field. This condition is checked at
// the last of these requests, even if that request does not have the field. The warning contains no
// address.
func (p *Proxies) look(r *http.Request, peer netip.Addr) {
	u, field := &p.unlisted, ""
	n := u.looks.Add(1)
	p.lookAt(r.RemoteAddr, peer)
	switch {
	case len(r.Header[ForwardedFor]) > 0:
		field = ForwardedFor
		u.forwardedFor.Add(1)
	case len(r.Header[Forwarded]) > 0:
		field = Forwarded
		u.forwarded.Add(1)
	case len(r.Header[realIP]) > 0:
		field = realIP
	}
	if r.RemoteAddr == unixPeer {
		u.looks.Store(mostLooks)
		p.warnUnix(cmp.Or(field, "none"))
		return
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

// lookAt warns if net/http has not set the RemoteAddr of a request.
func (p *Proxies) lookAt(remote string, peer netip.Addr) {
	switch _, port, err := net.SplitHostPort(remote); {
	case remote == "" && p.unlisted.replaced.CompareAndSwap(false, true):
		slog.Warn("weir: request without a RemoteAddr", "function", p.name, "likely", "it is an outgoing request, as of Limiter.Transport",
			"effect", "all such requests share the key unknown", "fix", "limit them by another key, such as weir.ByHeader(\"Host\")")
	case (err != nil || port == "0") && peer.IsValid() && p.unlisted.replaced.CompareAndSwap(false, true):
		slog.Warn("weir: address of the peer replaced", "function", p.name, "likely", "RemoteAddr has no port, or port 0, so a middleware has set it",
			"effect", "if the middleware reads a header field of any peer, as chi's RealIP does, clients can choose their key")
	}
}

// warn logs the warning, unless this process has logged it. network is the kind of the peer's
// address: private or public.
func (p *Proxies) warn(field, network string) {
	fix := "list the proxy as trusted"
	if field != p.field {
		fix += ", and have it set " + p.field
	}
	if warned.CompareAndSwap(false, true) {
		slog.Warn("weir: forwarded requests from a peer in no trusted prefix", "function", p.name, "field", field, "network", network,
			"effect", "if the peer is a proxy, all of its clients share one key", "fix", fix)
	}
}

// unixPeer is the RemoteAddr that net/http gives a client of a Unix socket.
const unixPeer = "@"

// warnUnix is like warn, for a peer on a Unix socket, which is always a proxy or a program of this
// machine, and is trusted by the zero Prefix. No address in a list matches this peer.
func (p *Proxies) warnUnix(field string) {
	if warned.CompareAndSwap(false, true) {
		slog.Warn("weir: request of an untrusted peer on a Unix socket", "function", p.name, "field", field,
			"effect", "all clients of the socket share one key",
			"fix", "pass the zero netip.Prefix as trusted (trusted-proxies: [unix]), and have the proxy set "+p.field)
	}
}

// warnedEarly is like warned, for warnEarly.
var warnedEarly atomic.Bool

// warnEarly logs a warning about a request that came as 0-RTT data of QUIC. Until the handshake is
// complete, nothing shows that the client receives what is sent to its address.
func (p *Proxies) warnEarly(r *http.Request) {
	if r.ProtoMajor >= 3 && warnedEarly.CompareAndSwap(false, true) {
		slog.Warn("weir: request before the end of the QUIC handshake", "function", p.name,
			"effect", "the address of such a request can be forged, to spend the quota of another address or to have it banned",
			"fix", "set Allow0RTT of quic.Config to false, or answer 425 (Too Early)")
	}
}

// If the first mostAlike requests through trusted proxies all have the same address, a warning is
// logged.
const mostAlike = 200

// alike counts the first requests through trusted proxies, as long as all of them have the same
// address.
type alike struct {
	open  atomic.Int32 // how many were counted; mostAlike once counting has ended
	mu    sync.Mutex
	first netip.Addr
}

// warnedAlike is like warned, for compare.
var warnedAlike atomic.Bool

// clientFields are the fields in which proxies and CDNs name the client.
var clientFields = []string{
	ForwardedFor, Forwarded, realIP, "X-Client-Ip", "Cf-Connecting-Ip", "True-Client-Ip", "Fastly-Client-Ip",
}

// compare logs a warning if all of the first requests through trusted proxies have the same
// address. In this case, a proxy probably does not forward its clients' addresses. The warning
// names the fields of the request, and contains no address.
func (p *Proxies) compare(r *http.Request, addr netip.Addr) {
	a := &p.alike
	a.mu.Lock()
	defer a.mu.Unlock()
	switch n := a.open.Load(); {
	case n == 0:
		a.first = addr
	case n == mostAlike:
		return
	case addr != a.first:
		a.open.Store(mostAlike)
		return
	}
	if a.open.Add(1) < mostAlike || !warnedAlike.CompareAndSwap(false, true) {
		return
	}
	sent := slices.DeleteFunc(slices.Clone(clientFields), func(f string) bool { return len(r.Header[f]) == 0 })
	likely, fix := "another proxy or a CDN in front of it is not trusted, or it appends its own address", "list every proxy as trusted"
	if !slices.Contains(sent, p.field) {
		likely, fix = "the proxy does not set "+p.field, "have the proxy set it, or read another of its fields with ByForwarded or ByAddr"
	}
	slog.Warn("weir: one address in each of the first 200 requests through trusted proxies", "function", p.name,
		"fields", cmp.Or(strings.Join(sent, " "), "none"), "effect", "if there are several clients, they share one quota",
		"likely", likely, "fix", fix)
}
