package accesslog

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/seed83679106/weir/quota"
)

// counts is a quota.Store that takes the time from a log. The memory is bounded: states that have
// expired are dropped and, if there are still too many, so are the states that expire first. A key
// whose state was dropped may get more than its limits allow.
type counts struct {
	now       int64 // µs since 1970
	most      int   // states and entries of logs
	states    map[string]kept
	size      int // states and entries of logs
	sweep     int // the size at which states are forgotten
	forgotten int64

	keys    []string
	current []quota.State
}

func newCounts(most int) *counts {
	return &counts{most: most, states: map[string]kept{}, sweep: min(most, 1<<12)}
}

// kept holds a state and its expiry time, in µs since 1970.
type kept struct {
	quota.State
	until int64
}

func (s *kept) weight() int { return 1 + len(s.Log) }

func (c *counts) Take(_ context.Context, t *quota.Transaction) error {
	if err := t.Validate(); err != nil {
		return err
	}
	c.keys, c.current = c.keys[:0], c.current[:0]
	for i := range t.Charges {
		x := &t.Charges[i]
		c.keys = append(c.keys, strings.Join([]string{x.Rule, x.Limit.StoredName(), x.Limit.Algorithm.Name(), x.StoredKey()}, "\x00"))
		c.current = append(c.current, c.states[c.keys[i]].State)
	}
	if !t.Decide(c.now, c.current) {
		return nil
	}
	for i, key := range c.keys {
		if t.Charges[i].Cost == 0 {
			continue
		}
		s, old := kept{c.current[i], c.now + (t.Decisions[i].ResetAfter + time.Microsecond - 1).Microseconds()}, c.states[key]
		if old.until != 0 {
			c.size -= old.weight()
		}
		c.states[key], c.size = s, c.size+s.weight()
	}
	if c.size > c.sweep {
		c.forget()
	}
	return nil
}

// forget drops the states that have expired and, if there are still too many, further states, a quarter
// of them at a time.
func (c *counts) forget() {
	c.drop(c.now)
	before := len(c.states)
	for most := c.most; c.size > most; most = c.most * 3 / 4 {
		var ends []int64
		for _, s := range c.states {
			ends = append(ends, s.until)
		}
		slices.Sort(ends)
		c.drop(ends[len(ends)/4])
	}
	c.forgotten += int64(before - len(c.states))
	c.sweep = min(c.most, max(1<<12, 2*c.size))
}

// drop forgets the states that expire at t or earlier.
func (c *counts) drop(t int64) {
	for key, s := range c.states {
		if s.until <= t {
			delete(c.states, key)
			c.size -= s.weight()
		}
	}
}
