package redisstore

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
)

// TakeEach makes a Store a weir.Batcher: it decides ts as if Take were called for
// one after the other, in one round trip. Like charges of meters, such as GCRA
// for one key, are decided in one step. Timeout bounds the whole of it. In a
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
	together := s.together(ts, errs)
	if s.spread {
		var wg sync.WaitGroup
		for _, line := range lines(together, ts) {
			wg.Go(func() {
				for _, g := range line {
					s.decideGroup(budget, g, ts, errs)
				}
			})
		}
		wg.Wait()
	} else {
		s.decideGroups(budget, together, ts, errs)
	}
	failed := false
	for i, err := range errs {
		if err != nil {
			errs[i], failed = s.late(ctx, budget, err), true
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
	direct *direct // nil for one transaction that has no such script
	of     []int   // indexes of transactions, all alike
}

// together puts the transactions of a key together, if all are alike and its
// script knows them. What is not valid gets its error.
func (s *Store) together(ts []*weir.Transaction, errs []error) (groups []*group) {
	type value struct{ rule, key string }
	scripts := make([]*direct, len(ts))
	alike := map[value]*direct{} // nil where transactions differ: they keep their order
	for i, t := range ts {
		if errs[i] = t.Validate(); errs[i] != nil {
			continue
		}
		d := s.directFor(t, withinOf(t))
		if d != nil && d.logs {
			d = nil // there is no script that takes many
		}
		scripts[i] = d
		for j := range t.Charges {
			v := value{t.Charges[j].Rule, weir.StoredKey(t.Charges[j].Key)}
			if other, ok := alike[v]; ok && other != d {
				alike[v] = nil
			} else {
				alike[v] = d
			}
		}
	}
	of := map[value]*group{}
	around := []int64{time.Now().UnixMicro()}
	for i, t := range ts {
		if errs[i] != nil {
			continue
		}
		if len(t.Charges) == 0 {
			t.Decide(around[0], nil)
			continue
		}
		v := value{t.Charges[0].Rule, weir.StoredKey(t.Charges[0].Key)}
		if d := scripts[i]; d == nil || alike[v] != d {
			g := &group{of: []int{i}}
			if g.call, errs[i] = s.compile(t, withinOf(t), around); errs[i] == nil {
				groups = append(groups, g)
			}
			continue
		}
		g := of[v]
		if g == nil {
			g = &group{call: call{script: scripts[i].script, keys: []string{s.key(&t.Charges[0])}}, direct: scripts[i]}
			of[v] = g
			groups = append(groups, g)
		}
		g.of = append(g.of, i)
	}
	for _, g := range groups {
		if len(g.of) > 1 {
			g.script, g.args = g.direct.many, []any{len(g.of)}
		}
	}
	return groups
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

// decideGroup decides the transactions of a group by a call of its own, or each
// by one where the states were not what its script knows.
func (s *Store) decideGroup(ctx context.Context, g *group, ts []*weir.Transaction, errs []error) {
	if g.direct == nil {
		errs[g.of[0]] = s.takeSpread(ctx, ts[g.of[0]])
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
	cmds := make([]once, len(groups))
	sent := map[string]bool{}
	for i, g := range groups {
		// A script that Redis has not had from here is sent as it is: were it found
		// to be missing, those after it would be decided before.
		if _, known := s.known.Load(g.script.sha); known || sent[g.script.sha] {
			cmds[i] = newCommand(ctx, &g.call, "evalsha", g.script.sha)
		} else {
			cmds[i] = newCommand(ctx, &g.call, "eval", g.script.text)
			sent[g.script.sha] = true
		}
	}
	err := s.process(ctx, groups[0].keys[0], cmds)
	if err == nil {
		for sha := range sent {
			s.known.Store(sha, true)
		}
	}
	var missing []int
	if err == nil {
		for i := range cmds {
			if redis.HasErrorPrefix(cmds[i].Err(), "NOSCRIPT") {
				missing = append(missing, i)
			}
		}
	}
	if len(missing) > 0 {
		again := make([]once, len(missing))
		for i, j := range missing {
			again[i] = newCommand(ctx, &groups[j].call, "eval", groups[j].script.text)
			cmds[j] = again[i]
		}
		err = s.process(ctx, groups[0].keys[0], again)
	}
	for i, g := range groups {
		var reply any
		e := err
		if e == nil {
			reply, e = cmds[i].Result()
		}
		s.explainGroup(ctx, g, ts, errs, reply, e)
	}
}

// explainGroup gives each transaction of a group the decision it has in its turn.
func (s *Store) explainGroup(ctx context.Context, g *group, ts []*weir.Transaction, errs []error, reply any, err error) {
	ask := false
	if err != nil {
		_, ask = beyondEdges(err)
	} else if n, no := reply.(int64); no && g.direct != nil {
		if n == 0 {
			g.direct.misses.Add(1)
		}
		ask = true
	}
	switch {
	case ask:
		for _, i := range g.of {
			errs[i] = s.take(ctx, ts[i])
		}
		return
	case err == nil && g.direct == nil:
		err = g.explain(ts[g.of[0]], reply)
	case err == nil:
		g.direct.hits.Add(1)
		now, spent, states, e := g.read(ts[g.of[0]], reply)
		if err = e; err == nil {
			for _, i := range g.of {
				if ts[i].Decide(now, states) {
					spent--
				}
			}
			if spent != 0 {
				err = fault(&ts[g.of[0]].Charges[0], "the script and the arithmetic disagree")
			}
		}
	}
	for _, i := range g.of {
		errs[i] = err
	}
}
