package weir

import (
	"context"

	"github.com/seed83679106/weir/quota"
)

// flights is the rider of requests that hold units while they are in flight.
type flights struct {
	bystander
	l      *Limiter
	failed func(ctx context.Context, task, of string, err error)
}

// newFlights returns nil if no limit of l can count requests in flight.
func newFlights(l *Limiter) rider {
	for _, r := range l.rules {
		counts := r.Policy != nil || r.ForKey != nil
		for i := range r.policies {
			counts = counts || r.policies[i].inFlight
		}
		if counts {
			l.flies = true
			return &flights{l: l, failed: l.log.held}
		}
	}
	return nil
}

// heed gives back the units of a request that the limits have admitted and another rider refuses.
func (f *flights) heed(v *verdict) {
	if v.reason != 0 && v.Wait == 0 && v.Transaction.Allowed() { // who gives a turn back gives these units back, too
		if end := f.start(v); end != nil {
			end()
		}
	}
}

// start holds the units of a request that has spent its charges.
func (f *flights) start(v *verdict) (end func()) {
	if anyInFlight(v.items) {
		end = quota.Keep(asking{v.Context}, f.l.store, &v.Transaction, f.failed)
	}
	if b := v.aside(); b != nil && b.spent && anyInFlight(b.items) {
		switch shadow := quota.Keep(asking{v.Context}, f.l.store, &b.Transaction, f.failed); {
		case end == nil:
			return shadow
		case shadow != nil:
			return ends{end, shadow}.run
		}
	}
	return end
}

// anyInFlight reports whether one of the items is of a concurrency limit.
func anyInFlight(items []item) bool {
	for i := range items {
		if items[i].inFlight {
			return true
		}
	}
	return false
}
