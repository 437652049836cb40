package quota_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net"
	"reflect"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// down is a store that fails, spends nothing, and leaves wrong values in the transaction.
var down = storeFunc(func(_ context.Context, tx *quota.Transaction) error {
	tx.At, tx.Wait = time.Unix(1, 1), time.Hour
	for i := range tx.Decisions {
		tx.Decisions[i] = quota.Decision{Allowed: true, Remaining: 99, RetryAfter: quota.Never, NextAfter: 1, ResetAfter: 1}
	}
	return errDown
})

// TestFallbackConforms: Fallback passes the tests of a store, whichever of its stores
// decides.
func TestFallbackConforms(t *testing.T) {
	t.Run("primary", func(t *testing.T) {
		conforms(t, func() quota.Store { return quota.Fallback(memory(), memory(), quota.FallbackOptions{}) })
	})
	t.Run("secondary", func(t *testing.T) {
		conforms(t, func() quota.Store { return quota.Fallback(down, memory(), quota.FallbackOptions{}) })
	})
	t.Run("open", func(t *testing.T) {
		conforms(t, func() quota.Store {
			return quota.Fallback(quota.Breaker(down, quota.BreakerOptions{Failures: 1, Cooldown: 1000 * time.Hour}), memory(), quota.FallbackOptions{})
		})
	})
}

// TestShareConforms: a share for one replica passes the tests of a store.
func TestShareConforms(t *testing.T) {
	conforms(t, func() quota.Store { return quota.Share(memory(), 1) })
}

// TestFallback: the second store is called if the first fails, unless the caller has hung up
// or the transaction is invalid. If both stores fail, the error wraps both errors.
func TestFallback(t *testing.T) {
	errFull := errors.New("full")
	gone, hangUp := context.WithCancel(t.Context())
	hangUp()
	limit := algorithms.GCRA(10, time.Second)
	twice := once(limit)
	twice.Charges = append(twice.Charges, twice.Charges[0])
	for _, c := range []struct {
		name            string
		ctx             context.Context
		tx              *quota.Transaction
		first, second   error
		called          bool // the second store is called
		wants, wantsNot []error
	}{
		{"well", t.Context(), once(limit), nil, nil, false, nil, nil},
		{"down", t.Context(), once(limit), errDown, nil, true, nil, nil},
		{"both down", t.Context(), once(limit), errDown, errFull, true, []error{errDown, errFull}, nil},
		{"hung up", gone, once(limit), context.Canceled, nil, false, []error{context.Canceled}, nil},
		{"hung up, down", gone, once(limit), errDown, nil, false, []error{context.Canceled}, nil},
		{"too late", deadlineOnly{t.Context()}, once(limit), errDown, nil, false, []error{context.DeadlineExceeded}, nil},
		{"the store's deadline", t.Context(), once(limit), context.DeadlineExceeded, nil, true, nil, nil},
		{"twice", t.Context(), twice, quota.ErrDuplicate, nil, false, []error{quota.ErrDuplicate}, nil},
		{"twice, open", t.Context(), twice, quota.ErrOpen, nil, false, []error{quota.ErrDuplicate}, []error{quota.ErrOpen}},
		{"answered though hung up", gone, once(limit), nil, nil, false, nil, nil},
	} {
		called := false
		err := quota.Fallback(
			storeFunc(func(context.Context, *quota.Transaction) error { return c.first }),
			storeFunc(func(context.Context, *quota.Transaction) error { called = true; return c.second }),
			quota.FallbackOptions{},
		).Take(c.ctx, c.tx)
		if called != c.called || (err == nil) != (len(c.wants) == 0) {
			t.Errorf("%s: called the second %v, got error %v; want %v, %v", c.name, called, err, c.called, c.wants)
		}
		for _, want := range c.wants {
			if !errors.Is(err, want) {
				t.Errorf("%s: got error %v, want %v in it", c.name, err, want)
			}
		}
		for _, not := range c.wantsNot {
			if errors.Is(err, not) {
				t.Errorf("%s: got error %v, want no %v in it", c.name, err, not)
			}
		}
	}
}

// TestFallbackHook: OnChange is called once when an outage begins and once when it has ended,
// also if only one call failed, and may call methods of the store.
func TestFallbackHook(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var store *quota.FallbackStore
		var fails error
		var seen []string
		store = quota.Fallback(storeFunc(func(context.Context, *quota.Transaction) error { return fails }), memory(), quota.FallbackOptions{
			Logger:   slog.New(slog.DiscardHandler),
			OnChange: func(active bool, err error) { seen = append(seen, fmt.Sprint(active, store.Stats().Active, err)) },
		})
		for _, fails = range []error{nil, errDown, quota.ErrUnusable, errDown, nil, nil, errDown, nil, nil} {
			store.Take(t.Context(), once(algorithms.GCRA(10, time.Second)))
			time.Sleep(time.Second)
		}
		want := []string{"true true " + errDown.Error(), "false false <nil>"}
		if want = append(want, want...); !slices.Equal(seen, want) {
			t.Errorf("got %q, want %q", seen, want)
		}
	})
}

// TestFallbackClean: the second store finds no decisions that the first store left in the
// transaction.
func TestFallbackClean(t *testing.T) {
	tx := once(algorithms.GCRA(10, time.Second))
	tx.Result = quota.Result{Decisions: make([]quota.Decision, 3), At: time.Unix(2, 0), Wait: time.Second, Granted: 4, Undo: make([]quota.Undo, 3)}
	mine := &tx.Decisions[0]
	store := quota.Fallback(down, storeFunc(func(_ context.Context, tx *quota.Transaction) error {
		if len(tx.Decisions) > 0 || !tx.At.IsZero() || tx.Wait != 0 || tx.Granted != 0 || len(tx.Undo) > 0 {
			t.Errorf("the second store finds %+v, want nothing", tx.Result)
		}
		return nil
	}), quota.FallbackOptions{})
	if err := store.Take(t.Context(), tx); err != nil || &tx.Decisions[:1][0] != mine {
		t.Errorf("got %v, %+v; want no error, and the memory of the decisions kept", err, tx.Result)
	}
}

// A lossy store fails while away is set. If spends is set, the store still spends the
// units, and only its answers are lost.
type lossy struct {
	quota.Store
	away, spends atomic.Bool
}

func (l *lossy) Take(ctx context.Context, tx *quota.Transaction) error {
	if !l.away.Load() {
		return l.Store.Take(ctx, tx)
	}
	if l.spends.Load() {
		l.Store.Take(ctx, tx)
	}
	return errDown
}

// TestFallbackEdges: four replicas admit the expected number of requests before, during and
// after an outage of 20 s. The limit is 12 a minute, and the replicas are called in turn,
// ten times a second.
func TestFallbackEdges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := &lossy{Store: memory()}
		var replicas [4]quota.Store
		for i := range replicas {
			replicas[i] = quota.Fallback(quota.Breaker(shared, quota.BreakerOptions{}), quota.Share(memory(), len(replicas)), quota.FallbackOptions{})
		}
		limit := algorithms.SlidingLog(12, time.Minute)
		ask := func(d time.Duration) (admitted int) {
			start := time.Now()
			for i := 0; time.Since(start) < d; i++ {
				if take(t, replicas[i%len(replicas)], 0, once(limit).Charges...).Allowed() {
					admitted++
				}
				time.Sleep(100 * time.Millisecond)
			}
			return admitted
		}
		for _, c := range []struct {
			before time.Duration
			unseen bool
			want   []int // before, during and after the outage
		}{
			{10 * time.Second, false, []int{12, 12, 0}},
			{0, false, []int{0, 12, 12}},
			{10 * time.Second, true, []int{12, 12, 0}},
			{0, true, []int{0, 12, 0}}, // the shared store spent all 12 units, although its answers were lost
		} {
			shared.spends.Store(c.unseen)
			got := []int{ask(c.before)}
			shared.away.Store(true)
			got = append(got, ask(20*time.Second))
			shared.away.Store(false)
			got = append(got, ask(10*time.Second))
			if !slices.Equal(got, c.want) {
				t.Errorf("%v before the outage, spent unseen %v: got %d admitted before, during and after, want %d", c.before, c.unseen, got, c.want)
			}
			time.Sleep(time.Minute)
		}
	})
}

type shareCase struct {
	quota, burst int64
	replicas     int
	want         int64 // the share of the quota
	wantBurst    int64
}

// TestFallbackRefunds: the store that has spent units refunds them, whichever store decides by then. The
// other has units of others, of which none is refunded. If the first store is to refund but fails, the
// caller learns of it.
func TestFallbackRefunds(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(10, time.Hour), algorithms.FixedWindow(10, time.Hour), algorithms.SlidingWindow(10, time.Hour),
		algorithms.SlidingLog(10, time.Hour), algorithms.LeakyBucket(10, 10, time.Hour),
	} {
		for _, outage := range []bool{false, true} { // when the units are spent; when they are refunded it is the other way round
			for what, spend := range refunders {
				synctest.Test(t, func(t *testing.T) {
					var down atomic.Bool
					stores := [2]quota.Store{memory(), memory()}
					store := quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
						if down.Load() {
							return errDown
						}
						return stores[0].Take(ctx, tx)
					}), stores[1], quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
					spent, other, names := 0, 1, [2]string{"the first", "the second"}
					if outage {
						spent, other = 1, 0
					}
					c := quota.Charge{Rule: "r", Key: "k", Limit: limit, Cost: 1}
					left := func(i int) int64 { return peek(t, stores[i], c).Decisions[0].Remaining }
					take(t, store, 0, c) // so that the first store has decided once
					take(t, stores[1], 0, c)
					time.Sleep(time.Second)
					down.Store(outage)
					before := left(spent)
					refund := spend(t, store, c)
					after := left(spent)
					take(t, stores[other], 0, c)
					down.Store(!outage)
					others := left(other)
					err := refund()
					if got := left(other); got != others {
						t.Errorf("%v: %s: got %d left in %s store, want %d", limit, what, got, names[other], others)
					}
					want := before
					if !outage {
						want = after
					}
					if got := left(spent); got != want || errors.Is(err, errDown) == outage {
						t.Errorf("%v: %s: got %d left in %s store and the error %v, want %d", limit, what, got, names[spent], err, want)
					}
				})
			}
		}
	}
}

// TestFallbackBoth: units of both stores cannot be refunded together or not at all, so neither store
// refunds any.
func TestFallbackBoth(t *testing.T) {
	first, second := memory(), memory()
	store := quota.Fallback(storeFunc(first.Take), second, quota.FallbackOptions{})
	for _, fellBack := range []bool{false, true} {
		back := quota.Transaction{}
		for _, key := range []string{"a", "b"} {
			c := quota.Charge{Rule: "r", Key: key, Limit: algorithms.FixedWindow(10, time.Hour), Cost: 5}
			at := take(t, first, 0, c).Decisions[0].At
			take(t, second, 0, c)
			c.Cost, c.Spent, c.FellBack = -5, at, fellBack == (key == "a")
			back.Charges = append(back.Charges, c)
		}
		before := [2]int64{peek(t, first, back.Charges[0]).Decisions[0].Remaining, peek(t, second, back.Charges[0]).Decisions[0].Remaining}
		err := store.Take(t.Context(), &back)
		after := [2]int64{peek(t, first, back.Charges[0]).Decisions[0].Remaining, peek(t, second, back.Charges[0]).Decisions[0].Remaining}
		if err == nil || before != after {
			t.Errorf("the second store spent those of a: %v: got %v and %v left, want an error and %v", fellBack, err, after, before)
		}
	}
}

// TestFallbackNested: a Fallback around another one says that it cannot tell which store to refund.
func TestFallbackNested(t *testing.T) {
	quiet := quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)}
	nested := quota.Fallback(down, memory(), quiet)
	for _, c := range []struct {
		primary, secondary quota.Store
		want               int
	}{{nested, memory(), 1}, {down, nested, 1}, {down, memory(), 0}} {
		log := &strings.Builder{}
		quota.Fallback(c.primary, c.secondary, quota.FallbackOptions{Logger: slog.New(slog.NewTextHandler(log, nil))})
		if got := strings.Count(log.String(), "around another Fallback"); got != c.want {
			t.Errorf("%T, %T: got the log %q, want %d warnings", c.primary, c.secondary, log, c.want)
		}
	}
}

// TestFallbackUsedUp: a call that fails only because earlier calls of the request have used up the time
// does not fall back: primary has decided on the request, and secondary would charge for it what primary
// then lacks. During an outage secondary decides on all calls of a request.
func TestFallbackUsedUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var fails atomic.Pointer[error]
		log := &strings.Builder{}
		primary, secondary := memory(), memory()
		store := quota.Fallback(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			if err := fails.Load(); err != nil {
				return *err
			}
			return primary.Take(ctx, tx)
		}), secondary, quota.FallbackOptions{Logger: slog.New(slog.NewTextHandler(log, nil))})
		c := quota.Charge{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(10, time.Hour), Cost: 1}
		debt := quota.Transaction{Charges: []quota.Charge{c}, Mode: quota.ModeForce}
		take(t, store, 0, c)
		fails.Store(&quota.ErrUsedUp)
		if err := store.Take(t.Context(), &debt); !errors.Is(err, quota.ErrUsedUp) || store.Stats().Active || log.String() != "" {
			t.Errorf("got %v, %+v and the log %q, want the error alone", err, store.Stats(), log)
		}
		fails.Store(&errDown)
		take(t, store, 0, c)
		fails.Store(&quota.ErrUsedUp)
		err := store.Take(t.Context(), &debt)
		if left := peek(t, secondary, c).Decisions[0].Remaining; err != nil || left != 8 {
			t.Errorf("in an outage: got %v and %d left in the second store, want 8", err, left)
		}
	})
}

// refunders spend units of a charge, and return functions that refund them.
var refunders = map[string]func(t *testing.T, store quota.Store, c quota.Charge) func() error{
	"Refund": func(t *testing.T, store quota.Store, c quota.Charge) func() error {
		c.Cost = 3
		tx := take(t, store, 0, c)
		return func() error { return quota.Refund(t.Context(), store, tx) }
	},
	"Stream.Refund": func(t *testing.T, store quota.Store, c quota.Charge) func() error {
		s := quota.NewStream(store, c)
		if n, err := s.Draw(t.Context(), 3); n != 3 {
			t.Fatal(n, err)
		}
		return func() error { return s.Refund(t.Context(), 3) }
	},
}

// TestFallbackSince: Stats never returns a Last without its Since, not even at the moment at which an
// outage begins.
func TestFallbackSince(t *testing.T) {
	quiet := quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)}
	for i := range 10_000 {
		f := quota.Fallback(down, storeFunc(func(context.Context, *quota.Transaction) error { return nil }), quiet)
		began, ready, seen := time.Now().Round(0), make(chan bool), make(chan quota.FallbackStats)
		go func() {
			close(ready)
			s := f.Stats()
			for i := 1; s.Last.IsZero(); s = f.Stats() {
				if i++; i%64 == 0 {
					runtime.Gosched()
				}
			}
			seen <- s
		}()
		<-ready
		if err := f.Take(t.Context(), once(algorithms.GCRA(10, time.Second))); err != nil {
			t.Fatal(err)
		}
		if s := <-seen; s.Since.Before(began) || s.Last.Before(s.Since) {
			t.Fatalf("outage %d: got one from %v to %v, want one from %v or later", i, s.Since, s.Last, began)
		}
	}
}

// TestShare: a share divides Quota and Burst by the number of replicas, rounds down, and is
// at least 1.
func TestShare(t *testing.T) {
	window := algorithms.FixedWindow(0, time.Hour)
	for _, c := range []shareCase{
		{100, 0, 4, 25, 0},
		{100, 0, 3, 33, 0},
		{100, 0, 1, 100, 0},
		{100, 20, 4, 25, 5},
		{100, 2, 4, 25, 1},
		{3, 0, 4, 1, 0}, // the four replicas together admit 4
		{4, 0, 4, 1, 0},
		{7, 0, 4, 1, 0},
		{8, 1000, 4, 2, 250},
		{60, 1, 4, 15, 1}, // a rate of 1 a minute, written over an hour so that Quota can be divided
	} {
		var seen quota.Limit
		inner := memory()
		store := quota.Share(storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			seen = tx.Charges[0].Limit
			return inner.Take(ctx, tx)
		}), c.replicas)
		for _, l := range []quota.Limit{window, algorithms.GCRA(0, time.Hour)} {
			checkShare(t, store, l, c, &seen)
		}
	}
}

// checkShare takes a unit under the limit l, and then asks for more than the capacity of
// the share. seen points to the limit that the next store gets.
func checkShare(t *testing.T, store quota.Store, l quota.Limit, c shareCase, seen *quota.Limit) {
	t.Helper()
	l.Quota, l.Burst = c.quota, c.burst
	tx := once(l)
	charge := tx.Charges[0]
	if err := store.Take(t.Context(), tx); err != nil {
		t.Errorf("%v: %v", l, err)
	}
	if seen.Quota != c.want || seen.Burst != c.wantBurst {
		t.Errorf("%v for %d: got quota %d, burst %d; want %d, %d", l, c.replicas, seen.Quota, seen.Burst, c.want, c.wantBurst)
	}
	if tx.Charges[0] != charge {
		t.Errorf("%v: the caller's charge became %+v", l, tx.Charges[0])
	}
	want := c.want
	if l.Algorithm.Name() == "gcra" && c.burst > 0 {
		want = c.wantBurst
	}
	if d := tx.Decisions[0]; !d.Allowed || d.Remaining != want-1 || tx.At.IsZero() {
		t.Errorf("%v for %d: got %+v at %v, want %d of %d left", l, c.replicas, d, tx.At, want-1, want)
	}
	tx.Charges[0].Cost = want + 1
	if store.Take(t.Context(), tx); tx.RetryAfter() != quota.Never {
		t.Errorf("%v for %d, cost %d: got retry after %v, want Never", l, c.replicas, want+1, tx.RetryAfter())
	}
}

// TestShareHeadroom: a share of a headroom is rounded up, so that all replicas together leave at least
// the whole headroom.
func TestShareHeadroom(t *testing.T) {
	for _, c := range []struct{ headroom, want int64 }{{0, 0}, {1, 1}, {30, 8}, {32, 8}, {quota.MaxTicks, quota.MaxTicks / 4}} {
		var seen int64
		store := quota.Share(storeFunc(func(_ context.Context, tx *quota.Transaction) error {
			seen = tx.Charges[0].Headroom
			return nil
		}), 4)
		tx := once(algorithms.FixedWindow(100, time.Hour))
		tx.Charges[0].Headroom = c.headroom
		if err := store.Take(t.Context(), tx); err != nil || seen != c.want || tx.Charges[0].Headroom != c.headroom {
			t.Errorf("headroom %d for 4 replicas: got %d and %v, want %d", c.headroom, seen, err, c.want)
		}
	}
}

// TestShareHeadroomSmall: however many replicas there are, a class that the whole limit admits is
// admitted by a share.
func TestShareHeadroomSmall(t *testing.T) {
	for _, percent := range []int{1, 30, 50, 90} {
		for _, replicas := range []int{1, 3, 9, 10, 11, 200} {
			store := quota.Share(memstore.New(memstore.Options{}), replicas)
			for _, limit := range []quota.Limit{algorithms.GCRA(10, time.Hour), algorithms.SlidingLog(20, time.Hour), algorithms.TokenBucket(100, 10, time.Hour)} {
				charge := quota.Charge{Rule: "r", Key: limit.Algorithm.Name(), Limit: limit, Cost: 1, Headroom: limit.Headroom(percent)}
				if d, err := quota.Allow(t.Context(), store, charge); err != nil || !d.Allowed {
					t.Errorf("%v, %d %% for %d replicas: got %+v and %v", limit, percent, replicas, d, err)
				}
			}
		}
	}
}

// TestShareIsValid: if a limit can be counted exactly, its share can be counted exactly too.
// The share of a Quota is at most a tenth below Quota divided by the replicas.
func TestShareIsValid(t *testing.T) {
	var seen quota.Limit
	store := func(n int) quota.Store {
		return quota.Share(storeFunc(func(_ context.Context, tx *quota.Transaction) error {
			seen = tx.Charges[0].Limit
			return tx.Validate()
		}), n)
	}
	day := 24 * time.Hour
	for _, c := range []struct {
		limit    quota.Limit
		replicas int
		want     int64
	}{
		{algorithms.GCRA(10_000_000, day), 7, 1428571},
		{algorithms.GCRA(3_000_000, time.Second).WithBurst(3), 2, 1_000_000}, // a burst of 1 allows no more than a unit in a µs
		{algorithms.GCRA(1<<30, time.Microsecond), math.MaxInt32, 1},
		{algorithms.FixedWindow(1<<50, day), 3, 1 << 50 / 3},
	} {
		if err := store(c.replicas).Take(t.Context(), once(c.limit)); err != nil || seen.Quota != c.want {
			t.Errorf("%v for %d: got %d, %v; want %d", c.limit, c.replicas, seen.Quota, err, c.want)
		}
	}
	r := rand.New(rand.NewPCG(1, 2))
	n, tried := rounds.N(20_000, 200_000), 0
	for range n {
		units := int64(1+r.IntN(999)) * []int64{1, 10, 1000, 1e6, 1e9}[r.IntN(5)]
		l := algorithms.GCRA(units, []time.Duration{time.Second, time.Minute, time.Hour, day, 30 * day}[r.IntN(5)])
		if r.IntN(2) == 0 {
			l.Burst = 1 + r.Int64N(2*units)
		}
		if l.Validate() != nil {
			continue
		}
		tried++
		n := 2 + r.IntN(100)
		if err := store(n).Take(t.Context(), once(l)); err != nil {
			t.Fatalf("%v for %d: %v", l, n, err)
		}
		whole := units / int64(n)
		if seen.Quota > max(1, whole) || seen.Quota < whole-whole/10 {
			t.Fatalf("%v for %d: got a quota of %d, want %d or at most a tenth less", l, n, seen.Quota, whole)
		}
	}
	if tried < n/4 {
		t.Errorf("%d limits were valid, want more", tried)
	}
	for _, l := range []quota.Limit{{}, algorithms.GCRA(0, time.Second), algorithms.GCRA(-4, time.Second), algorithms.GCRA(4, time.Second).WithBurst(-4), algorithms.FixedWindow(1<<50+4, time.Second)} {
		if err := store(4).Take(t.Context(), once(l)); err == nil {
			t.Errorf("%v, which is invalid, was divided to %v", l, seen)
		}
	}
}

// TestShareAsks: the next store gets the question of the transaction unchanged, except the
// limits, and the transaction gets the Result of the next store and the number of replicas.
func TestShareAsks(t *testing.T) {
	tx := once(algorithms.GCRA(10, time.Second))
	tx.Mode, tx.Most, tx.Cancels, tx.Charges[0].Spent = quota.ModeAtMost, 7, []quota.Undo{{Until: 3}}, 1
	called := *tx
	result := quota.Result{Decisions: []quota.Decision{{Remaining: 5}}, At: time.Unix(2, 0), Wait: time.Second, Granted: 4, Undo: []quota.Undo{{Until: 9}}}
	store := quota.Share(storeFunc(func(_ context.Context, got *quota.Transaction) error {
		if got.Charges[0].Limit.Quota != 5 {
			t.Errorf("next is called with %v, want a quota of 5", got.Charges[0].Limit)
		}
		got.Charges[0].Limit.Quota = 10
		if !slices.Equal(got.Charges, called.Charges) || got.Mode != called.Mode || got.Most != 7 || !reflect.DeepEqual(got.Cancels, called.Cancels) {
			t.Errorf("next is called %+v, want %+v", got, called)
		}
		got.Result = result
		return nil
	}), 2)
	err := store.Take(t.Context(), tx)
	result.Replicas = 2
	if err != nil || !reflect.DeepEqual(tx.Result, result) || tx.Charges[0].Limit.Quota != 10 {
		t.Errorf("got %v and %+v, want nil and %+v", err, *tx, result)
	}
}

// TestShareForgets: Share keeps no keys of a transaction after the call.
func TestShareForgets(t *testing.T) {
	store := quota.Share(storeFunc(func(_ context.Context, tx *quota.Transaction) error {
		for _, c := range tx.Charges[len(tx.Charges):cap(tx.Charges)] {
			if c != (quota.Charge{}) {
				t.Errorf("kept %+v of an earlier transaction", c)
			}
		}
		return nil
	}), 2)
	tx := once(algorithms.GCRA(10, time.Second))
	for range 10 {
		store.Take(t.Context(), &quota.Transaction{Charges: slices.Repeat(tx.Charges, 1)})
		other := slices.Repeat(tx.Charges, 3)
		other[1].Rule, other[2].Rule = "other", "third"
		store.Take(t.Context(), &quota.Transaction{Charges: other})
	}
}

// TestShareTogether: replicas that share a limit admit exactly that limit together, and
// concurrent calls do not mix up their transactions.
func TestShareTogether(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var replicas [4]quota.Store
		for i := range replicas {
			replicas[i] = quota.Share(memory(), len(replicas))
		}
		var admitted [3]atomic.Int64
		together(16, func(g int) {
			for i := range 60 {
				tx := once(algorithms.GCRA(100, time.Hour))
				k := (g + i) % len(admitted)
				tx.Charges[0].Key = fmt.Sprint(k)
				charge := tx.Charges[0]
				if err := replicas[g%len(replicas)].Take(t.Context(), tx); err != nil || tx.Charges[0] != charge {
					t.Errorf("got %v, charge %+v; want no error, %+v", err, tx.Charges[0], charge)
				}
				if tx.Allowed() {
					admitted[k].Add(1)
				}
			}
		})
		for k := range admitted {
			if got := admitted[k].Load(); got != 100 {
				t.Errorf("key %d: four replicas admitted %d together, want 100", k, got)
			}
		}
	})
}

// TestRedisIsDown: if a program starts while Redis is down, its requests are decided in
// memory. Only the five requests before the breaker opens ask Redis.
func TestRedisIsDown(t *testing.T) {
	const budget = 50 * time.Millisecond
	silent, err := net.Listen("tcp", "127.0.0.1:0") // accepts connections and never answers
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	for _, c := range []struct{ what, addr string }{{"refuses", "127.0.0.1:1"}, {"is silent", silent.Addr().String()}} {
		rdb := redis.NewUniversalClient(redisstore.ClientOptions(budget, c.addr))
		defer rdb.Close()
		inRedis, err := redisstore.New(rdb, redisstore.Options{Timeout: budget})
		if err != nil {
			t.Fatal(err)
		}
		failed, late := 0, 0
		counted := storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
			err := inRedis.Take(ctx, tx)
			if errors.Is(err, quota.ErrBusy) { // this process was late, which says nothing about Redis
				late++
			} else {
				failed++
			}
			return err
		})
		var cause error
		breaker := quota.Breaker(counted, quota.BreakerOptions{Cooldown: time.Hour, OnChange: func(_ bool, err error) { cause = err }})
		store := quota.Fallback(breaker, quota.Share(memory(), 2), quota.FallbackOptions{})
		tx := once(algorithms.GCRA(12, time.Hour))
		for i := 0; i < 10+late; i++ {
			time.Sleep(30 * time.Millisecond) // failures within 25 ms count as one
			if err := store.Take(t.Context(), tx); err != nil {
				t.Fatalf("%s, request %d: %v", c.what, i, err)
			}
			if got, want := tx.Allowed(), i < 6; got != want {
				t.Errorf("%s, request %d: admitted %v, want %v", c.what, i, got, want)
			}
		}
		if failed != 5 || cause == nil { // the breaker opens after five failures
			t.Errorf("%s: Redis failed %d times (%v), want 5", c.what, failed, cause)
		}
	}
}

// While Redis is down, each process counts in its own memory.
func ExampleFallback() {
	redis := storeFunc(func(context.Context, *quota.Transaction) error { return errors.New("connection refused") })
	store := quota.Fallback(quota.Breaker(redis, quota.BreakerOptions{}), memory(), quota.FallbackOptions{})
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: algorithms.GCRA(2, time.Minute), Cost: 1}}}
	for range 3 {
		err := store.Take(context.Background(), &tx)
		fmt.Println(tx.Allowed(), err)
	}
	// Output:
	// true <nil>
	// true <nil>
	// false <nil>
}

// Four replicas, each with its own store in memory, share a limit of 10 a minute: each
// admits two.
func ExampleShare() {
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: algorithms.GCRA(10, time.Minute), Cost: 1}}}
	for range 4 {
		store := quota.Share(memory(), 4)
		var admitted []string
		for range 3 {
			if err := store.Take(context.Background(), &tx); err != nil {
				fmt.Println(err)
				return
			}
			admitted = append(admitted, fmt.Sprint(tx.Allowed()))
		}
		fmt.Println(strings.Join(admitted, " "))
	}
	// Output:
	// true true false
	// true true false
	// true true false
	// true true false
}
