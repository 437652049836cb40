package main

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/redisstore/stack"
)

// redisOptions are the flags about Redis.
type redisOptions struct {
	addrs   string
	prefix  string
	timeout time.Duration

	sendTime, lockKeys bool

	tls          bool
	tlsClient    tlsClient
	passwordFile string

	client redis.UniversalOptions // what the flags of clientFields set
	given  []string               // the fields of client whose flags were given
}

// clientFields lists the fields of redis.UniversalOptions that flags set, with the help texts of
// these flags. If a flag is not given, its field keeps the value from redisstore.ClientOptions.
var clientFields = []struct{ field, usage string }{
	{"Username", "`name` of the Redis user"},
	{"Password", "`password` of the Redis user; set it by -redis-password-file or the environment, because other users of the machine see command lines"},
	{"DB", "`number` of the database; a cluster has none"},
	{"MasterName", "`name` of the master, if -redis-addrs are addresses of Sentinels"},
	{"SentinelUsername", "`name` of the user for the Sentinels"},
	{"SentinelPassword", "`password` for the Sentinels"},
	{"IsClusterMode", "Redis is a cluster, although -redis-addrs has only one address"},
	{"ClientName", "`name` of the connections in the output of CLIENT LIST"},
	{"Protocol", "`version` of the Redis protocol: 2 or 3"},
	{"DisableIdentity", "don't send Redis the name and version of the client library"},
	{"IdentitySuffix", "`text` that is appended to the name of the client library, if -redis-disable-identity is false"},
	{"PoolSize", "largest `number` of connections to a Redis node that are in use at the same time"},
	{"PoolTimeout", "longest `time` to wait for a free connection; the default is -redis-timeout"},
	{"PoolFIFO", "use the connection that was idle longest, not the connection that was used last"},
	{"MinIdleConns", "smallest `number` of idle connections that are kept open"},
	{"MaxIdleConns", "largest `number` of idle connections; 0 means no bound"},
	{"MaxActiveConns", "largest `number` of connections, idle or in use; 0 means no bound"},
	{"MaxConcurrentDials", "largest `number` of connections that are being opened at the same time; 0 means -redis-pool-size"},
	{"ConnMaxIdleTime", "`time` after which an idle connection is closed; 0 means 30m"},
	{"ConnMaxLifetime", "`time` after which a connection is closed; 0 means never"},
	{"ConnMaxLifetimeJitter", "largest random `time` that is added to the -redis-conn-max-lifetime of a connection, or subtracted from it"},
	{"DialTimeout", "longest `time` to open a connection"},
	{"DialerRetries", "`number` of attempts to open a connection"},
	{"DialerRetryTimeout", "`time` between attempts to open a connection; 0 means 100ms"},
	{"ReadTimeout", "longest `time` to wait for an answer; the default is -redis-timeout plus 250ms"},
	{"WriteTimeout", "longest `time` to send a command; the default is -redis-timeout plus 250ms"},
	{"ContextTimeoutEnabled", "let -redis-timeout bound the commands of the Redis client; if false, decisions go through a copy of the client whose timeouts are -redis-timeout plus 250ms"},
	{"MaxRetries", "`number` of times that a failed command about Sentinels or the nodes of a cluster is sent again; -1 means none"},
	{"MinRetryBackoff", "shortest `time` before a failed command is sent again; 0 means 10ms"},
	{"MaxRetryBackoff", "longest `time` before a failed command is sent again; 0 means 1s"},
	{"ReadBufferSize", "size of the read buffer of a connection in `bytes`; 0 means 32 KiB"},
	{"WriteBufferSize", "size of the write buffer of a connection in `bytes`; 0 means 32 KiB"},
	{"MaxRedirects", "largest `number` of redirects that a command follows in a cluster; 0 means 3"},
	{"FailingTimeoutSeconds", "`seconds` for which commands avoid a node of a cluster that has failed; 0 means 15"},
}

// inURL lists the fields that the URL of a Redis sets, too.
var inURL = []string{"Username", "Password", "DB"}

// wordEnd matches the boundary between two words in the name of a field.
var wordEnd = regexp.MustCompile(`([a-z])([A-Z])`)

// flagOf returns the name of the flag that sets a field: redis-pool-fifo for PoolFIFO.
func flagOf(field string) string {
	return "redis-" + strings.ToLower(wordEnd.ReplaceAllString(field, "$1-$2"))
}

func (o *redisOptions) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.addrs, "redis-addrs", "",
		"`address` of the Redis that processes share: host:port, a URL such as rediss://user:password@host:port, or several addresses of cluster nodes or Sentinels, separated by commas; the default is the environment variable REDIS_URL, and without both, weir counts in memory")
	fs.StringVar(&o.prefix, "redis-prefix", "weir:", "`prefix` of every key in Redis")
	fs.DurationVar(&o.timeout, "redis-timeout", 50*time.Millisecond, "longest `time` that a decision in Redis may take")
	fs.BoolVar(&o.sendTime, "redis-send-time", false,
		"send the time with each script, for a server that refuses TIME in scripts, such as ElastiCache Serverless")
	fs.BoolVar(&o.lockKeys, "redis-lock-keys", false,
		"make Upstash lock only the keys that a script uses; Redis and Valkey reject such scripts")
	fs.BoolVar(&o.tls, "redis-tls", false, "connect to Redis over TLS")
	o.tlsClient.flags(fs, "redis-tls", "Redis", "redis-addrs")
	fileFlag(fs, &o.passwordFile, "redis-password", "for each new connection")
	fileFlag(fs, new(string), "redis-sentinel-password", "at startup")
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

// String describes, for the log, where counts are stored: in memory, or in Redis at the given
// addresses.
func (o *redisOptions) String() string {
	if o.addrs == "" {
		return "memory"
	}
	return "redis at " + strings.Join(redisstore.ClientOptions(0, o.split()...).Addrs, ",") // without the user of a URL
}

// split returns the addresses.
func (o *redisOptions) split() []string { return strings.Split(o.addrs, ",") }

// secure reports whether the connections use TLS.
func (o *redisOptions) secure() bool { return o.tls || strings.HasPrefix(o.addrs, "rediss://") }

// set records that the flag of this name was given, if the flag sets a field of o.client.
func (o *redisOptions) set(name string) {
	for _, c := range clientFields {
		if flagOf(c.field) == name {
			o.given = append(o.given, c.field)
		}
	}
}

// For the flags about Redis that are missing on the command line, parse takes the values from the
// environment and from files. Only commands that can run without Redis use parse. Without
// -redis-addrs, it sets nothing.
func (o *redisOptions) parse(fs *flag.FlagSet, environ []string) error {
	if o.addrs != "" {
		if _, err := setFromEnvironment(fs, "redis-", environ); err != nil {
			return err
		}
	}
	fs.Visit(func(f *flag.Flag) { o.set(f.Name) })
	var f faults
	o.check(&f)
	return errors.Join(f...)
}

func (o *redisOptions) check(f *faults) {
	if o.addrs == "" && len(o.given) > 0 {
		f.add("-%s needs -redis-addrs", flagOf(o.given[0]))
	}
	addrs := reflect.ValueOf(redisstore.ClientOptions(0, o.split()...)).Elem()
	for _, field := range o.given {
		if v := addrs.FieldByName(field); slices.Contains(inURL, field) && !v.IsZero() && !v.Equal(reflect.ValueOf(o.client).FieldByName(field)) {
			f.add("-%s and -redis-addrs have different values", flagOf(field))
		}
	}
	o.tlsClient.check(f, o.secure(), "-redis-tls, or a URL that begins with rediss://")
}

// universal returns the options of the Redis client. If the file of the password cannot be read
// when the client connects, the logger gets a line, because the client's own error, like that of an
// outage, may have another cause, such as a connection that was reset before.
func (o *redisOptions) universal(logger *slog.Logger) (*redis.UniversalOptions, error) {
	u := redisstore.ClientOptions(o.timeout, o.split()...)
	for _, field := range o.given {
		reflect.ValueOf(u).Elem().FieldByName(field).Set(reflect.ValueOf(o.client).FieldByName(field))
	}
	if o.passwordFile != "" {
		unread := sparse.Every(time.Minute, logger)
		u.CredentialsProviderContext = func(context.Context) (username, password string, err error) {
			if password, err = readSecret(o.passwordFile); err != nil {
				unread.Error("weir: password of Redis not read", "err", err, "effect", "no new connection to Redis")
			}
			return u.Username, password, err
		}
	}
	if !o.secure() {
		return u, nil
	}
	if u.TLSConfig == nil {
		u.TLSConfig = new(tls.Config)
	}
	return u, o.tlsClient.set(u.TLSConfig)
}

// open returns a store in Redis, with the prefix and the timeout from the flags. The
// caller must close the store, and then rdb.
func (o *redisOptions) open(so stack.Options) (s *stack.Store, rdb redis.UniversalClient, err error) {
	u, err := o.universal(so.Logger)
	if err != nil {
		return nil, nil, err
	}
	rdb = redis.NewUniversalClient(u)
	so.Redis = redisstore.Options{Prefix: o.prefix, Timeout: o.timeout, SendTime: o.sendTime, LockKeys: o.lockKeys}
	if s, err = stack.New(rdb, so); err != nil {
		rdb.Close()
		return nil, nil, err
	}
	return s, rdb, nil
}

// redisLog logs the lines of the Redis client at level debug. These lines are details, because
// the breaker already logs that Redis is down.
type redisLog struct{}

func (redisLog) Printf(ctx context.Context, format string, args ...any) {
	slog.DebugContext(ctx, "weir: message of the Redis client", "text", fmt.Sprintf(format, args...))
}

// agree returns, by the name of a flag, a text that must be the same in all processes that share
// Redis. The text for -key-secret is a digest that is too short to recover the secret from it.
func (o *options) agree() map[string]string {
	switch {
	case o.limits == "":
		return nil
	case o.keySecret == "":
		return map[string]string{"-key-secret": "none"}
	}
	sum := hmac.New(sha256.New, []byte(o.keySecret))
	io.WriteString(sum, "weir agree")
	return map[string]string{"-key-secret": hex.EncodeToString(sum.Sum(nil)[:4])}
}

// stores holds the results of newStores.
type stores struct {
	store   quota.Store
	counter quota.Store           // for Envoy: like store, but -replicas does not divide the limits
	all     []quota.Store         // the stores that have metrics
	shared  *stack.Store          // nil without -redis-addrs
	rdb     redis.UniversalClient // of shared
	close   func()
}

// newStores returns a store in memory or, with -redis-addrs, a store in Redis. With
// -redis-down=memory, a store in memory counts while Redis is down.
func newStores(o *options, logger *slog.Logger) (*stores, error) {
	memory := memstore.Options{MaxKeys: o.maxKeys}
	if o.redis.addrs == "" {
		local := memstore.New(memory)
		return &stores{store: local, counter: local, all: []quota.Store{local}, close: func() {}}, nil
	}
	effects := map[string]string{downOpen: "requests are allowed without a limit", downClosed: "requests get 503"}
	shared, rdb, err := o.redis.open(stack.Options{Replicas: o.replicas, Memory: memory, Logger: logger, Agree: o.agree(),
		Effect: effects[o.redisDown.value]})
	if err != nil {
		return nil, err
	}
	s := &stores{store: shared, counter: shared.Undivided(), all: shared.Stores(), shared: shared, rdb: rdb,
		close: func() { shared.Close(); rdb.Close() }}
	if o.redisDown.value != downMemory {
		s.store, s.counter = shared.WithoutFallback(), shared.WithoutFallback()
	}
	return s, nil
}
