package redisstore

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClientOptions returns settings of a client that suit a limiter. A client with these
// settings reports at once that a connection is refused, may take up to a second to connect,
// even if Timeout is shorter, and keeps two connections ready. The argument timeout is
// Options.Timeout of the store, or 0 for 50 ms. Use the settings with
// redis.NewUniversalClient, or copy them into the options of your client.
//
// With any client a Store keeps to its Timeout, and spends no charge twice. But a client
// with the defaults of go-redis takes 1.7 s to report that connections are refused.
func ClientOptions(timeout time.Duration, addrs ...string) *redis.UniversalOptions {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	return &redis.UniversalOptions{
		Addrs:                    addrs,
		Protocol:                 2, // avoids a handshake that older servers refuse
		DisableIdentity:          true,
		MaintNotificationsConfig: &maintnotifications.Config{Mode: maintnotifications.ModeDisabled},
		MaxRetries:               -1,
		DialerRetries:            1,
		DialTimeout:              connectTime,
		ReadTimeout:              timeout + lateness,
		WriteTimeout:             timeout + lateness,
		PoolTimeout:              timeout,
		PoolSize:                 maxCalls,
		MinIdleConns:             2,
		ContextTimeoutEnabled:    true,
	}
}

// Warnings returns a sentence for each setting of the client that works against the store.
// It returns no sentence for a client with ClientOptions.
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
			w = append(w, fmt.Sprintf("DialTimeout is %v: an attempt to connect that gets no answer holds a place in the pool for as long", dial))
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
