package weir

import (
	"context"
	"net/http"
	"reflect"
	"time"

	"github.com/seed83679106/weir/internal/recorder"
	"github.com/seed83679106/weir/quota"
)

// An Outcome describes a request that has been served. Rule.Settle uses it to return the final cost.
// While the request is being served, the cost returned by Rule.Cost stays reserved, so concurrent
// requests cannot overspend. Rule.Cost should therefore return the most that a request may cost.
//
// If the final cost is lower, the difference is refunded, except for units that have already
// expired. If the final cost is higher, the difference is charged even if it exceeds the limit. The
// key is then in debt, and requests are refused until the debt has drained or the window has ended
// (see quota.ModeForce). To avoid debt, Settle must not return more than Cost. Settle is called
// once for each request that reserved units under the rule, after the handler has returned or
// panicked. If HungUp is true, Settle should return Cost or Used, so that clients cannot avoid
// paying by hanging up. The response is complete only after the final cost has been charged, which
// takes a round trip to the store. If the store fails, the reserved units remain charged.
type Outcome struct {
	// Request is the served request.
	Request *http.Request

	// Cost is the number of units that Rule.Cost and Draw have reserved for the request.
	Cost int64

	// Status is the status code of the response. If the handler did not write one, Status is 500 if
	// the handler panicked, 101 if it hijacked the connection, as for a WebSocket, and 200
	// otherwise. A hijacked connection may outlive the handler, but the request is settled when the
	// handler returns. For a request sent through Limiter.Transport, Status is 0 if there was no
	// response.
	Status int

	// Header holds the response header.
	Header http.Header

	// Bytes is the number of body bytes written through the ResponseWriter. It is 0 for a request
	// sent through Limiter.Transport. For Limiter.Admit, it is the value that the caller passed to
	// Done.
	Bytes int64

	// Used is the number of units, in the rule's Unit, that the handler reported with ReportUsage
	// or drew with Draw.
	Used int64

	// Reported reports whether ReportUsage or Draw was called with the rule's Unit. If Reported is
	// false, Used is 0, but the request may still have used units.
	Reported bool

	// Panicked reports whether the handler panicked.
	Panicked bool

	// HungUp reports whether the client may have made the handler fail. It is true in any of these
	// cases:
	//
	//   - the context of the request ended before the handler returned
	//   - a read of the body failed, or had not returned when the handler returned
	//   - the response could not be written
	//
	// If the handler hijacked the connection, HungUp reports only whether the handler panicked.
	HungUp bool

	// Took is how long the handler took.
	Took time.Duration
}

// ChargeOnly returns a Settle function that charges only requests whose response has one of the
// given status codes. ChargeOnly(401), for example, counts failed logins. A request is also charged
// if its handler panics or its client hangs up. ChargeOnly panics if it is called without a status
// code.
func ChargeOnly(statuses ...int) func(Outcome) int64 {
	if len(statuses) == 0 {
		panic("weir: ChargeOnly: statuses is empty")
	}
	return func(o Outcome) int64 {
		if o.Panicked || o.HungUp {
			return o.Cost
		}
		for _, s := range statuses {
			if o.Status == s {
				return o.Cost
			}
		}
		return 0
	}
}

// RefundErrors is a Settle function that refunds a request's cost if the handler responds with a
// 5xx status or panics. If the client hangs up, the request is still charged. Most handlers fail in
// that case, so clients could otherwise avoid paying by hanging up. Do not use RefundErrors if
// clients can make the handler fail on purpose, because such requests would be free.
func RefundErrors(o Outcome) int64 {
	if !o.HungUp && (o.Panicked || o.Status >= 500) {
		return 0
	}
	return o.Cost
}

// ChargeUsed is a Settle function that charges the units that the handler reported with ReportUsage
// or drew with Draw. If the handler called neither function, its usage is unknown, and the request
// is charged its full Cost. A handler that used nothing should therefore report 0.
//
// If a client hangs up, only the usage reported so far is charged. Report usage as it occurs, or in
// a deferred call.
func ChargeUsed(o Outcome) int64 {
	if !o.Reported {
		return o.Cost
	}
	return o.Used
}

func isChargeUsed(settle func(Outcome) int64) bool {
	return reflect.ValueOf(settle).Pointer() == reflect.ValueOf(ChargeUsed).Pointer()
}

// serveAndSettle serves a request, and then charges its final cost.
func (l *Limiter) serveAndSettle(w http.ResponseWriter, r *http.Request, v *verdict, next http.Handler) {
	if len(v.items) == 0 && v.extra == nil {
		next.ServeHTTP(w, r)
		return
	}
	v.extras().settledBy(l, l.o.OnError)
	rec := &recorder.Recorder{ResponseWriter: w}
	r2 := r.WithContext(v)
	if r.Body != nil && r.Body != http.NoBody {
		r2.Body = rec.Body(r.Body)
	}
	o := Outcome{Header: w.Header(), Panicked: true}
	start := time.Now()
	defer func() {
		o.Status, o.Bytes, o.Took = rec.Status, rec.Bytes, time.Since(start)
		if rec.Hijacked { // the end of a WebSocket is no hang-up, and net/http does not see it
			o.HungUp = o.Panicked
		} else {
			o.HungUp = r.Context().Err() != nil || rec.HungUp()
		}
		o.complete()
		l.settle(v, o)
	}()
	next.ServeHTTP(rec.Writer(), r2)
	o.Panicked = false
}

// complete sets the Status that net/http sends for a handler that has written none.
func (o *Outcome) complete() {
	switch {
	case o.Status != 0:
	case o.Panicked:
		o.Status = http.StatusInternalServerError
	default:
		o.Status = http.StatusOK
	}
}

// settle replaces the reserved cost of a request under each rule by its final cost.
func (l *Limiter) settle(v *verdict, o Outcome) {
	ctx := asking{v.Context}
	o.Request = v.event.Request
	v.extra.used.end(ctx, l)
	l.settleEach(ctx, o, &v.extra.used, &v.Transaction, v.items, false)
	if aside := &v.extra.aside; aside.spent {
		l.settleEach(ctx, o, &v.extra.used, &aside.Transaction, aside.items, true)
	}
}

func (l *Limiter) settleEach(ctx context.Context, o Outcome, used *usedUnits, t *quota.Transaction, items []item, inShadow bool) {
	var back, more []quota.Charge
	reported := o.Reported
	for i, n := 0, 0; i < len(items); i += n {
		it := &items[i]
		n = it.limits
		if it.rule.Settle == nil {
			continue
		}
		u := used.of[it.rule.Unit]
		if u == nil {
			u = new(unitUse)
		}
		drawn := u.drawn
		if inShadow {
			drawn = 0
		}
		if o.Cost = it.cost + drawn; o.Cost <= 0 {
			continue
		}
		o.Used, o.Reported = u.used, u.reported || reported
		cost := max(0, it.rule.Settle(o))
		it.rule.settled(cost, o.Reported)
		to := &back
		if cost > o.Cost {
			to = &more
		}
		for j, c := range t.Charges[i : i+n] {
			if c.Cost = cost - o.Cost; c.Cost < 0 {
				c.Spent = t.Decisions[i+j].At
			}
			if c.Cost != 0 && !items[i+j].inFlight {
				*to = append(*to, c)
			}
		}
	}
	if len(back) > 0 {
		l.settleUp(ctx, &quota.Transaction{Charges: back})
	}
	if len(more) > 0 {
		l.settleUp(ctx, &quota.Transaction{Charges: more, Mode: quota.ModeForce})
	}
}

// The likely reasons, for the Logger.
const (
	settledLikely    = "ChargeOnly names another status than the handler answers; the handler reports no usage; or no request has failed yet, if only failures count"
	unreportedLikely = "the handler does not call ReportUsage or Draw, or calls it with another unit or context"
)

// settled is called with the final cost of each request, and whether its usage was reported.
func (rule *rule) settled(cost int64, reported bool) {
	switch unused := !reported && isChargeUsed(rule.Settle); {
	case cost > 0 && !unused:
		rule.unsettled.end()
	case !rule.unsettled.again():
	case unused:
		rule.miswired("no usage reported in the first 200 requests", "they cost what was reserved", unreportedLikely)
	default:
		rule.miswired("all units refunded in each of the first 200 requests", "none of them was limited", settledLikely)
	}
}

// settleUp gives units back, or charges units by force, after the request was served.
func (l *Limiter) settleUp(ctx context.Context, t *quota.Transaction) {
	if len(t.Charges) == 0 {
		return
	}
	if err := l.store.Take(ctx, t); err != nil {
		what := "units not refunded"
		if t.Mode == quota.ModeForce {
			what = "final cost not charged"
		}
		l.log.warn(ctx, what, t.Charges[0].Rule, err)
	}
}
