package queue

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
)

// TestLone: a caller that has been alone for a while sends its commands itself, unless its call
// could end after its budget or after the caller has given up.
func TestLone(t *testing.T) {
	for _, c := range []struct {
		name           string
		before         int // asks
		rtt, since     time.Duration
		unbounded, may bool // the client ignores deadlines; the caller may give up
		beside, want   bool // another caller asks at the same time
	}{
		{name: "alone", before: lone + 1, want: true},
		{name: "not long enough", before: lone - 1},
		{name: "another caller", before: lone + 1, beside: true},
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
					if err := q.ask(); err != nil {
						t.Fatal(err)
					}
					synctest.Wait() // until the queue knows that the call has ended
				}
				time.Sleep(c.since)
				if c.beside {
					go func() { _ = q.ask() }()
					time.Sleep(f.rtt / 2)
					_ = q.ask()
				}
				own := context.Background()
				if c.may {
					own = t.Context()
				}
				b := q.alone(WithBudget(own, q.timeout), make([]Cmd, 1))
				if got := b != nil; got != c.want {
					t.Errorf("got %v, want %v for whether the caller sends its commands itself", got, c.want)
				}
			})
		})
	}
}

// TestBounded: a queue knows whether its client heeds deadlines.
func TestBounded(t *testing.T) {
	for _, want := range []bool{false, true} {
		rdb := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: want})
		rdb.Close() // so that nothing is dialed
		if got := New(Options{Client: rdb, Timeout: 50 * time.Millisecond}).bounded; got != want {
			t.Errorf("ContextTimeoutEnabled %v: got %v", want, got)
		}
	}
}
