package weir

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/seed83679106/weir/quota"
)

// serve is the way of a request: it is decided, it waits for its turn, and it is answered.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := l.newVerdict(r)
	switch err := l.admit(v); {
	case err != nil:
		unserved(w, r, err)
	case v.event.Passed:
		next.ServeHTTP(w, r)
	default:
		l.answer(w, r, next, v)
	}
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
	v.begin(r)
	return v
}

// admit decides the request of v and returns when its turn has come, or the error of its context
// if that ends first. If the request could not be decided, OnError says whether it passes.
func (l *Limiter) admit(v *verdict) error {
	err := l.decide(v, l.rules, l.riders, l.o.MaxWait)
	if v.event.Err != nil {
		l.fail(v)
	}
	return err
}

// decide charges the rules that apply to the request of v, has the store decide the charges and
// records the outcome in v. A request that is admitted then waits for its turn, for up to maxWait.
// decide returns the error of the context of the request if that ends first. The caller observes
// an error of the store, because it knows whether the request passes.
func (l *Limiter) decide(v *verdict, rules []*rule, riders []rider, maxWait time.Duration) error {
	l.charge(v, rules, riders)
	switch {
	case v.reason != 0 || v.event.Err != nil:
	case maxWait > 0:
		return l.askInLine(v, riders, maxWait)
	default:
		l.ask(v, riders)
	}
	if v.event.Err == nil {
		l.observe(v)
	}
	return nil
}

// askInLine does what ask does, for a request that may wait for up to maxWait, and then waits.
func (l *Limiter) askInLine(v *verdict, riders []rider, maxWait time.Duration) error {
	v.Within, v.slept, v.gone = l.enter(v, maxWait), 0, nil
	defer l.leave(v) // even if the store panics. In decide it would cost each request 17 ns
	l.ask(v, riders)
	if v.event.Err != nil {
		return nil
	}
	if v.reason == 0 {
		v.Wait += v.slept
	}
	l.observe(v)
	if v.reason == 0 && v.Wait > v.slept {
		return l.wait(v)
	}
	return v.gone
}

// ask has the store decide the charges of v and of its riders, in one call, and has the riders
// heed the decisions. Then it removes the charges of riders.
func (l *Limiter) ask(v *verdict, riders []rider) {
	if len(v.Charges) == 0 {
		return
	}
	if len(v.riding) > 0 {
		v.Charges = append(v.Charges, v.riding...)
	}
	var err error
	if v.Within > 0 && l.flies {
		err = l.takeInLine(v)
	} else {
		v.event.Took, err = l.timedTake(v, l.store, &v.Transaction)
	}
	if err != nil {
		v.event.Err = err
		v.Refusal, v.event.Key = Refusal{Reason: ReasonError, Rule: v.Charges[0].Rule}, v.Charges[0].Key
	} else if f, longest := refusalOf(&v.Transaction, len(v.items)); f.Reason != 0 {
		v.Refusal, v.reason, v.event.Key, v.longest = f, f.Reason, v.Charges[longest].Key, int32(longest)
	}
	if l.costs && err == nil {
		checkCosts(v.items, v.Decisions)
	}
	if len(riders) > 0 {
		l.heed(v, riders)
	}
}

// heed has riders heed the decisions of v, and then removes their charges.
func (l *Limiter) heed(v *verdict, riders []rider) {
	if v.event.Err == nil && v.gone == nil {
		for _, rider := range riders {
			rider.heed(v)
		}
	}
	v.trim()
	if v.reason != 0 && v.Wait > 0 { // a rider has refused a request that has reserved a turn
		l.giveBack(v)
	}
}

// takeInLine has the store decide the charges of v, for which the request may first wait until
// units in flight are released. If the context of the request ends meanwhile, the request is
// refused and gone.
func (l *Limiter) takeInLine(v *verdict) (err error) {
	start := time.Now()
	v.slept, err = quota.TakeInLine(v.Context, l.store, &v.Transaction)
	if !l.instant {
		v.event.Took = time.Since(start) - v.slept
	}
	if err != nil && err == v.Err() && len(v.Decisions) == len(v.Charges) {
		v.gone, err = err, nil
	}
	return err
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

// refusalOf returns why the first n charges of a decided transaction are refused, and the index
// of the charge with the longest wait.
func refusalOf(t *quota.Transaction, n int) (f Refusal, charge int) {
	for i := range t.Decisions[:n] {
		d := &t.Decisions[i]
		if !d.Allowed && (f.Reason == 0 || d.RetryAfter > f.RetryAfter) {
			f, charge = Refusal{ReasonLimit, t.Charges[i].Rule, d.RetryAfter}, i
		}
	}
	return f, charge
}

// enter returns how long a request may wait: at most maxWait, and no longer than its
// context lasts. It returns noPlace if no time is left, or if MaxWaiting requests wait or
// are being decided. If the request may wait, enter counts it until leave is called. enter
// counts the request before the store is asked, because otherwise more than MaxWaiting
// requests could pass at once.
func (l *Limiter) enter(v *verdict, maxWait time.Duration) time.Duration {
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
	timer := time.NewTimer(v.Wait - v.slept)
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
		l.log.warn(v, "units not refunded", v.Charges[0].Rule, err) // if it fails, the units stay spent
	}
	v.Wait = 0
}

// observe calls Observe with the event of v, and logs its error. If all rules of a request are in
// shadow, only their event is observed.
func (l *Limiter) observe(v *verdict) {
	if v.event.Err != nil || l.o.Observe != nil { // this check is inlined, so most limiters cost no call
		l.complete(v)
	}
}

// complete completes the event of v and reports it.
func (l *Limiter) complete(v *verdict) {
	if v.event.Err == nil && v.reason == 0 && len(v.Charges) == 0 && v.aside() != nil {
		return
	}
	v.event.Transaction, v.event.Refusal = &v.Transaction, v.Refusal
	l.report(v, &v.event)
}

// report logs the error of an event, and calls Observe.
func (l *Limiter) report(ctx context.Context, e *Event) {
	if e.Err != nil {
		log, attrs := &l.log, []any{"passed", e.Passed}
		switch {
		case e.Passed:
			log = &l.passed
		case e.Shadow: // its rules refuse nothing
			attrs = []any{"shadow", true}
		}
		log.warn(ctx, "request not decided", e.Refusal.Rule, e.Err, attrs...)
	}
	if l.o.Observe != nil {
		l.o.Observe(*e)
	}
}

// fail has OnError say whether a request passes that could not be decided.
func (l *Limiter) fail(v *verdict) {
	defer l.observe(v) // even if OnError panics
	v.items = nil      // their decisions mean nothing
	if l.o.OnError(v.event.Request, v.event.Err) == nil {
		v.event.Passed = true
		return
	}
	if errors.Is(v.event.Err, quota.ErrBusy) {
		v.Refusal.RetryAfter = time.Second // a store that gets too much now may have room a moment later
	}
	v.deny(v.Refusal, nil, v.event.Key)
}

// answer writes the header fields, writes the refusal or calls next, and recycles the
// verdict.
func (l *Limiter) answer(w http.ResponseWriter, r *http.Request, next http.Handler, v *verdict) {
	h, settles := w.Header(), l.settles && v.reason == 0
	tells := !settles && l.tells(v)
	fresh := len(h) == 0 // the response will have no other fields
	if v.outer != nil {
		l.checkNesting(v)
	}
	l.writeHeaders(h, v, tells)
	if v.reason == 0 && len(l.riders) > 0 {
		next = startAll(l.riders, v).handler(next)
	}
	if settles {
		l.serveAndSettle(w, r, v, next)
		return
	}
	var refusal *problem
	switch {
	case v.reason != 0 && !tells:
		refusal = v.problem()
	case tells:
		if v.reason != 0 {
			next = l.o.OnLimited
		}
		r = r.WithContext(v.tell())
	}
	l.recycle(v)
	if refusal != nil {
		refusal.write(w, r, fresh)
		return
	}
	next.ServeHTTP(w, r)
}

// tells reports whether the handler that gets the request, next or OnLimited, gets the
// decision in its context.
func (l *Limiter) tells(v *verdict) bool {
	if v.reason != 0 {
		return l.o.OnLimited != nil
	}
	return len(v.items) > 0 && (!l.o.NoFromContext || v.outer != nil)
}

// clientClosedRequest is the status that nginx logs if a client hangs up before the
// answer.
const clientClosedRequest = 499

// unserved answers a request whose context ended with err before it was served. The client
// may be gone, but the log must not show a success, and a cache must store nothing.
func unserved(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		reducedCapacity.write(w, r, false)
		return
	}
	h := w.Header()
	h["Cache-Control"] = noStore
	delete(h, "Content-Length") // there is no body
	delete(h, "Content-Encoding")
	w.WriteHeader(clientClosedRequest)
}

// Refuse is the default of OnLimited. It answers with the Status of the rule that refuses,
// usually 429, and with problem details, or with text or HTML if the client prefers that.
// After a ban or a deny, the type of the problem is abnormal-usage-detected. After a
// refusal by a limit it is quota-exceeded, or temporary-reduced-capacity if the Status is
// 503. A request without the key that it must have (NoKeyRefuse) gets 400, whatever the
// Status is, because no wait helps, and problem details of the type about:blank. A request that
// could not be decided, and that Options.OnError does not allow, gets 503 and
// temporary-reduced-capacity.
//
// Clients of gRPC, gRPC-Web and Connect, which are known by their Content-Type, get the same in
// the words of their protocol: resource_exhausted, with google.rpc.RetryInfo if a wait helps,
// permission_denied after a deny, invalid_argument without a key, and unavailable for 503.
func Refuse(w http.ResponseWriter, r *http.Request) {
	if v := verdictOf(r.Context()); v != nil {
		v.problem().write(w, r, false)
		return
	}
	quotaExceeded.write(w, r, false)
}
