package algorithms_test

import (
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// TestPurity takes from one state several times, as a store does to explain a refusal or to
// reserve. Each Take returns the same as for a copy of the state, and leaves the state
// unchanged, even if the log of the returned state shares memory with the log of the old
// state. Step gives the same results, whatever *d was before.
func TestPurity(t *testing.T) {
	seed := rounds.Seed(t)
	r := rand.New(rand.NewPCG(seed, 8))
	for range 300 {
		for _, l := range everyAlgorithm(12, 12, time.Minute) {
			var s quota.State
			now := int64(1_700_000_000_000_000)
			for range 20 {
				keep := 1 + r.Int64N(3)
				for _, cost := range []int64{3, -2, 1, -1, 13, 0, 2, -100, keep} {
					checkPure(t, seed, l, s, now, cost)
				}
				cost := keep
				if r.IntN(4) == 0 {
					cost = -keep
				}
				s, _ = l.Algorithm.Take(s, &l, now, cost)
				now += r.Int64N(10_000_000)
			}
		}
	}
}

// checkPure fails the test unless Take of a state, Take of a copy and Step give the same
// results, and the state is unchanged.
func checkPure(t *testing.T, seed uint64, l quota.Limit, s quota.State, now, cost int64) {
	t.Helper()
	was := clone(s)
	got, gotDecision := l.Algorithm.Take(s, &l, now, cost)
	want, wantDecision := l.Algorithm.Take(clone(was), &l, now, cost)
	if !same(got, want) || gotDecision != wantDecision {
		t.Fatalf("seed %d: %v: a charge of %d of the state %+v: got %+v, %+v; of a copy %+v, %+v", seed, l, cost, was, got, gotDecision, want, wantDecision)
	}
	stepped, d := s, quota.Decision{Allowed: true, Remaining: 7, RetryAfter: 7, NextAfter: 7, ResetAfter: 7}
	if l.Algorithm.(optional.Stepper).Step(&stepped, &d, &l, now, cost); !same(stepped, want) || d != wantDecision {
		t.Fatalf("seed %d: %v: a charge of %d of the state %+v: Step gives %+v, %+v, want %+v, %+v", seed, l, cost, was, stepped, d, want, wantDecision)
	}
	if !same(s, was) {
		t.Fatalf("seed %d: %v: a charge of %d changed the state %+v to %+v", seed, l, cost, was, s)
	}
}

func same(a, b quota.State) bool {
	return a.At == b.At && a.A == b.A && a.B == b.B && len(a.Log) == len(b.Log) && (len(a.Log) == 0 || reflect.DeepEqual(a.Log, b.Log))
}

// TestLogOfManyUnits: the sums of a log that is never empty stay below 2^53, the largest
// integer that a script can hold exactly.
func TestLogOfManyUnits(t *testing.T) {
	const half = 1 << 49
	l := algorithms.SlidingLog(2*half, time.Second)
	var s quota.State
	for i := range int64(100) {
		next, d := l.Algorithm.Take(s, &l, 1_700_000_000_000_000+i*600_000, half)
		s = next
		want := int64(half)
		if i > 0 {
			want = 0
		}
		if last := s.Log[len(s.Log)-1].Sum; !d.Allowed || d.Remaining != want || last > 1<<53 {
			t.Fatalf("charge %d: got %+v, a sum of %d, want %d remaining and a sum below 2^53", i, d, last, want)
		}
	}
	_, d := l.Algorithm.Take(s, &l, 1_700_000_000_000_000+99*600_000, -half)
	if d.Remaining != half {
		t.Errorf("half given back: got %d remaining, want %d", d.Remaining, int64(half))
	}
}

// TestTakeAllocates: Take and Queue do not allocate, except that a sliding log allocates
// at most once in a hundred charges.
func TestTakeAllocates(t *testing.T) {
	berlin := mustLoad(t, "Europe/Berlin")
	limits := append(everyAlgorithm(1000, 1000, time.Second), algorithms.Calendar(1000, algorithms.Day, berlin))
	for _, l := range limits {
		s, now := quota.State{}, int64(1_700_000_000_000_000)
		for i := range int64(2000) { // fills the log
			s, _ = l.Algorithm.Take(s, &l, now+i*1000, 1)
		}
		now += 2_000_000
		const takes = 1000
		n := testing.AllocsPerRun(10, func() {
			for range takes {
				s, _ = l.Algorithm.Take(s, &l, now, 1)
				_, _ = l.Algorithm.Take(s, &l, now, 0)
				now += 1000
			}
		})
		if most := 0.0; n > most && (l.Algorithm.Name() != "sliding-log" || n > takes/100) {
			t.Errorf("%v: got %v allocations in %d takes, want %v", l, n, 2*takes, most)
		}
	}
	for _, l := range withoutParameters(10, 10, time.Minute) {
		q, ok := l.Algorithm.(optional.Queuer)
		if !ok {
			continue
		}
		s, now := quota.State{}, int64(1_700_000_000_000_000)
		if n := testing.AllocsPerRun(1000, func() {
			s, _, _ = q.Queue(s, &l, now, now, 1)
			now += 3_000_000
		}); n > 0 {
			t.Errorf("%v: got %v allocations to queue, want 0", l, n)
		}
	}
}
