package weir

import (
	"context"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/remaining"
	"github.com/seed83679106/weir/quota"
)

// pauses is the rider of a Transport. A pause of a key delays its requests as a limit does.
type pauses struct {
	bystander
	l    *Limiter
	most time.Duration // MaxPause

	cut, cutReset atomic.Bool // a pause, or the reset of units, was cut to MaxPause, which is logged once
}

// meet adds a charge for the pause of the key. It refuses the request if the server has fewer
// units left for the key than the request costs; nothing is known of a key for which the rule is in
// shadow.
func (p *pauses) meet(v *verdict, rule *rule, key string, applies bool) (aside bool) {
	if !applies {
		return false
	}
	v.riding = append(v.riding, pauseOf(rule.Name, key))
	d := p.l.left.Wait(remaining.Key{Rule: rule.Name, Key: key}, func() int64 { return rule.cost(v.event.Request) })
	if d > 0 && (v.reason == 0 || d > v.Refusal.RetryAfter) {
		v.deny(Refusal{ReasonPause, rule.Name, d}, rule, key)
	}
	return false
}

// spend takes the cost of v, whose turn has come, from what the server has left for its keys. It
// returns false if another request has spent that since v was met, or a response has come that
// says so.
func (p *pauses) spend(v *verdict) bool {
	return p.l.left.Spend(func(yield func(remaining.Key, int64) bool) {
		for i := 0; i < len(v.items); i += v.items[i].limits {
			if it := &v.items[i]; !yield(remaining.Key{Rule: it.rule.Name, Key: it.key}, it.cost) {
				return
			}
		}
	})
}

// heed refuses the request because of a pause that lasts longer than its limits refuse.
func (p *pauses) heed(v *verdict) {
	for i := len(v.items); i < len(v.Charges); i++ {
		c, d := &v.Charges[i], &v.Decisions[i]
		if c.Limit == pauseLimit && !d.Allowed && (v.reason == 0 || d.RetryAfter > v.Refusal.RetryAfter) {
			v.Refusal, v.reason, v.event.Key = Refusal{ReasonPause, c.Rule, d.RetryAfter}, ReasonPause, c.Key
		}
	}
}

// A pause of a key is a ban of the key, under a limit of its own.
var pauseLimit = Limit{Name: "pause", Algorithm: ban.Algorithm{}, Quota: 1, Period: time.Microsecond, Burst: ban.Manual}

// pauseOf returns a charge that a pause of a key refuses until the pause is over. The charge
// changes nothing.
func pauseOf(rule, key string) quota.Charge {
	return quota.Charge{Rule: rule, Key: key, Limit: pauseLimit, Cost: ban.Ask}
}

// beginPause returns the charge that pauses the key of the charge pause for d. It changes nothing
// if the key is already paused for longer.
func beginPause(pause quota.Charge, d time.Duration) quota.Charge {
	pause.Cost = ban.Cost(d)
	return pause
}

// pauses returns a charge for the pause of each key of v, one for each rule: see pauseOf.
func (v *verdict) pauses() (pauses []quota.Charge) {
	for i := 0; i < len(v.items); i += v.items[i].limits {
		pauses = append(pauses, pauseOf(v.items[i].rule.Name, v.items[i].key))
	}
	return pauses
}

// asksToPause returns how long the server asks to pause; 0 if it does not. It notes how many units
// other than requests the server says are left for the keys of v, for at most MaxPause.
func (p *pauses) asksToPause(v *verdict, res *http.Response) (pause time.Duration) {
	limits, retryAfter := headers.Parse(res.Header, time.Now())
	if res.StatusCode == http.StatusTooManyRequests || res.StatusCode == http.StatusServiceUnavailable {
		pause = retryAfter
	}
	for _, a := range limits {
		if a.Remaining == 0 {
			pause = max(pause, a.ResetAfter)
		}
	}
	for i := 0; i < len(v.items); i += v.items[i].limits {
		tightest := headers.Limit{Remaining: -1}
		for _, a := range limits {
			if a.Unit == v.items[i].rule.Unit && a.Unit != headers.Requests && a.Remaining >= 0 && a.ResetAfter > 0 && (tightest.Remaining < 0 || a.Remaining < tightest.Remaining) {
				tightest = a
			}
		}
		if tightest.Remaining >= 0 {
			p.l.left.Set(remaining.Key{Rule: v.items[i].rule.Name, Key: v.items[i].key}, tightest.Remaining, p.bounded(v, &p.cutReset, "reset of remaining units", v.items[i].rule.Name, tightest.ResetAfter))
		}
	}
	return pause
}

// pause stops the use of the keys of v for as long as the server has asked, but at most for
// MaxPause. New requests get slots after the end of the pause. Requests that already wait learn of
// the pause from the method paused. If a longer pause is in force, nothing changes.
func (p *pauses) pause(v *verdict, asked time.Duration) {
	d := p.bounded(v, &p.cut, "pause", v.Charges[0].Rule, asked)
	ctx := asking{v.Context}
	for _, c := range v.pauses() {
		if err := p.l.store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{beginPause(c, d)}}); err != nil {
			p.l.log.warn(ctx, "key not paused", c.Rule, err)
		}
	}
}

// bounded returns how long what the server has asked for lasts: at most MaxPause. The first cut is
// logged.
func (p *pauses) bounded(v *verdict, logged *atomic.Bool, what, rule string, asked time.Duration) time.Duration {
	if asked > p.most && logged.CompareAndSwap(false, true) {
		loggerOr(p.l.o.Logger).WarnContext(v, "weir: answer of a server cut to MaxPause", "rule", rule, "part", what, "asked", period.Rounded(asked), "max_pause", period.Rounded(p.most), "effect", "requests are sent earlier than the server has asked; later cuts are not logged")
	}
	return min(asked, p.most)
}

// paused reports whether one of the keys of v is paused.
func (p *pauses) paused(v *verdict) bool {
	look := quota.Transaction{Charges: v.pauses(), Mode: quota.ModePeek}
	if err := p.l.store.Take(asking{v.Context}, &look); err != nil {
		p.l.log.warn(v, "pause not read", v.Charges[0].Rule, err)
		return false // the request has its turn, so it exceeds no limit
	}
	return !look.Allowed()
}

// Unpause ends a pause that Transport imposed on a key under a rule, in all processes that share
// the store. In a process that uses a quota.HybridStore, the pause may last up to 10 seconds
// longer. This process also forgets the number of remaining units that the server last reported for
// the key, but other processes do not. Requests that are already waiting keep their slots, and
// later requests do not overtake them.
func (l *Limiter) Unpause(ctx context.Context, rule, key string) error {
	for i := range l.rules {
		if l.rules[i].Name == rule {
			l.left.Forget(remaining.Key{Rule: rule, Key: key})
			return l.store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{pauseOf(rule, key)}, Mode: quota.ModeForget})
		}
	}
	return fmt.Errorf("weir: there is no rule %q", rule)
}
