package llm

import (
	"bytes"
	"io"
)

// A reader finds the usage in an answer that passes through.
type reader interface {
	// write returns true once the answer is complete.
	write(p []byte) (complete bool)
	usage() (Usage, bool)
}

// An object reads an answer that is one JSON object.
type object struct{ scanner }

func (o *object) write(p []byte) bool {
	o.scanner.write(p)
	return o.closed
}

func (o *object) usage() (Usage, bool) { return o.found.usage() }

// An events reads an answer of server-sent events, whose data are JSON. The last event says that
// the answer is complete.
type events struct {
	scanner
	column int    // how many bytes of the line have come
	data   bool   // the line is one of data
	begin  []byte // of the data of the event
	after  byte   // the last byte
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
	complete = complete || string(bytes.TrimSpace(e.begin)) == doneData
	e.begin, e.found.kind = e.begin[:0], ""
	e.scanner = scanner{found: e.found, text: e.text}
	return complete
}

func (e *events) usage() (Usage, bool) { return e.found.usage() }

// A body is the body of an answer whose usage is reported once it is complete.
type body struct {
	io.ReadCloser
	reader
	report func(u Usage, ok bool) // nil once it was called
}

func (b *body) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if b.report != nil && (b.write(p[:n]) || err == io.EOF) {
		b.report(b.usage())
		b.report = nil
	}
	return n, err
}
