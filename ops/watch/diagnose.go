package watch

import (
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/addr"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
)

// These codes identify the problems that Diagnose finds. The file DIAGNOSTICS.md explains each code
// and how to fix the problem.
const (
	NobodyTrusted  = "WEIR001" // forwarded requests are limited by the address of the proxy
	AnybodyTrusted = "WEIR002" // clients can choose their key under a rule
	ChargedTwice   = "WEIR003" // one request is charged twice under a rule
	EmptyKey       = "WEIR004" // a key is empty
	ClockFar       = "WEIR005" // the clocks of the store and of this process differ
	SlowClient     = "WEIR006" // a Redis client has unsuitable settings
	FailOpen       = "WEIR007" // requests cannot be decided, so they are allowed without a limit or refused
	Unlimited      = "WEIR008" // no rule limits any request
	LimitsDiffer   = "WEIR009" // two processes share counts and have different limits
)

// Diagnose detects likely configuration errors. It checks the rules and the stores immediately, and
// returns a function for weir.Options.Observe that checks requests. Diagnose logs each error as a
// warning with its code, at most once a minute per code. A nil logger means slog.Default().
// Diagnose checks only stores that have a method Warnings() []string (such as a redisstore.Store)
// or Conflicts() []string (such as a stack.Store). It calls Conflicts again every minute.
func Diagnose(logger *slog.Logger, rules []weir.Rule, stores ...weir.Store) (observe func(weir.Event)) {
	if logger == nil {
		logger = slog.Default()
	}
	d := &diagnosis{logger: logger, global: map[string]bool{}, compared: sparse.Gate{Every: time.Minute}}
	for _, r := range rules {
		d.names = append(d.names, r.Name)
		d.global[r.Name] = reflect.ValueOf(r.Key).Pointer() == reflect.ValueOf(weir.Global()).Pointer()
		if trustsAnybody(r.Key) {
			d.found(AnybodyTrusted, "key chosen by clients", "rule", r.Name,
				"effect", "a client can have any number of quotas, and use up those of others",
				"likely", "X-Forwarded-For or Forwarded is believed from every peer")
		}
	}
	for _, s := range stores {
		if s, ok := s.(interface{ Conflicts() []string }); ok {
			d.conflicts = append(d.conflicts, s.Conflicts)
		}
		if s, ok := s.(interface{ Warnings() []string }); ok {
			if w := s.Warnings(); len(w) > 0 {
				d.found(SlowClient, "settings of a Redis client work against the store", "warnings", w,
					"fix", "use those of redisstore.ClientOptions")
			}
		}
	}
	return d.observe
}

type diagnosis struct {
	logger *slog.Logger
	names  []string        // of the rules
	global map[string]bool // rules with the key Global(), which is empty on purpose

	unlimited atomic.Int64 // how many requests no rule has charged or refused; then firstRequests

	conflicts []func() []string
	compared  sparse.Gate

	gates sync.Map // a *sparse.Gate for each code
}

// found logs a warning, unless it has logged a warning with the same code within the last minute.
func (d *diagnosis) found(code, message string, attrs ...any) {
	gate, _ := d.gates.LoadOrStore(code, &sparse.Gate{Every: time.Minute})
	if _, ok := gate.(*sparse.Gate).Pass(); ok {
		d.logger.Warn("watch: "+message, append([]any{"code", code}, attrs...)...)
	}
}

// trustsAnybody calls the function key with a request from the Internet that claims to come
// from another address, and reports whether the function returns that address. The addresses
// are those for documentation (RFC 5737).
func trustsAnybody(key weir.KeyFunc) (trusts bool) {
	const peer, elsewhere = "203.0.113.1", "198.51.100.7"
	defer func() { _ = recover() }() // a user's key function may need parts of a request that this one lacks
	r := &http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"X-Forwarded-For": {elsewhere}, "Forwarded": {"for=" + elsewhere}}, Host: "example.com",
		RemoteAddr: peer + ":4711",
	}
	k, ok := key(r)
	return ok && strings.Contains(k, elsewhere)
}

func (d *diagnosis) observe(e weir.Event) {
	if d.conflicts != nil {
		d.compare()
	}
	if e.Err != nil {
		d.found(FailOpen, "requests not decided", "err", e.Err, "cause", quota.Cause(e.Err), "passed", e.Passed)
		return
	}
	d.count(&e)
	if len(e.Transaction.Charges) == 0 || e.Request == nil { // the store was not called
		return
	}
	t, r := e.Transaction, e.Request
	if behind := time.Since(t.At); behind > 2*time.Second || behind < -time.Second { // a decision may take a second
		d.found(ClockFar, "clocks of the store and of this process differ", "behind", period.Rounded(behind),
			"fix", "synchronize both with NTP")
	}
	outer := weir.FromContext(r.Context())
	for i := range t.Charges {
		if i == 0 || t.Charges[i].Rule != t.Charges[i-1].Rule { // the limits of a rule share a key
			d.check(&t.Charges[i], r, outer)
		}
	}
}

// compare finds limits whose numbers differ between processes.
func (d *diagnosis) compare() {
	if _, due := d.compared.Pass(); !due {
		return
	}
	for _, conflicts := range d.conflicts {
		if c := conflicts(); len(c) > 0 {
			d.found(LimitsDiffer, "limits differ between processes", "warnings", c,
				"effect", "both count the same units, so one of them may refuse all that the other allows",
				"fix", "give both the same limits, or other names to their rules, or give each its own prefix")
		}
	}
}

// unlimitedLikely is the likely cause if no rule limits any request.
const unlimitedLikely = "authentication runs after the limiter, path values are read outside of the mux, " +
	"the value for ByContext is no string, or the cost is not known before the handler runs"

// firstRequests is the number of first requests that must all be unlimited before a warning is
// logged.
const firstRequests = 200

// count logs a warning if no rule has charged or refused any of the first requests.
func (d *diagnosis) count(e *weir.Event) {
	switch {
	case d.unlimited.Load() >= firstRequests || e.Shadow:
	case e.Refusal.Reason != 0 || slices.ContainsFunc(e.Transaction.Charges,
		func(c quota.Charge) bool { return c.Cost != 0 }):
		d.unlimited.Store(firstRequests)
	case d.unlimited.Add(1) == firstRequests:
		d.found(Unlimited, "no rule has limited any of the first 200 requests", "rules", d.names, "likely", unlimitedLikely)
	}
}

// check checks a charge of the request r. outer is the decision of an outer Limiter on r, or nil.
func (d *diagnosis) check(c *quota.Charge, r *http.Request, outer *weir.Admission) {
	if c.Key == "" && c.Cost != 0 && !d.global[c.Rule] {
		d.found(EmptyKey, "key empty", "rule", c.Rule,
			"effect", "all requests with an empty key share one quota", "fix", "return false if the rule does not apply")
	}
	if isForwarded(r.Header) && isPeer(c.Key, r.RemoteAddr) {
		d.found(NobodyTrusted, "forwarded requests limited by the address of the proxy", "rule", c.Rule,
			"effect", "all clients of the proxy share one quota", "fix", "list the proxy as trusted in the key of the rule")
	}
	charged := func(o quota.Charge) bool { return o.Rule == c.Rule && o.Key == c.Key }
	if outer != nil && slices.ContainsFunc(outer.Charges, charged) {
		d.found(ChargedTwice, "request charged twice under one rule", "rule", c.Rule,
			"likely", "a middleware is mounted on a router and again on a group of its routes")
	}
}

// isForwarded reports whether h contains a field in which proxies name the client.
func isForwarded(h http.Header) bool {
	return len(h["X-Forwarded-For"]) > 0 || len(h["Forwarded"]) > 0 || len(h["X-Real-Ip"]) > 0
}

// isPeer reports whether a key is the peer address of a request, or a network that
// contains this address.
func isPeer(key, remote string) bool {
	peer, err := netip.ParseAddrPort(remote)
	network, ok := addr.Network(key)
	return err == nil && ok && network.Contains(peer.Addr().Unmap().WithZone(""))
}
