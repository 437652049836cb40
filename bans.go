package weir

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
)

// bans is the rider of rules with a Penalty. Rules are known by their index.
type bans struct {
	bystander
	l     *Limiter
	of    []*penalties // of each rule; nil without a Penalty
	known ban.Known
}

// penalties has the limits that keep the bans of a rule in the store.
type penalties struct {
	rule         *rule
	first        int64 // µs
	strikes, ban Limit

	// struck says until when the strikes of a key may count, in µs since 1970. The place in
	// struck is a hash of the key. If two keys share a place, the strikes of both keys are
	// looked up as long as the strikes of one of the keys may count.
	seed   maphash.Seed
	struck [256]atomic.Int64
}

// newBans returns nil if no rule has a Penalty.
func newBans(l *Limiter) rider {
	b, found := &bans{l: l, of: make([]*penalties, len(l.rules))}, false
	for i, r := range l.rules {
		if p := r.Penalty; p != nil {
			b.of[i] = &penalties{rule: r, first: ban.Cost(p.Duration), strikes: p.Strikes.Named(strikesName), ban: ban.Limit(p.longest()), seed: maphash.MakeSeed()}
			found = true
		}
	}
	if !found {
		return nil
	}
	return b
}

func (p *penalties) charge(l Limit, key string, cost int64) quota.Charge {
	return quota.Charge{Rule: p.rule.Name, Key: key, Limit: l, Cost: cost}
}

// place returns the place of a key in struck.
func (p *penalties) place(key string) *atomic.Int64 {
	return &p.struck[maphash.String(p.seed, key)%uint64(len(p.struck))]
}

// meet denies a request whose key this process knows to be banned. If several rules have banned
// its keys, the longest ban stands. For a rule that has a Penalty, one charge of cost 0 looks up
// the ban of the key and, if the key may have strikes, another charge looks up the strikes.
func (b *bans) meet(v *verdict, rule *rule, key string, applies bool) bool {
	if !applies {
		return false
	}
	rest, wait := b.known.Rest(rule.index, key, func() int64 { return rule.cost(v.event.Request) })
	if v.least = max(v.least, wait); rest > v.Refusal.RetryAfter {
		v.deny(Refusal{ReasonBan, rule.Name, rest}, rule, key)
	}
	if p := b.of[rule.index]; p != nil && v.reason == 0 {
		v.riding = append(v.riding, p.charge(p.ban, key, 0))
		if p.mayHaveStruck(key) {
			v.riding = append(v.riding, p.charge(p.strikes, key, 0))
		}
	}
	return false
}

// heed denies the request if one of its keys is banned. A key is banned if the store says so,
// or if a limit has just refused the request and this strike begins a ban.
func (b *bans) heed(v *verdict) {
	ctx := asking{v.Context} // a refusal counts even if the client has hung up
	f, longest, by, key := v.Refusal, time.Duration(0), (*rule)(nil), ""
	next := len(v.items) // the first charge of a rider
	for i, n := 0, 0; i < len(v.items); i += n {
		n = v.items[i].limits
		p, k := b.of[v.items[i].rule.index], v.items[i].key
		if p == nil {
			continue
		}
		for v.Charges[next].Limit.Name != p.ban.Name { // of another rider
			next++
		}
		rest, last := v.Decisions[next].NextAfter, false
		if next++; next < len(v.Charges) && v.Charges[next].Limit.Name == strikesName {
			left := v.Decisions[next].Remaining
			last = left == 0 || left == 1
			next++
		}
		if rest == 0 && v.refusedBy(i, i+n) {
			var err error
			if rest, err = p.strike(ctx, b.l.unpaid, k, last); err != nil {
				b.l.log.warn(ctx, "strike not counted", p.rule.Name, err)
			}
			v.event.BanBegan = v.event.BanBegan || rest > 0
		}
		if rest == 0 {
			continue
		}
		b.known.Learn(p.rule.index, k, rest)
		f.RetryAfter = max(f.RetryAfter, rest)
		if rest > longest {
			f.Reason, f.Rule, longest, by, key = ReasonBan, p.rule.Name, rest, p.rule, k
		}
	}
	if longest > 0 {
		b.learnWaits(v)
		v.deny(f, by, key)
	}
}

// refusedBy reports whether one of the limits from..to−1 refuses the request. A limit with room
// before Within is over would only delay the request. The RetryAfter of a queue is the time
// until it admits the charge, so a queue that is not Allowed refuses.
func (v *verdict) refusedBy(from, to int) bool {
	for i := from; i < to; i++ {
		_, queue := v.Charges[i].Limit.Algorithm.(quota.Queuer)
		if d := &v.Decisions[i]; !d.Allowed && (queue || d.RetryAfter > v.Within) {
			return true
		}
	}
	return false
}

// learnWaits remembers for how long the limits of each rule refuse the request of v. The
// Retry-After of later requests includes that wait if a known ban refuses them, because the
// store is then not asked about the limits.
func (b *bans) learnWaits(v *verdict) {
	for i, n := 0, 0; i < len(v.items); i += n {
		it := &v.items[i]
		n = it.limits
		wait := time.Duration(0)
		for _, d := range v.Decisions[i : i+n] {
			wait = max(wait, d.RetryAfter)
		}
		b.known.LearnWait(it.rule.index, it.key, wait, it.cost)
	}
}

// mayHaveStruck reports whether the strikes of a key must be looked up. They must if this
// process has refused the key within the period of Strikes, or if one strike begins a ban.
func (p *penalties) mayHaveStruck(key string) bool {
	until := p.place(key).Load()
	return p.strikes.Quota == 1 || until != 0 && time.Now().UnixMicro() < until
}

// strike counts a refusal, and returns for how long the key is then banned: 0 if it is not
// banned. The strike that exhausts Strikes begins a ban. last says that this strike does.
func (p *penalties) strike(ctx context.Context, store Store, key string, last bool) (time.Duration, error) {
	p.place(key).Store(time.Now().UnixMicro() + p.strikes.Period.Microseconds())
	if !last {
		// The second charge makes package lease pass the transaction to the store.
		t := quota.Transaction{Charges: []quota.Charge{p.charge(p.strikes, key, 1), p.charge(p.ban, key, 0)}}
		if err := store.Take(ctx, &t); err != nil || t.Allowed() && t.Decisions[0].Remaining != 0 {
			return 0, err
		}
	}
	return p.begin(ctx, store, key)
}

// begin bans a key and forgets its strikes, unless another request has just done
// so, and returns how long the ban lasts.
func (p *penalties) begin(ctx context.Context, store Store, key string) (time.Duration, error) {
	t := quota.Transaction{Charges: []quota.Charge{p.charge(p.ban, key, p.first), p.charge(p.strikes, key, -2*quota.MaxTicks)}}
	if err := store.Take(ctx, &t); err != nil {
		return 0, err
	}
	return t.Decisions[0].NextAfter, nil
}

// Ban bans a key under a rule for the duration d, rounded down to whole microseconds. It is
// intended for operators. The rule must have a Penalty. If the key is already banned until a later
// time, Ban has no effect.
func (l *Limiter) Ban(ctx context.Context, rule, key string, d time.Duration) error {
	b, p, err := l.bansOf(rule)
	if err != nil {
		return err
	}
	if d < time.Microsecond || d > quota.MaxTicks*time.Microsecond {
		return fmt.Errorf("weir: Ban: d is %v; want 1 µs to 2^50 µs", d)
	}
	c := p.charge(p.ban, storedkey.Of(key), ban.Cost(d))
	c.Limit.Burst = ban.Manual
	t := quota.Transaction{Charges: []quota.Charge{c}}
	if err := l.unpaid.Take(ctx, &t); err != nil {
		return err
	}
	b.known.Learn(p.rule.index, c.Key, t.Decisions[0].NextAfter)
	return nil
}

// Unban lifts a key's ban under a rule and clears the key's strikes and earlier bans. The rule must
// have a Penalty. Other processes may continue to enforce the ban for up to 10 seconds.
func (l *Limiter) Unban(ctx context.Context, rule, key string) error {
	b, p, err := l.bansOf(rule)
	if err != nil {
		return err
	}
	key = storedkey.Of(key)
	t := quota.Transaction{Charges: []quota.Charge{p.charge(p.ban, key, 0), p.charge(p.strikes, key, 0)}, Mode: quota.ModeForget}
	if err := l.unpaid.Take(ctx, &t); err != nil {
		return err
	}
	b.known.Forget(p.rule.index, key)
	return nil
}

// Banned returns the remaining time of a key's ban under a rule. It returns 0 if the key is not
// banned, or if no rule with that name has a Penalty.
func (l *Limiter) Banned(ctx context.Context, rule, key string) (time.Duration, error) {
	o, err := l.Offenses(ctx, rule, key)
	return o.Banned, err
}

// Offenses returns a key's Offenses under a rule, or the store's error. It returns zero Offenses if
// no rule with that name has a Penalty.
func (l *Limiter) Offenses(ctx context.Context, rule, key string) (o Offenses, err error) {
	_, p, err := l.bansOf(rule)
	if err != nil {
		return o, nil
	}
	key = storedkey.Of(key)
	t, err := quota.Peek(ctx, l.unpaid, p.charge(p.ban, key, 0), p.charge(p.strikes, key, 0))
	if err != nil {
		return o, err
	}
	last, strikes := &t.Decisions[0], &t.Decisions[1]
	o.Banned = last.NextAfter
	if last.NextAfter == 0 && last.ResetAfter > 0 {
		o.SinceBan = ban.Repeats*p.ban.Period - last.ResetAfter
	}
	if strikes.Remaining >= 0 {
		o.Strikes = p.strikes.Capacity() - strikes.Remaining
	}
	return o, nil
}

func (l *Limiter) bansOf(name string) (*bans, *penalties, error) {
	for _, rider := range l.riders {
		if b, ok := rider.(*bans); ok {
			for _, p := range b.of {
				if p != nil && p.rule.Name == name {
					return b, p, nil
				}
			}
		}
	}
	return nil, nil, fmt.Errorf("weir: there is no rule %q with a penalty", name)
}
