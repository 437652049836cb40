package quota_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/explore"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A reporting store tracks states, as Redis does. Answers and reports take up to trip, and may
// overtake each other.
type reporting struct {
	quota.Store
	trip func() time.Duration

	mu      sync.Mutex
	err     error // of each call for states to track
	calls   int   // of Take
	peeks   int
	tracked map[string]bool
	changed func(key string, all bool)
	current func(at time.Time)
}

func newReporting() *reporting {
	return &reporting{Store: memory(), trip: func() time.Duration { return 0 }, tracked: map[string]bool{}}
}

// Take is the call of a Hybrid.
func (r *reporting) Take(ctx context.Context, t *quota.Transaction) error {
	r.mu.Lock()
	r.calls++
	r.mu.Unlock()
	time.Sleep(r.trip())
	err := r.change(ctx, t)
	time.Sleep(r.trip())
	return err
}

// change is what any process does.
func (r *reporting) change(ctx context.Context, t *quota.Transaction) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	err := r.Store.Take(ctx, t)
	for i := range t.Charges {
		if key := t.Charges[i].Key; err == nil && t.Allowed() && t.Mode != quota.ModePeek && r.tracked[key] {
			delete(r.tracked, key)
			go func() {
				time.Sleep(r.trip())
				r.changed(key, false)
			}()
		}
	}
	return err
}

func (r *reporting) Track(changed func(key string, all bool), current func(at time.Time)) (
	takeEach func(ts []*quota.Transaction) []error) {
	r.changed, r.current = changed, current
	return func(ts []*quota.Transaction) []error {
		errs := make([]error, len(ts))
		sent := time.Now()
		time.Sleep(r.trip())
		r.mu.Lock()
		for i, t := range ts {
			r.peeks++
			if errs[i] = r.err; r.err == nil {
				errs[i] = r.Store.Take(context.Background(), t)
				r.tracked[t.Charges[0].Key] = true
			}
		}
		failed := r.err != nil
		r.mu.Unlock()
		time.Sleep(r.trip())
		if !failed {
			current(sent)
		}
		return errs
	}
}

// beat proves every 2 s that all changes have been reported, until stop is called.
func (r *reporting) beat() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		for {
			r.current(time.Now())
			select {
			case <-ctx.Done():
				return
			case <-time.After(2 * time.Second):
			}
		}
	}()
	return cancel
}

func (r *reporting) numbers() (calls, peeks int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.calls, r.peeks
}

// unit returns a charge under a limit of one unit a day.
func unit(key string) quota.Charge {
	return quota.Charge{Rule: "api", Key: key, Limit: algorithms.FixedWindow(1, 24*time.Hour), Cost: 1}
}

// TestWatchIsExact: several callers and other processes use a few keys at random, and answers and
// reports arrive in any order. As soon as all of them have arrived, Hybrid refuses from memory only
// what the store refuses.
func TestWatchIsExact(t *testing.T) {
	seed := rounds.Seed(t)
	watched, served := int64(0), int64(0)
	for round := range rounds.N(200, 5000) {
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, uint64(round)))
			behind := newReporting()
			var mu sync.Mutex
			random := func(n int) int { mu.Lock(); defer mu.Unlock(); return r.IntN(n) }
			behind.trip = func() time.Duration { return time.Duration(random(2000)) * time.Microsecond }
			store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 1000})
			limits := []quota.Limit{
				algorithms.FixedWindow(2, 24*time.Hour), algorithms.GCRA(2, time.Hour), algorithms.SlidingLog(2, time.Hour),
			}
			charge := func() quota.Charge {
				l := random(len(limits))
				return quota.Charge{Rule: "api", Key: fmt.Sprint(l, random(2)), Limit: limits[l], Cost: 1}
			}
			stop := weirtest.Meanwhile(4, func(i int) bool {
				c := charge()
				if i > 0 {
					take(t, store, 0, c)
				} else if c.Cost = -1; behind.change(t.Context(), &quota.Transaction{Charges: []quota.Charge{c}}) != nil {
					t.Error("a refund failed")
				}
				time.Sleep(time.Duration(random(100)) * time.Millisecond)
				return true
			})
			time.Sleep(time.Second)
			stop()
			time.Sleep(time.Second)
			for range 2 { // the refusals that were not watched now are
				for l := range limits {
					for k := range 2 {
						take(t, store, 0, quota.Charge{Rule: "api", Key: fmt.Sprint(l, k), Limit: limits[l], Cost: 1})
					}
				}
				time.Sleep(4 * time.Second)
			}
			for l := range limits {
				for k := range 2 {
					c := quota.Charge{Rule: "api", Key: fmt.Sprint(l, k), Limit: limits[l], Cost: 1}
					if quota.Remembers(store, c) && peek(t, behind.Store, c).Allowed() {
						t.Errorf("seed %d, round %d: %v is refused from memory, and the store allows it", seed, round, c)
					}
				}
			}
			watched += store.Stats().Watched
			served += store.Stats().Hits
		})
	}
	t.Logf("%d refusals watched, %d from memory", watched, served)
	if watched < 500 {
		t.Errorf("seed %d: watched only %d refusals", seed, watched)
	}
}

// TestWatchEnds: a refusal from memory lasts until the store reports a change, but not without
// end: at most 5 minutes, and at most 10 s after the last proof that all changes were reported.
// The requests do not call the store all in the same instant.
func TestWatchEnds(t *testing.T) {
	const keys = 1000
	for _, tt := range []struct {
		name        string
		then        func(r *reporting, stopBeat func())
		least, most time.Duration // until the calls
	}{
		{"change of all", func(r *reporting, _ func()) { r.changed("", true) }, 0, 0},
		{"connection lost", func(r *reporting, stop func()) { stop(); r.err = errDown; r.current(time.Time{}) },
			time.Second, 10 * time.Second},
		{"black hole", func(r *reporting, stop func()) { stop(); r.err = errDown }, time.Second, 10 * time.Second},
		{"nothing", func(*reporting, func()) {}, 4 * time.Minute, 5 * time.Minute},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				behind := newReporting()
				store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 10 * keys})
				stop := behind.beat()
				defer stop()
				all := func() {
					for i := range keys {
						take(t, store, 0, unit(fmt.Sprint(i)))
					}
				}
				all()
				all()
				for range 60 {
					all()
					time.Sleep(time.Second / 4)
				}
				if calls, peeks := behind.numbers(); calls != 2*keys || peeks != keys {
					t.Fatalf("%d calls and %d watched, want %d and %d", calls, peeks, 2*keys, keys)
				}
				tt.then(behind, stop)
				begin, most, before := time.Now(), 0, 2*keys
				for before < 3*keys && time.Since(begin) < 2*tt.most+time.Second {
					at := time.Since(begin)
					all()
					calls, _ := behind.numbers()
					if n := calls - before; n > 0 {
						if at < tt.least || at > tt.most {
							t.Errorf("%d calls after %v, want all after %v to %v", n, at, tt.least, tt.most)
						}
						most, before = max(most, n), calls
					}
					if at < tt.least-20*time.Second { // no quarter of a second is looked at
						time.Sleep(10 * time.Second)
					}
					time.Sleep(time.Second / 4)
				}
				if before != 3*keys {
					t.Errorf("%d calls, want one for each of %d keys", before-2*keys, keys)
				}
				if most > keys/5 && tt.most > 0 && tt.most < time.Minute {
					t.Errorf("%d calls of %d keys in a quarter of a second", most, keys)
				}
			})
		})
	}
}

// TestWatchAgain: after the connection was lost, refusals are watched again without a call, and not
// all of them in the same instant.
func TestWatchAgain(t *testing.T) {
	const keys = 1000
	synctest.Test(t, func(t *testing.T) {
		behind := newReporting()
		store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 10 * keys})
		defer behind.beat()()
		for range 60 {
			for i := range keys {
				take(t, store, 0, unit(fmt.Sprint(i)))
			}
			time.Sleep(time.Second / 4)
		}
		behind.current(time.Time{})
		calls, before := behind.numbers()
		for range 12 {
			for i := range keys {
				take(t, store, 0, unit(fmt.Sprint(i)))
			}
			synctest.Wait()
			if _, peeks := behind.numbers(); peeks > before+keys/5 {
				t.Errorf("%d watched in a quarter of a second, want at most %d", peeks-before, keys/5)
			} else {
				before = peeks
			}
			time.Sleep(time.Second / 4)
		}
		if after, peeks := behind.numbers(); after != calls || peeks != 2*keys {
			t.Errorf("%d calls and %d watched again, want 0 and %d", after-calls, peeks-keys, keys)
		}
	})
}

// TestHybridSpreads: keys that were refused in the same instant call a store that reports nothing
// again after 7.5 to 10 s, each at another time.
func TestHybridSpreads(t *testing.T) {
	const keys = 1000
	synctest.Test(t, func(t *testing.T) {
		behind := &distant{Store: memory()}
		store := quota.Hybrid(behind, quota.HybridOptions{MaxKeys: 10 * keys})
		before, most := int64(2*keys), int64(0)
		for i := range 110 {
			for j := range keys {
				take(t, store, 0, unit(fmt.Sprint(j)))
				if i == 0 {
					take(t, store, 0, unit(fmt.Sprint(j)))
				}
			}
			calls := behind.Calls.Load()
			if n := calls - before; n > 0 && (i < 75 || i > 100) {
				t.Errorf("%d calls after %d tenths of a second, want all after 75 to 100", n, i)
			} else {
				most = max(most, n)
			}
			before = calls
			time.Sleep(time.Second / 10)
		}
		if before != 3*keys || most > keys/10 {
			t.Errorf("%d calls, up to %d at once, want one for each of %d keys", before-2*keys, most, keys)
		}
	})
}

// TestWatchBusy: a refused key that others keep changing costs at most one call a second.
func TestWatchBusy(t *testing.T) {
	for _, every := range []time.Duration{time.Second / 100, 3 * time.Second / 10, 3 * time.Second, 9 * time.Second} {
		synctest.Test(t, func(t *testing.T) {
			behind := newReporting()
			store := quota.Hybrid(behind, quota.HybridOptions{})
			defer behind.beat()()
			limit := algorithms.FixedWindow(1_000_000, 24*time.Hour)
			dear := quota.Charge{Rule: "api", Key: "k", Limit: limit, Cost: 1_000_000}
			cheap := quota.Charge{Rule: "api", Key: "k", Limit: limit, Cost: 1}
			take(t, store, 0, cheap)
			stop := weirtest.Meanwhile(1, func(int) bool {
				_ = behind.change(t.Context(), &quota.Transaction{Charges: []quota.Charge{cheap}})
				time.Sleep(every)
				return true
			})
			time.Sleep(time.Minute) // the start has cost a few more calls
			calls, peeks := behind.numbers()
			for range 60_000 {
				if take(t, store, 0, dear).Allowed() {
					t.Fatal("allowed, want refused")
				}
				time.Sleep(time.Millisecond)
			}
			stop()
			calls2, peeks2 := behind.numbers()
			t.Logf("changed every %v: %d calls and %d watched in a minute", every, calls2-calls, peeks2-peeks)
			if n := calls2 - calls + peeks2 - peeks; n > 66 {
				t.Errorf("changed every %v: %d calls in a minute, want about 60 at most", every, n)
			}
		})
	}
}

// TestWatchUnsupported: with a store that cannot track states, everything is as without, and one line
// of the log says so.
func TestWatchUnsupported(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var lines weirtest.Log
		behind := newReporting()
		behind.err = fmt.Errorf("no tracking: %w", errors.ErrUnsupported)
		store := quota.Hybrid(quota.Breaker(quota.Coalesce(behind), quota.BreakerOptions{}),
			quota.HybridOptions{Logger: slog.New(slog.NewTextHandler(&lines, nil))})
		plain := &distant{Store: memstore.New(memstore.Options{})}
		other := quota.Hybrid(plain, quota.HybridOptions{})
		for range 10_000 {
			if a, b := take(t, store, 0, unit("k")), take(t, other, 0, unit("k")); a.Decisions[0] != b.Decisions[0] {
				t.Fatalf("got %v, without tracking %v", a.Decisions, b.Decisions)
			}
			time.Sleep(10 * time.Millisecond)
		}
		if calls, peeks := behind.numbers(); calls < 11 || calls > 15 || peeks < 1 || peeks > 2 {
			t.Errorf("%d calls and %d for tracking in 100 s, want 11 to 15, and 2", calls, peeks)
		}
		if n := strings.Count(lines.String(), "does not report changes"); n != 1 {
			t.Errorf("%d lines, want 1: %s", n, &lines)
		}
	})
}

// TestWatch: what Watch calls done with says whether another process has changed the key.
func TestWatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := newReporting()
		store := quota.Hybrid(behind, quota.HybridOptions{})
		stop := behind.beat()
		defer stop()
		take(t, store, 0, unit("k"))
		var got quota.Decision
		var current func() bool
		watch := func() {
			if !store.Watch(unit("k"), func(d quota.Decision, c func() bool) { got, current = d, c }) {
				t.Error("Watch returned false")
			}
			synctest.Wait()
		}
		watch()
		time.Sleep(time.Minute)
		if got.Allowed || !current() {
			t.Errorf("got %v, current %v, want a refusal that counts", got, current())
		}
		_ = behind.change(t.Context(), &quota.Transaction{Charges: []quota.Charge{unit("k")}, Mode: quota.ModeForget})
		synctest.Wait()
		if current() {
			t.Error("counts after a change")
		}
		time.Sleep(time.Minute)
		watch()
		stop()
		time.Sleep(10 * time.Second)
		if !got.Allowed || current() {
			t.Errorf("got %v, current %v, want an admission that does not count without proofs", got, current())
		}
		if quota.Hybrid(memory(), quota.HybridOptions{}).Watch(unit("k"), nil) {
			t.Error("Watch of a store that does not track: got true")
		}
	})
}

// A watchState is a key in a store that tracks it, and what a process remembers of it. Answers and
// reports may overtake each other.
type watchState struct {
	free, tracked     bool
	changes, requests int8 // left
	reports           int8 // under way
	version           int8

	take, peek struct {
		at      callStep
		version int8 // of the key when the call was sent
		free    bool
	}
	block struct{ known, watched bool }
	of    int8 // the version of the block
}

// TestModelWatch: when nothing is under way, no watched refusal is older than a change of its key.
func TestModelWatch(t *testing.T) {
	explore.Holds(t, 300, func(fault string) explore.Model[watchState] {
		return explore.Model[watchState]{
			Start: watchState{changes: 3, requests: 5},
			Next: func(s watchState, then func(string, watchState)) {
				step := func(possible bool, event string, change func(s *watchState)) {
					if possible {
						after := s
						change(&after)
						then(event, after)
					}
				}
				serves := s.block.known && s.of == s.version
				step(s.changes > 0, "another process changes the key", func(s *watchState) {
					s.changes--
					s.free = !s.free
					if s.tracked {
						s.tracked = false
						s.reports++
					}
				})
				step(s.reports > 0, "a report arrives", func(s *watchState) { s.reports--; s.version++ })
				step(s.requests > 0 && !serves && s.take.at == without, "a request is sent", func(s *watchState) {
					s.requests--
					s.take.at, s.take.version = sent, s.version
				})
				step(s.take.at == sent, "the request is decided", func(s *watchState) { s.take.at, s.take.free = decided, s.free })
				step(s.take.at == decided, "its answer arrives", func(s *watchState) {
					s.take.at = without
					s.block.known, s.block.watched, s.of = !s.take.free, false, s.take.version
				})
				watch := s.requests > 0 && serves && !s.block.watched && s.peek.at == without
				step(watch, "the refusal is to be watched", func(s *watchState) {
					s.requests--
					s.peek.at, s.peek.version = sent, s.version
				})
				step(s.peek.at == sent, "the store decides again", func(s *watchState) {
					s.peek.at, s.peek.free, s.tracked = decided, s.free, true
				})
				step(s.peek.at == decided, "its answer arrives", func(s *watchState) {
					s.peek.at = without
					switch fault {
					case "keeps the earlier decision":
						s.block.watched = s.block.known
						return
					case "reads the version with the answer":
						s.peek.version = s.version
					}
					s.block.known, s.block.watched, s.of = !s.peek.free, !s.peek.free, s.peek.version
				})
			},
			Invalid: func(s watchState) string {
				quiet := s.reports == 0 && s.take.at == without && s.peek.at == without
				if quiet && s.free && s.block.known && s.block.watched && s.of == s.version {
					return "refuses for ever what the store allows"
				}
				return ""
			},
		}
	}, "keeps the earlier decision", "reads the version with the answer")
}
