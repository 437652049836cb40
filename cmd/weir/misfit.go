package main

import (
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"

	"github.com/seed83679106/weir/ops/config"
)

// A misfit describes a part of a file that package config accepts, but that does not work with weir
// serve. Usually, the requests lack information that the part needs. If forwardAuth is true, the
// part does work with -upstream.
type misfit struct {
	rule        string // empty for a part of the whole file
	part        string // such as "json:user"
	effect, fix string
	forwardAuth bool
}

const (
	noBodies    = "because proxies send no bodies to /auth"
	noRoutes    = "because weir serve has no routes"
	anotherKey  = "use another key, such as ip or header:NAME"
	needsBodies = "set -upstream, so that weir serve forwards the requests itself, or "
)

// unread contains the misfits of parts of rules, by the name of the part, without its argument
// except for header fields.
var unread = map[string]misfit{
	"json":           {effect: "all requests share the value unreadable, " + noBodies, fix: needsBodies + anotherKey, forwardAuth: true},
	"content-length": {effect: "every request costs 0, " + noBodies, fix: needsBodies + "omit the cost", forwardAuth: true},
	llmTokens:        {effect: "every request costs 1, " + noBodies, fix: needsBodies + "call /reserve", forwardAuth: true},
	"status": {effect: "no request is charged, because /auth does not see the response", fix: needsBodies + "omit settle",
		forwardAuth: true},
	"header:x-forwarded-for": sentAddresses, "header:forwarded": sentAddresses,
	"route": {effect: "all requests share the value unmatched, " + noRoutes, fix: anotherKey},
	"path":  {effect: "no request has the value, " + noRoutes, fix: anotherKey},
}

// sentAddresses is the misfit of a field to which each proxy adds the address of its client.
var sentAddresses = misfit{
	effect: "clients can choose the value, unless your proxy replaces what they send",
	fix:    "use the key ip, which finds the client by trusted-proxies",
}

// misfits returns the misfits of the rules in force.
func misfits(rules *config.File) (found []misfit) {
	if !slices.ContainsFunc(rules.TrustedProxies(), netip.Prefix.IsValid) { // unix is not, and weir listens on no Unix socket
		found = append(found, misfit{part: "trusted-proxies",
			effect: "every request to /auth is refused with 400, because the file trusts no proxy",
			fix:    "list the addresses of your proxies in trusted-proxies, or set -upstream", forwardAuth: true})
	}
	for _, r := range rules.Rules() {
		for _, part := range rules.Reads(r.Name) {
			name, _, _ := strings.Cut(part, ":")
			if name == "header" {
				name = strings.ToLower(part)
			}
			if m, ok := unread[name]; ok {
				m.rule, m.part = r.Name, part
				found = append(found, m)
			}
		}
	}
	return found
}

// String returns the warning that weir check prints.
func (m misfit) String() string {
	with, of := "weir serve", ""
	if m.forwardAuth {
		with = "forward auth (without -upstream)"
	}
	if m.rule != "" {
		of = fmt.Sprintf(" of rule %q", m.rule)
	}
	return fmt.Sprintf("warning: with %s, %s%s: %s; %s", with, m.part, of, m.effect, m.fix)
}

func (m misfit) log(logger *slog.Logger) {
	if m.rule == "" {
		logger.Warn("weir: limits file lacks a part", "part", m.part, "effect", m.effect, "fix", m.fix)
		return
	}
	logger.Warn("weir: part of a rule does not work as intended", "rule", m.rule, "part", m.part, "effect", m.effect, "fix", m.fix)
}
