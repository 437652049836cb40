package quota_test

import (
	"context"

	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

type (
	storeFunc = weirtest.StoreFunc
	distant   = weirtest.Distant
)

var (
	errDown    = weirtest.ErrDown
	once       = weirtest.Once
	conforms   = weirtest.Conforms
	memory     = weirtest.Memory
	take       = weirtest.Take
	together   = weirtest.Together
	failsWith  = weirtest.FailsWith
	redisAt    = weirtest.Redis
	ask        = weirtest.Ask
	do         = weirtest.Do
	must       = weirtest.New
	reserve    = weirtest.Reserve
	cancelTurn = weirtest.Cancel
	isOpen     = weirtest.IsOpen
	peek       = weirtest.Peek
)

// failing is a store that fails.
type failing struct{ err error }

func (f failing) Take(context.Context, *quota.Transaction) error { return f.err }
