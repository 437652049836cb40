package redisstore

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// ClientOptions returns client settings that are suitable for a Store. Pass them to
// redis.NewUniversalClient, or copy the fields into your client's options. The timeout argument
// should be the Store's Options.Timeout; 0 means 50 ms. With these settings, the client reports a
// refused connection immediately and keeps two idle connections ready. It allows up to a second for
// connecting, even if the timeout is shorter.
//
// Whatever the client's settings, a Store observes its Timeout and never spends a charge twice.
// With the default settings of go-redis, however, the client takes 1.7 s to report a refused
// connection.
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
		DialTimeout:              queue.ConnectTime,
		ReadTimeout:              timeout + queue.Lateness,
		WriteTimeout:             timeout + queue.Lateness,
		PoolTimeout:              timeout,
		PoolSize:                 queue.MaxCalls,
		MinIdleConns:             2,
		ContextTimeoutEnabled:    true,
	}
}

// Warnings returns one sentence for each client setting that makes the store slower or less
// reliable. It returns nil for a client that was created with ClientOptions.
func (s *Store) Warnings() (w []string) {
	o := optionsOf(s.rdb)
	if o == nil {
		return nil
	}
	if !o.ContextTimeoutEnabled {
		w = append(w, "ContextTimeoutEnabled is off: commands go through a copy of the client that has the store's timeouts and none of the client's hooks")
	}
	if o.DialerRetries > 1 {
		w = append(w, fmt.Sprintf("DialerRetries is %d: a refused connection is tried again before it is reported", o.DialerRetries))
	}
	if o.DialTimeout > 2*queue.ConnectTime {
		w = append(w, fmt.Sprintf("DialTimeout is %v: an attempt to connect that gets no answer holds a place in the pool for as long", o.DialTimeout))
	}
	return w
}

// Addrs returns the client's server addresses in sorted order, as host:port without passwords. For
// a Sentinel client, the only address is "FailoverClient". For client types that are not from
// go-redis, Addrs returns nil.
func (s *Store) Addrs() []string {
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		return []string{rdb.Options().Addr}
	case *redis.ClusterClient:
		return slices.Sorted(slices.Values(rdb.Options().Addrs))
	case *redis.Ring:
		return slices.Sorted(maps.Values(rdb.Options().Addrs))
	}
	return nil
}

// optionsOf returns the options that all kinds of clients have, or nil for an unknown kind.
func optionsOf(rdb redis.UniversalClient) *redis.Options {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return rdb.Options()
	case *redis.ClusterClient:
		o := rdb.Options()
		return &redis.Options{Username: o.Username, ContextTimeoutEnabled: o.ContextTimeoutEnabled, DialerRetries: o.DialerRetries, DialTimeout: o.DialTimeout}
	case *redis.Ring:
		o := rdb.Options()
		return &redis.Options{Username: o.Username, ContextTimeoutEnabled: o.ContextTimeoutEnabled, DialerRetries: o.DialerRetries, DialTimeout: o.DialTimeout}
	}
	return nil
}
