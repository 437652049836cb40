package watch

import (
	"cmp"
	"log/slog"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// These codes identify the problems that Diagnose finds. The file DIAGNOSTICS.md explains each code
// and how to fix the problem.
const (
	AnybodyTrusted = "WEIR001" // clients can choose their key under a rule
	ChargedTwice   = "WEIR002" // one request is charged twice under a rule
	ClockFar       = "WEIR003" // the clocks of the store and of this process differ
)

// Diagnose detects configuration errors that neither a Limiter nor a store detects by itself. It
// checks the key functions of the rules immediately, and returns a function for
// weir.Options.Observe that checks requests. Diagnose logs each error as a warning with its code,
// at most once a minute per code. A nil logger means slog.Default().
func Diagnose(logger *slog.Logger, rules []weir.Rule) (observe func(weir.Event)) {
	d := &diagnosis{logger: cmp.Or(logger, slog.Default())}
	for _, gate := range []*sparse.Gate{&d.trust, &d.twice, &d.clock} {
		gate.Every = time.Minute
	}
	for _, r := range rules {
		if trustsAnybody(r.Key) {
			d.found(&d.trust, AnybodyTrusted, "key chosen by clients", "rule", r.Name,
				"effect", "a client can have any number of quotas, and use up those of others",
				"likely", "X-Forwarded-For or Forwarded is believed from every peer")
		}
	}
	return d.observe
}

type diagnosis struct {
	logger              *slog.Logger
	trust, twice, clock sparse.Gate // of each code
}

// found logs a warning, unless it has logged a warning with the same code within the last minute.
func (d *diagnosis) found(gate *sparse.Gate, code, message string, attrs ...any) {
	if _, ok := gate.Pass(); ok {
		d.logger.Warn("watch: "+message, append([]any{"code", code}, attrs...)...)
	}
}

// trustsAnybody calls the function key with a request from the Internet that claims to come
// from another address, and reports whether the function returns that address. The addresses
// are those for documentation (RFC 5737).
func trustsAnybody(key weir.KeyFunc) (trusts bool) {
	const peer, elsewhere = "203.0.113.1", "198.51.100.7"
	safe.Call("watch", func() error { // a user's key function may need parts of a request that this one lacks
		k, ok := key(&http.Request{
			Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
			Header: http.Header{"X-Forwarded-For": {elsewhere}, "Forwarded": {"for=" + elsewhere}}, Host: "example.com",
			RemoteAddr: peer + ":4711",
		})
		trusts = ok && strings.Contains(k, elsewhere)
		return nil
	})
	return trusts
}

func (d *diagnosis) observe(e weir.Event) {
	if e.Err != nil || len(e.Transaction.Charges) == 0 || e.Request == nil { // the store was not called
		return
	}
	t := e.Transaction
	if behind := time.Since(t.At); behind > 2*time.Second || behind < -time.Second { // a decision may take a second
		d.found(&d.clock, ClockFar, "clocks of the store and of this process differ", "behind", period.Rounded(behind),
			"fix", "synchronize both with NTP")
	}
	outer := weir.FromContext(e.Request.Context())
	if outer == nil {
		return
	}
	for i := range t.Charges {
		c := &t.Charges[i]
		if slices.ContainsFunc(outer.Charges, func(o quota.Charge) bool { return o.Rule == c.Rule && o.Key == c.Key }) {
			d.found(&d.twice, ChargedTwice, "request charged twice under one rule", "rule", c.Rule,
				"likely", "a middleware is mounted on a router and again on a group of its routes")
		}
	}
}
