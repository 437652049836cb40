package overrides_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A replica stands for a process. Its limiter has a Live, and admits two requests of each
// X-User in 1,000 hours.
type replica struct {
	t *testing.T
	*overrides.Live
	http.Handler
	store *redisstore.Store
	rdb   redis.UniversalClient
	log   *weirtest.Log
	stop  context.CancelFunc
	ended chan struct{}
}

func newReplica(t *testing.T, store quota.Store, keeper overrides.Keeper, file func(string) weir.Policy) *replica {
	t.Helper()
	r := &replica{t: t, log: new(weirtest.Log)}
	r.Live = overrides.NewLive(overrides.LiveOptions{Keeper: keeper, Logger: slog.New(slog.NewTextHandler(r.log, nil))})
	l, err := weir.New(store, weir.Options{OnError: weir.FailClosed, Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-User"), Limits: []quota.Limit{algorithms.FixedWindow(2, 1000*time.Hour)}, ForKey: r.Of("api", file),
	}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Handler = l.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	return r
}

func redisReplica(t *testing.T, addr string) *replica {
	t.Helper()
	o := redisstore.ClientOptions(5*time.Second, addr)
	rdb := redis.NewUniversalClient(o)
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	r := newReplica(t, store, store, nil)
	r.store, r.rdb = store, rdb
	ctx, cancel := context.WithCancel(context.Background())
	r.stop, r.ended = cancel, make(chan struct{})
	go func() { defer close(r.ended); r.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-r.ended; rdb.Close() })
	return r
}

// ask sends requests of a user and checks the status of each.
func (r *replica) ask(user string, want ...int) {
	r.t.Helper()
	for i, want := range want {
		w, q := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		q.Header.Set("X-User", user)
		if r.ServeHTTP(w, q); w.Code != want {
			r.t.Errorf("request %d of %.20q: got %d, want %d", i, user, w.Code, want)
		}
	}
}

// match sets Prefix to what precedes an asterisk, or Network or Key.
func match(e *overrides.Entry, text string) {
	if network, err := netip.ParsePrefix(text); err == nil {
		e.Network = network
	} else if prefix, ok := strings.CutSuffix(text, "*"); ok {
		e.Prefix = prefix
	} else {
		e.Key = text
	}
}

func (r *replica) set(key string, e overrides.Entry, d time.Duration) {
	r.t.Helper()
	match(&e, key)
	if err := r.Set(context.Background(), "api", e, d, "ticket 7"); err != nil {
		r.t.Fatal(err)
	}
}

func (r *replica) remove(key string) {
	r.t.Helper()
	var e overrides.Entry
	match(&e, key)
	if found, err := r.Remove(context.Background(), "api", e); err != nil || !found {
		r.t.Fatalf("Remove %.20q: %v, %v", key, found, err)
	}
}

// eventually waits until a condition holds.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%s: not after a minute", what)
		}
	}
}

// TestLiveLife: overrides are set, replaced and removed, and they end. Units that the key has
// spent count throughout.
func TestLiveLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := newReplica(t, memstore.New(memstore.Options{}), nil, func(key string) weir.Policy {
			return map[string]weir.Policy{"carol": weir.Limited(limits(3)...)}[key]
		})
		r.ask("alice", 200, 200, 429)
		r.set("alice", overrides.Entry{Limits: limits(4)}, 0)
		r.ask("alice", 200, 200, 429)
		r.set("alice", overrides.Entry{Limits: limits(6)}, time.Minute)
		r.ask("alice", 200)
		time.Sleep(time.Minute - time.Microsecond)
		r.ask("alice", 200)
		time.Sleep(time.Microsecond) // the override ends without a call of Live
		r.ask("alice", 429)
		if n := len(r.All()); n != 0 {
			t.Errorf("%d overrides are left, want 0", n)
		}
		r.set("al*", overrides.Entry{Unlimited: true}, 0)
		r.ask("alice", 200)
		r.set("alice", overrides.Entry{Denied: true}, time.Hour)
		r.ask("alice", 429)
		r.ask("alf", 200, 200, 200)
		time.Sleep(time.Hour)
		r.ask("alice", 200) // by the override for al*
		r.remove("al*")
		r.ask("alice", 429)
		r.ask("carol", 200, 200, 200, 429) // the function file gives carol 3
		r.set("c*", overrides.Entry{Limits: limits(4)}, 0)
		r.ask("carol", 200, 429) // the override decides, not the function file
		r.remove("c*")
		if found, err := r.Remove(t.Context(), "api", overrides.Entry{Prefix: "c"}); found || err != nil {
			t.Errorf("Remove of an override that is gone: got %v, %v, want false, nil", found, err)
		}
		long := strings.Repeat("k", 1<<20)
		r.set(long, overrides.Entry{Limits: limits(1)}, 0)
		r.ask(long, 200, 429)
		if o, ok := r.Get("api", overrides.Entry{Key: long}); !ok || o.Key != storedkey.Of(long) || o.Note != "ticket 7" {
			t.Errorf("got %.40q, %v", o.Key, ok)
		}
	})
}

// TestNilKeeper: a program without Redis may pass a nil pointer as the Keeper. It keeps its overrides itself.
func TestNilKeeper(t *testing.T) {
	l := overrides.NewLive(overrides.LiveOptions{Keeper: (*redisstore.Store)(nil)})
	if err := l.Refresh(t.Context()); err != nil || !l.Ready() {
		t.Errorf("got %v, ready %v", err, l.Ready())
	}
	mustSet(t, l, overrides.Entry{Key: "a", Denied: true}, 0)
	if !l.Of("api", nil)("a").Is(weir.Denied()) {
		t.Error("the override is not in force")
	}
}

// TestDenyFrom: a denied network is refused until the denial ends or is removed, whatever the
// keys of the rule.
func TestDenyFrom(t *testing.T) {
	find := func(r *http.Request) (netip.Addr, bool) {
		a, err := netip.ParseAddr(r.Header.Get("From"))
		return a, err == nil
	}
	from := func(f func(*http.Request) bool, addr string) bool {
		return f(&http.Request{Header: http.Header{"From": {addr}}})
	}
	synctest.Test(t, func(t *testing.T) {
		l := overrides.NewLive(overrides.LiveOptions{})
		set := func(network string, d time.Duration) {
			mustSet(t, l, overrides.Entry{Network: netip.MustParsePrefix(network), Denied: true}, d)
		}
		set("203.0.113.0/25", 0) // before DenyFrom is called
		denied, other := l.DenyFrom("api", find), l.DenyFrom("other", find)
		set("192.0.2.0/24", time.Minute)
		set("2001:db8::/32", 0)
		mustSet(t, l, overrides.Entry{Key: "198.51.100.0/24", Denied: true}, 0) // a key that a client may have made up
		if !l.DeniesNetworks("api") || l.DeniesNetworks("new") {
			t.Error("DeniesNetworks is true for other rules than those of DenyFrom")
		}
		for addr, want := range map[string]bool{
			"192.0.2.0": true, "192.0.2.255": true, "::ffff:192.0.2.7": true, "192.0.3.0": false, "203.0.113.127": true, "203.0.113.128": false,
			"2001:db8:1::7": true, "2001:db9::": false, "198.51.100.7": false, "": false,
		} {
			if got := from(denied, addr); got != want {
				t.Errorf("%q is denied: %v, want %v", addr, got, want)
			}
			if from(other, addr) {
				t.Errorf("%q is denied by another rule", addr)
			}
		}
		time.Sleep(time.Minute)
		if from(denied, "192.0.2.7") {
			t.Error("a network is denied after the end of its denial")
		}
		if _, err := l.Remove(t.Context(), "api", overrides.Entry{Network: netip.MustParsePrefix("203.0.113.0/25")}); err != nil || from(denied, "203.0.113.7") {
			t.Errorf("a network is denied after its removal, or Remove failed: %v", err)
		}
		r := &http.Request{Header: http.Header{"From": {"2001:db8:1::7"}}}
		if n := testing.AllocsPerRun(100, func() { denied(r) }); n != 0 {
			t.Errorf("%v allocations", n)
		}
	})
}

// TestLiteralKeys: an override of a key that a client has made up concerns that key alone. A client that
// gets itself banned under "*", "c*" or "0.0.0.0/1" must not take others with it, and an account "b*"
// that is exempt frees no other.
func TestLiteralKeys(t *testing.T) {
	l := overrides.NewLive(overrides.LiveOptions{})
	forKey := l.Of("api", nil)
	denied := l.DenyFrom("api", func(r *http.Request) (netip.Addr, bool) { return netip.MustParseAddr(r.RemoteAddr), true })
	victims := []string{"customer-1", "bob", "192.0.2.1", "", "*x", "c"}
	for _, key := range []string{"*", "c*", "0.0.0.0/1", "0.0.0.0/0", "::/0", "b*", "/192.0.2.0/24", "=bob", "**"} {
		e := overrides.Entry{Key: key, Denied: true}
		mustSet(t, l, e, 0)
		if !forKey(key).Is(weir.Denied()) {
			t.Errorf("%q itself is not denied", key)
		}
		for _, v := range victims {
			if p := forKey(v); !p.Is(weir.Policy{}) {
				t.Errorf("a ban of %q: %q has the policy %v", key, v, p)
			}
			if denied(&http.Request{RemoteAddr: "192.0.2.1"}) {
				t.Errorf("a ban of %q denies 192.0.2.1", key)
			}
		}
		if o, ok := l.Get("api", e); !ok || o.Key != key || o.Prefix != "" || o.All || o.Network.IsValid() {
			t.Errorf("Get %q: got %+v, %v", key, o, ok)
		}
		if found, err := l.Remove(t.Context(), "api", e); !found || err != nil || !forKey(key).Is(weir.Policy{}) {
			t.Errorf("Remove %q: got %v, %v", key, found, err)
		}
	}
}

// mustSet sets an override of rule api.
func mustSet(t *testing.T, l *overrides.Live, e overrides.Entry, d time.Duration) {
	t.Helper()
	if err := l.Set(t.Context(), "api", e, d, ""); err != nil {
		t.Fatal(err)
	}
}

func TestSetMistakes(t *testing.T) {
	l := overrides.NewLive(overrides.LiveOptions{})
	calendar := algorithms.Calendar(5, algorithms.Day, time.UTC)
	for _, tt := range []struct {
		rule string
		e    overrides.Entry
		d    time.Duration
		want string
	}{
		{"api", overrides.Entry{Key: "a"}, 0, "has no limits"},
		{"", overrides.Entry{Key: "a", Denied: true}, 0, "no rule has the name"},
		{"api", overrides.Entry{Key: "a", Denied: true}, -1, "want at least 0"},
		{"api", overrides.Entry{Network: netip.MustParsePrefix("10.0.0.1/8"), Denied: true}, 0, "has bits after its prefix; want 10.0.0.0/8"},
		{"api", overrides.Entry{Network: netip.MustParsePrefix("::ffff:10.0.0.0/104"), Denied: true}, 0, "want an IPv4 network"},
		{"api", overrides.Entry{Network: netip.MustParsePrefix("10.0.0.0/8"), Unlimited: true}, 0, "is not Denied"},
		{"api", overrides.Entry{Key: "a", Network: netip.MustParsePrefix("10.0.0.0/8"), Denied: true}, 0, "more than one of"},
		{"api", overrides.Entry{Key: "a", Limits: []quota.Limit{calendar}}, 0, "the algorithm calendar cannot be set"},
		{"api", overrides.Entry{Key: "a", Limits: []quota.Limit{{Quota: 1, Period: -1}}}, 0, "want at least 0"},
		{"api", overrides.Entry{Key: "a", Limits: []quota.Limit{{Quota: 1, Name: strings.Repeat("n", 5000)}}}, 0, "bytes; want at most 4096"},
	} {
		if err := l.Set(t.Context(), tt.rule, tt.e, tt.d, ""); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v: got %v, want %q", tt.e, err, tt.want)
		}
	}
	if n := len(l.All()); n != 0 {
		t.Errorf("%d overrides were set", n)
	}
}

// TestLiveBounded: Set returns ErrFull if there are MaxLive overrides, but overrides that have
// ended do not count.
func TestLiveBounded(t *testing.T) {
	keeper := map[string]func(t *testing.T) overrides.Keeper{
		"memory": func(*testing.T) overrides.Keeper { return nil },
		"redis":  func(t *testing.T) overrides.Keeper { return redisReplica(t, redistest.Server(t).Addr()).store },
	}
	for name, open := range keeper {
		t.Run(name, func(t *testing.T) {
			k := open(t)
			l := overrides.NewLive(overrides.LiveOptions{Keeper: k})
			for i := range overrides.MaxLive - 1 {
				fill(t, l, k, fmt.Sprint("customer-", i))
			}
			set := func(key string, d time.Duration) error {
				return l.Set(t.Context(), "api", overrides.Entry{Key: key, Denied: true}, d, "")
			}
			if err := set("short", time.Millisecond); err != nil {
				t.Fatal(err)
			}
			eventually(t, "place", func() bool { return set("last", 0) == nil })
			if err := set("one more", 0); !errors.Is(err, overrides.ErrFull) {
				t.Errorf("got %v, want ErrFull", err)
			}
			if err := set("last", 0); err != nil {
				t.Errorf("replacing an override: %v", err)
			}
			if err := l.Refresh(t.Context()); err != nil { // fill has not used l if there is a Keeper
				t.Fatal(err)
			}
			if n := len(l.All()); n != overrides.MaxLive {
				t.Errorf("got %d overrides", n)
			}
		})
	}
}

// fill saves an override of a key in the Keeper of l, or in l if it has none.
func fill(t *testing.T, l *overrides.Live, k overrides.Keeper, key string) {
	t.Helper()
	if k == nil {
		mustSet(t, l, overrides.Entry{Key: key, Limits: limits(7)}, 0)
		return
	}
	if full, err := k.SaveOverride(t.Context(), "api\x00="+key, `{"limits":[{"quota":7}]}`, 0, overrides.MaxLive); full || err != nil {
		t.Fatal(key, full, err)
	}
}

// A memoryKeeper keeps overrides in memory, for several Lives of one process.
type memoryKeeper struct {
	mu      sync.Mutex
	kept    map[string]string
	changes int
}

func (k *memoryKeeper) LoadOverrides(_ context.Context, version string) (map[string]string, string, time.Time, error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	newest := strconv.Itoa(k.changes)
	if newest == version {
		return nil, newest, time.Now(), nil
	}
	return maps.Clone(k.kept), newest, time.Now(), nil
}

func (k *memoryKeeper) SaveOverride(_ context.Context, name, text string, d time.Duration, _ int) (full bool, err error) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.changes++
	delete(k.kept, name)
	if text == "" {
		return false, nil
	}
	end := int64(0)
	if d > 0 {
		end = time.Now().Add(d).UnixMicro()
	}
	if k.kept == nil {
		k.kept = map[string]string{}
	}
	k.kept[name] = fmt.Sprint(end, " ", text)
	return false, nil
}

// TestReplicas: three processes share a Redis. An override that one process sets is in
// force in all of them. It is also in force in a process that starts after the process
// that set it has ended. Units that were spent still count.
func TestReplicas(t *testing.T) {
	addr := redistest.Server(t).Addr()
	a, b, c := redisReplica(t, addr), redisReplica(t, addr), redisReplica(t, addr)
	a.ask("alice", 200)
	b.ask("alice", 200)
	c.ask("alice", 429)
	key := "alice\x00\n\xff" // a key may have any bytes
	start := time.Now()
	a.set("alice", overrides.Entry{Limits: limits(3)}, 0)
	a.set(key, overrides.Entry{Denied: true}, time.Hour)
	for _, r := range []*replica{b, c} {
		eventually(t, "in force on a replica", func() bool { return len(r.All()) == 2 })
	}
	t.Log("in force on all after", time.Since(start))
	c.ask("alice", 200)
	b.ask("alice", 429)
	b.ask(key, 429)
	if o, ok := b.Get("api", overrides.Entry{Key: key}); !ok || time.Until(o.End) > time.Hour || time.Until(o.End) < 50*time.Minute {
		t.Errorf("got %v, %v", o, ok)
	}

	a.stop()
	<-a.ended // Run has returned
	a.rdb.Close()
	d := redisReplica(t, addr)
	eventually(t, "in force on a new replica", func() bool { return len(d.All()) == 2 })
	d.ask("alice", 429)
	b.remove("alice")
	eventually(t, "removed on another replica", func() bool { return len(d.All()) == 1 })
	b.set("alice", overrides.Entry{Limits: limits(4)}, 50*time.Millisecond)
	eventually(t, "ended", func() bool { return len(b.All()) == 1 })
	eventually(t, "ended on another replica", func() bool { return len(d.All()) == 1 })
	b.ask("alice", 429)
}

// TestClockOfKeeper: a process that starts while the clock of Redis is wrong has the right expiry times
// once the clock is right, although nobody has changed an override.
func TestClockOfKeeper(t *testing.T) {
	lua, begin := redistest.Lua54(t), time.UnixMicro(1_700_000_000_000_000)
	rdb := redis.NewClient(&redis.Options{Addr: lua.Addr()})
	defer rdb.Close()
	keeper, err := redisstore.New(rdb, redisstore.Options{Timeout: 5 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	lua.SetTime(begin)
	mallory := overrides.Entry{Key: "mallory", Denied: true}
	mustSet(t, overrides.NewLive(overrides.LiveOptions{Keeper: keeper}), mallory, 24*time.Hour)
	for _, wrong := range []time.Duration{365 * 24 * time.Hour, -365 * 24 * time.Hour} {
		lua.SetTime(begin.Add(wrong))
		l := overrides.NewLive(overrides.LiveOptions{Keeper: keeper})
		for i := range 4 {
			if i > 0 {
				lua.SetTime(begin)
			}
			if err := l.Refresh(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if o, ok := l.Get("api", mallory); !ok || time.Until(o.End) > 25*time.Hour {
			t.Errorf("the clock was ahead by %v: got %v, %v; want the denial for 24 hours", wrong, o, ok)
		}
	}
}

// TestNetworkOfReplica: if one process denies a network, other processes refuse its
// requests until the denial is removed. So does a process that starts later.
func TestNetworkOfReplica(t *testing.T) {
	addr := redistest.Server(t).Addr()
	find := func(*http.Request) (netip.Addr, bool) { return netip.MustParseAddr("192.0.2.7"), true }
	a, b := redisReplica(t, addr), redisReplica(t, addr)
	denied := b.DenyFrom("api", find)
	a.set("192.0.2.0/24", overrides.Entry{Denied: true}, time.Hour)
	eventually(t, "denied on a replica", func() bool { return denied(nil) })
	c := redisReplica(t, addr)
	later := c.DenyFrom("api", find)
	eventually(t, "denied on a new replica", func() bool { return later(nil) })
	b.remove("192.0.2.0/24")
	eventually(t, "allowed again", func() bool { return !denied(nil) && !later(nil) })
}

// TestKeeperFails: while Redis is down the last table stays in force, and the log says so
// once. If Redis comes back empty, there are no overrides.
func TestKeeperFails(t *testing.T) {
	server := redistest.Server(t)
	r := redisReplica(t, server.Addr())
	r.set("mallory", overrides.Entry{Denied: true}, 0)
	r.set("trudy", overrides.Entry{Denied: true}, 10*time.Millisecond)
	server.Kill()
	eventually(t, "the error", func() bool { return r.Err() != nil })
	r.ask("mallory", 429) // decided without Redis
	eventually(t, "the end of an override", func() bool { return len(r.All()) == 1 })
	if err := r.Set(t.Context(), "api", overrides.Entry{Key: "x", Denied: true}, 0, ""); err == nil {
		t.Error("Set succeeds without Redis")
	}
	server.Restart(t)
	eventually(t, "Redis is back", func() bool { return r.Err() == nil })
	eventually(t, "the overrides are gone", func() bool { return len(r.All()) == 0 })
	r.ask("mallory", 200)
	log := r.log.String()
	for _, want := range []string{"overrides not read from the store", "overrides read from the store again", "all overrides lost by the store"} {
		if n := strings.Count(log, want); n != 1 {
			t.Errorf("the log says %d times %q", n, want)
		}
	}
	r.set("mallory", overrides.Entry{Denied: true}, 0)
	r.ask("mallory", 429)
}

// TestKeeperSilent: while the Keeper does not answer, the table can be read and changed. What was read
// before a change is not put in its place.
func TestKeeperSilent(t *testing.T) {
	keeper := &slowKeeper{Keeper: &memoryKeeper{}, read: make(chan bool), answer: make(chan bool)}
	live := overrides.NewLive(overrides.LiveOptions{Keeper: keeper})
	forKey := live.Of("api", nil)
	read := func() chan error {
		ended := make(chan error)
		go func() { ended <- live.Refresh(t.Context()) }()
		<-keeper.read
		return ended
	}
	set := func(key string) {
		if err := live.Set(t.Context(), "api", overrides.Entry{Key: key, Denied: true}, 0, ""); err != nil {
			t.Error(err)
		}
	}
	ended := read()
	keeper.answer <- true
	<-ended
	set("one")
	ended = read()
	done := make(chan int)
	go func() {
		live.Err()
		live.Of("web", nil)
		set("two")
		done <- len(live.All())
	}()
	select {
	case n := <-done:
		if n != 2 {
			t.Errorf("while the Keeper is silent: got %d overrides, want 2", n)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("while the Keeper is silent, a call for the table does not return")
	}
	keeper.answer <- true
	if err := <-ended; err != nil || len(live.All()) != 2 || !forKey("two").Is(weir.Denied()) {
		t.Errorf("after the answer: got %v and %v, want both overrides", live.All(), err)
	}
	ended = read()
	keeper.answer <- true
	if err := <-ended; err != nil || len(live.All()) != 2 {
		t.Errorf("read again: got %v and %v, want both overrides", live.All(), err)
	}
}

// A slowKeeper reads at once and answers later.
type slowKeeper struct {
	overrides.Keeper
	read, answer chan bool
}

func (k *slowKeeper) LoadOverrides(ctx context.Context, version string) (map[string]string, string, time.Time, error) {
	kept, newest, now, err := k.Keeper.LoadOverrides(ctx, version)
	k.read <- true
	<-k.answer
	return kept, newest, now, err
}

// TestForeignRecords: records that cannot be read are ignored, and the others are in force.
func TestForeignRecords(t *testing.T) {
	r := redisReplica(t, redistest.Server(t).Addr())
	for field, value := range map[string]string{
		"no rule":               `0 {"denied":true}`,
		"api\x00g":              `0 {"denied":true}`, // as before keys, prefixes and networks were told apart
		"api\x00=a":             `0 {`,
		"api\x00=b":             `{"denied":true}`,
		"api\x00=c":             `0 {"limits":[{"quota":0}]}`,
		"api\x00=d":             `0 {"limits":[{"quota":7,"algorithm":"later"}]}`,
		"api\x00=e":             "0 " + strings.Repeat(" ", 5000) + `{"denied":true}`,
		"api\x00=f":             ``,
		"api\x00=mallory":       `0 {"denied":true,"later":5}`,
		"another rule\x00=\x00": `0 {"denied":true}`,
	} {
		if err := r.rdb.HSet(t.Context(), "weir:overrides", field, value, "", "1").Err(); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.rdb.HSet(t.Context(), "weir:overrides", "", "2").Err(); err != nil {
		t.Fatal(err)
	}
	if err := r.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	if n := len(r.All()); n != 2 {
		t.Errorf("got %v", r.All())
	}
	r.ask("mallory", 429)
	r.ask("a", 200)
}

func ExampleNew() {
	table, err := overrides.New(
		overrides.Entry{Key: "alice", Limits: []quota.Limit{{Quota: 1000}}},
		overrides.Entry{Prefix: "tenant-a/", Limits: []quota.Limit{{Quota: 50}}},
		overrides.Entry{Key: "monitor", Unlimited: true},
	)
	if err != nil {
		panic(err)
	}
	rule := weir.Rule{
		Name: "api", Key: weir.ByHeader("X-User"),
		Limits: []quota.Limit{algorithms.GCRA(100, time.Minute)},
		ForKey: table.ForKey,
	}
	policy, err := rule.PolicyOf("tenant-a/7")
	fmt.Println(table.Len(), policy.Limits()[0], err)
	// Output: 3 1m: 50 per 1m0s (gcra) <nil>
}

func ExampleNewJoined() {
	table, err := overrides.NewJoined(overrides.Entry{
		Key: "alice", Limits: []quota.Limit{{Quota: 1000}},
		Nested: []overrides.Entry{{Key: "POST", Limits: []quota.Limit{{Quota: 10}}}},
	})
	if err != nil {
		panic(err)
	}
	for _, key := range []string{"5:alice,3:GET,", "5:alice,4:POST,"} { // keys of weir.Join
		fmt.Println(table.ForKey(key).Limits()[0].Quota)
	}
	// Output:
	// 1000
	// 10
}

// A customer gets a larger quota for a day, in all processes with the same Keeper.
func ExampleNewLive() {
	ctx := context.Background()
	live := overrides.NewLive(overrides.LiveOptions{}) // Keeper: a *redisstore.Store
	go live.Run(ctx)
	rule := weir.Rule{Name: "api", ForKey: live.Of("api", nil)}

	err := live.Set(ctx, "api", overrides.Entry{Key: "alice", Limits: []quota.Limit{{Quota: 1000}}}, 24*time.Hour, "ticket 7")
	fmt.Println(rule.ForKey("alice").Limits()[0].Quota, err, live.Err())
	for _, o := range live.All() {
		fmt.Println(o.Rule, o.Key, o.Note)
	}
	if o, ok := live.Get("api", overrides.Entry{Key: "alice"}); ok {
		fmt.Println(time.Until(o.End).Round(time.Hour), live.OverridesKeys("api"), live.OverridesKeys("login"))
	}
	found, err := live.Remove(ctx, "api", overrides.Entry{Key: "alice"})
	fmt.Println(found, err, live.Refresh(ctx))
	// Output:
	// 1000 <nil> <nil>
	// api alice ticket 7
	// 24h0m0s true false
	// true <nil> <nil>
}

// An operator blocks a network for an hour, and checks that the key names a network.
func ExampleLive_DenyFrom() {
	ctx := context.Background()
	live := overrides.NewLive(overrides.LiveOptions{})
	rule := weir.Rule{Name: "api", Policy: weir.When(live.DenyFrom("api", weir.ClientAddr()), weir.Denied())}

	err := live.Set(ctx, "api", overrides.Entry{Network: netip.MustParsePrefix("192.0.2.0/24"), Denied: true}, time.Hour, "a scan")
	if errors.Is(err, overrides.ErrFull) {
		panic("remove some overrides first")
	}
	for _, addr := range []string{"192.0.2.7:1234", "198.51.100.7:1234"} {
		fmt.Println(addr, rule.Policy(&http.Request{RemoteAddr: addr}).Is(weir.Denied()))
	}
	fmt.Println(live.DeniesNetworks("api"))
	// Output:
	// 192.0.2.7:1234 true
	// 198.51.100.7:1234 false
	// true
}

// A lateKeeper keeps a denied network, and fails until it works.
type lateKeeper struct{ works bool }

func (k *lateKeeper) LoadOverrides(context.Context, string) (map[string]string, string, time.Time, error) {
	if !k.works {
		return nil, "", time.Time{}, fmt.Errorf("%w: user \"weir\" lacks +hgetall", quota.ErrUnusable)
	}
	return map[string]string{"api\x00/192.0.2.0/24": `0 {"denied":true}`}, "1", time.Now(), nil
}

func (k *lateKeeper) SaveOverride(context.Context, string, string, time.Duration, int) (bool, error) {
	return false, errors.New("not now")
}

// TestUnread: until the table was read, a denied network is served. This is not silent: Ready is
// false, Err has the reason, and the log has one line for the Keeper and one for the request.
func TestUnread(t *testing.T) {
	keeper, log := &lateKeeper{}, new(weirtest.Log)
	live := overrides.NewLive(overrides.LiveOptions{Keeper: keeper, Logger: slog.New(slog.NewTextHandler(log, nil))})
	h := weirtest.New(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []quota.Limit{algorithms.FixedWindow(100, time.Hour)},
		ForKey: live.Of("api", nil), Policy: weir.When(live.DenyFrom("api", weir.ClientAddr()), weir.Denied()),
	}}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	unread := live.Err()
	check := func(when string, ready bool, err error, status, lines int) {
		t.Helper()
		if got := weirtest.Do(h, weirtest.Ask("/", "192.0.2.7:1")).StatusCode; got != status {
			t.Errorf("%s: got %d, want %d", when, got, status)
		}
		if live.Ready() != ready || !errors.Is(live.Err(), err) || (err == nil) != (live.Err() == nil) {
			t.Errorf("%s: got Ready %v and error %v, want %v and %v", when, live.Ready(), live.Err(), ready, err)
		}
		if n := strings.Count(log.String(), "level=WARN"); n != lines {
			t.Errorf("%s: got %d warnings, want %d:\n%s", when, n, lines, log)
		}
	}
	if unread == nil {
		t.Error("got no error before Refresh")
	}
	check("before Refresh", false, unread, 200, 1)
	for range 3 {
		live.Refresh(t.Context())
		check("the keeper fails", false, quota.ErrUnusable, 200, 2)
	}
	keeper.works = true
	live.Refresh(t.Context())
	check("the keeper works", true, nil, 429, 2)
	keeper.works = false
	live.Refresh(t.Context())
	check("the keeper fails again", true, quota.ErrUnusable, 429, 3)
	if !overrides.NewLive(overrides.LiveOptions{}).Ready() {
		t.Error("a table of this process alone is not ready")
	}
}

// TestNobodyReads: without Run, a table that Set has read does not show what other processes deny. The
// first request says so. With Run, or if the program calls Refresh, it says nothing.
func TestNobodyReads(t *testing.T) {
	for who, lines := range map[string]int{"nobody": 1, "the program": 0, "Run": 0} {
		log := new(weirtest.Log)
		live := overrides.NewLive(overrides.LiveOptions{Keeper: &countingKeeper{Keeper: &memoryKeeper{}}, Logger: slog.New(slog.NewTextHandler(log, nil))})
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		mustSet(t, live, overrides.Entry{Key: "x", Denied: true}, 0)
		switch who {
		case "Run":
			live.Run(ctx)
		case "the program":
			live.Refresh(t.Context())
		}
		for range 2 {
			live.Of("api", nil)("y")
		}
		if got := strings.Count(log.String(), `changes by other processes not read" rule=api effect="what they deny is served" fix="call Run`); got != lines || strings.Count(log.String(), "\n") != lines {
			t.Errorf("%s reads the table: got %q, want %d lines", who, log, lines)
		}
	}
}

// A server that must never serve a denied key is not ready until the table was read.
func ExampleLive_Ready() {
	live := overrides.NewLive(overrides.LiveOptions{Keeper: &lateKeeper{works: true}}) // or a redisstore.Store
	fmt.Println(live.Ready())
	if err := live.Refresh(context.Background()); err != nil {
		fmt.Println(err)
	}
	fmt.Println(live.Ready())
	// Output:
	// false
	// true
}

// A countingKeeper counts how often it is read, and what.
type countingKeeper struct {
	overrides.Keeper
	loads int
}

func (k *countingKeeper) LoadOverrides(ctx context.Context, version string) (map[string]string, string, time.Time, error) {
	k.loads++
	return k.Keeper.LoadOverrides(ctx, version)
}

// TestBulk: setting many overrides reads none of the others again, and the table is then as if it had been
// read. Another process's change of the same override at the same time wins with the next Refresh.
func TestBulk(t *testing.T) {
	k := &countingKeeper{Keeper: &memoryKeeper{}}
	l, other := overrides.NewLive(overrides.LiveOptions{Keeper: k}), overrides.NewLive(overrides.LiveOptions{Keeper: k.Keeper})
	if err := l.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	forKey, r := l.Of("api", nil), rand.New(rand.NewPCG(1, 2))
	k.loads = 0
	for range 2000 {
		rule, key := fmt.Sprint("api", r.IntN(3))[:3+r.IntN(2)], fmt.Sprint(r.IntN(300))
		e := overrides.Entry{Key: key, Limits: limits(1 + r.Int64N(9))}
		switch r.IntN(4) {
		case 0:
			if _, err := l.Remove(t.Context(), rule, e); err != nil {
				t.Fatal(err)
			}
			continue
		case 1:
			e.Key, e.Prefix = "", key
		}
		if err := l.Set(t.Context(), rule, e, time.Duration(r.IntN(2))*time.Hour, ""); err != nil {
			t.Fatal(err)
		}
	}
	if k.loads > 0 {
		t.Errorf("the Keeper was read %d times", k.loads)
	}
	if err := other.Refresh(t.Context()); err != nil {
		t.Fatal(err)
	}
	same := other.Of("api", nil)
	for i := range 400 {
		if key := fmt.Sprint(i); text(forKey(key)) != text(same(key)) {
			t.Errorf("%s: got %s, want %s", key, text(forKey(key)), text(same(key)))
		}
	}
	if got, want := len(l.All()), len(other.All()); got != want || got < 100 {
		t.Errorf("got %d overrides, want %d", got, want)
	}
	mustSet(t, l, overrides.Entry{Key: "x", Denied: true}, 0)
	mustSet(t, other, overrides.Entry{Key: "x", Unlimited: true}, 0)
	mustSet(t, l, overrides.Entry{Key: "y", Denied: true}, 0)
	if err := l.Refresh(t.Context()); err != nil || !forKey("x").Is(weir.Unlimited()) {
		t.Errorf("after a change of another process: got %v, %v", forKey("x"), err)
	}
}
