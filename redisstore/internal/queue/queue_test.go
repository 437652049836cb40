package queue

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// A far is a simulated Redis behind a network, together with a client's pool of connections.
// It answers one command after the other, by the clock of a bubble of testing/synctest.
type far struct {
	rtt  time.Duration // the round trip
	each time.Duration // how long a command takes
	dial time.Duration // how long it takes to make a connection
	late time.Duration // of each tenth answer, in addition

	mu    sync.Mutex
	idle  int
	dials int
	free  time.Time // when all commands so far are answered
	still time.Time // no answer arrives before this time
	lost  bool      // answers vanish
	dead  int       // so many idle connections, which are used first, get no answer any more
	calls int       // calls under way
	most  int       // the most calls that were under way at once

	answers int
}

func (f *far) send(ctx context.Context, cmds []Cmd) error {
	f.mu.Lock()
	f.calls++
	f.most = max(f.most, f.calls)
	f.mu.Unlock()
	err := f.answer(ctx, cmds)
	f.mu.Lock()
	f.calls--
	f.mu.Unlock()
	for _, cmd := range cmds {
		cmd.SetErr(err)
	}
	return err
}

func sleep(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f *far) answer(ctx context.Context, cmds []Cmd) error {
	f.mu.Lock()
	lost := f.lost
	if f.idle == 0 {
		f.dials++
		f.mu.Unlock()
		if err := sleep(ctx, f.dial); err != nil {
			return err
		}
		f.mu.Lock()
	} else {
		f.idle--
		lost = lost || f.dead > 0
		f.dead = max(0, f.dead-1)
	}
	now := time.Now()
	if arrives := now.Add(f.rtt / 2); f.free.Before(arrives) {
		f.free = arrives
	}
	f.free = f.free.Add(time.Duration(len(cmds)) * f.each)
	back := f.free.Add(f.rtt / 2)
	if f.answers++; f.answers%10 == 0 {
		back = back.Add(f.late)
	}
	if back.Before(f.still) {
		back = f.still
	}
	f.mu.Unlock()
	if lost {
		<-ctx.Done()
		return ctx.Err()
	}
	if err := sleep(ctx, back.Sub(now)); err != nil {
		return err // idle stays as it is: the connection is closed
	}
	f.mu.Lock()
	f.idle++
	f.mu.Unlock()
	return nil
}

func (f *far) queue(timeout time.Duration) *Queue {
	return &Queue{send: f.send, timeout: timeout, most: MaxCalls, slowStore: &atomic.Int64{}, pace: pace{window: firstWindow}}
}

// bubble runs f in a bubble of testing/synctest, and then lets the goroutines that f has
// started end.
func bubble(t *testing.T, f func(t *testing.T)) {
	synctest.Test(t, func(t *testing.T) {
		f(t)
		time.Sleep(10 * time.Second)
	})
}

func (q *Queue) request() error {
	ctx := WithBudget(context.Background(), q.timeout)
	return q.Do(ctx, []Cmd{NewCmd(ctx, "evalsha")})
}

// A sum counts requests by their results.
type sum struct {
	decided, refused, late, other atomic.Int64
	slowest                       atomic.Int64 // ns; the longest that a refused request took
}

func (s *sum) String() string {
	return fmt.Sprintf("%d decided, %d refused, %d late, %d others", s.decided.Load(), s.refused.Load(), s.late.Load(), s.other.Load())
}

func (s *sum) all() int64 {
	return s.decided.Load() + s.refused.Load() + s.late.Load() + s.other.Load()
}

// load makes the given number of requests a second for the duration d, and returns the results.
func load(q *Queue, rate int, d time.Duration) *sum {
	s := &sum{}
	var wg sync.WaitGroup
	for range int(float64(rate) * d.Seconds()) {
		wg.Go(func() {
			begin := time.Now()
			switch err := q.request(); {
			case err == nil:
				s.decided.Add(1)
			case err == ErrLate:
				s.late.Add(1)
			case errors.Is(err, quota.ErrBusy):
				s.refused.Add(1)
				s.slowest.Store(max(s.slowest.Load(), int64(time.Since(begin))))
			case err == ErrTimeout:
				s.late.Add(1)
			default:
				s.other.Add(1)
			}
		})
		time.Sleep(time.Second / time.Duration(rate))
	}
	wg.Wait()
	return s
}

// crowded is why a test runs only with WEIR_LONG: the race detector of Go 1.26 sometimes ends a process
// that has so many goroutines ("ThreadSanitizer: CHECK failed").
const crowded = "thousands of goroutines"

// TestSpike: during a spike Redis decides about as many requests as it can, and few of the other
// requests wait in vain. After the spike nearly all requests are decided again.
func TestSpike(t *testing.T) {
	rounds.Slow(t, crowded)
	const capacity = 20000
	for _, rtt := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
		t.Run(rtt.String(), func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				spike(t, rtt, capacity)
			})
		})
	}
}

// spike tests a server that can decide the given number of requests a second. In each spike it
// sends a multiple of that number.
func spike(t *testing.T, rtt time.Duration, capacity int) {
	f := &far{rtt: rtt, each: time.Second / time.Duration(capacity), dial: 3 * rtt}
	q := f.queue(50 * time.Millisecond)
	load(q, capacity/2, time.Second)
	for _, times := range []float64{1, 2, 5, 20} {
		s := load(q, int(times*float64(capacity)), time.Second/2)
		t.Logf("%v times: %v", times, s)
		if got := s.decided.Load(); got < int64(capacity*8/10/2) {
			t.Errorf("%v times: got %v, want %d decided at least", times, s, capacity*8/10/2)
		}
		if s.late.Load() > s.all()/20 {
			t.Errorf("%v times: got %v, want few to wait in vain", times, s)
		}
		if after := load(q, capacity/2, time.Second/2); after.decided.Load() < after.all()-int64(capacity/100) {
			t.Errorf("after a spike of %v times the capacity: got %v, want all but %d decided at least", times, after, capacity/100)
		}
	}
	if f.dials > MaxCalls {
		t.Errorf("got %d connections made, want %d at most: none is lost", f.dials, MaxCalls)
	}
}

// TestStandstills: if Redis stands still again and again, for less than the timeout, as without a
// processor, nearly all requests are decided as long as it can decide so many.
func TestStandstills(t *testing.T) {
	rounds.Slow(t, crowded)
	for _, c := range []struct{ rtt, still, runs time.Duration }{
		{0, 40 * time.Millisecond, 20 * time.Millisecond},
		{5 * time.Millisecond, 30 * time.Millisecond, 15 * time.Millisecond},
		{5 * time.Millisecond, 35 * time.Millisecond, 60 * time.Millisecond},
	} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: c.rtt, each: 15 * time.Microsecond}
			q := f.queue(50 * time.Millisecond)
			load(q, 15_000, time.Second/5)
			ended, end := context.WithCancel(t.Context())
			go func() {
				for ; ended.Err() == nil; time.Sleep(c.still + c.runs) {
					f.mu.Lock()
					f.still = time.Now().Add(c.still)
					if f.free.Before(time.Now()) {
						f.free = time.Now()
					}
					f.free = f.free.Add(c.still)
					f.mu.Unlock()
				}
			}()
			if s := load(q, 15_000, time.Second); s.decided.Load() < s.all()*95/100 {
				t.Errorf("%+v: got %v, want 95 %% decided at least", c, s)
			}
			end()
		})
	}
}

// TestNear: if Redis is near, few calls are under way, so that Redis reads several commands
// at once. If Redis is far, more calls are under way.
func TestNear(t *testing.T) {
	for _, c := range []struct {
		rtt  time.Duration
		most int
	}{{200 * time.Microsecond, nearCalls}, {5 * time.Millisecond, MaxCalls}} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: c.rtt, each: 10 * time.Microsecond}
			q := f.queue(50 * time.Millisecond)
			s := load(q, 50000, 200*time.Millisecond)
			if s.decided.Load() < s.all()*9/10 || f.most != c.most {
				t.Errorf("round trip %v: got %v in %d calls at once, want nearly all decided in %d", c.rtt, s, f.most, c.most)
			}
		})
	}
}

// TestGather: callers that can run at the same time share a call, although more connections are free.
// Of 16 callers, 8 calls at once would send two commands each.
func TestGather(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{rtt: 100 * time.Microsecond}
		q := f.queue(50 * time.Millisecond)
		var calls atomic.Int64
		q.send = func(ctx context.Context, cmds []Cmd) error {
			calls.Add(1)
			return f.send(ctx, cmds)
		}
		const callers, each = 16, 200
		var wg sync.WaitGroup
		for range callers {
			wg.Go(func() {
				for range each {
					if err := q.request(); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		if n := calls.Load(); n > callers*each/3 {
			t.Errorf("got %d calls for %d commands, want three or more in a call", n, callers*each)
		}
	})
}

// TestGatherLate: if the goroutine of a call that has no commands yet gets no processor, other goroutines
// send what waits: a full batch at once, less after a beat.
func TestGatherLate(t *testing.T) {
	for _, c := range []struct {
		callers int
		most    time.Duration
	}{{maxBatch, 0}, {3, 2 * beat}} {
		bubble(t, func(t *testing.T) {
			f := &far{}
			q := f.queue(50 * time.Millisecond)
			load(q, 1000, 10*time.Millisecond)
			q.mu.Lock()
			q.runners++
			stuck := q.gather(q.now())
			q.mu.Unlock()
			begin := time.Now()
			var wg sync.WaitGroup
			for range c.callers {
				wg.Go(func() {
					if err := q.request(); err != nil || time.Since(begin) > c.most {
						t.Errorf("%d callers: got %v after %v, want a decision after %v at most", c.callers, err, time.Since(begin), c.most)
					}
				})
			}
			wg.Wait()
			synctest.Wait()
			if q.fill(stuck) || q.runners != 0 || len(q.sent) != 0 {
				t.Errorf("%d callers: got %d calls under way at the end, or one more", c.callers, q.runners)
			}
		})
	}
}

// TestYields: a call does not wait for other goroutines if its caller is alone, nor for a second after
// it has waited for long.
func TestYields(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{}
		q := f.queue(50 * time.Millisecond)
		gather := func() *batch {
			q.runners++
			return q.gather(time.Now())
		}
		call := func(yields bool, what string) {
			b := gather()
			if b.yields != yields {
				t.Errorf("%s: got yields %v", what, b.yields)
			}
			q.fill(b)
		}
		slow := gather()
		time.Sleep(2 * beat)
		q.fill(slow)
		call(false, "a call after a slow one")
		time.Sleep(2 * crowdedFor)
		q.idle.Store(lone + 1)
		call(false, "the call of a lone caller")
		q.idle.Store(0)
		call(true, "a later call")
		if q.runners != 0 || len(q.sent) != 0 || q.gathering != nil {
			t.Errorf("got %d calls under way after empty ones", q.runners)
		}
	})
}

// TestDeadConnections: if all connections stop answering, but new ones would work, the queue
// makes new ones, although it needs few while Redis is near.
func TestDeadConnections(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{rtt: 200 * time.Microsecond, each: 10 * time.Microsecond, dial: time.Millisecond}
		q := f.queue(50 * time.Millisecond)
		load(q, 50000, 200*time.Millisecond)
		f.mu.Lock()
		f.dead = f.idle
		f.mu.Unlock()
		s := load(q, 5000, 300*time.Millisecond)
		if undecided := s.all() - s.decided.Load(); undecided > s.all()/4 {
			t.Errorf("got %v, want all decided but those of the first 75 ms", s)
		}
	})
}

// TestNoDial: if the only connection fails shortly after an attempt to connect has failed,
// the callers that wait get the error of that attempt at once.
func TestNoDial(t *testing.T) {
	bubble(t, func(t *testing.T) {
		refused := errors.New("connection refused")
		var sends atomic.Int64
		q := &Queue{timeout: 50 * time.Millisecond, most: MaxCalls, slowStore: &atomic.Int64{}, pace: pace{window: firstWindow}}
		q.send = func(_ context.Context, cmds []Cmd) error {
			switch sends.Add(1) {
			case 1: // the first attempt to connect
				return nil
			case 2: // a call
				time.Sleep(3 * time.Millisecond)
			case 3: // the second attempt to connect, for a caller that waits
				time.Sleep(time.Millisecond)
			}
			for _, cmd := range cmds {
				cmd.SetErr(refused)
			}
			return refused
		}
		q.connect(q.now())
		time.Sleep(time.Millisecond)
		var wg sync.WaitGroup
		for range 3 {
			wg.Go(func() {
				if err := q.request(); !errors.Is(err, refused) {
					t.Errorf("got %v, want %v", err, refused)
				}
			})
			time.Sleep(500 * time.Microsecond)
		}
		wg.Wait()
	})
}

// TestManyProcesses: several processes that share an overloaded Redis together get at least
// 70 % of its capacity decided. With 200 processes, one command of each is already more than
// Redis decides in two thirds of the timeout.
func TestManyProcesses(t *testing.T) {
	rounds.Slow(t, crowded)
	const capacity = 5000
	for _, processes := range []int{20, 200} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: time.Millisecond, each: time.Second / capacity}
			queues := make([]*Queue, processes)
			for i := range queues {
				queues[i] = f.queue(50 * time.Millisecond)
			}
			var decided, all int64
			for range 2 { // in the first round the processes adapt to each other
				decided, all = 0, 0
				sums := make([]*sum, processes)
				var wg sync.WaitGroup
				for i, q := range queues {
					wg.Go(func() { sums[i] = load(q, 5*capacity/processes, 3*time.Second) })
				}
				wg.Wait()
				for _, s := range sums {
					decided += s.decided.Load()
					all += s.all()
				}
			}
			t.Logf("%d processes: %d of %d decided in 3 s", processes, decided, all)
			if decided < 3*capacity*7/10 {
				t.Errorf("%d processes: got %d decided of %d, want %d at least", processes, decided, all, 3*capacity*7/10)
			}
		})
	}
}

// TestFarther: if the round trip becomes longer under load, the queue decides all requests again
// after half a second. If the round trip then becomes shorter, the queue fails no request.
func TestFarther(t *testing.T) {
	for _, c := range []struct {
		near, far time.Duration
		rate      int
	}{
		{200 * time.Microsecond, 17 * time.Millisecond, 1000}, // just longer than a good call takes
		{time.Millisecond, 20 * time.Millisecond, 1000},
		{200 * time.Microsecond, 20 * time.Millisecond, 5000},
		{5 * time.Millisecond, 22 * time.Millisecond, 5000},
	} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: c.near, each: 50 * time.Microsecond}
			q := f.queue(50 * time.Millisecond)
			move := func(rtt time.Duration) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.rtt = rtt
			}
			load(q, c.rate, time.Second)
			move(c.far)
			load(q, c.rate, time.Second/2)
			if s := load(q, c.rate, time.Second); s.decided.Load() < s.all() {
				t.Errorf("%+v: half a second after the round trip became longer: got %v, want all decided", c, s)
			}
			move(c.near)
			if s := load(q, c.rate, time.Second); s.decided.Load() < s.all() {
				t.Errorf("%+v: after the round trip became shorter again: got %v, want all decided", c, s)
			}
		})
	}
}

// TestBlip: if no answer arrives for 60 ms, no connection is lost, and about as many requests
// fail as were made in that time.
func TestBlip(t *testing.T) {
	for _, rtt := range []time.Duration{0, 5 * time.Millisecond, 20 * time.Millisecond} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: rtt, dial: 3 * rtt}
			q := f.queue(50 * time.Millisecond)
			load(q, 1000, time.Second)
			dials := f.dials
			time.AfterFunc(500*time.Millisecond, func() {
				f.mu.Lock()
				f.still = time.Now().Add(60 * time.Millisecond)
				f.mu.Unlock()
			})
			s := load(q, 1000, time.Second)
			t.Logf("round trip %v: %v", rtt, s)
			// Requests that were under way, and the order of goroutines, add a few.
			most := 65 + rtt.Milliseconds()
			if undecided := s.all() - s.decided.Load(); undecided > most {
				t.Errorf("round trip %v: got %v, want %d undecided at most", rtt, s, most)
			}
			if f.dials > MaxCalls || rtt == 0 && f.dials > dials+MaxCalls {
				t.Errorf("round trip %v: got %d connections made, %d before the blip, want none lost", rtt, f.dials, dials)
			}
		})
	}
}

// TestHole: while answers are lost, no request is decided. Half a second after the answers come
// again, all requests are decided.
func TestHole(t *testing.T) {
	for _, d := range []time.Duration{500 * time.Millisecond, 1500 * time.Millisecond, 3 * time.Second} {
		for _, rate := range []int{10, 1000} {
			bubble(t, func(t *testing.T) {
				f := &far{rtt: time.Millisecond, dial: 3 * time.Millisecond}
				q := f.queue(50 * time.Millisecond)
				load(q, rate, time.Second)
				f.mu.Lock()
				f.lost = true
				f.mu.Unlock()
				if s := load(q, rate, d); s.decided.Load() > 0 {
					t.Errorf("in a hole of %v, %d a second: got %v, want none decided", d, rate, s)
				}
				f.mu.Lock()
				f.lost = false
				f.mu.Unlock()
				load(q, rate, 500*time.Millisecond)
				if s := load(q, rate, time.Second); s.decided.Load() < s.all() {
					t.Errorf("half a second after a hole of %v, %d a second: got %v, want all decided", d, rate, s)
				}
			})
		}
	}
}

// TestConnects: connections are made even if that takes longer than the timeout of a request.
// Meanwhile requests go on.
func TestConnects(t *testing.T) {
	for _, c := range []struct{ rtt, dial, timeout time.Duration }{
		{5 * time.Millisecond, 20 * time.Millisecond, 50 * time.Millisecond},
		{20 * time.Millisecond, 80 * time.Millisecond, 50 * time.Millisecond}, // as with TLS and AUTH
		{90 * time.Millisecond, 360 * time.Millisecond, 250 * time.Millisecond},
	} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: c.rtt, dial: c.dial}
			q := f.queue(c.timeout)
			q.connect(q.now())
			time.Sleep(c.dial + 2*c.rtt)
			if s := load(q, 1000, time.Second); s.decided.Load() < s.all()*9/10 {
				t.Errorf("%+v: got %v, want all but a few decided once there is a connection", c, s)
			}
		})
	}
}

// TestQueueHeeds: if the context of a caller ends, do returns at once. A command that still
// waits for a connection is then never sent.
func TestQueueHeeds(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{rtt: 10 * time.Millisecond, dial: 40 * time.Millisecond}
		q := f.queue(50 * time.Millisecond)
		own, cancel := context.WithCancel(t.Context())
		ctx := WithBudget(own, q.timeout)
		time.AfterFunc(5*time.Millisecond, cancel)
		begin := time.Now()
		if err := q.Do(ctx, []Cmd{NewCmd(ctx, "evalsha")}); !errors.Is(err, context.Canceled) || time.Since(begin) != 5*time.Millisecond {
			t.Errorf("got %v after %v, want %v after 5ms", err, time.Since(begin), context.Canceled)
		}
		time.Sleep(time.Second)
		q.mu.Lock()
		defer q.mu.Unlock()
		f.mu.Lock()
		defer f.mu.Unlock()
		if f.idle != 1 || q.inFlight != 0 || q.queued != 0 {
			t.Errorf("got %d connections, %d commands under way, %d waiting; want a connection that was made for nobody", f.idle, q.inFlight, q.queued)
		}
	})
}

// TestQueuePanic: if a hook of the client panics, the call returns an error, and the queue
// goes on working.
func TestQueuePanic(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{}
		q := f.queue(50 * time.Millisecond)
		if err := q.request(); err != nil {
			t.Fatal(err)
		}
		q.send = func(context.Context, []Cmd) error { panic("a bug") }
		if err := q.request(); err == nil || errors.Is(err, ErrTimeout) {
			t.Errorf("got %v, want the panic", err)
		}
		q.send = f.send
		if err := q.request(); err != nil {
			t.Errorf("after the panic: got %v, want a decision", err)
		}
	})
}

// TestLateProcess: the time for which the process is late does not count. A request is then
// decided even if its answer comes after the timeout, and the window stays as large.
func TestLateProcess(t *testing.T) {
	for _, late := range []time.Duration{0, 60 * time.Millisecond} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: 80 * time.Millisecond}
			q := f.queue(50 * time.Millisecond)
			q.open, f.idle = 1, 1
			time.AfterFunc(10*time.Millisecond, func() {
				q.mu.Lock()
				defer q.mu.Unlock()
				q.lost += late
			})
			begin := time.Now()
			err := q.request()
			if took := time.Since(begin); late == 0 && (err != ErrTimeout || took != q.timeout) || late > 0 && (err != nil || took != f.rtt) {
				t.Errorf("the process %v late: got %v after %v, want a decision only if the process is late", late, err, took)
			}
			time.Sleep(f.rtt)
			if q.window != firstWindow && late > 0 {
				t.Errorf("the process %v late: got a window of %v, want %v", late, q.window, firstWindow)
			}
		})
	}
}

// TestOneSlowCall: one slow call leaves the window as it is, and a second one shrinks it.
func TestOneSlowCall(t *testing.T) {
	q := (&far{}).queue(50 * time.Millisecond)
	now := time.Now()
	for i, c := range []struct {
		took    time.Duration
		shrinks bool
	}{{time.Millisecond, false}, {40 * time.Millisecond, false}, {time.Millisecond, false}, {40 * time.Millisecond, false}, {40 * time.Millisecond, true}} {
		before := q.window
		b := &batch{cmds: make([]Cmd, 1), underWay: 10, began: now}
		now = now.Add(c.took)
		q.learn(b, c.took, now, nil)
		if (q.window < before) != c.shrinks {
			t.Errorf("call %d took %v: the window was %v and is %v", i, c.took, before, q.window)
		}
	}
}

// TestClockStepsBack: while an answer waits to be read, each tick takes back the time of a beat. A call that
// began within that beat and ends soon afterwards took no time, and never less.
func TestClockStepsBack(t *testing.T) {
	q := (&far{}).queue(50 * time.Millisecond)
	now := time.Now()
	for range 100 {
		q.learn(&batch{cmds: make([]Cmd, 1), began: now}, time.Millisecond, now.Add(-beat), nil)
		if q.service < 0 || q.own < 0 {
			t.Fatalf("a call took %v, calls take %v on average; want at least 0", q.own, q.service)
		}
	}
}

// TestLateAnswer: if an answer does not come while other answers do, Redis is busy. If no
// answer comes, Redis may be down.
func TestLateAnswer(t *testing.T) {
	for _, lost := range []bool{false, true} {
		bubble(t, func(t *testing.T) {
			f := &far{rtt: time.Millisecond}
			q := f.queue(50 * time.Millisecond)
			load(q, 1000, 100*time.Millisecond)
			f.mu.Lock()
			f.dead, f.lost = 1, lost
			f.mu.Unlock()
			time.AfterFunc(10*time.Millisecond, func() { _ = q.request() })
			if err := q.request(); !errors.Is(err, ErrTimeout) || errors.Is(err, quota.ErrBusy) == lost {
				t.Errorf("all answers lost %v: got %v, want a timeout, and %v as well only if other answers come", lost, err, quota.ErrBusy)
			}
		})
	}
}

// TestFailures: if the first answers come later than the timeout, and then all connections
// fail, nearly all requests are decided as soon as Redis answers in time.
func TestFailures(t *testing.T) {
	bubble(t, func(t *testing.T) {
		const rate = 10000
		f := &far{rtt: 52 * time.Millisecond, each: 50 * time.Microsecond}
		q := f.queue(50 * time.Millisecond)
		var fails atomic.Bool
		q.send = func(ctx context.Context, cmds []Cmd) error {
			err := f.send(ctx, cmds)
			if err == nil && fails.Load() {
				err = errors.New("connection reset")
			}
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		load(q, rate, time.Second/2)
		f.mu.Lock()
		f.rtt = time.Millisecond
		f.mu.Unlock()
		fails.Store(true)
		load(q, rate, time.Second/10)
		fails.Store(false)
		if s := load(q, rate, time.Second/2); s.decided.Load() < s.all()*9/10 {
			t.Errorf("got %v, want nearly all decided", s)
		}
	})
}

// TestExplain: if attempts to connect to a Redis that has never been of use fail, Explain says
// why, to callers too whose budget is over while another attempt hangs. Once Redis has answered,
// nobody calls Explain.
func TestExplain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{}
		q := f.queue(50 * time.Millisecond)
		reset, asked := errors.New("connection reset"), 0
		q.explain = func(err error) error { asked++; return fmt.Errorf("%w: %w", quota.ErrUnusable, err) }
		broken := func(ctx context.Context, cmds []Cmd) error {
			cmds[0].SetErr(reset)
			return reset
		}
		q.send = broken
		check := func(when string, want error) {
			t.Helper()
			if err := q.request(); !errors.Is(err, want) {
				t.Errorf("%s: got %v, want %v", when, err, want)
			}
		}
		check("the first attempt", quota.ErrUnusable)
		time.Sleep(time.Second)
		synctest.Wait()
		f.lost, q.send = true, f.send
		check("the next one hangs", quota.ErrUnusable)
		time.Sleep(2 * time.Second)
		synctest.Wait()
		f.lost = false
		check("Redis answers", nil)
		before := asked
		q.send = broken
		check("a lost connection", reset)
		time.Sleep(time.Second)
		check("no connection", reset)
		if asked != before {
			t.Errorf("Explain was asked %d times after Redis had answered", asked-before)
		}
	})
}

// TestPromptDeadlines: a prompt returns data when they come, and keeps the deadline to a
// millisecond.
func TestPromptDeadlines(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		comes, deadline, want time.Duration // 0: never, none
	}{
		{300 * time.Microsecond, 50 * ms, 300 * time.Microsecond},
		{33 * ms, 50 * ms, 33 * ms},
		{0, 50 * ms, 50 * ms},
		{0, 500 * time.Microsecond, ms},
		{10 * time.Minute, 0, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			if c.comes > 0 {
				go func() {
					time.Sleep(c.comes)
					_, _ = there.Write([]byte("x"))
				}()
			}
			p := NewConns().add(here)
			if c.deadline > 0 {
				_ = p.SetReadDeadline(time.Now().Add(c.deadline))
			}
			begin := time.Now()
			n, err := p.Read(make([]byte, 1))
			if took := time.Since(begin); took != c.want || (n == 1) != (c.comes > 0) || n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%+v: got %d bytes, error %v after %v", c, n, err, took)
			}
		})
	}
}

// A stopped is a connection whose process is stopped for a second in the first call of Read.
type stopped struct {
	net.Conn
	reads    int
	deadline time.Time
}

func (s *stopped) SetReadDeadline(t time.Time) error { s.deadline = t; return nil }

func (s *stopped) Read(b []byte) (int, error) {
	if s.reads++; s.reads == 1 {
		time.Sleep(time.Second)
	}
	if !time.Now().Before(s.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return len(b), nil
}

// TestPromptReadsWhatIsThere: an answer in the socket is read although the process was stopped
// until after the deadline.
func TestPromptReadsWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := NewConns().add(&stopped{})
		_ = p.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := p.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("got %d bytes, error %v; want the answer", n, err)
		}
	})
}

// A plainConn has no deadlines, as a channel of SSH.
type plainConn struct{ net.Conn }

func (plainConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }
func (plainConn) Read(b []byte) (int, error)      { return len(b), nil }

// TestPromptKinds: a prompt reads from connections without deadlines too, and lets the client
// test the sockets that it could test before.
func TestPromptKinds(t *testing.T) {
	if n, err := NewConns().add(plainConn{}).Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("without deadlines: got %d bytes, error %v", n, err)
	}
	for _, c := range []struct {
		conn net.Conn
		want bool
	}{{plainConn{}, false}, {&net.TCPConn{}, true}, {&net.UnixConn{}, true}} {
		if _, got := NewConns().add(c.conn).(syscall.Conn); got != c.want {
			t.Errorf("%T: got %v for whether the socket can be tested, want %v", c.conn, got, c.want)
		}
	}
}

// TestLone: a caller that has been alone for a while sends its commands itself, unless its call
// could end after its budget or after the caller has given up.
func TestLone(t *testing.T) {
	for _, c := range []struct {
		name           string
		before         int // requests
		rtt, since     time.Duration
		unbounded, may bool // the client ignores deadlines; the caller may give up
		busy, want     bool // another caller calls at the same time
	}{
		{name: "alone", before: lone + 1, want: true},
		{name: "not long enough", before: lone - 1},
		{name: "another caller", before: lone + 1, busy: true},
		{name: "a slow Redis", before: lone + 1, rtt: 10 * time.Millisecond},
		{name: "no answer for a while", before: lone + 1, since: 2 * time.Second},
		{name: "a client that ignores deadlines", before: lone + 1, unbounded: true},
		{name: "a caller that may give up", before: lone + 1, may: true},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := &far{rtt: max(c.rtt, time.Millisecond)}
				q := f.queue(50 * time.Millisecond)
				q.bounded = !c.unbounded
				for range c.before {
					if err := q.request(); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // until the queue knows that the call has ended
				}
				time.Sleep(c.since)
				if c.busy {
					go func() { _ = q.request() }()
					time.Sleep(f.rtt / 2)
					_ = q.request()
				}
				own := context.Background()
				if c.may {
					own = t.Context()
				}
				b := q.loneBatch(WithBudget(own, q.timeout), make([]Cmd, 1))
				if got := b != nil; got != c.want {
					t.Errorf("got %v, want %v for whether the caller sends its commands itself", got, c.want)
				}
			})
		})
	}
}

// TestBounded: the client of a queue ends its calls at their deadlines, whatever its settings, which
// stay as they are.
func TestBounded(t *testing.T) {
	for _, set := range []bool{false, true} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: set})
		rdb.Close() // so that nothing is dialed
		if q := New(Options{Client: rdb, Timeout: 50 * time.Millisecond}); !q.bounded || rdb.Options().ContextTimeoutEnabled != set {
			t.Errorf("ContextTimeoutEnabled %v: bounded %v, and the setting is %v", set, q.bounded, rdb.Options().ContextTimeoutEnabled)
		}
	}
}

// TestClock: a clock goes as fast as the time while its timer is set, and stands still while
// the timer is overdue. It never goes back.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := &budgetClock{}
		begin := time.Now()
		check := func(when string, want time.Duration) {
			t.Helper()
			if got := c.now().Sub(begin); got != want {
				t.Errorf("%s: got %v, want %v", when, got, want)
			}
		}
		late := func() {} // a tick that has not run yet
		time.Sleep(time.Second)
		check("not started", time.Second)
		c.start(late)
		time.Sleep(beat)
		check("the timer is due", time.Second+beat)
		time.Sleep(40 * time.Millisecond)
		check("the timer is overdue", time.Second+beat+tolerant)
		c.stop()
		check("the tick has run", time.Second+beat+tolerant)
		c.start(late)
		time.Sleep(beat)
		c.stop()
		check("the next tick is in time", time.Second+2*beat+tolerant)
	})
}
