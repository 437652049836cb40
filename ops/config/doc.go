// Package config loads rules from a YAML file, and reloads them when the file changes.
//
//	package main
//
//	import (
//		"context"
//		"log"
//		"net/http"
//
//		"github.com/seed83679106/weir/ops/config"
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
// No other field is required. This file applies two GCRA limits to each client address. The
// top-level fields key, algorithm, timezone and headers set defaults for all rules. A rule's fields
// algorithm, burst and timezone set defaults for its limits:
//
//	trusted-proxies: [10.0.0.0/8] # the proxies whose proxy-header names the client; unix is any on a Unix socket
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
// All fields are listed in FIELDS.md in the directory of the package. They have the following values:
//
//   - key is ip, ip:24/48 (networks of IPv4 and IPv6), global, method, route, basic-auth-user,
//     header:NAME, cookie:NAME, path:NAME, json:NAME (of bodies up to 64 KiB), hashed:KEY (a key
//     that is hashed with Options.Secret), or a name from Options.Keys. A list joins keys, and
//     {first-of: […]} uses the first key that applies. {header: NAME} is equivalent to header:NAME.
//   - no-key determines what happens to requests without a key: skip (the default) does not apply
//     the rule to them, share gives them all the same key, and refuse refuses them with status
//     400.
//   - algorithm is gcra, token-bucket, leaky-bucket, fixed-window,
//     anchored-window, sliding-window, sliding-log, in-flight or calendar.
//   - period is a number of seconds (60, 0.5), or a duration: 60s, 1h30m, 1d, 2w. The values day,
//     week and month stand for calendar windows.
//   - burst applies only to gcra, token-bucket and leaky-bucket.
//   - headers is x-ratelimit, ietf, draft-07, draft-06, github, openai, anthropic, twitter or none,
//     or a list of these. A list may also contain the word exposed, which adds the fields' names to
//     Access-Control-Expose-Headers.
//   - cost is an integer of at least 1, "content-length", or a name from Options.Costs. If the cost
//     is content-length, the default unit is content-bytes, and a request whose body length is
//     unknown is refused. Over HTTP/3, quic-go does not report that a request has no body, so a GET
//     without Content-Length is refused, too.
//   - class is urgency (the Priority field of RFC 9218) or a key, and headroom is the percentage of
//     each limit that requests of a class leave to others, such as {batch: 30%}: see Class in
//     [weir.Rule].
//   - settle is "reserved" (the default), "used", "failed", or a list of statuses such as [401,
//     403]. With "failed", only requests whose response has a status of 400 or more are charged.
//     With a list, only requests whose response has one of these statuses are charged: see
//     [weir.ChargeOnly]. With "reserved", a request is charged its cost. With "used", a request is
//     charged the units that its handler reports or draws: see [weir.ChargeUsed].
//   - enforce is the percentage of keys for which the rule is enforced, such as 10%. The default is
//     100%. Requests with other keys are charged but never refused.
//   - private is true for a rule that is hidden from clients: it appears neither in header fields
//     nor in the bodies of refusals. The default is false.
//   - allow is a list of clients to which the rule does not apply, and deny is a list of clients
//     that it refuses. An entry is an address, a network, a key, or {prefix: tenant-a/} for all keys
//     with a prefix. Addresses and networks are compared with the client's address, whatever the
//     rule's key is. An entry that can never match is an error.
//   - status is the HTTP status of refusals, from 400 to 599. retry-jitter is the maximum random
//     time that is added to Retry-After. These fields correspond to Status and RetryJitter of
//     [weir.Rule].
//   - overrides give keys their own limits: see docs/tiers.md.
//   - penalty has the fields "strikes", "for" and "most", which correspond to Strikes, Duration and
//     MaxDuration of [weir.Penalty]. The strikes field is a limit whose default algorithm is
//     anchored-window.
//
// The field include lists other rules files, such as limits.d/*.yaml: see docs/files.md.
//
// # Errors
//
// A file must be UTF-8 text of at most 4 MiB, without YAML anchors, aliases or tags. If a file
// contains an error, no part of it is loaded. Each error is reported as an [Error] with a line and
// a column. It is also an error if a limit is redundant, that is, if it never refuses a request
// that another limit of its rule admits. Only simple cases of redundancy are detected.
//
// # Reloads
//
// Stores keep counts under the key, the names of the rule, limit and algorithm, and the period of
// the limit. A reload preserves a count if all of these stay the same. You can therefore change a
// limit's quota and burst without losing its count, and add or remove limits without losing the
// counts of the rule's other limits. A [Change] reports whether a reload loses the counts of a
// rule or limit. If the secret of [weir.Hashed] changes, the counts of all hashed keys start
// again at 0. A reload cannot detect such a change.
package config
