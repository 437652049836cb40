package main

import (
	"context"
	"errors"
	"io"
	"net/http"
	"os"
	"sync"
	"sync/atomic"
	"time"
)

// A slowClient represents the client of a request that is forwarded. The client may send its
// request slowly. However, the part of the body that the rules read must arrive before a deadline:
// if a rule has a key such as json:NAME, none of the request's rules charges anything before that
// part has been read. After the decision on the request, the body may take any time, as long as the
// client never pauses for too long. Each write of the response must also end within the same time,
// because a client that does not read its response would otherwise hold its units in flight
// forever. The time of the whole response is not bounded.
type slowClient struct {
	conn    *http.ResponseController
	until   time.Time // the deadline before the decision on the request
	pause   time.Duration
	decided bool
	late    atomic.Bool // a part of the body did not arrive in time
	broken  atomic.Bool // the body is malformed, or has ended too early

	// net/http ends an HTTP/2 stream at its deadline, even if nothing is being read or written. A
	// stream therefore has a deadline only during a Read or a Write. On an HTTP/1 connection, a
	// deadline that passes between reads and writes does no harm.
	stream bool

	mu   sync.Mutex // held while a deadline of the body is set
	over bool       // the handler has returned
}

type slowClientKey struct{}

// withSlowClient returns a slowClient, and versions of w and r that apply its deadlines. The part
// of the body that the rules read must arrive within the first of the two durations. The handler
// must call end.
func withSlowClient(w http.ResponseWriter, r *http.Request, whole, pause time.Duration) (http.ResponseWriter, *http.Request, *slowClient) {
	c := &slowClient{conn: http.NewResponseController(w), until: time.Now().Add(whole), pause: pause, stream: r.ProtoMajor >= 2}
	c.conn.SetWriteDeadline(time.Time{}) // clear that of an earlier request; an interim response may come before the first write
	r = r.WithContext(context.WithValue(r.Context(), slowClientKey{}, c))
	if r.Body != nil && r.Body != http.NoBody {
		if !c.stream { // net/http reads what nobody else has read
			c.conn.SetReadDeadline(c.until)
		}
		r.Body = slowBody{r.Body, c}
	}
	return slowWriter{w, c}, r, c
}

// slowClientOf returns the slowClient of a request that has one.
func slowClientOf(r *http.Request) *slowClient {
	return r.Context().Value(slowClientKey{}).(*slowClient)
}

// fault returns the status for a request that could not be forwarded because of its body, or 0.
func (c *slowClient) fault() int {
	switch {
	case c.late.Load():
		return http.StatusRequestTimeout
	case c.broken.Load():
		return http.StatusBadRequest
	}
	return 0
}

// end is called when the handler returns. If the upstream has answered early, the transport may
// still be reading the body while net/http sends the end of the response.
func (c *slowClient) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.over = true
	c.extend()
}

// setReadDeadline sets the deadline of the body, unless the handler has returned. After the handler
// has returned, the deadline would apply to the next request, and over HTTP/2 net/http would panic.
func (c *slowClient) setReadDeadline(until time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.over {
		c.conn.SetReadDeadline(until)
	}
}

// extend is called before a write.
func (c *slowClient) extend() { c.conn.SetWriteDeadline(time.Now().Add(c.pause)) }

// rest is called when a write has ended.
func (c *slowClient) rest() {
	if c.stream {
		c.conn.SetWriteDeadline(time.Time{})
	}
}

// A slowBody reads the body of a slowClient's request.
type slowBody struct {
	io.ReadCloser
	c *slowClient
}

// Read implements io.Reader. Once the body has ended, the connection has no deadline, because the
// client waits for the answer. A deadline that has passed is kept, because net/http reads the rest
// of the body before it sends the answer, and would otherwise wait for this rest.
func (b slowBody) Read(p []byte) (n int, err error) {
	until := b.c.until
	if b.c.decided {
		until = time.Now().Add(b.c.pause)
	}
	b.c.setReadDeadline(until)
	n, err = b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.c.late.Store(true)
	case err != nil, b.c.stream:
		b.c.setReadDeadline(time.Time{})
		b.c.broken.Store(err != nil && err != io.EOF && err != http.ErrBodyReadAfterClose)
	}
	return n, err
}

// A slowWriter writes the response to a slowClient.
type slowWriter struct {
	http.ResponseWriter
	c *slowClient
}

// mostAtOnce is the number of bytes of a response that a client must read within the pause.
const mostAtOnce = 8 << 10

func (w slowWriter) WriteHeader(status int) {
	w.c.extend()
	w.ResponseWriter.WriteHeader(status)
	w.c.rest()
}

func (w slowWriter) Write(p []byte) (n int, err error) {
	for {
		w.c.extend()
		m, err := w.ResponseWriter.Write(p[:min(mostAtOnce, len(p))])
		w.c.rest()
		n, p = n+m, p[m:]
		if err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// FlushError implements the method that http.ResponseController calls.
func (w slowWriter) FlushError() error {
	w.c.extend()
	defer w.c.rest()
	return w.c.conn.Flush()
}

// Unwrap returns the wrapped ResponseWriter, for http.ResponseController.
func (w slowWriter) Unwrap() http.ResponseWriter { return w.ResponseWriter }
