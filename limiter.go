package weir

import (
	"context"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/remaining"
	"github.com/seed83679106/weir/quota"
)

// A Limiter applies rules to requests. It is safe for concurrent use and cannot be
// changed.
type Limiter struct {
	store   Store
	unpaid  Store // the store for what granted units must not pay for: strikes, bans and shadow
	rules   []*rule
	riders  []rider
	limits  int // how many limits all rules have, without those of policies
	o       Options
	settles bool // a rule has Settle
	flies   bool // a limit can count requests in flight
	costs   bool // a rule has Cost

	left   remaining.Table // what servers say that keys have left, of other units than requests
	writer *headers.Writer
	log    errorLog
	passed errorLog // of requests that pass undecided, which other errors must not silence

	waiting atomic.Int64
	pool    sync.Pool // of *verdict

	nested    atomic.Bool // checkNesting has warned
	doubled   atomic.Bool // the same
	strayUnit atomic.Bool // ReportUsage has warned
	lateUnit  atomic.Bool // the same
	instant   bool        // the store decides in memory: see isInstant
}

// A rider joins the way of a request. It adds charges to the one call of the store that
// decides the request, and handles what the store decides. A rider serves all requests of a
// Limiter or a Transport, so it keeps nothing about a request between two of these calls. The
// riders of a Limiter are called in the order in which New installs them.
type rider interface {
	// meet is called for each rule that may charge or refuse the request, before the rule does.
	// applies says that the request has that key, and that its policy is not Unlimited. meet may
	// deny the request, or add charges to riding. If it returns true, the rule refuses nothing,
	// its charges go aside, and no charges of riders ride along with them.
	meet(v *verdict, rule *rule, key string, applies bool) (aside bool)

	// heed is called with the decisions on all charges: those of v.items come first, and then
	// those of riders. It may refuse the request.
	heed(v *verdict)

	// start is called when an admitted request is about to be served or sent, and may delay it
	// until the context of v ends. If end is not nil, it is called once the request is over, even
	// if a handler has panicked.
	start(v *verdict) (end func())
}

// A bystander is a rider that does nothing. Riders embed it.
type bystander struct{}

func (bystander) meet(*verdict, *rule, string, bool) bool { return false }
func (bystander) heed(*verdict)                           {}
func (bystander) start(*verdict) func()                   { return nil }

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

	longest int32 // the item that refuses for the longest time, if a limit refuses
}

// An inquiry is what a store is asked about a request: first the charges that the request
// owes, and then the charges of riders.
type inquiry struct {
	Admission
	event   Event          // for Observe; its Transaction and Refusal are those of the Admission
	riding  []quota.Charge // of riders
	least   time.Duration  // the limits of some rule refuse for at least this long, as far as a rider knows
	outer   *verdict       // of the Limiter around this one
	told    *verdict       // the context of the next handler; nil until tell or Room makes it
	shown   []headers.Item // of the header fields
	entered bool           // the request is one of the MaxWaiting that may wait
	slept   time.Duration  // how long the request has waited already, for units in flight
	gone    error          // of its context, if that has ended meanwhile
}

// extra holds what few requests need.
type extra struct {
	denial Refusal  // that is not by limits: a ban, a deny, or a missing key
	by     *rule    // the rule of the denial
	aside  book     // charges that refuse nothing
	l      *Limiter // if a rule has Settle
	used   usage    // see ReportUsage

	onError func(r *http.Request, err error) error // the same, if Draw cannot draw
}

// A book has charges of a request that are spent in a call of their own, in place of its other
// charges.
type book struct {
	quota.Transaction
	items []item
	spent bool
}

// A usage is what a request has used, by unit.
type usage struct {
	mu   sync.Mutex
	of   map[string]*units
	over bool // the request was settled
}

// units are how many units of one kind a request has used.
type units struct {
	used     int64 // reported or drawn
	reported bool
	drawn    int64         // beyond what Cost has reserved
	stream   *quota.Stream // of these
}

// An item is the decision on one limit of a request.
type item struct {
	*policy
	quota.Decision
	key  string
	cost int64
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

// begin empties v for the request r.
func (v *verdict) begin(r *http.Request) {
	v.Context = r.Context()
	v.outer = verdictOf(v.Context)
	v.event.Request = r
	v.items = v.items[:0]
	t := &v.Transaction
	t.Charges = t.Charges[:0]
	t.Decisions = t.Decisions[:0]
	t.Undo = t.Undo[:0]
	v.riding = v.riding[:0]
	t.Within, t.Wait, t.At = 0, 0, time.Time{}
}

// Room makes v.told, the context of the next handler, with Room for values of header fields.
func (v *verdict) Room() (r *headers.Room) {
	v.told, r = makeVerdict(len(v.items), true)
	return r
}

// tell returns the context of the handler that gets the request: a copy of the verdict
// without the inquiry, because another request will use the inquiry.
func (v *verdict) tell() *verdict {
	told := v.told
	if told == nil {
		told, _ = makeVerdict(len(v.items), false)
	}
	told.Context, told.extra, told.reason, told.longest = v.Context, v.extra, v.reason, v.longest
	told.items = append(told.items, v.items...)
	told.at, told.waited = v.At.UnixMicro(), v.Wait
	return told
}

// recycle puts v, with its inquiry, into the pool for another request. The pool must keep
// neither keys nor logs of states alive. charge and trim clear what they cut, so no key is left
// beyond the lengths. After an error v is not recycled, because a store that failed may still use
// it.
func (l *Limiter) recycle(v *verdict) {
	if v.event.Err != nil {
		return
	}
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
	v.event.Took, v.event.BanBegan, v.least = 0, false, 0
	l.pool.Put(v)
}

// problem returns the answer to a refused request. After a refusal by limits, the answer names
// them. Usually one limit refuses, and its answer is prepared already.
func (v *verdict) problem() *problem {
	if v.extra != nil && v.extra.denial.Reason != 0 {
		switch v.extra.denial.Reason {
		case ReasonNoKey:
			return &missingKey
		case ReasonError:
			return &reducedCapacity
		}
		return &v.extra.by.abnormal
	}
	refusing := 0
	for i := range v.items {
		if !v.items[i].Allowed {
			refusing++
		}
	}
	if refusing == 0 { // a handler calls Refuse for a request that was admitted
		return &quotaExceeded
	}
	longest := &v.items[v.longest]
	if refusing == 1 {
		return &longest.policy.problem
	}
	var names [][]byte
	for i := range v.items {
		if !v.items[i].Allowed {
			names = append(names, v.items[i].json)
		}
	}
	p := longest.rule.exceeded.violating(names...)
	return &p
}

func (v *verdict) extras() *extra {
	if v.extra == nil {
		v.extra = new(extra)
	}
	return v.extra
}

// settledBy has l settle the request of v.
func (e *extra) settledBy(l *Limiter, onError func(r *http.Request, err error) error) {
	e.l, e.onError = l, onError
}

// outside returns the verdict of the Limiter around that of v, or nil if there is none.
func (v *verdict) outside() *verdict {
	if v.inquiry != nil {
		return v.outer
	}
	return verdictOf(v.Context)
}

// aside returns the charges that refuse nothing, or nil if there are none.
func (v *verdict) aside() *book {
	if v.extra == nil || len(v.extra.aside.Charges) == 0 {
		return nil
	}
	return &v.extra.aside
}

type verdictKey struct{}

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

// asking is the context in which stores are asked. It has the values of the request, but
// does not end with the request: a client that hangs up is charged.
type asking struct{ context.Context }

func (asking) Deadline() (deadline time.Time, ok bool) { return time.Time{}, false }
func (asking) Done() <-chan struct{}                   { return nil }
func (asking) Err() error                              { return nil }
