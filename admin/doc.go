// Package admin has HTTP handlers: for operators, who look at keys and change what they
// have spent; and for clients, who look at their own quota.
//
// A [Handler] does not check who calls it: everybody who reaches it can lift any limit.
// Mount it behind authentication, best on an address of its own:
//
//	mux.Handle("/admin/", requireOperator(http.StripPrefix("/admin", h)))
//	mux.HandleFunc("GET /rate_limit", h.RateLimit) // for all clients
//
// At /admin/ it has a page for people, which works without scripts. All else is JSON, and a
// mistake is explained in problem details (RFC 9457). Rule and key are parameters of the
// query, because a key may have any characters, or none:
//
//	GET  /rules                      the rules in force, their version, and how many reloads failed
//	GET  /state?key=K                what K has left under each rule
//	GET  /state?rule=R&key=K         what K has left under R
//	GET  /explain?rule=R&key=K       the state of K, and why it is refused, in sentences
//	GET  /top?rule=R                 the keys that are refused most
//	GET  /bans?rule=R                the bans that this process knows of, and the networks that are denied
//	POST /reset?rule=R&key=K         gives back all units that K has spent
//	POST /grant?rule=R&key=K         {"units": 5} gives back 5 units, but no more than were spent
//	POST /ban?rule=R&key=K           {"seconds": 600} bans K for at least 600 seconds
//	POST /unban?rule=R&key=K         lifts the ban of K, and forgets its strikes and earlier bans
//	POST /ban?rule=R&key=192.0.2.0/24    refuses a network for that time; POST /unban ends it
//	POST /try?rule=R                 {"limits": [{"quota": 50}]} says what these limits would have refused lately
//	GET  /overrides                  the limits of single keys that were set here; with ?rule=R those of R
//	POST /override?rule=R&key=K      {"limits": [{"quota": 1000}], "seconds": 86400, "note": "ticket 7"}
//	                                 gives K limits of its own under R, for a day
//	DELETE /override?rule=R&key=K    removes them
//
// Each change is answered with the state after it. Durations are in seconds:
//
//	{"key": "192.0.2.1", "rules": [{"rule": "api", "banned_for": 0, "limits": [
//	  {"name": "1m", "algorithm": "gcra", "quota": 100, "period": 60, "burst": 100,
//	   "remaining": 3, "next_after": 0.6, "reset_after": 58.2}]}]}
//
// If a list of the rule names the key, "listed" is "allow" or "deny". If the key has limits
// of its own, "overridden" is true.
//
// Each change is logged, also if it fails: its operator ([Options].Who), rule, key and body.
//
// # What it needs
//
// /top, /bans and /try need observers of package watch, each in its field of [Options].
// They know what this process has seen: ask each replica. A store has no list of its bans.
// /try replays recent requests from full quotas, see [watch.Traffic.Try].
//
// To ban networks, Options.Overrides must be set, and the rule must have its DenyFrom, as
// those of a file have. The rule needs no Penalty for that. All replicas have the ban within a
// second. A network is written without bits after its prefix, and a single address as
// 192.0.2.7/32 unless that is the key of the rule.
//
// # Overrides
//
// An override has limits, or "unlimited": true, or "denied": true. Without seconds it does
// not end. A key that ends with an asterisk stands for all keys with that beginning. A
// limit may have a name, a period in seconds, a burst and an algorithm; what it leaves out
// it has from the limit that it replaces: see [weir.Rule]. What K has spent still counts.
//
// # Keys
//
// A key is what the KeyFunc of the rule returns for a request: "192.0.2.1",
// "2001:db8:1:2::/64". So rules with different KeyFuncs have different keys for one
// client. A key that was never seen has its whole quota left. A key of more than 128
// bytes appears as its digest ([weir.Charge.StoredKey]), which names it in a query, too.
//
// A change is refused with 400 if its key looks like an address but no request from that
// address has this key, as under a rule that counts networks. The answer says which key
// such a request has.
//
// # What to expect
//
// If a rule chooses its limits for each request (LimitsFor), they are known here only by
// Options.LimitsFor. Without that, "limits" is null, and /reset and /grant are refused
// with 409; bans work.
//
// Changes hold at once in this process, and in all processes that ask the store. A
// process that remembers refusals, such as with [weir.Hybrid], or bans, notices a change
// by another process within 10 seconds.
//
// If the store fails, the answer is 503. It does not contain the error, which is logged. A
// change may have been made or not; send it again, unless it is a grant, which could then
// count twice.
//
// Requests from pages of other origins are refused ([http.CrossOriginProtection]), so a
// page cannot make the browser of an operator change anything.
package admin
