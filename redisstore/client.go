package redisstore

import (
	"fmt"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"
)

// ClientOptions returns settings for a client that serves a limiter: nothing is
// sent twice, nothing takes longer than timeout (0 means 50 ms), and a Redis that
// is away is noticed at once. Use them with redis.NewUniversalClient, or copy
// what differs into the options of a client that exists.
//
// With go-redis' defaults a call takes 1.7 s where connections are refused and
// 5 s where Redis does not answer, and a script that timed out is sent up to four
// times. A Store bounds that, at the price of a goroutine a call.
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
		DialTimeout:              timeout,
		ReadTimeout:              timeout,
		WriteTimeout:             timeout,
		PoolTimeout:              timeout,
		ContextTimeoutEnabled:    true,
	}
}

// Warnings says which settings of the client work against the timeout: what
// takes longer than it goes on in a goroutine after Take has returned. It is
// empty for ClientOptions.
func (s *Store) Warnings() []string {
	var w []string
	check := func(contextTimeout bool, retries, dials int, timeouts map[string]time.Duration) {
		if !contextTimeout {
			w = append(w, "ContextTimeoutEnabled is off: a deadline does not stop a command in flight")
		}
		if retries > 0 {
			w = append(w, fmt.Sprintf("MaxRetries is %d: other commands are sent again; a charge never is", retries))
		}
		if dials > 1 {
			w = append(w, fmt.Sprintf("DialerRetries is %d: a refused connection is tried again before it is reported", dials))
		}
		for _, name := range []string{"DialTimeout", "ReadTimeout", "WriteTimeout", "PoolTimeout"} {
			if timeouts[name] > s.timeout {
				w = append(w, fmt.Sprintf("%s is %v, longer than the store's %v", name, timeouts[name], s.timeout))
			}
		}
	}
	switch rdb := s.rdb.(type) {
	case *redis.Client:
		o := rdb.Options()
		check(o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries, map[string]time.Duration{
			"DialTimeout": o.DialTimeout, "ReadTimeout": o.ReadTimeout, "WriteTimeout": o.WriteTimeout, "PoolTimeout": o.PoolTimeout})
	case *redis.ClusterClient:
		o := rdb.Options()
		check(o.ContextTimeoutEnabled, 0, o.DialerRetries, map[string]time.Duration{
			"DialTimeout": o.DialTimeout, "ReadTimeout": o.ReadTimeout, "WriteTimeout": o.WriteTimeout, "PoolTimeout": o.PoolTimeout})
	case *redis.Ring:
		o := rdb.Options()
		check(o.ContextTimeoutEnabled, o.MaxRetries, o.DialerRetries, map[string]time.Duration{
			"DialTimeout": o.DialTimeout, "ReadTimeout": o.ReadTimeout, "WriteTimeout": o.WriteTimeout, "PoolTimeout": o.PoolTimeout})
	}
	return w
}
