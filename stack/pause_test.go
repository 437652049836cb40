package stack

import (
	"context"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// TestChecksPause: requests that get an ErrUnusable, of an algorithm that only their rule has,
// do not check a Redis again and again that can decide all others.
func TestChecksPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		unusable := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return quota.ErrUnusable })
		p := primary{unusable, &checker{logger: slog.New(slog.DiscardHandler), probe: func(context.Context, ...quota.Limit) error {
			checks++
			return nil
		}}}
		p.checker.ctx, p.checker.cancel = context.WithCancel(t.Context())
		defer p.checker.cancel()
		const seconds = 60
		for range 100 * seconds {
			p.Take(t.Context(), &quota.Transaction{})
			time.Sleep(10 * time.Millisecond)
		}
		if most := int(seconds * time.Second / longestPause); checks < 2 || checks > most {
			t.Errorf("got %d checks in %d s, want at most %d", checks, seconds, most)
		}
	})
}
