package weir

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"
)

// A Penalty bans keys that are refused again and again. Bans live in the store,
// so that all processes that share it enforce them, and in memory for a while,
// so that a banned key costs the store next to nothing.
//
// Each refusal is a strike, and asks the store once more; refusals during a ban
// are none. Requests of banned keys are refused with problem details of the type
// abnormal-usage-detected. What the process learns of a ban elsewhere it learns
// from the decision that it comes with: such a request is charged.
type Penalty struct {
	// Strikes says how many refusals within its period bring a ban, such as
	// algorithms.AnchoredWindow(10, time.Minute).
	Strikes Limit

	// For is how long a first ban lasts, in whole microseconds. Each of those that
	// follow lasts twice as long as the one before.
	For time.Duration

	// Most is how long a ban lasts at most; 0 means 24 hours, or For if that is
	// longer. Bans are counted for 32 times as long, or, where Strikes is a meter
	// such as GCRA, each is forgotten after that time.
	Most time.Duration
}

// The names of the limits that keep a penalty. What they count is not for
// clients.
const (
	strikesName = "penalty strikes"
	countName   = "penalty count"
	banName     = "penalty ban"    // held until a ban is over
	pardonName  = "penalty pardon" // held until a ban is over that was lifted
)

// bans are those of a rule: how they are kept in the store, and what this
// process knows of them.
type bans struct {
	rule                        string
	first, most                 time.Duration
	strikes, count, ban, pardon Limit

	mu    sync.Mutex
	known map[string]knownBan
	swept time.Time // when those that were over were forgotten
}

type knownBan struct {
	until time.Time // when it is over
	again time.Time // when to ask the store again: it may have been lifted
}

const (
	mostBans = 10_000
	repeats  = 32 // after as many the ban grows no more
)

func newBans(r *Rule) (*bans, error) {
	p := r.Penalty
	if p == nil {
		return nil, nil
	}
	b := &bans{rule: r.Name, first: p.For, most: p.Most, strikes: p.Strikes.Named(strikesName), known: map[string]knownBan{}}
	if b.most == 0 {
		b.most = max(24*time.Hour, p.For)
	}
	b.ban, b.pardon = gateLimit(banName), gateLimit(pardonName)
	b.count = Limit{Name: countName, Algorithm: p.Strikes.Algorithm, Quota: repeats, Period: repeats * b.most}
	switch {
	case p.For < time.Microsecond || p.For%time.Microsecond != 0:
		return nil, fmt.Errorf("weir: rule %q: penalty: For %v is not in whole microseconds above 0", r.Name, p.For)
	case b.most < p.For || b.most%time.Microsecond != 0:
		return nil, fmt.Errorf("weir: rule %q: penalty: Most %v is below For, or not in whole microseconds", r.Name, b.most)
	case b.most > MaxTicks/repeats*time.Microsecond:
		return nil, fmt.Errorf("weir: rule %q: penalty: a ban of %v is too long, the longest is %v", r.Name, b.most, MaxTicks/repeats*time.Microsecond)
	}
	for _, l := range []Limit{b.strikes, b.count} {
		if err := l.fault(); err != nil {
			return nil, fmt.Errorf("weir: rule %q: %s: %w", r.Name, l.Name, err)
		}
	}
	return b, nil
}

func (b *bans) charge(l Limit, key string, cost int64) Charge {
	return Charge{Rule: b.rule, Key: key, Limit: l, Cost: cost}
}

// rest returns how much longer a key is banned, as far as this process knows.
func (b *bans) rest(key string) time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.known) == 0 {
		return 0
	}
	now := time.Now()
	b.sweep(now)
	if k, ok := b.known[key]; ok && now.Before(k.again) {
		return k.until.Sub(now)
	}
	return 0
}

// sweep forgets, every 10 s, what the store must be asked about anyway. It costs
// as much as 10,000 keys at most, and less than the calls that made them known.
func (b *bans) sweep(now time.Time) {
	if now.Sub(b.swept) < recheck {
		return
	}
	b.swept = now
	for key, k := range b.known {
		if !now.Before(k.again) {
			delete(b.known, key)
		}
	}
}

func (b *bans) learn(key string, rest time.Duration) {
	b.mu.Lock()
	defer b.mu.Unlock()
	now := time.Now()
	b.sweep(now)
	if len(b.known) >= mostBans {
		for other := range b.known { // any: it costs a question more
			delete(b.known, other)
			break
		}
	}
	b.known[strings.Clone(key)] = knownBan{now.Add(rest), now.Add(min(rest, recheck))}
}

func (b *bans) forget(key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.known, key)
}

// lookAtBans adds to the charges of v, after all others, a look at the ban of
// each rule that has a penalty.
func (l *Limiter) lookAtBans(v *verdict) {
	charged := v.Charges
	for i := range l.rules {
		b := l.rules[i].bans
		if b == nil {
			continue
		}
		for _, c := range charged {
			if c.Rule == b.rule {
				v.Charges = append(v.Charges, b.charge(b.ban, c.Key, 0))
				break
			}
		}
	}
}

// punish returns for how much longer a key of v is banned, by what the store
// said, or because this refusal is one too many.
func (l *Limiter) punish(v *verdict) (longest time.Duration) {
	ctx := context.WithoutCancel(v.Context) // a refusal counts, even of a client that is gone
	for i := range l.rules {
		b := l.rules[i].bans
		if b == nil {
			continue
		}
		var key string
		var rest time.Duration
		refused := false
		for j, c := range v.Charges {
			if c.Rule != b.rule {
				continue
			}
			key = c.Key
			refused = refused || !v.Decisions[j].Allowed
			if c.Limit.Name == banName {
				rest = v.Decisions[j].NextAfter
			}
		}
		var err error
		switch {
		case rest > 0:
			rest, err = b.unlessPardoned(ctx, l.store, key, rest)
		case refused:
			rest, err = b.strike(ctx, l.store, key)
		}
		if err != nil {
			l.log.warn(ctx, err)
		}
		if rest > 0 {
			b.learn(key, rest)
			longest = max(longest, rest)
		}
	}
	if longest > 0 {
		v.refused, v.rare().ban = true, longest
	}
	return longest
}

// strike counts a refusal. That which is one too many begins a ban, and the next
// begins from nothing.
func (b *bans) strike(ctx context.Context, store Store, key string) (time.Duration, error) {
	t := Transaction{Charges: []Charge{b.charge(b.strikes, key, 1)}}
	if err := store.Take(ctx, &t); err != nil || t.Allowed() && t.Decisions[0].Remaining > 0 {
		return 0, err
	}
	if !t.Allowed() {
		return 0, nil // another request has begun it just now
	}
	d, err := b.length(ctx, store, key)
	if err == nil {
		err = b.begin(ctx, store, key, d)
	}
	if err == nil {
		err = Reset(ctx, store, b.charge(b.strikes, key, 0))
	}
	return d, err
}

// length counts one more ban of a key and returns how long it lasts.
func (b *bans) length(ctx context.Context, store Store, key string) (time.Duration, error) {
	t := Transaction{Charges: []Charge{b.charge(b.count, key, 1)}}
	if err := store.Take(ctx, &t); err != nil {
		return 0, err
	}
	d := b.first
	for n := t.Decisions[0].Remaining; n < repeats-1 && d < b.most; n++ {
		d *= 2
	}
	return min(d, b.most), nil
}

// begin bans a key: the state of its ban is held.
func (b *bans) begin(ctx context.Context, store Store, key string, d time.Duration) error {
	if ok, err := hold(ctx, store, d, b.charge(b.ban, key, 0)); ok || err != nil {
		return err
	}
	// It is banned for longer already. If that ban was lifted, a new one must
	// outlast it.
	t, err := Peek(ctx, store, b.charge(b.ban, key, 0), b.charge(b.pardon, key, 0))
	if err != nil || t.Decisions[1].NextAfter < t.Decisions[0].NextAfter {
		return err
	}
	_, err = hold(ctx, store, t.Decisions[1].NextAfter+time.Second, b.charge(b.ban, key, 0))
	return err
}

// unlessPardoned returns the rest of a ban, or 0 if it was lifted.
func (b *bans) unlessPardoned(ctx context.Context, store Store, key string, rest time.Duration) (time.Duration, error) {
	t, err := Peek(ctx, store, b.charge(b.ban, key, 0), b.charge(b.pardon, key, 0))
	if err != nil {
		return rest, err
	}
	if banned, pardoned := t.Decisions[0].NextAfter, t.Decisions[1].NextAfter; pardoned < banned {
		return banned, nil
	}
	return 0, nil
}

// Ban bans a key of a rule, which must have a Penalty, for that long, in whole
// microseconds, by hand. A ban that lasts longer already stays.
func (l *Limiter) Ban(ctx context.Context, rule, key string, d time.Duration) error {
	b, err := l.bansOf(rule)
	if err != nil {
		return err
	}
	if d < time.Microsecond || d > MaxTicks*time.Microsecond {
		return fmt.Errorf("weir: a ban of %v is not between a microsecond and 2^50 of them", d)
	}
	key = StoredKey(key)
	if err := b.begin(ctx, l.store, key, d.Truncate(time.Microsecond)); err != nil {
		return err
	}
	b.learn(key, d)
	return nil
}

// Unban lifts the ban of a key of a rule, which must have a Penalty, and forgets
// its strikes and earlier bans. Other processes notice within 10 seconds.
func (l *Limiter) Unban(ctx context.Context, rule, key string) error {
	b, err := l.bansOf(rule)
	if err != nil {
		return err
	}
	key = StoredKey(key)
	look, err := Peek(ctx, l.store, b.charge(b.ban, key, 0))
	if err != nil {
		return err
	}
	if rest := look.Decisions[0].NextAfter; rest > 0 {
		if _, err := hold(ctx, l.store, rest, b.charge(b.pardon, key, 0)); err != nil {
			return err
		}
	}
	b.forget(key)
	return Reset(ctx, l.store, b.charge(b.strikes, key, 0), b.charge(b.count, key, 0))
}

// Banned returns for how much longer a key of a rule is banned; 0 if it is not,
// or the rule has no Penalty.
func (l *Limiter) Banned(ctx context.Context, rule, key string) (time.Duration, error) {
	b, err := l.bansOf(rule)
	if err != nil {
		return 0, nil
	}
	return b.unlessPardoned(ctx, l.store, StoredKey(key), 0)
}

func (l *Limiter) bansOf(name string) (*bans, error) {
	for i := range l.rules {
		if r := &l.rules[i]; r.Name == name && r.bans != nil {
			return r.bans, nil
		}
	}
	return nil, fmt.Errorf("weir: there is no rule %q with a penalty", name)
}
