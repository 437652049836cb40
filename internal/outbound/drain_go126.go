//go:build !go1.27

package outbound

import (
	"context"
	"io"
	"log/slog"
	"time"

	"github.com/seed83679106/weir/internal/safe"
)

// maxDrain is the longest time for which a response is read only to use its connection
// again. A new connection costs less than reading for longer.
const maxDrain = time.Second

// CloseUnread reads the rest of a body, so that the connection can be used again, and closes it.
// It stops after d or maxDrain, or when ctx ends: a server that sends its response byte by
// byte loses the connection. net/http permits closing a body during a read. This file can be
// deleted when the go line of go.mod says 1.27.
func CloseUnread(ctx context.Context, body io.ReadCloser, d time.Duration) {
	giveUp := func() { // on a goroutine, where a panic of Settle would end the process
		if panicked, err := safe.Call("Settle panicked", body.Close); panicked {
			slog.ErrorContext(ctx, "weir: request not settled", "err", err)
		}
	}
	timer := time.AfterFunc(min(d, maxDrain), giveUp)
	defer timer.Stop()
	defer context.AfterFunc(ctx, giveUp)()
	io.CopyN(io.Discard, body, 64<<10)
	body.Close()
}
