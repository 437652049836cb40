//go:build go1.27

package outbound

import (
	"context"
	"io"
	"time"
)

// CloseUnread closes a body whose rest is not needed. net/http reads the rest itself since Go 1.27,
// for at most 50 ms, so that the connection can be used again. CloseUnread must not read: a body
// that is closed during a read delays net/http by these 50 ms, and blocks it for ever in a bubble
// of testing/synctest.
func CloseUnread(_ context.Context, body io.ReadCloser, _ time.Duration) { body.Close() }
