package outbound

import (
	"io"
	"runtime"
	"sync/atomic"
)

// OnClose returns a body that reads from b and closes it, and calls end when it is first closed, or
// dropped if it is garbage-collected before that. The function dropped must not refer to the body.
// If b is an io.Writer, such as the body of an upgraded connection, the returned body is an
// io.Writer, too.
func OnClose(b io.ReadCloser, end func(), dropped func(struct{})) io.ReadCloser {
	body := &closing{ReadCloser: b, end: end}
	body.watch = runtime.AddCleanup(body, dropped, struct{}{})
	if w, ok := b.(io.Writer); ok {
		return struct {
			*closing
			io.Writer
		}{body, w}
	}
	return body
}

type closing struct {
	io.ReadCloser
	end   func()
	over  atomic.Bool
	watch runtime.Cleanup
}

func (b *closing) Close() error {
	if !b.over.Swap(true) {
		b.watch.Stop()
		defer b.end()
	}
	return b.ReadCloser.Close()
}
