package lease_test

import (
	"testing"

	"github.com/seed83679106/weir/contrib/lease"
	"github.com/seed83679106/weir/internal/test/weirtest"
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

// closeStore fails the test unless Close gives all units back without an error.
func closeStore(t *testing.T, store *lease.Store) {
	t.Helper()
	if err := store.Close(t.Context()); err != nil {
		t.Error(err)
	}
}
