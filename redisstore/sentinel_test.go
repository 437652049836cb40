package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/redisstore"
)

// TestSentinel: when the master dies or hangs, Sentinel makes a replica the master, and the
// store finds the new master.
func TestSentinel(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds until Sentinels agree")
	}
	failover(t, func(t *testing.T) set {
		s := redistest.Sentinel(t)
		o := redisstore.ClientOptions(0, s.Addrs()...)
		o.MasterName = redistest.MasterName
		return set{options: o, key: "k", kill: s.Master.Kill, pause: s.Master.Pause, resume: s.Master.Resume}
	})
}

// TestSentinelPlanned measures how many units are admitted twice during SENTINEL FAILOVER.
// Sentinel makes a replica the master, and tells the old master up to a second later. The new
// master never learns of units that the old master admits in that time. There are only few
// such units if the old master needs all replicas for a write, or if its writes are paused
// before the failover.
func TestSentinelPlanned(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds until Sentinels agree")
	}
	for _, c := range []struct {
		name    string
		prepare []string // a command for the old master
		bounded bool
	}{
		{"as it is", nil, false},
		{"all replicas needed", []string{"CONFIG", "SET", "min-replicas-to-write", "2"}, true},
		{"writes paused", []string{"CLIENT", "PAUSE", "5000", "WRITE"}, true},
	} {
		if c.prepare == nil && !rounds.Long() {
			continue // this one only measures
		}
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			planFailover(t, c.prepare, c.bounded)
		})
	}
}

// planFailover asks Sentinel for a failover under load. If bounded is set, only units that
// are under way may be admitted twice.
func planFailover(t *testing.T, prepare []string, bounded bool) {
	t.Helper()
	s := redistest.Sentinel(t)
	o := redisstore.ClientOptions(0, s.Addrs()...)
	o.MasterName = redistest.MasterName
	store, err := redisstore.New(client(t, redis.NewUniversalClient(o)), redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := loadKey(t, store, "k", time.Millisecond)
	l.goesOn(t, 500)
	if prepare != nil {
		if _, err := s.Master.Do(prepare...); err != nil {
			t.Fatal(err)
		}
	}
	errs := l.errs.Load()
	begin := time.Now()
	if _, err := s.Sentinels[0].Do("SENTINEL", "FAILOVER", redistest.MasterName); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a new master", func() error {
		if s.Current() == s.Master {
			return errStill
		}
		return nil
	})
	time.Sleep(2 * time.Second) // until all servers know the new master
	l.goesOn(t, 500)
	l.stop()
	admitted, spent := l.admitted.Load(), l.spent(t, store)
	twice := max(0, admitted-spent[0])
	t.Logf("%d admitted, %d of them twice; %d errors, the last %v after the order: %v", admitted, twice, l.errs.Load()-errs,
		time.Unix(0, l.last.Load()).Sub(begin).Round(time.Millisecond), l.lastErr.Load())
	if bounded && twice > 20 {
		t.Errorf("got %d admitted twice, want none, or the few under way", twice)
	}
}

var errStill = errors.New("the old master")
