// Package outbound helps clients: it determines how many requests a client retries and when,
// remembers how many units are left according to a server, and closes the bodies of responses.
package outbound

import (
	"math"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"time"
)

// A Budget allows a share of requests to be sent again. It begins with 10 retries, so that a
// client with few requests can retry. It keeps at most 10 unused retries, so that a client that
// has not retried for a while cannot suddenly double its load.
type Budget struct {
	share   int64 // billionths of a retry for each request
	balance atomic.Int64
}

const (
	retry = 1e9
	kept  = 10 * retry
)

// NewBudget returns a Budget for a share of at most 1, or 0 for no bound.
func NewBudget(share float64) *Budget {
	b := &Budget{share: int64(math.Round(share * retry))}
	b.balance.Store(kept)
	return b
}

// Request records that a request is sent for the first time.
func (b *Budget) Request() { b.add(b.share) }

// Retry reports whether a request may be sent again and, if so, records the retry.
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

// Backoff returns the time to wait after n failures before the next attempt. It is 100 ms after the
// first failure and doubles with each further failure, up to 2 s. A random part of up to half of
// the time is subtracted, so that requests that failed together are not repeated together.
func Backoff(n int) time.Duration {
	d := min(100*time.Millisecond<<min(n-1, 5), 2*time.Second)
	return d - rand.N(d/2)
}

// Rewound returns the request to send again, if its body can be sent again.
func Rewound(r *http.Request) (*http.Request, bool) {
	if r.Body == nil || r.Body == http.NoBody {
		return r, true
	}
	if r.GetBody == nil {
		return nil, false
	}
	body, err := r.GetBody()
	if err != nil {
		return nil, false
	}
	again := *r
	again.Body = body
	return &again, true
}
