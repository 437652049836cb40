package quota

import "context"

// Joined returns a Store that sends every transaction through the shared calls of store,
// which Coalesce has made, even when no other call is under way.
func Joined(store *CoalescedStore) Store { return joining{store} }

type joining struct{ c *CoalescedStore }

func (j joining) Take(ctx context.Context, t *Transaction) error {
	if len(t.Charges) == 0 {
		return j.c.Take(ctx, t)
	}
	return j.c.join(ctx, j.c.lane(&t.Charges[0]), t)
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
