// Package admin provides HTTP handlers through which operators inspect and change the quota of
// keys, and clients see their own quota.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"time"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/admin"
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
// Mount it on an address that only operators can reach, as here, or behind authentication:
//
//	mux.Handle("/admin/", requireOperator(http.StripPrefix("/admin", operators)))
//
// # The page and the API
//
// The path / of a Handler is a web page. It shows what the rules are doing now, which keys are
// refused, and why. It also has forms for the changes below. It works without JavaScript; with
// JavaScript, it reloads every 5 s. The other paths return JSON, and describe errors as problem
// details (RFC 9457). The rule name R and the key K are query parameters, because a key can
// contain any characters or be empty:
//
//	GET  /rules                      the rules in force, their version, and how many reloads failed
//	GET  /state?key=K                what K has left under each rule
//	GET  /state?rule=R&key=K         what K has left under R
//	GET  /explain?rule=R&key=K       the state of K, and why it is refused, in sentences
//	GET  /explain?key=K&from=A       the same for a client at address A, for rules with address lists
//	GET  /top?rule=R&seconds=300     the most refused keys of the last 300 seconds; the default is an hour
//	GET  /refusals?rule=R&key=K      the latest refusals, with limit and route; rule and key are optional
//	GET  /bans?rule=R                the bans that this process knows of, and the denied networks
//	POST /reset?rule=R&key=K         refunds all units that K has spent
//	POST /grant?rule=R&key=K         {"units": 5} refunds 5 units, or fewer if fewer were spent
//	POST /ban?rule=R&key=K           {"seconds": 600} bans K for 600 seconds, unless K is already banned for longer
//	POST /unban?rule=R&key=K         lifts the ban of K, and forgets its strikes and earlier bans
//	POST /ban?rule=R&key=192.0.2.0/24    {"seconds": 600} bans a network for 600 seconds; /unban lifts the ban
//	POST /try?rule=R                 {"limits": [{"quota": 50}]} returns how many recent requests these limits would have refused
//	GET  /overrides                  the overrides that operators have set; with ?rule=R only the overrides of R
//	POST /override?rule=R&key=K      {"limits": [{"quota": 1000}], "seconds": 86400, "note": "ticket 7"}
//	                                 gives K its own limits under R, for a day
//	DELETE /override?rule=R&key=K    removes the override of K
//	GET  /changes                    the last 200 changes made through this process
//	POST /undo?change=C              undoes the change C
//
// The response to a change contains the state of K after the change, and its Weir-Change header
// field contains the id of the change. If K is a network, or if /override was called for a K that
// ends with an asterisk, the response lists the overrides of R instead. Durations are in seconds:
//
//	{"key": "192.0.2.1", "rules": [{"rule": "api", "banned_for": 0, "limits": [
//	  {"name": "1m", "algorithm": "gcra", "quota": 100, "period": 60, "burst": 100,
//	   "remaining": 3, "next_after": 0.6, "reset_after": 58.2}]}]}
//
// If a list or an override of the rule allows or denies the key, "listed" is "allow" or "deny".
// If the key has an override, "overridden" is true. If K is an address, and a request from this
// address has a different key under the rule, "looked_up" is that key.
//
// In an explanation, "refused" is null if the answer depends on something that the Handler cannot
// know. "unknown" then names it, for example the limits that Policy would choose, or whether K is
// a key of the rule at all. "past" describes earlier refusals and bans.
//
// /undo restores the state of the key before the change. It does not spend units again that would
// be available by now anyway, and it does not restore bans and overrides that would have expired.
// If an override has been changed again since, /undo leaves it as it is and returns 409. When a
// ban is undone, earlier strikes and bans are not restored.
//
// Each change is logged with its operator (Options.Who), rule, key and body, even if the change
// fails. A request that is rejected because of its method, origin, rule or key is not logged.
//
// # What it needs
//
// /top and /refusals need the Top field of [Options], /bans needs Bans, and /try needs Traffic.
// The page uses all three. These fields contain only what this process has seen, so query each
// replica. The page marks the numbers that cover only this process. /bans cannot list bans that
// only the store knows. /try replays recent requests, starting with full quotas; see
// [watch.Traffic.Try].
//
// To ban networks, set Options.Overrides, and build the Policy of the rule with [weir.When] and
// [overrides.Live.DenyFrom]. Package config does this for the rules in a file. The rule needs no
// Penalty. A network ban takes effect in all replicas within a second. The bits of a network
// after its prefix must be 0: 192.0.2.0/24, not 192.0.2.7/24. To ban a single address, use
// 192.0.2.7/32.
//
// # Overrides
//
// The body of an override sets one of "limits", "unlimited": true, or "denied": true. An override
// without "seconds" does not expire. A key that ends with an asterisk matches all keys with that
// prefix. A limit can have a name, a period in seconds, a burst and an algorithm. Anything that
// is left out is taken from the limit that it replaces; see [weir.Rule]. The units that a key has
// spent still count. An override that would have no effect is rejected with 409. To support
// overrides, a rule needs the ForKey function of [overrides.Live.Of] and, for networks, a Policy
// with [overrides.Live.DenyFrom].
//
// # Keys
//
// A key is what the KeyFunc of the rule returns for a request, such as "192.0.2.1" or
// "2001:db8:1:2::/64". Rules with different KeyFuncs have different keys for the same client. A
// key that was never seen has its full quota. A key longer than 128 bytes is shown as its digest
// ([quota.Charge.StoredKey]). A query accepts either the key or the digest.
//
// If a KeyFunc hashes keys other than addresses, a query needs the hashed key, as the KeyFunc
// returns it. /top and the logs show hashed keys.
//
// A change is rejected with 400 if its key looks like an address, but requests from that address
// have a different key, for example because the rule counts networks. The response names that
// key.
//
// # What to expect
//
// If a rule has no Limits because its Policy chooses them for each request, set Options.Policy so
// that the Handler knows them. Otherwise, "limits" is null, and /reset and /grant return 409.
// Bans still work. An override is stored without being checked against the limits that it
// replaces, and the response says so in "unchecked".
//
// A change takes effect immediately in this process, and in every process that calls the store
// for each decision. An override takes effect in other processes within a second. A process that
// remembers bans, or refusals as [quota.Hybrid] does, notices changes by other processes within
// 10 seconds.
//
// If the store fails, the response is 503 without the error, which is logged. The change may or
// may not have been made. Repeat the request, unless it is a grant, which could then count twice.
//
// Cross-origin changes are rejected ([http.CrossOriginProtection]), so that another website
// cannot change anything through an operator's browser.
package admin
