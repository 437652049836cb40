package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// a crowd is callers of Hold that note in which order they get their units.
type crowd struct {
	t     *testing.T
	store quota.Store
	mu    sync.Mutex
	got   []string
	leave map[string]chan bool
}

func newCrowd(t *testing.T, store quota.Store) *crowd {
	return &crowd{t: t, store: store, leave: map[string]chan bool{}}
}

// come makes a caller hold charges, waiting for up to within, until it is told to leave.
func (w *crowd) come(name string, within time.Duration, charges ...quota.Charge) (hangUp func()) {
	ctx, cancel := context.WithCancel(w.t.Context())
	timed := ctx
	leave := make(chan bool)
	w.leave[name] = leave
	start := time.Now()
	note := func(what string) {
		w.mu.Lock()
		defer w.mu.Unlock()
		w.got = append(w.got, what)
	}
	go func() {
		end := func() {}
		if within > 0 {
			timed, end = context.WithDeadline(ctx, start.Add(within))
		}
		defer end()
		release, err := quota.Hold(timed, w.store, charges...)
		switch {
		case errors.As(err, new(*quota.LimitedError)):
			note(fmt.Sprintf("%s refused after %v", name, time.Since(start)))
		case err != nil:
			note(name + ": " + err.Error())
		default:
			note(name)
			<-leave
			release()
		}
	}()
	synctest.Wait()
	return func() { cancel(); synctest.Wait() }
}

func (w *crowd) end(name string) { close(w.leave[name]); synctest.Wait() }

func (w *crowd) wants(want ...string) {
	w.t.Helper()
	synctest.Wait()
	w.mu.Lock()
	defer w.mu.Unlock()
	if !slices.Equal(w.got, want) {
		w.t.Errorf("got %q, want %q", w.got, want)
	}
	w.got = nil
}

// TestLine: units go to those who wait in the order in which they came, a newcomer does not
// overtake them, and who hangs up or runs out of time leaves the line. At the end no goroutine is
// left: otherwise synctest.Test would panic.
func TestLine(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newCrowd(t, memory()), jobs(2, time.Minute)
		w.come("a", 0, c)
		w.come("b", 0, c)
		w.come("c", time.Hour, c)
		leaves := w.come("d", time.Hour, c)
		w.come("e", 10*time.Second, c)
		w.come("f", time.Hour, c)
		w.wants("a", "b")
		w.come("g", 0, c) // does not wait
		w.wants("g refused after 0s")
		time.Sleep(9 * time.Second)
		leaves()
		w.wants("d: context canceled")
		time.Sleep(2 * time.Second)
		w.wants("e refused after 10s")
		w.end("b")
		w.wants("c")
		w.end("a")
		w.wants("f")
		w.end("c")
		w.end("f")
		w.come("h", 0, c)
		w.wants("h")
		w.end("h")
		if got := held(t, w.store, c); got != 0 {
			t.Errorf("at the end: got %d in flight, want 0", got)
		}
	})
}

// TestLineOvertaken: units that are free while others wait go to those, not to a newcomer that
// comes in between, whether it waits or not. The newcomer's refusal says so.
func TestLineOvertaken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, c := memory(), jobs(1, time.Minute)
		var slow atomic.Int64
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			time.Sleep(time.Duration(slow.Load()))
			return next.Take(ctx, tx)
		})
		w := newCrowd(t, store)
		w.come("a", 0, c)
		w.come("b", time.Hour, c)
		w.wants("a")
		slow.Store(int64(time.Millisecond))
		take(t, next, 0, quota.Charge{Rule: c.Rule, Key: c.Key, Limit: c.Limit, Cost: -1}) // by another process
		w.come("c", time.Hour, c)
		w.come("d", 0, c)
		time.Sleep(time.Millisecond)
		w.wants("d refused after 1ms")
		time.Sleep(time.Minute / 4)
		w.wants("b")
		w.end("b")
		time.Sleep(time.Second)
		w.wants("c")
		w.end("c")
		w.end("a")
		time.Sleep(time.Second)
	})
}

// TestLineWithRates: a caller spends no unit of a rate while it waits for a unit in flight, and
// holds no unit in flight while it waits for a rate. It waits for both in one line.
func TestLineWithRates(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		w, c := newCrowd(t, memory()), jobs(1, time.Minute)
		rate := quota.Charge{Rule: "rate", Key: "k", Limit: algorithms.GCRA(1, 10*time.Second).WithBurst(2), Cost: 1}
		spent := func(want int64) {
			t.Helper()
			if got := take(t, w.store, 0, quota.Charge{Rule: rate.Rule, Key: rate.Key, Limit: rate.Limit}).Decisions[0].Remaining; got != 2-want {
				t.Errorf("after %v: got %d left of the rate, want %d", time.Since(start), got, 2-want)
			}
		}
		w.come("a", 0, c, rate)
		w.come("b", time.Hour, c, rate)
		spent(1)
		time.Sleep(10 * time.Second)
		spent(0)
		w.end("a")
		w.wants("a", "b")
		w.end("b")
		w.come("c", 0, c, rate) // the second of the burst
		w.end("c")
		w.wants("c")
		w.come("d", time.Hour, rate, c) // the rate has a unit in 10 s
		w.come("e", 5*time.Second, rate, c)
		w.wants()
		if got := held(t, w.store, c); got != 0 {
			t.Errorf("while d waits for the rate: got %d in flight, want 0", got)
		}
		w.come("f", 0, c) // comes to the line of the rate only if it charges it
		w.wants("f")
		time.Sleep(5 * time.Second)
		w.wants("e refused after 5s") // it was behind d, so the store was not called
		time.Sleep(5 * time.Second)
		w.wants() // the rate would admit d, but f has the unit
		w.come("g", 0, rate, c)
		w.wants("g refused after 0s")
		w.end("f")
		w.wants("d")
		w.end("d")
		w.come("h", time.Second, rate, c) // the rate has no unit within a second
		w.wants("h refused after 0s")
	})
}

// TestLineQueue: a leaky bucket stays a queue beside a concurrency limit: it lets no burst pass.
func TestLineQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w, c := newCrowd(t, memory()), jobs(9, time.Minute)
		rate := quota.Charge{Rule: "rate", Key: "k", Limit: algorithms.LeakyBucket(5, 1, time.Second), Cost: 1}
		for i := range 3 {
			w.come(fmt.Sprint(i), time.Hour, c, rate)
		}
		time.Sleep(10 * time.Millisecond)
		w.wants("0")
		time.Sleep(time.Second)
		w.wants("1")
		time.Sleep(time.Second)
		w.wants("2")
		for i := range 3 {
			w.end(fmt.Sprint(i))
		}
	})
}

// TestLineKeys: a key whose units are all held delays nobody who does not charge it, even if they
// share another limit.
func TestLineKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := newCrowd(t, memory())
		all := quota.Charge{Rule: "all", Limit: algorithms.InFlight(3, time.Minute), Cost: 1}
		of := func(key string) quota.Charge {
			return quota.Charge{Rule: "client", Key: key, Limit: algorithms.InFlight(2, time.Minute), Cost: 1}
		}
		w.come("a1", 0, of("a"), all)
		w.come("a2", 0, of("a"), all)
		w.come("a3", time.Hour, of("a"), all)
		w.wants("a1", "a2")
		w.come("b1", 0, of("b"), all)
		w.wants("b1")
		w.end("a1")
		w.wants("a3")
		w.come("a4", time.Hour, of("a"), all)
		w.come("c1", time.Hour, of("c"), all)
		w.end("b1") // a4 came first, but its key has no unit
		w.wants("c1")
		w.end("a2")
		w.wants("a4")
		for _, name := range []string{"a3", "a4", "c1"} {
			w.end(name)
		}
	})
}

// TestLineSlots: a caller without a concurrency limit reserves its slot, but not before those who
// wait in line for the same rate.
func TestLineSlots(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		rate := quota.Charge{Rule: "rate", Key: "k", Limit: algorithms.GCRA(1, time.Second).WithBurst(1), Cost: 1}
		take(t, store, 0, rate)
		w := newCrowd(t, store)
		w.come("a", time.Hour, rate, jobs(1, time.Minute))
		var waited, wait time.Duration
		go func() {
			tx := &quota.Transaction{Charges: []quota.Charge{rate}, Within: time.Hour}
			var err error
			if waited, err = quota.TakeInLine(t.Context(), store, tx); err != nil || tx.Within != time.Hour {
				t.Errorf("got %v, and Within %v, want it unchanged", err, tx.Within)
			}
			wait = tx.Wait
		}()
		time.Sleep(5 * time.Second)
		w.wants("a")
		if waited != time.Second || wait != time.Second {
			t.Errorf("got waits of %v and %v, want a second in line and then a second for the slot", waited, wait)
		}
		w.end("a")
	})
}

// TestLineFails: an error of the store ends the wait of who has called it, and a panic passes. Those
// behind go on.
func TestLineFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, c := memory(), jobs(1, time.Minute)
		var fail atomic.Pointer[func() error]
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if f := fail.Swap(nil); f != nil {
				if err := (*f)(); err != nil {
					return err
				}
			}
			return next.Take(ctx, tx)
		})
		w := newCrowd(t, store)
		w.come("a", 0, c)
		for i := range 4 {
			go func() {
				defer func() {
					if p := recover(); p != nil {
						w.mu.Lock()
						defer w.mu.Unlock()
						w.got = append(w.got, fmt.Sprint(p))
					}
				}()
				if i == 1 {
					ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
					defer cancel()
					quota.Hold(ctx, store, c)
				}
			}()
			if i != 1 {
				w.come(fmt.Sprint(i), time.Hour, c)
			}
			synctest.Wait()
		}
		w.wants("a")
		fails := func() error { return errDown }
		fail.Store(&fails)
		time.Sleep(15 * time.Millisecond)
		w.wants("0: " + errDown.Error())
		panics := func() error { panic("a bug") }
		fail.Store(&panics)
		time.Sleep(30 * time.Millisecond)
		w.wants("a bug")
		w.end("a")
		time.Sleep(30 * time.Millisecond)
		w.wants("2")
		w.end("2")
		time.Sleep(30 * time.Millisecond)
		w.wants("3")
		w.end("3")
	})
}

// TestLineSlowStore: a wait ends at its deadline, or as soon as a call of the store that began
// before it has answered.
func TestLineSlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		next, c, budget := memory(), jobs(1, time.Minute), atomic.Int64{}
		store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			time.Sleep(time.Duration(budget.Load()))
			return next.Take(ctx, tx)
		})
		w := newCrowd(t, store)
		w.come("a", 0, c)
		budget.Store(int64(50 * time.Millisecond))
		for i := range 20 {
			start := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*10*time.Millisecond)
			for range 5 {
				go func() {
					_, err := quota.Hold(ctx, store, c)
					most := time.Duration(i)*10*time.Millisecond + 50*time.Millisecond
					if took := time.Since(start); took > most || err == nil {
						t.Errorf("got %v after %v, want a refusal within %v", err, took, most)
					}
				}()
			}
			time.Sleep(time.Second)
			cancel()
		}
		w.wants("a")
		w.end("a")
		time.Sleep(time.Second)
	})
}

// TestLinePolls: however many wait in a line, the store is called 100 times a second, and however
// many lines there are, 1000 times.
func TestLinePolls(t *testing.T) {
	for _, tt := range []struct{ lines, each, min, max int }{{1, 1, 90, 115}, {1, 50, 90, 115}, {5, 20, 450, 575}, {50, 2, 900, 1150}, {500, 1, 800, 1150}} {
		synctest.Test(t, func(t *testing.T) {
			next, calls := memory(), atomic.Int64{}
			store := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
				calls.Add(1)
				return next.Take(ctx, tx)
			})
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			for i := range tt.lines {
				c := jobs(1, 24*time.Hour)
				c.Key = fmt.Sprint(i)
				take(t, next, 0, c)
				for range tt.each {
					go quota.Hold(ctx, store, c)
				}
			}
			time.Sleep(10 * time.Second)
			synctest.Wait()
			calls.Store(0)
			time.Sleep(10 * time.Second)
			if calls := int(calls.Load() / 10); calls < tt.min || calls > tt.max {
				t.Errorf("%d lines of %d: got %d calls a second, want %d to %d", tt.lines, tt.each, calls, tt.min, tt.max)
			}
			cancel()
		})
	}
}

// TestLineModel: in random schedules of callers that come, leave, give up and hang up, under two
// limits, no limit holds more than its units, no unit is free while somebody waits who needs no
// other, and callers with the same charges get their units in the order in which they came.
func TestLineModel(t *testing.T) {
	schedules := rounds.N(300, 5000)
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 8))
	for n := range schedules {
		synctest.Test(t, func(t *testing.T) { lineModel(t, r, fmt.Sprintf("seed %d, schedule %d", seed, n)) })
	}
}

type modelCaller struct {
	n       int
	key     int
	waits   bool
	holds   bool
	fresh   bool // holds, and settled has not looked yet
	release chan bool
	hangUp  func()
}

func lineModel(t *testing.T, r *rand.Rand, where string) {
	store := memstore.New(memstore.Options{})
	each, total := int64(1+r.IntN(3)), int64(1+r.IntN(5))
	of := func(key int) []quota.Charge {
		return []quota.Charge{
			{Rule: "each", Key: fmt.Sprint(key), Limit: algorithms.InFlight(each, time.Minute), Cost: 1},
			{Rule: "all", Limit: algorithms.InFlight(total, time.Minute), Cost: 1},
		}
	}
	var mu sync.Mutex
	var all []*modelCaller
	come := func() {
		c := &modelCaller{n: len(all), key: r.IntN(3), release: make(chan bool)}
		ctx, hangUp := context.WithCancel(t.Context())
		c.hangUp = hangUp
		all = append(all, c)
		within := time.Duration(r.IntN(3)) * time.Duration(r.IntN(100)) * time.Millisecond
		go func() {
			defer hangUp()
			if within > 0 {
				var cancel func()
				ctx, cancel = context.WithTimeout(ctx, within)
				defer cancel()
			}
			mu.Lock()
			c.waits = true
			mu.Unlock()
			release, err := quota.Hold(ctx, store, of(c.key)...)
			mu.Lock()
			c.waits, c.holds, c.fresh = false, err == nil, err == nil
			mu.Unlock()
			if err == nil {
				<-c.release
				release()
			}
		}()
	}
	// settled waits until every caller waits or holds, and then looks for callers that hold while an
	// earlier caller of their key waits. It cannot look sooner: two callers whose units come in the
	// same instant learn of them in any order.
	settled := func() {
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			if !c.fresh {
				continue
			}
			c.fresh = false
			for _, o := range all[:c.n] {
				if o.waits && o.key == c.key {
					t.Errorf("%s: %d overtook %d", where, c.n, o.n)
				}
			}
		}
	}
	counts := func() (held, waiting [3]int64, sum int64) {
		mu.Lock()
		defer mu.Unlock()
		for _, c := range all {
			if c.holds {
				held[c.key]++
				sum++
			}
			if c.waits {
				waiting[c.key]++
			}
		}
		return held, waiting, sum
	}
	for range 40 {
		switch k := r.IntN(6); {
		case k < 3 || len(all) == 0:
			come()
		case k == 3:
			for range r.IntN(50) {
				time.Sleep(time.Millisecond)
				settled()
			}
		default:
			c := all[r.IntN(len(all))]
			mu.Lock()
			holds := c.holds
			c.holds = false
			mu.Unlock()
			if holds {
				c.release <- true
				if k == 4 {
					come() // before anybody could ask for the unit
				}
			} else if k == 4 {
				c.hangUp()
			}
		}
		settled()
		held, _, sum := counts()
		for key := range held {
			if held[key] > each || sum > total {
				t.Fatalf("%s: %v held, %d in all; want at most %d and %d", where, held, sum, each, total)
			}
			if got := each - take(t, store, 0, quota.Charge{Rule: "each", Key: fmt.Sprint(key), Limit: of(key)[0].Limit}).Decisions[0].Remaining; got != held[key] {
				t.Fatalf("%s: the store counts %d, want %d", where, got, held[key])
			}
		}
	}
	time.Sleep(15 * time.Millisecond) // who waits for both limits may ask once more
	synctest.Wait()
	held, waiting, sum := counts()
	for key := range held {
		if waiting[key] > 0 && held[key] < each && sum < total {
			t.Errorf("%s: %v held and %v wait, of %d and %d: a unit is left", where, held, waiting, each, total)
		}
	}
	for range 2 { // in the second round, those who got their units when others left
		for _, c := range all {
			c.hangUp()
			synctest.Wait()
			mu.Lock()
			holds := c.holds
			c.holds = false
			mu.Unlock()
			if holds {
				c.release <- true
			}
		}
	}
}

// TestLineShares: three processes wait for the same units, and the third begins when the others
// hold all of them. It gets its share: at least 0.6 times as many units as each of the others, over
// 4000 units. Units are in use for at least 97% of the time, although nobody is woken by some releases.
func TestLineShares(t *testing.T) {
	for units, holds := range map[int64][]time.Duration{1: {10 * time.Millisecond, 100 * time.Millisecond}, 3: {100 * time.Millisecond}, 10: {time.Second}} {
		for _, hold := range holds {
			synctest.Test(t, func(t *testing.T) {
				lasts, begin := max(2*time.Minute, 4000*hold/time.Duration(units)), time.Now()
				over, next := begin.Add(lasts+10*time.Second), memory()
				var mu sync.Mutex
				var wg sync.WaitGroup
				var served [3]int
				process := func(i int, workers int64) {
					store := &process{next}
					for range workers {
						wg.Go(func() {
							for time.Now().Before(over) {
								ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
								release, err := quota.Hold(ctx, store, jobs(units, time.Minute))
								if err != nil {
									t.Error(err)
								}
								cancel()
								time.Sleep(hold)
								release()
								if now := time.Now(); now.After(begin.Add(10*time.Second)) && now.Before(over) {
									mu.Lock()
									served[i]++
									mu.Unlock()
								}
							}
						})
					}
				}
				process(0, 2*units)
				process(1, 2*units+5)
				time.Sleep(10 * time.Second)
				process(2, units+1)
				wg.Wait()
				use := float64(served[0]+served[1]+served[2]) * hold.Seconds() / float64(units) / lasts.Seconds()
				t.Logf("%d units, each held for %v, for %v: %v served, %.1f%% used", units, hold, lasts, served, 100*use)
				if float64(served[2]) < 0.6*float64(max(served[0], served[1])) || use < 0.97 {
					t.Errorf("%d units, each held for %v: the processes got %v units, which were in use for %.1f%% of the time", units, hold, served, 100*use)
				}
			})
		}
	}
}

// A process is a store of which others do not see that it is in the same process.
type process struct{ quota.Store }

// TestLineProcesses: the workers of three processes wait for 10 units. There are never more in
// flight, and each process gets its share, although those who wait in a process are told of the
// units that it releases: also the third, which has fewer workers and begins when all units are in
// use. In most runs the shares differ by less than a third, and never by more than three times.
func TestLineProcesses(t *testing.T) {
	rounds.Slow(t, "takes 4 s")
	p := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: p.Addr()})
	defer rdb.Close()
	var all []*exec.Cmd
	for name, workers := range []int{40, 40, 15} {
		cmd := exec.Command(os.Args[0], "-test.run=^TestLineProcess$")
		cmd.Env = append(os.Environ(), "WEIR_LINE="+p.Addr(), fmt.Sprintf("WEIR_WORKERS=%d", workers), fmt.Sprintf("WEIR_NAME=p%d", name))
		cmd.Stderr = os.Stderr
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { cmd.Process.Kill() })
		all = append(all, cmd)
	}
	for _, cmd := range all {
		if err := cmd.Wait(); err != nil {
			t.Errorf("a process: %v", err)
		}
	}
	ctx := t.Context()
	most, _ := rdb.Get(ctx, "most").Int()
	var served [3]int
	for i := range served {
		served[i], _ = rdb.Get(ctx, fmt.Sprintf("p%d", i)).Int()
	}
	t.Log("at most", most, "in flight, served:", served)
	if most > 10 || 3*slices.Min(served[:]) < slices.Max(served[:]) {
		t.Errorf("got %d in flight, want at most 10; the processes got %d units, want shares that differ by less than three times", most, served)
	}
}

// TestLineProcess is one of the processes that TestLineProcesses starts.
func TestLineProcess(t *testing.T) {
	addr, name := os.Getenv("WEIR_LINE"), os.Getenv("WEIR_NAME")
	if addr == "" {
		t.Skip("only TestLineProcesses starts it")
	}
	workers, err := strconv.Atoi(os.Getenv("WEIR_WORKERS"))
	if err != nil {
		t.Fatal(err)
	}
	rdb, ctx := redis.NewClient(&redis.Options{Addr: addr, PoolSize: 16}), t.Context()
	store := redisAt(t, addr, 10*time.Second)
	count := redis.NewScript(`
local n = redis.call('INCRBY', 'now', ARGV[1])
if n > tonumber(redis.call('GET', 'most') or 0) then redis.call('SET', 'most', n) end
if redis.call('GET', 'all') and ARGV[1] == '1' then redis.call('INCR', KEYS[1]) end`)
	add := func(n int) {
		if err := count.Run(ctx, rdb, []string{name}, n).Err(); err != nil && !errors.Is(err, redis.Nil) {
			t.Error(err)
		}
	}
	if name == "p2" {
		for rdb.Get(ctx, "now").Val() != "10" {
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Second / 2)
		rdb.Set(ctx, "all", 1, 3*time.Second)
	}
	over := func() bool { return rdb.Get(ctx, "over").Val() != "" }
	together(workers, func(i int) {
		for !over() {
			waits, cancel := context.WithTimeout(ctx, time.Second)
			release, err := quota.Hold(waits, store, jobs(10, time.Minute))
			cancel()
			if errors.As(err, new(*quota.LimitedError)) {
				continue
			}
			if err != nil {
				t.Error(err)
				return
			}
			add(1)
			time.Sleep(10 * time.Millisecond)
			add(-1)
			release()
			if name == "p2" && i == 0 && rdb.Get(ctx, "all").Val() == "" {
				rdb.Set(ctx, "over", 1, 0)
			}
		}
	})
}

// TestHoldHang: Redis hangs for 1.5 s while ten requests end. When it answers again, their ten units
// are released long before their lease of 20 s ends.
func TestHoldHang(t *testing.T) {
	rounds.Slow(t, "takes 4 s")
	p := redistest.Server(t)
	redis, observer := redisAt(t, p.Addr(), 500*time.Millisecond), redisAt(t, p.Addr(), 5*time.Second)
	for name, store := range map[string]quota.Store{
		"redis": redis,
		"stack": quota.Fallback(quota.Hybrid(quota.Breaker(quota.Coalesce(redis), quota.BreakerOptions{}), quota.HybridOptions{}), quota.Share(memory(), 2), quota.FallbackOptions{}),
	} {
		t.Run(name, func(t *testing.T) {
			c := jobs(10, 20*time.Second)
			c.Rule = name
			releases := make([]func(), 10)
			together(len(releases), func(i int) {
				var err error
				if releases[i], err = quota.Hold(t.Context(), store, c); err != nil {
					t.Error(err)
				}
			})
			if got := held(t, observer, c); got != 10 || t.Failed() {
				t.Fatalf("got %d in flight, want 10", got)
			}
			p.Pause()
			hung := time.AfterFunc(1500*time.Millisecond, p.Resume)
			defer hung.Stop()
			defer p.Resume()
			together(len(releases), func(i int) { releases[i]() })
			for start := time.Now(); held(t, observer, c) > 0; time.Sleep(20 * time.Millisecond) {
				if time.Since(start) > time.Minute {
					t.Fatalf("got %d in flight a minute after the hang, want 0", held(t, observer, c))
				}
			}
		})
	}
}

type queueCase struct {
	queued int64 // units in the queue; one unit leaves each second, the first unit at once
	cost   int64
	within time.Duration
	other  *quota.Limit // another limit, which is used up
	want   []time.Duration
}

// TestQueueRetryAfter: if the queue of a leaky bucket refuses a charge, it admits the charge
// when RetryAfter is over, and not a microsecond before. This holds for refusals from the
// store and from the memory of Hybrid. Another limit of the transaction does not change the
// RetryAfter of the queue.
func TestQueueRetryAfter(t *testing.T) {
	leaky := algorithms.LeakyBucket(10, 1, time.Second)
	for _, test := range []queueCase{
		{10, 1, 5 * time.Second, nil, []time.Duration{5 * time.Second}},                                          // there is room after 1 s, and the slot is 10 s away
		{10, 1, 9 * time.Second, nil, []time.Duration{time.Second}},                                              // after 1 s there is room, and the slot is 9 s away
		{10, 1, 9500 * time.Millisecond, nil, []time.Duration{time.Second}},                                      // the slot is near enough after 0.5 s, but room comes after 1 s
		{10, 4, 5 * time.Second, nil, []time.Duration{5 * time.Second}},                                          // room comes after 4 s, but the slot is near enough only after 5 s
		{10, 7, 5 * time.Second, nil, []time.Duration{7 * time.Second}},                                          // the slot is near enough after 5 s, but room comes after 7 s
		{4, 1, time.Second, nil, []time.Duration{3 * time.Second}},                                               // there is room, but the slot is too far away
		{4, 11, time.Second, nil, []time.Duration{quota.Never}},                                                  // the cost exceeds the queue
		{4, 1, time.Second, ptr(algorithms.GCRA(1, time.Minute)), []time.Duration{3 * time.Second, time.Minute}}, // each limit has its own wait
		{1, 1, time.Second, ptr(algorithms.GCRA(1, time.Minute)), []time.Duration{0, time.Minute}},               // the queue alone would admit the charge
	} {
		synctest.Test(t, func(t *testing.T) {
			checkQueue(t, leaky, test)
		})
	}
}

// checkQueue fills the queue of leaky, and checks that a charge is refused and then
// admitted after RetryAfter.
func checkQueue(t *testing.T, leaky quota.Limit, test queueCase) {
	store, start := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{}), time.Now()
	charges := []quota.Charge{{Key: "k", Limit: leaky, Cost: 1}}
	for range test.queued {
		if tx := take(t, store, time.Hour, charges...); !tx.Allowed() {
			t.Fatalf("%+v: got %+v", test, tx.Decisions)
		}
	}
	if test.other != nil {
		other := quota.Charge{Key: "k", Limit: *test.other, Cost: 1}
		take(t, store, 0, other)
		charges = append(charges, other)
	}
	charges[0].Cost = test.cost
	ask := func() []time.Duration {
		tx := take(t, store, test.within, charges...)
		if tx.Allowed() {
			return nil
		}
		var got []time.Duration
		for _, d := range tx.Decisions {
			if d.Allowed != (d.RetryAfter == 0) {
				t.Errorf("%+v: got %+v", test, d)
			}
			got = append(got, d.RetryAfter)
		}
		return got
	}
	if got := ask(); !slices.Equal(got, test.want) {
		t.Errorf("%+v: got RetryAfter %v, want %v", test, got, test.want)
	}
	if test.want[0] == quota.Never {
		return
	}
	admitted := test.want[0]
	if test.other != nil {
		time.Sleep(test.want[0])
		if got, want := ask(), []time.Duration{0, test.want[1] - test.want[0]}; !slices.Equal(got, want) {
			t.Errorf("%+v: got RetryAfter %v after %v, want %v", test, got, test.want[0], want)
		}
		admitted = test.want[1] - test.within // the charges then wait for the other limit
	}
	time.Sleep(time.Until(start.Add(admitted - time.Microsecond)))
	if ask() == nil {
		t.Errorf("%+v: let in a microsecond before %v", test, admitted)
	}
	time.Sleep(time.Microsecond)
	if got := ask(); got != nil {
		t.Errorf("%+v: refused after %v, for %v more", test, admitted, got)
	}
}

func ptr[T any](x T) *T { return &x }
