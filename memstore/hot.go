package memstore

import (
	"math"
	"math/bits"
	"sync/atomic"

	"github.com/seed83679106/weir/quota"
)

// When many processors charge the same key, they spend most of the time waiting for the lock of the
// key's shard. The shard therefore promotes the state of such a key to a hot state, a single word
// that is charged by a compare-and-swap without the lock. A caller that holds the lock and needs
// the state's slot first writes the hot state back to the slot. This is called a recall. For
// transactions that have one charge of a meter and do not wait, a hot state makes the same
// decisions as takeMeter.
//
// The state of a key that is refused repeatedly is promoted even if no caller waits for the lock,
// because a hot state is usually not written when it refuses a charge.

// A shard promotes a state after promoteAfter consecutive decisions about that state. Only two
// kinds of decisions count: refusals, and charges that had to wait for the lock. A promotion
// allocates memory and computes a greatest common divisor. Even if each promotion is followed by a
// recall, this happens at most once in eight decisions.
const promoteAfter = 8

// The word of a hot state contains the instant of the last charge, the rank, and the debt at that
// instant.
const (
	debtBits   = 42
	rankShift  = debtBits
	sinceShift = debtBits + 2

	mostDebt  = 1<<debtBits - 1
	mostSince = 1<<(64-sinceShift) - 1 // µs, about a second
	recalled  = math.MaxUint64         // no state has this rank
)

// A hot value holds a hot state. The debt is counted in steps: a step is the greatest common
// divisor of the meter's period and quota, in parts of a unit. Charges and draining change the debt
// by whole steps, so a word can hold it exactly. The constant fields fill a cache line, so a charge
// invalidates only the line that contains the word.
type hot struct {
	id uint64 // the fingerprint
	meter
	step             int64 // in parts of a unit
	unitSteps, drain int64 // number of steps in a unit, and number of steps that drain in a µs
	base             int64 // the instant in the word is in µs after base

	word atomic.Uint64
	_    [56]byte
}

// promote counts a decision that was just made with the meter m about the state in the slot sl.
// After promoteAfter such decisions, the state becomes a hot state if it fits into a word.
func (sh *shard) promote(m *meter, sl *slot, now int64) {
	if sh.repeated != sl.id {
		sh.repeated, sh.times = sl.id, 0
	}
	if sh.times++; sh.times < promoteAfter {
		return
	}
	sh.times = 0
	step := m.period
	for b := m.quota; b != 0; {
		step, b = b, step%b
	}
	full := m.size*m.period + min(m.period, m.quota) - 1
	if full/step > mostDebt || sl.b%step != 0 || sl.at > now || sl.reset() != sl.at+m.wait(sl.a, sl.b) {
		return
	}
	sh.recall(now)
	h := &hot{id: sl.id, meter: *m, step: step, unitSteps: m.period / step, drain: m.quota / step, base: sl.at}
	h.word.Store(uint64(sl.rank())<<rankShift | uint64(sl.a*h.unitSteps+sl.b/step))
	sh.hot.Store(h)
}

// If the shard has a hot state, recall writes it back to its slot. The caller holds the lock. If
// the time since the base no longer fits into the word, the next refusal, or the next charge that
// waits for the lock, promotes the state again.
func (sh *shard) recall(now int64) {
	h := sh.hot.Load()
	if h == nil {
		return
	}
	sh.hot.Store(nil)
	w := h.word.Swap(recalled)
	sl, steps := sh.table.find(h.id), int64(w&mostDebt)
	sl.at, sl.a, sl.b = h.base+int64(w>>sinceShift), steps/h.unitSteps, steps%h.unitSteps*h.step
	sl.fate = (sl.at+h.wait(sl.a, sl.b))<<fateBits | int64(w>>rankShift)&rankMask
	sh.last = max(sh.last, sl.at)
	if now-h.base > mostSince {
		sh.repeated, sh.times = h.id, promoteAfter-1
	}
}

// take evaluates t, which has one charge of the meter m, and returns true. If the state was
// recalled, or if the hot state cannot evaluate t, take returns false, and the caller must take the
// lock.
func (h *hot) take(t *quota.Transaction, m *meter, clock int64) bool {
	cost := t.Charges[0].Cost
	if !h.isFor(t, m, cost) {
		return false
	}
	for {
		w := h.word.Load()
		last, now := h.base+int64(w>>sinceShift), clock
		if uint64(last-now) < 1e6 { // see shard.instant
			now = last
		}
		if w == recalled || now < last {
			return false
		}
		steps := h.stepsAfter(w&mostDebt, now-last)
		d := debt{units: steps / h.unitSteps, parts: steps % h.unitSteps * h.step}
		allowed, rank, next := m.allows(&d, cost), int64(w>>rankShift)&rankMask, w
		switch {
		case !allowed && steps > 0:
			next = w&^(rankMask<<rankShift) | refusing<<rankShift
		case allowed && cost > 0:
			if now-h.base > mostSince {
				return false
			}
			if steps == 0 {
				rank = someLeft
			}
			if d.units += cost; m.lacksUnits(&d, 1) {
				rank = max(rank, noneLeft)
			}
			next = uint64(now-h.base)<<sinceShift | uint64(rank)<<rankShift | uint64(steps+cost*h.unitSteps)
		}
		if next == w || h.word.CompareAndSwap(w, next) {
			prepare(t, now)
			m.explain(&t.Decisions[0], &d, now, cost, allowed)
			return true
		}
	}
}

// isFor reports whether the hot state can evaluate t, that is, whether t has a charge of the same
// meter and does not wait.
func (h *hot) isFor(t *quota.Transaction, m *meter, cost int64) bool {
	return *m == h.meter && atOnce(t) && m.decides(cost)
}

// stepsAfter returns how many of the given steps of debt remain after the given number of µs.
func (h *hot) stepsAfter(steps uint64, micros int64) int64 {
	hi, gone := bits.Mul64(uint64(micros), uint64(h.drain))
	if hi > 0 || gone >= steps {
		return 0
	}
	return int64(steps - gone)
}
