package quota_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// TestBreakerServerGone: after a failover, no call is for the server that has failed, and the breaker is
// closed nevertheless. The next outage is reported. An outage without a call for the server is not closed
// by a probe that is under way.
func TestBreakerServerGone(t *testing.T) {
	for _, gone := range []string{"", "a"} { // "": the server was not known when the breaker opened
		synctest.Test(t, func(t *testing.T) {
			s := &pairStore{memory(), map[string]bool{gone: true}}
			var changes []bool
			b := quota.Breaker(s, quota.BreakerOptions{
				Failures: 1, OnChange: func(open bool, _ error) { changes = append(changes, open) },
			})
			call := func(server string) {
				tx := once(algorithms.GCRA(10, time.Second))
				tx.Charges[0].Key = server
				_ = b.Take(t.Context(), tx)
			}
			call(gone)
			for range 59 {
				time.Sleep(time.Second)
				call("b")
			}
			if !b.Stats().Open {
				t.Error("closed before a minute was over")
			}
			for range 4 {
				time.Sleep(time.Second)
				call("b")
			}
			if b.Stats().Open {
				t.Error("open a minute after the last call for the server")
			}
			s.down["b"] = true
			call("b")
			if want := []bool{true, false, true}; !slices.Equal(changes, want) {
				t.Errorf("got changes %v, want %v", changes, want)
			}
		})
	}
}

// TestBreakerServersBounded: servers come and go, and the breaker forgets those whose circuits are closed,
// but not one that is open. If all are open, further servers share a circuit.
func TestBreakerServersBounded(t *testing.T) {
	for _, down := range []bool{false, true} {
		s := &pairStore{memory(), map[string]bool{"down": true}}
		b := quota.Breaker(s, quota.BreakerOptions{Failures: 1, Cooldown: time.Hour, Logger: slog.New(slog.DiscardHandler)})
		call := func(server string) error {
			tx := once(algorithms.GCRA(10, time.Second))
			tx.Charges[0].Key = server
			return b.Take(t.Context(), tx)
		}
		_ = call("down")
		for i := range 5000 {
			s.down[fmt.Sprint(i)] = down
			_ = call(fmt.Sprint(i))
			if n := b.Circuits(); n > 1000 {
				t.Fatalf("got %d circuits after %d servers", n, i)
			}
		}
		if err := call("down"); !errors.Is(err, quota.ErrOpen) {
			t.Errorf("others down %v: got %v, want %v", down, err, quota.ErrOpen)
		}
		if err := call("new"); errors.Is(err, quota.ErrOpen) != down {
			t.Errorf("others down %v: got %v for another server", down, err)
		}
	}
}

// TestBreakerForgetsOpening: a circuit that is forgotten while a call of it fails does not open, because
// nothing would close it.
func TestBreakerForgetsOpening(t *testing.T) {
	var b *quota.BreakerStore
	call := func(server string) {
		tx := once(algorithms.GCRA(10, time.Second))
		tx.Charges[0].Key = server
		_ = b.Take(t.Context(), tx)
	}
	s := &pairStore{memory(), map[string]bool{"a": true}}
	during := weirtest.StoreFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if tx.Charges[0].Key == "a" {
			for i := range 2000 {
				call(fmt.Sprint(i))
			}
		}
		return s.Take(ctx, tx)
	})
	b = quota.Breaker(named{during}, quota.BreakerOptions{Failures: 1, Logger: slog.New(slog.DiscardHandler)})
	if call("a"); b.Stats().Open {
		t.Error("a forgotten circuit has opened")
	}
}

// A named store has a server for each key.
type named struct{ quota.Store }

func (named) Server(t *quota.Transaction) string { return t.Charges[0].Key }
