package redisstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A load is four goroutines that charge one key again and again, and counts of the results.
type load struct {
	charges  []quota.Charge
	admitted atomic.Int64
	errs     atomic.Int64
	slowest  atomic.Int64 // ns
	last     atomic.Int64 // the time of the last error, in ns since 1970
	lastErr  atomic.Value
	stop     func()
}

const plenty = 1_000_000

// loadKey starts a load on a key. Redis keeps the limits of the load in two values. Their
// quotas are not used up.
func loadKey(t *testing.T, store quota.Store, key string, pause time.Duration) *load {
	l := &load{}
	for _, limit := range []quota.Limit{
		algorithms.AnchoredWindow(plenty, time.Hour), algorithms.GCRA(1, 10*time.Minute).WithBurst(plenty),
		algorithms.SlidingLog(plenty, time.Hour), algorithms.SlidingLog(plenty, 2*time.Hour).Named("2h"),
	} {
		l.charges = append(l.charges, quota.Charge{Rule: "r", Key: key, Limit: limit, Cost: 1})
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			tx := quota.Transaction{Charges: l.charges}
			for ctx.Err() == nil {
				begin := time.Now()
				err := store.Take(context.Background(), &tx)
				if d := int64(time.Since(begin)); d > l.slowest.Load() {
					l.slowest.Store(d)
				}
				switch {
				case err != nil:
					l.errs.Add(1)
					l.last.Store(time.Now().UnixNano())
					l.lastErr.Store(err.Error())
				case tx.Allowed():
					l.admitted.Add(1)
				}
				time.Sleep(pause)
			}
		})
	}
	l.stop = func() { cancel(); wg.Wait() }
	t.Cleanup(l.stop)
	return l
}

// goesOn returns when n more charges were admitted.
func (l *load) goesOn(t *testing.T, n int64) {
	t.Helper()
	want := l.admitted.Load() + n
	for begin := time.Now(); l.admitted.Load() < want; time.Sleep(time.Millisecond) {
		if time.Since(begin) > 20*time.Second {
			t.Fatalf("got %d admitted, want %d; the last error is %v", l.admitted.Load(), want, l.lastErr.Load())
		}
	}
}

// spent returns how many units were spent under each limit, as Redis counts them.
func (l *load) spent(t *testing.T, store quota.Store) (units []int64) {
	tx := quota.Transaction{}
	for _, c := range l.charges {
		c.Cost = 0
		tx.Charges = append(tx.Charges, c)
	}
	eventually(t, "a look", func() error { return store.Take(context.Background(), &tx) })
	for _, d := range tx.Decisions {
		units = append(units, plenty-d.Remaining)
	}
	return units
}

// A set is a group of Redis servers that replaces a master that is gone: Sentinel or a
// cluster.
type set struct {
	options *redis.UniversalOptions
	key     string
	kill    func() // kills the master of the key
	pause   func()
	resume  func()
}

// failover kills the master under load, and in a second test pauses it. There must be
// decisions again within 4 s. failover logs how many units were admitted twice: the units that
// clients were granted and that the new master does not count.
func failover(t *testing.T, start func(t *testing.T) set) {
	const within = 4 * time.Second
	for _, how := range []string{"killed", "paused"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			// A busy machine may delay the election of a master, so the better of two
			// attempts counts.
			for attempt := 1; ; attempt++ {
				outage := failoverOnce(t, how, start(t))
				if outage <= within {
					return
				}
				if attempt == 2 {
					t.Errorf("got decisions again after %v, want them within %v", outage, within)
					return
				}
				t.Logf("decisions again only after %v: once more", outage)
			}
		})
	}
}

func failoverOnce(t *testing.T, how string, s set) (outage time.Duration) {
	rdb := client(t, redis.NewUniversalClient(s.options))
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	l := loadKey(t, store, s.key, time.Millisecond)
	l.goesOn(t, 500)
	errs := l.errs.Load()

	begin := time.Now()
	if how == "killed" {
		s.kill()
	} else {
		s.pause()
	}
	for l.errs.Load() == errs { // until the store notices
		time.Sleep(100 * time.Microsecond)
		if time.Since(begin) > 10*time.Second {
			t.Fatalf("got no error with the master gone")
		}
	}
	l.goesOn(t, 100)
	outage = time.Unix(0, l.last.Load()).Sub(begin)
	l.goesOn(t, 500)
	if how == "paused" {
		s.resume() // the old master then still decides for a moment
		l.goesOn(t, 500)
	}
	l.stop()
	if slowest := time.Duration(l.slowest.Load()); slowest > 10*budget {
		t.Errorf("got an answer after %v, want %v", slowest, budget)
	}
	admitted, spent := l.admitted.Load(), l.spent(t, store)
	t.Logf("master %s: decisions again after %v; %d admitted, %d errors, slowest answer %v; spent %v: %d admitted twice",
		how, outage.Round(time.Millisecond), admitted, l.errs.Load(), time.Duration(l.slowest.Load()).Round(time.Millisecond), spent, max(0, admitted-spent[0]))
	for _, n := range spent[1:] {
		if n != spent[0] {
			t.Errorf("got %v units spent, want as many under each limit", spent)
		}
	}
	if unknown := l.errs.Load(); spent[0] > admitted+unknown {
		t.Errorf("got %d units spent, want %d admitted and %d without an answer at most", spent[0], admitted, unknown)
	}
	return outage
}
