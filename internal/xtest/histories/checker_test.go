package histories_test

import (
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"
)

// record makes random operations on one pair of a counter, from several goroutines, and
// returns their history. flaw, if not nil, changes what a client sees, or the counter itself.
func record(seed uint64, flaw func(rng *rand.Rand, s *state, o *op)) []op {
	var mu sync.Mutex
	var now state
	var ops []op
	var wg sync.WaitGroup
	begin := time.Now()
	for w := range 8 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(seed, uint64(w)))
			for range 20 {
				o := op{Worker: w, Kind: kind(rng.IntN(int(look) + 1))}
				if rng.IntN(2) == 0 {
					o.Kind = spendA
				}
				o.Call = int64(time.Since(begin))
				time.Sleep(time.Duration(rng.IntN(100)) * time.Microsecond)
				mu.Lock()
				failed := rng.IntN(20) == 0
				if !failed || rng.IntN(2) == 0 {
					now, o.answer = now.apply(o.Kind)
				}
				if failed {
					o.Err, o.answer = "lost", answer{}
				}
				if flaw != nil {
					flaw(rng, &now, &o)
				}
				mu.Unlock()
				time.Sleep(time.Duration(rng.IntN(100)) * time.Microsecond)
				o.Return = int64(time.Since(begin))
				mu.Lock()
				ops = append(ops, o)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	return ops
}

// TestChecker: the checker accepts histories of a counter and refuses those of broken ones.
func TestChecker(t *testing.T) {
	for _, c := range []struct {
		name   string
		evicts bool
		flaw   func(rng *rand.Rand, s *state, o *op)
	}{
		{"a counter", false, nil},
		{"a store that evicts keys", true, func(rng *rand.Rand, s *state, o *op) {
			if rng.IntN(10) == 0 && !s.limitedA {
				s.a = 0
			}
		}},
		{"evicts keys that are limited", true, func(rng *rand.Rand, s *state, o *op) {
			if rng.IntN(10) == 0 && s.limitedA {
				s.a = 0
			}
		}},
		{"forgets a unit", false, func(rng *rand.Rand, s *state, o *op) {
			if rng.IntN(15) == 0 && s.a > 0 {
				s.a--
			}
		}},
		{"spends a unit twice", false, func(rng *rand.Rand, s *state, o *op) {
			if rng.IntN(6) == 0 && o.Kind == spendB && o.Err == "" && s.b < quotaOfPair {
				s.b++
			}
		}},
		{"spends half of a pair", false, func(rng *rand.Rand, s *state, o *op) {
			if o.Kind == spendBoth && o.Err == "" && !o.Allowed && s.b < quotaOfPair {
				s.b++
			}
		}},
		{"admits one more", false, func(rng *rand.Rand, s *state, o *op) {
			if o.Kind == spendA && o.Err == "" && !o.Allowed {
				o.Allowed = true
			}
		}},
		{"an old answer", false, func(rng *rand.Rand, s *state, o *op) {
			if o.Kind == look && o.Err == "" && o.Remaining[0] < quotaOfPair-5 {
				o.Remaining[0] += 5
			}
		}},
		{"answers that are too high", false, func(rng *rand.Rand, s *state, o *op) {
			if o.Kind == spendA && o.Err == "" && rng.IntN(20) == 0 {
				o.Remaining[0] += 2
			}
		}},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			found := 0
			for seed := range uint64(10) {
				switch linearizable(record(seed, c.flaw), c.evicts) {
				case impossible:
					found++
				case tooLarge:
					t.Error("the search gave up")
				}
			}
			if right := c.flaw == nil || c.name == "a store that evicts keys"; right && found > 0 || !right && found < 5 {
				t.Errorf("found a fault in %d of 10 histories", found)
			}
		})
	}
}

// TestStale: a refusal from memory is right while its key can have been full, and otherwise its age is known.
func TestStale(t *testing.T) {
	ms := func(n int) int64 { return int64(n) * int64(time.Millisecond) }
	spend := func(kind kind, n, from int) (ops []op) {
		for range n {
			ops = append(ops, op{Kind: kind, Call: ms(from), Return: ms(from + 1), answer: answer{Allowed: true}})
		}
		return ops
	}
	full := spend(spendA, quotaOfPair, 0)
	refund := func(from, to int, remaining int64) op {
		return op{Kind: refund, Call: ms(from), Return: ms(to), answer: answer{Allowed: true, Remaining: []int64{remaining}}}
	}
	refunded := append(slices.Clone(full), refund(10, 20, 1))
	failed := refund(10, 20, 1)
	failed.Err = "timeout"
	for name, c := range map[string]struct {
		ops  []op
		kind kind
		want time.Duration
	}{
		"never full":                        {spend(spendA, quotaOfPair-1, 0), spendA, -1},
		"the other key is full":             {full, spendB, -1},
		"full":                              {full, spendA, 0},
		"full, and both keys are wanted":    {full, spendBoth, 0},
		"full with a call that failed":      {append(spend(spendA, quotaOfPair-1, 0), op{Kind: spendA, Call: ms(5), Err: "timeout"}), spendA, 0},
		"refunded before":                   {refunded, spendA, 80 * time.Millisecond},
		"refunded and spent again":          {append(slices.Clone(refunded), spend(spendBoth, 1, 30)...), spendA, 0},
		"refunds of a key without units":    {append([]op{refund(0, 2, quotaOfPair)}, full...), spendA, 0},
		"a refund that has not ended":       {append(slices.Clone(full), refund(10, 200, 1)), spendA, 0},
		"a refund that may not have worked": {append(slices.Clone(full), failed), spendA, 0},
	} {
		o := op{Kind: c.kind, Call: ms(100), Return: ms(101), Store: hybrid}
		if got := o.stale(c.ops); got != c.want {
			t.Errorf("%s: got %v, want %v", name, got, c.want)
		}
	}
}
