package storetest

import (
	"context"
	"crypto/rand"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// Most tests use these limits. The period of an hour is longer than a test takes.
var (
	three = algorithms.GCRA(3, time.Hour).Named("three")
	one   = algorithms.AnchoredWindow(1, time.Hour).Named("one")
)

// A replay passes transactions to a store, and then evaluates the same transactions with its own
// states.
type replay struct {
	testing.TB
	store quota.Store
	run   string // random text in every key, so that test runs can share a server
	kept  map[id]quota.State

	compared bool // there was a decision
	fellBack bool // of the first decision, and therefore of all
}

// An id contains the names under which a store keeps a state.
type id struct{ rule, key, limit, algorithm string }

func newReplay(t testing.TB, store quota.Store) *replay {
	return &replay{TB: t, store: store, run: rand.Text(), kept: map[id]quota.State{}}
}

func idOf(c *quota.Charge) id {
	return id{c.Rule, c.StoredKey(), c.Limit.StoredName(), c.Limit.Algorithm.Name()}
}

// charge returns a charge whose key no other test run uses.
func (r *replay) charge(key string, l quota.Limit, cost int64) quota.Charge {
	return quota.Charge{Rule: "storetest", Key: r.run + key, Limit: l, Cost: cost}
}

// takeOne evaluates a single charge that does not wait.
func (r *replay) takeOne(key string, l quota.Limit, cost int64) *quota.Transaction {
	r.Helper()
	return r.takeAll(0, r.charge(key, l, cost))
}

// takeAll evaluates charges in one transaction, which may wait for up to the given duration.
func (r *replay) takeAll(within time.Duration, charges ...quota.Charge) *quota.Transaction {
	r.Helper()
	t := &quota.Transaction{Charges: charges, Within: within}
	r.take(t)
	return t
}

// take makes the store evaluate t. It fails the test unless the replay makes the same decisions.
func (r *replay) take(t *quota.Transaction) {
	r.Helper()
	want := question(t)
	if err := r.store.Take(r.Context(), t); err != nil {
		r.Fatalf("Take: got error %q, want none, for %s", err, describe(t))
	}
	r.decided(t, want)
}

// question returns a copy of t without its results.
func question(t *quota.Transaction) quota.Transaction {
	var q quota.Transaction
	q.SetQuestion(t)
	return q
}

// decided makes the replay evaluate want, a copy of t that question made before the store
// evaluated t. It fails the test unless t has the same results.
func (r *replay) decided(t *quota.Transaction, want quota.Transaction) {
	r.Helper()
	charges := want.Charges
	same := t.Mode == want.Mode && t.Within == want.Within && t.Most == want.Most && len(t.Cancels) == len(want.Cancels)
	if !same || !slices.Equal(t.Charges, charges) {
		r.Fatalf("Take changed its question: got %s, want %s", describe(t), describe(&want))
	}
	now := t.At.UnixMicro()
	if !t.At.Equal(time.UnixMicro(now)) {
		r.Fatalf("At: got %d ns after a whole microsecond, want none, for %s", t.At.Nanosecond()%1000, describe(t))
	}
	states := make([]quota.State, len(charges))
	for i := range charges {
		states[i] = r.kept[idOf(&charges[i])]
	}
	before := slices.Clone(states)
	spent := want.Decide(now, states)
	r.compare(t, &want, before)
	if !spent {
		return
	}
	for i := range charges {
		if charges[i].Cost == 0 && want.Mode != quota.ModeForget {
			continue
		}
		k := idOf(&charges[i])
		k.key = strings.Clone(k.key) // a test may overwrite the memory of the key
		r.kept[k] = states[i]
	}
}

// compare fails the test unless t and want have the same results. The states are those before the
// transaction.
func (r *replay) compare(t, want *quota.Transaction, before []quota.State) {
	r.Helper()
	now := t.At.UnixMicro()
	if got, want := len(t.Decisions), len(t.Charges); got != want {
		r.Fatalf("Take: got %d decisions, want %d, for %s", got, want, describe(t))
	}
	for i := range t.Charges {
		if !r.compared {
			r.compared, r.fellBack = true, t.Decisions[i].FellBack
		}
		want.Decisions[i].FellBack = r.fellBack
		if got, want := t.Decisions[i], want.Decisions[i]; got != want {
			r.Fatalf("at %d µs, charge %d:\ngot  %+v\nwant %+v\nfor %s\nwhen its state was %+v",
				now, i, got, want, describe(t), before[i])
		}
	}
	if t.Wait != want.Wait || len(t.Undo) != len(want.Undo) {
		r.Fatalf("at %d µs: got Wait %v and %d Undo, want %v and %d, for %s", now, t.Wait, len(t.Undo), want.Wait, len(want.Undo), describe(t))
	}
	if t.Granted != want.Granted {
		r.Fatalf("at %d µs: got Granted %d, want %d, for %s", now, t.Granted, want.Granted, describe(t))
	}
}

// takeError evaluates t, which must fail, and returns the error.
func (r *replay) takeError(ctx context.Context, t *quota.Transaction) error {
	r.Helper()
	err := r.store.Take(ctx, t)
	if err == nil {
		r.Fatalf("Take: got no error, want one, for %s", describe(t))
	}
	return err
}

// checkResults checks those results of t that do not depend on time: whether all charges were
// spent, and how many units remain under each.
func (r *replay) checkResults(t *quota.Transaction, allowed bool, remaining ...int64) {
	r.Helper()
	if got := t.Allowed(); got != allowed {
		r.Errorf("got Allowed %v, want %v, for %s", got, allowed, describe(t))
	}
	for i, want := range remaining {
		if got := t.Decisions[i].Remaining; got != want {
			r.Errorf("charge %d: got Remaining %d, want %d, for %s", i, got, want, describe(t))
		}
	}
}

// describe returns t without its results as text, with long names shortened.
func describe(t *quota.Transaction) string {
	var b strings.Builder
	mode := fmt.Sprintf("in mode %d", t.Mode)
	if t.Mode <= quota.ModeForget {
		mode = [...]string{"within " + t.Within.String(), "peeked at", fmt.Sprintf("at most %d times", t.Most), "forced", "forgotten"}[t.Mode]
	}
	fmt.Fprintf(&b, "%d charges %s", len(t.Charges), mode)
	for i := range t.Charges {
		c := &t.Charges[i]
		l := c.Limit.Named("")
		fmt.Fprintf(&b, "\n%4d. rule %.80q, key %.80q, limit %.80q of %v, cost %d", i, c.Rule, c.Key, c.Limit.Name, l, c.Cost)
		if c.Headroom != 0 {
			fmt.Fprintf(&b, ", headroom %d", c.Headroom)
		}
		if c.Spent != 0 {
			fmt.Fprintf(&b, ", of %d µs", c.Spent)
		}
	}
	return b.String()
}
