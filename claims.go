package weir

import (
	"context"
	"errors"
	"hash/maphash"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/answer"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/outbound"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/recorder"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// A claim describes what one rule charges for one request: units of a key, under each limit of a
// policy.
type claim struct {
	*policy // the policy of the rule, of the request or of the key
	key     string
	cost    int64
	first   int32 // index of the claim's first charge and decision; each limit has one of each
	ban     int16 // index of the look-up of the key's ban, if the rule has a Penalty
	leaves  int8  // percentage of each limit that the request must leave to other classes
}

// pick returns those of the decisions that belong to the claim.
func (c *claim) pick(decisions []quota.Decision) []quota.Decision {
	return decisions[c.first:][:len(c.limits)]
}

// charge returns the claim's charge under limit i.
func (c *claim) charge(i int) quota.Charge {
	l, headroom := c.limits[i].Limit, c.limits[i].Headroom(int(c.leaves))
	l.Period += c.rule.Buffer
	return quota.Charge{Rule: c.rule.Name, Key: c.key, Limit: l, Cost: c.cost, Headroom: headroom}
}

// leavesHeadroom reports whether the request must leave headroom under a rule, and therefore cannot
// wait.
func (s *snapshot) leavesHeadroom() bool {
	return slices.ContainsFunc(s.claims, func(c claim) bool { return c.leaves > 0 })
}

// A decision is everything that a Limiter knows about one request, from its claims to the response.
// Decisions are recycled, so only the Limiter may refer to one. Code outside the Limiter uses a
// snapshot.
type decision struct {
	snapshot
	request  *http.Request
	tx       quota.Transaction // the charges of the claims, followed by the look-ups during the call to the store
	lookups  []quota.Charge    // charges that look up bans and pauses and spend nothing
	calls    context.Context   // context with the quota.Budget of all store calls; nil if they share none
	sender   *transport        // the transport that sends the request; nil for incoming requests
	shadow   *decision         // the decision under the rules in shadow, which refuses nothing; nil if there are none
	inShadow bool              // this is the decision under the rules in shadow

	err      error         // the error of the store or a Policy because of which no decision was made
	passed   bool          // OnError allows the request, although no decision was made
	refusal  refusal       // memory to which why points
	took     time.Duration // by the call to the store
	banBegan bool

	counted bool          // the request is counted in Limiter.waiting
	line    *atomic.Int64 // the element of Limiter.lines that counts the request, or nil
	slept   time.Duration // how long the request has waited for units in flight
}

// A refusal is the only place that records why a request was refused, or why no decision
// was possible.
type refusal struct {
	Refusal
	by  *rule  // the rule that refused the request; nil after an error
	key string // the key that was refused
}

var noRefusal refusal

// refuse refuses the request, and replaces an earlier refusal. It is given the rule that refuses
// the request and the rule's name. A nil rule means that the store failed or reported a pause, or
// that a Policy was invalid.
func (d *decision) refuse(reason Reason, name string, wait time.Duration, by *rule, key string) {
	why := &d.refusal // field by field, because copying the whole struct takes 8 ns
	why.Reason, why.Rule, why.RetryAfter, why.Limit, why.Status = reason, name, wait, "", by.statusOf(reason)
	why.by, why.key = by, key
	d.why = why
}

// refused reports whether the request is neither admitted nor allowed by OnError.
func (d *decision) refused() bool { return d.why.Reason != 0 && !d.passed }

// newDecision returns an empty decision for the request r, either recycled or new.
func (l *Limiter) newDecision(r *http.Request) *decision {
	d, _ := l.pool.Get().(*decision)
	if d == nil {
		d = &decision{}
	}
	d.Context, d.request, d.why = r.Context(), r, &noRefusal
	if d.outer, d.front = snapshotOf(d.Context), l; d.outer != nil {
		d.front = d.outer.front
	}
	return d
}

// decide obtains the decision on a request. An admitted request waits for its slot, for up to
// maxWait. If the request's context ends first, decide returns the context's error. If the store
// fails, decide does not call observe. Its caller does, once it knows whether the request is
// allowed.
func (l *Limiter) decide(d *decision, maxWait time.Duration) (ended error) {
	done := false
	if l.concurrent {
		defer l.releaseUnless(&done, d)
	}
	l.collect(d)
	if d.why.Reason == 0 && maxWait > 0 {
		ended = l.takeAndWait(d, maxWait)
	} else {
		if d.why.Reason == 0 {
			l.take(d)
		}
		if d.err == nil {
			l.observe(d)
		}
	}
	done = true
	return ended
}

// releaseUnless is deferred. It releases the units in flight that the request has spent, unless
// *done is true. If *done is false, a user's function such as Observe has panicked.
func (l *Limiter) releaseUnless(done *bool, d *decision) {
	if *done || d.why.Reason != 0 || len(d.decisions) == 0 {
		return
	}
	if release := l.hold(d); release != nil {
		release()
	}
}

// collect collects the claims of all rules. If a rule refuses the request without a call to the
// store, for example because the key is denied, missing, or known to be banned, collect removes the
// claims again.
func (l *Limiter) collect(d *decision) {
	if l.policies { // the lookups of a Policy function must go on when the client hangs up
		d.request = d.request.WithContext(context.WithoutCancel(d.Context))
	}
	for _, rule := range l.rules {
		p, key, leaves := rule.claim(d)
		switch {
		case p.kind == allowedKind:
		case !rule.Enforce.Enforces(rule.Name, key):
			l.addShadow(d, rule, p, key, leaves)
		default:
			d.addClaim(rule, p, key, leaves)
		}
		if d.why.RetryAfter == quota.Never {
			break // no other refusal could be longer
		}
	}
	if d.why.Reason != 0 && d.why.Reason != ReasonError {
		d.err = nil
		d.claims, d.lookups, d.tx.Charges = d.claims[:0], d.lookups[:0], d.tx.Charges[:0]
	}
}

// carryBack copies to the request r the changes that the rules' functions have made to the copy of
// r that collect passed to them.
func (d *decision) carryBack(r *http.Request) {
	if d.request != r {
		body := d.request.Body
		if recorder.CarryBack(r, d.request, nil); !safe.Equal(r.Body, body) {
			r.Body = body
		}
		d.request = r
	}
}

// addClaim adds the claim of an enforced rule, and look-ups of a ban and a pause of the claim's
// key. It adds nothing if the request is already refused.
func (d *decision) addClaim(rule *rule, p *policy, key string, leaves int8) {
	ban := int16(len(d.lookups))
	switch p.kind {
	case deniedKind:
		d.refuse(ReasonDeny, rule.Name, quota.Never, rule, key)
	case missingKind:
		d.refuse(ReasonNoKey, rule.Name, quota.Never, rule, key)
	case limitedKind:
		if rule.penalty != nil {
			d.lookUpBan(rule, key)
		}
	}
	switch {
	case d.why.Reason != 0:
	case p.err != nil:
		d.err = p.err
		d.refuse(ReasonError, rule.Name, 0, nil, "")
	case p.kind == limitedKind:
		c := d.add(rule, p, key, leaves)
		c.ban = ban
		if d.sender != nil {
			d.sender.lookUpPause(d, c)
		}
	}
}

// addShadow adds the claim of a rule in shadow. It adds nothing if the request is already refused.
func (l *Limiter) addShadow(d *decision, rule *rule, p *policy, key string, leaves int8) {
	switch {
	case d.why.Reason != 0:
	case p.err != nil:
		l.log.warn(d.Context, "rule in shadow skipped", rule.Name, p.err)
	case p.kind == limitedKind:
		if d.shadow == nil {
			d.shadow = &decision{inShadow: true}
			d.shadow.Context, d.shadow.why, d.shadow.request = d.Context, &noRefusal, d.request
		}
		d.shadow.add(rule, p, key, leaves)
	}
}

// add adds a claim and its charges. A recycled decision usually still contains the same claims from
// an earlier request, and add then changes only their keys and costs.
func (d *decision) add(rule *rule, p *policy, key string, leaves int8) *claim {
	c := extend(&d.claims)
	known := c.policy == p && rule.Class == nil // all earlier claims are then known too
	if !known {
		clear(d.claims[len(d.claims):cap(d.claims)])
		c.policy, c.first = p, int32(len(d.tx.Charges))
	}
	c.key, c.cost, c.leaves = key, rule.cost(d.request), leaves
	for i := range p.limits {
		charge := extend(&d.tx.Charges)
		if !known || charge.Limit.Period == 0 {
			*charge = c.charge(i)
			continue
		}
		charge.Key, charge.Cost = key, c.cost
	}
	return c
}

// extend appends an element to a slice and returns a pointer to the element, whose fields may still
// have values from an earlier use.
func extend[T any](s *[]T) *T {
	n := len(*s)
	if n == cap(*s) {
		*s = append(*s, *new(T))
	} else {
		*s = (*s)[:n+1]
	}
	return &(*s)[n]
}

// take calls the store once, to evaluate all charges and look-ups. Then the limits, the pauses and
// the bans, in this order, may refuse the request. If the request's context ends while the request
// waits for units in flight to be released, take returns the context's error.
func (l *Limiter) take(d *decision) (ended error) {
	t, n := &d.tx, len(d.tx.Charges)
	if n == 0 {
		return nil
	}
	if len(d.lookups) > 0 {
		t.Charges = append(t.Charges, d.lookups...)
	}
	if ended, d.err = l.call(d); d.err != nil {
		d.refuse(ReasonError, t.Charges[0].Rule, 0, nil, t.Charges[0].Key)
	} else {
		d.decisions, d.at, d.replicas = t.Decisions[:n], t.At.UnixMicro(), int32(t.Replicas)
		if !t.Allowed() { // this check is inlined, so admitted requests cost no call
			d.applyLimits()
		}
		if d.sender != nil && ended == nil {
			d.applyPauses()
		}
		if l.bans && ended == nil {
			l.applyBans(d)
		}
	}
	if len(t.Charges) > n { // Observe does not see the look-ups in the transaction
		clear(t.Charges[n:]) // otherwise add would take them for charges of earlier claims
		t.Charges, t.Decisions, d.lookups = t.Charges[:n], t.Decisions[:min(n, len(t.Decisions))], d.lookups[:0]
	}
	if t.Wait > 0 && d.refused() { // the limits reserved a slot, but a ban or a pause refuses the request
		l.refund(d)
	}
	return ended
}

// applyLimits refuses the request if a limit refuses it.
func (d *decision) applyLimits() {
	for i := range d.claims {
		c := &d.claims[i]
		decisions := c.pick(d.decisions)
		for j := range decisions {
			wait := decisions[j].RetryAfter
			if !decisions[j].Allowed && (d.why.Reason == 0 || wait > d.why.RetryAfter) {
				d.refuse(ReasonLimit, c.rule.Name, wait, c.rule, c.key)
				d.refusal.Limit = c.limits[j].Name
			}
		}
	}
}

// call calls the store. If there is an observer, call measures how long the store takes. It does
// not measure a store in memory, because reading the clock would take as long as that store. If the
// request's context ends while the request waits for units in flight to be released, ended is the
// context's error.
func (l *Limiter) call(d *decision) (ended, err error) {
	store := l.store
	if d.inShadow {
		store = l.unpaid
	}
	switch {
	case d.tx.Within > 0 && l.concurrent && !d.inShadow:
		return l.callInLine(d)
	case l.instant:
		return nil, store.Take(context.Background(), &d.tx)
	case l.o.Observe == nil:
		return nil, store.Take(l.callContext(d), &d.tx)
	}
	start := time.Now()
	err = store.Take(l.callContext(d), &d.tx)
	d.took = time.Since(start)
	return nil, err
}

// callContext returns the context for a call to the store. All calls before the response share one
// quota.Budget, so that together they take at most as long as a single call may take.
func (l *Limiter) callContext(d *decision) context.Context {
	switch {
	case l.instant, d.calls == nil && !l.settles && !l.bans && d.shadow == nil:
		return context.WithoutCancel(d.Context)
	case d.calls == nil:
		d.calls = quota.WithBudget(context.WithoutCancel(d.Context))
	}
	return d.calls
}

// callInLine calls the store for a request that may first wait until units in flight are released.
func (l *Limiter) callInLine(d *decision) (ended, err error) {
	start := time.Now()
	d.slept, err = quota.TakeInLine(d.Context, l.store, &d.tx)
	if !l.instant {
		d.took = time.Since(start) - d.slept
	}
	if err != nil && err == d.Err() && len(d.tx.Decisions) == len(d.tx.Charges) {
		return err, nil // the store has refused the request, and no units were released before the context ended
	}
	return nil, err
}

// takeAndWait is like take, but the request may get a slot that begins up to maxWait later.
// takeAndWait waits until the slot begins.
func (l *Limiter) takeAndWait(d *decision, maxWait time.Duration) error {
	d.tx.Within = l.startWaiting(d, maxWait)
	defer l.stopWaiting(d) // even if the store panics; deferring it in decide would cost every request 17 ns
	ended := l.take(d)
	if d.err != nil {
		return nil
	}
	if !d.refused() {
		d.tx.Wait += d.slept
	}
	l.observe(d)
	if d.refused() || d.tx.Wait <= d.slept {
		return ended
	}
	if err := period.Sleep(d.Context, d.tx.Wait-d.slept); err != nil {
		l.refund(d)
		return err
	}
	return nil
}

// startWaiting returns how long a request may wait: at most maxWait, and at most until the deadline
// of its context. It returns 0 if the request must leave headroom. It returns noWait if no time is
// left, or if too many requests already wait (see mayWait). A request that may wait is counted
// until stopWaiting is called. Counting begins before the call to the store, because otherwise more
// than MaxWaiting requests could wait.
func (l *Limiter) startWaiting(d *decision, maxWait time.Duration) time.Duration {
	if d.leavesHeadroom() {
		return 0
	}
	within := maxWait
	if deadline, ok := d.Deadline(); ok {
		within = max(0, min(within, time.Until(deadline)))
	}
	if within == 0 || !l.mayWait(d) {
		return noWait
	}
	return within
}

// mayWait counts a request as waiting and returns true. It returns false, and does not count the
// request, if MaxWaiting requests already wait, or if maxOfKey requests already wait with the same
// key under a concurrency limit.
func (l *Limiter) mayWait(d *decision) bool {
	if l.waiting.Add(1) > int64(l.o.MaxWaiting) {
		l.waiting.Add(-1)
		return false
	}
	d.counted = true
	if d.line = l.lineOf(d); d.line != nil && d.line.Add(1) > int64(l.o.maxOfKey()) {
		l.stopWaiting(d)
		return false
	}
	return true
}

// maxOfKey is the maximum number of the MaxWaiting requests that may have the same key under a
// concurrency limit, so that one client cannot fill the queue.
func (o *Options) maxOfKey() int { return max(10, o.MaxWaiting/10) }

// lineOf returns the count of the requests that wait with the key of the first concurrency limit,
// or nil if there is no such limit or all clients share its key. Keys with the same hash share a
// count.
func (l *Limiter) lineOf(d *decision) *atomic.Int64 {
	for i := range d.claims {
		if c := &d.claims[i]; c.inFlight && !c.rule.global {
			return &l.lines[maphash.String(policySeed, c.key)%uint64(len(l.lines))]
		}
	}
	return nil
}

func (l *Limiter) stopWaiting(d *decision) {
	if d.counted {
		d.counted = false
		l.waiting.Add(-1)
		if d.line != nil {
			d.line.Add(-1)
			d.line = nil
		}
	}
}

// noWait is the Within of a request that must not wait. It is not 0, because a LeakyBucket with
// Within 0 admits a whole burst at once instead of spacing the requests.
const noWait = time.Microsecond

// refund refunds the units of a request that does not use its slot.
func (l *Limiter) refund(d *decision) {
	if err := quota.Refund(context.WithoutCancel(d.Context), l.store, &d.tx); err != nil {
		l.log.warn(d, "units not refunded", d.tx.Charges[0].Rule, err) // if it fails, the units stay spent
	}
	d.tx.Wait = 0
}

// fail calls OnError, which allows or refuses a request for which no decision was possible.
func (l *Limiter) fail(d *decision) {
	defer l.observe(d) // even if OnError panics
	d.claims, d.decisions = nil, nil
	if l.o.OnError(d.request, d.err) == nil {
		d.passed = true
		return
	}
	if errors.Is(d.err, quota.ErrBusy) {
		d.why.RetryAfter = time.Second // an overloaded store may soon have capacity again
	}
}

// failOpen is the default of OnError. It allows requests during an outage, which ends by itself and
// which no client can cause. It refuses them after any other error.
func failOpen(_ *http.Request, err error) error {
	if errors.Is(err, quota.ErrBusy) || errors.Is(err, quota.ErrUnusable) || errors.Is(err, quota.ErrLimit) {
		return err
	}
	return nil
}

// observe calls Observe with the decision, and logs its error.
func (l *Limiter) observe(d *decision) {
	if d.err != nil || l.o.Observe != nil { // this check is inlined, so most limiters cost no call
		l.report(d)
	}
}

// report logs the error of a decision, and calls Observe. If all of a request's rules are in
// shadow, Observe receives only the decision under these rules. If a pause refuses the request, it
// may wait for the end of the pause, so waitOutPause calls notify if the request is not sent.
func (l *Limiter) report(d *decision) {
	switch {
	case d.err == nil && d.why.Reason == 0 && len(d.tx.Charges) == 0 && d.shadow != nil:
	case d.why.Reason == ReasonPause:
	default:
		l.notify(d)
	}
}

func (l *Limiter) notify(d *decision) {
	if d.err != nil {
		log, attrs := &l.log, []any{"passed", d.passed}
		switch {
		case d.passed:
			log = &l.passed
		case d.inShadow: // rules in shadow refuse nothing
			attrs = []any{"shadow", true}
		}
		log.warn(d, "request not decided", d.why.Rule, d.err, attrs...)
	}
	if l.o.Observe != nil {
		l.o.Observe(Event{
			Request: d.request, Transaction: &d.tx, Refusal: d.why.Refusal, Key: d.why.key, Err: d.err,
			Passed: d.passed, Took: d.took, Shadow: d.inShadow, BanBegan: d.banBegan,
		})
	}
}

// begin charges the rules in shadow and holds the units in flight of an admitted request that is
// about to be served or sent. The caller calls end, unless it is nil, when the request is over,
// even if a handler has panicked.
func (l *Limiter) begin(d *decision) (end func()) {
	if !l.concurrent && d.shadow == nil { // this check is inlined, so most limiters cost no call
		return nil
	}
	return l.beginHeld(d)
}

// beginHeld is the part of begin that is not inlined. If a store panics, beginHeld releases the
// units in flight.
func (l *Limiter) beginHeld(d *decision) (end func()) {
	done := false
	defer l.releaseUnless(&done, d)
	if d.shadow != nil {
		l.takeShadow(d)
	}
	done = true
	end = l.hold(d)
	if d.shadow == nil || d.shadow.why.Reason != 0 {
		return end
	}
	inShadow := l.hold(d.shadow)
	switch held := end; {
	case held == nil:
		return inShadow
	case inShadow == nil:
		return held
	default:
		return func() { held(); inShadow() }
	}
}

// takeShadow charges the rules in shadow. It is called at the beginning of the request's slot,
// because the wait that these rules would cause is measured from there.
func (l *Limiter) takeShadow(d *decision) {
	s, done := d.shadow, false
	s.request, s.calls = d.request, l.callContext(d)
	defer l.releaseUnless(&done, s)
	if d.tx.Within > 0 && !s.leavesHeadroom() {
		s.tx.Within = max(d.tx.Within-d.tx.Wait, noWait)
	}
	if _, s.err = l.call(s); s.err != nil {
		s.refuse(ReasonError, s.tx.Charges[0].Rule, 0, nil, s.tx.Charges[0].Key)
	} else {
		s.decisions = s.tx.Decisions
		s.applyLimits()
	}
	l.report(s)
	done = true
}

// hold keeps the request's units in flight reserved until release is called. If the request has
// spent no such units, hold returns nil.
func (l *Limiter) hold(d *decision) (release func()) {
	for i := range d.claims {
		if d.claims[i].inFlight {
			return quota.Keep(context.WithoutCancel(d.Context), l.store, &d.tx, l.log.held)
		}
	}
	return nil
}

// lookUpPause adds a look-up of the key's pause. It refuses the request if the server has reported
// that fewer units are left for the key than the request costs.
func (t *transport) lookUpPause(d *decision, c *claim) {
	d.lookups = append(d.lookups, ban.LookupPause(c.rule.Name, c.key))
	key := outbound.Key{Rule: c.rule.Name, Key: c.key}
	if wait := t.l.left.Wait(key, c.cost); wait > d.why.RetryAfter {
		d.refuse(ReasonPause, c.rule.Name, wait, c.rule, c.key)
	}
}

// applyPauses refuses the request if a key is paused, unless a limit already refuses it for at
// least as long.
func (d *decision) applyPauses() {
	for i := range d.lookups {
		c, on := &d.lookups[i], &d.tx.Decisions[len(d.decisions)+i]
		if ban.IsPause(c) && !on.Allowed && (d.why.Reason == 0 || on.RetryAfter > d.why.RetryAfter) {
			d.refuse(ReasonPause, c.Rule, on.RetryAfter, nil, c.Key)
		}
	}
}

// lookUpBan refuses a request whose key this process knows to be banned. If several rules have
// banned keys of the request, the longest ban applies. If no ban is known, lookUpBan adds a look-up
// of the key's ban.
func (d *decision) lookUpBan(rule *rule, key string) {
	if rest := rule.penalty.Known(key); rest > d.why.RetryAfter {
		d.refuse(ReasonBan, rule.Name, rest, rule, key)
	}
	if d.why.Reason == 0 {
		d.lookups = rule.penalty.AppendLookups(d.lookups, key)
	}
}

// applyBans refuses the request if one of its keys is banned. A key is banned if the store reports
// a ban, or if a limit has just refused the request and this strike begins a ban. If only a ban
// refuses the request, the store has charged it, so applyBans releases its units in flight.
func (l *Limiter) applyBans(d *decision) {
	wait, longest, charged := d.why.RetryAfter, time.Duration(0), !d.refused()
	var by *claim
	for i := range d.claims {
		c := &d.claims[i]
		if c.rule.penalty == nil {
			continue
		}
		// A refusal counts as a strike even if the client has hung up. A refusal for lack of
		// headroom does not count, because a ban would refuse all classes.
		rest, began, err := c.rule.penalty.Apply(l.callContext(d), d.lookups[c.ban:],
			d.tx.Decisions[len(d.decisions)+int(c.ban):], c.leaves == 0 && d.refusedUnder(c))
		if err != nil {
			l.log.warn(d.Context, "strike not counted", c.rule.Name, err)
		}
		d.banBegan = d.banBegan || began
		if rest > longest {
			longest, by = rest, c
		}
	}
	if by == nil {
		return
	}
	d.refuse(ReasonBan, by.rule.Name, max(wait, longest), by.rule, by.key)
	if charged && d.tx.Wait == 0 { // if the request had to wait, take refunds all its units
		if release := l.hold(d); release != nil {
			release()
		}
	}
}

// refusedUnder reports whether a limit of a claim refuses the request. A limit that has room within
// tx.Within only delays the request. A limit that is a queue is an exception: if its decision is
// not Allowed, it refuses the request even if RetryAfter is shorter than tx.Within.
func (d *decision) refusedUnder(c *claim) bool {
	for i, on := range c.pick(d.decisions) {
		_, queue := c.limits[i].Algorithm.(optional.Queuer)
		if !on.Allowed && (queue || on.RetryAfter > d.tx.Within) {
			return true
		}
	}
	return false
}

// claim returns the policy and the key of the rule's claim on a request, and the percentage of each
// limit that the claim leaves to other classes.
func (rule *rule) claim(d *decision) (p *policy, key string, leaves int8) {
	key, ok := rule.Key(d.request)
	if !ok || len(key) == 0 || key[0] == 0 || rule.keyless.isOpen() {
		key, ok = rule.unusualKey(d.request, key, ok)
	}
	p = rule.own
	if rule.Policy != nil || rule.ForKey != nil {
		p = rule.policyFor(d, key, ok)
	}
	if !ok && p.kind != deniedKind && p.kind != allowedKind {
		p = allowedPolicy
		if rule.NoKey == NoKeyRefuse {
			p = missingPolicy
		}
	}
	if rule.Class != nil {
		class, _ := rule.Class(d.request)
		if leaves = int8(rule.Headroom[class]); rule.classless.isOpen() {
			rule.checkClass(class, leaves > 0)
		}
	}
	return p, storedkey.Of(key), leaves
}

// policyFor returns the policy of a request under a rule that has a Policy or ForKey function. The
// policy of a request without a key (if ok is false) matters only if it allows or denies the
// request.
func (rule *rule) policyFor(d *decision, key string, ok bool) *policy {
	var ofKey, ofRequest Policy
	if rule.ForKey != nil && ok {
		ofKey = rule.ForKey(key)
	}
	if rule.Policy != nil && ofKey.kind != allowedKind {
		ofRequest = rule.Policy(d.request)
	}
	switch strongest := max(ofKey.kind, ofRequest.kind); {
	case strongest == allowedKind:
		return allowedPolicy
	case strongest == deniedKind:
		return deniedPolicy
	case ofKey.kind == unlimitedKind || !ok:
		return unlimitedPolicy
	}
	base := rule.own
	switch ofRequest.kind {
	case limitedKind:
		if base = rule.countable(d.Context, ofRequest.limits); base.err != nil {
			return base
		}
	case unlimitedKind:
		base = unlimitedPolicy
	}
	if ofKey.kind == limitedKind {
		p := rule.limited(ofKey.limits, base)
		if p.err == nil {
			return p
		}
		rule.limiter.log.warn(d.Context, "policy of ForKey ignored", rule.Name, p.err)
	}
	return base
}

// cost returns how many units a request costs. If Cost returns a negative number, cost returns
// math.MaxInt64, which never fits.
func (rule *rule) cost(r *http.Request) int64 {
	if rule.Cost == nil && !rule.FreePreflights { // this check is inlined, so most rules cost no call
		return 1
	}
	return rule.checkedCost(r)
}

func (rule *rule) checkedCost(r *http.Request) int64 {
	switch {
	case rule.FreePreflights && preflight(r):
		return 0
	case rule.Cost == nil:
		return 1
	}
	cost := rule.Cost(r)
	switch {
	case cost < 0:
		if rule.negative.add() {
			rule.warnOnce("cost negative in each of the first 200 requests", "they were refused", negativeLikely)
		}
		cost = math.MaxInt64
	case cost == 0:
		if rule.costless.add() {
			rule.warnOnce("cost 0 in each of the first 200 requests", "none of them was limited", costlessLikely)
		}
		rule.negative.end()
		return 0
	default:
		rule.negative.end()
	}
	rule.costless.end()
	return cost
}

// unusualKey returns the key under which a request is limited. It is called if the request's key is
// missing, is empty or begins with a zero byte, or if the rule has not found a key yet.
func (rule *rule) unusualKey(r *http.Request, key string, ok bool) (string, bool) {
	switch {
	case !ok:
		switch n := rule.keyless.countFault(); {
		case n == streakLength:
			rule.warnOnce("key missing in each of the first 200 requests", keylessEffects[rule.NoKey], keylessLikely)
		case n == triedLength && rule.NoKey == NoKeySkip && isTried(r):
			rule.keyless.end() // one line is enough
			rule.warnOnce("key missing in each of the first 5 requests", keylessEffects[rule.NoKey], keylessLikely)
		}
		return noKey, rule.NoKey == NoKeyShare
	case key == "" && !rule.global && rule.emptied.CompareAndSwap(false, true):
		rule.warnOnce("key empty", "all requests with an empty key share one quota", emptyLikely)
	case key != "" && key[0] == 0 && rule.NoKey == NoKeyShare:
		key = noKey + key
	case hasPort(key, r.RemoteAddr) && rule.emptied.CompareAndSwap(false, true):
		rule.warnOnce("port of the peer in a key", "a client has a fresh quota with each connection",
			"the function returns RemoteAddr, which is an address and a port; weir.ByIP returns the address")
	}
	rule.keyless.end()
	return key, true
}

// hasPort reports whether a key contains the address and the port of a peer.
func hasPort(key, remote string) bool {
	if !strings.Contains(key, remote) { // first, because each request has the empty key of Global
		return false
	}
	_, err := netip.ParseAddrPort(remote)
	return err == nil
}

// isTried reports whether r seems to come from a developer who tries the program on their own
// machine, without a proxy.
func isTried(r *http.Request) bool {
	local := strings.HasPrefix(r.RemoteAddr, "127.") || strings.HasPrefix(r.RemoteAddr, "[::1]:")
	return local && r.Header["X-Forwarded-For"] == nil && r.Header["Forwarded"] == nil && r.Header["X-Real-Ip"] == nil
}

// statusOf returns the status of a refusal by the rule r, which may be nil, for the given reason.
func (r *rule) statusOf(reason Reason) int {
	switch {
	case reason == ReasonNoKey:
		return answer.MissingKey.Status
	case reason == ReasonError:
		return answer.ReducedCapacity.Status
	case r == nil:
		return answer.QuotaExceeded.Status
	}
	return r.exceeded.Status
}

// preflight reports whether a request is a CORS preflight, which a browser sends by itself,
// without a body or credentials (Fetch standard, CORS-preflight request). A client
// certificate belongs to the connection and is ignored.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Header["Expect"]) == 0 && len(r.Header["Upgrade"]) == 0 &&
		len(r.Header["Authorization"]) == 0 && len(r.Header["Proxy-Authorization"]) == 0 && len(r.Header["Cookie"]) == 0
}
