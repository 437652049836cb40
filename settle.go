package weir

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/recorder"
	"github.com/seed83679106/weir/internal/safe"
	"github.com/seed83679106/weir/quota"
)

// An Outcome describes a request that has been served. Rule.Settle receives an Outcome and returns
// the final cost. While the request is being served, the cost returned by Rule.Cost stays reserved,
// so concurrent requests cannot overspend. Rule.Cost should therefore return the most that a
// request may cost.
//
// If the final cost is lower, the difference is refunded, except for units that have already
// expired. If the final cost is higher, the difference is charged even if it exceeds the limit. The
// key is then in debt, and requests are refused until the debt has drained or the window has ended
// (see quota.ModeForce). If Settle never returns more than Outcome.Cost, no key gets into debt.
// Settle is called once for each request that reserved units under the rule, after the handler has
// returned or panicked. If HungUp is true, Settle should return Cost or Used, so that clients
// cannot avoid paying by hanging up. The response is complete only after the final cost has been
// charged, which takes a round trip to the store, unless the request has used up the store's
// timeout (see quota.Budget). If the store fails, the reserved units remain charged.
type Outcome struct {
	// Request is the served request.
	Request *http.Request

	// Cost is the number of units that Rule.Cost and Draw have reserved for the request.
	Cost int64

	// Status is the status code of the response. If the handler wrote no status, Status is 500
	// after a panic, 101 if the handler hijacked the connection, as for a WebSocket, and 200
	// otherwise. A hijacked connection may outlive the handler, but the request is settled when the
	// handler returns. For a request sent through Limiter.Transport, Status is 0 if there was no
	// response.
	Status int

	// Header holds the response header.
	Header http.Header

	// Bytes is the number of bytes of the response body that were written through the
	// ResponseWriter. For a request sent through Limiter.Transport, Bytes is 0. For a request
	// admitted by Limiter.Admit, Bytes is the value that the caller passed to Done.
	Bytes int64

	// Used is the number of units, in the rule's Unit, that the handler reported with ReportUsage
	// or ReportAtLeast, or drew with Draw.
	Used int64

	// Reported is true if ReportUsage or Draw was called with the rule's Unit, and ReportAtLeast
	// was not. Used is then all that the request has used. If Reported is false, the request may
	// have used more.
	Reported bool

	// Panicked reports whether the handler panicked.
	Panicked bool

	// HungUp reports whether the client may have caused the handler to fail. It is true in each of
	// these cases:
	//
	//   - the context of the request ended before the handler returned
	//   - a read of the body failed, or had not returned when the handler returned
	//   - the response could not be written
	//
	// If the handler hijacked the connection, HungUp reports only whether the handler panicked.
	HungUp bool

	// Took is the time that the handler took.
	Took time.Duration
}

// ChargeOnly returns a Settle function that charges only requests whose response has one of the
// given status codes. For example, ChargeOnly(401) counts failed logins. A request is also charged
// if the handler panics or the client hangs up. ChargeOnly panics if it is called without a status
// code.
func ChargeOnly(statuses ...int) func(Outcome) int64 {
	if len(statuses) == 0 {
		panic("weir: ChargeOnly: statuses is empty")
	}
	return func(o Outcome) int64 {
		if o.Panicked || o.HungUp || slices.Contains(statuses, o.Status) {
			return o.Cost
		}
		return 0
	}
}

// RefundErrors is a Settle function that refunds a request's cost if the handler responds with a
// 5xx status or panics. If the client hangs up, the request is still charged. Otherwise, clients
// could avoid paying by hanging up, since most handlers then fail. Do not use RefundErrors if
// clients can make the handler fail on purpose, because such requests would be free.
func RefundErrors(o Outcome) int64 {
	if !o.HungUp && (o.Panicked || o.Status >= 500) {
		return 0
	}
	return o.Cost
}

// ChargeUsed is a Settle function that charges the units that the handler reported with ReportUsage
// or drew with Draw. If the handler called neither function, or called ReportAtLeast, the usage is
// unknown. The request is then charged its full Cost or the reported usage, whichever is more. A
// handler that used nothing should therefore report 0.
//
// If a client hangs up, only the usage reported so far is charged. Report usage as it occurs, or in
// a deferred call.
func ChargeUsed(o Outcome) int64 {
	if !o.Reported {
		return max(o.Cost, o.Used)
	}
	return o.Used
}

// serve calls the next handler with a copy of r whose context is the ticket's snapshot, and then
// charges the request's final cost.
func (t *ticket) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	t.begun = time.Now()
	inner := r.WithContext(&t.snapshot)
	rec := &recorder.Recorder{ResponseWriter: w}
	if r.Body != nil && r.Body != http.NoBody {
		inner.Body = rec.Body(r.Body)
	}
	o := Outcome{Header: w.Header(), Panicked: true}
	defer func() {
		recorder.CarryBack(r, inner, &t.snapshot)
		o.Status, o.Bytes = rec.Status, rec.Bytes
		if rec.Hijacked { // a client that closes a WebSocket does not hang up in this sense, and net/http does not notice
			o.HungUp = o.Panicked
		} else {
			o.HungUp = t.Err() != nil || rec.HungUp()
		}
		o.complete()
		t.finish(o)
	}()
	next.ServeHTTP(rec.Writer(), inner)
	o.Panicked = false
}

// If the handler has written no status, complete sets Status to the one that net/http sends.
func (o *Outcome) complete() {
	switch {
	case o.Status != 0:
	case o.Panicked:
		o.Status = http.StatusInternalServerError
	default:
		o.Status = http.StatusOK
	}
}

// finish releases the units in flight of a request that is over, and settles it.
func (t *ticket) finish(o Outcome) {
	if t.end != nil {
		t.end()
	}
	if !t.settles() {
		return
	}
	if o.Took == 0 {
		o.Took = time.Since(t.begun)
	}
	t.settle(o)
}

// settle replaces the reserved cost of a request with the final cost, under each rule.
func (t *ticket) settle(o Outcome) {
	ctx := t.calls
	if ctx == nil || time.Since(t.begun) > time.Second { // after a handler that slow, the time for one more call does not matter
		ctx = quota.WithBudget(context.WithoutCancel(t.Context))
	}
	o.Request = t.request
	t.close(ctx)
	t.settleClaims(ctx, o, &t.snapshot, false)
	t.refundDrawn(ctx)
	if t.shadow != nil && t.shadow.err == nil && t.shadow.why.Reason == 0 {
		t.settleClaims(ctx, o, &t.shadow.snapshot, true)
	}
}

func (t *ticket) settleClaims(ctx context.Context, o Outcome, s *snapshot, inShadow bool) {
	var refunds, debts []quota.Charge
	for i := range s.claims {
		c := &s.claims[i]
		if c.rule.Settle == nil {
			continue
		}
		o, drawn := o, int64(0)
		u := t.used[c.rule.Unit]
		if u != nil {
			o.Used, o.Reported = u.used, (u.reported || o.Reported) && !u.partial
			if !inShadow { // Draw ignores rules in shadow
				drawn = u.drawn
			}
		}
		o.Cost = c.cost + drawn
		if o.Cost <= 0 {
			continue
		}
		cost := max(0, c.rule.Settle(o))
		c.rule.checkSettled(cost, o.Reported)
		for j, on := range c.pick(s.decisions) {
			charge := c.charge(j)
			if charge.Limit.InFlight() { // its units are released
				continue
			}
			charge.Cost = cost - o.Cost
			if drawn > 0 { // drawn units were spent last, so they are refunded first
				n := min(drawn, max(0, -charge.Cost))
				u.refunds = append(u.refunds, n)
				charge.Cost += n
			}
			switch {
			case charge.Cost < 0:
				charge.Spent, charge.FellBack = on.At, on.FellBack
				refunds = append(refunds, charge)
			case charge.Cost > 0:
				debts = append(debts, charge)
			}
		}
	}
	t.l.settleUp(ctx, &quota.Transaction{Charges: refunds}, "units not refunded")
	t.l.settleUp(ctx, &quota.Transaction{Charges: debts, Mode: quota.ModeForce}, "final cost not charged")
}

// refundDrawn refunds the drawn units that exceed the final costs of the rules.
func (t *ticket) refundDrawn(ctx context.Context) {
	for unit, u := range t.used {
		if len(u.refunds) > 0 {
			if err := u.stream.Refund(ctx, u.refunds...); err != nil {
				charges, _ := t.drawable(unit)
				t.l.log.warn(ctx, "units not refunded", charges[0].Rule, err)
			}
		}
	}
}

// The likely reasons, for the Logger.
const (
	settledLikely = "ChargeOnly names another status than the handler answers; the handler reports no usage; " +
		"or no request has failed yet, if only failures count"
	unreportedLikely = "the handler does not call ReportUsage or Draw, or calls it with another unit or context"
)

// checkSettled is called at the end of each request, with the final cost, and with true if the
// usage was reported.
func (rule *rule) checkSettled(cost int64, reported bool) {
	switch unused := !reported && safe.SameFunc(rule.Settle, ChargeUsed); {
	case cost > 0 && !unused:
		rule.unsettled.end()
	case !rule.unsettled.add():
	case unused:
		rule.warnOnce("no usage reported in the first 200 requests", "they cost what was reserved", unreportedLikely)
	default:
		rule.warnOnce("all units refunded in each of the first 200 requests", "none of them was limited", settledLikely)
	}
}

// settleUp refunds units, or charges units by force, after the request was served. If the store
// returns an error, settleUp logs the error with the given message.
func (l *Limiter) settleUp(ctx context.Context, t *quota.Transaction, failed string) {
	if len(t.Charges) == 0 {
		return
	}
	if err := l.store.Take(ctx, t); err != nil {
		l.log.warn(ctx, failed, t.Charges[0].Rule, err)
	}
}

// ReportUsage records that a request has used a number of units, such as LLM tokens. The usage from
// several calls is added up. The total for a rule's Unit ("requests" by default) is passed to the
// rule's Settle function in Outcome.Used. If no rule with this unit has a Settle function, nothing
// is charged, and a warning is logged if another rule has a Settle function or if a rule has this
// unit. If the request was already settled, nothing is charged and a warning is logged. A negative
// number counts as 0. ReportUsage is safe for concurrent use.
func ReportUsage(ctx context.Context, unit string, used int64) { report(ctx, unit, used, false) }

// ReportAtLeast is like ReportUsage for a request that may have used more, for example because an
// LLM's response ended before stating the usage. Outcome.Reported is then false, so ChargeUsed does
// not refund what Cost has reserved.
func ReportAtLeast(ctx context.Context, unit string, used int64) { report(ctx, unit, used, true) }

func report(ctx context.Context, unit string, used int64, partial bool) {
	var l *Limiter
	var unsettled *rule
	known, late := false, false
	for s := snapshotOf(ctx); s != nil; s = s.outer {
		if t := s.ticket; t != nil {
			l = t.l
			known = l.settlesUnit(unit) || known
			late = !t.add(unit, max(0, used), partial) || late
		} else {
			unsettled = cmp.Or(s.unsettled(unit), unsettled)
		}
	}
	switch {
	case l == nil && unsettled != nil && !unsettled.unread.Swap(true):
		unsettled.warnOnce("usage reported to a rule without Settle", "the usage is not charged",
			"Settle: weir.ChargeUsed was forgotten")
	case l != nil && !known && !settledOutside(ctx, unit) && !l.strayUnit.Swap(true):
		loggerOr(l.o.Logger).WarnContext(ctx, "weir: usage reported in a unit that no rule with Settle has", "unit", unit,
			"effect", nothingCharged)
	case late && !l.lateUnit.Swap(true):
		loggerOr(l.o.Logger).WarnContext(ctx, "weir: usage reported after its request was settled", "unit", unit,
			"effect", nothingCharged)
	}
}

// nothingCharged describes, in a log line, the effect of a usage report. Only the first report of
// each kind is logged.
const nothingCharged = "nothing is charged for it; later usage of this kind is not logged"

// Draw takes up to n more units for a request that is being served, and returns how many of them
// the handler may use. A handler that streams a response calls Draw before it sends each part, and
// stops when Draw returns fewer units than the part needs. If Draw returns less than n, no further
// units are currently available. If Draw returns 0 because no units were available, err is a
// *quota.LimitedError whose RetryAfter is the wait until a unit becomes available.
//
// Draw applies to rules that have a Settle function and whose Unit is the given unit. It first uses
// the units reserved by Rule.Cost. Any further units are charged to all of these rules or to none
// of them, as with a quota.Stream. Outcome.Used includes the drawn units, so ChargeUsed charges
// them together with the units passed to ReportUsage. Units that Draw took in advance but did not
// hand out are refunded when the handler returns or panics, or when Done is called.
//
// Draw returns 0 and an error if the context is done, if the request was already settled, or if n
// is negative. It also returns an error in two cases of misconfiguration: some rules have a Settle
// function, but none of these rules has the given unit; or the request was charged under a rule
// with the given unit, but no rule has a Settle function. If no rule limits the unit, Draw
// otherwise returns n. If the store fails, OnError decides whether the handler may use the n units.
// Those that it may use are charged by Settle.
func Draw(ctx context.Context, unit string, n int64) (drawn int64, err error) {
	innermost := snapshotOf(ctx)
	if err := ctx.Err(); err != nil {
		innermost.drawnAll(unit)
		return 0, err
	}
	if n < 0 {
		return 0, fmt.Errorf("weir: Draw: n is %d %s; want at least 0", n, unit)
	}
	settles, known, unsettled := false, false, (*rule)(nil)
	drawn = n
	for s := innermost; s != nil; s = s.outer {
		t := s.ticket
		if t == nil {
			unsettled = cmp.Or(s.unsettled(unit), unsettled)
			continue
		}
		settles, known = true, known || t.l.settlesUnit(unit)
		got, err := t.draw(ctx, unit, drawn)
		for inner := innermost; got < drawn && inner != s; inner = inner.outer { // inner has drawn more units than the handler may use
			inner.ticket.undraw(ctx, unit, drawn-got)
		}
		if drawn = got; err != nil {
			return 0, err
		}
	}
	if !settles && unsettled != nil {
		return 0, fmt.Errorf("weir: Draw: rule %q has the unit %q, but no Settle, so it would not limit what is drawn",
			unsettled.Name, unit)
	}
	if settles && !known && !settledOutside(ctx, unit) {
		return 0, fmt.Errorf("weir: Draw: no rule with Settle has the unit %q", unit)
	}
	return drawn, nil
}

// drawnAll records that the request has used no more units than it has drawn.
func (s *snapshot) drawnAll(unit string) {
	for ; s != nil; s = s.outer {
		if s.ticket != nil {
			s.ticket.add(unit, 0, false)
		}
	}
}

// draw draws up to n units under the rules of one Limiter.
func (t *ticket) draw(ctx context.Context, unit string, n int64) (drawn int64, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled {
		return 0, errors.New("weir: Draw came after its request was settled")
	}
	charges, reserved := t.drawable(unit)
	u := t.use(unit)
	u.reported = true
	if len(charges) == 0 { // nothing limits the unit
		u.used = sum(u.used, n)
		return n, nil
	}
	if drawn = min(n, max(0, min(reserved, math.MaxInt64-u.drawn)+u.drawn-u.used)); drawn < n {
		if u.stream == nil {
			u.stream = quota.NewStream(t.l.store, charges...)
		}
		var more int64
		more, err = u.stream.Draw(context.WithoutCancel(ctx), n-drawn)
		u.drawn, drawn = u.drawn+more, drawn+more
		if limited := new(quota.LimitedError); err != nil && !errors.As(err, &limited) {
			t.l.log.warn(ctx, "units not drawn", charges[0].Rule, err)
			if err = t.onError(t.request, err); err == nil {
				drawn = n
			}
		}
	}
	u.used = sum(u.used, drawn)
	if drawn > 0 {
		err = nil
	}
	return drawn, err
}

// drawable returns a charge with cost 1 for each limit that bounds how many of the given units are
// drawn. It also returns the number of units that Cost has reserved under all of these limits.
func (t *ticket) drawable(unit string) (charges []quota.Charge, reserved int64) {
	reserved = math.MaxInt64
	for i := range t.claims {
		c := &t.claims[i]
		if c.rule.Settle == nil || c.rule.Unit != unit {
			continue
		}
		for j := range c.limits {
			if charge := c.charge(j); !charge.Limit.InFlight() {
				charge.Cost, reserved = 1, min(reserved, c.cost)
				charges = append(charges, charge)
			}
		}
	}
	return charges, reserved
}

// undraw subtracts n units from the used units, because an outer Limiter has drawn fewer units. If
// the stream has drawn the n units, undraw refunds them immediately, because they could expire
// before the next call to Draw.
func (t *ticket) undraw(ctx context.Context, unit string, n int64) {
	if t == nil {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled {
		return
	}
	u := t.use(unit)
	u.used -= n
	n = min(n, u.drawn)
	if n == 0 {
		return
	}
	charges, _ := t.drawable(unit)
	if err := u.stream.Refund(ctx, slices.Repeat([]int64{n}, len(charges))...); err != nil {
		t.l.log.warn(ctx, "units not refunded", charges[0].Rule, err)
		return
	}
	u.drawn -= n
}

// unsettled returns a rule with the given unit but no Settle function under which the request
// was charged, or nil if there is none.
func (s *snapshot) unsettled(unit string) *rule {
	for i := range s.claims {
		if r := s.claims[i].rule; r.Unit == unit && r.Settle == nil {
			return r
		}
	}
	return nil
}

func (l *Limiter) settlesUnit(unit string) bool {
	return slices.ContainsFunc(l.rules, func(r *rule) bool { return r.Settle != nil && r.Unit == unit })
}

// An uncharged value is the context of a request that a Limiter with Settle has allowed but not
// charged, for example because the request's key is Unlimited. Such a Limiter has no ticket for the
// request, but the units of its rules are known.
type uncharged struct {
	context.Context
	l *Limiter
}

var unchargedKey = new(uncharged)

func (u *uncharged) Value(key any) any {
	if key == unchargedKey {
		return u
	}
	return u.Context.Value(key)
}

// settledOutside reports whether a rule with Settle has the unit, in a Limiter that has not charged
// the request.
func settledOutside(ctx context.Context, unit string) bool {
	for {
		u, _ := ctx.Value(unchargedKey).(*uncharged)
		if u == nil || u.l.settlesUnit(unit) {
			return u != nil
		}
		ctx = u.Context
	}
}

// passUncharged calls a handler with a request that is not charged.
func (l *Limiter) passUncharged(w http.ResponseWriter, r *http.Request, h http.Handler) {
	if !l.settles {
		h.ServeHTTP(w, r)
		return
	}
	inner := r.WithContext(&uncharged{r.Context(), l})
	defer recorder.CarryBack(r, inner, inner.Context()) // even if the handler panics
	h.ServeHTTP(w, inner)
}

// use returns the request's use of a unit.
func (t *ticket) use(unit string) *unitUse {
	if t.used == nil {
		t.used = map[string]*unitUse{}
	}
	if t.used[unit] == nil {
		t.used[unit] = new(unitUse)
	}
	return t.used[unit]
}

// add adds n to the used units. It returns false if the request was already settled.
func (t *ticket) add(unit string, n int64, partial bool) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.settled {
		return false
	}
	u := t.use(unit)
	u.used, u.reported, u.partial = sum(u.used, n), true, u.partial || partial
	return true
}

// close refunds the units that were drawn in advance. After close, the ticket's units no longer
// change.
func (t *ticket) close(ctx context.Context) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.settled = true
	for _, u := range t.used {
		if u.stream != nil {
			if err := u.stream.Close(ctx); err != nil {
				t.l.log.warn(ctx, "units not refunded", t.l.rules[0].Name, err)
			}
		}
	}
}

// sum returns a + b, or math.MaxInt64 if the sum is larger. Both must be at least 0.
func sum(a, b int64) int64 { return min(a, math.MaxInt64-b) + b }

// A ticket holds the data needed when an admitted request is over, to release its units in flight
// and to settle the units that it has used. Handler, Admit and Transport use it.
type ticket struct {
	snapshot
	l       *Limiter
	request *http.Request
	onError func(r *http.Request, err error) error // called if the store fails in Draw
	shadow  *decision                              // the decision under the rules in shadow, which is settled too
	calls   context.Context                        // as in decision

	claim    [1]claim // memory for most requests
	decision [1]quota.Decision

	end   func() // releases units in flight; nil if there are none
	begun time.Time
	over  atomic.Bool
	watch runtime.Cleanup

	mu      sync.Mutex
	used    map[string]*unitUse // the key is the unit
	settled bool                // the used units no longer change
}

// prepare makes t the ticket of a request that is about to be served or sent. If the request will
// be settled, its snapshot points to the ticket, because ReportUsage and Draw need the ticket.
func (t *ticket) prepare(l *Limiter, d *decision, onError func(*http.Request, error) error) {
	d.saveTo(&t.snapshot, t.claim[:0], t.decision[:0])
	t.l, t.request, t.onError, t.shadow, t.calls = l, d.request, onError, d.shadow, d.calls
	switch {
	case l.settlesAfter(d):
		t.ticket = t
	case l.settles:
		t.Context = &uncharged{t.Context, l}
	}
}

// settles reports whether the request will be settled.
func (t *ticket) settles() bool { return t.ticket != nil }

// settlesAfter reports whether a request will be settled, that is, whether it was admitted and a
// rule has a Settle function.
func (l *Limiter) settlesAfter(d *decision) bool {
	return l.settles && d.why.Reason == 0 && (len(d.claims) > 0 || d.shadow != nil)
}

// A unitUse counts the units of one kind that a request has used.
type unitUse struct {
	used     int64 // reported or drawn
	reported bool
	partial  bool          // the request may have used more
	drawn    int64         // in addition to the units that Cost has reserved
	stream   *quota.Stream // the source of the drawn units
	refunds  []int64       // how many drawn units to refund, for each charge of the stream
}

// watchDone logs a warning if the ticket is garbage-collected before Done was called, unless Done
// would have nothing to do.
func (t *ticket) watchDone() {
	if !t.settles() && t.end == nil {
		return
	}
	t.begun = time.Now()
	t.watch = runtime.AddCleanup(t, t.dropped("admission dropped without Done"), struct{}{})
}

// dropped returns a function that logs, once for each Limiter, what happened to a request that was
// not completed, and releases its units in flight. The function does not refer to t.
func (t *ticket) dropped(what string) func(struct{}) {
	l, end, ctx, effect := t.l, t.end, context.WithoutCancel(t.Context), "its cost was not settled"
	if !t.settles() {
		effect = "its units in flight were held until now"
	}
	return func(struct{}) {
		if !l.leaked.Swap(true) {
			loggerOr(l.o.Logger).WarnContext(ctx, "weir: "+what, "rule", l.rules[0].Name, "effect", effect)
		}
		if end != nil {
			go end()
		}
	}
}

// Done completes an admitted request. It charges the request's final cost under each rule with a
// Settle function, and releases its units in flight. The Outcome may be zero. Done sets o.Request
// and o.Cost, and also o.Used and o.Reported if ReportUsage or Draw was called. If o.Took is 0,
// Done sets it to the time since the call to Admit. If o.Status is 0, Done sets it to 500 if
// o.Panicked is true, and to 200 otherwise. If the request's context has ended, Done sets o.HungUp.
// Only the first call to Done has an effect. Done calls the store only if there are units to
// refund, charge or release. If Done is never called, the reserved units remain charged, and the
// first time that such an Admission is garbage-collected, a warning is logged.
//
// Done does nothing for an Admission that was returned by FromContext or is contained in a
// RefusedError.
func (a *Admission) Done(o Outcome) {
	if a == nil || a.ticket == nil || a.ticket.over.Swap(true) {
		return
	}
	t := a.ticket
	t.watch.Stop()
	o.HungUp = o.HungUp || t.Err() != nil
	o.complete()
	t.finish(o)
}
