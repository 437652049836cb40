package memstore

import (
	"context"

	"github.com/seed83679106/weir"
)

// TakeEach implements weir.Batcher: it decides the transactions one after the other. In memory
// a batch is no cheaper than single transactions. The method is there so that tests can use
// weir.Coalesce as with Redis.
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
