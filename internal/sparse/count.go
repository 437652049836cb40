package sparse

import (
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Reloads is how many reloads are under way. What a reload makes replaces what was made before, so both
// may have one name and differ.
var Reloads atomic.Int32

// A Count notices what is made again and again although it should be made once, such as a Limiter
// that a handler makes for each request. The zero Count is ready to use. It is a global of its
// package, because what is made for each request has nothing else in which a count could last.
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

// Add counts one more that was made under a name. It returns true once for each name: when limit
// were made within a minute.
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
