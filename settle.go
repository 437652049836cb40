package weir

import (
	"context"
	"net/http"
	"time"
)

// An Outcome is what became of a request, for Rule.Settle, which says what the
// request cost after all. Until then the Cost of the rule is reserved, so that
// there is nothing between a check and its record for others to slip through:
// let Cost be the most that a request may cost.
//
// What was not needed is given back to where it was spent. What was needed
// beyond Cost is charged as far as it fits. Settle is called once for each key
// that was charged, when the handler has returned, also where it panicked or the
// client has hung up. For a request with HungUp, Settle should return Cost, or
// what has been used: a client that gets its units back for hanging up never
// pays. The response of a handler that returns is complete when the store has
// been told, which takes a round trip; if that fails the Cost stays spent.
type Outcome struct {
	// Request is the one that was served.
	Request *http.Request

	// Cost is what was reserved for it.
	Cost int64

	// Status is that of the response. It is 500 if the handler panicked before
	// there was one, and 101 if it took over the connection before (Hijack), as
	// for a WebSocket, which is settled when the handler returns.
	Status int

	// Header has the fields of the response.
	Header http.Header

	// Bytes is how much of a body was written, through the ResponseWriter.
	Bytes int64

	// Used is the sum of what handlers have told Report.
	Used int64

	// Panicked says that the handler did.
	Panicked bool

	// HungUp says that the client may have made the handler fail: the context of
	// the request ended before the handler returned, the body of the request could
	// not be read to where the handler wanted or was still waited for when it
	// returned, or the response not be written. The
	// end of a connection that the handler took over is no hang-up, unless the
	// handler panics: then it is one.
	HungUp bool

	// Took is how long the handler took.
	Took time.Duration
}

// ChargeOnly is a Settle that charges requests with one of those statuses, and
// gives back the others: ChargeOnly(401) counts failed logins. What panicked or
// was hung up on is charged.
func ChargeOnly(statuses ...int) func(Outcome) int64 {
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

// RefundErrors is a Settle that gives back requests whose handler answered with
// a 5xx status, or panicked. A request whose client hung up is charged: most
// handlers fail then, a proxy with 502, and the client would choose what it pays.
// A request that makes the handler fail by what it asks is given back, too.
func RefundErrors(o Outcome) int64 {
	if !o.HungUp && (o.Panicked || o.Status >= 500) {
		return 0
	}
	return o.Cost
}

// ReportUsage tells the limiters around a handler how much it has used, of what the
// handler knows best, such as tokens; it adds up. It does nothing outside of a
// handler whose rules have a Settle.
func ReportUsage(ctx context.Context, used int64) {
	v, _ := ctx.Value(verdictKey{}).(*verdict)
	for ; v != nil; v = v.outer {
		if v.extra != nil {
			v.extra.used.Add(used)
		}
	}
}

// serveAndSettle serves a request, and then charges what it cost.
func (l *Limiter) serveAndSettle(w http.ResponseWriter, r *http.Request, v *verdict, next http.Handler) {
	if len(v.items) == 0 && v.extra == nil {
		next.ServeHTTP(w, r)
		return
	}
	extra := v.extras()
	rec := &recorder{ResponseWriter: w}
	r2 := r.WithContext(v)
	if r.Body != nil && r.Body != http.NoBody {
		rec.body.ReadCloser = r.Body
		r2.Body = &rec.body
	}
	o := Outcome{Request: r, Header: w.Header(), Panicked: true}
	start := time.Now()
	defer func() {
		o.Status, o.Bytes, o.Used, o.Took = rec.status, rec.bytes, extra.used.Load(), time.Since(start)
		switch {
		case o.Status != 0:
		case o.Panicked:
			o.Status = http.StatusInternalServerError
		default:
			o.Status = http.StatusOK
		}
		if rec.hijacked { // its end is how a WebSocket ends, and net/http does not see it
			o.HungUp = o.Panicked
		} else {
			o.HungUp = r.Context().Err() != nil || rec.hungUp()
		}
		ctx := context.WithoutCancel(r.Context())
		l.settle(ctx, o, &v.Transaction, v.items)
		if extra.spent {
			l.settle(ctx, o, &extra.shadow, extra.items)
		}
	}()
	next.ServeHTTP(rec.writer(), r2)
	o.Panicked = false
}

// settle replaces what was spent for a request by what it cost.
func (l *Limiter) settle(ctx context.Context, o Outcome, t *Transaction, items []item) {
	var back, more Transaction
	for i, n := 0, 0; i < len(items); i += n {
		it := &items[i]
		n = it.limits
		if it.rule.Settle == nil || it.cost <= 0 {
			continue
		}
		o.Cost = it.cost
		cost := max(0, it.rule.Settle(o))
		to := &back
		if cost > it.cost {
			to = &more
		}
		for j, c := range t.Charges[i : i+n] {
			if c.Cost = cost - c.Cost; c.Cost < 0 {
				c.Spent = t.Decisions[i+j].At
			}
			if c.Cost != 0 {
				to.Charges = append(to.Charges, c)
			}
		}
	}
	l.settleUp(ctx, &back)
	if l.settleUp(ctx, &more); !more.Allowed() {
		for i := range more.Charges {
			more.Charges[i].Cost = max(0, min(more.Charges[i].Cost, more.Decisions[i].Remaining))
		}
		l.settleUp(ctx, &more)
	}
}

func (l *Limiter) settleUp(ctx context.Context, t *Transaction) {
	if len(t.Charges) == 0 {
		return
	}
	if err := l.store.Take(ctx, t); err != nil {
		l.log.warn(ctx, t.Charges[0].Rule, err)
	}
}
