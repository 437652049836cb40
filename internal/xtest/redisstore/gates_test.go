package redisstore_test

import (
	"context"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
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

// charged calls a function with a Limiter. It returns the last charge under the named algorithm
// that the Limiter has sent to its store. Tests get the limits of bans and pauses in this way,
// because package weir does not export these limits.
func charged(t *testing.T, algorithm string, do func(*weir.Limiter) error) (last quota.Charge) {
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
		if c.Limit.Algorithm.Name() == algorithm {
			last = c
		}
	}
	if last.Limit.Algorithm == nil {
		t.Fatalf("got %+v, want a charge of a %s", store.charges, algorithm)
	}
	return last
}

// TestBanInRedis: in Redis the algorithm "ban" decides as its Go code does.
func TestBanInRedis(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	ban := charged(t, "ban", func(l *weir.Limiter) error {
		_, err := l.Banned(t.Context(), "r", "")
		return err
	}).Limit
	byHand := charged(t, "ban", func(l *weir.Limiter) error { return l.Ban(t.Context(), "r", "", time.Second) }).Limit.Burst
	if ban.Period != 8*time.Second || byHand == ban.Burst {
		t.Fatalf("got %+v and a burst of %d by hand, want 8s and two different bursts", ban, byHand)
	}
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	var states [2]quota.State
	now := int64(1_700_000_000_000_000)
	for range 2000 {
		c := quota.Charge{Rule: "r", Limit: ban, Cost: []int64{0, 1e6, 1e6, 4e6}[r.IntN(4)]}
		if r.IntN(8) == 0 {
			c.Limit.Burst, c.Cost = byHand, r.Int64N(20e6)+1
		}
		tx := quota.Transaction{Charges: []quota.Charge{c, {Rule: "r", Limit: algorithms.GCRA(3, time.Second), Cost: []int64{-5, 0, 1}[r.IntN(3)]}}}
		want := quota.Transaction{Charges: tx.Charges}
		server.SetTime(time.UnixMicro(now))
		if err := store.Take(t.Context(), &tx); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		want.Decide(now, states[:])
		if tx.Decisions[0] != want.Decisions[0] || tx.Decisions[1] != want.Decisions[1] {
			t.Fatalf("seed %d: cost %d, burst %d: got %+v, want %+v", seed, c.Cost, c.Limit.Burst, tx.Decisions, want.Decisions)
		}
		now += []int64{0, 1, -r.Int64N(1e6), r.Int64N(4e6), r.Int64N(16e6), r.Int64N(600e6)}[r.IntN(6)]
	}
}

type busy struct{}

func (busy) RoundTrip(*http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody}, nil
}

// TestGateInRedis: in Redis the algorithm "gate" decides as its Go code does.
func TestGateInRedis(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	r := rand.New(rand.NewPCG(seed, 0))
	pause := charged(t, "gate", func(l *weir.Limiter) error {
		transport, err := l.Transport(weir.TransportOptions{Base: busy{}, MaxPause: time.Second})
		if err == nil {
			_, err = transport.RoundTrip(httptest.NewRequest("GET", "/", nil))
		}
		return err
	})
	gate, shut := pause.Limit, pause.Cost
	if shut < 2 {
		t.Fatalf("got a pause of cost %d, want more than 1, the cost of passing", shut)
	}
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	limits := []weir.Limit{gate.Named("one"), gate.Named("two"), algorithms.GCRA(3, time.Second), algorithms.SlidingLog(3, time.Second), algorithms.LeakyBucket(9, 3, time.Second)}
	states := make([]quota.State, len(limits))
	now := int64(1_700_000_000_000_000)
	for range 1000 {
		var tx quota.Transaction
		var of []int
		for i, l := range limits {
			if r.IntN(2) == 0 {
				of = append(of, i)
				tx.Charges = append(tx.Charges, quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: gateCost(r, i < 2, shut)})
			}
		}
		tx.Within = []time.Duration{0, 0, time.Second, time.Minute}[r.IntN(4)]
		tx.Delay = tx.Within / 8 * time.Duration(r.IntN(3))
		tx.Forget = r.IntN(8) == 0
		want := quota.Transaction{Charges: tx.Charges, Within: tx.Within, Delay: tx.Delay, Forget: tx.Forget}
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
		now += []int64{0, 1, r.Int64N(1e6), r.Int64N(1e7)}[r.IntN(4)]
	}
}

// gateCost returns a random cost. The cost of a gate is sometimes the cost that shuts the gate.
func gateCost(r *rand.Rand, gate bool, shut int64) int64 {
	cost := int64(r.IntN(3))
	if gate && r.IntN(3) == 0 {
		cost = shut
	}
	return []int64{cost, cost, cost, -1}[r.IntN(4)]
}
