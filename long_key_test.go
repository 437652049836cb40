package weir_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/storedkey"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/watch"
)

// TestLongKeyIsItsDigest: a long key and its digest are the same key in every store.
func TestLongKeyIsItsDigest(t *testing.T) {
	long := strings.Repeat("x", 900_000)
	for name, store := range map[string]weir.Store{
		"memory":   memstore.New(memstore.Options{}),
		"Hybrid":   quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{}),
		"Lease":    lease.New(memstore.New(memstore.Options{}), lease.Options{}),
		"Coalesce": quota.Coalesce(memstore.New(memstore.Options{})),
	} {
		limit := algorithms.FixedWindow(3, 24*time.Hour)
		for i, key := range []string{long, storedkey.Of(long), long, long, storedkey.Of(long)} {
			tx := quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: key, Limit: limit, Cost: 1}}}
			if err := store.Take(context.Background(), &tx); err != nil || tx.Allowed() != (i < 3) {
				t.Errorf("%s: charge %d: got %v, %v, want %v", name, i+1, tx.Allowed(), err, i < 3)
			}
		}
		twice := quota.Transaction{Charges: []quota.Charge{
			{Rule: "api", Key: long, Limit: limit, Cost: 1}, {Rule: "api", Key: storedkey.Of(long), Limit: limit, Cost: 1},
		}}
		if err := store.Take(context.Background(), &twice); !errors.Is(err, quota.ErrDuplicate) {
			t.Errorf("%s: both at once: got %v, want ErrDuplicate", name, err)
		}
	}
}

// TestLongKeys: keys of 900 kB, which net/http lets clients send, are kept in no store,
// cache, ban or list of offenders.
func TestLongKeys(t *testing.T) {
	const n, size = 60, 900_000
	limit := algorithms.FixedWindow(1, 24*time.Hour)
	rule := weir.Rule{Name: "api", Key: weir.ByHeader("X-Api-Key"), Limits: []weir.Limit{limit}}
	banning := rule
	banning.Penalty = &weir.Penalty{Strikes: algorithms.AnchoredWindow(1, time.Minute), Duration: time.Hour}
	ample := rule
	ample.Limits = []weir.Limit{algorithms.FixedWindow(1000, 24*time.Hour)}
	top := watch.NewTop(n)
	memory := func() weir.Store { return memstore.New(memstore.Options{}) }
	for _, tt := range []struct {
		name  string
		store weir.Store
		o     weir.Options
	}{
		{"memory", memory(), weir.Options{Rules: []weir.Rule{rule}}},
		{"Lease", lease.New(memory(), lease.Options{TTL: time.Hour}), weir.Options{Rules: []weir.Rule{ample}}},
		{"Hybrid", quota.Hybrid(memory(), quota.HybridOptions{}), weir.Options{Rules: []weir.Rule{rule}}},
		{"Coalesce", quota.Coalesce(memory()), weir.Options{Rules: []weir.Rule{rule}}},
		{"Penalty", memory(), weir.Options{Rules: []weir.Rule{banning}}},
		{"Top", memory(), weir.Options{Rules: []weir.Rule{rule}, Observe: top.Observe}},
		{"Top by hand", memory(), weir.Options{Rules: []weir.Rule{rule}, Observe: func(e weir.Event) {
			if len(e.Transaction.Charges) == 1 {
				long := e.Transaction.Charges[0].Key + strings.Repeat("x", size)
				top.Observe(weir.Event{Transaction: &quota.Transaction{
					Charges: []quota.Charge{{Rule: "api", Key: long, Limit: limit, Cost: 1}}, Result: quota.Result{Decisions: []quota.Decision{{}}},
				}})
			}
		}}},
	} {
		h := must(t, tt.store, tt.o).Handler(served)
		before := heap()
		for i := range n {
			key := fmt.Sprint(i, strings.Repeat("x", size))
			for range 2 {
				do(h, ask("/", "192.0.2.1:4", "X-Api-Key", key))
			}
		}
		if kept := heap() - before; kept > 5<<20 {
			t.Errorf("%s: %d keys of %d bytes keep %d bytes, want less than 5 MB", tt.name, n, size, kept)
		}
		runtime.KeepAlive(h)
	}
	keys, _ := top.Keys(time.Hour)
	for _, r := range keys {
		if !strings.HasPrefix(r.Key, "sha256:") {
			t.Fatalf("the top has %.20q, of %d bytes, want digests", r.Key, len(r.Key))
		}
	}
}

func heap() int64 {
	runtime.GC()
	runtime.GC() // pools drop their memory at the second run
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// TestLongKeyInLists: ForKey gets the whole key. A keys.List finds a long key by its
// digest too.
func TestLongKeyInLists(t *testing.T) {
	long := strings.Repeat("x", 500)
	for _, entry := range []string{long, storedkey.Of(long), "xxx*"} {
		list, err := keys.NewList(entry)
		if err != nil {
			t.Fatal(err)
		}
		var seen []string
		h := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.ByHeader("X-Api-Key"), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
			ForKey: weir.When(func(key string) bool { seen = append(seen, key); return list.Has(key) }, weir.Denied()),
		}}}).Handler(served)
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", long)).StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("denied by %.20q: got %d, want 429", entry, got)
		}
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", "y"+long)).StatusCode; got != http.StatusOK {
			t.Errorf("not denied by %.20q: got %d, want 200", entry, got)
		}
		if !slices.Equal(seen, []string{long, "y" + long}) {
			t.Errorf("ForKey saw keys of %d and %d bytes, want them whole", len(seen[0]), len(seen[1]))
		}
	}
}

// TestLongKeyBanned: Ban, Banned and Unban treat a long key and its digest as the same key.
func TestLongKeyBanned(t *testing.T) {
	long := strings.Repeat("x", 500)
	l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("X-Api-Key"), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
		Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(9, time.Minute), Duration: time.Hour},
	}}})
	h, ctx := l.Handler(served), context.Background()
	for _, keys := range [][2]string{{long, storedkey.Of(long)}, {storedkey.Of(long), long}} {
		if err := l.Ban(ctx, "api", keys[0], time.Hour); err != nil {
			t.Fatal(err)
		}
		if rest, err := l.Banned(ctx, "api", keys[1]); rest == 0 || err != nil {
			t.Errorf("banned as %.10q: got %v, %v of %.10q, want an hour", keys[0], rest, err, keys[1])
		}
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", long)).StatusCode; got != http.StatusTooManyRequests {
			t.Errorf("banned as %.10q: got %d, want 429", keys[0], got)
		}
		if err := l.Unban(ctx, "api", keys[1]); err != nil {
			t.Fatal(err)
		}
		if got := do(h, ask("/", "192.0.2.1:4", "X-Api-Key", long)).StatusCode; got != http.StatusOK {
			t.Errorf("no longer banned as %.10q: got %d, want 200", keys[0], got)
		}
	}
}

// TestBansEndInMemory: while requests come, the process drops bans that are over from its
// memory.
func TestBansEndInMemory(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := must(t, memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
			Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(9, time.Second)},
			Penalty: &weir.Penalty{Strikes: algorithms.AnchoredWindow(9, time.Minute), Duration: time.Hour},
		}}})
		for i := range 1000 {
			if err := l.Ban(t.Context(), "api", fmt.Sprint(i), time.Minute); err != nil {
				t.Fatal(err)
			}
		}
		if got := l.KnownBans(); got != 1000 {
			t.Errorf("got %d bans in memory, want 1000", got)
		}
		time.Sleep(time.Minute)
		do(l.Handler(served), ask("/", "192.0.2.1:4"))
		if got := l.KnownBans(); got != 0 {
			t.Errorf("a minute later: got %d bans in memory, want 0", got)
		}
	})
}
