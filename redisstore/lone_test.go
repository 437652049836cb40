package redisstore_test

import (
	"context"
	"errors"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// A callerHook counts the calls that a client makes on the goroutine of a test.
type callerHook struct {
	test   string
	direct atomic.Int64
}

func (h *callerHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *callerHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.note()
		return next(ctx, cmd)
	}
}

func (h *callerHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		h.note()
		return next(ctx, cmds)
	}
}

func (h *callerHook) note() {
	var pcs [64]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(1, pcs[:])])
	for {
		f, more := frames.Next()
		if strings.HasSuffix(f.Function, "."+h.test) {
			h.direct.Add(1)
		}
		if !more {
			return
		}
	}
}

// TestLoneCaller: a caller that has been alone for a while sends its calls itself. A caller who
// may give up at any time does not, because it could not return before its answer. If Redis
// hangs, a lone caller learns it as any other does, and goes on when Redis is back.
func TestLoneCaller(t *testing.T) {
	server := redistest.Server(t)
	rdb := client(t, redis.NewUniversalClient(redisstore.ClientOptions(0, server.Addr())))
	hook := &callerHook{test: "TestLoneCaller"}
	rdb.AddHook(hook)
	store, err := redisstore.New(rdb, redisstore.Options{})
	if err != nil {
		t.Fatal(err)
	}
	tx := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "k", Limit: algorithms.FixedWindow(1e9, time.Hour), Cost: 1}}}
	take := func(ctx context.Context, n int) (direct int64) {
		before := hook.direct.Load()
		for range n {
			if err := store.Take(ctx, &tx); err != nil && !errors.Is(err, quota.ErrBusy) { // a busy machine
				t.Fatal(err)
			}
		}
		return hook.direct.Load() - before
	}
	eventually(t, "a call on the goroutine of its caller", func() error {
		if take(context.Background(), 20) == 0 {
			return errStill
		}
		return nil
	})
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	if n := take(ctx, 100); n > 0 {
		t.Errorf("%d calls of a caller that may give up were made on its goroutine", n)
	}
	eventually(t, "a call by its caller", func() error {
		if take(context.Background(), 20); take(context.Background(), 1) == 0 {
			return errStill
		}
		return nil
	})
	server.Pause()
	if err := store.Take(context.Background(), &tx); !errors.Is(err, redisstore.ErrTimeout) {
		t.Errorf("while Redis hangs: got %v, want ErrTimeout", err)
	}
	server.Resume()
	eventually(t, "decisions", func() error { return store.Take(context.Background(), &tx) })
}
