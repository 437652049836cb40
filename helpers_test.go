package weir_test

import (
	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/weirtest"
)

type (
	storeFunc = weirtest.StoreFunc
	distant   = weirtest.Distant
)

const race = weirtest.Race

var (
	errDown  = weirtest.ErrDown
	once     = weirtest.Once
	conforms = weirtest.Conforms
	memory   = weirtest.Memory
	take     = weirtest.Take
	redisAt  = weirtest.Redis
	ask      = weirtest.Ask
	do       = weirtest.Do
	must     = weirtest.New
)

func isOpen(store weir.Store) bool { return store.(interface{ Open() bool }).Open() }
