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
//
// It owns its inquiry from newVerdict to release, which hands it to another request
// unless an observer, a Settle or the caller of OnError may still look at it. After
// that transaction makes one for FromContext, from the items. A verdict that has a
// transaction of its own takes 640 bytes instead of 256 and longer to make.
type verdict struct {
	context.Context
	*inquiry
	items   []item // the first charges of the inquiry, in order
	outer   *verdict
	extra   *extra
	at      int64 // µs since 1970, of the transaction
	waited  time.Duration
	refused bool
	free    bool // the request is charged nothing, and may be refused
	entered bool // it has one of the places of those who may wait

	values [3]string
	buf    [32]byte
}

// An inquiry is what a store is asked about a request: what the request owes, and
// behind that the bans and the pauses of its keys.
type inquiry struct {
	Transaction
	checks []banCheck
}

// extra holds what few requests need.
type extra struct {
	refusal  Refusal      // a ban or a deny
	key      string       // that it is about
	outbound bool         // waits for pauses
	shadow   Transaction  // charges that refuse nobody
	items    []item       // of shadow
	spent    bool         // shadow was
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
	if v.inquiry, _ = l.pool.Get().(*inquiry); v.inquiry == nil {
		v.inquiry = new(inquiry)
	}
	return v
}

// release lets another request use the inquiry, unless somebody may still look at
// it.
func (l *Limiter) release(v *verdict) {
	if l.o.Observe != nil || l.settles {
		return
	}
	q := v.inquiry
	t := &q.Transaction
	v.inquiry, v.at, v.waited = nil, t.At.UnixMicro(), t.Wait
	clear(t.Charges) // keys are not kept
	clear(t.next)    // nor logs
	*t = Transaction{Charges: t.Charges[:0], Decisions: t.Decisions[:0], Undo: t.Undo[:0], next: t.next[:0]}
	l.pool.Put(q)
}

// transaction returns what was decided, made again if it was released.
func (v *verdict) transaction() *Transaction {
	if v.inquiry != nil {
		return &v.Transaction
	}
	t := &Transaction{At: time.UnixMicro(v.at), Wait: v.waited}
	for i := range v.items {
		it := &v.items[i]
		t.Charges = append(t.Charges, Charge{Rule: it.rule.Name, Key: it.key, Limit: it.limit, Cost: it.cost})
		t.Decisions = append(t.Decisions, it.Decision)
	}
	if v.extra != nil && v.extra.refusal.Reason != 0 {
		t.Refusal = v.extra.refusal
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

func (v *verdict) extras() *extra {
	if v.extra == nil {
		v.extra = new(extra)
	}
	return v.extra
}

// writeHeaders writes what was decided into the response fields, along with what
// outer limiters decided on the same request.
func (l *Limiter) writeHeaders(h http.Header, v *verdict) {
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

// FromContext returns what the innermost Limiter decided about the request of
// that context, or nil if none did. It must not be changed. A handler behind
// the limiter may serve less when little Remaining is left; OnLimited may serve
// something cheaper than an error, and tell from its Refusal why. The Transaction
// of a deny, or of a ban that the process knows of, has no Charges.
func FromContext(ctx context.Context) *Transaction {
	if v, ok := ctx.Value(verdictKey{}).(*verdict); ok {
		return v.transaction()
	}
	return nil
}

// decide charges the rules that apply to r and records the outcome in v. It does not
// sleep: the caller waits for v.Wait, up to maxWait. buffer is added to every period.
func (l *Limiter) decide(v *verdict, r *http.Request, maxWait, buffer time.Duration) error {
	e := Event{Request: r, Transaction: &v.Transaction}
	e.Err = l.charge(v, r, buffer)
	atOnce, owes, waits := e.Err != nil || v.refused, len(v.Charges) > 0, false
	if v.refused {
		e.Key = v.extra.key
	}
	var within time.Duration
	if !atOnce {
		within = l.enter(v, maxWait)
		defer func() { // even if the store panics
			if !waits {
				l.leave(v)
			}
		}()
		if owes {
			v.Within = within
			l.ask(v, &e)
		}
	}
	if nothing := v.free && v.Refusal.Reason == 0; (atOnce || owes) && !nothing {
		l.observe(v, e)
	}
	if e.Err != nil {
		return e.Err
	}
	v.refused = v.Refusal.Reason != 0
	if !v.refused && v.extra != nil && len(v.extra.shadow.Charges) > 0 {
		l.askInShadow(v, r, within)
	}
	waits = !v.refused && v.Wait > 0
	return nil
}

// ask has the store decide what v owes, with its bans and pauses, in one call.
func (l *Limiter) ask(v *verdict, e *Event) {
	v.appendPauses()
	e.Took, e.Err = l.timedTake((*asking)(v), &v.Transaction)
	e.judge()
	if e.Err == nil {
		l.applyPenalties(v, e)
	}
	v.hideChecks()
	if v.refused && v.Wait > 0 { // for a ban: nobody will wait for the turn
		l.giveBack(v)
	}
}

// askInShadow charges rules in shadow, which refuse nobody.
func (l *Limiter) askInShadow(v *verdict, r *http.Request, within time.Duration) {
	t := &v.extra.shadow
	t.Within = within
	e := Event{Request: r, Transaction: t, Shadow: true}
	e.Took, e.Err = l.timedTake((*asking)(v), t)
	e.judge()
	v.extra.spent = t.Refusal.Reason == 0
	l.observe(v, e)
}

// hideChecks leaves in the transaction what users may see: what the request owes.
func (v *verdict) hideChecks() {
	n := len(v.items)
	if len(v.Charges) == n {
		return
	}
	clear(v.Charges[n:]) // keys are not kept
	clear(v.checks)      // nor here
	v.Charges, v.Decisions, v.checks = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))], v.checks[:0]
}

// judge says in the event, and in its transaction, why a request is refused, as
// far as limits and errors go.
func (e *Event) judge() {
	t, charge := e.Transaction, 0
	if e.Err != nil {
		t.Refusal = Refusal{Reason: ReasonError, Rule: t.Charges[0].Rule}
	} else if t.Refusal, charge = t.refusal(); t.Refusal.Reason == 0 {
		return
	}
	e.Key = t.Charges[charge].Key
}

// timedTake asks the store, and measures how long that takes if there is an observer.
func (l *Limiter) timedTake(ctx context.Context, t *Transaction) (took time.Duration, err error) {
	if l.o.Observe == nil {
		return 0, l.store.Take(ctx, t)
	}
	start := time.Now()
	err = l.store.Take(ctx, t)
	return time.Since(start), err
}

// observe logs the error of an event and calls Observe.
func (l *Limiter) observe(v *verdict, e Event) {
	if e.Err != nil {
		l.log.warn(v.Context, e.Transaction.Refusal.Rule, e.Err)
	}
	if l.o.Observe != nil {
		e.Refusal = e.Transaction.Refusal
		l.o.Observe(e)
	}
}
