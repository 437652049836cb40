package scene

import (
	"context"

	"github.com/seed83679106/weir/quota"
)

// A memory is a quota.Store with the clock of the scene, so that the scene can be paused,
// stepped and repeated. The caller holds the lock of the scene.
type memory struct {
	now    int64 // µs since 1970
	states map[stateKey]quota.State
}

type stateKey struct{ rule, key, limit, algorithm string }

func (m *memory) Take(ctx context.Context, t *quota.Transaction) error {
	if err := t.Validate(); err != nil {
		return err
	}
	keys, states := make([]stateKey, len(t.Charges)), make([]quota.State, len(t.Charges))
	for i, c := range t.Charges {
		keys[i] = stateKey{c.Rule, c.Key, c.Limit.StoredName(), c.Limit.Algorithm.Name()}
		states[i] = m.states[keys[i]]
	}
	if t.Decide(m.now, states) {
		for i, key := range keys {
			if t.Charges[i].Cost != 0 {
				m.states[key] = states[i]
			}
		}
	}
	return nil
}

// A counted store counts its calls. The caller holds the lock of the scene.
type counted struct {
	quota.Store
	n int
}

func (c *counted) Take(ctx context.Context, t *quota.Transaction) error {
	c.n++
	return c.Store.Take(ctx, t)
}

// A told store answers each question with the same Transaction, so that a Limiter can
// answer one request in every dialect.
type told struct{ quota.Transaction }

func (d told) Take(_ context.Context, t *quota.Transaction) error {
	t.Decisions = append(t.Decisions[:0], d.Decisions...)
	t.At = d.At
	return nil
}
