package weir

import (
	"context"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/quota"
)

// A verdict is what a Limiter decides about a request. Most verdicts are recycled with
// their inquiries. The context of the next handler is a copy of the verdict without the
// inquiry. A copy for one limit has 160 bytes, and 128 more if it has Room for values of header
// fields. FromContext makes a Transaction of the items of the copy.
type verdict struct {
	context.Context
	*inquiry
	items  []item // the first charges of the inquiry, in order
	extra  *extra
	at     int64 // µs since 1970, of the transaction
	waited time.Duration
	reason Reason // why the request is refused; 0 if it is not
}

// An inquiry is what a store is asked about a request: first the charges that the request
// owes, and then the charges of riders.
type inquiry struct {
	Admission
	event   Event          // for Observe; its Transaction and Refusal are those of the Admission
	buffer  time.Duration  // is added to every period
	least   time.Duration  // the limits of some rule refuse for at least this long, as far as a rider knows
	outer   *verdict       // of the Limiter around this one
	told    *verdict       // the context of the next handler; nil until tell or Room makes it
	shown   []headers.Item // of the header fields
	entered bool           // the request is one of the MaxWaiting that may wait
}

// extra holds what few requests need.
type extra struct {
	denial Refusal      // that is not by limits: a ban, a deny, or a missing key
	by     *rule        // the rule of the denial
	aside  book         // charges that refuse nothing
	used   atomic.Int64 // see ReportUsage
}

// A book has charges of a request that are spent in a call of their own, in place of its other
// charges.
type book struct {
	quota.Transaction
	items []item
	spent bool
}

// newVerdict returns an empty verdict of r, recycled or new, with room for the limits of all
// rules. A recycled verdict keeps its memory, its plans, and beyond their length the charges and
// items of an earlier request.
func (l *Limiter) newVerdict(r *http.Request) *verdict {
	v, _ := l.pool.Get().(*verdict)
	if v == nil {
		v, _ = makeVerdict(l.limits, false)
		v.inquiry = new(inquiry)
	}
	v.Context = r.Context()
	v.outer = verdictOf(v.Context)
	v.event.Request = r
	v.items = v.items[:0]
	t := &v.Transaction
	t.Charges = t.Charges[:0]
	t.Decisions = t.Decisions[:0]
	t.Undo = t.Undo[:0]
	t.Within, t.Wait, t.At = 0, 0, time.Time{}
	return v
}

// makeVerdict returns a verdict that has no inquiry, with room for the given number of
// limits. If withRoom, the same memory has Room for values of header fields.
func makeVerdict(limits int, withRoom bool) (*verdict, *headers.Room) {
	switch {
	case limits <= 1 && !withRoom:
		m := new(struct {
			verdict
			items [1]item
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, nil
	case limits <= 1:
		m := new(struct {
			verdict
			items [1]item
			headers.Room
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, &m.Room
	case limits <= 4:
		m := new(struct {
			verdict
			items [4]item
			headers.Room
		})
		m.verdict.items = m.items[:0]
		return &m.verdict, &m.Room
	}
	m := new(struct {
		verdict
		headers.Room
	})
	m.items = make([]item, 0, limits)
	return &m.verdict, &m.Room
}

// recycle puts v, with its inquiry, into the pool for another request. The pool must keep
// neither keys nor logs of states alive. charge and trim clear what they cut, so no key is left
// beyond the lengths.
func (l *Limiter) recycle(v *verdict) {
	v.Release()
	for i := range v.items {
		v.items[i].key = ""
		if !l.instant { // such a store may have changed the charges
			v.items[i].policy = nil
		}
	}
	if v.reason != 0 {
		v.reason, v.Refusal = 0, Refusal{}
	}
	v.Context, v.outer, v.told, v.extra, v.event.Request, v.event.Key = nil, nil, nil, nil, nil, ""
	v.event.Took, v.event.BanBegan, v.buffer, v.least, v.entered = 0, false, 0, 0, false
	l.pool.Put(v)
}

type verdictKey struct{}

// asking is the context in which stores are asked. It has the values of the request, but
// does not end with the request: a client that hangs up is charged.
type asking struct{ context.Context }

func (asking) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (asking) Done() <-chan struct{}                   { return nil }
func (asking) Err() error                              { return nil }

// isInstant reports whether s decides in memory: see quota.Instant.
func isInstant(s Store) bool {
	i, ok := s.(quota.Instant)
	return ok && compare.Equal(i.Instant(), s)
}

// admission returns the Admission of the inquiry or, if v has none, makes one of the items
// of v.
func (v *verdict) admission() *Admission {
	if v.inquiry != nil {
		return &v.Admission
	}
	t := &Admission{Transaction: quota.Transaction{Result: quota.Result{At: time.UnixMicro(v.at), Wait: v.waited}}}
	for i := range v.items {
		it := &v.items[i]
		t.Charges = append(t.Charges, quota.Charge{Rule: it.rule.Name, Key: it.key, Limit: it.limit, Cost: it.cost})
		t.Decisions = append(t.Decisions, it.Decision)
	}
	if v.extra != nil && v.extra.denial.Reason != 0 {
		t.Refusal = v.extra.denial
	} else {
		t.Refusal, _ = refusalOf(&t.Transaction, len(v.items))
	}
	return t
}

func (v *verdict) Value(key any) any {
	if key == (verdictKey{}) {
		return v
	}
	return v.Context.Value(key)
}

// verdictOf returns the verdict of the innermost Limiter, or nil if there is none.
func verdictOf(ctx context.Context) *verdict {
	v, _ := ctx.Value(verdictKey{}).(*verdict)
	return v
}

func (v *verdict) extras() *extra {
	if v.extra == nil {
		v.extra = new(extra)
	}
	return v.extra
}

// deny refuses the request of v for another reason than a limit.
func (v *verdict) deny(f Refusal, by *rule, key string) {
	v.Refusal, v.reason, v.event.Key = f, f.Reason, key
	v.extras().denial, v.extra.by = f, by
}

// aside returns the charges that refuse nothing, or nil if there are none.
func (v *verdict) aside() *book {
	if v.extra == nil || len(v.extra.aside.Charges) == 0 {
		return nil
	}
	return &v.extra.aside
}

// eachSpent calls f with each transaction that the request has spent, and with its items.
func (v *verdict) eachSpent(f func(t *quota.Transaction, items []item)) {
	f(&v.Transaction, v.items)
	if b := v.aside(); b != nil && b.spent {
		f(&b.Transaction, b.items)
	}
}

// trim removes the charges of riders, because Observe and FromContext show the transaction.
func (v *verdict) trim() {
	n := len(v.items)
	if len(v.Charges) > n {
		clear(v.Charges[n:]) // they would keep keys alive
		v.Charges, v.Decisions = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))]
	}
}

// FromContext returns the decision on the request with that context, or nil if no Limiter
// has charged or refused the request. If there are several decisions, it returns the
// decision of the innermost Limiter. Options.NoFromContext makes it return nil. The
// Admission must not be changed. A handler may serve less if Remaining is low. OnLimited may
// read from Refusal why the request was refused.
func FromContext(ctx context.Context) *Admission {
	if v := verdictOf(ctx); v != nil {
		return v.admission()
	}
	return nil
}
