package weir

import (
	"context"
	"errors"
	"time"

	"github.com/seed83679106/weir/quota"
)

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

// sitOut waits for d, or until the context of the request ends. It returns false at once if d
// is not above 0, or if MaxWaiting leaves no place.
func (l *Limiter) sitOut(v *verdict, d time.Duration) bool {
	defer l.leave(v)
	if d <= 0 || l.enter(v, d) < d {
		return false
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-v.Done():
	}
	return true
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
