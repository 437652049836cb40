package redisstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/redisstore"
)

// TestAddrs: the addresses of each kind of client, and never its password.
func TestAddrs(t *testing.T) {
	for want, rdb := range map[string]redis.UniversalClient{
		"[10.0.0.1:6379]":               redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379", Username: "u", Password: "secret"}),
		"[10.0.0.1:6379 10.0.0.2:6379]": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.2:6379", "10.0.0.1:6379"}, Password: "secret"}),
		"[10.0.0.3:6379 10.0.0.4:6379]": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"b": "10.0.0.3:6379", "a": "10.0.0.4:6379"}, Password: "secret"}),
		"[FailoverClient]":              redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"10.0.0.5:26379"}, Password: "secret"}),
	} {
		store, err := redisstore.New(rdb, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(store.Addrs()); got != want {
			t.Errorf("%T: got %s, want %s", rdb, got, want)
		}
		rdb.Close()
	}
}

// TestOneTimeout: the timeout of ClientOptions is that of the store, for each kind of client, and a
// warning names both if they differ.
func TestOneTimeout(t *testing.T) {
	for name, o := range map[string]*redis.UniversalOptions{
		"a server":  {Addrs: []string{"10.0.0.1:6379"}},
		"Sentinels": {Addrs: []string{"10.0.0.1:26379"}, MasterName: "m"},
		"a cluster": {Addrs: []string{"10.0.0.1:6379"}, IsClusterMode: true},
		"a default": nil,
	} {
		want := "[ClientOptions got a timeout of 400ms, and Options.Timeout is 100ms: use one value for both]"
		made := redisstore.ClientOptions(400 * time.Millisecond)
		if o == nil {
			o, made = &redis.UniversalOptions{Addrs: []string{"10.0.0.1:6379"}}, redisstore.ClientOptions(0)
			want = "[ClientOptions got a timeout of 50ms, and Options.Timeout is 100ms: use one value for both]"
		}
		made.Addrs, made.MasterName, made.IsClusterMode, made.MinIdleConns = o.Addrs, o.MasterName, o.IsClusterMode, 0
		rdb := client(t, redis.NewUniversalClient(made))
		for timeout, want := range map[time.Duration]string{0: "[]", 100 * time.Millisecond: want} {
			store, err := redisstore.New(rdb, redisstore.Options{Timeout: timeout})
			if err != nil {
				t.Fatal(err)
			}
			if got := fmt.Sprint(store.Warnings()); got != want {
				t.Errorf("%s, Options.Timeout %v: got %s, want %s", name, timeout, got, want)
			}
		}
	}
}

// TestWarningsOfAll: a Store warns of the same settings of each type of client.
func TestWarningsOfAll(t *testing.T) {
	o := &redis.UniversalOptions{Addrs: []string{"127.0.0.1:1"}, DialerRetries: 5, DialTimeout: 3 * time.Second}
	ring := &redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}, DialerRetries: 5, DialTimeout: 3 * time.Second}
	for _, rdb := range []redis.UniversalClient{redis.NewClient(o.Simple()), redis.NewClusterClient(o.Cluster()), redis.NewRing(ring)} {
		if got := newStore(t, client(t, rdb)).Warnings(); len(got) != 3 {
			t.Errorf("%T: got %q, want 3 warnings", rdb, got)
		}
	}
}

// TestRelativeSocket: the path of a socket may be relative, if the client says that it is one.
func TestRelativeSocket(t *testing.T) {
	rdb := client(t, redis.NewClient(&redis.Options{Network: "unix", Addr: "redis.sock"}))
	if _, err := redisstore.New(rdb, redisstore.Options{}); err != nil {
		t.Error(err)
	}
}

// TestClientOptionsURLs: an address may be a URL, whose user, password, database and TLS count.
func TestClientOptionsURLs(t *testing.T) {
	for _, test := range []struct {
		addrs []string
		want  string
	}{
		{[]string{"10.0.0.1:6379"}, "[10.0.0.1:6379]   0 TLS false"},
		{[]string{"/run/redis.sock"}, "[/run/redis.sock]   0 TLS false"},
		{[]string{"redis://10.0.0.1"}, "[10.0.0.1:6379]   0 TLS false"},
		{[]string{"redis://u:p%40ss@db:7000/3"}, "[db:7000] u p@ss 3 TLS false"},
		{[]string{"rediss://:pw@[::1]:7000"}, "[[::1]:7000]  pw 0 TLS true ::1"},
		{[]string{"unix://u:p@/run/redis.sock?db=2"}, "[/run/redis.sock] u p 2 TLS false"},
		{[]string{"rediss://u:p@a:1", "b:2", "rediss://u:p@c:3"}, "[a:1 b:2 c:3] u p 0 TLS true "},
	} {
		o := redisstore.ClientOptions(0, test.addrs...)
		o.MinIdleConns = 0 // nothing connects
		got := fmt.Sprint(o.Addrs, " ", o.Username, " ", o.Password, " ", o.DB, " TLS ", o.TLSConfig != nil)
		if o.TLSConfig != nil {
			got += " " + o.TLSConfig.ServerName
		}
		if got != test.want {
			t.Errorf("%q: got %q, want %q", test.addrs, got, test.want)
		}
		store, err := redisstore.New(client(t, redis.NewUniversalClient(o)), redisstore.Options{})
		if err != nil || fmt.Sprint(store.Addrs()) != fmt.Sprint(o.Addrs) {
			t.Errorf("%q: got %v, want the addresses", test.addrs, err)
		}
	}
}

// TestBadAddresses: an address without a port, or a URL that cannot be read, is an error of New that
// says what an address is, and never names a user or a password.
func TestBadAddresses(t *testing.T) {
	ring := func(o *redis.UniversalOptions) redis.UniversalClient {
		addrs := map[string]string{}
		for _, addr := range o.Addrs {
			addrs[addr] = addr
		}
		return redis.NewRing(&redis.RingOptions{Addrs: addrs})
	}
	for _, test := range []struct {
		addrs []string
		what  string
	}{
		{[]string{"localhost"}, `"localhost"`},
		{[]string{"10.0.0.1:6379", "10.0.0.2"}, `"10.0.0.2"`},
		{[]string{"joe:hunter2@db:6379"}, `"db:6379"`},
		{[]string{"redis://joe:hunter2@db:6379/x"}, `"redis://"`},
		{[]string{"redis://joe:hunter2@db:65x36"}, `"redis://"`},
		{[]string{"http://joe:hunter2@db:6379"}, `"http://"`},
		{[]string{"redis://joe:hunter2@db:6379?colour=red"}, `"redis://"`},
		{[]string{" db:6379"}, `" db:6379"`},
		{[]string{"db:6379\n"}, `"db:6379\n"`}, // from a file
		{[]string{`"db:6379"`}, `"\"db:6379\""`},
		{[]string{"db-1,db-2:6379"}, `"db-1,db-2:6379"`},
	} {
		o := redisstore.ClientOptions(0, test.addrs...)
		o.MinIdleConns = 0                                                    // nothing connects
		if addrs := fmt.Sprint(o.Addrs); strings.Contains(addrs, "hunter2") { // New does not see the addresses of Sentinels
			t.Errorf("%q: got the addresses %s, want them without the password", test.addrs, addrs)
		}
		clients := map[string]redis.UniversalClient{"ClientOptions": redis.NewUniversalClient(o), "a ring": ring(o)}
		if len(test.addrs) == 1 {
			clients["an address of the client"] = redis.NewClient(&redis.Options{Addr: test.addrs[0]})
		}
		for name, rdb := range clients {
			_, err := redisstore.New(client(t, rdb), redisstore.Options{})
			want := "redisstore: the address " + test.what + " can't be used; want host:port, such as localhost:6379, a URL such as redis://localhost:6379, or the path of a socket"
			if err == nil || err.Error() != want || strings.Contains(err.Error(), "joe") {
				t.Errorf("%q, %s: got %v, want %s", test.addrs, name, err, want)
			}
		}
	}
}

// TestEmptyAddress: an empty address, such as that of an environment variable that is not set, is an
// error, whereas go-redis would use localhost:6379.
func TestEmptyAddress(t *testing.T) {
	for _, addrs := range [][]string{{""}, {"127.0.0.1:1", ""}} {
		o := redisstore.ClientOptions(0, addrs...)
		o.MinIdleConns = 0 // nothing connects
		_, err := redisstore.New(client(t, redis.NewUniversalClient(o)), redisstore.Options{})
		if err == nil || !strings.HasPrefix(err.Error(), `redisstore: the address "(empty)" can't be used; want`) {
			t.Errorf("%q: got %v, want an error that says that the address is empty", addrs, err)
		}
	}
}

// TestTimeoutUnit: a timeout without a unit is an error, in the client's options as in those of the store.
func TestTimeoutUnit(t *testing.T) {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(50, "127.0.0.1:1"))
	defer rdb.Close()
	const want = "redisstore: the timeout of ClientOptions is 50ns; want at least 1ms, such as 50*time.Millisecond"
	if _, err := redisstore.New(rdb, redisstore.Options{}); err == nil || err.Error() != want {
		t.Errorf("got error %v, want %s", err, want)
	}
}
