package weir

import (
	"fmt"
	"time"

	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/quota"
)

// A Penalty bans keys that are refused again and again. The store keeps the bans, so all
// processes that share it enforce them. Each process also remembers a ban for up to 10 s,
// so in each process the requests of a banned key cause about one call of the store in 10 s.
//
// Each refusal by a limit of the rule is a strike. A refusal by another rule is not a
// strike. Besides the call for the decision, the store is called this often:
//
//   - a strike: one call;
//   - the strike that begins a ban: one call as well, but usually two calls if this process
//     has not refused the key within the period of Strikes;
//   - a refusal during a ban that the process knows of: no call, not even the call for the
//     decision. Such a refusal is no strike. Every 10 s the process calls the store again.
//
// The call that begins a ban also clears the strikes that led to it. If that call fails,
// the next refusal tries again.
//
// Requests of banned keys are refused with problem details of the type
// abnormal-usage-detected. Retry-After is the wait until neither the ban nor the limits
// refuse the request. A process that does not know of a ban learns of it from the decision on
// the next request of the key. That request is refused and charged, unless it would have
// had to wait. A request that already waits keeps its place in the queue.
type Penalty struct {
	// Strikes says how many refusals within its period bring a ban, such as
	// algorithms.AnchoredWindow(10, time.Minute). A LeakyBucket or a concurrency limit
	// cannot count strikes.
	Strikes Limit

	// Duration is how long a first ban lasts, in whole microseconds. Each further ban
	// lasts twice as long as the one before, up to MaxDuration.
	Duration time.Duration

	// MaxDuration is how long a ban lasts at most; 0 means 24 hours, or Duration if that is
	// longer. The bans of a key are forgotten after 32 times MaxDuration without a ban.
	MaxDuration time.Duration
}

// strikesName is the name of the limits in which a store keeps strikes. Clients do not see them.
const strikesName = "penalty strikes"

// longest returns how long a ban lasts at most.
func (p *Penalty) longest() time.Duration {
	if p.MaxDuration == 0 {
		return max(24*time.Hour, p.Duration)
	}
	return p.MaxDuration
}

func (p *Penalty) validate() error {
	most := p.longest()
	switch {
	case p.Duration < time.Microsecond || p.Duration%time.Microsecond != 0:
		return fmt.Errorf("penalty: Duration %v is not in whole microseconds above 0", p.Duration)
	case most < p.Duration || most%time.Microsecond != 0:
		return fmt.Errorf("penalty: MaxDuration %v is below Duration, or not in whole microseconds", most)
	case most > quota.MaxTicks/ban.Repeats*time.Microsecond:
		return fmt.Errorf("penalty: a ban of %v is too long, the longest is %v", most, quota.MaxTicks/ban.Repeats*time.Microsecond)
	}
	strikes := p.Strikes.Named(strikesName)
	err := strikes.Fault()
	if err == nil {
		err = checkBurst(&strikes)
	}
	if err == nil {
		err = checkStrikes(&strikes)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", strikesName, err)
	}
	return nil
}

// checkStrikes returns an error if the algorithm counts what strikes are not: requests that
// wait in a queue, or that end.
func checkStrikes(l *Limit) error {
	if _, queue := l.Algorithm.(quota.Queuer); queue || l.InFlight() {
		return fmt.Errorf("%s cannot count strikes", l.Algorithm.Name())
	}
	return nil
}
