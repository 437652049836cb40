package storetest_test

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
)

// A store is a short quota.Store that passes the suite if it has no flaw.
type store struct {
	flaw   string
	mu     sync.Mutex
	states map[[4]string]quota.State
}

// flaws are mistakes that a store can make, each with the tests that must catch it. Each test
// of the suite must catch at least one flaw.
var flaws = []struct {
	flaw   string
	caught string
}{
	{"none", ""},
	{"spends what fits of a refused transaction", "Random"},
	{"spends nothing under the second charge", "Random ManyCharges"},
	{"decides in whole seconds, says microseconds", "Random Reset"},
	{"has a clock of seconds", "Clock Reset"},
	{"has a clock of milliseconds", "Clock"},
	{"says nanoseconds", "Clock Random"},
	{"counts in float32", "Bounds"},
	{"mixes rules", "Names Duplicate"},
	{"mixes limits", "Names ManyCharges Duplicate"},
	{"mixes algorithms", "Random Duplicate"},
	{"joins names with colons", "Names"},
	{"ends keys at NUL", "Names LongNames"},
	{"mixes letter case", "Names"},
	{"cuts long names", "LongNames"},
	{"uses Key in place of StoredKey", "LongNames"},
	{"keeps the caller's key", "KeyMemory"},
	{"no error for duplicates", "Duplicate"},
	{"spends before it looks for duplicates", "Duplicate"},
	{"does not validate", "Invalid"},
	{"does not look at the context", "Canceled"},
	{"refuses a look when nothing is left", "Random"},
	{"refunds nothing", "Random"},
	{"refunds the newest", "Random"},
	{"refunds all of one instant", "Random"},
	{"says it is spent when it decided", "Random"},
	{"forgets nothing", "Random"},
	{"forgets only what costs", "Random"},
	{"never says Never", "Random"},
	{"never waits", "Random"},
	{"spends reservations now", "Random"},
	{"has no queue", "Random"},
	{"counts requests that have ended", "Random"},
	{"counts requests after their lease", "Random"},
	{"keeps quotas apart", "Changed"},
	{"forgets a key when it refuses", "Random"},
	{"wants a charge", "NoCharges"},
	{"takes a Peek for a charge", "Random"},
	{"ignores AtMost", "Random"},
	{"ignores Headroom", "Single Random"},
	{"spends the Headroom", "Random"},
	{"ignores Force", "Single Random"},
	{"takes unknown modes for ModeSpend", "Invalid"},
	{"allocates decisions", "Decisions"},
	{"keeps old decisions", "Decisions NoCharges"},
	{"keeps the old wait", "Decisions NoCharges"},
	{"decides outside of its lock", "OneKey CrossingKeys"},
	{"decides a batch from its end", "Each"},
	{"decides a batch as one", "Each"},
	{"has one error for a batch", "Each"},
	{"takes 80 limits at most", "ManyLimits"},
	{"ignores stored names", "Names"},
	{"decides equal transactions once", "Each"},
}

func (s *store) id(c *quota.Charge) [4]string {
	id := [4]string{strings.Clone(c.StoredKey()), c.Rule, c.Limit.StoredName(), c.Limit.Algorithm.Name()}
	switch s.flaw {
	case "mixes rules":
		id[1] = ""
	case "mixes limits":
		id[2] = ""
	case "mixes algorithms":
		id[3] = ""
	case "joins names with colons":
		id = [4]string{strings.Join(id[:], ":")}
	case "ends keys at NUL":
		id[0], _, _ = strings.Cut(c.Key, "\x00")
	case "mixes letter case":
		id[0] = strings.ToLower(id[0])
	case "cuts long names":
		id[0] = c.Key[:min(len(c.Key), 1000)]
	case "uses Key in place of StoredKey":
		id[0] = strings.Clone(c.Key)
	case "keeps the caller's key":
		id[0] = c.Key
	case "ignores stored names":
		id[2] = c.Limit.Name
	case "keeps quotas apart":
		id[2] += fmt.Sprint(c.Limit.Quota)
	}
	return id
}

func (s *store) now() int64 {
	now := time.Now().UnixMicro()
	switch s.flaw {
	case "decides in whole seconds, says microseconds", "has a clock of seconds":
		return now - now%1_000_000
	case "has a clock of milliseconds":
		return now - now%1000
	}
	return now
}

func (s *store) validate(ctx context.Context, t *quota.Transaction) error {
	if err := ctx.Err(); err != nil && s.flaw != "does not look at the context" {
		return err
	}
	if s.flaw == "wants a charge" && len(t.Charges) == 0 {
		return errors.New("nothing to do")
	}
	if s.flaw == "takes 80 limits at most" && len(t.Charges) > 80 {
		return errors.New("main function has more than 200 local variables")
	}
	if s.flaw == "takes unknown modes for ModeSpend" && t.Mode > quota.ModeForget {
		t.Mode = quota.ModeSpend
	}
	err := t.Validate()
	switch {
	case s.flaw == "spends before it looks for duplicates" && errors.Is(err, quota.ErrDuplicate):
		s.decide(t)
	case s.flaw == "no error for duplicates" && errors.Is(err, quota.ErrDuplicate), s.flaw == "does not validate":
		return nil
	}
	return err
}

// Take implements quota.Store.
func (s *store) Take(ctx context.Context, t *quota.Transaction) error {
	if err := s.validate(ctx, t); err != nil {
		return err
	}
	charges, mode, within, most, wait := t.Charges, t.Mode, t.Within, t.Most, t.Wait
	s.spoilQuestion(t)
	before := len(t.Decisions)
	s.decide(t)
	t.Charges, t.Mode, t.Within, t.Most = charges, mode, within, most
	s.spoilAnswer(t, before, wait)
	return nil
}

// spoilAnswer applies the flaws that change a transaction after it is decided. before is
// the number of decisions that it had before, and wait is the Wait that it had.
func (s *store) spoilAnswer(t *quota.Transaction, before int, wait time.Duration) {
	switch s.flaw {
	case "decides in whole seconds, says microseconds":
		t.At = time.UnixMicro(time.Now().UnixMicro())
	case "says nanoseconds":
		t.At = t.At.Add(time.Nanosecond)
	case "keeps old decisions":
		t.Decisions = t.Decisions[:max(len(t.Decisions), min(before, cap(t.Decisions)))]
	case "keeps the old wait":
		t.Wait = max(t.Wait, wait)
	}
	for i := range t.Decisions {
		d := &t.Decisions[i]
		switch {
		case s.flaw == "says it is spent when it decided":
			d.At = t.At.UnixMicro()
		case s.flaw == "refuses a look when nothing is left" && d.Remaining == 0 && t.Charges[i].Cost == 0:
			d.Allowed = false
		case s.flaw == "never says Never" && d.RetryAfter == quota.Never:
			d.RetryAfter = 0
		}
	}
}

// spoilQuestion applies the flaws that change a transaction before it is decided.
func (s *store) spoilQuestion(t *quota.Transaction) {
	switch s.flaw {
	case "takes a Peek for a charge":
		s.spends(t, quota.ModePeek)
	case "ignores AtMost":
		s.spends(t, quota.ModeAtMost)
	case "ignores Force":
		s.spends(t, quota.ModeForce)
	case "allocates decisions":
		t.Decisions = nil
	case "never waits":
		t.Within = 0
	case "ignores Headroom", "spends the Headroom", "has no queue", "refunds nothing", "refunds the newest", "refunds all of one instant", "counts in float32",
		"counts requests that have ended", "counts requests after their lease":
		t.Charges = slices.Clone(t.Charges)
		for i := range t.Charges {
			s.spoilCharge(t, &t.Charges[i])
		}
	}
}

// spends makes a transaction of the mode spend.
func (s *store) spends(t *quota.Transaction, mode quota.Mode) {
	if t.Mode == mode {
		t.Mode = quota.ModeSpend
	}
}

// spoilCharge applies the flaws that change a charge of t.
func (s *store) spoilCharge(t *quota.Transaction, c *quota.Charge) {
	switch s.flaw {
	case "spends the Headroom":
		if c.Cost > 0 && c.Cost < quota.MaxTicks {
			c.Cost += c.Headroom
		}
		c.Headroom = 0
	case "ignores Headroom":
		c.Headroom = 0
	case "has no queue":
		if t.Within > 0 && c.Limit.Algorithm.Name() == "leaky-bucket" {
			c.Limit.Algorithm = meter{c.Limit.Algorithm}
		}
	case "counts requests that have ended":
		if c.Limit.Algorithm.Name() == "in-flight" {
			c.Cost = max(0, c.Cost)
		}
	case "counts requests after their lease":
		if c.Limit.Algorithm.Name() == "in-flight" {
			c.Limit.Period += time.Hour
		}
	case "refunds nothing":
		c.Cost = max(0, c.Cost)
	case "refunds the newest":
		c.Spent = 0
	case "refunds all of one instant":
		c.Spent = t.Charges[0].Spent
	case "counts in float32":
		if c.Cost < 1<<50 && c.Cost > -1<<50 {
			c.Cost = int64(float32(c.Cost))
		}
	}
}

// TakeEach implements optional.Batcher.
func (s *store) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
	errs := make([]error, len(ts))
	refused := false
	for i, t := range ts {
		switch s.flaw {
		case "decides a batch from its end":
			i, t = len(ts)-1-i, ts[len(ts)-1-i]
		case "decides a batch as one":
			if refused {
				t.Decisions = make([]quota.Decision, len(t.Charges))
				t.At, t.Wait = time.UnixMicro(s.now()), 0
				continue
			}
		case "decides equal transactions once":
			if i > 0 && slices.Equal(t.Charges, ts[i-1].Charges) && errs[i-1] == nil {
				t.Decisions, t.At, t.Wait = ts[i-1].Decisions, ts[i-1].At, ts[i-1].Wait
				continue
			}
		}
		errs[i] = s.Take(ctx, t)
		refused = refused || !t.Allowed()
		if errs[i] != nil && s.flaw == "has one error for a batch" {
			for j := range errs {
				errs[j] = errs[i]
			}
			break
		}
	}
	return errs
}

// meter wraps an algorithm so that it is no optional.Queuer.
type meter struct{ quota.Algorithm }

func (s *store) decide(t *quota.Transaction) {
	s.mu.Lock()
	defer s.mu.Unlock()
	ids := make([][4]string, len(t.Charges))
	states := make([]quota.State, len(t.Charges))
	for i := range t.Charges {
		ids[i] = s.id(&t.Charges[i])
		states[i] = s.states[ids[i]]
	}
	if s.flaw == "decides outside of its lock" {
		s.mu.Unlock()
		time.Sleep(time.Microsecond)
		s.mu.Lock()
	}
	if !t.Decide(s.now(), states) {
		s.refuse(t, ids, states)
		return
	}
	for i, id := range ids {
		switch {
		case t.Mode == quota.ModeForget && (s.flaw == "forgets nothing" || s.flaw == "forgets only what costs" && t.Charges[i].Cost == 0):
			continue
		case i > 0 && s.flaw == "spends nothing under the second charge":
			continue
		case t.Wait > 0 && s.flaw == "spends reservations now":
			states[i].At = t.At.UnixMicro()
		}
		s.states[id] = states[i]
	}
}

// refuse applies the flaws that change states although the transaction is refused.
func (s *store) refuse(t *quota.Transaction, ids [][4]string, states []quota.State) {
	switch s.flaw {
	case "spends what fits of a refused transaction":
		for i, id := range ids {
			one := quota.Transaction{Charges: t.Charges[i : i+1]}
			if one.Decide(t.At.UnixMicro(), states[i:i+1]) {
				s.states[id] = states[i]
			}
		}
	case "forgets a key when it refuses":
		for _, id := range ids {
			delete(s.states, id)
		}
	}
}

// A recorder is a testing.TB whose failures do not fail the test.
type recorder struct {
	testing.TB
	mu       sync.Mutex
	failures []string
}

func (r *recorder) Helper()                   {}
func (r *recorder) Logf(string, ...any)       {}
func (r *recorder) Skipf(string, ...any)      { runtime.Goexit() }
func (r *recorder) Failed() bool              { r.mu.Lock(); defer r.mu.Unlock(); return len(r.failures) > 0 }
func (r *recorder) Fatal(args ...any)         { r.Errorf("%s", fmt.Sprint(args...)); runtime.Goexit() }
func (r *recorder) Fatalf(f string, a ...any) { r.Errorf(f, a...); runtime.Goexit() }
func (r *recorder) Errorf(f string, a ...any) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.failures = append(r.failures, fmt.Sprintf(f, a...))
}

// failures runs a test on a new store with a flaw, and returns its failures.
func failures(t *testing.T, test storetest.Test, flaw string) []string {
	r := &recorder{TB: t}
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if err := recover(); err != nil {
				r.Errorf("panic: %v", err)
			}
		}()
		test.Run(r, &store{flaw: flaw, states: map[[4]string]quota.State{}})
	}()
	<-done
	return r.failures
}

// TestFlaws: each flaw of a store makes the tests fail that are named beside it, and every
// test of the suite catches a flaw.
func TestFlaws(t *testing.T) {
	idle := map[string]bool{}
	for _, test := range storetest.Tests() {
		idle[test.Name] = true
	}
	for _, f := range flaws {
		t.Run(f.flaw, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				checkCaught(t, f.flaw, strings.Fields(f.caught))
			})
		})
		for _, name := range strings.Fields(f.caught) {
			idle[name] = false
		}
	}
	for name, is := range idle {
		if is {
			t.Errorf("%s: got no flaw that it must catch, want one", name)
		}
	}
}

// checkCaught runs the suite on a store with a flaw. The named tests must fail. If no test is
// named, no test may fail.
func checkCaught(t *testing.T, flaw string, names []string) {
	t.Helper()
	// A bubble begins at midnight of 2000-01-01, when days and hours begin. Sleep past
	// that instant.
	time.Sleep(1234567890123 * time.Microsecond)
	caught := map[string][]string{}
	for _, test := range storetest.Tests() {
		if failed := failures(t, test, flaw); len(failed) > 0 {
			caught[test.Name] = failed
		}
	}
	if len(names) == 0 && len(caught) > 0 {
		t.Errorf("got failures %q, want none", caught)
	}
	for _, name := range names {
		if len(caught[name]) == 0 {
			t.Errorf("got no failure of %s, want one; caught by %q", name, slices.Sorted(maps.Keys(caught)))
		}
	}
}

// TestRun runs the suite with Run, outside of a bubble.
func TestRun(t *testing.T) {
	storetest.Run(t, func(*testing.T) quota.Store {
		return &store{states: map[[4]string]quota.State{}}
	})
}
