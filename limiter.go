package weir

import (
	"context"
	"net/http"
	"time"
)

// serve takes a request the whole way: charge, decide, wait, fields, and then the
// refusal or next.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	free := !l.o.ChargePreflight && preflight(r)
	if free && !l.guards {
		next.ServeHTTP(w, r)
		return
	}
	v := l.newVerdict(r)
	v.free = free
	if err := l.decide(v, r, l.o.MaxWait, 0); err != nil {
		l.o.OnError(w, r, next, err) // the transaction is not released: an error promises nothing
		return
	}
	if !v.refused && v.Wait > 0 {
		if err := l.wait(v); err != nil {
			unserved(w, r, err)
			return
		}
	}
	if len(v.items) > 0 || v.refused {
		l.writeHeaders(w.Header(), v)
	}
	l.release(v)
	switch {
	case v.refused:
		l.refuse(w, r, v)
	case l.settles:
		l.serveAndSettle(w, r, v, next)
	case len(v.items) > 0:
		next.ServeHTTP(w, r.WithContext(v))
	default:
		next.ServeHTTP(w, r)
	}
}

// preflight reports whether a request is a CORS preflight, which a browser sends unasked
// and without body or credentials (Fetch standard, CORS-preflight request). A client
// certificate belongs to the connection and is ignored.
func preflight(r *http.Request) bool {
	return r.Method == http.MethodOptions && r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		r.ContentLength == 0 && len(r.TransferEncoding) == 0 && len(r.Header["Expect"]) == 0 && len(r.Header["Upgrade"]) == 0 &&
		len(r.Header["Authorization"]) == 0 && len(r.Header["Proxy-Authorization"]) == 0 && len(r.Header["Cookie"]) == 0
}

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
	if v.refused && v.Wait > 0 { // by a ban: the request does not wait for its turn
		l.giveBack(v)
	}
}

// askInShadow charges rules in shadow, which refuse no request.
func (l *Limiter) askInShadow(v *verdict, r *http.Request, within time.Duration) {
	t := &v.extra.shadow
	t.Within = within
	e := Event{Request: r, Transaction: t, Shadow: true}
	e.Took, e.Err = l.timedTake((*asking)(v), t)
	e.judge()
	v.extra.spent = t.Refusal.Reason == 0
	l.observe(v, e)
}

// timedTake asks the store. If there is an observer, it measures the time.
func (l *Limiter) timedTake(ctx context.Context, t *Transaction) (took time.Duration, err error) {
	if l.o.Observe == nil {
		return 0, l.store.Take(ctx, t)
	}
	start := time.Now()
	err = l.store.Take(ctx, t)
	return time.Since(start), err
}

// judge notes in the event, and in its transaction, whether a limit or an error refuses
// the request.
func (e *Event) judge() {
	t, charge := e.Transaction, 0
	if e.Err != nil {
		t.Refusal = Refusal{Reason: ReasonError, Rule: t.Charges[0].Rule}
	} else if t.Refusal, charge = t.refusal(); t.Refusal.Reason == 0 {
		return
	}
	e.Key = t.Charges[charge].Key
}

// refusal returns the refusal of a decided transaction by its limits, and the index of
// the charge with the longest wait.
func (t *Transaction) refusal() (f Refusal, charge int) {
	for i := range t.Decisions {
		d := &t.Decisions[i]
		if !d.Allowed && (f.Reason == 0 || d.RetryAfter > f.RetryAfter) {
			f, charge = Refusal{ReasonLimit, t.Charges[i].Rule, d.RetryAfter}, i
			if _, paused := t.Charges[i].Limit.Algorithm.(gate); paused {
				f.Reason = ReasonPause
			}
		}
	}
	return f, charge
}

// hideChecks removes the looks at bans and pauses from the transaction, which users see.
func (v *verdict) hideChecks() {
	n := len(v.items)
	if len(v.Charges) == n {
		return
	}
	clear(v.Charges[n:]) // keys are not kept
	clear(v.checks)      // nor here
	v.Charges, v.Decisions, v.checks = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))], v.checks[:0]
}

// release gives the inquiry to another request, unless it may still be read.
func (l *Limiter) release(v *verdict) {
	if l.o.Observe != nil || l.settles {
		return
	}
	q := v.inquiry
	t := &q.Transaction
	v.inquiry, v.at, v.waited = nil, t.At.UnixMicro(), t.Wait
	clear(t.Charges) // keys are not kept
	clear(t.next)    // nor logs
	*t = Transaction{Charges: t.Charges[:0], Decisions: t.Decisions[:0], Undo: t.Undo[:0], next: t.next[:0], first: t.first, others: t.others}
	l.pool.Put(q)
}

// enter returns how long a request may wait: at most maxWait, and noPlace while
// MaxWaiting requests wait or are being decided. If the request may wait, enter counts
// it until leave: the count must change before the store is asked, or it would bound
// nothing.
func (l *Limiter) enter(v *verdict, maxWait time.Duration) time.Duration {
	if maxWait <= 0 {
		return 0
	}
	within := atMost(v.Context, maxWait)
	if within > 0 && l.waiting.Add(1) > int64(l.o.MaxWaiting) {
		l.waiting.Add(-1)
		within = 0
	}
	if within == 0 {
		return noPlace
	}
	v.entered = true
	return within
}

// noPlace is the Within of a request for which MaxWaiting leaves no place. It is not 0,
// because that would turn the queue of a LeakyBucket into a meter.
const noPlace = time.Microsecond

func (l *Limiter) leave(v *verdict) {
	if v.entered {
		v.entered = false
		l.waiting.Add(-1)
	}
}
