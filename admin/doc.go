// Package admin has HTTP handlers for operators, who look at keys and change what they have
// spent, and for clients, who look at their own quota.
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
// A [Handler] does not check who calls it: everybody who reaches it can lift any limit. Mount
// it on an address that only operators reach, as here, or behind authentication:
//
//	mux.Handle("/admin/", requireOperator(http.StripPrefix("/admin", operators)))
//
// # The page and the API
//
// The path / of a Handler is a page for people: what the rules do now, who is refused and why,
// and forms for the changes below. It works without scripts; a script loads it again every
// 5 s. The other paths answer with JSON, and explain an error in problem details (RFC 9457). The
// name of a rule, R, and a key, K, are query parameters, because a key may have any
// characters, or none:
//
//	GET  /rules                      the rules in force, their version, and how many reloads failed
//	GET  /state?key=K                what K has left under each rule
//	GET  /state?rule=R&key=K         what K has left under R
//	GET  /explain?rule=R&key=K       the state of K, and why it is refused, in sentences
//	GET  /explain?key=K&from=A       the same for a client at the address A, which lists of addresses may have
//	GET  /top?rule=R&seconds=300     the keys that were refused most in 300 seconds, an hour by default
//	GET  /refusals?rule=R&key=K      the last refusals, with limit and route; rule and key may be missing
//	GET  /bans?rule=R                the bans that this process knows of, and the networks that are denied
//	POST /reset?rule=R&key=K         refunds all units that K has spent
//	POST /grant?rule=R&key=K         {"units": 5} refunds 5 units, but no more than were spent
//	POST /ban?rule=R&key=K           {"seconds": 600} bans K for 600 seconds, unless K is already banned for longer
//	POST /unban?rule=R&key=K         lifts the ban of K, and forgets its strikes and earlier bans
//	POST /ban?rule=R&key=192.0.2.0/24    {"seconds": 600} refuses a network for 600 seconds; /unban lifts that
//	POST /try?rule=R                 {"limits": [{"quota": 50}]} says how many recent requests these limits would have refused
//	GET  /overrides                  the overrides that operators have set; with ?rule=R only the overrides of R
//	POST /override?rule=R&key=K      {"limits": [{"quota": 1000}], "seconds": 86400, "note": "ticket 7"}
//	                                 gives K its own limits under R, for a day
//	DELETE /override?rule=R&key=K    removes the override of K
//	GET  /changes                    the last 200 changes that were made through this process
//	POST /undo?change=C              undoes the change C
//
// The answer to a change is the state of K after the change. Its field Weir-Change has the id of
// the change. There are two exceptions: if K is a
// network, or if /override changed a K that ends with an asterisk, the answer is the list of the
// overrides of R. Durations are in seconds:
//
//	{"key": "192.0.2.1", "rules": [{"rule": "api", "banned_for": 0, "limits": [
//	  {"name": "1m", "algorithm": "gcra", "quota": 100, "period": 60, "burst": 100,
//	   "remaining": 3, "next_after": 0.6, "reset_after": 58.2}]}]}
//
// If a list or an override of the rule allows or denies the key, "listed" is "allow" or "deny".
// If the key has an override, "overridden" is true. "looked_up" is the key of the rule if it is
// not K: if K is an address, that is the key of a request from this address.
//
// In an explanation "refused" is null if the answer depends on something that cannot be known, and
// "unknown" names it: what Policy says for a K that is no address, the limits of Policy, or
// whether K is a key of the rule at all. "past" has what is remembered of earlier refusals.
//
// An undo makes the key as it was before the change, as far as time has not changed it: units that
// would be free by now anyway, and bans and overrides that would have ended, do not come back. An
// override is left alone if it has been changed since, with 409. After an undone ban, strikes and
// earlier bans stay forgotten.
//
// Each change is logged with its operator ([Options].Who), rule, key and body, even if the change
// fails. A request that is refused because of its method, origin, rule or key is not logged.
//
// # What it needs
//
// /top and /refusals need the field Top of [Options], /bans needs Bans and /try needs Traffic. The
// page needs them too, and Traffic for what the rules have done in the last 15 minutes. These fields
// know only what this process has seen, so ask each replica. The page says which numbers are of
// this process. A store cannot list its bans. /try replays
// recent requests, with full quotas at the beginning: see [watch.Traffic.Try].
//
// To ban networks, set Options.Overrides, and set the Policy of the rule to one of [weir.When] and
// [overrides.Live.DenyFrom]. Package config does that for the rules of a file. The rule needs no
// Penalty. A ban of a network applies in all replicas within a second. The bits of a network after
// its prefix must be 0: 192.0.2.0/24, not 192.0.2.7/24. A single address is the network
// 192.0.2.7/32.
//
// # Overrides
//
// An override gives a key its own limits, or has "unlimited": true, or "denied": true.
// An override without "seconds" does not expire. A key that ends with an asterisk stands for all keys
// with that prefix. A limit may have a name, a period in seconds, a burst and an algorithm. If
// one of them is left out, the value of the replaced limit applies: see [weir.Rule]. The units that
// a key has spent still count. An override that can have no effect is refused with 409: the rule
// needs the ForKey of [overrides.Live.Of] and, for a network, a Policy with
// [overrides.Live.DenyFrom].
//
// # Keys
//
// A key is what the KeyFunc of the rule returns for a request, such as "192.0.2.1" or
// "2001:db8:1:2::/64". Rules with different KeyFuncs have different keys for the same client. A
// key that was never seen has its whole quota left. A key of more than 128 bytes appears as its
// digest ([quota.Charge.StoredKey]). A query may have the key or the digest.
//
// A program that hashes other keys than addresses cannot be asked for them by their plain text: a
// query needs the key as the KeyFunc returns it. /top and the logs have it.
//
// A change is refused with 400 if its key looks like an address but requests from that address
// have another key, for example under a rule that counts networks. The answer names that other key.
//
// # What to expect
//
// The limits of a rule that has none, because its Policy chooses them for each request, are known
// here only if Options.Policy is set. Otherwise "limits" is null, and /reset and /grant of the key are
// refused with 409. Bans work. An override is then kept as it was given, without a comparison with
// the limits that it replaces, and the answer says so in "unchecked".
//
// A change applies at once in this process, and in every process that calls the store for each
// decision. An override that another process sets applies within a second. A process that
// remembers bans, or refusals as [quota.Hybrid] does, notices a change by another process within 10
// seconds.
//
// If the store fails, the answer is 503. The error is logged, and the answer does not contain it.
// The change may or may not have been made. Send the request again, unless it is a grant, which
// could then count twice.
//
// Changes that a page of another origin asks for are refused ([http.CrossOriginProtection]), so
// that such a page cannot change anything through the browser of an operator.
package admin
