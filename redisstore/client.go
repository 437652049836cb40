package redisstore

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClientOptions returns settings for a client that serves a limiter: the client notices at once
// that Redis is away, makes connections in time of their own, and keeps some ready. timeout is
// that of the store; 0 means 50 ms. Use them with redis.NewUniversalClient, or copy them into the
// options of your client.
//
// A Store keeps to its timeout with any client, and sends nothing twice. But a client with
// go-redis' defaults takes 1.7 s to report that connections are refused.
func ClientOptions(timeout time.Duration, addrs ...string) *redis.UniversalOptions {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &redis.UniversalOptions{
		Addrs:                    addrs,
		Protocol:                 2, // no handshake that older servers refuse
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MaxRetries:               -1,
		DialerRetries:            1,
		DialTimeout:              connectTime,
		ReadTimeout:              timeout + lateness,
		WriteTimeout:             timeout + lateness,
		PoolTimeout:              timeout,
		PoolSize:                 maxCalls,
		MinIdleConns:             minIdle,
		ContextTimeoutEnabled:    true,
	}
}

const minIdle = 2

// Warnings returns the settings of the client that work against the store. There are none with
// ClientOptions.
func (s *Store) Warnings() []string {
	var w []string
	check := func(contextTimeout bool, dials int, dial time.Duration) {
		if !contextTimeout {
			w = append(w, "ContextTimeoutEnabled is off: commands go through a copy of the client that has the store's timeouts and none of the client's hooks")
		}
		if dials > 1 {
			w = append(w, fmt.Sprintf("DialerRetries is %d: a refused connection is tried again before it is reported", dials))
		}
		if dial > 2*connectTime {
			w = append(w, fmt.Sprintf("DialTimeout is %v: a connection that is never made holds a place in the pool as long", dial))
		}
	}
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		o := rdb.Options()
		check(o.ContextTimeoutEnabled, o.DialerRetries, o.DialTimeout)
	case *redis.ClusterClient:
		o := rdb.Options()
		check(o.ContextTimeoutEnabled, o.DialerRetries, o.DialTimeout)
	case *redis.Ring:
		o := rdb.Options()
		check(o.ContextTimeoutEnabled, o.DialerRetries, o.DialTimeout)
	}
	return w
}
