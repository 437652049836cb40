package weir

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// A Penalty bans keys that are refused again and again. The store keeps the bans, so all
// processes that share it enforce them. Each process also remembers a ban for up to 10 s,
// so in each process the requests of a banned key ask the store about once in 10 s.
//
// Each refusal by a limit of the rule is a strike. A refusal by another rule is not a
// strike. Besides the call for the decision, the store is called this often:
//
//   - a strike: one call;
//   - the strike that begins a ban: one call as well, but usually two calls if this process
//     has not refused the key within the period of Strikes;
//   - a refusal during a ban that the process knows of: no call, not even the call for the
//     decision. Such a refusal is no strike. Every 10 s the process asks the store again.
//
// The call that begins a ban also clears the strikes that led to it. If that call fails,
// the next refusal tries again.
//
// Requests of banned keys are refused with problem details of the type
// abnormal-usage-detected. Retry-After is the wait until both the ban and the limits let
// the request pass. A process that does not know of a ban learns of it from the decision on
// the next request of the key. That request is refused and charged, unless it would have
// had to wait. A request that already waits keeps its turn.
type Penalty struct {
	// Strikes says how many refusals within its period bring a ban, such as
	// algorithms.AnchoredWindow(10, time.Minute). A LeakyBucket, or a limit of requests in
	// flight, cannot count strikes.
	Strikes Limit

	// Duration is how long a first ban lasts, in whole microseconds. Each further ban
	// lasts twice as long as the one before, up to MaxDuration.
	Duration time.Duration

	// MaxDuration is how long a ban lasts at most; 0 means 24 hours, or Duration if that is
	// longer. The bans of a key are forgotten after 32 times MaxDuration without a ban.
	MaxDuration time.Duration
}

// The names of the limits in which a store keeps strikes and bans. Clients do not see
// these limits.
const (
	strikesName = "penalty strikes"
	banName     = "penalty ban"
)

// bans has the bans of a rule: the limits that keep them in the store, and what this
// process knows of them.
type bans struct {
	of           *rule
	rule         string
	first        int64 // µs
	strikes, ban Limit
	known        *knownBans

	// struck says until when the strikes of a key may count, in µs since 1970. The place in
	// struck is a hash of the key. If two keys share a place, the strikes of both keys are
	// looked up as long as the strikes of one of the keys may count.
	seed   maphash.Seed
	struck [256]atomic.Int64
}

func newBans(r *rule) (*bans, error) {
	p := r.Penalty
	if p == nil {
		return nil, nil
	}
	most := p.MaxDuration
	if most == 0 {
		most = max(24*time.Hour, p.Duration)
	}
	switch {
	case p.Duration < time.Microsecond || p.Duration%time.Microsecond != 0:
		return nil, fmt.Errorf("weir: rule %q: penalty: Duration %v is not in whole microseconds above 0", r.Name, p.Duration)
	case most < p.Duration || most%time.Microsecond != 0:
		return nil, fmt.Errorf("weir: rule %q: penalty: MaxDuration %v is below Duration, or not in whole microseconds", r.Name, most)
	case most > quota.MaxTicks/repeats*time.Microsecond:
		return nil, fmt.Errorf("weir: rule %q: penalty: a ban of %v is too long, the longest is %v", r.Name, most, quota.MaxTicks/repeats*time.Microsecond)
	}
	b := &bans{of: r, rule: r.Name, first: p.Duration.Microseconds(), strikes: p.Strikes.Named(strikesName), ban: banLimit(most), known: &r.known, seed: maphash.MakeSeed()}
	err := b.strikes.Fault()
	if err == nil {
		err = checkBurst(&b.strikes)
	}
	if err == nil {
		err = checkStrikes(&b.strikes)
	}
	if err != nil {
		return nil, fmt.Errorf("weir: rule %q: %s: %w", r.Name, strikesName, err)
	}
	return b, nil
}

// checkStrikes returns an error if the algorithm counts what strikes are not: requests that
// wait in a queue, or that end.
func checkStrikes(l *Limit) error {
	if _, queue := l.Algorithm.(quota.Queuer); queue || l.InFlight() {
		return fmt.Errorf("%s cannot count strikes", l.Algorithm.Name())
	}
	return nil
}

func (b *bans) charge(l Limit, key string, cost int64) quota.Charge {
	return quota.Charge{Rule: b.rule, Key: key, Limit: l, Cost: cost}
}

// place returns the place of a key in struck.
func (b *bans) place(key string) *atomic.Int64 {
	return &b.struck[maphash.String(b.seed, key)%uint64(len(b.struck))]
}

// applyPenalties refuses the request of v if one of the request's keys is banned. A key is
// banned if the store says so, or if a limit has just refused the request and this strike
// begins a ban.
func (l *Limiter) applyPenalties(v *verdict, e *Event) {
	ctx := asking{v.Context} // a refusal counts even if the client has hung up
	f, longest, by, key := v.Refusal, time.Duration(0), (*rule)(nil), ""
	for i := range v.checks {
		c := &v.checks[i]
		o := c.offense(v)
		rest := o.banned
		if rest == 0 && o.refused {
			var err error
			if rest, err = c.strike(ctx, l.unpaid, &o); err != nil {
				l.log.warn(ctx, "count a strike", c.rule, err)
			}
			e.BanBegan = e.BanBegan || rest > 0
		}
		if rest == 0 {
			continue
		}
		c.known.learn(o.key, rest)
		f.RetryAfter = max(f.RetryAfter, rest)
		if rest > longest {
			f.Reason, f.Rule, longest, by, key = ReasonBan, c.rule, rest, c.of, o.key
		}
	}
	if longest > 0 {
		v.learnWaits()
		v.refuseFor(f, by, key)
		e.Key = key
	}
}

// An offense is what a decision says about a key under a rule that has a Penalty.
type offense struct {
	key     string
	banned  time.Duration // the rest of its ban
	last    bool          // the next strike begins a ban
	refused bool
}

func (c *banCheck) offense(v *verdict) offense {
	o := offense{key: c.key, banned: v.Decisions[c.ban].NextAfter}
	for i := c.from; i < c.to; i++ {
		if d := &v.Decisions[i]; !d.Allowed {
			// A limit with room before Within is over would only delay the request. The
			// RetryAfter of a queue is the time until it admits the charge, so a queue
			// that is not Allowed refuses.
			_, queue := v.Charges[i].Limit.Algorithm.(quota.Queuer)
			o.refused = o.refused || queue || d.RetryAfter > v.Within
		}
	}
	if c.strikes {
		rest := v.Decisions[c.ban+1].Remaining
		o.last = rest == 0 || rest == 1
	}
	return o
}

// learnWaits remembers for how long the limits of each rule refuse the request of v. The
// Retry-After of later requests includes that wait if a known ban refuses them, because the
// store is then not asked about the limits.
func (v *verdict) learnWaits() {
	for i, n := 0, 0; i < len(v.items); i += n {
		n = v.items[i].limits
		wait := time.Duration(0)
		for _, d := range v.Decisions[i : i+n] {
			wait = max(wait, d.RetryAfter)
		}
		v.items[i].rule.known.learnWait(v.items[i].key, wait, v.items[i].cost)
	}
}

// mayHaveStruck reports whether the strikes of a key must be looked up. They must if this
// process has refused the key within the period of Strikes, or if one strike begins a ban.
func (b *bans) mayHaveStruck(key string) bool {
	until := b.place(key).Load()
	return b.strikes.Quota == 1 || until != 0 && time.Now().UnixMicro() < until
}

// strike counts a refusal, and returns for how long the key is then banned: 0 if it is not
// banned. The strike that exhausts Strikes begins a ban.
func (b *bans) strike(ctx context.Context, store Store, o *offense) (time.Duration, error) {
	b.place(o.key).Store(time.Now().UnixMicro() + b.strikes.Period.Microseconds())
	if !o.last {
		// The second charge makes package lease pass the transaction to the store.
		t := quota.Transaction{Charges: []quota.Charge{b.charge(b.strikes, o.key, 1), b.charge(b.ban, o.key, 0)}}
		if err := store.Take(ctx, &t); err != nil || t.Allowed() && t.Decisions[0].Remaining != 0 {
			return 0, err
		}
	}
	return b.begin(ctx, store, o.key)
}

// begin bans a key and forgets its strikes, unless another request has just done
// so, and returns how long the ban lasts.
func (b *bans) begin(ctx context.Context, store Store, key string) (time.Duration, error) {
	t := quota.Transaction{Charges: []quota.Charge{b.charge(b.ban, key, b.first), b.charge(b.strikes, key, -2*quota.MaxTicks)}}
	if err := store.Take(ctx, &t); err != nil {
		return 0, err
	}
	return t.Decisions[0].NextAfter, nil
}

// Ban bans a key of a rule for d, rounded down to whole microseconds. Ban is for operators.
// The rule must have a Penalty. If the key is already banned for longer, Ban changes
// nothing.
func (l *Limiter) Ban(ctx context.Context, rule, key string, d time.Duration) error {
	b, err := l.bansOf(rule)
	if err != nil {
		return err
	}
	if d < time.Microsecond || d > quota.MaxTicks*time.Microsecond {
		return fmt.Errorf("weir: a ban of %v is not from 1 µs to 2^50 µs", d)
	}
	c := b.charge(b.ban, storedkey.Of(key), d.Microseconds())
	c.Limit.Burst = byHand
	t := quota.Transaction{Charges: []quota.Charge{c}}
	if err := l.unpaid.Take(ctx, &t); err != nil {
		return err
	}
	b.known.learn(c.Key, t.Decisions[0].NextAfter)
	return nil
}

// Unban lifts the ban of a key of a rule, and forgets its strikes and earlier bans. The
// rule must have a Penalty. Other processes notice within 10 seconds.
func (l *Limiter) Unban(ctx context.Context, rule, key string) error {
	b, err := l.bansOf(rule)
	if err != nil {
		return err
	}
	key = storedkey.Of(key)
	t := quota.Transaction{Charges: []quota.Charge{b.charge(b.ban, key, 0), b.charge(b.strikes, key, 0)}, Forget: true}
	if err := l.unpaid.Take(ctx, &t); err != nil {
		return err
	}
	b.known.forget(key)
	return nil
}

// Banned returns for how much longer a key of a rule is banned. It returns 0 if the key
// is not banned, or if there is no rule of that name with a Penalty.
func (l *Limiter) Banned(ctx context.Context, rule, key string) (time.Duration, error) {
	b, err := l.bansOf(rule)
	if err != nil {
		return 0, nil
	}
	t, err := quota.Peek(ctx, l.unpaid, b.charge(b.ban, storedkey.Of(key), 0))
	if err != nil {
		return 0, err
	}
	return t.Decisions[0].NextAfter, nil
}

// Offenses are what the store remembers of the refusals of a key under a rule with a Penalty.
type Offenses struct {
	Banned   time.Duration // how much longer the key is banned; 0 if it is not banned
	SinceBan time.Duration // how long ago the last ban ended; 0 if the store remembers none
	Strikes  int64         // how many refusals count towards the next ban
}

// Offenses returns the offenses of a key of a rule, or the error of the store. They are zero if
// there is no rule of that name with a Penalty.
func (l *Limiter) Offenses(ctx context.Context, rule, key string) (o Offenses, err error) {
	b, err := l.bansOf(rule)
	if err != nil {
		return o, nil
	}
	key = storedkey.Of(key)
	t, err := quota.Peek(ctx, l.unpaid, b.charge(b.ban, key, 0), b.charge(b.strikes, key, 0))
	if err != nil {
		return o, err
	}
	ban, strikes := &t.Decisions[0], &t.Decisions[1]
	o.Banned = ban.NextAfter
	if ban.NextAfter == 0 && ban.ResetAfter > 0 {
		o.SinceBan = repeats*b.ban.Period - ban.ResetAfter
	}
	if strikes.Remaining >= 0 {
		o.Strikes = b.strikes.Capacity() - strikes.Remaining
	}
	return o, nil
}

func (l *Limiter) bansOf(name string) (*bans, error) {
	for i := range l.rules {
		if r := l.rules[i]; r.Name == name && r.bans != nil {
			return r.bans, nil
		}
	}
	return nil, fmt.Errorf("weir: there is no rule %q with a penalty", name)
}
