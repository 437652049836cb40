//go:build go1.27

package outbound

import (
	"context"
	"io"
	"time"
)

// CloseUnread closes a body whose rest is not needed. Since Go 1.27, net/http itself reads the
// rest, for at most 50 ms, so that the connection can be used again. CloseUnread must not read,
// because closing a body during a read delays net/http by these 50 ms, and blocks it forever in a
// bubble of testing/synctest.
func CloseUnread(_ context.Context, body io.ReadCloser, _ time.Duration) { body.Close() }
