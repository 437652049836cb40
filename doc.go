// Package weir limits how many requests each client may make.
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
// Each client address may send 100 requests a minute. Every response has header fields that say
// how many requests are left. A request that exceeds the limit gets status 429 with a Retry-After
// field.
//
// # Incoming requests
//
// [Middleware] applies one rule. [New] takes several rules and all other [Options], and returns an
// error where Middleware panics. The rules are charged together, so a request that one of them
// refuses spends nothing under the others. [Limiter.Handler] is the middleware, and [FromContext]
// tells a handler how much is left. [Limiter.Admit] is for servers that are not an http.Handler.
//
// A [Rule] has a [KeyFunc], which says which requests share a quota: [ByIP], [ByHeader], [Global],
// [Join] and [FirstOf] return one, and package keys has more. The Policy and ForKey functions of a
// Rule give some requests or keys other limits. The Cost function says how many units a request
// costs, and the Settle function corrects the charge afterwards to what the request has used.
//
// # Stores
//
// Package memstore counts in the memory of this process. Package redisstore counts in Redis, where
// all processes share the counts. For production use, package stack adds a fallback: it counts in
// memory while Redis is down. If a store fails without such a fallback, Options.OnError decides
// what happens to requests. By default it allows them during an outage.
//
// # Outgoing requests
//
// [Limiter.Transport] is an http.RoundTripper. It sends a request when the limits allow it, and
// pauses when a server asks it to.
//
// # Vocabulary
//
//   - A rule limits the requests that have the same key. Its name is part of stored keys.
//   - A key is the text under which a store counts, such as an address or an account.
//   - A policy says whether a rule limits a request, allows it without a limit, or denies it.
//   - A penalty bans a key that was refused too often. A banned key is refused even if its limits
//     have units left.
//   - A rule in shadow is charged but refuses nothing.
//
// Package quota defines limit, unit, charge, transaction and state, and package headers
// defines dialect.
package weir
