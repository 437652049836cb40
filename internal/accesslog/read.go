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

// Read adds the lines of a log, which may be compressed by gzip. If most is not 0, it reads no more
// than so many lines. A line that is too long counts as one that can't be read. Read returns the
// error of in, or of Add.
func (r *Replay) Read(in io.Reader, most int64) error {
	b := bufio.NewReaderSize(in, maxLine)
	if start, _ := b.Peek(2); string(start) == "\x1f\x8b" {
		z, err := gzip.NewReader(b)
		if err != nil {
			return err
		}
		b = bufio.NewReaderSize(z, maxLine)
	}
	for most == 0 || r.report.Lines < most {
		line, err := b.ReadSlice('\n')
		switch {
		case errors.Is(err, bufio.ErrBufferFull):
			r.report.Lines++
			r.Unreadable(errTooLong)
			for errors.Is(err, bufio.ErrBufferFull) {
				_, err = b.ReadSlice('\n')
			}
		case len(line) > 0:
			if line[len(line)-1] == '\n' {
				line = line[:len(line)-1]
			}
			if err := r.Add(string(line)); err != nil {
				return err
			}
		}
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
	}
	return nil
}
