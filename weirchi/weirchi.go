// Package weirchi has keys of what chi's middlewares know.
//
// Importing it publishes net/http/pprof and expvar on [http.DefaultServeMux],
// because chi's package middleware imports both. Do not serve that mux to strangers:
// /debug/pprof/cmdline shows the arguments of the process, and passwords in them. A
// program that imports chi's middleware has this already.
package weirchi

import (
	"net/http"
	"net/netip"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
)

// ClientIP limits each client address that a ClientIPFrom… middleware of chi found,
// keyed as [weir.ByIP] does: an IPv4 address by itself, IPv6 by its /64. If no such
// middleware ran, or it found nothing, the rule does not apply; FirstOf names what
// counts then:
//
//	weir.FirstOf(weirchi.ClientIP(), weir.ByIP())
func ClientIP() weir.KeyFunc { return weir.ByAddr(ClientAddr, 32, 64) }

// ClientAddr is the [weir.AddrFunc] of that address, for [weir.ByAddr] with other
// sizes of networks.
func ClientAddr(r *http.Request) (addr netip.Addr, ok bool) {
	addr = middleware.GetClientIPAddr(r.Context())
	return addr, addr.IsValid()
}
