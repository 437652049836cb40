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
// No other field is required. This file limits each client address by two limits of the
// algorithm gcra. The fields key, algorithm, timezone and headers at the top of a file are
// the defaults of all rules. The fields algorithm, burst and timezone of a rule are the
// defaults of its limits:
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
// docs/files.md in the repository has a table of all fields. Their values:
//
//   - key is ip, global, method, route, basic-auth-user, header:NAME,
//     cookie:NAME, path:NAME, json:NAME (of bodies up to 64 KiB), or a name of
//     Options.Keys. A list joins keys, and
//     {first-of: […]} is the first key that applies. {header: NAME} is the same as
//     header:NAME.
//   - no-key says what happens to requests without a key: skip (the default) does not
//     apply the rule to them, share limits them together, and refuse answers 400.
//   - algorithm is gcra, token-bucket, leaky-bucket, fixed-window,
//     anchored-window, sliding-window, sliding-log, in-flight or calendar.
//   - period is a number of seconds (60, 0.5), or a duration: 60s, 1h30m, 1d, 2w.
//     The periods day, week and month are windows of the calendar.
//   - burst is for gcra, token-bucket and leaky-bucket only.
//   - headers is x-ratelimit, ietf, draft-07, draft-06, github, openai,
//     anthropic, twitter or none, or a list of these. exposed also lists the fields
//     in Access-Control-Expose-Headers.
//   - cost is a whole number of at least 1, content-length, or a name of
//     Options.Costs. The unit of content-length is content-bytes, unless the field
//     unit says otherwise. A request whose body has no known length is refused.
//   - settle: used charges in the end what the handler reports or draws in the unit of
//     the rule: see [weir.ChargeUsed]. The default, reserved, charges the cost.
//   - enforce: 10% enforces the rule for a tenth of the keys. Requests of the other keys
//     are charged and not refused; enforce: 0% refuses none. The default is 100%.
//   - allow lists requests that the rule does not apply to, and deny lists requests
//     that it refuses. An entry is an address, a network, a key, or a prefix of
//     keys, such as tenant-a/*. Addresses and networks are compared with the address
//     of the request, whatever the key of the rule is. An entry that no key of the
//     rule can match is an error.
//   - status is the HTTP status of refusals, 400 to 599. retry-jitter is the longest
//     random time that is added to Retry-After. See Status and RetryJitter of
//     [weir.Rule].
//   - overrides give keys their own limits: docs/overrides.md.
//   - penalty has strikes, for and most: Strikes, Duration and MaxDuration of
//     [weir.Penalty]. The strikes are a limit, whose default algorithm is
//     anchored-window.
//
// The field include names other files of rules, such as limits.d/*.yaml: docs/files.md.
//
// # Errors
//
// A file is at most 4 MiB of UTF-8, without anchors, aliases and tags. It is
// loaded as a whole or not at all. Each error in the file is an [Error] with a line and a
// column. A limit that never refuses what another limit of its rule admits is an error
// too. config recognizes this error in plain cases only.
//
// # Reloads
//
// A store keeps counts under the names of rule, limit and algorithm, and under the
// key. A reload keeps each count whose names and key stay the same: limits may change
// their numbers, and may join or leave a rule. A limit without a name is named by its
// period ([weir.Limit.StoredName]), so give a limit a name if its period may change.
// [Change] says if a reload loses the counts of a rule or a limit. A reload cannot notice
// that the secret of [keys.Hashed] changes, which makes every key a new key.
package config
