package weir

import (
	"context"
	"fmt"
	"time"

	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// A Penalty bans keys that are refused repeatedly. Bans are kept in the store, so all processes
// that share the store enforce them. Each process also remembers a ban for up to 10 s, so requests
// with a banned key cause only about one store call every 10 s. If the store is an optional.Watcher
// that reports when another process lifts a ban, they cause only about one call every 5 minutes.
//
// Each refusal by one of the rule's own limits is a strike, unless this process already knows that
// the key is banned. A strike requires one additional store call, and the strike that begins a ban
// may require two. A ban clears the key's strikes.
//
// Requests with a banned key are refused with the problem type abnormal-usage-detected. Retry-After
// is the remaining time of the ban. If the process had to call the store, and a limit refuses the
// request for longer than the ban, Retry-After is the wait of that limit. A process that does not
// yet know of a ban learns of it from the decision on the next request with the banned key. That
// request is always refused. It is also charged, unless it would have had to wait. Requests that
// are already waiting when a ban begins keep their places in the queue.
type Penalty struct {
	// Strikes is a limit on refusals, such as algorithms.AnchoredWindow(10, time.Minute). The
	// refusal that exhausts the limit begins a ban. Strikes cannot be a LeakyBucket or a
	// concurrency limit.
	Strikes Limit

	// Duration is the length of a key's first ban, in whole microseconds. Each further ban lasts
	// twice as long as the one before, up to MaxDuration.
	Duration time.Duration

	// MaxDuration is the maximum length of a ban; 0 means 24 hours or Duration, whichever is
	// longer. If a key is not banned for 32 times MaxDuration, its earlier bans are forgotten.
	MaxDuration time.Duration
}

// Ban bans a key under a rule for the duration d, rounded down to whole microseconds. Ban is
// intended for operators. The rule must have a Penalty. If the key is already banned until a later
// time, Ban has no effect. If the store is a quota.Fallback whose second store handled the call,
// Ban returns quota.ErrFellBack, and the key is banned in this process only.
func (l *Limiter) Ban(ctx context.Context, rule, key string, d time.Duration) error {
	r, err := l.penalized(rule)
	if err != nil {
		return err
	}
	if d < time.Microsecond || d > quota.MaxTicks*time.Microsecond {
		return fmt.Errorf("weir: Ban: d is %v; want 1 µs to 2^50 µs", d)
	}
	return r.penalty.Ban(ctx, storedkey.Of(key), d)
}

// Unban lifts a key's ban under a rule and clears the key's strikes and earlier bans. The rule must
// have a Penalty. Other processes may continue to enforce the ban for up to 10 seconds, but usually
// notice within milliseconds if their store is an optional.Watcher, such as the store of package
// stack. Unban returns false if the store had no ban, strikes or earlier bans of the key, for
// example because the key is misspelled, or because the rule uses Hashed and the caller passed a
// name instead of the name's HashedKey. Like Ban, Unban may return quota.ErrFellBack.
func (l *Limiter) Unban(ctx context.Context, rule, key string) (found bool, err error) {
	r, err := l.penalized(rule)
	if err != nil {
		return false, err
	}
	return r.penalty.Unban(ctx, storedkey.Of(key))
}

// Banned returns the remaining time of a key's ban under a rule. It returns 0 if the key is not
// banned, or if no rule with that name has a Penalty.
func (l *Limiter) Banned(ctx context.Context, rule, key string) (time.Duration, error) {
	banned, _, _, err := l.Offenses(ctx, rule, key)
	return banned, err
}

// Offenses returns how much longer a key is banned under a rule, how long ago its last ban expired,
// and how many of its refusals count towards the next ban. The second result is 0 if the key is
// banned, or if the store remembers no ban. All three results are 0 if no rule with that name has a
// Penalty. The error is the store's.
func (l *Limiter) Offenses(ctx context.Context, rule, key string) (banned, since time.Duration, strikes int64, err error) {
	r, err := l.penalized(rule)
	if err != nil {
		return 0, 0, 0, nil
	}
	return r.penalty.Offenses(ctx, storedkey.Of(key))
}

func (l *Limiter) penalized(name string) (*rule, error) {
	if r, err := l.rule(name); err == nil && r.penalty != nil {
		return r, nil
	}
	return nil, fmt.Errorf("weir: there is no rule %q with a penalty", name)
}

// longest returns the maximum length of a ban.
func (p *Penalty) longest() time.Duration { return ban.LongestOf(p.Duration, p.MaxDuration) }

func (p *Penalty) validate() error {
	most := p.longest()
	switch {
	case p.Duration < time.Microsecond || p.Duration%time.Microsecond != 0:
		return fmt.Errorf("penalty: Duration is %v; want whole microseconds above 0", p.Duration)
	case most < p.Duration || most%time.Microsecond != 0:
		return fmt.Errorf("penalty: MaxDuration is %v; want whole microseconds, at least Duration, %v", most, p.Duration)
	case most > ban.Longest:
		return fmt.Errorf("penalty: the longest ban is %v; want at most %v", most, ban.Longest)
	}
	strikes := p.Strikes.Named(ban.StrikesName)
	err := strikes.Fault()
	if err == nil {
		err = checkBurst(&strikes)
	}
	if _, queue := strikes.Algorithm.(optional.Queuer); err == nil && (queue || strikes.InFlight()) {
		// A queue or a concurrency limit cannot count strikes, because strikes neither wait nor
		// end.
		err = fmt.Errorf("the algorithm is %s; want one that can count strikes", strikes.Algorithm.Name())
	}
	if err != nil {
		return fmt.Errorf("%s: %w", ban.StrikesName, err)
	}
	return nil
}
