package llm

import (
	"bytes"
	"io"
	"sync"
)

// A reader finds the usage in a response that is forwarded.
type reader interface {
	// write returns true once the response is complete.
	write(p []byte) (complete bool)
	usage() (Usage, bool)
}

// An object reads a response that is one JSON object.
type object struct{ scanner }

func (o *object) write(p []byte) bool {
	o.scanner.write(p)
	return o.closed
}

func (o *object) usage() (Usage, bool) { return o.found.usage() }

// events reads a response of server-sent events, whose data fields contain JSON. The last event
// marks the response as complete.
type events struct {
	scanner
	column int    // how many bytes of the line were read
	data   bool   // the line is a data field
	begin  []byte // the first bytes of the event's data
	after  byte   // the last byte
	n      int64  // number of complete events
}

const (
	dataField = "data:"
	doneData  = "[DONE]" // of the last event of Chat Completions
)

func (e *events) write(p []byte) (complete bool) {
	for len(p) > 0 {
		i := bytes.IndexAny(p, "\r\n")
		if i < 0 {
			e.line(p)
			e.after = 0
			return complete
		}
		e.line(p[:i])
		if crlf := e.after == '\r' && i == 0 && p[0] == '\n'; !crlf {
			complete = e.endLine() || complete
		}
		e.after, p = p[i], p[i+1:]
	}
	return complete
}

// line reads a piece of a line.
func (e *events) line(p []byte) {
	for ; len(p) > 0 && e.column < len(dataField); p = p[1:] {
		if e.column == 0 {
			e.data = true
		}
		e.data = e.data && p[0] == dataField[e.column]
		e.column++
	}
	if len(p) == 0 || !e.data {
		return
	}
	e.column++
	e.begin = append(e.begin, p[:min(len(p), 8-len(e.begin))]...)
	e.scanner.write(p)
}

// endLine ends a line. An empty line ends an event.
func (e *events) endLine() (complete bool) {
	if e.column > 0 {
		e.column = 0
		if e.data {
			e.scanner.write([]byte{'\n'})
		}
		return false
	}
	switch e.found.kind {
	case "message_stop", "response.completed", "response.incomplete", "response.failed":
		complete = true
	}
	if len(e.begin) > 0 {
		e.n++
	}
	complete = complete || string(bytes.TrimSpace(e.begin)) == doneData
	e.begin, e.found.kind = e.begin[:0], ""
	e.scanner = scanner{found: e.found, text: e.text}
	return complete
}

func (e *events) usage() (Usage, bool) { return e.found.usage() }

// A body is the body of a response whose usage is reported once, at its end. It may be closed during
// a Read.
type body struct {
	io.ReadCloser
	report  func(u Usage, whole bool)
	missing func() // called if the response is complete and states no usage

	mu       sync.Mutex
	reader   reader
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
	u, ok := b.reader.usage()
	if complete && !ok {
		b.missing()
	}
	if e, streamed := b.reader.(*events); streamed && !(complete && ok) {
		u.Output = max(u.Output, e.n)
	}
	b.report(u, complete && ok)
}
