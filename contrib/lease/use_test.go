package lease_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
	"unsafe"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// spendAll takes single units until one is refused, and returns how many were admitted.
func spendAll(t *testing.T, store quota.Store, charges ...quota.Charge) (n int64) {
	t.Helper()
	for take(t, store, 0, charges...).Allowed() {
		n++
	}
	return n
}

// TestLeaseLastUnits: other processes cannot use the units of a lease for one TTL. After
// that another process gets all units that are left, to the last one.
func TestLeaseLastUnits(t *testing.T) {
	const units = 1000
	for _, c := range []struct {
		limit quota.Limit
		held  int64
	}{
		{perHour(units), 51},
		{algorithms.AnchoredWindow(units, 1000*time.Hour), 51},
		{algorithms.SlidingWindow(units, 1000*time.Hour), 51},
		{algorithms.GCRA(units, time.Second), 100}, // as many as drain in a TTL
	} {
		synctest.Test(t, func(t *testing.T) {
			plain := memory()
			idle, busy := lease.New(plain, lease.Options{}), lease.New(plain, lease.Options{})
			charge := quota.Charge{Rule: "r", Key: "k", Limit: c.limit, Cost: 1}
			warm(t, idle, 50, charge)
			all := int64(units - 53)
			if c.limit.Algorithm.Name() == "gcra" {
				all = units - 1 // the 52 earlier units have drained, and the leased units will drain
			}
			spent := spendAll(t, busy, charge)
			if spent != all-c.held {
				t.Errorf("%v: beside a lease of %d got %d units, want %d", c.limit, c.held, spent, all-c.held)
			}
			time.Sleep(101 * time.Millisecond)
			synctest.Wait()
			spent += spendAll(t, busy, charge)
			if spent != all && !(c.limit.Algorithm.Name() == "gcra" && spent == all+1) { // one more unit drains in the last millisecond of the sleep
				t.Errorf("%v: after its TTL got %d units in all, want %d", c.limit, spent, all)
			}
			if take(t, idle, 0, charge).Allowed() {
				t.Errorf("%v: got a unit although the lease has ended and nothing is left", c.limit)
			}
		})
	}
}

// TestLeaseCrash: if a process dies, only the units that it holds are lost: an eighth of
// what remained.
func TestLeaseCrash(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := memory()
		dead := &counted{Store: plain}
		charge := quota.Charge{Rule: "r", Key: "k", Limit: perHour(1000), Cost: 1}
		warm(t, lease.New(dead, lease.Options{}), 800, charge) // 198 remain: 24 are held
		dead.mu.Lock()
		dead.err = func(*quota.Transaction) error { return errDown }
		dead.mu.Unlock()
		time.Sleep(time.Hour)
		if got := 803 + spendAll(t, plain, charge); got != 1000-24 {
			t.Errorf("got %d units of 1000 spent, want all but the 24 that were held", got)
		}
	})
}

// TestLeaseGoesPast: calls that a lease must not decide go to the store even if there is
// a lease.
func TestLeaseGoesPast(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := &counted{Store: memory()}
		store := lease.New(behind, lease.Options{TTL: time.Hour})
		l := algorithms.LeakyBucket(1_000_000, 1_000_000, time.Hour)
		charge := quota.Charge{Rule: "r", Key: "k", Limit: l, Cost: 1}
		take(t, store, 0, charge)
		for range 100 {
			time.Sleep(time.Minute)
			take(t, store, 0, charge)
		}
		behind.costs()
		with := func(f func(*quota.Charge)) *quota.Transaction {
			c := charge
			f(&c)
			return &quota.Transaction{Charges: []quota.Charge{c}}
		}
		for _, c := range []struct {
			name string
			tx   *quota.Transaction
			past bool
		}{
			{"the same", with(func(c *quota.Charge) {}), false},
			{"a negative Within", &quota.Transaction{Charges: []quota.Charge{charge}, Within: -1}, false},
			{"Within", &quota.Transaction{Charges: []quota.Charge{charge}, Within: 1}, true},
			{"Peek", &quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModePeek}, true},
			{"AtMost", &quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModeAtMost, Most: 1}, true},
			{"Force", &quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModeForce}, true},
			{"units of one instant refunded", with(func(c *quota.Charge) { c.Cost, c.Spent = -1, time.Now().UnixMicro() }), true},
			{"Forget", &quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModeForget}, true},
			{"a cost of 0", with(func(c *quota.Charge) { c.Cost = 0 }), true},
			{"units refunded", with(func(c *quota.Charge) { c.Cost = -1 }), true},
			{"another cost", with(func(c *quota.Charge) { c.Cost = 2 }), true},
			{"another key", with(func(c *quota.Charge) { c.Key = "K" }), true},
			{"another rule", with(func(c *quota.Charge) { c.Rule = "R" }), true},
			{"another name", with(func(c *quota.Charge) { c.Limit.Name = "n" }), true},
			{"another quota", with(func(c *quota.Charge) { c.Limit.Quota-- }), true},
			{"another period", with(func(c *quota.Charge) { c.Limit.Period += time.Second }), true},
			{"another burst", with(func(c *quota.Charge) { c.Limit.Burst-- }), true},
			{"another algorithm", with(func(c *quota.Charge) { c.Limit = algorithms.TokenBucket(1_000_000, 1_000_000, time.Hour) }), true},
			{"one more charge", &quota.Transaction{Charges: []quota.Charge{charge, {Limit: perHour(9), Cost: 1}}}, true},
			{"nothing", &quota.Transaction{}, true},
			{"the same again", with(func(c *quota.Charge) {}), false},
		} {
			if err := store.Take(t.Context(), c.tx); err != nil {
				t.Fatalf("%s: %v", c.name, err)
			}
			if past := len(behind.asked) == 1; past != c.past {
				t.Errorf("%s: got past the lease %v, want %v", c.name, past, c.past)
			}
			behind.asked = nil
		}
		if got, want := store.Stats().Hits, int64(3); got < want {
			t.Errorf("got %d calls served from leases, want at least the %d of this test", got, want)
		}
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if err := store.Take(gone, &quota.Transaction{Charges: []quota.Charge{charge}}); !errors.Is(err, context.Canceled) || len(behind.asked) > 0 {
			t.Errorf("hung up: got %v, want %v", err, context.Canceled)
		}
		store.Close(t.Context())
	})
}

// TestLeaseStale: there is no lease if the newest answer of the store is older than two
// TTLs.
func TestLeaseStale(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := &counted{Store: memory()}
		store := lease.New(behind, lease.Options{})
		charge := quota.Charge{Rule: "r", Key: "k", Limit: perHour(10_000), Cost: 1}
		for range 1000 {
			take(t, store, 0, charge)
		}
		time.Sleep(201 * time.Millisecond) // two TTLs, with about 500 calls in each
		take(t, store, 0, charge)
		take(t, store, 0, charge)
		if got, want := behind.costs()[1000:], []int64{1, 498}; !slices.Equal(got, want) {
			t.Errorf("after two TTLs: the store got calls of cost %d, want %d", got, want)
		}
		store.Close(t.Context())
	})
}

// TestLeaseKeyMemory: the caller may overwrite the memory of a key after Take.
func TestLeaseKeyMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		plain := memory()
		store := lease.New(plain, lease.Options{})
		key := []byte("k")
		charge := quota.Charge{Rule: "r", Key: unsafe.String(&key[0], 1), Limit: perHour(10_000), Cost: 1}
		warm(t, store, 50, charge)
		key[0] = 'x'
		store.Close(t.Context())
		charge.Key, charge.Cost = "k", 0
		if got := take(t, plain, 0, charge).Decisions[0].Remaining; got != 10_000-53 {
			t.Errorf("got %d left of 10,000 after 53 calls", got)
		}
	})
}

// uncomparable is a Leaser whose type is not comparable, and uncomparableInside is one whose
// type is, but not what it holds.
type uncomparable struct {
	lease.Leaser
	quota.Algorithm
	_ []int
}

func (u uncomparable) Name() string { return u.Algorithm.Name() }

type uncomparableInside struct {
	lease.Leaser
	quota.Algorithm
}

func (u uncomparableInside) Name() string { return u.Algorithm.Name() }

// TestLeaseUncomparable: charges under a Leaser that is not comparable get no lease, and Take
// does not panic.
func TestLeaseUncomparable(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := perHour(1).Algorithm
		store := lease.New(memory(), lease.Options{})
		u := uncomparable{Leaser: a.(lease.Leaser), Algorithm: a}
		for _, a := range []quota.Algorithm{u, uncomparableInside{Leaser: u, Algorithm: u}} {
			warm(t, store, 50, quota.Charge{Limit: quota.Limit{Algorithm: a, Quota: 1000, Period: 1000 * time.Hour}, Cost: 1})
		}
		if got := store.Stats().Hits; got != 0 {
			t.Errorf("got %d calls served from leases, want 0", got)
		}
	})
}

// TestLeaseDecisions: a decision from memory is the decision that the store would make if no
// other process used the key.
func TestLeaseDecisions(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.FixedWindow(100_000, time.Hour), algorithms.AnchoredWindow(100_000, time.Hour), algorithms.Calendar(100_000, algorithms.Day, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			alone, behind := memory(), &counted{Store: memory()}
			store := lease.New(behind, lease.Options{})
			charge := quota.Charge{Rule: "r", Key: "k", Limit: limit, Cost: 2}
			for i := range 500 {
				time.Sleep(3*time.Millisecond + 7*time.Microsecond)
				got, want := take(t, store, 0, charge), take(t, alone, 0, charge)
				// In a decision from memory, At is when the lease took the units.
				want.Decisions[0].At = min(want.Decisions[0].At, got.Decisions[0].At)
				if got.Decisions[0] != want.Decisions[0] || !got.At.Equal(want.At) || got.Wait != 0 {
					t.Fatalf("%v, call %d: got %+v at %v, the store alone says %+v at %v", limit, i, got.Decisions[0], got.At, want.Decisions[0], want.At)
				}
			}
			if st := store.Stats(); st.Hits < 400 || st.Hits+st.Misses < 500 {
				t.Errorf("%v: got %+v, want most of 500 calls served from leases", limit, st)
			}
			store.Close(t.Context())
		})
	}
}

// TestLeaseWaits: a call that arrives while a lease is being fetched waits for that
// fetch. The call of a caller that hangs up returns at once. Of the callers that hang up,
// only the one that began the fetch has spent a unit.
func TestLeaseWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := &counted{Store: memory()}
		store := lease.New(behind, lease.Options{})
		charge := quota.Charge{Rule: "r", Key: "k", Limit: perHour(10_000), Cost: 1}
		for range 52 {
			take(t, store, 0, charge)
		}
		time.Sleep(100 * time.Millisecond)
		behind.costs()
		behind.trip = 20 * time.Millisecond
		begin := time.Now()
		var wg sync.WaitGroup
		for i := range 30 {
			wg.Go(func() {
				ctx, want, after := t.Context(), error(nil), behind.trip
				if i%3 == 0 {
					var cancel context.CancelFunc
					ctx, cancel = context.WithTimeout(ctx, 5*time.Millisecond)
					defer cancel()
					want, after = context.DeadlineExceeded, 5*time.Millisecond
				}
				err := store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{charge}})
				if d := time.Since(begin); !errors.Is(err, want) || d != after {
					t.Errorf("call %d: got %v after %v, want %v after %v", i, err, d, want, after)
				}
			})
			synctest.Wait() // the first call has begun the fetch; it and every third call hang up after 5 ms
		}
		wg.Wait()
		if got := behind.costs(); !slices.Equal(got, []int64{52}) {
			t.Errorf("for 30 calls, the store got calls of cost %d, want one of 52", got)
		}
		store.Close(t.Context())
		if got := behind.costs(); !slices.Equal(got, []int64{-31}) {
			t.Errorf("later the store got calls of cost %d, want -31, because 20 calls were served from the lease", got)
		}
	})
}

// TestLeaseErrors: if the store fails, the caller gets the error, and there is no lease.
// If the call that gives units back fails, it is not repeated, because the store may have
// carried it out.
func TestLeaseErrors(t *testing.T) {
	for _, c := range []struct {
		name string
		err  func(t *quota.Transaction) error
		want string  // in the error of the call that fetches the lease
		cost []int64 // costs of the calls of the store from then on; the test makes two of them
	}{
		{"no error", func(*quota.Transaction) error { return nil }, "", []int64{52, -50}},
		{"down", func(*quota.Transaction) error { return errDown }, errDown.Error(), []int64{52, 1}},
		{"panics", func(*quota.Transaction) error { panic("oh") }, "the store panicked: oh", nil},
		{"refuses large costs", func(tx *quota.Transaction) error {
			if tx.Charges[0].Cost > 1 {
				tx.Charges[0].Cost = 1 << 40
			}
			return nil
		}, "", []int64{1 << 40, 1, 1 << 40, 1}},
		{"fails when units are refunded", func(tx *quota.Transaction) error {
			if tx.Charges[0].Cost < 0 {
				return errDown
			}
			return nil
		}, "", []int64{52, -50}},
		{"panics when units are refunded", func(tx *quota.Transaction) error {
			if tx.Charges[0].Cost < 0 {
				panic("oh")
			}
			return nil
		}, "", []int64{52}},
	} {
		synctest.Test(t, func(t *testing.T) {
			behind := &counted{Store: memory()}
			store := lease.New(behind, lease.Options{})
			charge := quota.Charge{Rule: "r", Key: "k", Limit: perHour(10_000), Cost: 1}
			for range 52 {
				take(t, store, 0, charge)
			}
			time.Sleep(100 * time.Millisecond)
			behind.costs()
			behind.err = c.err
			err := store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}})
			if !failsWith(err, c.want) {
				t.Errorf("%s: got error %v, want %q", c.name, err, c.want)
			}
			if c.name == "panics" {
				return
			}
			store.Take(t.Context(), &quota.Transaction{Charges: []quota.Charge{charge}})
			time.Sleep(time.Second)
			if got := behind.costs(); !slices.Equal(got, c.cost) {
				t.Errorf("%s: the store got calls of cost %d, want %d", c.name, got, c.cost)
			}
		})
	}
}

// TestLeaseClose: Close refunds all held units, including units of a fetch that has
// begun. After that each call goes to the store. No timer is left, and the synctest bubble
// ends, so no goroutine is left.
func TestLeaseClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const keys = 200
		behind := &counted{Store: memory()}
		store := lease.New(behind, lease.Options{TTL: time.Hour})
		charge := func(i int) quota.Charge {
			return quota.Charge{Rule: "r", Key: fmt.Sprint(i), Limit: perHour(10_000), Cost: 1}
		}
		takeAll := func(n int) {
			for i := range n {
				take(t, store, 0, charge(i%keys))
			}
		}
		takeAll(12 * keys)
		time.Sleep(time.Hour)
		behind.trip = time.Second
		together(keys/2, func(i int) { take(t, store, 0, charge(i)) })
		var wg sync.WaitGroup
		for i := range keys {
			wg.Go(func() { take(t, store, 0, charge(i)) })
		}
		time.Sleep(time.Millisecond)
		timers := lease.Timers(store)
		closeStore(t, store)
		wg.Wait()
		if n := timers(); n > 0 {
			t.Errorf("closed: got %d timers that are still running, want none", n)
		}
		behind.trip = 0
		behind.costs()
		if err := store.Close(t.Context()); err != nil {
			t.Errorf("closed again: %v", err)
		}
		for range 5 {
			time.Sleep(time.Hour)
			takeAll(4 * keys)
		}
		if costs := behind.costs(); slices.Max(costs) > 1 {
			t.Errorf("closed: the store got calls of cost %d, want a cost of 1 for each call", slices.Max(costs))
		}
		for i := range keys {
			calls := int64(12 + 1 + 5*4)
			if i < keys/2 {
				calls++
			}
			checkCalls(t, behind.Store, charge(i), calls)
		}
	})
}

// checkCalls expects that calls, each of one unit, are all that the key of c has spent of 10,000.
func checkCalls(t *testing.T, store quota.Store, c quota.Charge, calls int64) {
	t.Helper()
	c.Cost = 0
	if got := take(t, store, 0, c).Decisions[0].Remaining; got != 10_000-calls {
		t.Fatalf("key %s: got %d left of 10,000 after %d calls", c.Key, got, calls)
	}
}

// TestLeaseCloseTime: Close returns when its context ends, and returns errors of the store.
func TestLeaseCloseTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		behind := &counted{Store: memory()}
		charge := quota.Charge{Rule: "r", Key: "k", Limit: perHour(10_000), Cost: 1}
		store := lease.New(behind, lease.Options{})
		warm(t, store, 50, charge)
		behind.trip = time.Hour
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := store.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v, want %v", err, context.DeadlineExceeded)
		}
		time.Sleep(time.Hour) // the calls that give units back end meanwhile
		synctest.Wait()
		store = lease.New(behind, lease.Options{})
		behind.trip = 0
		warm(t, store, 50, charge)
		behind.err = func(*quota.Transaction) error { return errDown }
		if err := store.Close(t.Context()); !errors.Is(err, errDown) {
			t.Errorf("got %v, want %v", err, errDown)
		}
	})
}

// TestLeaseKeys: made-up keys that come once displace no key in use, and no more than MaxKeys
// keys have leases.
func TestLeaseKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lease.New(memory(), lease.Options{MaxKeys: 64})
		charge := func(key string) quota.Charge {
			return quota.Charge{Rule: "r", Key: key, Limit: perHour(1_000_000), Cost: 1}
		}
		// served makes one call of each of some keys, and returns how many calls leases
		// served.
		served := func(name string, keys int) int64 {
			before := store.Stats().Hits
			for i := range keys {
				take(t, store, 0, charge(fmt.Sprint(name, i)))
			}
			return store.Stats().Hits - before
		}
		take(t, store, 0, charge("hot"))
		for round := range 300 {
			served(fmt.Sprint("made up ", round, " "), 100)
			take(t, store, 0, charge("hot"))
			time.Sleep(time.Millisecond)
		}
		if n := store.Stats().Hits; n < 150 {
			t.Errorf("amid 30,000 made-up keys: got %d of 301 calls served from leases, want at least 150", n)
		}
		for _, name := range []string{"first ", "then "} { // the keys of the second round replace those of the first
			for range 5 {
				for range 40 {
					served(name, 1000)
				}
				time.Sleep(100 * time.Millisecond)
			}
			served(name, 1000) // makes the Store fetch the leases
			if n := served(name, 1000); n < 16 || n > 64 {
				t.Errorf("got calls of %d keys served from leases, want 16 to 64; MaxKeys is 64", n)
			}
			time.Sleep(time.Second)
		}
		store.Close(t.Context())
	})
}

// TestLeaseManyKeys: as many keys as an int can count may have leases.
func TestLeaseManyKeys(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := lease.New(memory(), lease.Options{MaxKeys: math.MaxInt})
		for range 300 {
			take(t, store, 0, quota.Charge{Rule: "r", Key: "k", Limit: perHour(1_000_000), Cost: 1})
			time.Sleep(time.Millisecond)
		}
		if n := store.Stats().Hits; n < 150 {
			t.Errorf("got %d of 300 calls served from leases, want at least 150", n)
		}
		store.Close(t.Context())
	})
}

func TestLeaseMistakes(t *testing.T) {
	for _, f := range []func(){
		func() { lease.New(nil, lease.Options{}) },
		func() { lease.New(memory(), lease.Options{TTL: -1}) },
		func() { lease.New(memory(), lease.Options{Fraction: -0.1}) },
		func() { lease.New(memory(), lease.Options{Fraction: 1.1}) },
		func() { lease.New(memory(), lease.Options{Fraction: math.NaN()}) },
		func() { lease.New(memory(), lease.Options{MaxKeys: -1}) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("no panic on a mistake in the arguments")
				}
			}()
			f()
		}()
	}
}

func TestLeaseAllocs(t *testing.T) {
	store := lease.New(memory(), lease.Options{TTL: time.Hour})
	tx := once(perHour(1 << 40))
	held := leased(store, tx)
	defer store.Close(t.Context())
	if n := testing.AllocsPerRun(1000, func() { store.Take(context.Background(), tx) }); n != 0 {
		t.Errorf("a call from memory: got %v allocations, want 0", n)
	}
	if got := store.Stats().Hits - held; got != 1001 {
		t.Errorf("got %d calls served from leases, want 1001", got)
	}
}

// admissions counts transactions that are admitted.
type admissions struct {
	mu             sync.Mutex
	n, first, last int64 // how many there are, and the first and last At, in µs since 1970
}

func (a *admissions) add(tx *quota.Transaction) {
	if !tx.Allowed() {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	at := tx.At.UnixMicro()
	if a.n == 0 {
		a.first = at
	}
	a.n++
	a.first, a.last = min(a.first, at), max(a.last, at)
}

// TestLeaseRedis: four replicas with 32 goroutines each use one key in Redis. They get no
// more than the limit, and no unit is missing when all leases have been refunded.
func TestLeaseRedis(t *testing.T) {
	const replicas, goroutines, each, units = 4, 32, 200, 20_000
	addr := redistest.Server(t).Addr()
	for _, limit := range []quota.Limit{perHour(units), algorithms.SlidingWindow(units, 1000*time.Hour), algorithms.TokenBucket(3000, 40_000, time.Second)} {
		charge := quota.Charge{Rule: "r", Key: "hot", Limit: limit, Cost: 1}
		var served atomic.Int64
		var admitted admissions
		together(replicas, func(int) {
			store := lease.New(redisAt(t, addr, 5*time.Second), lease.Options{TTL: 20 * time.Millisecond})
			together(goroutines, func(int) {
				for range each {
					admitted.add(take(t, store, 0, charge))
				}
			})
			closeStore(t, store)
			served.Add(store.Stats().Hits)
		})
		got, most := admitted.n, int64(units)
		look := charge
		look.Cost = 0
		left := take(t, redisAt(t, addr, 5*time.Second), 0, look).Decisions[0].Remaining
		switch took := admitted.last - admitted.first; {
		case limit.Burst > 0:
			if most = limit.Burst + limit.Quota*took/limit.Period.Microseconds(); got > most {
				t.Errorf("%v: got %d admitted in %d µs, want %d at most", limit, got, took, most)
			}
		case got+left != units:
			t.Errorf("%v: got %d admitted and %d left, want %d together", limit, got, left, units)
		}
		if served.Load() < got/10 { // a fast machine sends more of the calls that are refused
			t.Errorf("%v: got %d calls served from memory, which are too few for this test", limit, served.Load())
		}
		t.Logf("%v: %d calls, %d admitted of %d, %d served from memory", limit, replicas*goroutines*each, got, most, served.Load())
	}
}

// leased calls the store until the store holds a lease, and returns how many calls were
// served from leases.
func leased(store *lease.Store, tx *quota.Transaction) int64 {
	for range 20_000 {
		store.Take(context.Background(), tx)
	}
	lease.EndTTL(store)
	store.Take(context.Background(), tx)
	return store.Stats().Hits
}

func BenchmarkLease(b *testing.B) {
	for _, limit := range []quota.Limit{algorithms.FixedWindow(1<<40, 1000*time.Hour), algorithms.GCRA(1<<30, time.Second)} {
		plain := memory()
		leases := lease.New(plain, lease.Options{})
		for _, c := range []struct {
			name  string
			store quota.Store
		}{{"baseline", plain}, {"leased", leases}} {
			b.Run(limit.Algorithm.Name()+"/"+c.name, func(b *testing.B) {
				tx := once(limit)
				b.ReportAllocs()
				for b.Loop() {
					if err := c.store.Take(context.Background(), tx); err != nil {
						b.Fatal(err)
					}
				}
			})
		}
		st := leases.Stats()
		b.Logf("%d of %d calls served from leases", st.Hits, st.Hits+st.Misses)
		leases.Close(context.Background())
	}
}

func ExampleNew() {
	redis := memory() // in a program, this is a redisstore
	store := lease.New(redis, lease.Options{TTL: 10 * time.Millisecond})
	defer store.Close(context.Background()) // refunds the unused units
	limit := algorithms.FixedWindow(1_000_000_000, 24*time.Hour)
	t := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "partner", Limit: limit, Cost: 1}}}
	for store.Stats().Hits < 1000 {
		if err := store.Take(context.Background(), &t); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("1000 calls were served without Redis")
	// Output: 1000 calls were served without Redis
}

// TestLeaseSettles: if a request was served from a lease, Settle gives units that the
// request did not use back to the store.
func TestLeaseSettles(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.FixedWindow(10_000, 10_000*time.Hour), algorithms.AnchoredWindow(10_000, 10_000*time.Hour),
		algorithms.SlidingWindow(10_000, 10_000*time.Hour), algorithms.Calendar(10_000, algorithms.Month, time.UTC),
	} {
		synctest.Test(t, func(t *testing.T) {
			memory := memstore.New(memstore.Options{})
			leases := lease.New(memory, lease.Options{})
			h := must(t, leases, weir.Options{Rules: []weir.Rule{{Name: "api", Key: weir.Global(), Limits: []quota.Limit{limit}, Settle: weir.ChargeOnly(401)}}}).
				Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { time.Sleep(300 * time.Microsecond) }))
			for range 5000 {
				time.Sleep(700 * time.Microsecond)
				do(h, ask("/", "192.0.2.1:4"))
			}
			if err := leases.Close(t.Context()); err != nil {
				t.Fatal(err)
			}
			look, err := quota.Peek(t.Context(), memory, quota.Charge{Rule: "api", Limit: limit})
			if err != nil {
				t.Fatal(err)
			}
			st := leases.Stats()
			if got := look.Decisions[0].Remaining; got != 10_000 || st.Hits < 4000 {
				t.Errorf("%v: got %d of 10000 left of %+v, want all", limit, got, st)
			}
		})
	}
}
