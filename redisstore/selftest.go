package redisstore

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/seed83679106/weir/quota"
)

// A selfTestResult is the result of a self-test with certain algorithms. It is reused, so that
// errors cause few self-tests.
type selfTestResult struct {
	until time.Time
	err   error // nil if Redis can make decisions
}

// classify finds out why Redis has answered without making a decision on t. If a self-test shows
// that Redis cannot make a decision even for a new key, the scripts do not work in this Redis, and
// the result wraps quota.ErrUnusable. Otherwise, classify returns err unchanged: the value of the
// key may be damaged, or another program may have written a value of another type.
func (s *Store) classify(ctx context.Context, t *quota.Transaction, err error) error {
	if !undecided(err) || s.misconfigured(err) != "" {
		return err
	}
	tested := s.tested(ctx, t.Charges)
	switch f := (*fault)(nil); {
	case tested == nil || !undecided(tested): // Redis can make decisions, or the test has not shown that it cannot
		return err
	case errors.As(err, &f):
		return &unusable{strings.TrimPrefix(f.where, "redisstore: "), cannotRun(tested)}
	}
	return &unusable{"rule " + strconv.Quote(t.Charges[0].Rule), cannotRun(tested)}
}

// tested returns the result of a self-test with the algorithms of charges. A result is reused for a
// minute, or for a second if Redis could not make decisions.
func (s *Store) tested(ctx context.Context, charges []quota.Charge) error {
	var names []string
	for i := range charges {
		names = append(names, charges[i].Limit.Algorithm.Name())
	}
	slices.Sort(names)
	name := strings.Join(slices.Compact(names), ", ")
	if last, ok := s.selfTests.Load(name); ok && time.Now().Before(last.(selfTestResult).until) {
		return last.(selfTestResult).err
	}
	r := selfTestResult{time.Now().Add(time.Minute), s.selfTest(ctx, charges)}
	if undecided(r.err) {
		r.until = time.Now().Add(time.Second)
	}
	if r.err == nil || undecided(r.err) { // after any other error, the test has no result
		s.selfTests.Store(name, r)
	}
	return r.err
}

// cannotRun explains the error of a self-test that has failed because Redis cannot make decisions.
func cannotRun(err error) error {
	if f := (*fault)(nil); errors.As(err, &f) { // the fault names the rule of scratch and a damaged state, which would mislead
		err = errors.New(strings.TrimPrefix(f.what, unreadable+": "))
	}
	return fmt.Errorf("the server cannot decide under this algorithm, whatever the key: %w", err)
}

// selfTest makes Redis evaluate some transactions for a new key, and compares the decisions with
// those of the Go code. It uses the algorithms of the charges, and the slot of the first charge's
// key. Finally, it deletes the value that it has created, which contains no charges of users.
func (s *Store) selfTest(ctx context.Context, charges []quota.Charge) error {
	charges = scratch(charges)
	n := len(charges)
	capacity := int64(0)
	for i := range charges {
		capacity = max(capacity, charges[i].Limit.Quota, charges[i].Limit.Burst)
	}
	steps := []struct {
		cost   int64
		within time.Duration
		mode   quota.Mode
	}{
		{cost: 1}, {cost: 2}, {cost: capacity + 1}, {cost: 0}, {cost: -1},
		{cost: 1, within: time.Hour}, {cost: 1}, {cost: 1}, {mode: quota.ModeForget},
	}
	ts := make([]*quota.Transaction, len(steps))
	for i, step := range steps {
		ts[i] = &quota.Transaction{Charges: slices.Clone(charges), Within: step.within, Mode: step.mode}
		for j := range n {
			ts[i].Charges[j].Cost = step.cost
		}
	}
	errs := make([]error, len(ts))
	evals := s.group(ts, errs)
	if slices.ContainsFunc(charges, func(c quota.Charge) bool { return isEdged(c.Limit.Algorithm) }) {
		for _, e := range evals { // a batch would decide those that need other windows after all others
			s.takeAlone(ctx, e, errs)
		}
	} else {
		s.decideAll(ctx, evals, errs)
	}
	if err := cmp.Or(errs...); err != nil {
		return err
	}
	states := make([]quota.State, n)
	for i, t := range ts {
		want := quota.Transaction{Charges: t.Charges, Within: t.Within, Mode: t.Mode}
		want.Decide(t.At.UnixMicro(), states)
		if !reflect.DeepEqual(t.Decisions, want.Decisions) || t.Wait != want.Wait {
			return faultOf(&t.Charges[0], fmt.Sprintf("Redis and Go decide differently about charge %d of a new key", i+1))
		}
	}
	return nil
}

// scratch returns charges with the same algorithms, under a rule with a random name. All of them
// have the same key, and therefore the same slot. The limits have small numbers, so anything that
// is left in Redis soon expires.
func scratch(charges []quota.Charge) []quota.Charge {
	rule := "weir-probe-" + rand.Text()
	scratched := make([]quota.Charge, 0, len(charges))
	for i, c := range charges {
		l := quota.Limit{Name: strconv.Itoa(i), Algorithm: c.Limit.Algorithm, Quota: 10, Period: time.Minute}
		if (&quota.Transaction{Charges: []quota.Charge{{Rule: rule, Limit: l}}}).Validate() != nil {
			l.Quota, l.Period, l.Burst = c.Limit.Quota, c.Limit.Period, c.Limit.Burst
		}
		scratched = append(scratched, quota.Charge{Rule: rule, Key: charges[0].Key, Limit: l})
	}
	return scratched
}
