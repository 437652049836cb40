package weir

import (
	"context"
	"net/http"
	"slices"
	"sync/atomic"
	"time"
)

// A verdict is what a Limiter decided about a request. It is the context of the
// handlers after it, and all the memory that outlives the decision.
type verdict struct {
	context.Context
	*Transaction // until it is released; Charges are those of items, in order
	items        []item
	outer        *verdict
	also         *also
	at           int64 // µs since 1970, of the transaction
	waited       time.Duration
	refused      bool
	free         bool // the request is charged nothing, and may be refused
	entered      bool // it has one of the places of those who may wait

	values [3]string
	buf    [32]byte
}

// also is what most verdicts lack.
type also struct {
	refusal  Refusal      // a ban or a deny
	key      string       // that it is about
	outbound bool         // waits for pauses
	shadow   Transaction  // charges that refuse nobody
	items    []item       // of shadow
	used     atomic.Int64 // see Report
}

type verdictKey struct{}

// asking is a verdict as the context of what is asked for it. It has the values
// of the request and does not end with it: a client that hangs up is charged.
type asking verdict

func (a *asking) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (a *asking) Done() <-chan struct{}                   { return nil }
func (a *asking) Err() error                              { return nil }
func (a *asking) Value(key any) any                       { return a.Context.Value(key) }

// newVerdict returns a verdict with room for the limits of the Limiter.
func (l *Limiter) newVerdict(r *http.Request) (v *verdict) {
	switch {
	case l.limits <= 1:
		m := new(struct {
			verdict
			items [1]item
		})
		v = &m.verdict
		v.items = m.items[:0]
	case l.limits <= 4:
		m := new(struct {
			verdict
			items [4]item
		})
		v = &m.verdict
		v.items = m.items[:0]
	default:
		v = &verdict{items: make([]item, 0, l.limits)}
	}
	v.Context = r.Context()
	v.outer, _ = v.Context.Value(verdictKey{}).(*verdict)
	if v.Transaction, _ = l.spare.Get().(*Transaction); v.Transaction == nil {
		v.Transaction = new(Transaction)
	}
	return v
}

// release lets another request use the transaction, unless somebody may still
// look at it.
func (l *Limiter) release(v *verdict) {
	if l.o.Observe != nil || l.settles {
		return
	}
	t := v.Transaction
	v.Transaction, v.at, v.waited = nil, t.At.UnixMicro(), t.Wait
	clear(t.Charges) // keys are not kept
	clear(t.next)    // nor logs
	*t = Transaction{Charges: t.Charges[:0], Decisions: t.Decisions[:0], Undo: t.Undo[:0], next: t.next[:0]}
	l.spare.Put(t)
}

// transaction returns what was decided, made again if it was released.
func (v *verdict) transaction() *Transaction {
	if v.Transaction != nil {
		return v.Transaction
	}
	t := &Transaction{At: time.UnixMicro(v.at), Wait: v.waited}
	for i := range v.items {
		it := &v.items[i]
		t.Charges = append(t.Charges, Charge{Rule: it.resource, Key: it.key, Limit: it.limit, Cost: it.cost})
		t.Decisions = append(t.Decisions, it.Decision)
	}
	if v.also != nil && v.also.refusal.Reason != 0 {
		t.Refusal = v.also.refusal
	} else {
		t.Refusal, _ = t.refusal()
	}
	return t
}

func (v *verdict) Value(key any) any {
	if key == (verdictKey{}) {
		return v
	}
	return v.Context.Value(key)
}

func (v *verdict) rare() *also {
	if v.also == nil {
		v.also = new(also)
	}
	return v.also
}

// decide charges the rules that apply to r and says in v whether they refuse it.
// Who would wait for maxWait does so afterwards; buffer lengthens every period.
func (l *Limiter) decide(v *verdict, r *http.Request, maxWait, buffer time.Duration) error {
	e := Event{Request: r, Transaction: v.Transaction}
	var rule string
	if rule, e.Err = l.charge(v, r, buffer); e.Err != nil {
		v.Refusal = Refusal{Reason: ReasonError, Rule: rule}
		return l.tellWatchers(v, e)
	}
	if v.refused {
		e.Key = v.also.key
		return l.tellWatchers(v, e)
	}
	within := l.enter(v, maxWait)
	waits := false
	defer func() { // even if the store panics
		if !waits {
			l.leave(v)
		}
	}()
	if len(v.Charges) > 0 {
		v.Within = within
		l.lookAtBans(v)
		v.waitForPauses()
		e.Took, e.Err = l.take((*asking)(v), v.Transaction)
		e.judge()
		if e.Err == nil {
			l.punish(v, &e)
		}
		v.hideLooks()
		if v.refused && v.Wait > 0 { // for a ban, and nobody will wait for the turn
			l.giveBack(v)
		}
		if v.free && v.Refusal.Reason == 0 {
			return nil // nothing was decided
		}
		if l.tellWatchers(v, e) != nil {
			return e.Err
		}
		v.refused = v.Refusal.Reason != 0
	}
	if v.also != nil && len(v.also.shadow.Charges) > 0 && !v.refused {
		t := &v.also.shadow
		t.Within = within
		e := Event{Request: r, Transaction: t, Shadow: true}
		e.Took, e.Err = l.take((*asking)(v), t)
		e.judge()
		if l.tellWatchers(v, e) != nil {
			v.also.shadow = Transaction{}
		}
	}
	waits = !v.refused && v.Wait > 0
	return nil
}

// giveBack gives back a turn that v does not use.
func (l *Limiter) giveBack(v *verdict) {
	if err := giveBack((*asking)(v), l.store, v.Transaction); err != nil {
		l.log.warn(v, v.Charges[0].Rule, err) // units that are lost are admitted to nobody
	}
	v.Wait = 0
}

// charge asks every rule what the request owes, or of those that guard whether they
// refuse it if it owes nothing: because it is free, because another refuses it, or
// because of an error. If there is an error it returns the name of the rule.
func (l *Limiter) charge(v *verdict, r *http.Request, buffer time.Duration) (failed string, err error) {
	for i := range l.rules {
		rule := &l.rules[i]
		spared := v.free || v.refused || err != nil
		if spared && !rule.guards() {
			continue
		}
		key, ok := rule.Key(r)
		if !ok && rule.DenyFrom == nil || ok && rule.Allow != nil && rule.Allow(key) || rule.AllowFrom != nil && rule.AllowFrom(r) {
			continue
		}
		whole := key
		key = StoredKey(key)
		t, items := v.Transaction, &v.items
		if rule.Shadow > 0 && rule.inShadow(key) {
			if spared {
				continue
			}
			t, items = &v.rare().shadow, &v.also.items
		} else {
			rule.refuse(v, r, whole, key, ok)
		}
		if !ok {
			continue
		}
		if spared || v.refused {
			if v.free && rule.bans != nil {
				v.Charges = append(v.Charges, rule.bans.charge(rule.bans.ban, key, 0))
			}
			continue
		}
		policies := rule.policies
		if rule.LimitsFor != nil {
			if policies, err = policiesOf(&rule.Rule, rule.LimitsFor(r.WithContext((*asking)(v)))); err != nil {
				failed = rule.Name
				continue
			}
		}
		cost := rule.cost(r)
		for j := range policies {
			// Field by field: a copy of what was just written would stall.
			t.Charges = append(t.Charges, Charge{})
			c := &t.Charges[len(t.Charges)-1]
			c.Rule, c.Key, c.Limit, c.Cost = rule.Name, key, policies[j].limit, cost
			c.Limit.Period += buffer
			*items = append(*items, item{})
			it := &(*items)[len(*items)-1]
			it.policy, it.key, it.cost = &policies[j], key, cost
		}
	}
	if v.refused { // what other rules would have charged is not
		clear(v.Charges) // keys are not kept
		v.Charges, v.Decisions, v.items = v.Charges[:0], v.Decisions[:0], v.items[:0]
		return "", nil
	}
	return failed, err
}

// refuse refuses a request without asking the store, if the rule does and no other has
// it wait for longer. The request has no key if the rule does not apply.
func (rule *rule) refuse(v *verdict, r *http.Request, whole, key string, applies bool) {
	var f Refusal
	if rule.DenyFrom != nil && rule.DenyFrom(r) || applies && rule.Deny != nil && rule.Deny(whole) {
		f = Refusal{ReasonDeny, rule.Name, Never}
	} else if applies && rule.bans != nil {
		if rest, wait := rule.bans.known.rest(key, v.free, func() int64 { return rule.cost(r) }); rest > 0 {
			f = Refusal{ReasonBan, rule.Name, wait}
		}
	}
	if f.Reason != 0 && (!v.refused || f.RetryAfter > v.Refusal.RetryAfter) {
		v.refuseFor(f, key)
	}
}

// refuseFor refuses the request of v, for a ban or a deny.
func (v *verdict) refuseFor(f Refusal, key string) {
	v.Refusal, v.refused = f, true
	v.rare().refusal, v.also.key = f, key
}

// tell writes what was decided into the response fields, along with what outer
// limiters decided on the same request.
func (l *Limiter) tell(h http.Header, v *verdict) {
	for i := range v.items {
		v.items[i].Decision = v.Decisions[i]
	}
	f := fieldWriter{h: h, values: v.values[:0], buf: v.buf[:0]}
	if len(v.items) > 0 {
		items := v.items
		for o := v.outer; o != nil; o = o.outer {
			items = slices.Concat(items, o.items)
		}
		f.write(l.o.Headers, items, v.At, v.refused)
	}
	if v.refused {
		f.writeRetryAfter(l.o.Headers, v.RetryAfter())
	}
	if l.expose != nil {
		h[exposeField] = append(h[exposeField], l.expose...)
	}
}

// refuse answers a request that was refused.
func (l *Limiter) refuse(w http.ResponseWriter, r *http.Request, v *verdict) {
	if l.o.OnLimited == nil {
		v.refuse(w, r)
		return
	}
	l.o.OnLimited.ServeHTTP(w, r.WithContext(v))
}

// Refuse is OnLimited unless another is given: it answers 429 with problem
// details of the type quota-exceeded, text or HTML, as the client prefers.
func Refuse(w http.ResponseWriter, r *http.Request) {
	if v, ok := r.Context().Value(verdictKey{}).(*verdict); ok {
		v.refuse(w, r)
		return
	}
	quotaExceeded.write(w, r)
}

// refuse names the limits that refused: mostly it is one, and its answer ready.
func (v *verdict) refuse(w http.ResponseWriter, r *http.Request) {
	if v.also != nil && v.also.refusal.Reason != 0 {
		abnormalUsage.write(w, r)
		return
	}
	var one *policy
	n := 0
	for i := range v.items {
		if !v.items[i].Allowed {
			one = v.items[i].policy
			n++
		}
	}
	if n == 1 {
		one.refusal.write(w, r)
		return
	}
	var names [][]byte
	for i := range v.items {
		if !v.items[i].Allowed {
			names = append(names, v.items[i].json)
		}
	}
	p := quotaExceeded.violating(names...)
	p.write(w, r)
}
