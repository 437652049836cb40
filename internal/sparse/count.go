package sparse

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Reloads is the number of reloads in progress. A Limiter that a reload creates replaces an
// earlier one, so the two may have the same name but different limits.
var Reloads atomic.Int32

// A Count detects repeated creation of values that should be created only once. For example, a
// handler might create a Limiter for each request. The zero Count is ready to use. Packages keep a
// Count in a global variable, because nothing else outlives the requests for which the values are
// created.
type Count struct {
	mu   sync.Mutex
	made map[string]*making
}

type making struct {
	since  time.Time
	n      int
	warned bool
}

// mostNames bounds the memory for names that change with each request.
const mostNames = 64

// Add counts one more value with this name. Add returns true once for each name, as soon as the
// number of values that were created within a minute has reached the given limit.
func (c *Count) Add(name string, limit int, now time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := c.made[name]
	if m == nil || !m.warned && now.Sub(m.since).Abs() > time.Minute {
		if len(c.made) >= mostNames {
			clear(c.made)
		}
		if c.made == nil {
			c.made = map[string]*making{}
		}
		m = &making{since: now}
		c.made[strings.Clone(name)] = m
	}
	m.n++
	if m.warned || m.n < limit {
		return false
	}
	m.warned = true
	return true
}
