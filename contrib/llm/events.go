package llm

import (
	"bytes"
	"io"
	"sync"
)

// A reader finds the usage in a response while the response is being forwarded. The response is a
// JSON object or, if stream is true, a sequence of server-sent events with JSON in their data
// fields. After the last event, the response is complete.
type reader struct {
	scanner
	stream bool
	column int    // how many bytes of the current line were read
	data   bool   // the current line is a data field
	begin  []byte // the first bytes of the event's data
	after  byte   // the last byte read
	n      int64  // number of complete events
	begun  bool   // a stream of Messages, which states usage from its first event on, lacks its last event
}

const (
	dataField = "data:"
	doneData  = "[DONE]" // the data of the last event of Chat Completions
)

// write returns true once the response is complete.
func (r *reader) write(p []byte) (complete bool) {
	if !r.stream {
		r.scanner.write(p)
		return r.closed
	}
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			r.line(p)
			r.after = 0
			return complete
		}
		r.line(p[:i])
		if crlf := r.after == '\r' && i == 0 && p[0] == '\n'; !crlf {
			complete = r.endLine() || complete
		}
		r.after, p = p[i], p[i+1:]
	}
	return complete
}

// line reads a part of a line.
func (r *reader) line(p []byte) {
	for ; len(p) > 0 && r.column < len(dataField); p = p[1:] {
		if r.column == 0 {
			r.data = true
		}
		r.data = r.data && p[0] == dataField[r.column]
		r.column++
	}
	if len(p) == 0 || !r.data {
		return
	}
	r.column++
	r.begin = append(r.begin, p[:min(len(p), 8-len(r.begin))]...)
	r.scanner.write(p)
}

// endLine ends a line. An empty line ends an event.
func (r *reader) endLine() (complete bool) {
	if r.column > 0 {
		r.column = 0
		if r.data {
			r.scanner.write([]byte{'\n'})
		}
		return false
	}
	switch r.found.kind {
	case "message_start":
		r.begun = true
	case "message_stop", "response.completed", "response.incomplete", "response.failed":
		r.begun, complete = false, true
	}
	if len(r.begin) > 0 {
		r.n++
	}
	complete = complete || string(bytes.TrimSpace(r.begin)) == doneData
	r.begin, r.found.kind = r.begin[:0], ""
	r.scanner = scanner{found: r.found, text: r.text}
	return complete
}

// lacksEnd reports whether a response that ends here was cut short, also if the connection ended
// without an error.
func (r *reader) lacksEnd() bool { return r.begun || !r.stream && !r.closed }

// A body is a response body at whose end the usage is reported once. Close may be called during a
// Read.
type body struct {
	io.ReadCloser
	report  func(u Usage, whole bool)
	missing func() // called if a complete response does not state its usage

	mu       sync.Mutex
	reader   *reader
	reported bool
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	b.mu.Lock()
	defer b.mu.Unlock()
	if complete := b.reader.write(p[:n]); complete || err == io.EOF {
		b.end(true)
	}
	return n, err
}

func (b *body) Close() error {
	err := b.ReadCloser.Close()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.end(false)
	return err
}

func (b *body) end(complete bool) {
	if b.reported {
		return
	}
	b.reported = true
	u, ok := b.reader.found.usage()
	if complete && !ok {
		b.missing()
	}
	whole := complete && ok && !b.reader.lacksEnd()
	if !whole {
		u.Output = max(u.Output, b.reader.n)
	}
	b.report(u, whole)
}
