package redisstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/redistest"
)

// TestGone: callers that give up leave their commands to the queue, which may still write the
// answers. Only the race detector sees it if a caller then reads its command. Nothing may order
// the answer after the caller, so the server answers in the instant in which the callers give up.
func TestGone(t *testing.T) {
	const callers = 8
	for range 20 {
		ctx, cancel := context.WithCancel(t.Context())
		asked := make(chan struct{}, callers)
		addr := redistest.Fake(t, func(args []string) string {
			switch args[0] {
			case "hello":
				return "-ERR unknown command\r\n"
			case "eval":
				asked <- struct{}{}
				<-ctx.Done()
				return "-ERR late\r\n" // go-redis writes an error into the command
			}
			return "+OK\r\n"
		})
		rdb := redis.NewUniversalClient(ClientOptions(50*time.Millisecond, addr))
		s, err := New(rdb, Options{})
		if err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				if _, _, _, err := s.LoadOverrides(ctx, ""); err == nil {
					t.Error("no error without an answer")
				}
			})
		}
		<-asked
		cancel()
		all.Wait()
		rdb.Close()
	}
}
