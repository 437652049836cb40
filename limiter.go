package weir

import (
	"context"
	"net/http"
	"sync"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A rider joins the way of a request. It adds charges to the one call of the store that
// decides the request, and heeds what the store decides. A rider serves all requests of a
// Limiter or a Transport, so it keeps nothing about a request between two of these calls. The
// riders of a Limiter are called in the order in which New installs them.
type rider interface {
	// meet is called for each rule that may charge or refuse the request, before the rule does.
	// applies says that the request has that key, and that its policy is not Unlimited. meet may
	// deny the request. If it returns true, the rule refuses nothing, its charges go aside, and
	// the next riders do not meet it.
	meet(v *verdict, rule *rule, key string, applies bool) (aside bool)

	// board adds charges to v, behind those that the request owes.
	board(v *verdict)

	// heed is called with the decisions on all charges. It may refuse the request.
	heed(v *verdict)

	// start is called when an admitted request is about to be served or sent. If end is not
	// nil, it is called once the request is over, even if a handler has panicked.
	start(v *verdict) (end func())
}

// A bystander is a rider that does nothing. Riders embed it.
type bystander struct{}

func (bystander) meet(*verdict, *rule, string, bool) bool { return false }
func (bystander) board(*verdict)                          {}
func (bystander) heed(*verdict)                           {}
func (bystander) start(*verdict) func()                   { return nil }

// serve is the way of a request: it is decided, it waits for its turn, and it is answered.
func (l *Limiter) serve(w http.ResponseWriter, r *http.Request, next http.Handler) {
	v := l.newVerdict(r)
	l.decide(v, l.riders, l.o.MaxWait)
	if v.event.Err != nil {
		l.fail(w, next, v) // v is not recycled: a store that failed may still use it
		return
	}
	if v.reason == 0 && v.Wait > 0 {
		if err := l.wait(v); err != nil {
			unserved(w, r, err)
			return
		}
	}
	l.answer(w, r, next, v)
}

// answer writes the header fields, writes the refusal or calls next, and recycles the
// verdict.
func (l *Limiter) answer(w http.ResponseWriter, r *http.Request, next http.Handler, v *verdict) {
	h, settles := w.Header(), l.settles && v.reason == 0
	tells := !settles && l.tells(v)
	fresh := len(h) == 0 // the response will have no other fields
	l.writeHeaders(h, v, tells)
	if v.reason != 0 && v.outer != nil {
		l.checkNesting(v)
	}
	if v.reason == 0 && len(l.riders) > 0 {
		next = start(l.riders, v).handler(next)
	}
	switch {
	case settles:
		l.serveAndSettle(w, r, v, next)
	case tells:
		told := v.tell()
		l.recycle(v)
		if told.reason != 0 {
			next = l.o.OnLimited
		}
		next.ServeHTTP(w, r.WithContext(told))
	case v.reason != 0:
		p := v.problem()
		l.recycle(v)
		if fresh {
			p.writeFresh(w, r)
		} else {
			p.write(w, r)
		}
	default:
		l.recycle(v)
		next.ServeHTTP(w, r)
	}
}

// ends has what riders do once a request is over.
type ends []func()

// start has riders start an admitted request.
func start(riders []rider, v *verdict) (all ends) {
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

// tells reports whether the handler that gets the request, next or OnLimited, gets the
// decision in its context.
func (l *Limiter) tells(v *verdict) bool {
	if v.reason != 0 {
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
	told.Context, told.extra, told.reason = v.Context, v.extra, v.reason
	told.items = append(told.items, v.items...)
	told.at, told.waited = v.At.UnixMicro(), v.Wait
	return told
}

// fail has OnError answer a request that could not be decided. The error is observed as soon
// as it is known whether the request passes: before next is called, or else after the answer.
func (l *Limiter) fail(w http.ResponseWriter, next http.Handler, v *verdict) {
	var once sync.Once // OnError may call next on another goroutine
	observe := func(passed bool) {
		once.Do(func() {
			v.event.Passed = passed
			l.observe(v)
		})
	}
	defer observe(false) // even if OnError panics
	l.o.OnError(w, v.event.Request, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		observe(true)
		next.ServeHTTP(w, r)
	}), v.event.Err)
}

// decide charges the rules that apply to the request of v, and records the outcome in v. It
// does not sleep: the caller waits for v.Wait, up to maxWait. The caller observes an error,
// because it knows whether the request passes.
func (l *Limiter) decide(v *verdict, riders []rider, maxWait time.Duration) {
	l.charge(v, riders)
	switch {
	case v.event.Err != nil:
	case v.reason != 0:
		l.observe(v)
	case maxWait > 0:
		l.askInLine(v, riders, maxWait)
	default:
		l.ask(v, riders)
	}
}

// askInLine does what ask does, for a request that may wait for up to maxWait.
func (l *Limiter) askInLine(v *verdict, riders []rider, maxWait time.Duration) {
	v.Within = l.enter(v, maxWait)
	waits := false
	defer func() { // even if the store panics
		if !waits {
			l.leave(v)
		}
	}()
	l.ask(v, riders)
	waits = v.event.Err == nil && v.reason == 0 && v.Wait > 0
}

// ask has the store decide the charges of v and of its riders, in one call.
func (l *Limiter) ask(v *verdict, riders []rider) {
	if len(v.Charges) == 0 {
		if v.aside() == nil {
			l.observe(v)
		}
		return
	}
	for _, rider := range riders {
		rider.board(v)
	}
	var err error
	if v.event.Took, err = l.timedTake(v, l.store, &v.Transaction); err != nil {
		v.event.Err = err
		v.Refusal, v.event.Key = Refusal{Reason: ReasonError, Rule: v.Charges[0].Rule}, v.Charges[0].Key
	} else if f, longest := refusalOf(&v.Transaction, len(v.items)); f.Reason != 0 {
		v.Refusal, v.reason, v.event.Key = f, f.Reason, v.Charges[longest].Key
	}
	if len(riders) > 0 {
		l.heed(v, riders)
	}
	if v.event.Err == nil {
		l.observe(v)
	}
}

// heed has riders heed the decisions of v, and then removes their charges.
func (l *Limiter) heed(v *verdict, riders []rider) {
	if v.event.Err == nil {
		for _, rider := range riders {
			rider.heed(v)
		}
	}
	v.trim()
	if v.reason != 0 && v.Wait > 0 { // a rider has refused a request that has reserved a turn
		l.giveBack(v)
	}
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
