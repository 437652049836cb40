// Package weirchi has key functions for the client address that the ClientIPFrom… middlewares
// of chi find.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/go-chi/chi/v5"
//		"github.com/go-chi/chi/v5/middleware"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//		"github.com/seed83679106/weir/weirchi"
//	)
//
//	func main() {
//		key := weir.FirstOf(weirchi.ClientIP(), weir.ByIP())
//		r := chi.NewRouter()
//		r.Use(middleware.ClientIPFromXFF("10.0.0.0/8"))
//		r.Use(weir.Middleware(memstore.New(memstore.Options{}), "files", key, algorithms.GCRA(100, time.Minute)))
//		r.Handle("/*", http.FileServer(http.Dir("public")))
//		log.Fatal(http.ListenAndServe("localhost:8080", r))
//	}
//
// # What the import publishes
//
// Importing the package publishes net/http/pprof and expvar on [http.DefaultServeMux], because
// chi's package middleware imports both. Do not serve that mux to strangers:
// /debug/pprof/cmdline shows the arguments of the process, and with them any passwords. If
// your program imports chi's middleware anyway, importing this package publishes nothing more.
package weirchi

import (
	"net/http"
	"net/netip"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/keys"
)

// ClientIP counts by the client address that a ClientIPFrom… middleware of chi found. The key
// is that of [weir.ByIP]: an IPv4 address, or the /64 network of an IPv6 address. If no such
// middleware ran, or if it found no address, the rule does not apply. FirstOf gives such
// requests another key:
//
//	weir.FirstOf(weirchi.ClientIP(), weir.ByIP())
func ClientIP() weir.KeyFunc { return keys.ByAddr(ClientAddr, 32, 64) }

// ClientAddr returns the client address that a ClientIPFrom… middleware of chi found. ok is false
// if there is none. It is a [keys.AddrFunc]: use it in [keys.ByAddr] for networks of other sizes,
// and in lists of addresses.
func ClientAddr(r *http.Request) (addr netip.Addr, ok bool) {
	addr = middleware.GetClientIPAddr(r.Context())
	return addr, addr.IsValid()
}
