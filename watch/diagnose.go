package watch

import (
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/seed83679106/weir"
)

// The codes of what Diagnose finds. DIAGNOSTICS.md says what each means and what to
// do about it.
const (
	NobodyTrusted  = "WEIR001" // X-Forwarded-For comes, and no proxy is trusted
	AnybodyTrusted = "WEIR002" // a client can choose the key of a rule
	ChargedTwice   = "WEIR003" // one request is charged twice under a rule
	EmptyKey       = "WEIR004" // a key is empty
	ClockFar       = "WEIR005" // the store's clock is far from this process's
	SlowClient     = "WEIR006" // the settings of a client work against the time budget
	FailOpen       = "WEIR007" // requests pass undecided
)

// Diagnose looks at rules and stores now, and returns an Observe that looks at
// what comes. What it finds it logs as a warning with its code, each code once a
// minute at most. A nil logger is slog.Default(). Of the stores it asks those that
// have Warnings() []string, as redisstore's.
func Diagnose(logger *slog.Logger, rules []weir.Rule, stores ...weir.Store) (observe func(weir.Event)) {
	if logger == nil {
		logger = slog.Default()
	}
	d := &diagnosis{logger: logger, last: map[string]time.Time{}, global: map[string]bool{}}
	for _, r := range rules {
		d.global[r.Name] = reflect.ValueOf(r.Key).Pointer() == reflect.ValueOf(weir.Global()).Pointer()
		if believesAnybody(r.Key) {
			d.found(AnybodyTrusted, "a client can choose its key by X-Forwarded-For", "rule", r.Name)
		}
	}
	for _, s := range stores {
		if s, ok := s.(interface{ Warnings() []string }); ok {
			if w := s.Warnings(); len(w) > 0 {
				d.found(SlowClient, "the settings of a client work against the store's time budget", "warnings", w)
			}
		}
	}
	return d.observe
}

type diagnosis struct {
	logger *slog.Logger
	global map[string]bool // rules whose key is empty by choice
	mu     sync.Mutex
	last   map[string]time.Time
}

// found logs, unless it did for this code within a minute.
func (d *diagnosis) found(code, message string, attrs ...any) {
	d.mu.Lock()
	defer d.mu.Unlock()
	now := time.Now()
	if last, ok := d.last[code]; ok && now.Sub(last) < time.Minute {
		return
	}
	d.last[code] = now
	d.logger.Warn("weir: "+message, append([]any{"code", code}, attrs...)...)
}

// believesAnybody asks for the key of a request from the internet that says it
// came from elsewhere. The addresses are for documentation (RFC 5737).
func believesAnybody(key weir.KeyFunc) (believes bool) {
	const peer, elsewhere = "203.0.113.1", "198.51.100.7"
	defer func() { _ = recover() }() // a key function of somebody's may need more of a request
	r := &http.Request{
		Method: "GET", URL: &url.URL{Path: "/"}, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{"X-Forwarded-For": {elsewhere}, "Forwarded": {"for=" + elsewhere}}, Host: "example.com", RemoteAddr: peer + ":4711",
	}
	k, ok := key(r)
	return ok && strings.Contains(k, elsewhere)
}

func (d *diagnosis) observe(e weir.Event) {
	if e.Err != nil {
		d.found(FailOpen, "requests can't be decided, and by default pass", "err", e.Err)
		return
	}
	if len(e.Transaction.Charges) == 0 || e.Request == nil { // the store was not asked
		return
	}
	t, r := e.Transaction, e.Request
	if off := time.Since(t.At); off > 2*time.Second || off < -time.Second { // an answer may take its time
		d.found(ClockFar, "the clock of the store is not that of this process", "behind", off)
	}
	outer := weir.FromContext(r.Context())
	for i := range t.Charges {
		c := &t.Charges[i]
		if c.Key == "" && c.Cost != 0 && !d.global[c.Rule] {
			d.found(EmptyKey, "a key is empty: all requests with it share one limit", "rule", c.Rule)
		}
		if outer != nil && i == 0 || outer != nil && c.Rule != t.Charges[i-1].Rule {
			for j := range outer.Charges {
				if o := &outer.Charges[j]; o.Rule == c.Rule && o.Key == c.Key {
					d.found(ChargedTwice, "a request is charged twice under one rule", "rule", c.Rule)
					break
				}
			}
		}
		if isForwarded(r.Header) && isPeer(c.Key, r.RemoteAddr) {
			d.found(NobodyTrusted, "requests are forwarded, and limited by the address of the proxy", "rule", c.Rule)
		}
	}
}

func isForwarded(h http.Header) bool {
	return len(h["X-Forwarded-For"]) > 0 || len(h["Forwarded"]) > 0 || len(h["X-Real-Ip"]) > 0
}

// isPeer reports whether a key is the address that a request came from, or the
// network of it.
func isPeer(key, remote string) bool {
	peer, err := netip.ParseAddrPort(remote)
	if err != nil {
		return false
	}
	addr := peer.Addr().Unmap().WithZone("")
	if network, err := netip.ParsePrefix(key); err == nil {
		return network.Contains(addr)
	}
	return key == addr.String()
}
