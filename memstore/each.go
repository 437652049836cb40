package memstore

import (
	"context"

	"github.com/seed83679106/weir/quota"
)

// TakeEach implements quota.Batcher: it decides the transactions one after the other. In memory
// a batch is no cheaper than single transactions. The method is there so that tests can use
// quota.Coalesce as with Redis.
func (s *Store) TakeEach(ctx context.Context, ts []*quota.Transaction) []error {
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
