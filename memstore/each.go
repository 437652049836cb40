package memstore

import (
	"context"

	"github.com/seed83679106/weir/quota"
)

// TakeEach implements optional.Batcher by calling Take for one transaction after another. TakeEach
// saves no time, but allows tests to use quota.Coalesce without Redis.
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
