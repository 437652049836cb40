package weir

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/seed83679106/weir/quota"
)

// serve passes a request to next if the limits allow it, and refuses it otherwise.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	if l.single {
		l.serveSingle(w, r, next)
	} else {
		l.serveGeneral(w, r, next)
	}
}

// serveGeneral decides a request, waits for its turn, writes the header fields, and then
// writes the refusal or calls next.
func (l *Limiter) serveGeneral(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := l.newVerdict(r)
	e := Event{Request: r, Transaction: &v.Transaction}
	if l.decide(v, &e, l.o.MaxWait, 0); e.Err != nil {
		l.fail(w, next, v, e) // v is not recycled: a store that failed may still use it
		return
	}
	if !v.refused && v.Wait > 0 {
		if err := l.wait(v); err != nil {
			unserved(w, r, err)
			return
		}
	}
	if v.flies && !v.refused {
		next = l.flight(v).handler(next)
	}
	if l.settles && !v.refused {
		l.writeHeaders(w.Header(), v, false)
		l.serveAndSettle(w, r, v, next)
		return
	}
	l.finish(w, r, next, v)
}

// finish writes the header fields, writes the refusal or calls next, and recycles the
// verdict.
func (l *Limiter) finish(w http.ResponseWriter, r *http.Request, next http.Handler, v *verdict) {
	h, tells := w.Header(), l.tells(v)
	fresh := len(h) == 0 && l.expose == nil // the response will have no other fields
	l.writeHeaders(h, v, tells)
	if v.refused && v.outer != nil {
		l.checkNesting(v)
	}
	switch {
	case tells:
		told := v.tell()
		l.recycle(v)
		if told.refused {
			next = l.o.OnLimited
		}
		next.ServeHTTP(w, r.WithContext(told))
	case v.refused:
		answer := v.refusal()
		l.recycle(v)
		if fresh {
			answer.writeFresh(w, r)
		} else {
			answer.write(w, r)
		}
	default:
		l.recycle(v)
		next.ServeHTTP(w, r)
	}
}

// tells reports whether the handler that gets the request, next or OnLimited, gets the
// decision in its context.
func (l *Limiter) tells(v *verdict) bool {
	if v.refused {
		return l.o.OnLimited != nil
	}
	return len(v.items) > 0 && (!l.o.NoFromContext || v.outer != nil)
}

// tell returns the context of the handler that gets the request: a copy of the verdict
// without the inquiry, because another request will use the inquiry.
func (v *verdict) tell() *verdict {
	told := v.told
	if told == nil {
		told, _ = makeVerdict(len(v.items), false)
	}
	told.Context, told.extra, told.refused = v.Context, v.extra, v.refused
	told.items = append(told.items, v.items...)
	told.at, told.waited = v.At.UnixMicro(), v.Wait
	return told
}

// fail has OnError answer a request that could not be decided. The error is observed as soon
// as it is known whether the request passes: before next is called, or else after the answer.
func (l *Limiter) fail(w http.ResponseWriter, next http.Handler, v *verdict, e Event) {
	var once sync.Once // OnError may call next on another goroutine
	observe := func(passed bool) {
		once.Do(func() {
			e.Passed = passed
			l.observe(v, &e)
		})
	}
	defer observe(false) // even if OnError panics
	l.o.OnError(w, e.Request, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		observe(true)
		next.ServeHTTP(w, r)
	}), e.Err)
}

// decide charges the rules that apply to the request of e and records the outcome in v. It
// does not sleep: the caller waits for v.Wait, up to maxWait. buffer is added to every
// period. The caller observes the error, because it knows whether the request passes.
func (l *Limiter) decide(v *verdict, e *Event, maxWait, buffer time.Duration) {
	e.Err = l.charge(v, e.Request, buffer)
	switch {
	case e.Err != nil:
		e.Refusal = v.Refusal
	case v.refused:
		e.Refusal, e.Key = v.Refusal, v.extra.key
		l.observe(v, e)
	case maxWait > 0:
		l.askInLine(v, e, maxWait)
	default:
		l.ask(v, e)
	}
}

// askInLine does what ask does, for a request that may wait for up to maxWait.
func (l *Limiter) askInLine(v *verdict, e *Event, maxWait time.Duration) {
	v.Within = l.enter(v, maxWait)
	waits := false
	defer func() { // even if the store panics
		if !waits {
			l.leave(v)
		}
	}()
	l.ask(v, e)
	waits = e.Err == nil && !v.refused && v.Wait > 0
}

// ask has the store decide the charges of v and look up the bans and the pauses of their
// keys, in one call. If the request is admitted, ask then charges the rules in shadow.
func (l *Limiter) ask(v *verdict, e *Event) {
	within := v.Within
	if len(v.Charges) == 0 && (v.extra == nil || len(v.extra.shadow.Charges) == 0) {
		l.observeUnlimited(e.Request)
		return
	}
	if len(v.Charges) > 0 {
		v.appendPauses()
		e.Took, e.Err = l.timedTake(v, l.store, &v.Transaction)
		e.judge()
		v.Refusal = e.Refusal
		if len(v.Charges) > len(v.items) {
			l.heedChecks(v, e)
			e.Refusal = v.Refusal
		}
		if e.Err != nil {
			return
		}
		l.observe(v, e)
	}
	v.refused = v.Refusal.Reason != 0
	if v.extra != nil && !v.refused && len(v.extra.shadow.Charges) > 0 {
		l.askInShadow(v, e.Request, within)
	}
}

// heedChecks refuses the request if the store has found that one of the request's keys is
// banned.
func (l *Limiter) heedChecks(v *verdict, e *Event) {
	spent := v.Refusal.Reason == 0
	if e.Err == nil {
		l.applyPenalties(v, e)
	}
	v.hideChecks()
	switch {
	case v.refused && v.Wait > 0: // a banned request does not use its turn
		l.giveBack(v)
	case v.refused && v.flies && spent: // a banned request is not in flight
		l.flight(v).end()
	}
}

// askInShadow charges rules in shadow, which refuse no request.
func (l *Limiter) askInShadow(v *verdict, r *http.Request, within time.Duration) {
	t := &v.extra.shadow
	t.Within = within
	e := Event{Request: r, Transaction: t, Shadow: true}
	e.Took, e.Err = l.timedTake(v, l.unpaid, t)
	e.judge()
	v.extra.spent = e.Refusal.Reason == 0
	l.observe(v, &e)
}

// timedTake asks the store. If Observe is set, timedTake measures how long the store takes,
// unless reading the clock would take as long.
func (l *Limiter) timedTake(v *verdict, store Store, t *quota.Transaction) (took time.Duration, err error) {
	switch {
	case l.instant:
		return 0, store.Take(context.Background(), t)
	case l.o.Observe == nil:
		return 0, store.Take(asking{v.Context}, t)
	}
	start := time.Now()
	err = store.Take(asking{v.Context}, t)
	return time.Since(start), err
}

// judge sets the Refusal and the Key of the event if a limit or an error refuses the request.
func (e *Event) judge() {
	t, charge := e.Transaction, 0
	if e.Err != nil {
		e.Refusal = Refusal{Reason: ReasonError, Rule: t.Charges[0].Rule}
	} else if e.Refusal, charge = refusalOf(t); e.Refusal.Reason == 0 {
		return
	}
	e.Key = t.Charges[charge].Key
}

// hideChecks removes the charges that look up bans and pauses, because Observe and
// FromContext show the transaction.
func (v *verdict) hideChecks() {
	n := len(v.items)
	if len(v.Charges) == n {
		return
	}
	clear(v.Charges[n:]) // they would keep keys alive
	clear(v.checks)      // they would, too
	v.Charges, v.Decisions, v.checks = v.Charges[:n], v.Decisions[:min(n, len(v.Decisions))], v.checks[:0]
}

// enter returns how long a request may wait: at most maxWait, and no longer than its
// context lasts. It returns noPlace if no time is left, or if MaxWaiting requests wait or
// are being decided. If the request may wait, enter counts it until leave is called. enter
// counts the request before the store is asked, because otherwise more than MaxWaiting
// requests could pass at once.
func (l *Limiter) enter(v *verdict, maxWait time.Duration) time.Duration {
	if maxWait <= 0 {
		return 0
	}
	within := maxWait
	if deadline, ok := v.Deadline(); ok {
		within = max(0, min(within, time.Until(deadline)))
	}
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

// noPlace is the Within of a request that may not wait because MaxWaiting leaves no place.
// It is not 0, because with Within 0 a LeakyBucket admits a burst at once instead of one
// request after the other.
const noPlace = time.Microsecond

func (l *Limiter) leave(v *verdict) {
	if v.entered {
		v.entered = false
		l.waiting.Add(-1)
	}
}

// wait returns when the turn of v has come. If the context of the request ends before the
// turn, wait gives the turn back.
func (l *Limiter) wait(v *verdict) error {
	defer l.leave(v)
	timer := time.NewTimer(v.Wait)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-v.Done():
		l.giveBack(v)
		return v.Err()
	}
}

// giveBack gives back the turn of v, because the request does not use it.
func (l *Limiter) giveBack(v *verdict) {
	if err := quota.Refund(asking{v.Context}, l.store, &v.Transaction); err != nil {
		l.log.warn(v, "give units back", v.Charges[0].Rule, err) // if it fails, the units stay spent
	}
	v.Wait = 0
}
