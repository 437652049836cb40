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

// A slowBody is the body of a request that may arrive slowly. The part that the rules read must
// arrive before a deadline, because a rule with a key such as json:NAME, and all other rules of
// the request, charge nothing before that part has been read. After the decision on the
// request, the body may take any time, provided that it does not pause for longer than pause.
type slowBody struct {
	io.ReadCloser
	conn    *http.ResponseController
	until   time.Time // the deadline before the decision on the request
	pause   time.Duration
	stream  bool // the body is that of an HTTP/2 stream: see isStream
	decided bool
	late    atomic.Bool // a part of the body did not arrive in time
	broken  atomic.Bool // the body is malformed, or has ended too early

	mu   sync.Mutex // held while a deadline is set
	over bool       // the handler has returned
}

// isStream reports whether r is a stream of HTTP/2. At its deadline, net/http ends such a stream,
// even if nothing is being read or written. The stream therefore has a deadline only during a Read
// or a Write. On an HTTP/1 connection, a deadline that passes between reads and writes does no
// harm.
func isStream(r *http.Request) bool { return r.ProtoMajor >= 2 }

type slowBodyKey struct{}

// withSlowBody returns r, with a slowBody if r has a body. The part of the body that the rules
// read must arrive within the duration whole.
func withSlowBody(w http.ResponseWriter, r *http.Request, whole, pause time.Duration) *http.Request {
	if r.Body == nil || r.Body == http.NoBody {
		return r
	}
	b := &slowBody{ReadCloser: r.Body, conn: http.NewResponseController(w), until: time.Now().Add(whole), pause: pause, stream: isStream(r)}
	if !b.stream { // net/http reads what nobody else has read
		b.conn.SetReadDeadline(b.until)
	}
	r = r.WithContext(context.WithValue(r.Context(), slowBodyKey{}, b))
	r.Body = b
	return r
}

// slowBodyOf returns the slowBody of a request, or nil.
func slowBodyOf(r *http.Request) *slowBody {
	b, _ := r.Context().Value(slowBodyKey{}).(*slowBody)
	return b
}

// Read implements io.Reader. Once the body has ended, the connection has no deadline,
// because the client waits for the answer. A deadline that has passed is kept, because
// net/http reads the rest of the body before it sends the answer, and would otherwise wait
// for it.
func (b *slowBody) Read(p []byte) (n int, err error) {
	until := b.until
	if b.decided {
		until = time.Now().Add(b.pause)
	}
	b.setDeadline(until)
	n, err = b.ReadCloser.Read(p)
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		b.late.Store(true)
	case err != nil, b.stream:
		b.setDeadline(time.Time{})
		b.broken.Store(err != nil && err != io.EOF && err != http.ErrBodyReadAfterClose)
	}
	return n, err
}

// fault returns the status for a request that could not be forwarded because of its body, or 0.
func (b *slowBody) fault() int {
	switch {
	case b == nil:
	case b.late.Load():
		return http.StatusRequestTimeout
	case b.broken.Load():
		return http.StatusBadRequest
	}
	return 0
}

// setDeadline sets the deadline of the connection, unless the handler has returned. Afterwards, the
// deadline would apply to the next request, and over HTTP/2 net/http would panic.
func (b *slowBody) setDeadline(until time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if !b.over {
		b.conn.SetReadDeadline(until)
	}
}

// end is called when the handler returns. The transport may still be reading the body if the
// upstream has answered early.
func (b *slowBody) end() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.over = true
}

// A slowReader is a ResponseWriter each of whose writes must end within pause, because a client
// that does not read its response would otherwise hold its units in flight forever. The time of the
// whole response is not bounded.
type slowReader struct {
	http.ResponseWriter
	conn   *http.ResponseController
	pause  time.Duration
	stream bool // see isStream
}

// mostAtOnce is how many bytes of a response a client must read within the pause.
const mostAtOnce = 8 << 10

func withSlowReader(w http.ResponseWriter, r *http.Request, pause time.Duration) *slowReader {
	s := &slowReader{w, http.NewResponseController(w), pause, isStream(r)}
	s.conn.SetWriteDeadline(time.Time{}) // clear that of an earlier request; an interim response may come before the first write
	return s
}

func (s *slowReader) extend() { s.conn.SetWriteDeadline(time.Now().Add(s.pause)) }

// rest is called when a write has ended.
func (s *slowReader) rest() {
	if s.stream {
		s.conn.SetWriteDeadline(time.Time{})
	}
}

func (s *slowReader) WriteHeader(status int) {
	s.extend()
	s.ResponseWriter.WriteHeader(status)
	s.rest()
}

func (s *slowReader) Write(p []byte) (n int, err error) {
	for {
		s.extend()
		m, err := s.ResponseWriter.Write(p[:min(mostAtOnce, len(p))])
		s.rest()
		n, p = n+m, p[m:]
		if err != nil || len(p) == 0 {
			return n, err
		}
	}
}

// FlushError implements the method that http.ResponseController calls.
func (s *slowReader) FlushError() error {
	s.extend()
	defer s.rest()
	return s.conn.Flush()
}

// Unwrap returns the ResponseWriter within, for http.ResponseController.
func (s *slowReader) Unwrap() http.ResponseWriter { return s.ResponseWriter }
