package weir

import (
	"fmt"
	"math/bits"
	"slices"
	"strings"

	"github.com/seed83679106/weir/internal/fields"
)

// A Dialect is a way to tell clients about limits in response fields. Dialects are flags:
// IETF | GitHub sends both. Whatever the dialect, every refusal has Retry-After, unless no
// wait helps.
//
// If a response is about several limits, the dialects that have room for one limit show the
// tightest limit: after a refusal the limit with the longest wait, and otherwise the limit
// with the smallest share left.
type Dialect uint16

const (
	// XRateLimit sends X-RateLimit-Limit (the most that can be spent at once),
	// X-RateLimit-Remaining, and X-RateLimit-Reset: when all units of the key are free
	// again, in Unix seconds of the store's clock. Most clients read these fields. The zero
	// Dialect means XRateLimit.
	XRateLimit Dialect = 1 << iota

	// IETF sends RateLimit-Policy and RateLimit as in drafts 08 to 11 of
	// draft-ietf-httpapi-ratelimit-headers, with one item for each limit. The parameter t
	// of an item is the time until at least one more unit is free. The draft may still
	// change.
	IETF

	// Draft07 sends RateLimit-Policy, and RateLimit: limit=100, remaining=50, reset=5.
	Draft07

	// Draft06 sends RateLimit-Policy, RateLimit-Limit, RateLimit-Remaining, and
	// RateLimit-Reset, which counts seconds from now.
	Draft06

	// GitHub sends the fields of XRateLimit, X-RateLimit-Used, and the rule's name in
	// X-RateLimit-Resource.
	GitHub

	// OpenAI sends x-ratelimit-limit-requests and so on, with the rule's Unit in the names
	// and durations such as 6m0s. A refusal also has retry-after-ms.
	OpenAI

	// Anthropic sends anthropic-ratelimit-requests-limit and so on, with the rule's Unit in
	// the names and times as in RFC 3339.
	Anthropic

	// Twitter sends x-rate-limit-limit, x-rate-limit-remaining and x-rate-limit-reset,
	// which is in Unix seconds.
	Twitter

	// NoHeaders sends nothing but Retry-After.
	NoHeaders
)

// perUnit are the dialects in which each unit has fields of its own.
const perUnit = OpenAI | Anthropic

// withTexts are the dialects with values that change from response to response and are not
// integers.
const withTexts = IETF | Draft07 | OpenAI | Anthropic

// A triple is a dialect that shows one limit in three fields.
type triple struct {
	dialect Dialect
	*fields.Triple
	named map[string]*fields.Triple // by unit, if each unit has fields of its own
}

// of returns the triple for a unit. Only an outer Limiter has units that t was not made for.
func (t *triple) of(unit string) *fields.Triple {
	if named := t.named[unit]; named != nil {
		return named
	}
	named := t.Named(unit)
	return &named
}

var triples = [...]triple{
	{dialect: XRateLimit | GitHub, Triple: &fields.XRateLimit},
	{dialect: Draft06, Triple: &fields.Draft06},
	{dialect: OpenAI, Triple: &fields.OpenAI},
	{dialect: Anthropic, Triple: &fields.Anthropic},
	{dialect: Twitter, Triple: &fields.Twitter},
}

// triples returns the triples that d sends, with the names of their fields for the units.
func (d Dialect) triples(units []string) []triple {
	sent := slices.DeleteFunc(slices.Clone(triples[:]), func(t triple) bool { return d&t.dialect == 0 })
	for i := range sent {
		sent[i].named = map[string]*fields.Triple{}
		for _, unit := range units {
			sent[i].named[unit] = sent[i].of(unit)
		}
	}
	return sent
}

const exposeField = "Access-Control-Expose-Headers"

// validate returns an error for unknown dialects, and for dialects that exclude each other.
func (d Dialect) validate() error {
	switch {
	case d >= NoHeaders<<1:
		return fmt.Errorf("weir: dialect %#x is not one of the constants", uint16(d))
	case d&NoHeaders != 0 && d != NoHeaders:
		return fmt.Errorf("weir: NoHeaders goes with no other dialect")
	case bits.OnesCount16(uint16(d&(IETF|Draft07|Draft06))) > 1:
		return fmt.Errorf("weir: IETF, Draft07 and Draft06 use the same fields: choose one")
	}
	return nil
}

// exposed lists the names of the fields that the dialect may send. Browsers show a field to
// scripts from another origin only if the field is listed.
func (d Dialect) exposed(units []string) string {
	names := []string{fields.RetryAfter}
	for _, t := range d.triples(units) {
		for _, unit := range units {
			named := t.of(unit)
			names = append(names, named.Limit, named.Remaining, named.Reset)
			if t.dialect&perUnit == 0 {
				break
			}
		}
	}
	for _, f := range []struct {
		dialect Dialect
		name    string
	}{{IETF | Draft07, fields.RateLimit}, {IETF | Draft07 | Draft06, fields.Policy}, {GitHub, fields.Used}, {GitHub, fields.Resource}, {OpenAI, fields.RetryAfterMS}} {
		if d&f.dialect != 0 {
			names = append(names, f.name)
		}
	}
	return strings.Join(names, ", ")
}
