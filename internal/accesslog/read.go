package accesslog

import (
	"bufio"
	"compress/gzip"
	"errors"
	"fmt"
	"io"
)

// maxLine is the largest length of a line in bytes. A server bounds the line of a request at some
// kilobytes.
const maxLine = 1 << 18

var errTooLong = fmt.Errorf("the line has more than %d KiB", maxLine>>10)

// Read adds the lines of a log: see Open. It returns the error of Open, of in, or of Add.
func (r *Replay) Read(in io.Reader) error {
	err := r.Open(in)
	for more := err == nil; more; {
		more, err = r.Next(1 << 20)
	}
	return err
}

// Open begins to read a log, which may be compressed by gzip.
func (r *Replay) Open(in io.Reader) error {
	r.in = bufio.NewReaderSize(in, maxLine)
	if start, _ := r.in.Peek(2); string(start) == "\x1f\x8b" {
		z, err := gzip.NewReader(r.in)
		if err != nil {
			return err
		}
		r.in = bufio.NewReaderSize(z, maxLine)
	}
	return nil
}

// Next adds up to n further lines of the log, and reports whether there are more of them. A
// line that is too long counts as one that can't be read.
func (r *Replay) Next(n int) (more bool, err error) {
	for range n {
		line, err := r.in.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			r.report.Lines++
			r.Unreadable(errTooLong)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = r.in.ReadSlice('\n')
			}
		case len(line) > 0:
			if line[len(line)-1] == '\n' {
				line = line[:len(line)-1]
			}
			if err := r.Add(string(line)); err != nil {
				return false, err
			}
		}
		if err == io.EOF {
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if _, err = r.in.Peek(1); err == io.EOF {
		return false, nil
	}
	return err == nil, err
}
