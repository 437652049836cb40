package weir

import (
	"math"
	"slices"
	"sync"
	"time"
	"weak"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/remade"
	"github.com/seed83679106/weir/quota"
)

const noKey = "\x00" // the key of requests without a key

// The likely reasons of what the Logger is warned about.
const (
	keylessLikely  = "authentication runs after the limiter; the path value is read outside of the mux; clients never send the field; or the rule is for few requests"
	emptyLikely    = "the function returns \"\" and true for a request that it has no key for; it should return false, and a key that all share is weir.Global()"
	costlessLikely = "the cost is not known before the handler runs; Cost should return the most that a request may cost, and Settle the rest"
	negativeLikely = "ContentLength is -1, as for chunked bodies and gRPC calls; or Cost cannot read the body"
	unfitLikely    = "Cost counts another unit than the limits, such as bytes instead of kilobytes; or the most that a request may cost is above the quota or the burst"
)

// The effect of a missing key, by NoKey.
var keylessEffects = [...]string{NoKeySkip: "none of them was limited", NoKeyShare: "they share one quota", NoKeyRefuse: "they were refused"}

// unusualKey returns the key under which a request is limited, if its key is missing, empty
// or begins with a zero byte, or if the rule has not found a key yet.
func (rule *rule) unusualKey(key string, ok bool) (string, bool) {
	switch {
	case !ok:
		if rule.keyless.again() {
			rule.miswired("key missing in each of the first 200 requests", keylessEffects[rule.NoKey], keylessLikely)
		}
		return noKey, rule.NoKey == NoKeyShare
	case key == "" && !rule.global && rule.emptied.CompareAndSwap(false, true):
		rule.miswired("key empty", "all requests with an empty key share one quota", emptyLikely)
	case key != "" && key[0] == 0 && rule.NoKey == NoKeyShare:
		key = noKey + key
	}
	rule.keyless.end()
	return key, true
}

// costs is the rider of rules with Cost.
type costs struct{ bystander }

// newCosts returns nil if no rule has Cost.
func newCosts(l *Limiter) rider {
	if slices.ContainsFunc(l.rules, func(r *rule) bool { return r.Cost != nil }) {
		return costs{}
	}
	return nil
}

func (costs) heed(v *verdict) { checkCosts(v.items, v.Decisions) }

// checkCosts warns of a rule each of whose first requests cost more than one of its limits can ever
// admit. A concurrency limit that is full also says Never. A negative cost has a warning of its own.
func checkCosts(items []item, decisions []quota.Decision) {
	for i, n := 0, 0; i < len(items); i += n {
		it := &items[i]
		if n = it.limits; it.cost == 0 || it.cost == math.MaxInt64 || !it.rule.unfit.holds() {
			continue
		}
		fits := true
		for j := i; j < i+n; j++ {
			fits = fits && (decisions[j].RetryAfter != quota.Never || items[j].inFlight && it.cost <= items[j].limit.Quota)
		}
		if fits {
			it.rule.unfit.end()
		} else if it.rule.unfit.again() {
			it.rule.miswired("cost above the capacity of a limit in each of the first 200 requests", "no wait can admit them", unfitLikely)
		}
	}
}

// checkNesting warns once if l is also around itself, and once if a request that l refuses has spent
// units that all clients share, under a rule of a Limiter around l. Such a Limiter keeps what it has
// charged, because it also bounds what runs between the two, such as the checks of passwords.
func (l *Limiter) checkNesting(v *verdict) {
	for o := v.outer; o != nil; o = o.outside() {
		for i := range o.items {
			switch r := o.items[i].rule; {
			case r.log == &l.log && !l.doubled.Swap(true):
				loggerOr(l.o.Logger).Warn("weir: request charged twice by one Limiter", "rule", r.Name, "likely", "the Limiter is around itself, or around the messages of its stream", "fix", "remove one of the two, or give each a Limiter of its own")
			case v.reason != 0 && r.global && !l.nested.Swap(true):
				loggerOr(l.o.Logger).Warn("weir: refused request has spent a quota that all clients share", "rule", l.rules[0].Name, "other_rule", r.Name, "effect", "one client can use up other_rule, which the Limiter around this one has charged", "fix", "unless other_rule bounds what runs between the two, put both rules into one Limiter")
			}
		}
	}
}

// Two errors show only in the process as a whole, so these are globals.
var (
	handlerMade remade.Count // Limiters, by the name of their first rule

	// made has the Limiters that the process has made lately. It keeps none of them alive.
	made struct {
		mu       sync.Mutex
		limiters [256]weak.Pointer[Limiter]
		n        int             // how many were made
		warned   map[string]bool // rules, at most as many as there are limiters
	}
)

// checkWiring warns of a period that is probably a number without a unit, if a handler seems
// to make a Limiter for each request, and if a rule of another Limiter over the same store has
// the name of a rule of l and other limits.
func (l *Limiter) checkWiring() {
	for _, r := range l.rules {
		for i := range r.policies {
			if p := r.policies[i].limit.Period; p < time.Millisecond {
				loggerOr(l.o.Logger).Warn("weir: period of a limit below a millisecond", "rule", r.Name, "limit", r.policies[i].limit.Name, "period", period.Rounded(p), "likely", "a time.Duration without a unit counts nanoseconds")
			}
		}
	}
	handler, purposely := remade.Callers()
	if purposely {
		return
	}
	if name := l.rules[0].Name; handler && handlerMade.Again(name, time.Now()) {
		loggerOr(l.o.Logger).Warn("weir: limiters of one rule made again and again by a handler", "rule", name, "effect", "each forgets what earlier requests did", "fix", "make one, and its store, before the server starts")
	}
	made.mu.Lock()
	defer made.mu.Unlock()
	for i := range made.limiters {
		if other := made.limiters[i].Value(); other != nil && compare.Equal(l.store, other.store) {
			l.compare(other)
		}
	}
	made.limiters[made.n%len(made.limiters)] = weak.Make(l)
	made.n++
}

// compare warns, once for each name, of rules of l and other that share counts under different
// numbers. The caller holds made.mu.
func (l *Limiter) compare(other *Limiter) {
	for _, a := range l.rules {
		for _, b := range other.rules {
			x, y := a.conflict(b)
			if x == nil || made.warned[a.Name] || len(made.warned) == len(made.limiters) {
				continue
			}
			if made.warned == nil {
				made.warned = map[string]bool{}
			}
			made.warned[a.Name] = true
			loggerOr(l.o.Logger).Warn("weir: rule of one name in two Limiters over one store", "rule", a.Name, "limits", x.String(), "other_limits", y.String(), "effect", "the limits differ, and share their counts", "fix", "give the rules different names")
		}
	}
}

// conflict returns a limit of each of two rules if these limits share their counts, although
// their numbers differ.
func (r *rule) conflict(other *rule) (x, y *Limit) {
	if r.Name != other.Name {
		return nil, nil
	}
	for i := range r.policies {
		for j := range other.policies {
			x, y := &r.policies[i].limit, &other.policies[j].limit
			if x.StoredName() == y.StoredName() && x.Algorithm.Name() == y.Algorithm.Name() && (x.Quota != y.Quota || x.Period != y.Period || x.Burst != y.Burst) {
				return x, y
			}
		}
	}
	return nil, nil
}
