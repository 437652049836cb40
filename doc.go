// Package weir provides rate limiting for HTTP servers and clients.
//
//	package main
//
//	import (
//		"fmt"
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		store := memstore.New(memstore.Options{})
//		limit := weir.Middleware(store, "search", weir.ByIP(), algorithms.GCRA(100, time.Minute))
//		http.Handle("GET /search", limit(http.HandlerFunc(search)))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
//	func search(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "found") }
//
// This server accepts 100 requests a minute from each client address. The header fields of each
// response tell the client how many requests it has left. A client that exceeds the limit receives
// status 429 with a Retry-After field.
//
// # Incoming requests
//
// [Middleware] applies one rule. [New] accepts several rules and other [Options], and returns an
// error instead of panicking. All rules are charged together, so a request refused by one rule
// spends nothing under the others. [Limiter.Handler] is the middleware. Handlers can call
// [FromContext] to find out how many requests are left. Servers that do not use http.Handler can
// call [Limiter.Admit].
//
// The [KeyFunc] of a [Rule] determines which requests share a quota. [ByIP], [ByHeader], [Global],
// [Join] and [FirstOf] return a KeyFunc, and package keys provides more. A Rule's Policy and ForKey
// functions set different limits for particular requests or keys. Its Cost function returns the
// number of units that a request costs, and its Settle function adjusts the cost after the request
// has been served.
//
// # Stores
//
// Package memstore keeps counts in process memory. Package redisstore keeps counts in Redis, where
// all processes share them. In production, use package stack, which falls back to memory while
// Redis is down. If a store without such a fallback fails, Options.OnError decides what happens to
// requests. By default, requests are allowed during an outage.
//
// # Outgoing requests
//
// [Limiter.Transport] returns an http.RoundTripper that keeps outgoing requests within the limits
// and pauses when a server asks it to.
//
// # Vocabulary
//
//   - A rule limits requests that have the same key. The rule's name is part of every stored key.
//   - A key is the string under which a store counts units, such as a client address or an account
//     name.
//   - A policy decides whether a rule limits a request, allows it without a limit, or denies it.
//   - A penalty bans a key that is refused too often. A banned key is refused even if it has units
//     left.
//   - A rule in shadow mode is charged but never refuses a request.
//
// Package quota defines the terms limit, unit, charge, transaction and state. Package headers
// defines the term dialect.
package weir
