package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"reflect"
	"strings"
	"time"
	"unicode"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/overrides"
	"github.com/seed83679106/weir/redisstore"
)

// redisOptions are the flags about Redis.
type redisOptions struct {
	addrs   string
	prefix  string
	timeout time.Duration

	tls                    bool
	tlsCA, tlsCert, tlsKey string
	tlsServerName          string

	client redis.UniversalOptions // what the flags of clientFields set
	given  []string               // the fields of client that were set
}

// clientFields are the fields of redis.UniversalOptions that are flags, and what they are.
// A field that is not set has the value that redisstore.ClientOptions chooses.
var clientFields = []struct{ field, usage string }{
	{"Username", "`name` of the user at Redis"},
	{"Password", "`password` at Redis; better in the environment, because other users see command lines"},
	{"DB", "`number` of the database, not in a cluster"},
	{"MasterName", "`name` of the master, if redis-addrs are Sentinels"},
	{"SentinelUsername", "`name` of the user at the Sentinels"},
	{"SentinelPassword", "`password` at the Sentinels"},
	{"IsClusterMode", "the only address of redis-addrs is that of a cluster"},
	{"ClientName", "`name` of the connections, for CLIENT LIST"},
	{"Protocol", "`version` of the protocol: 2 or 3"},
	{"DisableIdentity", "don't tell Redis the name and version of the client library"},
	{"IdentitySuffix", "`text` after the name of the client library"},
	{"PoolSize", "largest `number` of connections to a node"},
	{"PoolTimeout", "longest `time` to wait for a connection; the default is redis-timeout"},
	{"PoolFIFO", "use connections in turn, not the last one first"},
	{"MinIdleConns", "`number` of connections that are kept ready"},
	{"MaxIdleConns", "largest `number` of unused connections; 0 is no bound"},
	{"MaxActiveConns", "largest `number` of connections, also while the pool is exhausted; 0 is no bound"},
	{"MaxConcurrentDials", "largest `number` of connections that are made at a time; 0 is redis-pool-size"},
	{"ConnMaxIdleTime", "`time` after which an unused connection is closed; 0 is 30m"},
	{"ConnMaxLifetime", "`time` after which a connection is closed; 0 is never"},
	{"ConnMaxLifetimeJitter", "largest `time` by which redis-conn-max-lifetime differs from connection to connection"},
	{"DialTimeout", "longest `time` to make a connection"},
	{"DialerRetries", "`number` of attempts to make a connection"},
	{"DialerRetryTimeout", "`time` between two attempts to make a connection; 0 is 100ms"},
	{"ReadTimeout", "longest `time` to wait for an answer; the default is 250ms more than redis-timeout"},
	{"WriteTimeout", "longest `time` to send a command; the default is 250ms more than redis-timeout"},
	{"ContextTimeoutEnabled", "the budget of a decision also bounds a command; without it redisstore needs a client of its own"},
	{"MaxRetries", "`number` of times that a command of overrides is sent again; -1 is none. A decision is never sent again"},
	{"MinRetryBackoff", "shortest `time` before a command is sent again; 0 is 8ms"},
	{"MaxRetryBackoff", "longest `time` before a command is sent again; 0 is 512ms"},
	{"ReadBufferSize", "`bytes` of the read buffer of a connection; 0 is 32 KiB"},
	{"WriteBufferSize", "`bytes` of the write buffer of a connection; 0 is 32 KiB"},
	{"MaxRedirects", "`number` of times that a command follows a slot that moves, in a cluster; 0 is 3"},
	{"FailingTimeoutSeconds", "`seconds` for which a cluster avoids a node that fails; 0 is 15"},
}

// flagOf returns the flag of a field: redis-pool-fifo of PoolFIFO.
func flagOf(field string) string {
	name := "redis"
	lower := false // the last letter was
	runes := []rune(field)
	for i, r := range runes {
		next := i+1 < len(runes) && unicode.IsLower(runes[i+1])
		if i == 0 || unicode.IsUpper(r) && (lower || next && i > 0) {
			name += "-"
		}
		lower = unicode.IsLower(r)
		name += string(unicode.ToLower(r))
	}
	return name
}

func (o *redisOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.addrs, "redis-addrs", "", "`host:port` of a Redis that several processes share; several, with commas, of a cluster or of Sentinels. Without it limits are counted in memory")
	fs.StringVar(&o.prefix, "redis-prefix", "weir:", "`text` that begins every key in Redis")
	fs.DurationVar(&o.timeout, "redis-timeout", 50*time.Millisecond, "longest `time` for a decision by Redis")
	fs.BoolVar(&o.tls, "redis-tls", false, "connect to Redis by TLS")
	fs.StringVar(&o.tlsCA, "redis-tls-ca", "", "`file` of the certificates that sign those of Redis; without it, those of the system")
	fs.StringVar(&o.tlsCert, "redis-tls-cert", "", "`file` of a certificate that Redis asks for")
	fs.StringVar(&o.tlsKey, "redis-tls-key", "", "`file` of the key of redis-tls-cert")
	fs.StringVar(&o.tlsServerName, "redis-tls-server-name", "", "`name` in the certificate of Redis, if it is not that of the address")
	o.client = *redisstore.ClientOptions(0)
	for _, c := range clientFields {
		name := flagOf(c.field)
		switch p := reflect.ValueOf(&o.client).Elem().FieldByName(c.field).Addr().Interface().(type) {
		case *string:
			fs.StringVar(p, name, *p, c.usage)
		case *int:
			fs.IntVar(p, name, *p, c.usage)
		case *bool:
			fs.BoolVar(p, name, *p, c.usage)
		case *time.Duration:
			fs.DurationVar(p, name, *p, c.usage)
		default:
			panic("weir: no flag can be a " + reflect.TypeOf(p).String())
		}
	}
}

// set notes that a flag was given.
func (o *redisOptions) set(name string) {
	for _, c := range clientFields {
		if flagOf(c.field) == name {
			o.given = append(o.given, c.field)
		}
	}
}

func (o *redisOptions) check() error {
	var errs []error
	if o.addrs == "" && len(o.given) > 0 {
		errs = append(errs, fmt.Errorf("-%s needs -redis-addrs", flagOf(o.given[0])))
	}
	if (o.tlsCert == "") != (o.tlsKey == "") {
		errs = append(errs, errors.New("-redis-tls-cert and -redis-tls-key need each other"))
	}
	if !o.tls && (o.tlsCA != "" || o.tlsCert != "" || o.tlsServerName != "") {
		errs = append(errs, errors.New("-redis-tls-ca, -redis-tls-cert and -redis-tls-server-name need -redis-tls"))
	}
	return errors.Join(errs...)
}

// universal returns the options of the client.
func (o *redisOptions) universal() (*redis.UniversalOptions, error) {
	u := redisstore.ClientOptions(o.timeout, strings.Split(o.addrs, ",")...)
	for _, field := range o.given {
		reflect.ValueOf(u).Elem().FieldByName(field).Set(reflect.ValueOf(o.client).FieldByName(field))
	}
	if !o.tls {
		return u, nil
	}
	u.TLSConfig = &tls.Config{ServerName: o.tlsServerName}
	if o.tlsCA != "" {
		pem, err := os.ReadFile(o.tlsCA)
		if err != nil {
			return nil, fmt.Errorf("-redis-tls-ca: %w", err)
		}
		u.TLSConfig.RootCAs = x509.NewCertPool()
		if !u.TLSConfig.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("-redis-tls-ca: %s has no certificate", o.tlsCA)
		}
	}
	if o.tlsCert != "" {
		cert, err := tls.LoadX509KeyPair(o.tlsCert, o.tlsKey)
		if err != nil {
			return nil, fmt.Errorf("-redis-tls-cert: %w", err)
		}
		u.TLSConfig.Certificates = []tls.Certificate{cert}
	}
	return u, nil
}

// redisLog is the log of the Redis client. Its lines are details: the breaker logs that
// Redis is down, once.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, args ...any) {
	slog.DebugContext(ctx, "redis: "+fmt.Sprintf(format, args...))
}

// stores are where a service counts.
type stores struct {
	store   weir.Store
	counter weir.Store   // the same without shares, for counts that are no limit of Weir
	all     []weir.Store // those that have metrics, or keep overrides
	close   func() error
}

// newStores returns a store in memory, or one in Redis behind a breaker, which counts in
// memory while Redis is down if the options say so.
func newStores(o *options, logger *slog.Logger) (*stores, error) {
	local := memstore.New(memstore.Options{MaxKeys: o.maxKeys})
	if o.redis.addrs == "" {
		return &stores{local, local, []weir.Store{local}, func() error { return nil }}, nil
	}
	u, err := o.redis.universal()
	if err != nil {
		return nil, err
	}
	rdb := redis.NewUniversalClient(u)
	shared, err := redisstore.New(rdb, redisstore.Options{Prefix: o.redis.prefix, Timeout: o.redis.timeout})
	if err != nil {
		rdb.Close()
		return nil, err
	}
	for _, w := range shared.Warnings() {
		logger.Warn("weir: Redis: " + w)
	}
	breaker := weir.Breaker(shared, weir.BreakerOptions{Logger: logger})
	s := &stores{breaker, breaker, []weir.Store{shared, breaker}, rdb.Close}
	if o.redisDown.value == downMemory {
		fallback := func(secondary weir.Store) weir.Store {
			f := weir.Fallback(breaker, secondary)
			f.Logger = logger
			s.all = append(s.all, f)
			return f
		}
		s.store, s.counter = fallback(weir.Share(local, o.replicas)), fallback(local)
	}
	return s, nil
}

// keeper returns the store that keeps overrides for all processes, or nil.
func keeper(all []weir.Store) overrides.Keeper {
	for _, s := range all {
		if k, ok := s.(overrides.Keeper); ok {
			return k
		}
	}
	return nil
}
