package weir

import (
	"context"
	"net/http"
	"time"

	"github.com/seed83679106/weir/internal/recorder"
	"github.com/seed83679106/weir/quota"
)

// An Outcome describes a served request to Rule.Settle, which returns the final cost of the
// request. Until then Rule.Cost is reserved, so concurrent requests cannot overspend in
// between. Let Rule.Cost return the most that a request may cost.
//
// If the final cost is lower, the difference is given back, except units that no longer
// count, such as units of a window that is over. If the final cost is higher, the
// difference is charged even if it does not fit. The key then owes the difference, and
// later requests are refused until the debt has drained or its window is over (see
// quota.ModeForce). A Settle that must leave no debt returns at most Cost. Settle is
// called once for each request that has reserved units under the rule, after the handler
// has returned or panicked. For a request with HungUp, Settle should return Cost or Used:
// if hanging up gave units back, a client could always hang up and never pay. The response
// is complete only after the store has answered, which takes a round trip. If the store
// fails, Cost stays spent.
type Outcome struct {
	// Request is the served request.
	Request *http.Request

	// Cost is what was reserved for the request.
	Cost int64

	// Status is the status of the response. If the handler wrote none, Status is 500 if the
	// handler panicked, 101 if it took over the connection (Hijack), as for a WebSocket,
	// and otherwise 200. A connection that was taken over may outlive the handler, but the
	// request is settled when the handler returns.
	Status int

	// Header has the fields of the response.
	Header http.Header

	// Bytes is how many bytes of the body were written through the ResponseWriter.
	Bytes int64

	// Used is how many units of the rule's Unit ReportUsage was told of.
	Used int64

	// Panicked says that the handler panicked.
	Panicked bool

	// HungUp says that the client may have made the handler fail. It is true in any of
	// these cases:
	//
	//   - the context of the request ended before the handler returned
	//   - a read of the body failed, or had not returned when the handler returned
	//   - the response could not be written
	//
	// If the handler took over the connection, HungUp says only whether the handler
	// panicked.
	HungUp bool

	// Took is how long the handler took.
	Took time.Duration
}

// ChargeOnly returns a Settle that charges a request only if its response has one of the
// given statuses: ChargeOnly(401) counts failed logins. A request is also charged if its
// handler panicked or its client hung up. ChargeOnly panics without a status, because it
// would charge nearly nothing.
func ChargeOnly(statuses ...int) func(Outcome) int64 {
	if len(statuses) == 0 {
		panic("weir: ChargeOnly: no statuses")
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

// RefundErrors is a Settle that gives back the cost of a request if the handler answers
// with a 5xx status or panics. If the client hung up, the request is charged: most handlers
// then fail (a proxy with 502), so a client could hang up to pay nothing. Do not use
// RefundErrors if clients can send requests that make the handler fail, because these
// requests would cost nothing.
func RefundErrors(o Outcome) int64 {
	if !o.HungUp && (o.Panicked || o.Status >= 500) {
		return 0
	}
	return o.Cost
}

// ReportUsage tells the limiters around a handler how many units of one kind the request has used,
// such as the tokens of an answer. A rule with Settle finds the sum of all calls with its Unit in
// Outcome.Used; the unit of a rule without Unit is "requests". If limiters have rules with Settle,
// but none has that unit, the Logger gets a warning. Without a rule that has Settle, ReportUsage
// does nothing.
func ReportUsage(ctx context.Context, unit string, used int64) {
	var l *Limiter
	known := false
	for v := verdictOf(ctx); v != nil; v = verdictOf(v.Context) {
		if v.extra != nil && v.extra.l != nil {
			l = v.extra.l
			known = l.settlesUnit(unit) || known
			v.extra.used.add(unit, used)
		}
	}
	if l != nil && !known && !l.strayUnit.Swap(true) {
		loggerOr(l.o.Logger).WarnContext(ctx, "weir: ReportUsage has a unit that no rule with Settle has, so nothing was charged for it; later ones are not logged", "unit", unit)
	}
}

func (l *Limiter) settlesUnit(unit string) bool {
	for _, r := range l.rules {
		if r.Settle != nil && r.Unit == unit {
			return true
		}
	}
	return false
}

func (u *usage) add(unit string, n int64) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.of == nil {
		u.of = map[string]int64{}
	}
	u.of[unit] += n
}

func (u *usage) sum(unit string) int64 {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.of[unit]
}

// ends has what riders do once a request is over.
type ends []func()

// startAll has riders start an admitted request.
func startAll(riders []rider, v *verdict) (all ends) {
	for _, rider := range riders {
		if end := rider.start(v); end != nil {
			all = append(all, end)
		}
	}
	return all
}

func (e ends) run() {
	for _, end := range e {
		end()
	}
}

// handler returns next, or a handler that runs e when next returns or panics.
func (e ends) handler(next http.Handler) http.Handler {
	if len(e) == 0 {
		return next
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer e.run()
		next.ServeHTTP(w, r)
	})
}

// serveAndSettle serves a request, and then charges its final cost.
func (l *Limiter) serveAndSettle(w http.ResponseWriter, r *http.Request, v *verdict, next http.Handler) {
	if len(v.items) == 0 && v.extra == nil {
		next.ServeHTTP(w, r)
		return
	}
	v.extras().l = l
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
		l.settle(v, o)
	}()
	next.ServeHTTP(rec.Writer(), r2)
	o.Panicked = false
}

// settle replaces the reserved cost of a request under each rule by its final cost.
func (l *Limiter) settle(v *verdict, o Outcome) {
	o.Request = v.event.Request
	switch {
	case o.Status != 0:
	case o.Panicked:
		o.Status = http.StatusInternalServerError
	default:
		o.Status = http.StatusOK
	}
	l.settleEach(asking{v.Context}, o, &v.extra.used, &v.Transaction, v.items)
	if aside := &v.extra.aside; aside.spent {
		l.settleEach(asking{v.Context}, o, &v.extra.used, &aside.Transaction, aside.items)
	}
}

func (l *Limiter) settleEach(ctx context.Context, o Outcome, used *usage, t *quota.Transaction, items []item) {
	var back, more []quota.Charge
	for i, n := 0, 0; i < len(items); i += n {
		it := &items[i]
		n = it.limits
		if it.rule.Settle == nil || it.cost <= 0 {
			continue
		}
		o.Cost, o.Used = it.cost, used.sum(it.rule.Unit)
		cost := max(0, it.rule.Settle(o))
		it.rule.settled(cost)
		to := &back
		if cost > it.cost {
			to = &more
		}
		for j, c := range t.Charges[i : i+n] {
			if c.Cost = cost - c.Cost; c.Cost < 0 {
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

// settleUp gives units back, or charges units by force, after the request was served.
func (l *Limiter) settleUp(ctx context.Context, t *quota.Transaction) {
	if len(t.Charges) == 0 {
		return
	}
	if err := l.store.Take(ctx, t); err != nil {
		task := "give units back"
		if t.Mode == quota.ModeForce {
			task = "charge the final cost"
		}
		l.log.warn(ctx, task, t.Charges[0].Rule, err)
	}
}
