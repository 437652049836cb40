package main

import (
	"context"
	"sync"
	"time"
)

// A tierCache keeps the tiers of at most 100,000 accounts for a minute each. A request waits for the
// database for at most 100 ms. If the database fails, an account keeps its last known tier, an
// account that is not in the cache gets the Limits of the rule, and the database is queried again
// for the account after 5 s. To combine the queries of requests that come at once, use
// golang.org/x/sync/singleflight.
type tierCache struct {
	query func(ctx context.Context, id int) (tier, error)

	mu    sync.Mutex
	known map[int]known
}

type known struct {
	tier  tier
	until time.Time // when to query the database again
}

func (c *tierCache) tierOf(ctx context.Context, id int) tier {
	c.mu.Lock()
	k := c.known[id]
	c.mu.Unlock()
	if time.Now().Before(k.until) {
		return k.tier
	}
	ctx, cancel := context.WithTimeout(ctx, 100*time.Millisecond)
	defer cancel()
	if t, err := c.query(ctx, id); err == nil {
		k = known{t, time.Now().Add(time.Minute)}
	} else {
		k.until = time.Now().Add(5 * time.Second)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.known == nil || len(c.known) >= 100_000 {
		c.known = map[int]known{}
	}
	c.known[id] = k
	return k.tier
}
