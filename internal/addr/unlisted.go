package addr

import (
	"log/slog"
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

// unlisted counts how many requests were examined, and how many of them had Forwarded or
// X-Forwarded-For.
type unlisted struct{ looks, forwarded atomic.Int32 }

// look warns if the untrusted peer of a request seems to be a proxy, because all of its
// clients would share one key. A client at a public address may invent the field, so public
// peers cause the warning only if more than half of mostLooks requests have the field. The
// warning contains no address.
func (p *Proxies) look(r *http.Request, peer netip.Addr) {
	field := ForwardedFor
	if len(r.Header[field]) == 0 {
		field = Forwarded
	}
	n, forwarded, kind := p.unlisted.looks.Add(1), len(r.Header[field]) > 0, "public"
	if forwarded {
		p.unlisted.forwarded.Add(1)
	}
	if !peer.IsGlobalUnicast() || peer.IsPrivate() || carrierNAT.Contains(peer) { // or the peer has no address
		kind = "private"
	}
	if !forwarded || kind == "public" && (n < mostLooks || p.unlisted.forwarded.Load() <= mostLooks/2) {
		return
	}
	p.unlisted.looks.Store(mostLooks)
	if warned.CompareAndSwap(false, true) {
		slog.Warn("weir: requests have "+field+", but their peer is in no trusted prefix; if the peer is a proxy, all of its clients share one key until you list it as trusted",
			"function", p.name, "peer", kind)
	}
}
