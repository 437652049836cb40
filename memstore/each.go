package memstore

import (
	"context"

	"github.com/seed83679106/weir"
)

// TakeEach decides ts one after the other, as weir.Batcher requires. In memory a batch is
// no cheaper than its transactions one by one. With TakeEach, weir.Coalesce works in tests
// as it does with Redis.
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
