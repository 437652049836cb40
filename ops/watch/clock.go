package watch

import "time"

// A clock numbers intervals of equal length, the slots. It starts with slot 0 and never steps
// back. The caller holds a lock.
type clock struct {
	began time.Time
	every time.Duration // the length of a slot
	slot  int64         // at the last reading

	// While a decision is made from `from` up to `until`, in µs since 1970 on the clock of the
	// store, the slot has not changed. Reading the clock of this process for each request would
	// take as long as everything else that Observe does.
	from, until int64
}

func newClock(every time.Duration) clock { return clock{began: time.Now(), every: every} }

// read returns the number of the current slot, and how long it has lasted.
func (c *clock) read() (slot int64, since time.Duration) {
	now := time.Since(c.began)
	c.slot, c.from, c.until = int64(now/c.every), 0, 0
	return c.slot, now % c.every
}

// at returns the number of the current slot, for a decision that a store has just made at the
// time at. It reads the clock of this process if that time is not in the interval of the last
// reading. The clock of a store may therefore be wrong, and may step. If a store does not say when
// it decided, the argument at is 0 or less.
func (c *clock) at(at int64) int64 {
	if at < c.from || at >= c.until || at <= 0 {
		_, since := c.read()
		c.from, c.until = at, at+(c.every-since).Microseconds()
	}
	return c.slot
}
