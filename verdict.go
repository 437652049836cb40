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

// ofOneRule returns how many items stand at the beginning of items that are limits
// of one rule, for one key.
func ofOneRule(items []item) int {
	n := 1
	for n < len(items) && items[n].rule == items[0].rule {
		n++
	}
	return n
}

// refuseFor refuses the request of v, for a ban or a deny.
func (v *verdict) refuseFor(f Refusal, key string) {
	v.Refusal, v.refused = f, true
	v.extras().refusal, v.extra.key = f, key
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
	if v.extra != nil && v.extra.refusal.Reason != 0 {
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
