package lease_test

import (
	"testing"

	"github.com/seed83679106/weir/internal/weirtest"
	"github.com/seed83679106/weir/lease"
)

type distant = weirtest.Distant

var (
	errDown   = weirtest.ErrDown
	once      = weirtest.Once
	conforms  = weirtest.Conforms
	memory    = weirtest.Memory
	take      = weirtest.Take
	together  = weirtest.Together
	failsWith = weirtest.FailsWith
	redisAt   = weirtest.Redis
	ask       = weirtest.Ask
	do        = weirtest.Do
	must      = weirtest.New
)

// closeStore expects a store to give all back.
func closeStore(t *testing.T, store *lease.Store) {
	t.Helper()
	if err := store.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
