package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

const (
	// doTimeout bounds the time of one Do, including the connection. A test needs the reply, and a node of a
	// Cluster writes some changes to its disk first, which may be busy.
	doTimeout = 10 * time.Second

	// pollTimeout bounds the time of a command that is sent again, also to a server that is paused.
	pollTimeout = time.Second
)

// Do sends one command on a new connection, so SELECT, MULTI and WAIT have no effect on
// later commands. It returns the reply: a string, an int64, a []any of these, or nil. If
// the whole reply is an error, Do returns that error as err. An error inside an
// array stays there, as an element of type error. Do does not authenticate, and takes at
// most ten seconds. Any goroutine may call Do.
func (p *Proc) Do(args ...string) (reply any, err error) { return p.do(doTimeout, args) }

func (p *Proc) do(within time.Duration, args []string) (reply any, err error) {
	reply, err = do(p.Addr(), within, args)
	if e, ok := reply.(error); ok {
		reply, err = nil, e
	}
	if err != nil {
		return nil, fmt.Errorf("redistest: %s: %w", p.Addr(), err)
	}
	return reply, nil
}

// text sends a command as Do does, for polling. It returns the reply as one string, or ""
// after an error.
func (p *Proc) text(args ...string) string {
	v, err := p.do(pollTimeout, args)
	if err != nil {
		return ""
	}
	return fmt.Sprint(v)
}

func do(addr string, within time.Duration, args []string) (any, error) {
	end := time.Now().Add(within)
	c, err := net.DialTimeout("tcp", addr, within)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	if err := c.SetDeadline(end); err != nil {
		return nil, err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(&b, "$%d\r\n%s\r\n", len(a), a)
	}
	if _, err := io.WriteString(c, b.String()); err != nil {
		return nil, err
	}
	return readReply(bufio.NewReader(c))
}

// readReply reads one RESP2 value: https://redis.io/docs/latest/develop/reference/protocol-spec/
func readReply(r *bufio.Reader) (any, error) {
	line, err := r.ReadString('\n')
	if err != nil {
		return nil, err
	}
	line = strings.TrimSuffix(line, "\r\n")
	if line == "" {
		return nil, errors.New("the reply is an empty line")
	}
	kind, rest := line[0], line[1:]
	switch kind {
	case '+':
		return rest, nil
	case '-':
		return errors.New(rest), nil
	}
	n, err := strconv.ParseInt(rest, 10, 64)
	switch {
	case err != nil:
		return nil, fmt.Errorf("reply %q: %w", line, err)
	case kind == ':':
		return n, nil
	case kind == '$' && n >= 0:
		b := make([]byte, n+2)
		if _, err := io.ReadFull(r, b); err != nil {
			return nil, err
		}
		return string(b[:n]), nil
	case kind == '*' && n >= 0:
		list := make([]any, n)
		for i := range list {
			if list[i], err = readReply(r); err != nil {
				return nil, err
			}
		}
		return list, nil
	case n == -1 && (kind == '$' || kind == '*'):
		return nil, nil
	}
	return nil, fmt.Errorf("reply %q: unknown type", line)
}
