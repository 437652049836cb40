// Package weirchi provides key functions that use the client address found by chi's ClientIPFrom…
// middleware.
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
// Importing this package registers net/http/pprof and expvar on [http.DefaultServeMux], because
// chi's middleware package imports both. Do not expose that mux to the public: /debug/pprof/cmdline
// shows the process's command line, including any passwords in it. If your program already imports
// chi's middleware package, importing weirchi adds no further handlers to that mux.
package weirchi

import (
	"net/http"
	"net/netip"

	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/keys"
)

// ClientIP returns a key function for the client address that chi's ClientIPFrom… middleware found.
// As with [weir.ByIP], the key is an IPv4 address or the /64 network of an IPv6 address. If no such
// middleware ran, or if it found no address, the request has no key. Use FirstOf to give such
// requests another key:
//
//	weir.FirstOf(weirchi.ClientIP(), weir.ByIP())
func ClientIP() weir.KeyFunc { return keys.ByAddr(ClientAddr, 32, 64) }

// ClientAddr returns the client address that chi's ClientIPFrom… middleware found. If there is
// none, ok is false. ClientAddr is a [keys.AddrFunc]. Pass it to [keys.ByAddr] for networks of
// other sizes, or to the Match method of an address list.
func ClientAddr(r *http.Request) (addr netip.Addr, ok bool) {
	addr = middleware.GetClientIPAddr(r.Context())
	return addr, addr.IsValid()
}
