// Package config reads named rules from a YAML file, and reads them again when the file
// changes.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"net/http"
//
//		"github.com/seed83679106/weir/config"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		rules, err := config.Open("limits.yaml", memstore.New(memstore.Options{}), config.Options{})
//		if err != nil {
//			log.Fatal(err)
//		}
//		go rules.Watch(context.Background())
//		limit := rules.Handler("auth.createToken")
//		http.Handle("/", limit(http.FileServer(http.Dir("public"))))
//		log.Fatal(http.ListenAndServe("localhost:8080", nil))
//	}
//
// # A file
//
//	limits:
//	  - name: auth.createToken
//	    config: [{limit: 20, period: 60}, {limit: 5, period: 3}]
//
// No other field is required. This file applies two limits of the gcra algorithm to each client
// address. The fields key, algorithm, timezone and headers at the top of a file are the defaults
// for all rules. The fields algorithm, burst and timezone of a rule are the defaults for its
// limits:
//
//	trusted-proxies: [10.0.0.0/8] # the proxies whose proxy-header names the client
//	proxy-header: x-forwarded-for # the default; the other value is forwarded
//	free-preflights: false        # the default; true makes CORS preflights cost 0
//	key: ip                       # the default
//	algorithm: gcra               # the default
//	timezone: Europe/Berlin       # of calendar windows; the default is UTC
//	headers: [ietf, github]       # the default is that of Options.Limiter
//	limits:
//	  - name: upload
//	    key: [{first-of: [user, ip]}, method]
//	    algorithm: token-bucket
//	    cost: content-length
//	    enforce: 10%
//	    allow: [10.0.0.0/8]
//	    penalty: {strikes: {limit: 10, period: 60}, for: 10m}
//	    config:
//	      - {name: steady, limit: 1000000, period: 1m, burst: 5000000}
//	      - {name: monthly, limit: 1000000000, period: month}
//
// # Values
//
// docs/files.md in the repository lists all fields. They have the following values:
//
//   - key is ip, global, method, route, basic-auth-user, header:NAME, cookie:NAME, path:NAME,
//     json:NAME (of bodies up to 64 KiB), or a name from Options.Keys. A list joins keys, and
//     {first-of: […]} uses the first key that applies. {header: NAME} is the same as header:NAME.
//   - no-key says what happens to requests without a key. With skip (the default) the rule does
//     not apply to them, with share they all share one key, and with refuse they get status 400.
//   - algorithm is gcra, token-bucket, leaky-bucket, fixed-window,
//     anchored-window, sliding-window, sliding-log, in-flight or calendar.
//   - period is a number of seconds (60, 0.5), or a duration: 60s, 1h30m, 1d, 2w. The periods day,
//     week and month are calendar windows.
//   - burst is for gcra, token-bucket and leaky-bucket only.
//   - headers is x-ratelimit, ietf, draft-07, draft-06, github, openai, anthropic, twitter or
//     none, or a list of these. The value exposed also lists the fields in
//     Access-Control-Expose-Headers.
//   - cost is an integer of at least 1, content-length, or a name from Options.Costs. The unit of
//     content-length is content-bytes, unless the unit field says otherwise. Under content-length,
//     a request whose body length is unknown is refused.
//   - settle says what a request is charged in the end: its cost (reserved, the default), or what
//     the handler reports or draws in the unit of the rule (used, see [weir.ChargeUsed]).
//   - enforce is the percentage of keys for which the rule is enforced, such as 10%. Requests with
//     other keys are charged but not refused, so 0% refuses no request. The default is 100%.
//   - allow lists requests that the rule does not apply to, and deny lists requests that it
//     refuses. An entry is an address, a network, a key, or a key prefix such as tenant-a/*.
//     Addresses and networks are compared with the client's address, whatever the key of the rule
//     is. An entry that no key of the rule can match is an error.
//   - status is the HTTP status of refusals, 400 to 599. retry-jitter is the maximum random time
//     that is added to Retry-After. See Status and RetryJitter of [weir.Rule].
//   - overrides give keys their own limits: see docs/overrides.md.
//   - penalty has the fields strikes, for and most, which are Strikes, Duration and MaxDuration of
//     [weir.Penalty]. The value of strikes is a limit, whose default algorithm is anchored-window.
//
// The include field names other files with rules, such as limits.d/*.yaml: see docs/files.md.
//
// # Errors
//
// A file must be UTF-8 text of at most 4 MiB, without anchors, aliases and tags. It is loaded as a
// whole or not at all. Each error in the file is an [Error] with a line and a column. A redundant
// limit, which never refuses what another limit of its rule admits, is also an error. Package
// config detects redundant limits in simple cases only.
//
// # Reloads
//
// A store keeps counts under the key and the names of the rule, limit and algorithm. A reload
// keeps each count whose key and names stay the same, so the numbers of a limit may change, and
// limits may be added to or removed from a rule. A limit without a name is named after its period
// ([weir.Limit.StoredName]), so give a limit a name if its period may change. A [Change] says
// whether a reload loses the counts of a rule or a limit. A reload cannot detect a change to the
// secret of [keys.Hashed], which turns every key into a new one.
package config
