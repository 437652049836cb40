package weir

import (
	"context"
	"time"

	"github.com/seed83679106/weir/quota"
)

// shutGates shuts gates for d, in one call. A shut gate delays or refuses the transactions
// that charge it. If one of the gates is already shut for longer, ok is false and nothing
// changes. Transaction.Forget opens a gate.
func shutGates(ctx context.Context, store Store, d time.Duration, gates ...quota.Charge) (ok bool, err error) {
	t := quota.Transaction{Charges: make([]quota.Charge, len(gates)), Delay: d, Within: d}
	for i, c := range gates {
		c.Cost = shut
		t.Charges[i] = c
	}
	err = store.Take(ctx, &t)
	return err == nil && t.Allowed(), err
}

// gateLimit returns the limit of a gate. A charge of cost pass makes its transaction wait
// until the gate opens. A charge of cost 0 gets the time until then as NextAfter. These two
// charges do not change the gate. A charge of cost shut shuts the gate.
func gateLimit(name string) Limit {
	return Limit{Name: name, Algorithm: gate{}, Quota: 1, Period: time.Microsecond}
}

const (
	pass = 1
	shut = 2 // the gate is shut until the instant at which the transaction is spent
)

// A gate is an algorithm that counts nothing. At of its state is when the gate opens. A
// gate is a Queuer, so that a charge that passes the gate does not change At.
type gate struct{}

func (gate) Name() string   { return "gate" }
func (gate) String() string { return "gate" }
func (gate) Opens()         {} // see quota.Transaction.Decide

// Refusing implements quota.Unpayable.
func (gate) Refusing(c quota.Charge) quota.Charge { return c }

func (g gate) Take(s quota.State, l *Limit, now, cost int64) (_ quota.State, d quota.Decision) {
	g.Step(&s, &d, l, now, cost)
	return s, d
}

func (gate) Step(s *quota.State, d *quota.Decision, _ *Limit, now, cost int64) {
	rest := restOf(s, now)
	switch {
	case rest == 0:
		*s = quota.State{}
		*d = quota.Decision{Allowed: true, Remaining: 1}
	case cost > 0:
		*d = quota.Decision{RetryAfter: rest, NextAfter: rest, ResetAfter: rest}
	default:
		*d = quota.Decision{Allowed: true, NextAfter: rest, ResetAfter: rest}
	}
}

func (gate) Queue(s quota.State, _ *Limit, now, at, cost int64) (next quota.State, wait time.Duration, ok bool) {
	wait = restOf(&s, now)
	if cost >= shut {
		s = quota.State{At: max(at, s.At)}
	}
	return s, wait, true
}

// restOf returns the time until a gate opens.
func restOf(s *quota.State, now int64) time.Duration {
	return time.Duration(max(0, s.At-now)) * time.Microsecond
}

// Lua returns Take and Queue as a script for package redisstore: see redisstore.Scripted.
func (gate) Lua() string {
	return `local function take(at) return 0, at, 0, 0, at end
local function queue(at, a, b, till, now, turn, cost)
  local wait = math.max(0, at - now)
  if cost >= 2 then at = math.max(at, turn) end
  return wait, true, at, 0, 0, at
end`
}
