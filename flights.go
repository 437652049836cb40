package weir

import (
	"context"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/quota"
)

// flights is the rider of requests that hold units while they are in flight.
type flights struct {
	bystander
	l *Limiter
}

// newFlights returns nil if no limit of l can count requests in flight.
func newFlights(l *Limiter) rider {
	for _, r := range l.rules {
		counts := r.Policy != nil || r.ForKey != nil
		for i := range r.policies {
			counts = counts || r.policies[i].inFlight
		}
		if counts {
			return &flights{l: l}
		}
	}
	return nil
}

// heed gives back the units of a request that the limits have admitted and another rider refuses.
func (f *flights) heed(v *verdict) {
	if v.reason != 0 && v.Wait == 0 && v.Transaction.Allowed() { // who gives a turn back gives these units back, too
		if charges, _ := held(v); len(charges) > 0 {
			f.l.settleUp(asking{v.Context}, &quota.Transaction{Charges: charges})
		}
	}
}

// start begins the flight of a request that has spent its charges.
func (f *flights) start(v *verdict) (end func()) {
	charges, lease := held(v)
	if len(charges) == 0 {
		return nil
	}
	flying := &holding{l: f.l, ctx: asking{v.Context}, charges: charges, lease: lease}
	flying.mu.Lock() // renew may begin before AfterFunc returns
	defer flying.mu.Unlock()
	flying.timer = time.AfterFunc(lease/2, flying.renew)
	return flying.end
}

// held returns the charges that give the units of v in flight back, and for how long the store
// keeps these units at least.
func held(v *verdict) (charges []quota.Charge, lease time.Duration) {
	lease = quota.MaxTicks * time.Microsecond
	hold := func(t *quota.Transaction, items []item) {
		for i := range items {
			if c := t.Charges[i]; c.Cost > 0 && items[i].inFlight {
				c.Cost, c.Spent = -c.Cost, t.Decisions[i].At
				charges, lease = append(charges, c), min(lease, c.Limit.Period)
			}
		}
	}
	hold(&v.Transaction, v.items)
	if v.extra != nil && v.extra.aside.spent {
		hold(&v.extra.aside.Transaction, v.extra.aside.items)
	}
	return charges, lease
}

// A holding is the units that one request holds while it is in flight.
type holding struct {
	l   *Limiter
	ctx context.Context

	mu      sync.Mutex
	charges []quota.Charge // the charges that give the units back, with negative costs
	lease   time.Duration
	timer   *time.Timer
}

// end gives the units back. A second call does nothing.
func (f *holding) end() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.timer.Stop()
	back := quota.Transaction{Charges: f.charges}
	f.charges = nil
	f.l.settleUp(f.ctx, &back)
}

// renew spends the units again, even if they do not fit, and then gives the old units back.
// In between the units count twice, so another request may be refused although it fits, but
// no request is admitted that does not fit.
func (f *holding) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.charges) == 0 {
		return
	}
	fresh := quota.Transaction{Mode: quota.ModeForce}
	for _, c := range f.charges {
		c.Cost, c.Spent = -c.Cost, 0
		fresh.Charges = append(fresh.Charges, c)
	}
	if err := f.l.takeSafely(f.ctx, &fresh); err != nil { // the store may still have spent the units
		f.l.log.warn(f.ctx, "renew a request in flight", fresh.Charges[0].Rule, err)
		f.timer.Reset(f.lease / 4)
		return
	}
	old := quota.Transaction{Charges: f.charges}
	f.charges = nil
	for i, c := range fresh.Charges {
		c.Cost, c.Spent = -c.Cost, fresh.Decisions[i].At
		f.charges = append(f.charges, c)
	}
	if err := f.l.takeSafely(f.ctx, &old); err != nil {
		f.l.log.warn(f.ctx, "give units back", old.Charges[0].Rule, err)
	}
	f.timer.Reset(f.lease / 2)
}

// takeSafely asks the store and returns a panic as an error, because on the goroutine of a
// timer a panic would end the process.
func (l *Limiter) takeSafely(ctx context.Context, t *quota.Transaction) error {
	_, err := panics.Call("weir: the store panicked", func() error { return l.store.Take(ctx, t) })
	return err
}
