package ban

import (
	"context"
	"hash/maphash"
	"math/rand/v2"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A Penalty keeps the strikes and bans of the keys of one rule in a store. It also remembers the bans
// that the store has reported, so that few requests with a banned key cause a call to the store.
type Penalty struct {
	// Store keeps the strikes and bans. Set Store before the Penalty is used.
	Store quota.Store

	rule          string
	strikes, bans quota.Limit
	first         time.Duration

	// struck contains the time until which the strikes of a key may count, in µs since 1970,
	// indexed by a hash of the key. If two keys have the same index, the strikes of both are
	// looked up as long as the strikes of either may count.
	seed   maphash.Seed
	struck [256]atomic.Int64

	n     atomic.Int64 // len(known): while it is 0, Known takes no lock
	mu    sync.RWMutex
	known map[string]known // by key, at most mostKnown
	sweep time.Time        // when to drop the entries that have expired
}

// known records the time until which a key is refused without a call to the store.
type known struct {
	until time.Time // when the ban is over
	again time.Time // when to call the store again, because the ban may have been lifted

	watch   time.Time   // when to make the store report changes of the ban; zero if it already does
	current func() bool // whether the store has reported no change; nil if it does not report changes

	lifted bool // this process has lifted the ban, and ignores reports of a ban until again: see Unban
}

// A watcher is an optional.Watcher.
type watcher interface {
	Watch(c quota.Charge, done func(d quota.Decision, current func() bool)) bool
}

const (
	mostKnown = 10_000

	// recheck is the time for which a ban is enforced from memory before the store is called again.
	// For a store that reports changes, this time is watchedFor.
	recheck    = 10 * time.Second
	watchedFor = 5 * time.Minute

	// Making the store report changes of a ban costs a call, which is made only if the ban is
	// at least watchAfter old and has at least watchLeast left.
	watchAfter = 100 * time.Millisecond
	watchLeast = time.Second

	// After a ban was lifted, an answer that still reports the ban may arrive for up to liftedFor.
	liftedFor = time.Second
)

// StrikesName is the name of the limits in which a store keeps strikes. Clients do not see them.
const StrikesName = "penalty strikes"

// NewPenalty returns the Penalty of a rule. A ban begins with the strike that exhausts the limit.
// It takes the lengths of a key's first ban and of its longest ban, in whole microseconds. Each
// further ban is twice as long as the one before, but no longer than the longest.
func NewPenalty(rule string, strikes quota.Limit, first, longest time.Duration) *Penalty {
	most := max(1, longest.Microseconds())
	return &Penalty{
		rule: rule, first: first, seed: maphash.MakeSeed(), strikes: strikes.Named(StrikesName),
		bans: quota.Limit{Name: "penalty ban", Algorithm: algorithm{}, Quota: most, Period: time.Second},
	}
}

// lookup returns a charge that changes nothing. From the decision on this charge, timeLeft reads
// the remaining time of the ban.
func (p *Penalty) lookup(key string) quota.Charge {
	return quota.Charge{Rule: p.rule, Key: key, Limit: p.bans}
}

// lookupStrikes returns a charge that changes nothing. The Remaining of the decision on this charge
// is the number of further strikes that begin no ban.
func (p *Penalty) lookupStrikes(key string) quota.Charge {
	return quota.Charge{Rule: p.rule, Key: key, Limit: p.strikes}
}

// timeLeft returns the remaining time of a key's ban from the decision on a charge for it, or 0 if
// the key is not banned.
func timeLeft(d *quota.Decision) time.Duration { return d.NextAfter }

// AppendLookups appends one or two charges that change nothing. The first looks up the ban of a
// key. The second looks up the key's strikes. The second charge is appended only if this process
// has refused the key within the period of the strikes, or if a single strike begins a ban.
func (p *Penalty) AppendLookups(charges []quota.Charge, key string) []quota.Charge {
	charges = append(charges, p.lookup(key))
	until := p.place(key).Load()
	if p.strikes.Quota == 1 || until != 0 && time.Now().UnixMicro() < until {
		charges = append(charges, p.lookupStrikes(key))
	}
	return charges
}

// place returns the index of a key in struck.
func (p *Penalty) place(key string) *atomic.Int64 {
	return &p.struck[maphash.String(p.seed, key)%uint64(len(p.struck))]
}

// Apply returns how much longer a key is banned, according to the decisions on its look-ups. The
// second decision, if any, is about the key's strikes. If the key is not banned and a limit has
// refused it, the refusal counts as a strike; began reports whether this strike has begun a ban.
// Apply remembers the ban.
func (p *Penalty) Apply(ctx context.Context, lookups []quota.Charge, decisions []quota.Decision, refused bool,
) (rest time.Duration, began bool, err error) {
	key := lookups[0].Key
	if rest = timeLeft(&decisions[0]); rest == 0 && refused {
		last := false // whether this strike is known to begin a ban, so that a call to the store is saved
		if len(lookups) > 1 && lookups[1].Limit.Name == StrikesName {
			last = decisions[1].Remaining == 0 || decisions[1].Remaining == 1
		}
		rest, err = p.strike(ctx, key, last)
		began = rest > 0
	}
	if rest > 0 {
		p.learn(key, rest, began, nil)
	}
	return rest, began, err
}

// strike counts a refusal of a key, and returns how long the key is then banned, or 0 if it is not
// banned. The strike that exhausts the limit begins a ban, which clears the strikes.
func (p *Penalty) strike(ctx context.Context, key string, last bool) (time.Duration, error) {
	p.place(key).Store(time.Now().UnixMicro() + p.strikes.Period.Microseconds())
	strike, begin := p.lookupStrikes(key), p.lookup(key)
	if !last {
		strike.Cost = 1
		// The second charge makes package lease forward the transaction to the store.
		t := quota.Transaction{Charges: []quota.Charge{strike, begin}}
		if err := p.Store.Take(ctx, &t); err != nil || t.Allowed() && t.Decisions[0].Remaining != 0 {
			return 0, err
		}
	}
	// If another request has just begun a ban, this transaction is refused, and changes nothing.
	// ModeForget would clear the strikes too, but not in the transaction that begins the ban.
	begin.Cost, strike.Cost = costOf(p.first), -2*quota.MaxTicks
	t := quota.Transaction{Charges: []quota.Charge{begin, strike}}
	if err := p.Store.Take(ctx, &t); err != nil {
		return 0, err
	}
	return timeLeft(&t.Decisions[0]), nil
}

// Known returns how much longer a key is banned, or 0 if this process knows of no ban.
func (p *Penalty) Known(key string) time.Duration {
	if p.n.Load() == 0 {
		return 0
	}
	now := time.Now()
	p.mu.RLock()
	ban := p.known[key]
	due := !now.Before(p.sweep)
	p.mu.RUnlock()
	if due {
		p.mu.Lock()
		p.drop(now)
		p.mu.Unlock()
	}
	if ban.lifted || !now.Before(ban.again) || ban.current != nil && !ban.current() {
		return 0
	}
	rest := ban.until.Sub(now)
	if rest > watchLeast && !ban.watch.IsZero() && now.After(ban.watch) {
		p.watch(key, ban, now)
	}
	return rest
}

// watch makes the store report changes of a ban, if the store can do so. It tries at most once a
// second.
func (p *Penalty) watch(key string, ban known, now time.Time) {
	key = strings.Clone(key) // the map keeps the key of each assignment
	p.mu.Lock()
	first := p.known[key].watch.Equal(ban.watch)
	if first {
		ban.watch = now.Add(watchLeast)
		p.known[key] = ban
	}
	p.mu.Unlock()
	if w, ok := p.Store.(watcher); ok && first {
		w.Watch(p.lookup(key), func(d quota.Decision, current func() bool) { p.learn(key, timeLeft(&d), false, current) })
	}
}

// learn remembers for up to 10 s that a key is banned for rest. A random part of the time is
// subtracted, so that keys that were banned together do not cause calls at the same time. If the
// store reports changes, current reports whether the ban is still unchanged, and the ban is
// remembered for up to 5 minutes. If this process has begun the ban, began is true.
func (p *Penalty) learn(key string, rest time.Duration, began bool, current func() bool) {
	now := time.Now()
	k := known{until: now.Add(rest), again: now.Add(rest), watch: now.Add(watchAfter)}
	switch {
	case current != nil:
		k = known{until: k.until, again: now.Add(min(rest, watchedFor)), current: current}
	case rest > recheck:
		k.again = now.Add(recheck - rand.N(recheck/4))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if old := p.known[key]; old.lifted && !began && now.Before(old.again) {
		return
	}
	p.keep(key, k, now)
}

// keep puts an entry into known. The caller holds p.mu.
func (p *Penalty) keep(key string, k known, now time.Time) {
	if p.known == nil {
		p.known = map[string]known{}
	}
	if len(p.known) == 0 || !now.Before(p.sweep) {
		p.drop(now)
	}
	if _, ok := p.known[key]; !ok && len(p.known) >= mostKnown {
		for other := range p.known { // any entry: dropping it costs one call to the store
			delete(p.known, other)
			break
		}
	}
	p.known[strings.Clone(key)] = k
	p.n.Store(int64(len(p.known)))
}

// drop removes the entries that have expired. The caller holds p.mu.
func (p *Penalty) drop(now time.Time) {
	p.sweep = now.Add(recheck)
	for key, k := range p.known {
		if !now.Before(k.again) {
			delete(p.known, key)
		}
	}
	p.n.Store(int64(len(p.known)))
}

// Ban bans a key for d, unless the key is already banned for longer. Such a ban does not affect the
// length of later bans.
func (p *Penalty) Ban(ctx context.Context, key string, d time.Duration) error {
	c := p.lookup(key)
	c.Limit.Burst, c.Cost = exact, costOf(d)
	t := quota.Transaction{Charges: []quota.Charge{c}}
	if err := p.Store.Take(ctx, &t); err != nil {
		return err
	}
	p.learn(key, timeLeft(&t.Decisions[0]), true, nil)
	return whereMade(&t)
}

// whereMade returns an error if a change was made only in the second store of a quota.Fallback.
func whereMade(t *quota.Transaction) error {
	if t.FellBack() {
		return quota.ErrFellBack
	}
	return nil
}

// Unban clears the ban of a key, its earlier bans and its strikes. If the store had none of these,
// found is false.
func (p *Penalty) Unban(ctx context.Context, key string) (found bool, err error) {
	t, err := quota.Peek(ctx, p.Store, p.lookup(key), p.lookupStrikes(key))
	if err != nil {
		return false, err
	}
	found = t.Decisions[0].ResetAfter > 0 || t.Decisions[1].ResetAfter > 0
	t.Mode = quota.ModeForget
	if err := p.Store.Take(ctx, t); err != nil {
		return false, err
	}
	now := time.Now()
	p.mu.Lock()
	defer p.mu.Unlock()
	// Answers that the store gave earlier may still arrive.
	p.keep(key, known{lifted: true, again: now.Add(liftedFor)}, now)
	return found, whereMade(t)
}

// Offenses returns how much longer a key is banned, how long ago its last ban expired (0 if it is
// banned, or if the store remembers no ban), and how many of its strikes count.
func (p *Penalty) Offenses(ctx context.Context, key string) (banned, since time.Duration, strikes int64, err error) {
	t, err := quota.Peek(ctx, p.Store, p.lookup(key), p.lookupStrikes(key))
	if err != nil {
		return 0, 0, 0, err
	}
	ban, counted := &t.Decisions[0], &t.Decisions[1]
	if banned = timeLeft(ban); banned == 0 && ban.ResetAfter > 0 {
		since = time.Duration(Repeats*p.bans.Quota)*time.Microsecond - ban.ResetAfter
	}
	if counted.Remaining >= 0 {
		limit := p.strikes
		limit.Divide(max(1, t.Replicas))
		strikes = limit.Capacity() - counted.Remaining
	}
	return banned, since, strikes, nil
}

// A pause of a key is a ban for an exact time, under a separate limit.
var pauses = quota.Limit{Name: "pause", Algorithm: algorithm{}, Quota: 1, Period: time.Microsecond, Burst: exact}

// LookupPause returns a charge that is refused while the key is paused. The charge changes nothing.
func LookupPause(rule, key string) quota.Charge {
	return quota.Charge{Rule: rule, Key: key, Limit: pauses, Cost: refusing}
}

// BeginPause returns a charge that pauses a key for d, unless the key is already paused for longer.
func BeginPause(rule, key string, d time.Duration) quota.Charge {
	c := LookupPause(rule, key)
	c.Cost = costOf(d)
	return c
}

// IsPause reports whether the charge is for a pause.
func IsPause(c *quota.Charge) bool { return c.Limit == pauses }
