package lease_test

import "github.com/seed83679106/weir/internal/weirtest"

type distant = weirtest.Distant

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
