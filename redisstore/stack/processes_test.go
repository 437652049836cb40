package stack

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A registry does what heartbeatLua does, for processes without rules.
type registry struct {
	mu   sync.Mutex
	down bool
	lost time.Time
	skew time.Duration // of the clock
	ends map[string]time.Time
}

// set stops or starts the registry.
func (r *registry) set(down bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.down = down
}

// lose removes the data or sets the clock, at most every 10 s.
func (r *registry) lose() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if time.Since(r.lost) >= 10*time.Second {
		r.lost = time.Now()
		switch rand.IntN(3) {
		case 0:
			r.skew += time.Hour // another server, with another clock
		case 1:
			r.skew -= time.Hour
		default:
			clear(r.ends)
		}
	}
}

func (r *registry) heartbeat(_ context.Context, id, _ string) (*redisstore.Heartbeat, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.down {
		return nil, errors.New("down")
	}
	now := time.Now().Add(r.skew)
	r.ends[id] = now.Add(20 * time.Second)
	for other, end := range r.ends {
		if !now.Before(end) {
			delete(r.ends, other)
		}
	}
	return &redisstore.Heartbeat{Processes: len(r.ends)}, nil
}

// A fleet is a number of processes that start and die.
type fleet struct {
	registry
	alive map[*processes]time.Time // since when
}

func newFleet() *fleet {
	return &fleet{registry{ends: map[string]time.Time{}}, map[*processes]time.Time{}}
}

func (f *fleet) start(ctx context.Context) *processes {
	p := &processes{heartbeat: f.heartbeat, memory: memstore.New(memstore.Options{MaxKeys: 64})}
	p.start(ctx, slog.New(slog.DiscardHandler))
	f.alive[p] = time.Now()
	return p
}

func (f *fleet) scale(ctx context.Context, n int) {
	for len(f.alive) < n {
		f.start(ctx)
	}
	for p := range f.alive {
		if len(f.alive) > n {
			f.stop(p)
		}
	}
}

// stop kills a process.
func (f *fleet) stop(p *processes) {
	p.stop()
	delete(f.alive, p)
}

// admitted returns which part of a limit of 840 units processes admit together of a key, those that
// started until then.
func (f *fleet) admitted(t *testing.T, key string, then time.Time) float64 {
	all := int64(0)
	for p, since := range f.alive {
		if !since.After(then) {
			n, _, err := quota.AllowAtMost(t.Context(), p, quota.Charge{Rule: "r", Key: key, Cost: 840, Limit: algorithms.FixedWindow(840, 1000*time.Hour)})
			if err != nil {
				t.Fatal(err)
			}
			all += n
		}
	}
	return float64(all) / 840
}

// TestShares: in an outage, all processes that had started 4 s before it together admit at most the
// limit, whatever started, died or was replaced before it, and even if Redis had lost all its data. A
// process that starts in the outage adds at most the limit.
func TestShares(t *testing.T) {
	for range rounds.N(200, 2000) {
		synctest.Test(t, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			f := newFleet()
			f.scale(ctx, 1+rand.IntN(8))
			for range rand.IntN(100) {
				time.Sleep(time.Duration(rand.Int64N(int64(2 * time.Second))))
				switch rand.IntN(8) {
				case 0:
					f.scale(ctx, 1+rand.IntN(8))
				case 1: // a rollout
					for p := range f.alive {
						f.stop(p)
						f.start(ctx)
					}
				case 2:
					f.lose()
				case 3: // a short outage, after which Redis has nothing
					f.set(true)
					time.Sleep(time.Duration(rand.Int64N(int64(time.Minute))))
					f.set(false)
					f.lose()
					time.Sleep(2 * countEvery) // an outage that follows sooner is the same one
				}
			}
			synctest.Wait()
			if rand.IntN(2) == 0 { // the outage begins soon after a loss
				f.lose()
				time.Sleep(time.Duration(rand.Int64N(int64(2 * countEvery))))
			}
			f.set(true)
			began := time.Now()
			time.Sleep(time.Second)
			if got := f.admitted(t, "old", began.Add(-2*countEvery)); got > 1 {
				t.Fatalf("processes of before the outage admit %v of the limit", got)
			}
			late := 0
			for _, since := range f.alive {
				if since.After(began.Add(-2 * countEvery)) {
					late++
				}
			}
			n := rand.IntN(4)
			f.scale(ctx, len(f.alive)+n)
			time.Sleep(time.Minute)
			if got := f.admitted(t, "all", time.Now()); got > float64(1+late+n) {
				t.Fatalf("all processes admit %v of the limit, %d of them new", got, late+n)
			}
		})
	}
}

// TestCounted: a larger number counts at once, and a smaller one after 10 s: the largest of these. While
// Redis is down, the last number counts.
func TestCounted(t *testing.T) {
	p := &processes{memory: memstore.New(memstore.Options{})}
	p.divide(0)
	begin := time.Now()
	for _, step := range []struct{ second, n, want int }{
		{0, 3, 3}, {2, 8, 8}, {4, 7, 8}, {6, 5, 8}, {10, 5, 8}, {11, 1, 8}, {12, 1, 7}, {14, 1, 7}, {16, 7, 7}, {18, 1, 7},
		{20, 0, 7}, {100, 0, 7}, {102, 1, 7}, {104, 2, 7}, {110, 1, 2}, {112, 9, 9},
	} {
		err := error(nil)
		if step.n == 0 {
			err = errors.New("down")
		}
		p.counted(step.n, err, begin.Add(time.Duration(step.second)*time.Second))
		if got := p.share.Load().n; got != step.want {
			t.Errorf("%+v: got %d", step, got)
		}
	}
}

// TestSharesFall: after 2, 8 and again 2 processes, their shares in an outage are 1/2, 1/8, and, within
// 35 s, 1/2. A rollout doubles the number for as long.
func TestSharesFall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		f := newFleet()
		check := func(want int) {
			t.Helper()
			synctest.Wait()
			for p := range f.alive {
				if got := p.share.Load().n; got != want {
					t.Fatalf("got %d processes, want %d", got, want)
				}
			}
		}
		f.scale(ctx, 2)
		time.Sleep(countEvery)
		check(2)
		f.scale(ctx, 8)
		time.Sleep(countEvery)
		check(8)
		f.scale(ctx, 2)
		time.Sleep(20 * time.Second)
		check(8)
		time.Sleep(15 * time.Second)
		check(2)
		for p := range f.alive {
			f.stop(p)
		}
		f.scale(ctx, 2)
		time.Sleep(countEvery)
		check(4)
		f.set(true)
		time.Sleep(time.Hour)
		check(4)
		f.set(false)
		time.Sleep(30 * time.Second)
		check(2)
	})
}

// TestAnotherServer: the evictions of a server are not those of the one before it.
func TestAnotherServer(t *testing.T) {
	var l lossDetector
	for i, h := range []redisstore.Heartbeat{{Server: "a", Evicted: 5}, {Server: "b", Evicted: 9}, {Server: "b", Evicted: 12}, {}, {Server: "b", Evicted: 13}} {
		l.check(&h, slog.New(slog.DiscardHandler))
		if got, want := l.stats(), (quota.LossStats{Evicted: []int64{0, 0, 3, 3, 3}[i]}); got != want {
			t.Errorf("%d: got %+v, want %+v", i, got, want)
		}
	}
}

// TestForeignForgotten: after a change of the rules, all processes count until their rules are compared again.
func TestForeignForgotten(t *testing.T) {
	p := &processes{limits: map[string]string{}, foreign: map[string]bool{"g": true}}
	groups := map[string]int{"g": 2, "h": 3, uncounted: 4}
	if n := p.foreigners(groups); n != 6 {
		t.Errorf("before: got %d, want 6", n)
	}
	p.announce("another rule", nil)
	if n := p.foreigners(groups); n != 4 {
		t.Errorf("after: got %d, want 4", n)
	}
}

// TestConflicts: a rule whose limits differ from those of another process for 40 s is one line in the log,
// and a setting that differs is one line. A shorter time is a rollout,
// however often the rules are reloaded. Other rules are no conflict.
func TestConflicts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &weirtest.Log{}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var mu sync.Mutex
		var others, sent map[string]string
		s := &Store{}
		p := &s.checker.processes
		p.memory, p.agree = memstore.New(memstore.Options{}), map[string]string{"-key-secret": "1a2b"}
		p.heartbeat = func(context.Context, string, string) (*redisstore.Heartbeat, error) {
			return &redisstore.Heartbeat{Processes: 2}, nil
		}
		p.compare = func(_ context.Context, _ string, texts map[string]string) (map[string][]string, error) {
			mu.Lock()
			defer mu.Unlock()
			sent = texts
			found := map[string][]string{}
			for name, text := range others {
				found[name] = []string{text}
			}
			return found, nil
		}
		p.start(ctx, slog.New(slog.NewTextHandler(log, nil)))
		s.Announce("api", []quota.Limit{algorithms.GCRA(100, time.Minute), algorithms.FixedWindow(9, time.Hour).Named("n").WithBurst(9)})
		login := func() { s.Announce("login", []quota.Limit{algorithms.GCRA(5, time.Minute)}) }
		login()
		s.Announce("by policy", nil)
		differ := func(nameAndText ...string) {
			mu.Lock()
			defer mu.Unlock()
			if others = nil; nameAndText != nil {
				others = map[string]string{nameAndText[0]: nameAndText[1]}
			}
		}
		expect := func(lines int) {
			t.Helper()
			synctest.Wait()
			if got := strings.Count(log.String(), "\n"); got != lines {
				t.Fatalf("got the log:\n%s\nwant %d lines", log, lines)
			}
		}
		defer p.stop()
		time.Sleep(time.Minute)
		const api = "1m: 100 per 1m0s (gcra), n/1h: 9 per 1h0m0s (fixed-window)"
		mu.Lock()
		if want := map[string]string{"": "api\nby policy\nlogin", "api": api, "login": "1m: 5 per 1m0s (gcra)", "\n-key-secret": "1a2b"}; !maps.Equal(sent, want) {
			t.Errorf("announced %q, want %q", sent, want)
		}
		mu.Unlock()
		differ("login", "1m: 10 per 1m0s (gcra)")
		for range 38 { // reloads
			time.Sleep(time.Second)
			login()
		}
		expect(0)
		differ()
		time.Sleep(time.Minute)
		differ("login", "1h: 5 per 1h0m0s (gcra)")
		time.Sleep(time.Minute)
		expect(1)
		const line = `msg="stack: limits of a rule differ in another process" rule=login limits="1m: 5 per 1m0s (gcra)" other_limits="1h: 5 per 1h0m0s (gcra)"`
		if !strings.Contains(log.String(), line) {
			t.Errorf("the log lacks %s:\n%s", line, log)
		}
		differ("", "search\nimport")
		time.Sleep(2 * time.Minute)
		expect(1)
		differ("\n-key-secret", "3c4d")
		time.Sleep(time.Minute)
		expect(2)
		if got := log.String(); !strings.Contains(got, `setting differs in another process" text=-key-secret`) || strings.Contains(got, "3c4d") {
			t.Errorf("the log does not name the setting, or has its value:\n%s", got)
		}
	})
}
