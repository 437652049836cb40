package memstore

import (
	"context"

	"github.com/seed83679106/weir"
)

// TakeEach makes Store a weir.Batcher. In memory a batch is no cheaper than its
// transactions one by one, but weir.Coalesce then works in tests as it does with Redis.
func (s *Store) TakeEach(ctx context.Context, ts []*weir.Transaction) []error {
	var errs []error
	for i, t := range ts {
		if err := s.Take(ctx, t); err != nil {
			if errs == nil {
				errs = make([]error, len(ts))
			}
			errs[i] = err
		}
	}
	return errs
}
