// Package recorder records what a handler answers, and whether the client received it.
package recorder

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"sync/atomic"
)

// A Recorder is a ResponseWriter that records the status and the size of a response, and whether
// the client sent its whole request and received the response. Only its ResponseWriter need be set.
type Recorder struct {
	http.ResponseWriter
	Status   int // 0 if nothing was sent
	Bytes    int64
	Hijacked bool // the handler has taken the connection

	// Default is the status of a response for which the handler sets none; 0 means 200.
	Default int

	// Deliberate reports whether the client's protocol requires this status.
	Deliberate bool

	// Final, if not nil, is called before a header is sent, interim or final.
	Final func()

	Interim bool // the handler has sent a response with a status below 200, other than 101
	failed  bool // a write to the client failed
	body    body
}

// Header calls Final if the connection is hijacked, because httputil.ReverseProxy then takes the
// header that Header returns and writes it to the connection.
func (rec *Recorder) Header() http.Header {
	if rec.Hijacked && rec.Final != nil {
		rec.Final()
	}
	return rec.ResponseWriter.Header()
}

func (rec *Recorder) WriteHeader(status int) {
	if status >= 200 || status == http.StatusSwitchingProtocols {
		rec.record(status)
	} else if rec.Interim = true; rec.Final != nil {
		rec.Final()
	}
	rec.ResponseWriter.WriteHeader(status)
}

// record records the status of the final header, which is about to be sent.
func (rec *Recorder) record(status int) {
	if rec.Status != 0 {
		return
	}
	rec.Status = status
	if rec.Final != nil {
		rec.Final()
	}
}

func (rec *Recorder) Write(p []byte) (int, error) {
	rec.Begin()
	n, err := rec.ResponseWriter.Write(p)
	rec.Bytes += int64(n)
	return n, rec.note(err)
}

// Unwrap lets http.ResponseController use the optional methods of the ResponseWriter. Flushing and
// hijacking are recorded, even if the ResponseWriter offers these methods only through its own
// Unwrap.
func (rec *Recorder) Unwrap() http.ResponseWriter { return unwrapped{rec} }

type unwrapped struct{ *Recorder }

func (u unwrapped) Unwrap() http.ResponseWriter { return u.ResponseWriter }

func (u unwrapped) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	return hijacker{u.Recorder}.Hijack()
}

func (u unwrapped) FlushError() error {
	if !canFlush(u.ResponseWriter) {
		return http.ErrNotSupported // the handler has sent nothing, and can still choose a status
	}
	return flusher{u.Recorder}.FlushError()
}

// canFlush reports whether http.ResponseController can flush w.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch t := w.(type) {
		case http.Flusher, interface{ FlushError() error }:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = t.Unwrap()
		default:
			return false
		}
	}
}

// Begin sends the status if the handler has not done so. Begin is called before anything else is
// sent, and at the end.
func (rec *Recorder) Begin() {
	switch {
	case rec.Status != 0:
	case rec.Default != 0:
		rec.WriteHeader(rec.Default)
	default:
		rec.record(http.StatusOK)
	}
}

// SetDeliberate sets Deliberate in the Recorder behind w, if there is one.
func SetDeliberate(w http.ResponseWriter) {
	if r, ok := w.(interface{ setDeliberate() }); ok {
		r.setDeliberate()
	}
}

func (rec *Recorder) setDeliberate() { rec.Deliberate = true }

// note records that a write failed, unless the handler caused the error.
func (rec *Recorder) note(err error) error {
	switch {
	case err == nil, errors.Is(err, http.ErrHijacked):
	case errors.Is(err, http.ErrContentLength), errors.Is(err, http.ErrBodyNotAllowed):
	default:
		rec.failed = true
	}
	return err
}

// HungUp reports whether the client failed to send its request or to take the answer.
// net/http does not end the context of a request whose body is malformed or never arrives.
func (rec *Recorder) HungUp() bool {
	return rec.failed || rec.body.reading.Load() > 0 || rec.body.failed.Load()
}

// Writer returns rec with the optional interfaces of its ResponseWriter and no others, because a
// handler that finds a Flusher relies on that Flusher. There is a type for each server of net/http,
// and for the interfaces that middleware usually preserves. A handler finds all other interfaces
// through Unwrap.
func (rec *Recorder) Writer() http.ResponseWriter {
	_, flushes := rec.ResponseWriter.(http.Flusher)
	_, hijacks := rec.ResponseWriter.(http.Hijacker)
	_, reads := rec.ResponseWriter.(io.ReaderFrom)
	_, pushes := rec.ResponseWriter.(http.Pusher)
	f, h, r, p := flusher{rec}, hijacker{rec}, readerFrom{rec}, pusher{rec}
	switch {
	case flushes && hijacks && reads: // HTTP/1
		return struct {
			*Recorder
			flusher
			hijacker
			readerFrom
		}{rec, f, h, r}
	case flushes && hijacks:
		return struct {
			*Recorder
			flusher
			hijacker
		}{rec, f, h}
	case flushes && pushes: // HTTP/2
		return struct {
			*Recorder
			flusher
			pusher
		}{rec, f, p}
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
	}
	return rec
}

type flusher struct{ rec *Recorder }

func (f flusher) Flush() { _ = f.FlushError() }

// FlushError flushes for http.ResponseController, which prefers this method to Flush.
func (f flusher) FlushError() error {
	f.rec.Begin()
	return f.rec.note(http.NewResponseController(f.rec.ResponseWriter).Flush())
}

type hijacker struct{ rec *Recorder }

// Hijack hands the connection over. Bytes that the handler then writes to the connection
// are not counted.
func (h hijacker) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	conn, rw, err := http.NewResponseController(h.rec.ResponseWriter).Hijack()
	if err == nil {
		h.rec.Hijacked = true
		if h.rec.Status == 0 {
			h.rec.Status = http.StatusSwitchingProtocols
		}
	}
	return conn, rw, err
}

type readerFrom struct{ rec *Recorder }

// ReadFrom lets io.Copy use sendfile. An error may come from the source or from the client. Either
// error counts as a failure of the client, so the request is charged.
func (r readerFrom) ReadFrom(src io.Reader) (int64, error) {
	r.rec.Begin()
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

// A body is the body of a request, and records that a read failed or has not returned. The body may
// be read after the handler has returned: by the transport of a proxy, or by a handler that
// http.TimeoutHandler has abandoned.
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

// Inner returns a copy of r for a handler, and the context of the copy, which CarryBack takes.
func Inner(r *http.Request) (inner *http.Request, ctx context.Context) {
	ctx = &struct{ context.Context }{r.Context()} // a pointer, even if the context of r cannot be compared
	return r.WithContext(ctx), ctx
}

// CarryBack copies to r what a handler has written into inner, because net/http removes the files
// of r.MultipartForm, and outer handlers read r.Pattern. The inner request must be a copy of r with
// the context ctx, which must be a pointer. If ctx is nil, r keeps its context. CarryBack writes
// nothing if the handler has written nothing, because a goroutine of an outer handler may read r.
//
// The request r keeps its body. If r is the request of net/http, and the handler has closed the body
// early, net/http closes the connection only if it finds its own body in r. Otherwise it would take
// the rest of the body for further requests.
func CarryBack(r, inner *http.Request, ctx context.Context) {
	hasContext := ctx == nil || inner.Context() == ctx
	if hasContext && inner.MultipartForm == r.MultipartForm && inner.URL == r.URL && (inner.Form == nil) == (r.Form == nil) &&
		inner.Pattern == r.Pattern && inner.Method == r.Method && inner.Host == r.Host && inner.RemoteAddr == r.RemoteAddr {
		return
	}
	written := *inner // and its path values, which have no names here
	if ctx = r.Context(); !hasContext {
		ctx = inner.Context()
	}
	written.Body = r.Body
	if r.Trailer != nil {
		written.Trailer = r.Trailer // the server may have set it meanwhile
	}
	*r = *written.WithContext(ctx)
}
