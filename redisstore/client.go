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
		DialTimeout:              queue.ConnectTime,
		ReadTimeout:              timeout + queue.Lateness,
		WriteTimeout:             timeout + queue.Lateness,
		PoolTimeout:              timeout,
		PoolSize:                 queue.MaxCalls,
		MinIdleConns:             2,
		ContextTimeoutEnabled:    true,
	}
}

// Warnings returns a sentence for each setting of the client that works against the store.
// It returns no sentence for a client with ClientOptions.
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

// Addrs returns the addresses of the client, as host:port, sorted. They have no password. They are
// empty for a client that is not of go-redis; a client of Sentinel has the address FailoverClient.
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
