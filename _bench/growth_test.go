package main

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"runtime"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// A counted store counts the calls and the charges of a store.
type counted struct {
	quota.Store
	calls, charges int
}

func (s *counted) Take(ctx context.Context, t *quota.Transaction) error {
	s.calls++
	s.charges += len(t.Charges)
	return s.Store.Take(ctx, t)
}

// perCall returns how many bytes and allocations a call of f takes, after some calls that fill pools.
func perCall(f func()) (bytes, allocations float64) {
	const calls = 2000
	for range 100 {
		f()
	}
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range calls {
		f()
	}
	runtime.ReadMemStats(&after)
	return float64(after.TotalAlloc-before.TotalAlloc) / calls, float64(after.Mallocs-before.Mallocs) / calls
}

// linear reports whether y grows about linearly with x: on the whole, each further x adds at most twice
// what it adds from the first value to the second.
func linear(xs []int, ys []float64) bool {
	last := len(xs) - 1
	slope := (ys[1] - ys[0]) / float64(xs[1]-xs[0])
	return ys[last]-ys[0] <= 2*slope*float64(xs[last]-xs[0])
}

func TestLinear(t *testing.T) {
	for _, tt := range []struct {
		ys   []float64
		want bool
	}{{[]float64{30, 100, 500}, true}, {[]float64{9, 100, 2500}, false}, {[]float64{5, 5, 5}, true}, {[]float64{5, 5, 6}, false}} {
		if got := linear([]int{3, 10, 50}, tt.ys); got != tt.want {
			t.Errorf("%v: got %v, want %v", tt.ys, got, tt.want)
		}
	}
}

// TestGrowthRequests: a request calls the store once, with a charge for each rule or limit, and what it
// allocates grows at most linearly with them. With 20 or fewer, a part of it is on the stack.
func TestGrowthRequests(t *testing.T) {
	sizes := []int{30, 60, 300}
	for _, ofRules := range []bool{true, false} {
		var bytes, allocations []float64
		for _, n := range sizes {
			var rules []weir.Rule
			var limits []weir.Limit
			for i := range n {
				// A longer period allows more units at once, but at a lower rate, so no limit is redundant.
				l := algorithms.GCRA(int64(i+1)*int64(1000-i)*1_000_000, time.Duration(i+1)*time.Second).Named(fmt.Sprint(i))
				if limits = append(limits, l); ofRules {
					rules = append(rules, weir.Rule{Name: fmt.Sprint(i), Key: weir.ByIP(), Limits: []weir.Limit{l}})
				}
			}
			if !ofRules {
				rules = []weir.Rule{{Name: "api", Key: weir.ByIP(), Limits: limits}}
			}
			s := &counted{Store: memstore.New(memstore.Options{})}
			h := must(weir.New(s, weir.Options{Rules: rules})).Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
			w, r := &response{header: http.Header{}}, httptest.NewRequest("GET", "/", nil)
			serve := func() {
				clear(w.header)
				h.ServeHTTP(w, r)
			}
			serve()
			if s.calls != 1 || s.charges != n {
				t.Errorf("%d rules: got %d calls with %d charges, want 1 with %d", len(rules), s.calls, s.charges, n)
			}
			b, a := perCall(serve)
			bytes, allocations = append(bytes, b), append(allocations, a)
		}
		if !linear(sizes, bytes) || allocations[2] > allocations[0]+8 {
			t.Errorf("rules %v, %v of them: got %v bytes and %v allocations a request, want linear growth and at most 8 more",
				ofRules, sizes, bytes, allocations)
		}
	}
}

// TestGrowthKeys: each key takes the same memory, however many there are.
func TestGrowthKeys(t *testing.T) {
	for _, n := range []int{10_000, 100_000, 400_000} {
		bytes, _, err := footprint(bounded(n), keysOf(n))
		if err != nil {
			t.Fatal(err)
		}
		if bytes > 50 {
			t.Errorf("%d keys: got %.1f bytes a key, want at most 50", n, bytes)
		}
	}
}

// TestGrowthLogs: a refusal by a log allocates nothing, however many units the log has.
func TestGrowthLogs(t *testing.T) {
	for _, n := range []int{20, 2000, 100_000} {
		check := weirOf(memstore.New(memstore.Options{}), algorithms.SlidingLog(int64(n), time.Hour))()
		spend := func() {
			if _, err := check("k"); err != nil {
				t.Fatal(err)
			}
		}
		for range n {
			spend()
		}
		if bytes, allocations := perCall(spend); bytes > 1 || allocations > 0.01 {
			t.Errorf("a log of %d units: got %.1f bytes and %.2f allocations a refusal, want none", n, bytes, allocations)
		}
	}
}
