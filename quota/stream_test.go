package quota_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// streamed are limits of 100 tokens that do not refill while a test runs.
var streamed = map[string]quota.Limit{
	"gcra":            algorithms.GCRA(100, 10000*time.Hour),
	"token bucket":    algorithms.TokenBucket(100, 100, 10000*time.Hour),
	"fixed window":    algorithms.FixedWindow(100, 10000*time.Hour),
	"anchored window": algorithms.AnchoredWindow(100, time.Hour),
	"sliding window":  algorithms.SlidingWindow(100, 10000*time.Hour),
	"sliding log":     algorithms.SlidingLog(100, 10000*time.Hour),
}

// eachStreamed calls f for each limit, over memory and over Redis.
func eachStreamed(t *testing.T, f func(t *testing.T, store quota.Store, charge quota.Charge)) {
	for name, open := range map[string]func(t *testing.T) quota.Store{
		"memory": func(*testing.T) quota.Store { return memory() },
		"redis":  func(t *testing.T) quota.Store { return redisAt(t, redistest.Server(t).Addr(), 5*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			for name, limit := range streamed {
				t.Run(name, func(t *testing.T) {
					f(t, store, quota.Charge{Rule: name, Key: "acme", Limit: limit, Cost: 1})
				})
			}
		})
	}
}

// TestStreamsTogether: five streams that draw token by token spend exactly the 100 tokens that
// there are, and then each of them ends, with the time of the next token.
func TestStreamsTogether(t *testing.T) {
	eachStreamed(t, func(t *testing.T, store quota.Store, charge quota.Charge) {
		var total atomic.Int64
		together(5, func(i int) {
			s := quota.NewStream(store, charge)
			defer s.Close(t.Context())
			for {
				n, err := s.Draw(t.Context(), 1+int64(i)%2)
				if total.Add(n); err == nil {
					continue
				}
				if l := new(quota.LimitedError); n != 0 || !errors.As(err, &l) || l.RetryAfter() <= 0 || l.RetryAfter() == quota.Never {
					t.Errorf("a stream ends with %d tokens and %v", n, err)
				}
				return
			}
		})
		if total.Load() != 100 {
			t.Errorf("five streams spent %d tokens, want 100", total.Load())
		}
	})
}

// TestStreamClosed: what a stream has not drawn is free again after Close, although the context
// of its client has ended.
func TestStreamClosed(t *testing.T) {
	eachStreamed(t, func(t *testing.T, store quota.Store, charge quota.Charge) {
		ctx, hangUp := context.WithCancel(t.Context())
		s := quota.NewStream(store, charge)
		for range 21 {
			if n, err := s.Draw(ctx, 2); n != 2 || err != nil {
				t.Fatalf("got %d tokens and %v, want 2", n, err)
			}
		}
		hangUp()
		if n, err := s.Draw(ctx, 1); n != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("after a hang-up: got %d tokens and %v", n, err)
		}
		for range 2 {
			if err := s.Close(ctx); err != nil {
				t.Error(err)
			}
		}
		if left := peek(t, store, charge).Decisions[0].Remaining; left != 58 && left != 57 { // a unit may be draining
			t.Errorf("%d tokens are left of 100 after 42, want 58", left)
		}
		if n, err := s.Draw(t.Context(), 1); n != 0 || err == nil {
			t.Errorf("after Close: got %d tokens and %v", n, err)
		}
	})
}

// TestStreamExact: a unit that a stream took in advance is used only while the limit would still
// admit it, whatever the streams do in the meantime.
func TestStreamExact(t *testing.T) {
	for name, limit := range map[string]quota.Limit{
		"gcra":            algorithms.GCRA(800, time.Minute),
		"fixed window":    algorithms.FixedWindow(800, time.Minute),
		"anchored window": algorithms.AnchoredWindow(800, time.Minute),
		"sliding window":  algorithms.SlidingWindow(800, time.Minute),
		"sliding log":     algorithms.SlidingLog(800, time.Minute),
	} {
		t.Run(name, func(t *testing.T) {
			for seed := range uint64(20) {
				synctest.Test(t, func(t *testing.T) { streamsAgainst(t, rand.New(rand.NewPCG(seed, 1)), limit) })
			}
		})
	}
}

// streamsAgainst runs streams of one key, beside a caller that now and then takes all that is free.
// It spends each unit a second time, at the instant of its use, in a store that has nothing else.
func streamsAgainst(t *testing.T, r *rand.Rand, limit quota.Limit) {
	store, truth := memory(), memory()
	charge := quota.Charge{Rule: "jobs", Key: "acme", Limit: limit, Cost: 1}
	streams := make([]*quota.Stream, 3)
	drawn := int64(0)
	for range 600 {
		i, n := r.IntN(len(streams)), int64(0)
		switch s := &streams[i]; {
		case r.IntN(20) == 0:
			n = takeAtMost(t, store, limit, 800)
		case *s == nil:
			*s = quota.NewStream(store, charge)
		case r.IntN(40) == 0:
			if err := (*s).Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			*s = nil
		default:
			n, _ = (*s).Draw(t.Context(), 1+r.Int64N(20))
			drawn += n
		}
		if n > 0 {
			used := charge
			used.Cost = n
			if d, err := quota.Allow(t.Context(), truth, used); err != nil || !d.Allowed {
				t.Fatalf("%d units were used that the limit would have refused: %+v, %v", n, d, err)
			}
		}
		pause := time.Second
		if r.IntN(20) == 0 {
			pause *= 60
		}
		time.Sleep(time.Duration(r.Int64N(int64(pause))))
	}
	if drawn < 1000 {
		t.Errorf("the streams drew %d units", drawn)
	}
}

// TestStreamLate: Close gives no units back in whose place others may have been admitted. The
// stream uses 30 units late, when the limit has forgotten that they were taken.
func TestStreamLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := algorithms.GCRA(600, time.Minute)
		store := memory()
		s := quota.NewStream(store, quota.Charge{Rule: "jobs", Key: "acme", Limit: limit, Cost: 1})
		for i, n := range []int64{60, 1, 30} {
			if i == 2 {
				time.Sleep(9 * time.Second)
			}
			if got, err := s.Draw(t.Context(), n); got != n || err != nil {
				t.Fatalf("got %d units and %v, want %d", got, err, n)
			}
		}
		if err := s.Close(t.Context()); err != nil {
			t.Fatal(err)
		}
		if n := takeAtMost(t, store, limit, 600); n > 570 {
			t.Errorf("%d units were free beside the 30 that the stream has just used", n)
		}
	})
}

// TestStreamCalls: a stream that draws one unit at a time calls the store seldom, and a stream
// that dies leaves at most as many unused units as it has used.
func TestStreamCalls(t *testing.T) {
	next, calls := memory(), 0
	store := storeFunc(func(ctx context.Context, t *quota.Transaction) error {
		calls++
		return next.Take(ctx, t)
	})
	charge := quota.Charge{Rule: "tokens", Key: "acme", Limit: algorithms.FixedWindow(100_000, 10000*time.Hour), Cost: 1}
	s := quota.NewStream(store, charge)
	for used := int64(1); used <= 4096; used++ {
		if n, err := s.Draw(t.Context(), 1); n != 1 || err != nil {
			t.Fatalf("got %d units and %v", n, err)
		}
		if spent := 100_000 - peek(t, next, charge).Decisions[0].Remaining; spent > 2*used+1 {
			t.Fatalf("after %d units, %d are spent", used, spent)
		}
	}
	if calls > 15 {
		t.Errorf("4096 units took %d calls", calls)
	}
}

// TestStreamOfSeveral: a stream of tokens and money draws both or none.
func TestStreamOfSeveral(t *testing.T) {
	store := memory()
	tokens := quota.Charge{Rule: "tokens", Key: "acme", Limit: algorithms.GCRA(100, 10000*time.Hour), Cost: 1}
	money := quota.Charge{Rule: "money", Key: "acme", Limit: algorithms.Calendar(200, algorithms.Month, time.UTC), Cost: 3}
	s := quota.NewStream(store, tokens, money)
	total := int64(0)
	for {
		n, err := s.Draw(t.Context(), 7)
		if total += n; err != nil {
			break
		}
	}
	if err := s.Close(t.Context()); err != nil || total != 66 {
		t.Errorf("drew %d tokens at a price of 3 from a budget of 200, want 66; Close: %v", total, err)
	}
	tx := peek(t, store, tokens, money)
	if tx.Decisions[0].Remaining != 34 || tx.Decisions[1].Remaining != 2 {
		t.Errorf("%d tokens and %d of money are left, want 34 and 2", tx.Decisions[0].Remaining, tx.Decisions[1].Remaining)
	}
}

// TestStreamRests: of the units that a Stream took in advance, those that have drained while it
// rested cannot be drawn later, when others have been admitted in their place.
func TestStreamRests(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := quota.NewStream(memory(), quota.Charge{Rule: "jobs", Key: "acme", Limit: algorithms.GCRA(1000, 10*time.Second), Cost: 1})
		draw := func(n int64) int64 {
			got, _ := s.Draw(t.Context(), n)
			return got
		}
		draw(200)
		time.Sleep(10 * time.Second)
		draw(1)
		time.Sleep(500 * time.Millisecond)
		total := int64(0)
		for n := draw(10); n > 0; n = draw(10) {
			total += n
		}
		if total < 999 || total > 1000 { // a unit may be about to drain
			t.Errorf("got %d units at one instant, want 1000", total)
		}
	})
}

// TestStreamRefund: units are refunded as they were spent, each at the instant of its call, and
// those of a request that were spent before are refunded with it.
func TestStreamRefund(t *testing.T) {
	for _, tt := range []struct {
		limit quota.Limit
		pause time.Duration // before each call
	}{
		{algorithms.GCRA(60, time.Minute), 3 * time.Second},
		{algorithms.TokenBucket(60, 60, time.Minute), 3 * time.Second},
		{algorithms.LeakyBucket(60, 60, time.Minute), 3 * time.Second},
		{algorithms.FixedWindow(60, time.Minute), 40 * time.Second},
		{algorithms.AnchoredWindow(60, time.Minute), 25 * time.Second},
		{algorithms.SlidingWindow(60, time.Minute), 40 * time.Second},
		{algorithms.SlidingLog(60, time.Minute), time.Microsecond},
	} {
		t.Run(tt.limit.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				time.Sleep(tt.pause)
				store := memory()
				charge := quota.Charge{Rule: "tokens", Key: "acme", Limit: tt.limit, Cost: 2}
				request := &quota.Transaction{Charges: []quota.Charge{charge}}
				if err := store.Take(t.Context(), request); err != nil {
					t.Fatal(err)
				}
				charge.Cost = 1
				s := quota.NewStream(store, charge)
				for _, n := range []int64{10, 20} {
					time.Sleep(tt.pause)
					if got, err := s.Draw(t.Context(), n); got != n || err != nil {
						t.Fatalf("got %d, %v", got, err)
					}
				}
				if err := s.Close(t.Context()); err != nil {
					t.Fatal(err)
				}
				before := peek(t, store, charge).Decisions[0].Remaining
				if err := s.Refund(t.Context(), 11); err != nil { // 10 of the second call, 1 of the first
					t.Fatal(err)
				}
				if left := peek(t, store, charge).Decisions[0].Remaining; left != before+11 {
					t.Errorf("got %d left after a refund of 11, want %d", left, before+11)
				}
				for range 2 { // the second refunds nothing
					if err := s.Refund(t.Context(), math.MaxInt64); err != nil {
						t.Fatal(err)
					}
				}
				if err := quota.Refund(t.Context(), store, request); err != nil {
					t.Fatal(err)
				}
				if left := peek(t, store, charge).Decisions[0].Remaining; left != 60 {
					t.Errorf("got %d left, want 60", left)
				}
			})
		})
	}
}

// TestStreamRefundInUse: a refund does not let the Stream use units in whose place others are admitted.
func TestStreamRefundInUse(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, limit := memory(), algorithms.GCRA(1000, 10*time.Second)
		s := quota.NewStream(store, quota.Charge{Rule: "jobs", Key: "acme", Limit: limit, Cost: 1})
		for _, n := range []int64{200, 1} { // the second takes 100 in advance
			if got, err := s.Draw(t.Context(), n); got != n || err != nil {
				t.Fatal(got, err)
			}
		}
		if err := s.Refund(t.Context(), 201); err != nil {
			t.Fatal(err)
		}
		time.Sleep(500 * time.Millisecond)
		others := takeAtMost(t, store, limit, 1000)
		mine, _ := s.Draw(t.Context(), 100)
		if total := others + mine; total < 999 || total > 1000 {
			t.Errorf("got %d and %d units at one instant, want 1000 together", others, mine)
		}
	})
}

// TestStreamRefundSeveral: each charge has its own number, which is bounded by what was drawn. Of
// very many calls, fewer units are refunded, never more.
func TestStreamRefundSeveral(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memory()
		one := quota.Charge{Rule: "one", Key: "acme", Limit: algorithms.SlidingLog(300, time.Hour), Cost: 1}
		other := quota.Charge{Rule: "other", Key: "acme", Limit: algorithms.FixedWindow(3000, 10000*time.Hour), Cost: 3}
		if _, err := quota.Allow(t.Context(), store, one); err != nil { // of somebody else
			t.Fatal(err)
		}
		s := quota.NewStream(store, one, other)
		for range 200 {
			time.Sleep(time.Second)
			if n, err := s.Draw(t.Context(), 1); n != 1 || err != nil {
				t.Fatal(n, err)
			}
		}
		if err := s.Refund(t.Context(), 1); err == nil {
			t.Error("one number for two charges: want an error")
		}
		if err := s.Refund(t.Context(), 30, 199); err != nil {
			t.Fatal(err)
		}
		got := peek(t, store, one, other)
		if one, other := got.Decisions[0].Remaining, got.Decisions[1].Remaining; one != 300-201+30 || other != 3000-3*1 {
			t.Errorf("got %d and %d left, want %d and %d", one, other, 300-201+30, 3000-3)
		}
		if err := s.Refund(t.Context(), 1000, 1000); err != nil {
			t.Fatal(err)
		}
		got = peek(t, store, one, other)
		if one, other := got.Decisions[0].Remaining, got.Decisions[1].Remaining; one < 300-201+63 || one > 299 || other != 3000 {
			t.Errorf("got %d and %d left, want at least %d, at most 299, and 3000", one, other, 300-201+63)
		}
	})
}

// TestStreamErrors: what is wrong is said by each Draw, and a failed store gives no units.
func TestStreamErrors(t *testing.T) {
	charge := quota.Charge{Rule: "tokens", Key: "acme", Limit: algorithms.GCRA(100, time.Hour), Cost: 1}
	free := charge
	free.Cost = 0
	for _, tt := range []struct {
		name  string
		store quota.Store
		n     int64
		c     quota.Charge
	}{
		{"a negative draw", memory(), -1, charge},
		{"a charge without a cost", memory(), 1, free},
		{"a store that fails", failing{errDown}, 1, charge},
		{"a limit that is invalid", memory(), 1, quota.Charge{Rule: "tokens", Limit: algorithms.GCRA(0, time.Hour), Cost: 1}},
	} {
		s := quota.NewStream(tt.store, tt.c)
		if n, err := s.Draw(t.Context(), tt.n); n != 0 || err == nil {
			t.Errorf("%s: got %d units and error %v", tt.name, n, err)
		}
		if err := errors.Join(s.Refund(t.Context(), 1), s.Close(t.Context())); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	s := quota.NewStream(memory(), charge)
	for want, n := range map[int64]int64{0: 0} {
		if got, err := s.Draw(t.Context(), n); got != want || err != nil {
			t.Errorf("Draw(%d): got %d, %v", n, got, err)
		}
	}
	if n, err := s.Draw(t.Context(), math.MaxInt64); n != 100 || err != nil {
		t.Errorf("a draw of all numbers: got %d units and %v, want 100", n, err)
	}
}

func ExampleStream() {
	ctx, store := context.Background(), memory()
	charge := quota.Charge{Rule: "tokens", Key: "acme", Limit: algorithms.TokenBucket(5, 5, time.Hour), Cost: 1}

	stream := quota.NewStream(store, charge)
	defer stream.Close(ctx)
	for _, token := range []string{"The ", "quick ", "brown ", "fox ", "jumps ", "over ", "the ", "dog."} {
		if n, err := stream.Draw(ctx, 1); n == 0 {
			var limited *quota.LimitedError
			fmt.Println("…", errors.As(err, &limited), limited.RetryAfter() > 11*time.Minute)
			return
		}
		fmt.Print(token)
	}
	// Output: The quick brown fox jumps … true true
}
