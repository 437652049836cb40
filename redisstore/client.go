package redisstore

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/redis/go-redis/v9/maintnotifications"

	"github.com/seed83679106/weir/redisstore/internal/queue"
)

// ClientOptions returns client settings that are suitable for a Store. Pass them to
// redis.NewUniversalClient, or copy the fields into your client's options. The timeout, where 0
// means 50 ms, is also the Store's unless Options.Timeout is set. With these settings, the client
// reports a refused connection immediately and keeps two idle connections ready. Connecting may
// take up to a second, even if the timeout is shorter.
//
// An address is a host and port, such as "localhost:6379", the path of a Unix socket, or a URL,
// such as "rediss://user:password@example.com:6379/0". The user, password, database and use of TLS
// in the first URL apply to all addresses; other settings in URLs are ignored. If an address cannot
// be used, New returns an error.
//
// A Store observes its Timeout and never spends a charge twice, whatever the client's settings.
// With the default settings of go-redis, however, the client takes 1.7 s to report a refused
// connection.
func ClientOptions(timeout time.Duration, addrs ...string) *redis.UniversalOptions {
	if timeout <= 0 {
		timeout = defaultTimeout
	}
	o := &redis.UniversalOptions{
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
	first := true
	for _, addr := range addrs {
		if strings.Contains(addr, "://") {
			url, err := redis.ParseURL(addr)
			if err != nil { // the error may contain the password, so New reports the address instead
				o.Addrs = append(o.Addrs, withoutUser(addr))
				continue
			}
			if first {
				first, o.Username, o.Password, o.DB, o.TLSConfig = false, url.Username, url.Password, url.DB, url.TLSConfig
			}
			addr = url.Addr
		} else if i := strings.LastIndex(addr, "@"); i >= 0 && addr[0] != '/' { // perhaps after a password, which errors would show
			addr = "…" + addr[i:]
		}
		o.Addrs = append(o.Addrs, cmp.Or(addr, empty)) // for "", go-redis would use localhost:6379
	}
	if o.TLSConfig != nil && len(addrs) > 1 {
		o.TLSConfig.ServerName = "" // the names of nodes differ
	}
	return o
}

// The constant empty replaces an empty address, such as the value of an environment variable that
// is not set. New then returns an error.
const empty = "(empty)"

// checkAddresses returns an error if go-redis can never connect to an address of a client.
func checkAddresses(rdb redis.UniversalClient) error {
	if single, ok := rdb.(*redis.Client); ok && single.Options().Network == "unix" {
		return nil
	}
	for _, addr := range addressesOf(rdb) {
		if addr == sentinels {
			continue
		}
		if _, port, err := net.SplitHostPort(addr); err != nil || port == "" || strings.ContainsAny(addr, "/@,'\" \t\r\n") {
			return fmt.Errorf("redisstore: the address %q can't be used; want host:port, such as localhost:6379, "+
				"a URL such as redis://localhost:6379, or the path of a socket", withoutUser(addr))
		}
	}
	return nil
}

// withoutUser returns an address without any part that may be a password. For a URL, it returns
// only the scheme.
func withoutUser(addr string) string {
	if scheme, _, ok := strings.Cut(addr, "://"); ok {
		return scheme + "://"
	}
	return addr[strings.LastIndex(addr, "@")+1:]
}

// Warnings returns one sentence for each client setting that makes the store slower or less
// reliable. For a client that was created with ClientOptions, Warnings returns nil.
func (s *Store) Warnings() (w []string) {
	o := optionsOf(s.rdb)
	if o == nil {
		return nil
	}
	if !o.ContextTimeoutEnabled {
		w = append(w, "ContextTimeoutEnabled is off: commands go through a copy of the client "+
			"that has the store's timeouts and none of the client's hooks")
	}
	if d := timeoutOf(o); d != 0 && d != s.timeout {
		w = append(w, fmt.Sprintf("ClientOptions got a timeout of %v, and Options.Timeout is %v: use one value for both", d, s.timeout))
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
func (s *Store) Addrs() []string { return addressesOf(s.rdb) }

const sentinels = "FailoverClient" // the address that go-redis assigns to a Sentinel client

func addressesOf(rdb redis.UniversalClient) []string {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return []string{rdb.Options().Addr}
	case *redis.ClusterClient:
		return slices.Sorted(slices.Values(rdb.Options().Addrs))
	case *redis.Ring:
		return slices.Sorted(maps.Values(rdb.Options().Addrs))
	}
	return nil
}

// timeoutOf returns the timeout that was passed to ClientOptions, or 0 if ClientOptions did not
// create the client's options.
func timeoutOf(o *redis.Options) time.Duration {
	if o == nil || o.ReadTimeout != o.PoolTimeout+queue.Lateness {
		return 0
	}
	return o.PoolTimeout
}

// optionsOf returns the options of a client that all types of clients have in common, or nil if the
// type is unknown.
func optionsOf(rdb redis.UniversalClient) *redis.Options {
	switch rdb := rdb.(type) {
	case *redis.Client:
		return rdb.Options()
	case *redis.ClusterClient:
		o := rdb.Options()
		return &redis.Options{Username: o.Username, ContextTimeoutEnabled: o.ContextTimeoutEnabled, DialerRetries: o.DialerRetries,
			DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, PoolTimeout: o.PoolTimeout}
	case *redis.Ring:
		o := rdb.Options()
		return &redis.Options{Username: o.Username, ContextTimeoutEnabled: o.ContextTimeoutEnabled, DialerRetries: o.DialerRetries,
			DialTimeout: o.DialTimeout, ReadTimeout: o.ReadTimeout, PoolTimeout: o.PoolTimeout}
	}
	return nil
}
