package weir

import (
	"context"
	"io"
	"net/http"
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/panics"
	"github.com/seed83679106/weir/quota"
)

// A flight has the units that one request holds while it is in flight.
type flight struct {
	l   *Limiter
	ctx context.Context

	mu      sync.Mutex
	charges []quota.Charge // the charges that give the units back, with negative costs
	lease   time.Duration
	timer   *time.Timer
}

// flight returns the flight of a request that has spent its charges. The caller must call
// end.
func (l *Limiter) flight(v *verdict) *flight {
	f := &flight{l: l, ctx: asking{v.Context}, lease: quota.MaxTicks * time.Microsecond}
	f.add(&v.Transaction, v.items)
	if v.extra != nil && v.extra.spent {
		f.add(&v.extra.shadow, v.extra.items)
	}
	f.mu.Lock() // renew may begin before AfterFunc returns
	defer f.mu.Unlock()
	f.timer = time.AfterFunc(f.lease/2, f.renew)
	return f
}

func (f *flight) add(t *quota.Transaction, items []item) {
	for i := range items {
		if c := t.Charges[i]; c.Cost > 0 && c.Limit.InFlight() {
			c.Cost, c.Spent = -c.Cost, t.Decisions[i].At
			f.charges = append(f.charges, c)
			f.lease = min(f.lease, c.Limit.Period)
		}
	}
}

// end gives the units back. A second call does nothing.
func (f *flight) end() {
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
func (f *flight) renew() {
	f.mu.Lock()
	defer f.mu.Unlock()
	if len(f.charges) == 0 {
		return
	}
	fresh := quota.Transaction{Force: true}
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

// handler ends the flight when next returns or panics.
func (f *flight) handler(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer f.end()
		next.ServeHTTP(w, r)
	})
}

// body ends the flight when the body of a response is closed.
func (f *flight) body(res *http.Response) {
	b := &flightBody{res.Body, f}
	if w, ok := res.Body.(io.Writer); ok { // of a connection that was upgraded
		res.Body = struct {
			*flightBody
			io.Writer
		}{b, w}
		return
	}
	res.Body = b
}

type flightBody struct {
	io.ReadCloser
	f *flight
}

func (b *flightBody) Close() error {
	defer b.f.end()
	return b.ReadCloser.Close()
}
