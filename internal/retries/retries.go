// Package retries bounds how many requests are sent again.
package retries

import (
	"math"
	"sync/atomic"
)

// A Budget lets a share of requests be sent again. It begins with 10 retries, and keeps at most
// 10 that were not used, so that a client with few requests can retry, and a client that had no
// reason to retry for a while cannot then double its load.
type Budget struct {
	share   int64 // billionths of a retry for each request
	balance atomic.Int64
}

const (
	retry = 1e9
	kept  = 10 * retry
)

// New returns a Budget. share is at most 1, or 0 for no bound.
func New(share float64) *Budget {
	b := &Budget{share: int64(math.Round(share * retry))}
	b.balance.Store(kept)
	return b
}

// Request notes that a request is sent for the first time.
func (b *Budget) Request() { b.add(b.share) }

// Retry reports whether a request may be sent again, and then notes it.
func (b *Budget) Retry() bool { return b.add(-retry) }

// add adds n to the balance. It returns false, and adds nothing, if the balance would be below 0.
func (b *Budget) add(n int64) bool {
	for {
		old := b.balance.Load()
		sum := min(old+n, kept)
		if sum < 0 {
			return false
		}
		if sum == old || b.balance.CompareAndSwap(old, sum) {
			return true
		}
	}
}
