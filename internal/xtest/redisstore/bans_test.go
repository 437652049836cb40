package redisstore_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A recorder is a store that records the charges of its calls.
type recorder struct {
	weir.Store
	charges []quota.Charge
}

func (r *recorder) Take(ctx context.Context, t *quota.Transaction) error {
	r.charges = append(r.charges, t.Charges...)
	return r.Store.Take(ctx, t)
}

// charged calls a function with a Limiter. It returns the charges of bans and pauses that the
// Limiter has sent to its store. Tests get their limits in this way, because package weir does
// not export these limits.
func charged(t *testing.T, do func(*weir.Limiter) error) (charges []quota.Charge) {
	t.Helper()
	store := &recorder{Store: memstore.New(memstore.Options{})}
	limiter, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "r", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
		Penalty: &weir.Penalty{Strikes: algorithms.FixedWindow(9, time.Second), Duration: time.Second, MaxDuration: 8 * time.Second},
	}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := do(limiter); err != nil {
		t.Fatal(err)
	}
	for _, c := range store.charges {
		if c.Limit.Algorithm.Name() == "ban" {
			charges = append(charges, c)
		}
	}
	if len(charges) == 0 {
		t.Fatalf("got %+v, want a charge of a ban", store.charges)
	}
	return charges
}

// TestBanInRedis: in Redis the algorithm "ban" decides as its Go code does.
func TestBanInRedis(t *testing.T) {
	t.Parallel()
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	ban := charged(t, func(l *weir.Limiter) error {
		_, err := l.Banned(t.Context(), "r", "")
		return err
	})[0].Limit
	byHand := charged(t, func(l *weir.Limiter) error { return l.Ban(t.Context(), "r", "", time.Second) })[0].Limit.Burst
	if ban.Quota != 8_000_000 || byHand == ban.Burst {
		t.Fatalf("got %+v and a burst of %d by hand, want 8s and two different bursts", ban, byHand)
	}
	onBothLuas(t, func(t *testing.T, rdb *redis.Client, server world) {
		store := newStore(t, rdb)
		var states [2]quota.State
		now := int64(1_700_000_000_000_000)
		for range 2000 {
			c := quota.Charge{Rule: "r", Limit: ban, Cost: []int64{0, 1, 1e6, 1e6, 4e6}[r.IntN(5)]}
			if r.IntN(8) == 0 {
				c.Limit.Burst, c.Cost = byHand, r.Int64N(20e6)+1
			}
			tx := quota.Transaction{Charges: []quota.Charge{c, {Rule: "r", Limit: algorithms.GCRA(3, time.Second), Cost: []int64{-5, 0, 1}[r.IntN(3)]}}}
			if c.Cost == 1 { // asks for a ban, and writes nothing unless the other charge spends
				tx.Charges[1].Cost = 1
			}
			want := quota.Transaction{Charges: tx.Charges}
			server.SetTime(time.UnixMicro(now))
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			want.Decide(now, states[:])
			if tx.Decisions[0] != want.Decisions[0] || tx.Decisions[1] != want.Decisions[1] {
				t.Fatalf("seed %d: cost %d, burst %d: got %+v, want %+v", seed, c.Cost, c.Limit.Burst, tx.Decisions, want.Decisions)
			}
			if c.Cost == 1 && want.Allowed() && want.Decisions[0].ResetAfter == 0 {
				states[0] = quota.State{} // Redis has written that the state has ended, and the clock may step back
			}
			now += []int64{0, 1, -r.Int64N(1e6), r.Int64N(4e6), r.Int64N(16e6), r.Int64N(600e6)}[r.IntN(6)]
		}
	})
}

type busy struct{}

func (busy) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody}, nil
}

// TestPauseInRedis: in Redis a transaction is delayed or refused by a pause as in Go, whatever
// other limits it charges.
func TestPauseInRedis(t *testing.T) {
	t.Parallel()
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 0))
	charges := charged(t, func(l *weir.Limiter) error {
		transport, err := l.Transport(weir.TransportOptions{Base: busy{}, MaxPause: time.Second})
		if err == nil {
			_, err = transport.RoundTrip(httptest.NewRequest("GET", "/", nil))
		}
		return err
	})
	charges = slices.DeleteFunc(charges, func(c quota.Charge) bool { return c.Limit.Name != "pause" })
	if len(charges) != 2 || charges[0].Cost != 1 || charges[1].Cost != 1e6 {
		t.Fatalf("got %+v, want a charge of 1 that the pause would delay, and a pause of 1e6 µs", charges)
	}
	onBothLuas(t, func(t *testing.T, rdb *redis.Client, server world) {
		store := newStore(t, rdb)
		limits := []weir.Limit{charges[0].Limit.Named("one"), charges[0].Limit.Named("two"), algorithms.GCRA(3, time.Second), algorithms.SlidingLog(3, time.Second), algorithms.LeakyBucket(9, 3, time.Second)}
		states := make([]quota.State, len(limits))
		now := int64(1_700_000_000_000_000)
		var turns []quota.Transaction // that give back what has waited
		for range 3000 {
			var tx quota.Transaction
			var of []int
			for i, l := range limits {
				if r.IntN(2) == 0 {
					of = append(of, i)
					c := quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: []int64{0, 1, 1, 1, -1}[r.IntN(5)]}
					if i < 2 && r.IntN(4) == 0 { // a pause begins
						c.Cost = 2 + r.Int64N(1e7)
					}
					tx.Charges = append(tx.Charges, c)
				}
			}
			tx.Within = []time.Duration{0, 0, time.Second, time.Minute}[r.IntN(4)]
			if r.IntN(8) == 0 {
				tx.Mode, tx.Within = []quota.Mode{quota.ModePeek, quota.ModeForget}[r.IntN(2)], 0
			}
			if n := len(turns); n > 0 && r.IntN(4) == 0 {
				tx, turns, of = turns[n-1], turns[:n-1], nil
				for _, c := range tx.Charges {
					of = append(of, slices.IndexFunc(limits, func(l quota.Limit) bool { return l.Name == c.Limit.Name && l.Algorithm == c.Limit.Algorithm }))
				}
			}
			var want quota.Transaction
			want.SetQuestion(&tx)
			server.SetTime(time.UnixMicro(now))
			if err := store.Take(t.Context(), &tx); err != nil {
				t.Fatalf("seed %d: %v", seed, err)
			}
			before := make([]quota.State, len(of))
			for j, i := range of {
				before[j] = states[i]
			}
			want.Decide(now, before)
			for j, i := range of {
				states[i] = before[j]
				if tx.Decisions[j] != want.Decisions[j] || tx.Wait != want.Wait {
					t.Fatalf("seed %d: %v, cost %d: got %+v and Wait %v, want %+v and %v", seed, tx.Charges[j].Limit, tx.Charges[j].Cost,
						tx.Decisions[j], tx.Wait, want.Decisions[j], want.Wait)
				}
			}
			if tx.Wait > 0 {
				back := quota.Transaction{Cancels: tx.Undo}
				for j, c := range tx.Charges {
					c.Cost, c.Spent = -max(0, c.Cost), tx.Decisions[j].At
					back.Charges = append(back.Charges, c)
				}
				turns = append(turns, back)
			}
			now += []int64{0, 1, r.Int64N(1e6), r.Int64N(1e7)}[r.IntN(4)]
		}
	})
}
