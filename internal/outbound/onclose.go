package outbound

import (
	"io"
	"sync/atomic"
)

// OnClose returns a body that reads from b and closes it, and calls end when it is first closed. If
// b is an io.Writer, such as the body of an upgraded connection, the returned body is an io.Writer,
// too.
func OnClose(b io.ReadCloser, end func()) io.ReadCloser {
	body := &closing{ReadCloser: b, end: end}
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
	end  func()
	over atomic.Bool
}

func (b *closing) Close() error {
	if !b.over.Swap(true) {
		defer b.end()
	}
	return b.ReadCloser.Close()
}
