package envoy

import (
	"sync"
	"time"

	"github.com/seed83679106/weir/internal/period"
	"github.com/seed83679106/weir/internal/storedkey"
)

// An overCache remembers counters that exceed their limit until their windows end, so that a
// flood of refused calls does not reach the store. It is safe for concurrent use. A nil overCache
// remembers nothing.
//
// A remembered count is never larger than the count in the store, unless another process refunds
// hits. The cache therefore refuses nothing that the store would not refuse.
type overCache struct {
	max int

	mu       sync.Mutex
	counters map[counter]counted
}

// A counter identifies a count by its key and the length of its windows.
type counter struct {
	key    string
	period time.Duration
}

// counted holds the number of hits in a window, and the time at which the window ends on the clock
// of this process.
type counted struct {
	used uint64
	end  time.Time
}

func newOverCache(max int) *overCache {
	if max <= 0 {
		return nil
	}
	return &overCache{max: max, counters: map[counter]counted{}}
}

func (h *hit) counter() counter {
	return counter{storedkey.Of(string(h.key)), periods[h.proto.Unit]}
}

// recall reports whether a descriptor exceeds its limit according to the hits in the cache. If so,
// recall sets the result of the descriptor.
func (c *overCache) recall(h *hit, now time.Time) bool {
	if c == nil || h.refund {
		return false
	}
	k := h.counter()
	c.mu.Lock()
	defer c.mu.Unlock()
	seen, ok := c.counters[k]
	if !ok {
		return false
	}
	left := seen.end.Sub(now)
	if left <= 0 {
		delete(c.counters, k)
		return false
	}
	if seen.used+h.hits <= uint64(h.proto.RequestsPerUnit) { // the limit has been raised
		return false
	}
	h.used, h.reset, h.remembered = seen.used+h.hits, period.Seconds(left), true
	return true
}

// keep remembers the counter of a descriptor that exceeds its limit according to the store. The
// counter of a descriptor that has refunded hits is removed. The given time must be before the
// store's decision, so that the counter is never kept beyond the end of its window.
func (c *overCache) keep(h *hit, before time.Time) {
	if c == nil || !h.refund && h.used <= uint64(h.proto.RequestsPerUnit) {
		return
	}
	k := h.counter()
	c.mu.Lock()
	defer c.mu.Unlock()
	if h.refund {
		delete(c.counters, k)
		return
	}
	if len(c.counters) >= c.max {
		for other := range c.counters { // a random counter
			delete(c.counters, other)
			break
		}
	}
	left := k.period - time.Duration(h.t.At.UnixMicro()%k.period.Microseconds())*time.Microsecond
	c.counters[k] = counted{h.used, before.Add(left)}
}
