package tracking

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// An Error is an error reply from the server.
type Error string

func (e Error) Error() string { return string(e) }

// RedisError implements redis.Error.
func (e Error) RedisError() {}

// cause returns e, which also wraps errors.ErrUnsupported if the server cannot track keys. Other
// errors, such as LOADING, go away by themselves.
func (e Error) cause() error {
	for _, prefix := range [...]string{"ERR", "NOAUTH", "NOPERM", "NOPROTO", "WRONGPASS"} {
		if strings.HasPrefix(string(e), prefix) {
			return fmt.Errorf("%w: %w", errors.ErrUnsupported, e)
		}
	}
	return e
}

var errProtocol = errors.New("redisstore: the server does not speak RESP3")

// The constant most is the maximum number of bytes in a text, and of elements in a list.
const most = 1 << 26

// write writes a command. Flush returns any error.
func write(w *bufio.Writer, args []any) {
	fmt.Fprintf(w, "*%d\r\n", len(args))
	for _, a := range args {
		text, ok := a.([]byte)
		if !ok {
			text = fmt.Append(nil, a)
		}
		fmt.Fprintf(w, "$%d\r\n%s\r\n", len(text), text)
	}
}

// read reads a value: an int64, a string, an Error, a list of values, or nil. It returns true if
// the value is a push message rather than a reply.
func read(r *bufio.Reader) (v any, push bool, err error) {
	line, err := r.ReadSlice('\n')
	if err != nil {
		return nil, false, err
	}
	if len(line) < 3 {
		return nil, false, errProtocol
	}
	kind, text := line[0], string(line[1:len(line)-2])
	switch kind {
	case '+', ',', '(', '#':
		return text, false, nil
	case '-':
		return Error(text), false, nil
	case '_':
		return nil, false, nil
	}
	n, err := strconv.ParseInt(text, 10, 64)
	if err != nil || n > most {
		return nil, false, errProtocol
	}
	switch {
	case kind == ':':
		return n, false, nil
	case n < 0:
		return nil, false, nil
	}
	switch kind {
	case '$', '=':
		b := make([]byte, n+2)
		_, err := io.ReadFull(r, b)
		return string(b[:n]), false, err
	case '%':
		v, err = readList(r, 2*n)
	case '*', '~', '>':
		v, err = readList(r, n)
	default:
		err = errProtocol
	}
	return v, kind == '>', err
}

// readList reads n values.
func readList(r *bufio.Reader, n int64) (any, error) {
	var list []any
	for range n {
		v, _, err := read(r)
		if err != nil {
			return nil, err
		}
		list = append(list, v)
	}
	return list, nil
}
