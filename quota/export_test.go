package quota

import "context"

// Joined returns a Store that sends every transaction through the shared calls of store,
// which Coalesce has made, even when no other call is under way.
func Joined(store *CoalescedStore) Store { return joining{store} }

// Single returns store, which then shares all calls but one at a time.
func Single(store *CoalescedStore) *CoalescedStore {
	for i := range store.shards {
		store.shards[i].alone = mostAlone - 1 // as if so many calls never ended
	}
	return store
}

type joining struct{ c *CoalescedStore }

func (j joining) Take(ctx context.Context, t *Transaction) error {
	if len(t.Charges) == 0 {
		return j.c.Take(ctx, t)
	}
	return j.c.join(ctx, j.c.shard(&t.Charges[0]), t)
}

// Remembers reports whether h refuses c from memory.
func Remembers(h *HybridStore, c Charge) bool {
	s, id, _ := h.place(c.names(), c.Key)
	b, found := s.get(id)
	return found && blockRefuses(&b, &c, hashLimit(h.seed, c.Limit), 0, h.now())
}

// Published reports whether h has published a block, expired or not.
func Published(h *HybridStore) bool {
	for i := range h.shards {
		if h.shards[i].published.Load() != nil {
			return true
		}
	}
	return false
}

// ResetHeldLog lets the next warning about held units pass.
func ResetHeldLog() { heldLog.Reset() }

// The interfaces that package optional describes: see TestOptional.
type (
	Validator   = validator
	Stepper     = stepper
	Queuer      = queuer
	Reserver    = reserver
	Canceler    = canceler
	Payer       = payer
	Indivisible = indivisible
	Forcer      = forcer
	Metered     = metered
	Concurrent  = concurrent
	Comparer    = comparer
	Batcher     = batcher
	Tracker     = tracker
	Watcher     = watcher
	Instant     = instant
	Server      = server
)

// Circuits returns how many servers b knows.
func (b *BreakerStore) Circuits() (n int) {
	b.parts.Range(func(any, any) bool { n++; return true })
	return n
}
