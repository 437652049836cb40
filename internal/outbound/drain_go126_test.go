//go:build !go1.27

package outbound_test

import (
	"context"
	"io"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/outbound"
)

// TestCloseUnreadPanics: a Settle that panics when a body is closed on the goroutine of a timer does not end
// the process.
func TestCloseUnreadPanics(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	defer w.Close()
	cancel()
	outbound.CloseUnread(ctx, outbound.OnClose(r, func() { panic("Settle") }), time.Hour)
}
