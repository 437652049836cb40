package addr

import (
	"log/slog"
	"net/http"
	"net/netip"
	"sync/atomic"
)

// mostLooks is after how many requests of peers that are not trusted Proxies stop to look
// for a proxy among them, so that later requests pay for a comparison only.
const mostLooks = 1 << 10

// warned says that this process has warned. Once is enough, and a reload makes the same
// Proxies again.
var warned atomic.Bool

// unlisted counts what looks have found.
type unlisted struct{ looks, forwarded atomic.Int32 }

// look warns if the peer of a request, which is not trusted, seems to be a proxy: all of its
// clients would share one key. A public peer may be a client that made the field up, so only
// half of many requests are evidence. The warning has no address.
func (p *Proxies) look(r *http.Request, peer netip.Addr) {
	field := ForwardedFor
	if len(r.Header[field]) == 0 {
		field = Forwarded
	}
	n, forwarded, kind := p.unlisted.looks.Add(1), len(r.Header[field]) > 0, "public"
	if forwarded {
		p.unlisted.forwarded.Add(1)
	}
	if !peer.IsGlobalUnicast() || peer.IsPrivate() || carrierNAT.Contains(peer) { // or it has no address
		kind = "private"
	}
	if !forwarded || kind == "public" && (n < mostLooks || p.unlisted.forwarded.Load() <= mostLooks/2) {
		return
	}
	p.unlisted.looks.Store(mostLooks)
	if warned.CompareAndSwap(false, true) {
		slog.Warn("weir: requests have "+field+", and their peer is not a trusted prefix; if it is a proxy, all of its clients share one key until you list it",
			"function", p.name, "peer", kind)
	}
}
