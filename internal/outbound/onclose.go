package outbound

import (
	"io"
	"net/http"
	"runtime"
	"sync/atomic"
)

// OnClose returns a body that reads from b and closes it, and calls end when it is first closed, or
// dropped if it is garbage-collected before that. The function dropped must not refer to the body.
// If b is an io.Writer, such as the body of an upgraded connection, the returned body is an
// io.Writer, too, and has a method CloseWrite.
func OnClose(b io.ReadCloser, end func(), dropped func(struct{})) io.ReadCloser {
	body := &closing{ReadCloser: b, end: end}
	body.watch = runtime.AddCleanup(body, dropped, struct{}{})
	if w, ok := b.(io.Writer); ok {
		return upgraded{body, w}
	}
	return body
}

// An upgraded value is the body of an upgraded connection.
type upgraded struct {
	*closing
	io.Writer
}

// CloseWrite is called by httputil.ReverseProxy when the client sends no more.
func (u upgraded) CloseWrite() error {
	if c, ok := u.Writer.(interface{ CloseWrite() error }); ok {
		return c.CloseWrite()
	}
	return http.ErrNotSupported
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
