package queue

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/seed83679106/weir/quota"
)

// TestSlow: if calls take nearly as long as the timeout, so that requests fail, the queue knows within
// 10 s that Redis is too slow, until it is quick again. It does not take anything else for that.
func TestSlow(t *testing.T) {
	for _, c := range []struct {
		name      string
		far       *far
		rate      int           // of requests, in a second
		late      time.Duration // of the process, in each call
		lost      time.Duration // for so long Redis is silent in each 4 s
		breaker   bool          // no requests in one of two seconds
		processes int           // that share Redis
		want      bool
	}{
		{name: "near the timeout", far: &far{rtt: 40 * time.Millisecond, late: 20 * time.Millisecond}, rate: 200, want: true},
		{name: "seldom asked", far: &far{rtt: 40 * time.Millisecond, late: 20 * time.Millisecond}, rate: 40, want: true},
		{name: "with a breaker that opens", far: &far{rtt: 40 * time.Millisecond, late: 20 * time.Millisecond}, rate: 200, breaker: true, want: true},
		{name: "near it, and none fails", far: &far{rtt: 40 * time.Millisecond}, rate: 2},
		{name: "just in time", far: &far{rtt: 47 * time.Millisecond}, rate: 20},
		{name: "far from it", far: &far{rtt: 30 * time.Millisecond, late: 30 * time.Millisecond}, rate: 2000},
		{name: "longer than it", far: &far{rtt: 60 * time.Millisecond}, rate: 200},
		{name: "overload", far: &far{rtt: 5 * time.Millisecond, each: time.Millisecond}, rate: 10_000},
		{name: "overload by other processes", far: &far{rtt: 5 * time.Millisecond, each: time.Millisecond}, rate: 1000, processes: 4},
		{name: "outages", far: &far{rtt: 5 * time.Millisecond}, rate: 200, lost: 2 * time.Second},
		{name: "a late process", far: &far{rtt: 5 * time.Millisecond, late: 60 * time.Millisecond}, rate: 10, late: 35 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			bubble(t, func(t *testing.T) {
				f := c.far
				q := f.queue(50 * time.Millisecond)
				q.send = func(ctx context.Context, cmds []Cmd) error {
					q.mu.Lock()
					q.lost += c.late
					q.mu.Unlock()
					time.Sleep(c.late)
					return f.send(ctx, cmds)
				}
				for range c.processes {
					other := f.queue(50 * time.Millisecond)
					go load(other, c.rate, 12*time.Second)
				}
				ended, end := context.WithCancel(t.Context())
				go func() {
					for i := 0; ended.Err() == nil; i++ {
						time.Sleep(beat)
						f.mu.Lock()
						f.lost = time.Duration(i)*beat%(4*time.Second) < c.lost
						f.mu.Unlock()
					}
				}()
				for i := range 20 {
					if c.breaker && i%2 == 0 {
						time.Sleep(time.Second)
					}
					load(q, c.rate, time.Second/2)
				}
				end()
				until := q.slowStore.Load()
				err := q.Slow()
				if (err != nil) != c.want || c.want && (!errors.Is(err, quota.ErrSlow) || !errors.Is(err, ErrTimeout)) || until > 0 != c.want {
					t.Errorf("after 10 s: got %v, until %d, %+v; want an error: %v", err, until, q.slow, c.want)
				}
				for range 10 { // nobody calls Do
					_ = q.Slow()
					time.Sleep(slowCheck)
				}
				if err := q.Slow(); (err != nil) != c.want || q.slowStore.Load() > until != c.want {
					t.Errorf("2 s later: got %v until %d, before until %d", err, q.slowStore.Load(), until)
				}
				f.mu.Lock()
				f.rtt, f.each, f.late = time.Millisecond, 0, 0
				f.mu.Unlock()
				for range 2 * slowUntil {
					_ = q.Slow()
					time.Sleep(slowCheck)
				}
				if err := q.Slow(); err != nil || q.slowStore.Load() > time.Now().Add(slowAgain-time.Second/2).UnixNano() {
					t.Errorf("2 s after Redis has become quick: got %v, and that others look at the queue for as long as before", err)
				}
			})
		})
	}
}

// TestSlowGap: two slow calls with a long time between them show nothing.
func TestSlowGap(t *testing.T) {
	q := (&far{}).queue(50 * time.Millisecond)
	for _, at := range []time.Duration{0, slowAfter} {
		q.judge(1, 40*time.Millisecond, false, time.Time{}.Add(time.Hour+at))
		q.slow.failed += 100
	}
	if err := q.Slow(); err != nil {
		t.Errorf("got %v", err)
	}
}

// TestSlowAgain: one request a second is enough to find out that Redis is quick. If it is too slow again
// and again, perhaps because of the requests that then come back, this takes longer each time.
func TestSlowAgain(t *testing.T) {
	bubble(t, func(t *testing.T) {
		f := &far{}
		q := f.queue(50 * time.Millisecond)
		for _, c := range []struct{ pause, want time.Duration }{
			{0, time.Second}, {0, 2 * time.Second}, {0, 4 * time.Second}, {2 * slowAgain, time.Second},
		} {
			load(q, 1, c.pause)
			set := func(rtt, late time.Duration) {
				f.mu.Lock()
				defer f.mu.Unlock()
				f.rtt, f.late = rtt, late
			}
			set(40*time.Millisecond, 20*time.Millisecond)
			for q.Slow() == nil {
				load(q, 200, time.Second)
			}
			time.Sleep(2 * time.Second) // until the last calls have ended
			set(time.Millisecond, 0)
			begin := time.Now()
			for ; q.Slow() != nil; time.Sleep(time.Second) {
			}
			if took := time.Since(begin); took != c.want {
				t.Errorf("a pause of %v: got %v until it is over, want %v", c.pause, took, c.want)
			}
		}
	})
}
