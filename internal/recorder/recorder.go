// Package recorder records what a handler answers, and whether the client took it.
package recorder

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// A Recorder is a ResponseWriter that records the status and the size of a response, and
// whether the client sent its whole request and received the response. Only its
// ResponseWriter need be set.
type Recorder struct {
	http.ResponseWriter
	Status   int // 0 if nothing was sent
	Bytes    int64
	Hijacked bool // the handler has taken the connection
	failed   bool // a write to the client failed
	body     body
}

func (rec *Recorder) WriteHeader(status int) {
	if rec.Status == 0 && (status >= 200 || status == http.StatusSwitchingProtocols) {
		rec.Status = status
	}
	rec.ResponseWriter.WriteHeader(status)
}

func (rec *Recorder) Write(p []byte) (int, error) {
	rec.begin()
	n, err := rec.ResponseWriter.Write(p)
	rec.Bytes += int64(n)
	return n, rec.note(err)
}

// Unwrap lets http.ResponseController find what the ResponseWriter can do.
func (rec *Recorder) Unwrap() http.ResponseWriter { return rec.ResponseWriter }

func (rec *Recorder) begin() {
	if rec.Status == 0 {
		rec.Status = http.StatusOK
	}
}

// note remembers that a write failed, unless the handler caused the error.
func (rec *Recorder) note(err error) error {
	if err != nil && !errors.Is(err, http.ErrContentLength) && !errors.Is(err, http.ErrBodyNotAllowed) && !errors.Is(err, http.ErrHijacked) {
		rec.failed = true
	}
	return err
}

// HungUp reports whether the client failed to send its request or to take the answer.
// net/http does not end the context of a request whose body is malformed or does not come.
func (rec *Recorder) HungUp() bool {
	return rec.failed || rec.body.reading.Load() > 0 || rec.body.failed.Load()
}

// Writer returns rec with the optional interfaces that its ResponseWriter has, and no
// others, because a handler that finds a Flusher relies on it. These interfaces are
// Flusher, Hijacker, io.ReaderFrom and Pusher. A handler finds others through Unwrap.
func (rec *Recorder) Writer() http.ResponseWriter {
	const (
		flushes = 1 << iota
		hijacks
		reads
		pushes
	)
	n := 0
	if _, ok := rec.ResponseWriter.(http.Flusher); ok {
		n |= flushes
	}
	if _, ok := rec.ResponseWriter.(http.Hijacker); ok {
		n |= hijacks
	}
	if _, ok := rec.ResponseWriter.(io.ReaderFrom); ok {
		n |= reads
	}
	if _, ok := rec.ResponseWriter.(http.Pusher); ok {
		n |= pushes
	}
	f, h, r, p := flusher{rec}, hijacker{rec}, readerFrom{rec}, pusher{rec}
	switch n {
	case flushes:
		return struct {
			*Recorder
			flusher
		}{rec, f}
	case hijacks:
		return struct {
			*Recorder
			hijacker
		}{rec, h}
	case flushes | hijacks:
		return struct {
			*Recorder
			flusher
			hijacker
		}{rec, f, h}
	case reads:
		return struct {
			*Recorder
			readerFrom
		}{rec, r}
	case flushes | reads:
		return struct {
			*Recorder
			flusher
			readerFrom
		}{rec, f, r}
	case hijacks | reads:
		return struct {
			*Recorder
			hijacker
			readerFrom
		}{rec, h, r}
	case flushes | hijacks | reads: // HTTP/1
		return struct {
			*Recorder
			flusher
			hijacker
			readerFrom
		}{rec, f, h, r}
	case pushes:
		return struct {
			*Recorder
			pusher
		}{rec, p}
	case flushes | pushes: // HTTP/2
		return struct {
			*Recorder
			flusher
			pusher
		}{rec, f, p}
	case hijacks | pushes:
		return struct {
			*Recorder
			hijacker
			pusher
		}{rec, h, p}
	case flushes | hijacks | pushes:
		return struct {
			*Recorder
			flusher
			hijacker
			pusher
		}{rec, f, h, p}
	case reads | pushes:
		return struct {
			*Recorder
			readerFrom
			pusher
		}{rec, r, p}
	case flushes | reads | pushes:
		return struct {
			*Recorder
			flusher
			readerFrom
			pusher
		}{rec, f, r, p}
	case hijacks | reads | pushes:
		return struct {
			*Recorder
			hijacker
			readerFrom
			pusher
		}{rec, h, r, p}
	case flushes | hijacks | reads | pushes:
		return struct {
			*Recorder
			flusher
			hijacker
			readerFrom
			pusher
		}{rec, f, h, r, p}
	}
	return rec
}

type flusher struct{ rec *Recorder }

func (f flusher) Flush() { _ = f.FlushError() }

// FlushError flushes for http.ResponseController, which prefers it to Flush.
func (f flusher) FlushError() error {
	f.rec.begin()
	return f.rec.note(http.NewResponseController(f.rec.ResponseWriter).Flush())
}

type hijacker struct{ rec *Recorder }

// Hijack hands the connection over. Bytes that the handler then writes to the connection
// are not counted.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := h.rec.ResponseWriter.(http.Hijacker).Hijack()
	if err == nil {
		h.rec.Hijacked = true
		if h.rec.Status == 0 {
			h.rec.Status = http.StatusSwitchingProtocols
		}
	}
	return conn, rw, err
}

type readerFrom struct{ rec *Recorder }

// ReadFrom lets io.Copy use sendfile. Its error does not say whether the source or the
// client failed. The error counts as a failure of the client, so the request is charged.
func (r readerFrom) ReadFrom(src io.Reader) (int64, error) {
	r.rec.begin()
	n, err := r.rec.ResponseWriter.(io.ReaderFrom).ReadFrom(src)
	r.rec.Bytes += n
	return n, r.rec.note(err)
}

type pusher struct{ rec *Recorder }

func (p pusher) Push(target string, o *http.PushOptions) error {
	return p.rec.ResponseWriter.(http.Pusher).Push(target, o)
}

// Body returns the body b of the request, and records whether it was read without an error.
func (rec *Recorder) Body(b io.ReadCloser) io.ReadCloser {
	rec.body.ReadCloser = b
	return &rec.body
}

// A body is the body of a request. It notes that a read failed, or that a read has not
// returned. The body may be read after the handler has returned: by the transport of a
// proxy, or by a handler that http.TimeoutHandler has abandoned.
type body struct {
	io.ReadCloser
	failed  atomic.Bool
	reading atomic.Int32 // calls of Read that have not returned
}

func (b *body) Read(p []byte) (int, error) {
	b.reading.Add(1)
	defer b.reading.Add(-1) // after failed was set
	n, err := b.ReadCloser.Read(p)
	if err != nil && err != io.EOF && err != http.ErrBodyReadAfterClose {
		b.failed.Store(true)
	}
	return n, err
}
