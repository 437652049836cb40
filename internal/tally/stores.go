package tally

import (
	"slices"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/lease"
	"github.com/seed83679106/weir/quota"
)

// Stores has the decorators that count what they do: Hybrid, lease.Store, Breaker and
// Fallback. Other stores in it are ignored.
type Stores []quota.Store

// StoresOf returns stores, each once, and in place of a store that is a stack of stores,
// which has a method Stores, the stores of the stack.
func StoresOf(stores []quota.Store) (all Stores) {
	for _, s := range stores {
		if stack, ok := s.(interface{ Stores() []quota.Store }); ok {
			all = append(all, StoresOf(stack.Stores())...)
			continue
		}
		all = append(all, s)
	}
	seen := map[any]bool{}
	return slices.DeleteFunc(all, func(s quota.Store) bool {
		if !compare.Can(s) {
			return false
		}
		twice := seen[s]
		seen[s] = true
		return twice
	})
}

// Served is how many decisions the stores of one kind have made.
type Served struct {
	Kind         string // "hybrid" or "lease"
	Hits, Misses int64  // decisions from memory, and decisions of the next store
}

// Served returns how many decisions the stores have made, added up by kind.
func (s Stores) Served() (sums []Served) {
	add := func(kind string, hits, misses uint64) {
		i := slices.IndexFunc(sums, func(s Served) bool { return s.Kind == kind })
		if i < 0 {
			i, sums = len(sums), append(sums, Served{Kind: kind})
		}
		sums[i].Hits += int64(hits)
		sums[i].Misses += int64(misses)
	}
	for _, store := range s {
		switch store := store.(type) {
		case interface{ Stats() (hits, misses uint64) }:
			hits, misses := store.Stats()
			add("hybrid", hits, misses)
		case interface{ Stats() lease.Stats }:
			st := store.Stats()
			add("lease", st.Hits, st.Misses)
		}
	}
	return sums
}

// Breakers returns how many of the breakers are open, and how many transactions they have
// refused while open. ok is false if there is no breaker.
func (s Stores) Breakers() (open, refused int64, ok bool) {
	for _, store := range s {
		b, is := store.(interface {
			Open() bool
			Refused() int64
		})
		if !is {
			continue
		}
		ok = true
		if b.Open() {
			open++
		}
		refused += b.Refused()
	}
	return open, refused, ok
}

// Fallbacks returns how many of the fallbacks have their secondary decide now, and how many
// transactions the secondaries have decided, by cause. ok is false if there is no fallback.
func (s Stores) Fallbacks() (active int64, decided map[string]int64, ok bool) {
	decided = map[string]int64{}
	for _, store := range s {
		f, is := store.(interface{ Stats() quota.FallbackStats })
		if !is {
			continue
		}
		ok = true
		st := f.Stats()
		if st.Active {
			active++
		}
		for cause, n := range st.Decided {
			decided[cause] += n
		}
	}
	return active, decided, ok
}
