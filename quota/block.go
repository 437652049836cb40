package quota

import "time"

// A block is a refusal that a HybridStore remembers, in 56 bytes without a pointer.
type block struct {
	id    uint64 // of the state of the charge; 0 if the slot is empty
	asked uint64 // the hash of what was asked for: see the function hash
	at    int64  // the store's clock at HybridStore.start

	// Instants of 48 bits, in µs since HybridStore.start: when the store had answered, when
	// RetryAfter, NextAfter and ResetAfter are over, and when the refusals began.
	low  [5]uint32
	high [5]uint16

	rest uint16 // time between question and answer, in units of lagUnit, above two bits of flags
}

// The instants of a block.
const (
	answered = iota
	fits
	next
	reset
	began
)

// The flags of a block.
const (
	noneLeft = 1 << iota // Remaining is 0 until the instant next, minus the lag
	waited               // the refused caller was willing to wait
)

const (
	lagUnit    = 256       // µs
	flagBits   = 2         // how many flags there are
	maxInstant = 1<<48 - 1 // 8.9 years

	// recheck is how long a refusal is answered from memory before the store is
	// asked again.
	recheck = 10 * time.Second
)

func (b *block) instant(i int) int64 { return int64(b.high[i])<<32 | int64(b.low[i]) }

func (b *block) setInstant(i int, at int64) { b.low[i], b.high[i] = uint32(at), uint16(at>>32) }

func (b *block) flags() uint16 { return b.rest & (1<<flagBits - 1) }

// lag returns the time between question and answer, in µs.
func (b *block) lag() int64 { return int64(b.rest>>flagBits) * lagUnit }

// newBlock returns the block of a refusal. The next store was asked when the clock showed
// sent, and had answered when it showed done. ok is false if the answer took too long, or
// if an instant of the refusal is beyond what a block can hold.
func newBlock(d *Decision, at time.Time, sent, done int64, waits bool) (b block, ok bool) {
	lag := (done - sent + lagUnit - 1) / lagUnit
	if lag < 0 || lag >= 1<<(16-flagBits) || max(d.RetryAfter, d.NextAfter, d.ResetAfter).Microseconds() > maxInstant-done {
		return b, false
	}
	b.at, b.rest = at.UnixMicro()-done, uint16(lag)<<flagBits
	b.setInstant(answered, done)
	b.setInstant(fits, done+d.RetryAfter.Microseconds())
	b.setInstant(next, done+d.NextAfter.Microseconds())
	b.setInstant(reset, done+d.ResetAfter.Microseconds())
	b.setInstant(began, done)
	if d.Remaining == 0 {
		b.rest |= noneLeft
	}
	if waits {
		b.rest |= waited
	}
	return b, true
}

// until returns the instant at which the block expires: when RetryAfter is over, or after
// recheck if that is sooner. Both times count from when next was asked.
func (b *block) until() int64 {
	return min(b.instant(fits), b.instant(answered)+recheck.Microseconds()) - b.lag()
}

// decide fills in the decision on the refused charge at the instant now.
func (b *block) decide(d *Decision, now int64) {
	after := func(i int) time.Duration { return time.Duration(b.instant(i)-now) * time.Microsecond }
	d.At, d.Allowed, d.Remaining = b.at+now, false, -1
	d.RetryAfter, d.NextAfter, d.ResetAfter = after(fits), after(fits), after(reset)
	if b.flags()&noneLeft != 0 && now < b.instant(next)-b.lag() {
		d.Remaining, d.NextAfter = 0, after(next)
	}
}
