package ban_test

import (
	"context"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/ban"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// TestKnownEnds: a process forgets a ban when it is over, or after 10 s, and remembers at most 10,000.
func TestKnownEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ban.NewPenalty("r", algorithms.FixedWindow(3, time.Minute), time.Minute, time.Hour)
		p.Store = memstore.New(memstore.Options{})
		known := func() (n int) {
			for i := range 10_010 {
				if rest := p.Known(strconv.Itoa(i)); rest > 0 {
					n++
				}
			}
			return n
		}
		for i := range 10_010 {
			if err := p.Ban(t.Context(), strconv.Itoa(i), time.Duration(9+i%2)*time.Hour); err != nil {
				t.Fatal(err)
			}
		}
		if got := known(); got != 10_000 {
			t.Errorf("got %d known bans, want 10,000", got)
		}
		if err := p.Ban(t.Context(), "short", 9*time.Second); err != nil || p.Known("short") != 9*time.Second {
			t.Errorf("got %v and a ban of %v, want 9s", err, p.Known("short"))
		}
		time.Sleep(9 * time.Second)
		if got := p.Known("short"); got != 0 {
			t.Errorf("after 9 s: got a ban of %v, want none", got)
		}
		time.Sleep(time.Second)
		if got := known(); got != 0 {
			t.Errorf("after 10 s: got %d known bans, want none", got)
		}
	})
}

// TestUnbanAtOnce: a request that the store has evaluated before the ban of its key was lifted, and whose
// answer comes afterwards, does not make the process remember the ban again. A new ban is remembered at once.
func TestUnbanAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ban.NewPenalty("r", algorithms.FixedWindow(1, time.Minute), time.Hour, time.Hour)
		p.Store = memstore.New(memstore.Options{})
		if err := p.Ban(t.Context(), "k", time.Hour); err != nil {
			t.Fatal(err)
		}
		lookups := p.AppendLookups(nil, "k")
		answer, err := quota.Peek(t.Context(), p.Store, lookups...)
		if err != nil {
			t.Fatal(err)
		}
		apply := func(refused bool) time.Duration {
			rest, _, err := p.Apply(t.Context(), lookups, answer.Decisions, refused)
			if err != nil {
				t.Fatal(err)
			}
			return rest
		}
		if found, err := p.Unban(t.Context(), "k"); !found || err != nil {
			t.Fatal(found, err)
		}
		if got := apply(false); got != time.Hour || p.Known("k") != 0 {
			t.Errorf("after a late answer: got a ban of %v in the answer, and remembered one of %v, want an hour and none", got, p.Known("k"))
		}
		if answer, err = quota.Peek(t.Context(), p.Store, lookups...); err != nil {
			t.Fatal(err)
		}
		if got := apply(true); got != time.Hour || p.Known("k") != time.Hour {
			t.Errorf("after another strike: got a ban of %v, and remembered one of %v, want an hour", got, p.Known("k"))
		}
		if _, err := p.Unban(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		if err := p.Ban(t.Context(), "k", time.Minute); err != nil || p.Known("k") != time.Minute {
			t.Errorf("banned again: got %v and a ban of %v, want a minute", err, p.Known("k"))
		}
	})
}

// TestShared: bans are as long, and are remembered as long, in the store of one of several replicas.
// Strikes are those of its share.
func TestShared(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := ban.NewPenalty("r", algorithms.FixedWindow(8, time.Hour), time.Minute, 2*time.Minute)
		p.Store = quota.Share(memstore.New(memstore.Options{}), 4)
		lookups := p.AppendLookups(nil, "k")
		strike := func() time.Duration {
			look, err := quota.Peek(t.Context(), p.Store, lookups...)
			if err != nil {
				t.Fatal(err)
			}
			rest, _, err := p.Apply(t.Context(), lookups, look.Decisions, true)
			if err != nil {
				t.Fatal(err)
			}
			return rest
		}
		for i, want := range []time.Duration{time.Minute, 2 * time.Minute, 2 * time.Minute} {
			if _, _, n, _ := p.Offenses(t.Context(), "k"); n != 0 {
				t.Errorf("before ban %d: got %d strikes, want 0", i, n)
			}
			if got := strike(); got != 0 {
				t.Errorf("before ban %d: got banned for %v by the first of two strikes", i, got)
			}
			if _, _, n, _ := p.Offenses(t.Context(), "k"); n != 1 {
				t.Errorf("before ban %d: got %d strikes, want 1", i, n)
			}
			if got := strike(); got != want {
				t.Errorf("ban %d: got %v, want %v", i, got, want)
			}
			time.Sleep(want + time.Second)
			if _, since, _, _ := p.Offenses(t.Context(), "k"); since != time.Second {
				t.Errorf("ban %d has ended %v ago, want 1s", i, since)
			}
		}
	})
}

// TestHold: one call of the store pauses a key. A transaction that charges the pause is
// delayed until the pause is over, whatever other limits the transaction charges, and changes
// nothing about the pause, also if it is given back.
func TestHold(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(3, time.Second), algorithms.TokenBucket(3, 3, time.Second), algorithms.LeakyBucket(100, 3, time.Second),
		algorithms.FixedWindow(3, time.Second), algorithms.AnchoredWindow(3, time.Second), algorithms.SlidingWindow(3, time.Second),
		algorithms.SlidingLog(3, time.Second), algorithms.Calendar(3, algorithms.Day, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			pauseAndGoOn(t, limit)
		})
	}
}

// pauseAndGoOn pauses a key, charges the pause alone and together with limit, and sleeps until
// the pause is over.
func pauseAndGoOn(t *testing.T, limit quota.Limit) {
	calls := 0
	memory := memstore.New(memstore.Options{})
	store := counting(func(ctx context.Context, tx *quota.Transaction) error { calls++; return memory.Take(ctx, tx) })
	pause := ban.LookupPause("r", "")
	unit := quota.Charge{Rule: "r", Limit: limit, Cost: 1}
	wants := func(within time.Duration, what string, allowed bool, wait time.Duration, charges ...quota.Charge) *quota.Transaction {
		t.Helper()
		tx := quota.Transaction{Within: within, Charges: charges}
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatal(err)
		}
		if !allowed {
			tx.Wait = tx.RetryAfter()
		}
		if tx.Allowed() != allowed || tx.Wait != wait {
			t.Errorf("%v: %s: got %v after %v, want %v after %v", limit, what, tx.Allowed(), tx.Wait, allowed, wait)
		}
		return &tx
	}
	begin := func(d time.Duration) {
		t.Helper()
		if tx, before := (quota.Transaction{Charges: []quota.Charge{ban.BeginPause("r", "", d)}}), calls; store.Take(t.Context(), &tx) != nil || !tx.Allowed() || calls != before+1 {
			t.Errorf("%v: paused for %v: got %+v in %d calls, want it allowed in one", limit, d, tx.Decisions, calls-before)
		}
	}
	wants(0, "open", true, 0, pause, unit)
	for _, d := range []time.Duration{10 * time.Second, 20 * time.Second, 5 * time.Second, 20 * time.Second} {
		begin(d)
	}
	wants(0, "paused, at once", false, 20*time.Second, pause, unit)
	wants(19*time.Second, "paused, too long", false, 20*time.Second, pause)
	wants(time.Minute, "paused", true, 20*time.Second, pause)
	wants(time.Minute, "paused, with a limit", true, 20*time.Second, pause, unit)
	slow := quota.Charge{Rule: "slow", Limit: algorithms.GCRA(1, time.Minute), Cost: 1}
	wants(0, "the first in a line", true, 0, slow)
	turn := wants(time.Hour, "the second in a line", true, time.Minute, slow, pause)
	wants(0, "beside that line", false, 20*time.Second, pause)
	if err := quota.Refund(t.Context(), store, turn); err != nil {
		t.Fatal(err)
	}
	wants(0, "after that was given back", false, 20*time.Second, pause)
	time.Sleep(20*time.Second - time.Microsecond)
	wants(0, "a microsecond early", false, time.Microsecond, pause)
	wants(time.Minute, "a microsecond early", true, time.Microsecond, pause)
	time.Sleep(time.Microsecond)
	wants(0, "over", true, 0, pause)
	begin(time.Hour)
	pause.Cost = -1
	wants(0, "a gift", true, 0, pause)
	pause.Cost = 1
	if tx, err := quota.Peek(t.Context(), store, pause); err != nil || tx.Allowed() || tx.RetryAfter() != time.Hour {
		t.Errorf("%v: Peek: got %+v and %v, want a wait of an hour", limit, tx, err)
	}
	wants(0, "after a gift", false, time.Hour, pause)
	if err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{pause}, Mode: quota.ModeForget}); err != nil {
		t.Fatal(err)
	}
	wants(0, "forgotten", true, 0, pause)
}

type counting func(context.Context, *quota.Transaction) error

func (f counting) Take(ctx context.Context, t *quota.Transaction) error { return f(ctx, t) }
