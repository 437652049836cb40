package redisstore_test

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// trackers returns the lines of CLIENT LIST about connections that track keys.
func trackers(t *testing.T, s *redistest.Proc) (lines []string) {
	t.Helper()
	list, err := s.Do("CLIENT", "LIST")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(list.(string)) {
		if strings.Contains(line, " flags=t") {
			lines = append(lines, line)
		}
	}
	return lines
}

// resetIsReported deletes the key of w through another client, which may know for a moment only the master
// before a failover, until a server has reported that.
func (w *watcher) resetIsReported(rdb redis.UniversalClient) {
	w.t.Helper()
	before := w.hybrid.Stats()
	for begin := time.Now(); w.hybrid.Stats().Changes == before.Changes; time.Sleep(time.Millisecond) {
		err := rdb.Del(context.Background(), "weir:r:{."+w.charge.Key+"}").Err()
		if time.Since(begin) > time.Minute {
			w.t.Fatalf("no report: %+v; DEL returned %v", w.hybrid.Stats(), err)
		}
	}
	if !w.take() {
		w.t.Error("refused after the report, want allowed")
	}
}

// TestTrackLost: after the connection was lost, refusals still come from memory, and are watched
// again.
func TestTrackLost(t *testing.T) {
	server := redistest.Server(t)
	o := redisstore.ClientOptions(watchTimeout, server.Addr())
	w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
	defer rdb.Close()
	w.watched()
	before := w.hybrid.Stats()
	lines := trackers(t, server)
	if len(lines) != 1 {
		t.Fatalf("got %d connections that track keys, want 1", len(lines))
	}
	id, _, _ := strings.Cut(strings.TrimPrefix(lines[0], "id="), " ")
	if _, err := server.Do("CLIENT", "KILL", "ID", id); err != nil {
		t.Fatal(err)
	}
	w.until("watched again", func(bool) bool { return w.hybrid.Stats().Watched > before.Watched })
	w.resetIsReported(rdb)
}

// TestTrackClosed: a client that is closed leaves no connection behind.
func TestTrackClosed(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(watchTimeout, server.Addr()))
	s, err := redisstore.New(rdb, redisstore.Options{Timeout: watchTimeout})
	if err != nil {
		t.Fatal(err)
	}
	w := newWatcher(t, redisstore.ClientOptions(watchTimeout, server.Addr()))
	w.hybrid = quota.Hybrid(s, quota.HybridOptions{})
	w.watched()
	if err := rdb.Close(); err != nil {
		t.Fatal(err)
	}
	for begin := time.Now(); len(trackers(t, server)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begin) > time.Minute {
			t.Fatal("the connection that tracks keys is open after a minute")
		}
	}
}

// TestTrackScripts: a server that has lost its scripts gets them again.
func TestTrackScripts(t *testing.T) {
	server := redistest.Server(t)
	o := redisstore.ClientOptions(watchTimeout, server.Addr())
	w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
	defer rdb.Close()
	for i := range 3 {
		w.charge.Key = fmt.Sprint(i)
		for w.take() {
		}
		if _, err := server.Do("SCRIPT", "FLUSH"); err != nil {
			t.Fatal(err)
		}
		w.watched()
		w.resetIsReported(rdb)
	}
}

// TestTrackTable: a server whose table of tracked keys is full reports a key that it removes from
// the table. The refusal of that key is then decided anew.
func TestTrackTable(t *testing.T) {
	server := redistest.Server(t, "--tracking-table-max-keys", "2")
	o := redisstore.ClientOptions(watchTimeout, server.Addr())
	w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
	defer rdb.Close()
	for i := range 10 {
		w.charge.Key = fmt.Sprint(i)
		w.watched()
	}
	if n := w.hybrid.Stats().Changes; n < 5 {
		t.Errorf("%d reports for 10 keys in a table of 2, want 5 at least", n)
	}
	// A report may be that of a removal from the table, so it need not be that of the reset.
	if err := rdb.Del(t.Context(), "weir:r:{."+w.charge.Key+"}").Err(); err != nil {
		t.Fatal(err)
	}
	w.until("allowed", func(allowed bool) bool { return allowed })
}

// TestTrackSettings: tracking works with a user, a password, a database and TLS.
func TestTrackSettings(t *testing.T) {
	t.Run("user and database", func(t *testing.T) {
		server := redistest.Server(t)
		if _, err := server.Do("ACL", "SETUSER", "weir", "on", ">pw", "~weir:*", "+@all", "-hello", "-ping"); err != nil {
			t.Fatal(err)
		}
		o := redisstore.ClientOptions(watchTimeout, server.Addr())
		o.Username, o.Password, o.DB = "weir", "pw", 3
		w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
		defer rdb.Close()
		w.watched()
		w.resetIsReported(rdb)
	})
	t.Run("TLS", func(t *testing.T) {
		cert, key := filepath.Join(t.TempDir(), "a.crt"), filepath.Join(t.TempDir(), "a.key")
		redistest.Certificate(t, cert, key)
		addr := redistest.TLS(t, cert, key)
		pem, err := os.ReadFile(cert)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.LoadX509KeyPair(cert, key)
		if err != nil {
			t.Fatal(err)
		}
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(pem)
		o := redisstore.ClientOptions(watchTimeout, addr)
		o.TLSConfig = &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}}
		w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
		defer rdb.Close()
		w.watched()
		w.resetIsReported(rdb)
	})
}

// TestTrackUnsupported: servers that cannot track keys are found at connect, also one that only
// pretends to. SendTime and NoTracking turn tracking off.
func TestTrackUnsupported(t *testing.T) {
	silent := redistest.Fake(t, func(args []string) string {
		switch strings.ToLower(args[0]) {
		case "hello":
			return "%1\r\n$5\r\nproto\r\n:3\r\n"
		case "eval":
			return "_\r\n"
		case "time":
			return "*2\r\n$1\r\n1\r\n$1\r\n1\r\n"
		}
		return "+OK\r\n"
	})
	forbidden := redistest.Server(t)
	if _, err := forbidden.Do("ACL", "SETUSER", "default", "-client|tracking"); err != nil {
		t.Fatal(err)
	}
	ignore := func(string, bool) {}
	for name, addr := range map[string]string{"silent": silent, "ACL": forbidden.Addr()} {
		t.Run(name, func(t *testing.T) {
			rdb := redis.NewUniversalClient(redisstore.ClientOptions(watchTimeout, addr))
			defer rdb.Close()
			s, err := redisstore.New(rdb, redisstore.Options{Timeout: watchTimeout})
			if err != nil {
				t.Fatal(err)
			}
			w := newWatcher(t, redisstore.ClientOptions(watchTimeout, addr))
			takeEach := s.Track(ignore, func(time.Time) {})
			errs := takeEach([]*quota.Transaction{{Charges: []quota.Charge{w.charge}, Mode: quota.ModePeek}})
			if len(errs) != 1 || !errors.Is(errs[0], errors.ErrUnsupported) {
				t.Errorf("got %v, want errors.ErrUnsupported", errs)
			}
			const lacks = "the default user lacks +client|tracking"
			if named := errors.Is(errs[0], quota.ErrUnusable) && strings.Contains(errs[0].Error(), lacks); named != (name == "ACL") {
				t.Errorf("got %v; only the server with the ACL should name the right that is lacking", errs)
			}
		})
	}
	for _, o := range []redisstore.Options{{SendTime: true}, {NoTracking: true}} {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(watchTimeout, silent))
		defer rdb.Close()
		s, err := redisstore.New(rdb, o)
		if err != nil {
			t.Fatal(err)
		}
		if s.Track(ignore, nil) != nil {
			t.Errorf("%+v: Track returned a function, want nil", o)
		}
	}
}

// TestTrackOutage: while the server is stopped, or its network swallows everything, refusals come
// from memory for at most 10 s after the last answer. After a restart without data, the key is
// allowed within that time.
func TestTrackOutage(t *testing.T) {
	rounds.Slow(t, "refusals last up to 10 s")
	for _, f := range []struct {
		name  string
		begin func(t *testing.T, server *redistest.Proc, proxy *redistest.FaultProxy)
		fails bool
	}{
		{"stopped", func(t *testing.T, s *redistest.Proc, _ *redistest.FaultProxy) { s.Pause(); t.Cleanup(s.Resume) }, true},
		{"black hole", func(_ *testing.T, _ *redistest.Proc, p *redistest.FaultProxy) { p.Swallow.Store(true) }, true},
		{"restart", func(t *testing.T, s *redistest.Proc, _ *redistest.FaultProxy) { s.Restart(t) }, false},
	} {
		t.Run(f.name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Server(t)
			proxy := redistest.Proxy(t, server.Addr())
			w := newWatcher(t, redisstore.ClientOptions(watchTimeout, proxy.Addr()))
			w.watched()
			calls := w.hybrid.Stats().Misses
			for begin := time.Now(); time.Since(begin) < 12*time.Second; time.Sleep(time.Millisecond) {
				w.take() // longer than without tracking
			}
			if n := w.hybrid.Stats().Misses - calls; n > 0 {
				t.Errorf("%d calls before the fault, want none", n)
			}
			f.begin(t, server, proxy)
			begin := time.Now()
			for w.hybrid.Stats().Misses == calls {
				tx := quota.Transaction{Charges: []quota.Charge{w.charge}}
				err := w.hybrid.Take(context.Background(), &tx)
				called := w.hybrid.Stats().Misses > calls
				if called && (err != nil) != f.fails || !called && (err != nil || tx.Allowed()) {
					t.Errorf("called %v: got %v and error %v, want an error %v", called, tx.Decisions, err, f.fails)
				}
				if time.Since(begin) > time.Minute {
					t.Fatal("refused from memory for a minute")
				}
				time.Sleep(time.Millisecond)
			}
			t.Log("from memory for", time.Since(begin))
		})
	}
}

// TestTrackFailover: after a failover, refusals are watched on the new master, and in a cluster on
// the node that has got the slot.
func TestTrackFailover(t *testing.T) {
	rounds.Slow(t, "a failover takes seconds")
	for _, how := range []string{"killed", "hung", "planned"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			s := redistest.Sentinel(t)
			o := redisstore.ClientOptions(watchTimeout, s.Addrs()...)
			o.MasterName = redistest.MasterName
			w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
			defer rdb.Close()
			w.watched()
			if err := rdb.Do(t.Context(), "wait", 1, 10_000).Err(); err != nil { // the replica has the key
				t.Fatal(err)
			}
			switch how {
			case "killed":
				s.Master.Kill()
			case "hung":
				s.Master.Pause()
				defer s.Master.Resume()
			default:
				sentinel := redis.NewClient(&redis.Options{Addr: s.Addrs()[0]})
				defer sentinel.Close()
				if err := sentinel.Do(t.Context(), "SENTINEL", "FAILOVER", redistest.MasterName).Err(); err != nil {
					t.Fatal(err)
				}
			}
			begin, before := time.Now(), w.hybrid.Stats()
			for w.hybrid.Stats().Watched == before.Watched {
				tx := quota.Transaction{Charges: []quota.Charge{w.charge}}
				_ = w.hybrid.Take(t.Context(), &tx) // it fails while there is no master
				if time.Since(begin) > time.Minute {
					t.Fatalf("not watched on the new master: %+v", w.hybrid.Stats())
				}
				time.Sleep(time.Millisecond)
			}
			t.Logf("watched on the new master after %v and %d calls", time.Since(begin), w.hybrid.Stats().Misses-before.Misses)
			w.resetIsReported(rdb)
		})
	}
	t.Run("cluster", func(t *testing.T) {
		t.Parallel()
		c := redistest.Cluster(t, 3, 0)
		o := redisstore.ClientOptions(watchTimeout, c.Addrs()...)
		w, rdb := newWatcher(t, o), redis.NewUniversalClient(o)
		defer rdb.Close()
		for i := range 12 {
			w.charge.Key = fmt.Sprint("k", i)
			w.watched()
			w.resetIsReported(rdb)
		}
		w.watched()
		name := "weir:r:{." + w.charge.Key + "}"
		from, to := c.MasterOf(name), c.Nodes[0]
		if to == from {
			to = c.Nodes[1]
		}
		before := w.hybrid.Stats()
		c.Reshard(t, from, to, redistest.Slot(name))
		reported(t, w.hybrid, before)
		w.until("watched on the new node", func(bool) bool { return w.hybrid.Stats().Watched > before.Watched })
		w.resetIsReported(rdb)
	})
}

// TestTrackTryAgain: a server that answers TRYAGAIN on the connection that tracks keys is asked again, but
// not for ever.
func TestTrackTryAgain(t *testing.T) {
	t.Parallel() // it takes 2 s
	var changed, asked atomic.Int64
	addr := redistest.Fake(t, func(args []string) string {
		switch args[0] {
		case "hello":
			return "%0\r\n"
		case "psetex":
			changed.Store(1)
		case "time":
			const now = "*2\r\n$1\r\n1\r\n$1\r\n2\r\n"
			if changed.CompareAndSwap(1, 0) {
				return ">2\r\n$10\r\ninvalidate\r\n*1\r\n$1\r\nk\r\n" + now
			}
			return now
		case "evalsha":
			asked.Add(1)
			return "-TRYAGAIN Multiple keys request during rehashing of slot\r\n"
		}
		return "+OK\r\n"
	})
	rdb := redis.NewClient(&redis.Options{Addr: addr, Protocol: 2})
	defer rdb.Close()
	takeEach := newStore(t, rdb).Track(func(string, bool) {}, func(time.Time) {})
	err := takeEach([]*quota.Transaction{weirtest.Once(everyLimit[0])})[0]
	if err == nil || asked.Load() < 2 {
		t.Errorf("got error %v after %d questions, want an error after several", err, asked.Load())
	}
}
