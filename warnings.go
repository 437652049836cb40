package weir

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"math"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"
	"weak"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

const noKey = "\x00" // the key of requests without a key under NoKeyShare

// The likely causes of the misconfigurations that are logged.
const (
	keylessLikely = "authentication runs after the limiter; the path value is read outside of the mux; " +
		"the value for ByContext is no string, integer or Stringer; " +
		"clients never send the field; or the rule is for few requests"
	emptyLikely = "the function returns \"\" and true for a request that it has no key for; " +
		"it should return false, and a key that all share is weir.Global()"
	costlessLikely = "the cost is not known before the handler runs; " +
		"Cost should return the most that a request may cost, and Settle the rest"
	negativeLikely = "ContentLength is -1, as for chunked bodies and gRPC calls; or Cost cannot read the body"
	unfitLikely    = "Cost counts another unit than the limits, such as bytes instead of kilobytes; " +
		"or the most that a request may cost is above the quota or the burst"
)

// The effect of a missing key. The index is the rule's NoKey.
var keylessEffects = [...]string{
	NoKeySkip: "none of them was limited", NoKeyShare: "they share one quota", NoKeyRefuse: "they were refused",
}

// check looks for signs of a misconfiguration in a complete decision. If the Logger panics, check
// calls end unless it is nil.
func (l *Limiter) check(d *decision, end func()) {
	if d.err != nil {
		return
	}
	done := end == nil
	defer func() {
		if !done {
			end()
		}
	}()
	if l.costs {
		checkCosts(d)
		if d.shadow != nil && d.shadow.err == nil {
			checkCosts(d.shadow)
		}
	}
	if d.sender == nil && d.tx.Within > noWait && !l.timed.Load() {
		l.checkWriteTimeout(d)
	}
	if d.outer != nil {
		l.checkNesting(d)
	}
	done = true
}

// checkCosts logs a warning if each of a rule's first requests costs more than one of the rule's
// limits can ever admit. For a concurrency limit, which also returns quota.Never while it is full,
// checkCosts compares the cost with the Quota. For negative costs there is a separate warning.
func checkCosts(d *decision) {
	for i := range min(len(d.claims), len(d.decisions)) {
		c := &d.claims[i]
		if c.rule.Cost == nil || c.cost == 0 || c.cost == math.MaxInt64 || !c.rule.unfit.isOpen() {
			continue
		}
		fits := true
		for j, on := range c.pick(d.decisions) {
			p := &c.limits[j]
			fits = fits && (on.RetryAfter != quota.Never || p.InFlight() && c.cost <= p.Quota)
		}
		if fits {
			c.rule.unfit.end()
		} else if c.rule.unfit.add() {
			c.rule.warnOnce("cost above the capacity of a limit in each of the first 200 requests",
				"no wait can admit them", unfitLikely)
		}
	}
}

// checkClass logs a warning if Headroom lists none of the classes of a rule's first requests.
// Requests without a class do not count. For ByUrgency, New has already checked the classes.
func (rule *rule) checkClass(class string, listed bool) {
	if listed {
		rule.classless.end()
	} else if like := rule.classLike(class); like != "" {
		if rule.classless.countFault() > 0 {
			rule.classless.end()
			rule.warnOnce("class not in Headroom", "its requests leave nothing to others", "Headroom has "+like+" with other letter case or spaces")
		}
	} else if class != "" && rule.classless.add() {
		rule.warnOnce("class without headroom in each of the first 200 requests with a class", "they leave nothing to others",
			"Class and Headroom spell the classes differently; or requests of the listed classes are rare")
	}
}

// classLike returns the class in Headroom that differs from class only in letter case or spaces, or "".
func (rule *rule) classLike(class string) string {
	for like := range rule.Headroom {
		if class != "" && fold(like) == fold(class) {
			return like
		}
	}
	return ""
}

// checkWriteTimeout warns once if a request may wait so long that the server's WriteTimeout expires
// before the response. It checks only the first request.
func (l *Limiter) checkWriteTimeout(d *decision) {
	s, ok := d.Value(http.ServerContextKey).(*http.Server)
	if !ok || l.timed.Swap(true) || s.WriteTimeout <= 0 || d.tx.Within < s.WriteTimeout {
		return
	}
	loggerOr(l.o.Logger).Warn("weir: option MaxWait not below WriteTimeout", "rule", l.rules[0].Name,
		"max_wait", period.Rounded(l.o.MaxWait), "timeout", period.Rounded(s.WriteTimeout),
		"effect", "a request that waits longer is charged and served, but its client gets no response",
		"fix", "set MaxWait below WriteTimeout by as much as handlers take")
}

// checkNesting warns once if l charges a request under a rule under which it has charged it before,
// or charges a key under a rule under which an outer Limiter has charged it. It also warns once if
// l refuses a request that an outer Limiter has already charged under a rule whose quota all
// clients share. The units charged there are not refunded, because the outer Limiter also bounds
// what runs between the two Limiters, such as password checks.
func (l *Limiter) checkNesting(d *decision) {
	for o := d.outer; o != nil; o = o.outer {
		for i := range o.claims {
			switch r := o.claims[i].rule; {
			case r.limiter == l && !l.doubled.Load() && d.repeats(&o.claims[i]) && !l.doubled.Swap(true):
				loggerOr(l.o.Logger).Warn("weir: request charged twice by one Limiter", "rule", r.Name,
					"likely", "the Limiter is around itself, around the messages of its stream, or around a handler that sends requests by its Transport",
					"fix", "remove one of the two, or give each a separate Limiter")
			case r.limiter != l && !l.repeated.Load() && d.repeats(&o.claims[i]) && !l.repeated.Swap(true):
				loggerOr(l.o.Logger).Warn("weir: request charged twice under one rule", "rule", r.Name,
					"likely", "a rule applies to a router, and in another Limiter to a group of its routes",
					"fix", "remove one of the two, or give the rules different names")
			case d.sender == nil && d.why.Reason != 0 && r.global && !l.nested.Swap(true):
				loggerOr(l.o.Logger).Warn("weir: refused request has spent a quota that all clients share",
					"rule", l.rules[0].Name, "other_rule", r.Name,
					"effect", "one client can use up other_rule, which the Limiter around this one has charged",
					"fix", "unless other_rule bounds what runs between the two, put both rules into one Limiter")
			}
		}
	}
}

// repeats reports whether d is charged under the rule of another claim, or charges the same key
// under a rule of the same name in the same store.
func (d *decision) repeats(other *claim) bool {
	for i := range d.claims {
		c := &d.claims[i]
		if c.rule == other.rule || c.rule.Name == other.rule.Name && c.key == other.key && safe.Equal(c.rule.limiter.store, other.rule.limiter.store) {
			return true
		}
	}
	return false
}

// Two misconfigurations involve several Limiters of the process, so globals are needed to detect them.
var (
	limitersMade sparse.Count // counts Limiters by the name of their first rule

	// made holds weak pointers to the last Limiters that the process has made.
	made struct {
		mu       sync.Mutex
		limiters [256]weak.Pointer[Limiter]
		n        int             // how many Limiters were made
		warned   map[string]bool // names of rules, at most as many as there are Limiters
	}
)

// A warning is logged if a program makes mostMade Limiters for one rule within a minute.
const mostMade = 10

// checkWiring logs a warning if a period is probably a number without a unit, if requests never
// wait in a queue or MaxWaiting has no effect, or if a penalty bans all clients. It also logs a
// warning if Limiters are created repeatedly for the same rule, or if another Limiter with the same
// store has a rule with the same name but different limits.
func (l *Limiter) checkWiring() {
	log := loggerOr(l.o.Logger)
	if l.o.MaxWaiting > 0 && l.o.MaxWait == 0 && sparse.Reloads.Load() == 0 {
		log.Warn("weir: option MaxWaiting without MaxWait", "effect", "no request waits", "fix", "set MaxWait")
	}
	for _, r := range l.rules {
		r.checkWiring(log)
	}
	if name := l.rules[0].Name; sparse.Reloads.Load() == 0 && limitersMade.Add(name, mostMade, time.Now()) {
		log.Warn("weir: ten limiters of one rule made within a minute", "rule", name,
			"likely", "a handler makes one for each request",
			"effect", "each forgets what earlier requests did, if its store is new too",
			"fix", "make one, and its store, before the server starts")
	}
	made.mu.Lock()
	defer made.mu.Unlock()
	for i := range made.limiters {
		if other := made.limiters[i].Value(); other != nil && sparse.Reloads.Load() == 0 && safe.Equal(l.store, other.store) {
			l.compare(other)
		}
	}
	made.limiters[made.n%len(made.limiters)] = weak.Make(l)
	made.n++
}

// checkWiring logs the warnings of Limiter.checkWiring that concern a single rule.
func (r *rule) checkWiring(log *slog.Logger) {
	if r.global && r.Penalty != nil {
		log.Warn("weir: penalty of a key that all clients share", "rule", r.Name,
			"effect", "the refusals of one client ban all of them", "fix", "set the Penalty in a rule with a key for each client, such as ByIP")
	}
	for i := range r.own.limits {
		x := &r.own.limits[i]
		if _, queue := x.Algorithm.(optional.Queuer); queue && r.limiter.o.MaxWait == 0 {
			log.Warn("weir: leaky bucket without MaxWait", "rule", r.Name, "limit", x.Name,
				"effect", "it refuses like a token bucket, and no request waits", "fix", "set MaxWait, or use TokenBucket or GCRA")
		}
		if x.Period < time.Millisecond {
			log.Warn("weir: period of a limit below a millisecond", "rule", r.Name,
				"limit", x.Name, "period", period.Rounded(x.Period), "likely", "a time.Duration without a unit counts nanoseconds")
		}
	}
}

var timeoutHandler = reflect.TypeOf(http.TimeoutHandler(nil, 0, ""))

// checkNext panics if next is nil. It logs a warning, once for each Limiter, if next is an
// http.TimeoutHandler, which may return while its handler is still running, and a rule has a
// concurrency limit. Package config calls Handler for each request.
func (l *Limiter) checkNext(next http.Handler) {
	if next == nil {
		panic("weir: Handler: next is nil")
	}
	if reflect.TypeOf(next) != timeoutHandler {
		return
	}
	i := slices.IndexFunc(l.rules, func(r *rule) bool { return r.own.inFlight })
	if i >= 0 && !l.timedOut.Swap(true) {
		loggerOr(l.o.Logger).Warn("weir: handler of type TimeoutHandler inside a concurrency limit", "rule", l.rules[i].Name,
			"effect", "after a timeout, the handler still runs, but no longer counts", "fix", "put the TimeoutHandler around the Limiter's Handler")
	}
}

// If both Limiters have a rule with the same name but different limits (see conflict), compare logs
// a warning, once for each such name. The caller holds made.mu.
func (l *Limiter) compare(other *Limiter) {
	for _, a := range l.rules {
		for _, b := range other.rules {
			x, y, effect := a.conflict(b)
			if x == nil || made.warned[a.Name] || len(made.warned) == len(made.limiters) {
				continue
			}
			if made.warned == nil {
				made.warned = map[string]bool{}
			}
			made.warned[a.Name] = true
			loggerOr(l.o.Logger).Warn("weir: rule of one name in two Limiters over one store", "rule", a.Name,
				"limits", x.String(), "other_limits", y.String(),
				"effect", effect, "fix", "give the rules different names")
		}
	}
}

// conflict compares two rules with the same name. Two of their limits are in conflict if they share
// counts although their Quota or Burst differ, or if they count separately only because their
// algorithms differ. For such limits, conflict returns a limit of each rule, and the effect of the
// conflict.
func (r *rule) conflict(other *rule) (x, y *Limit, effect string) {
	if r.Name != other.Name {
		return nil, nil, ""
	}
	for i := range r.own.limits {
		for j := range other.own.limits {
			x, y := &r.own.limits[i].Limit, &other.own.limits[j].Limit
			switch {
			case x.StoredName() != y.StoredName():
			case x.Algorithm.Name() != y.Algorithm.Name():
				return x, y, "the algorithms differ, so each counts alone"
			case x.Quota != y.Quota || x.Burst != y.Burst:
				return x, y, "the limits differ, and share their counts"
			}
		}
	}
	return nil, nil, ""
}

// An errorLog logs errors, at most one line a second, because every request causes an error while a
// store is down. A line contains what failed and the name of the rule, but no key.
type errorLog struct {
	logger *slog.Logger // nil means slog.Default()
	gate   sparse.Gate
}

// warn logs what happened, such as "request not decided", as a warning. ErrUnusable is logged as an
// error.
func (l *errorLog) warn(ctx context.Context, what, rule string, err error, attrs ...any) {
	unlogged, ok := l.gate.Pass()
	if !ok {
		return
	}
	level := slog.LevelWarn
	if errors.Is(err, quota.ErrUnusable) {
		level = slog.LevelError
	}
	attrs = append([]any{"rule", rule, "err", err, "cause", quota.Cause(err)}, attrs...)
	if unlogged > 0 {
		attrs = append(attrs, "unlogged", unlogged)
	}
	loggerOr(l.logger).Log(ctx, level, "weir: "+what, attrs...)
}

// held logs an error from quota.Keep.
func (l *errorLog) held(ctx context.Context, what, rule string, err error) {
	l.warn(ctx, what, rule, err)
}

// loggerOr returns l, or slog.Default() if l is nil.
func loggerOr(l *slog.Logger) *slog.Logger { return cmp.Or(l, slog.Default()) }

// A streak counts the first requests of a rule while all of them have the same fault. After the
// first request without the fault, n is streakLength and no longer changes.
type streak struct{ n atomic.Int32 }

// triedLength replaces streakLength if the requests seem to come from a developer, who does not
// send 200 requests to try a limit.
const triedLength = 5

// streakLength is the number of requests after which a warning is logged if all of a rule's
// requests so far had a fault. After a single request without the fault, the rule is considered
// correct.
const streakLength = 200

// isOpen reports whether the streak goes on: fewer than streakLength requests so far, all of them
// with the fault.
func (s *streak) isOpen() bool { return s.n.Load() < streakLength }

// end ends the streak, because a request does not have the fault.
func (s *streak) end() {
	if s.isOpen() {
		s.n.Store(streakLength)
	}
}

// countFault counts a request with the fault. It returns the length of the streak, or 0 if the
// streak has ended.
func (s *streak) countFault() int32 {
	if !s.isOpen() {
		return 0
	}
	return s.n.Add(1)
}

// add is like countFault, but only reports whether the streak has just reached streakLength.
func (s *streak) add() bool { return s.countFault() == streakLength }

// checkName looks at the name of the first limit that Policy has returned for a request. If isNew is
// true, no earlier request had the same limits.
func (rule *rule) checkName(limits []Limit, isNew bool) {
	if !isNew || len(limits) == 0 || limits[0].Name == "" || rule.firstName.Load() == limits[0].Name {
		rule.named.end() // a quota for each key, under one name, is fine
	} else if rule.firstName.CompareAndSwap(nil, strings.Clone(limits[0].Name)); rule.named.add() {
		rule.warnOnce("another limit in each of the first 200 requests", "none of them was limited, if the names of the limits differ",
			"Policy puts data of the request into the Name of a limit")
	}
}

// warnOnce logs that a rule is probably misconfigured. The caller ensures that each such line is
// logged only once for each rule of a Limiter.
func (rule *rule) warnOnce(what, effect, likely string) {
	loggerOr(rule.limiter.o.Logger).Warn("weir: "+what, "rule", rule.Name, "effect", effect, "likely", likely)
}
