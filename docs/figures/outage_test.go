package figures_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A far is a store that does not answer while it is down: its calls fail after 50 ms.
type far struct {
	quota.Store
	begin      time.Time
	from, to   time.Duration
	calls, bad []time.Duration // when it decided, and when calls that failed began
}

func (f *far) Take(ctx context.Context, t *quota.Transaction) error {
	at := time.Since(f.begin)
	if at >= f.from && at < f.to {
		f.bad = append(f.bad, at)
		time.Sleep(50 * time.Millisecond)
		return errors.New("i/o timeout")
	}
	f.calls = append(f.calls, at)
	return f.Store.Take(ctx, t)
}

// TestOutage draws who decides before, during and after an outage, with the decorators of package
// stack. One process of four gets 10 requests a second for one key, under 20 a second.
func TestOutage(t *testing.T) {
	const seconds, from, to = 9, 2 * time.Second, 6500 * time.Millisecond
	type request struct {
		at      time.Duration
		allowed bool
	}
	var redis *far
	var memory []request // what memory decided
	synctest.Test(t, func(t *testing.T) {
		redis = &far{Store: memstore.New(memstore.Options{}), begin: time.Now(), from: from, to: to}
		quiet := slog.New(slog.DiscardHandler)
		store := quota.Fallback(quota.Hybrid(quota.Breaker(redis, quota.BreakerOptions{Logger: quiet}), quota.HybridOptions{}),
			quota.Share(memstore.New(memstore.Options{}), 4), quota.FallbackOptions{Logger: quiet})
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "k", Limit: algorithms.GCRA(20, time.Second).WithBurst(4), Cost: 1}}}
		for n := range seconds * 10 {
			at := time.Duration(n) * time.Second / 10
			time.Sleep(at - time.Since(redis.begin))
			decided := len(redis.calls)
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatal(err)
			}
			if len(redis.calls) == decided {
				memory = append(memory, request{at, tx.Allowed()})
			} else if !tx.Allowed() {
				t.Errorf("at %v Redis refused a request, want all allowed", at)
			}
		}
	})
	allowed := 0
	for _, r := range memory {
		if r.allowed {
			allowed++
		}
	}
	first := memory[len(memory)-1].at + time.Second/10 // the first request that Redis decides again
	if len(redis.bad) != 8 || first-to > 1100*time.Millisecond {
		t.Errorf("got %d failed calls at %v, and decisions of Redis from %v on, want 8 and Redis within 1.1 s", len(redis.bad), redis.bad, first)
	}

	const left, right = 88.0, 404.0
	x := func(at time.Duration) float64 { return left + (right-left)*at.Seconds()/seconds }
	d := draw(262, "Who decides during an outage of Redis",
		fmt.Sprintf("A process gets 10 requests a second, under 20 a second. Redis does not answer from second 2 to 6.5. %d requests wait 50 ms for it: five, and then one each second. "+
			"Memory decides %d requests under a fourth of the limit, and allows %d. Redis decides again from second %.1f on.", len(redis.bad), len(memory), allowed, first.Seconds()))
	d.text(16, 52, "soft", "One of 4 processes: 10 requests a second, limit 20 a second.")
	d.rect("span", x(from), 66, x(to)-x(from), 150)
	d.text((x(from)+x(to))/2, 82, "soft mid", "Redis does not answer")
	for i, row := range []string{"Redis", "failures", "memory"} {
		y := 108 + 44*float64(i)
		d.text(16, y+4, "name", row)
		d.line("grid", left, y+10, right, y+10)
	}
	for _, at := range redis.calls {
		d.yes(x(at), 104)
	}
	for _, at := range redis.bad {
		d.rect("more", x(at), 142, 2, 12)
	}
	for _, r := range memory {
		if r.allowed {
			d.yes(x(r.at), 190)
		} else {
			d.no(x(r.at), 200)
		}
	}
	d.text(x(from)+22, 136, "soft", "5 wait 50 ms, then 1 a second")
	d.text(x(from)+4, 180, "soft", "a fourth of the limit")
	for s := 0; s <= seconds; s++ {
		d.text(x(time.Duration(s)*time.Second), 234, "soft mid", fmt.Sprint(s))
	}
	d.text((left+right)/2, 252, "soft mid", "seconds; dots: allowed, crosses: refused")
	text := d.end()
	wellFormed(t, text)
	current(t, "outage.svg", text)
}
