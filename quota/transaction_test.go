package quota_test

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// tens has a limit of ten units for each algorithm except in-flight.
var tens = []quota.Limit{
	algorithms.GCRA(10, 1000*time.Hour), algorithms.TokenBucket(10, 10, 1000*time.Hour), algorithms.LeakyBucket(10, 10, 1000*time.Hour),
	algorithms.FixedWindow(10, 1000*time.Hour), algorithms.AnchoredWindow(10, 1000*time.Hour), algorithms.SlidingWindow(10, 1000*time.Hour),
	algorithms.SlidingLog(10, 1000*time.Hour), algorithms.Calendar(10, algorithms.Month, time.UTC),
}

// big returns the largest cost of a slot that can wait behind five other units.
func big(limit quota.Limit) int64 {
	if limit.Algorithm.Name() == "leaky-bucket" {
		return 5 // the queue has room for five units
	}
	return 10
}

// undoStores runs a test with stores in memory and in Redis, alone and through decorators.
func undoStores(t *testing.T, f func(t *testing.T, name string, store quota.Store)) {
	for name, open := range map[string]func(t *testing.T) quota.Store{
		"memory": func(*testing.T) quota.Store { return memory() },
		"Redis":  func(t *testing.T) quota.Store { return redisAt(t, redistest.Server(t).Addr(), 10*time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			base := open(t)
			for decorator, decorated := range map[string]func(quota.Store) quota.Store{
				"":           func(s quota.Store) quota.Store { return s },
				" Hybrid":    func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
				" Breaker":   func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
				" Fallback":  func(s quota.Store) quota.Store { return quota.Fallback(s, memory(), quota.FallbackOptions{}) },
				" secondary": func(s quota.Store) quota.Store { return quota.Fallback(failing{errDown}, s, quota.FallbackOptions{}) },
				" Share":     func(s quota.Store) quota.Store { return quota.Share(s, 1) },
				" Coalesce":  func(s quota.Store) quota.Store { return quota.Joined(quota.Coalesce(s)) },
				" Lease":     func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
			} {
				f(t, name+decorator, decorated(base))
			}
		})
	}
}

// TestCancelFreesTheKey: after big slots were reserved and cancelled, the five units that
// were free before can be spent at once.
func TestCancelFreesTheKey(t *testing.T) {
	undoStores(t, func(t *testing.T, name string, store quota.Store) {
		for _, limit := range tens {
			for _, slots := range []int{1, 3} {
				cancelBigSlots(t, name, store, limit, slots)
			}
		}
	})
}

// cancelBigSlots spends five units of ten, reserves big slots, cancels them from the last
// to the first, and expects that the other five units are free.
func cancelBigSlots(t *testing.T, name string, store quota.Store, limit quota.Limit, slots int) {
	t.Helper()
	charges := func(cost int64) []quota.Charge {
		return []quota.Charge{
			{Rule: name, Key: fmt.Sprint(slots), Limit: limit, Cost: cost},
			{Rule: name, Key: fmt.Sprint(slots), Limit: limit.Named("another"), Cost: cost},
			{Rule: name + "'s other rule", Key: fmt.Sprint(slots), Limit: algorithms.SlidingLog(100, 1000*time.Hour).Named(limit.Algorithm.Name()), Cost: cost},
		}
	}
	if tx := take(t, store, 0, charges(5)...); !tx.Allowed() {
		t.Fatalf("%s: %v: got %+v", name, limit, tx.Decisions)
	}
	var line []*quota.Reservation
	for range slots {
		r, err := quota.Reserve(t.Context(), store, 10_000*time.Hour, charges(big(limit))...)
		if err != nil && len(line) > 0 && big(limit) == 5 {
			break // the queue is full
		}
		if err != nil {
			t.Fatalf("%s: %v: %v", name, limit, err)
		}
		line = append(line, r)
	}
	take(t, store, 0, charges(1)...) // this is refused, and a decorator may remember the refusal
	for _, r := range slices.Backward(line) {
		cancelTurn(t, r)
	}
	for range 5 {
		if tx := take(t, store, 0, charges(1)...); !tx.Allowed() || tx.Wait != 0 {
			t.Errorf("%s: %v, %d slots cancelled: got %+v for a unit that is free", name, limit, len(line), tx.Decisions)
			break
		}
	}
	if tx := take(t, store, 0, charges(1)...); tx.Allowed() {
		t.Errorf("%s: %v: got a sixth unit of the five that were left: %+v", name, limit, tx.Decisions)
	}
}

// TestHangUpFreesTheKey: a client that waits for many units over HTTP and hangs up delays
// no later request.
func TestHangUpFreesTheKey(t *testing.T) {
	for _, limit := range tens {
		synctest.Test(t, func(t *testing.T) {
			h := must(t, memstore.New(memstore.Options{}), weir.Options{MaxWait: 10_000 * time.Hour, Rules: []weir.Rule{
				{Name: "api", Key: weir.Global(), Limits: []quota.Limit{limit.Named("a"), limit.Named("b")}, ForKey: func(string) weir.Policy { return weir.Policy{} }, Cost: costOf},
				{Name: "host", Key: weir.ByHeader("Host"), Limits: []quota.Limit{algorithms.SlidingLog(50, 1000*time.Hour)}, Cost: costOf},
			}}).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			begin := time.Now()
			get := func(ctx context.Context, cost string) int {
				r := ask("/", "192.0.2.1:4", "Cost", cost).WithContext(ctx)
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				return w.Code
			}
			if got := get(t.Context(), "5"); got != 200 {
				t.Fatalf("%v: got %d", limit, got)
			}
			at := time.Since(begin)
			gone, hangUp := context.WithCancel(t.Context())
			done := make(chan int)
			go func() { done <- get(gone, fmt.Sprint(big(limit))) }()
			synctest.Wait()
			hangUp()
			if got := <-done; got == 200 {
				t.Errorf("%v: a request whose client hung up was served", limit)
			}
			want := at
			for range 5 {
				if big(limit) == 5 { // a unit leaves the queue every 100 hours, after the five units before it
					want = max(want+100*time.Hour, at+500*time.Hour)
				}
				if got := get(t.Context(), "1"); got != 200 || time.Since(begin) != want {
					t.Errorf("%v: got %d after %v, want 200 after %v", limit, got, time.Since(begin), want)
				}
			}
		})
	}
}

func costOf(r *http.Request) (n int64) {
	fmt.Sscan(r.Header.Get("Cost"), &n)
	return n
}

// TestWaitAfterCancel: Wait returns an error if the reservation is canceled, by Cancel or by an earlier call to
// Wait, because the units are refunded.
func TestWaitAfterCancel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store, charge := memstore.New(memstore.Options{}), quota.Charge{Rule: "r", Limit: algorithms.GCRA(1, time.Minute), Cost: 1}
		over, end := context.WithCancel(t.Context())
		end()
		for _, cancel := range []func(r *quota.Reservation) error{
			func(r *quota.Reservation) error { return r.Cancel(t.Context()) },
			func(r *quota.Reservation) error { r.Wait(over); return nil },
		} {
			if _, err := quota.Reserve(t.Context(), store, 0, charge); err != nil {
				t.Fatal(err)
			}
			r, err := quota.Reserve(t.Context(), store, time.Hour, charge)
			if err != nil || r.Delay() != time.Minute || cancel(r) != nil {
				t.Fatal(err)
			}
			if err := r.Wait(t.Context()); err == nil {
				t.Error("got no error, want one")
			}
			time.Sleep(time.Minute)
		}
	})
}

// TestCancelKeepsTheLog: when a slot of a sliding log is cancelled, units that would have
// left the window by the instant of the slot still count, even if part of the slot was
// refunded before.
func TestCancelKeepsTheLog(t *testing.T) {
	undoStores(t, func(t *testing.T, name string, store quota.Store) {
		for _, gift := range []int64{0, 1, 100} {
			c := quota.Charge{Rule: name, Key: fmt.Sprint("log", gift), Limit: algorithms.SlidingLog(100, time.Hour), Cost: 60}
			take(t, store, 0, c)
			c.Cost = 100
			first, second := reserve(t, store, 3*time.Hour, c), reserve(t, store, 3*time.Hour, c)
			if c.Cost = -gift; gift > 0 {
				take(t, store, 0, c)
			}
			cancelTurn(t, second)
			cancelTurn(t, first)
			c.Cost = 0
			if d := take(t, store, 0, c).Decisions[0]; d.Remaining != 40 {
				t.Errorf("%s: %d refunded in between: got %+v, want 40 left", name, gift, d)
			}
		}
	})
}

// TestBanRefundsTheSlot: if the store reserves a slot for a request, but a ban that another
// process began refuses it, the slot is refunded.
func TestBanRefundsTheSlot(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(1, 10*time.Second), algorithms.SlidingLog(1, 10*time.Second), algorithms.FixedWindow(1, 10*time.Second),
		algorithms.SlidingWindow(1, 10*time.Second), algorithms.TokenBucket(1, 1, 10*time.Second), algorithms.LeakyBucket(10, 1, 10*time.Second),
	} {
		synctest.Test(t, func(t *testing.T) {
			mem := memstore.New(memstore.Options{})
			var last weir.Event
			limiter := func() *weir.Limiter {
				return must(t, mem, weir.Options{MaxWait: time.Hour, Observe: func(e weir.Event) { last = e }, Rules: []weir.Rule{{
					Name: "api", Key: weir.ByHeader("Key"), Limits: []quota.Limit{limit},
					Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(10, time.Minute), Duration: time.Minute},
				}}})
			}
			here, there := limiter(), limiter()
			h := here.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			do(h, ask("/", "192.0.2.1:4", "Key", "a"))
			if err := there.Ban(t.Context(), "api", "a", time.Minute); err != nil {
				t.Fatal(err)
			}
			charge := quota.Charge{Rule: "api", Key: "a", Limit: here.Rules()[0].Limits[0]}
			before := peek(t, mem, charge)
			start := time.Now()
			if res := do(h, ask("/", "192.0.2.1:4", "Key", "a")); res.StatusCode != 429 || time.Since(start) != 0 || last.Transaction.Wait != 0 {
				t.Errorf("%v: got %d after %v, and a wait of %v, want 429 at once", limit, res.StatusCode, time.Since(start), last.Transaction.Wait)
			}
			after := peek(t, mem, charge)
			if before.Decisions[0] != after.Decisions[0] {
				t.Errorf("%v: got %+v, want %+v", limit, after.Decisions[0], before.Decisions[0])
			}
		})
	}
}

// TestRefundAtMost: a refund of a transaction that was spent several times refunds all of it.
func TestRefundAtMost(t *testing.T) {
	store := memory()
	charge := quota.Charge{Rule: "jobs", Key: "acme", Limit: algorithms.FixedWindow(100, 10000*time.Hour), Cost: 3}
	for _, most := range []int64{7, 1 << 40} {
		tx := &quota.Transaction{Charges: []quota.Charge{charge}, Mode: quota.ModeAtMost, Most: most}
		if err := store.Take(t.Context(), tx); err != nil || !tx.Allowed() {
			t.Fatal(tx, err)
		}
		if err := quota.Refund(t.Context(), store, tx); err != nil {
			t.Fatal(err)
		}
		if left := peek(t, store, charge).Decisions[0].Remaining; left != 100 {
			t.Errorf("up to %d times: got %d left, want 100", most, left)
		}
	}
}

// TestPeekAndReset: Peek spends nothing, and Reset refunds all units of its keys and no
// units of other keys.
func TestPeekAndReset(t *testing.T) {
	for _, limit := range []quota.Limit{
		algorithms.GCRA(5, time.Hour), algorithms.TokenBucket(5, 1, time.Hour), algorithms.LeakyBucket(5, 1, time.Hour),
		algorithms.FixedWindow(5, time.Hour), algorithms.AnchoredWindow(5, time.Hour),
		algorithms.SlidingWindow(5, time.Hour), algorithms.SlidingLog(5, time.Hour), algorithms.Calendar(5, algorithms.Day, nil),
	} {
		synctest.Test(t, func(t *testing.T) {
			ctx, store := context.Background(), memstore.New(memstore.Options{})
			spend := quota.Charge{Rule: "api", Key: "k", Limit: limit, Cost: 4}
			other := quota.Charge{Rule: "api", Key: "other", Limit: limit, Cost: 4}
			take(t, store, 0, spend)
			take(t, store, 0, other)
			left := func(c quota.Charge) int64 {
				tx, err := quota.Peek(ctx, store, c)
				if err != nil {
					t.Fatal(err)
				}
				return tx.Decisions[0].Remaining
			}
			if a, b := left(spend), left(spend); a != 1 || b != 1 {
				t.Errorf("%v: peeked %d and %d, want 1 left both times", limit, a, b)
			}
			if _, err := quota.Reset(ctx, store, spend); err != nil {
				t.Fatal(err)
			}
			if a, b := left(spend), left(other); a != 5 || b != 1 {
				t.Errorf("%v: after a reset %d left, and %d of another key; want 5 and 1", limit, a, b)
			}
		})
	}
}

// TestPeekCost: Peek of a charge says what Take then decides about the charge, through every
// decorator, and spends nothing.
func TestPeekCost(t *testing.T) {
	limit := algorithms.GCRA(5, time.Hour)
	for name, around := range map[string]func(quota.Store) quota.Store{
		"hybrid":  func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"breaker": func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"fallback": func(s quota.Store) quota.Store {
			return quota.Fallback(s, memstore.New(memstore.Options{}), quota.FallbackOptions{})
		},
		"coalesce": func(s quota.Store) quota.Store { return quota.Coalesce(s) },
		"share":    func(s quota.Store) quota.Store { return quota.Share(s, 1) },
		"lease":    func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
	} {
		synctest.Test(t, func(t *testing.T) {
			store := around(memstore.New(memstore.Options{}))
			for range 3 {
				for cost := range int64(7) {
					checkPeek(t, name, store, limit, cost)
					if cost > 0 {
						time.Sleep(7 * time.Minute)
					}
				}
			}
		})
	}
}

// checkPeek compares Peek of a cost with a charge of cost 0, and then with a charge of that
// cost.
func checkPeek(t *testing.T, name string, store quota.Store, limit quota.Limit, cost int64) {
	t.Helper()
	c := quota.Charge{Rule: "api", Limit: limit, Cost: cost}
	before := peek(t, store, c, quota.Charge{Rule: "other", Limit: limit, Cost: 5})
	d := before.Decisions[0]
	if len(before.Charges) != 2 || !before.Decisions[1].Allowed || before.Decisions[1].Remaining != 5 {
		t.Errorf("%s: got %+v, want two charges, the second of which fits and was not spent", name, before)
	}
	look := take(t, store, 0, quota.Charge{Rule: "api", Limit: limit}).Decisions[0]
	if d.Remaining != look.Remaining || d.NextAfter != look.NextAfter || d.ResetAfter != look.ResetAfter {
		t.Errorf("%s: cost %d: peeked %+v, and a charge of cost 0 got %+v", name, cost, d, look)
	}
	if cost == 0 {
		return
	}
	after := take(t, store, 0, c).Decisions[0]
	if d.Allowed != after.Allowed || d.RetryAfter != after.RetryAfter {
		t.Errorf("%s: cost %d: peeked %+v, and then got %+v", name, cost, d, after)
	}

}

func ExamplePeek() {
	ctx, store := context.Background(), memstore.New(memstore.Options{})
	charge := quota.Charge{Rule: "api", Key: "ann", Limit: algorithms.FixedWindow(10, 24*time.Hour), Cost: 3}
	store.Take(ctx, &quota.Transaction{Charges: []quota.Charge{charge}})

	t, _ := quota.Peek(ctx, store, charge)
	fmt.Println(t.Decisions[0].Remaining)
	quota.Reset(ctx, store, charge)
	t, _ = quota.Peek(ctx, store, charge)
	fmt.Println(t.Decisions[0].Remaining)
	// Output:
	// 7
	// 10
}

// TestAllowAtMost: if concurrent callers want more units than the limit has, they get
// exactly its 100 units together.
func TestAllowAtMost(t *testing.T) {
	for name, open := range map[string]func(t *testing.T) quota.Store{
		"memory":   func(*testing.T) quota.Store { return memory() },
		"redis":    func(t *testing.T) quota.Store { return redisAt(t, redistest.Server(t).Addr(), 5*time.Second) },
		"coalesce": func(*testing.T) quota.Store { return quota.Coalesce(memory()) },
		"hybrid":   func(*testing.T) quota.Store { return quota.Hybrid(memory(), quota.HybridOptions{}) },
		"lease":    func(*testing.T) quota.Store { return lease.New(memory(), lease.Options{}) },
	} {
		t.Run(name, func(t *testing.T) {
			store := open(t)
			for _, limit := range []quota.Limit{algorithms.GCRA(100, 1000*time.Hour), algorithms.SlidingLog(100, 1000*time.Hour)} {
				var total atomic.Int64
				together(8, func(i int) {
					for range 10 {
						total.Add(takeAtMost(t, store, limit, 3+int64(i)))
					}
				})
				if total.Load() != 100 {
					t.Errorf("%v: granted %d units, want 100", limit, total.Load())
				}
			}
		})
	}
	if _, _, err := quota.AllowAtMost(t.Context(), memory(), quota.Charge{Limit: algorithms.GCRA(1, time.Hour)}); err == nil {
		t.Error("a cost of 0: got no error")
	}
}

// takeAtMost takes up to n units and returns how many are granted.
func takeAtMost(t *testing.T, store quota.Store, limit quota.Limit, n int64) int64 {
	t.Helper()
	granted, d, err := quota.AllowAtMost(t.Context(), store, quota.Charge{Rule: "jobs", Key: "acme", Limit: limit, Cost: n})
	if err != nil || granted < 0 || granted > n || d.Allowed != (granted > 0) {
		t.Errorf("got %d, %+v and error %v for %d units", granted, d, err, n)
	}
	return granted
}

func ExampleAllowAtMost() {
	ctx, store := context.Background(), memory()
	charge := quota.Charge{Rule: "mails", Key: "acme", Limit: algorithms.FixedWindow(100, 1000*time.Hour), Cost: 70}
	for range 3 {
		granted, _, err := quota.AllowAtMost(ctx, store, charge)
		fmt.Println(granted, err)
	}
	// Output:
	// 70 <nil>
	// 30 <nil>
	// 0 <nil>
}

// TestForget: every decorator passes ModeForget on to its store, and forgets what it remembers
// itself.
func TestForget(t *testing.T) {
	for name, decorated := range map[string]func(quota.Store) quota.Store{
		"nothing":  func(s quota.Store) quota.Store { return s },
		"Hybrid":   func(s quota.Store) quota.Store { return quota.Hybrid(s, quota.HybridOptions{}) },
		"Breaker":  func(s quota.Store) quota.Store { return quota.Breaker(s, quota.BreakerOptions{}) },
		"Fallback": func(s quota.Store) quota.Store { return quota.Fallback(failing{errDown}, s, quota.FallbackOptions{}) },
		"Share":    func(s quota.Store) quota.Store { return quota.Share(s, 2) },
		"Coalesce": func(s quota.Store) quota.Store { return quota.Joined(quota.Coalesce(s)) },
		"Lease":    func(s quota.Store) quota.Store { return lease.New(s, lease.Options{}) },
	} {
		store := decorated(memstore.New(memstore.Options{}))
		charges := []quota.Charge{
			{Rule: "r", Limit: algorithms.SlidingLog(10, time.Hour), Cost: 1},
			{Rule: "r", Limit: algorithms.FixedWindow(10, 10_000*time.Hour), Cost: 1},
		}
		for round := range 4 {
			admitted := 0
			for take(t, store, 0, charges...).Allowed() {
				admitted++
			}
			take(t, store, 0, charges...)
			if want := map[bool]int{true: 5, false: 10}[name == "Share"]; admitted != want {
				t.Errorf("%s: got %d admitted in round %d, want %d", name, admitted, round, want)
			}
			forget := quota.Transaction{Charges: slices.Clone(charges), Mode: quota.ModeForget}
			forget.Charges[0].Cost, forget.Charges[1].Cost = int64(round)-1, int64(round)-1 // which ModeForget ignores
			if err := store.Take(t.Context(), &forget); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestPrintable: a name with a byte that is not printable ASCII is refused, wherever the
// byte is, by Limit.Validate, Take and New.
func TestPrintable(t *testing.T) {
	l := algorithms.GCRA(1, time.Second)
	store := memstore.New(memstore.Options{})
	for n := range 40 {
		for at := range n + 1 {
			for b := range 256 {
				if n > 17 && b%16 > 1 && b != 0x7e && b != 0x7f {
					continue
				}
				checkNameWith(t, l, n, at, byte(b))
			}
		}
	}
	for _, name := range []string{"a\nb", "a\x00", "é", "\x7f"} {
		for _, c := range []quota.Charge{{Rule: name, Limit: l}, {Rule: "r", Limit: l.Named(name)}} {
			checkNotPrintable(t, store, c)
		}
	}
}

// checkNameWith puts the byte b into a name of n bytes, and checks that the name is valid if
// and only if the byte is printable. If at is n, the name stays without the byte.
func checkNameWith(t *testing.T, l quota.Limit, n, at int, b byte) {
	t.Helper()
	name := []byte(strings.Repeat("~ ", 20)[:n])
	want := true
	if at < n {
		name[at] = b
		want = ' ' <= b && b <= '~'
	}
	if got := l.Named(string(name)).Validate() == nil; got != want {
		t.Fatalf("a limit named %q: got valid %v, want %v", name, got, want)
	}
}

// checkNotPrintable expects an error for a charge with a name that is not printable.
func checkNotPrintable(t *testing.T, store quota.Store, c quota.Charge) {
	t.Helper()
	tx := quota.Transaction{Charges: []quota.Charge{c}}
	if err := tx.Validate(); err == nil {
		t.Errorf("a charge of rule %q, limit %q: got no error", c.Rule, c.Limit.Name)
	}
	if _, err := weir.New(store, weir.Options{Rules: []weir.Rule{{Name: c.Rule, Key: weir.Global(), Limits: []quota.Limit{c.Limit}}}}); err == nil {
		t.Errorf("New: rule %q, limit %q: got no error", c.Rule, c.Limit.Name)
	}
	if err := store.Take(context.Background(), &tx); err == nil {
		t.Errorf("Take: rule %q, limit %q: got no error", c.Rule, c.Limit.Name)
	}
}

// BenchmarkValidate measures Transaction.Validate, which every Take calls first.
func BenchmarkValidate(b *testing.B) {
	for name, limit := range map[string]string{"none": "", "short": "1m", "long": "a limit of a long name, 40 bytes or more"} {
		tx := quota.Transaction{Charges: []quota.Charge{{Rule: "auth.createToken", Limit: algorithms.GCRA(1, time.Second).Named(limit)}}}
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				if err := tx.Validate(); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
