package redisstore

import (
	"bytes"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
)

// TakeEach makes a Store a weir.Batcher: it decides ts as if Take were called for
// one after the other, in one round trip. Transactions that ask the same of one key
// are decided in one step, see Additive. Timeout bounds the whole of it. In a
// cluster the keys are asked at the same time, each by calls of its own.
func (s *Store) TakeEach(ctx context.Context, ts []*weir.Transaction) []error {
	errs := make([]error, len(ts))
	if err := ctx.Err(); err != nil {
		for i := range errs {
			errs[i] = err
		}
		return errs
	}
	budget, cancel := context.WithTimeoutCause(ctx, s.timeout, ErrTimeout)
	defer cancel()
	groups := s.group(ts, errs)
	if s.multiSlot {
		var wg sync.WaitGroup
		for _, line := range lines(groups, ts) {
			wg.Go(func() {
				for _, g := range line {
					s.decideGroup(budget, g, ts, errs)
				}
			})
		}
		wg.Wait()
	} else {
		s.decideGroups(budget, groups, ts, errs)
	}
	failed := false
	for i, err := range errs {
		if err != nil {
			errs[i], failed = s.timeoutCause(ctx, budget, err), true
		}
	}
	if !failed {
		return nil
	}
	return errs
}

// A group is decided by one call.
type group struct {
	call
	of []int // indexes of transactions, all alike
}

// group has transactions that are alike decided by one call, if none between them
// charges a key of theirs. Those that are not valid get their error.
func (s *Store) group(ts []*weir.Transaction, errs []error) (groups []*group) {
	last := map[string]*group{} // that charges a key
	around := []int64{time.Now().UnixMicro()}
	for i, t := range ts {
		if errs[i] = t.Validate(); errs[i] != nil {
			continue
		}
		if len(t.Charges) == 0 {
			t.Decide(around[0], nil)
			continue
		}
		g := &group{of: []int{i}}
		if g.call, errs[i] = s.newCall(t, longestWait(t), 1, around); errs[i] != nil {
			continue
		}
		if other := last[g.keys[0]]; g.additive && other != nil && other.alike(&g.call) {
			other.of = append(other.of, i)
			continue
		}
		groups = append(groups, g)
		for _, key := range g.keys {
			last[key] = g
		}
	}
	for _, g := range groups {
		if n := len(g.of); n > 1 { // what was valid once is so again
			g.call, _ = s.newCall(ts[g.of[0]], 0, int64(n), around)
		}
	}
	return groups
}

// alike reports whether two calls ask the same of the same keys.
func (c *call) alike(d *call) bool {
	return c.script == d.script && slices.Equal(c.keys, d.keys) && slices.EqualFunc(c.args, d.args, func(a, b any) bool {
		if a, ok := a.([]byte); ok {
			b, _ := b.([]byte)
			return bytes.Equal(a, b)
		}
		return a == b
	})
}

// lines divides groups by their keys: in each line they keep their order. Where
// one has several keys there is one line.
func lines(groups []*group, ts []*weir.Transaction) [][]*group {
	of := map[string]int{}
	var lines [][]*group
	for _, g := range groups {
		charges := ts[g.of[0]].Charges
		for i := range charges {
			if charges[i].Key != charges[0].Key {
				return [][]*group{groups}
			}
		}
		key := weir.StoredKey(charges[0].Key)
		k, ok := of[key]
		if !ok {
			k = len(lines)
			of[key] = k
			lines = append(lines, nil)
		}
		lines[k] = append(lines[k], g)
	}
	return lines
}

// decideGroup decides the transactions of a group by a call of its own.
func (s *Store) decideGroup(ctx context.Context, g *group, ts []*weir.Transaction, errs []error) {
	if len(g.of) == 1 {
		errs[g.of[0]] = s.takeMultiSlot(ctx, ts[g.of[0]])
		return
	}
	reply, err := s.run(ctx, &g.call)
	s.explainGroup(ctx, g, ts, errs, reply, err)
}

// decideGroups decides all transactions in one round trip, and asks again for
// those whose scripts Redis has lost.
func (s *Store) decideGroups(ctx context.Context, groups []*group, ts []*weir.Transaction, errs []error) {
	if len(groups) == 0 {
		return
	}
	cmds, err := s.sendGroups(ctx, groups)
	for i, g := range groups {
		var reply any
		e := err
		if e == nil {
			reply, e = cmds[i].Result()
		}
		s.explainGroup(ctx, g, ts, errs, reply, e)
	}
}

func (s *Store) sendGroups(ctx context.Context, groups []*group) ([]once, error) {
	cmds := make([]once, len(groups))
	sent := map[string]bool{}
	for i, g := range groups {
		// A script that Redis has not had from here is sent as it is: were it found
		// to be missing, those after it would be decided before.
		if _, known := s.known.Load(g.sha); known || sent[g.sha] {
			cmds[i] = newCommand(ctx, &g.call, "evalsha", g.sha)
		} else {
			cmds[i] = newCommand(ctx, &g.call, "eval", g.text)
			sent[g.sha] = true
		}
	}
	if err := s.process(ctx, groups[0].keys[0], cmds); err != nil {
		return nil, err
	}
	for sha := range sent {
		s.known.Store(sha, true)
	}
	var again []once
	var missing []int
	for i, g := range groups {
		if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
			missing = append(missing, i)
			again = append(again, newCommand(ctx, &g.call, "eval", g.text))
		}
	}
	if len(again) == 0 {
		return cmds, nil
	}
	for i, j := range missing {
		cmds[j] = again[i]
	}
	return cmds, s.process(ctx, groups[0].keys[0], again)
}

// explainGroup gives each transaction of a group the decision it has in its turn.
func (s *Store) explainGroup(ctx context.Context, g *group, ts []*weir.Transaction, errs []error, reply any, err error) {
	if err != nil {
		if _, ok := beyondEdges(err); ok {
			for _, i := range g.of {
				errs[i] = s.take(ctx, ts[i])
			}
			return
		}
		err = g.blame(&ts[g.of[0]].Charges[0], err)
	} else {
		of := make([]*weir.Transaction, len(g.of))
		for i, j := range g.of {
			of[i] = ts[j]
		}
		err = g.explain(reply, of...)
	}
	for _, i := range g.of {
		errs[i] = err
	}
}
