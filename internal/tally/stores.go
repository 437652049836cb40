package tally

import (
	"slices"

	"github.com/seed83679106/weir/internal/compare"
	"github.com/seed83679106/weir/quota"
)

// StoresOf returns stores, each once, and in place of a store that is a stack of stores,
// which has a method Stores, the stores of the stack.
func StoresOf(stores []quota.Store) (all []quota.Store) {
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
