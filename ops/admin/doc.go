// Package admin provides a web page and an HTTP API for operators who inspect and change quotas,
// and a handler that shows clients their own quota.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/ops/admin"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		store := memstore.New(memstore.Options{})
//		limiter, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
//			Name: "files", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)},
//		}}})
//		if err != nil {
//			log.Fatal(err)
//		}
//		operators, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{limiter} }})
//		if err != nil {
//			log.Fatal(err)
//		}
//		go func() { log.Fatal(http.ListenAndServe("localhost:8081", operators)) }()
//		http.Handle("/", limiter.Handler(http.FileServer(http.Dir("public"))))
//		http.HandleFunc("GET /rate_limit", operators.RateLimit) // for all clients
//		log.Fatal(http.ListenAndServe(":8080", nil))
//	}
//
// A [Handler] does not authenticate its callers, so anyone who can reach it can lift any limit.
// Serve it on an address that only operators can reach, as above, or put authentication in front of
// it:
//
//	mux.Handle("/admin/", requireOperator(http.StripPrefix("/admin", operators)))
//
// # The page and the API
//
// At the path /, a Handler serves a web page that shows the current state of the rules, which keys
// are refused, and why. The page also has forms for the changes listed below. The page works
// without JavaScript; with JavaScript, it reloads every 5 s. The other paths return JSON, with
// errors as problem details (RFC 9457). The rule name R and the key K are query parameters, because
// a key can be empty or contain any character:
//
//	GET  /rules                      the rules in force, their version, and how many reloads failed
//	GET  /state?key=K                what K has left under each rule
//	GET  /state?rule=R&key=K         what K has left under R
//	GET  /explain?rule=R&key=K       the state of K, and why it is refused, in sentences
//	GET  /explain?key=K&from=A       the same under each rule, for a client at address A
//	GET  /top?rule=R&seconds=300     the most refused keys of the last 300 seconds; the default is an hour
//	GET  /refusals?rule=R&key=K      the latest refusals, with limit and route; rule and key are optional
//	GET  /bans?rule=R                the bans that this process knows of, and the denied networks
//	POST /reset?rule=R&key=K         refunds all units that K has spent
//	POST /grant?rule=R&key=K         {"units": 5} refunds 5 units, or fewer if fewer were spent
//	POST /ban?rule=R&key=K           {"seconds": 600} bans K for 600 seconds, unless K is already banned for longer
//	POST /unban?rule=R&key=K         lifts the ban of K, and forgets its strikes and earlier bans
//	POST /ban?rule=R&network=192.0.2.0/24  {"seconds": 600} bans a network for 600 seconds; /unban lifts the ban
//	POST /try?rule=R                 {"limits": [{"quota": 50}]} returns how many recent requests these limits would have refused
//	GET  /overrides                  the overrides that operators have set; with ?rule=R only the overrides of R
//	POST /override?rule=R&key=K      {"limits": [{"quota": 1000}], "seconds": 86400, "note": "ticket 7"}
//	                                 gives K its own limits under R, for a day
//	POST /override?rule=R&prefix=P   the same for all keys that begin with P; an empty P stands for all keys
//	DELETE /override?rule=R&key=K    removes the override of K, or of a prefix or a network
//	GET  /changes                    the last 200 changes made through this process
//	POST /undo?change=C              undoes the change C
//
// The response to a change contains the new state of K, and its Weir-Change header field contains
// the ID of the change. If there was nothing to change, for example because the key is misspelled,
// the field "unchanged" explains this. If the change is about a prefix or a network, the response
// lists all overrides of R instead. No character of K has a special meaning, because clients choose
// keys: K can be "a*" or "0.0.0.0/1", and then matches only that key. Durations are in seconds:
//
//	{"key": "192.0.2.1", "rules": [{"rule": "api", "banned_for": 0, "limits": [
//	  {"name": "1m", "algorithm": "gcra", "quota": 100, "period": 60, "burst": 100,
//	   "remaining": 3, "next_after": 0.6, "reset_after": 58.2}]}]}
//
// If the rule has classes, "classes" contains how many of these units each class may spend, after
// subtracting its headroom. The field "listed" is "allow" if the key is allowed by one of the
// rule's lists or overrides, and "deny" if the key is denied by one of them. If the key has an
// override, "overridden" is true. If K is an address, but requests from that address have a
// different key under the rule, "looked_up" contains that key. If you do not name a rule and K is
// not an address, two kinds of rules do not use K as the key. For a rule that counts addresses, the
// explanation is about the key of a request from A. For a rule that counts all requests together,
// the explanation is about the rule's only key, "". In both cases, "looked_up" contains the key
// that was used, unless Options.Recorder knows K as a key of the rule. Without A, the key under a rule
// that counts addresses is unknown.
//
// In an explanation, "refused" is null if the Handler cannot determine whether K is refused. In
// that case, "unknown" names the missing information: for example, which limits Policy would
// choose, or whether any request has the key K. The field "past" describes earlier refusals and
// bans. If K has spent nothing and this process has not refused it in the last hour, "unseen" is
// true, and "similar" lists keys like K that are refused, banned or overridden; K may be a part of
// such a key.
//
// /undo restores the state that the key had before the change. Spent units, bans and overrides that
// would have expired by now are not restored. If an override or a ban has since been changed again,
// /undo leaves it unchanged and returns 409. Undoing a ban does not restore the key's earlier
// strikes and bans.
//
// Each attempted change is logged with its operator (Options.Who), rule, key and body, even if the
// change fails. A request that is rejected because of its method, origin, rule or key is not
// logged.
//
// # What it needs
//
// /top, /refusals and /try require Options.Recorder. The page uses it too, and shows the probable
// misconfigurations that its LogHandler has seen. A Recorder sees only what happens in this process,
// so query each replica. The page marks the numbers that cover only this process. /bans does not
// list bans that only the store knows. /try replays recent requests, starting with full quotas;
// see [watch.Recorder.Try].
//
// To ban networks, set Options.Overrides, and build the rule's Policy with [weir.When] and
// [overrides.Live.DenyFrom]. Package config does this for rules in a file. The rule needs no
// Penalty. A network ban takes effect in all replicas within a second. The host bits of a network
// must be 0: 192.0.2.0/24, not 192.0.2.7/24. To ban a single address, use 192.0.2.7/32.
//
// # Overrides
//
// The body of an override must contain exactly one of "limits", "unlimited" and "denied". An
// override without "seconds" does not expire. With prefix=P instead of key=K, the override applies
// to all keys that begin with P; if a key has no override itself, the longest matching prefix
// applies. In addition to its quota, a limit can have a name, a period in seconds, a burst and an
// algorithm. A field that is left out has the value of the limit that is replaced; see [weir.Rule].
// Units that the key has already spent still count. An override that would have no effect is
// rejected with 409. A rule supports overrides if its ForKey function comes from
// [overrides.Live.Of]. Overrides for networks also require [overrides.Live.DenyFrom] in the rule's
// Policy.
//
// # Keys
//
// A key is the string that the rule's KeyFunc returns for a request, such as "192.0.2.1" or
// "2001:db8:1:2::/64". The same client has different keys under rules with different KeyFuncs. A
// key that has never been used has its full quota. A key longer than 128 bytes is shown as its
// digest ([quota.Charge.StoredKey]). Queries accept either the key or the digest. JSON cannot express
// a key that is not valid UTF-8. In /top, /refusals, /bans and /overrides, such a key has a field
// "query", such as "rule=api&key=%FF", which is the query for requests about this key.
//
// If a rule's KeyFunc hashes something other than an address, such as an API key, and the rule is not
// in Options.File, queries must contain the hashed key, which [weir.HashedKey] computes. For a rule
// in a *config.File, queries contain the key or its hash, and a key that looks like a hash (16
// bytes in base64) is treated as one. /top, the store and the logs contain only hashed keys.
//
// A change is rejected with 400 if Options.File shows that no request can have its key. A change to
// an address is also rejected if requests from that address have a different key, for example
// because the rule counts networks. The response names the key to use instead.
//
// # What to expect
//
// If a rule has no Limits because its Policy chooses the limits for each request, set
// Options.Policy so that the Handler can look up these limits. Otherwise, "limits" is null, and
// /reset and /grant return 409. Bans still work. Overrides are stored without being checked against
// the limits that they replace, and the response has the field "unchecked".
//
// A change takes effect immediately in this process and in every process that calls the store for
// each decision. An override takes effect in other processes within a second. A process that has
// cached a ban (or, with [quota.Hybrid], a refusal) may enforce it for a few milliseconds longer, or
// for up to 10 s if Redis does not report changes.
//
// If the store fails, the response is 503, and the error is logged but not sent to the caller. The
// change may or may not have been made. Repeat the request unless it was a grant. A repeated grant
// gives the key the units twice if the first attempt succeeded after all. If a quota.Fallback uses
// its second store because the first one fails, a ban or a reset reaches only the memory of this
// process, and is lost once the first store works again. In this case, too, the response is 503.
//
// Cross-origin changes are rejected by [http.CrossOriginProtection], so other websites cannot make
// changes through an operator's browser.
package admin
