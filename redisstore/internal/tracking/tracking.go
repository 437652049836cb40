// Package tracking provides connections that Redis uses to report changes of keys: see
// https://redis.io/docs/latest/develop/reference/client-side-caching/. On each connection, Redis
// reports changes of the keys that were read on that connection. The protocol is RESP3, in which
// replies and reports arrive on the same connection in the order of events. A reply therefore
// proves that all earlier changes have been reported.
//
// Connections of go-redis are not suitable, because go-redis reads from them only while a command
// is in progress.
package tracking

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

const (
	heartbeat = 2 * time.Second // while keys are tracked: the time between two commands that test the connection
	silence   = 5 * time.Second // a connection is closed if a reply takes longer
	idle      = time.Minute     // a connection is closed after this time without tracked keys

	// Most is the maximum number of keys that a connection tracks. For a tracked key, Redis needs
	// 115 bytes, and 73 bytes for each further connection that tracks the key.
	Most = 4_096
)

// Options are the options of a connection.
type Options struct {
	// Setup contains the commands that begin a connection, such as HELLO 3.
	Setup [][]any

	// Key is a key that is not used for anything else, and Change changes this key through another
	// connection. Both are used to test whether the server reports changes of keys that scripts
	// have read.
	Key    string
	Change func(ctx context.Context) error

	// Changed is called with the name of a key that has changed, or with all set to true if any key
	// may have changed.
	Changed func(name string, all bool)

	// Proven is called after each reply.
	Proven func()

	// Lost is called when a connection that tracks keys is lost, or is closed.
	Lost func()

	// Useless reports whether the connection is no longer needed.
	Useless func() bool
}

// A Conn is a connection that tracks the keys that its scripts have read.
type Conn struct {
	o       Options
	conn    net.Conn
	in      *bufio.Reader
	out     *bufio.Writer
	replies chan any
	closed  chan struct{}
	once    sync.Once

	calls sync.Mutex // held during Do

	mu     sync.Mutex
	keys   map[string]struct{} // the tracked keys
	proven time.Time           // all changes before this time have been reported
}

// ErrSilent is returned if a server accepts CLIENT TRACKING but reports nothing. Like the error for
// a server that refuses a Setup command, it wraps errors.ErrUnsupported.
var ErrSilent = fmt.Errorf("redisstore: the server accepts CLIENT TRACKING, but reports no changes of what scripts read: %w",
	errors.ErrUnsupported)

// beat is a command whose reply proves that earlier changes have been reported. Unlike PING, the
// command is one that the store needs anyway, so the Redis user has the permission for it.
var beat = []any{"time"}

var errTimeout = errors.New("redisstore: no reply on the connection that tracks keys")

// Open prepares a new connection. If an error occurs, Open closes the connection.
func Open(ctx context.Context, conn net.Conn, o Options) (*Conn, error) {
	c := &Conn{o: o, conn: conn, in: bufio.NewReader(conn), out: bufio.NewWriter(conn),
		replies: make(chan any), closed: make(chan struct{}), keys: map[string]struct{}{}, proven: time.Now()}
	if deadline, ok := ctx.Deadline(); ok {
		_ = conn.SetDeadline(deadline)
	}
	if err := c.prepare(ctx); err != nil {
		_ = conn.Close()
		return nil, err
	}
	_ = conn.SetDeadline(time.Time{})
	go c.read()
	go c.beats()
	return c, nil
}

// prepare sends the Setup commands, and tests whether the server reports a change.
func (c *Conn) prepare(ctx context.Context) error {
	test := []any{"eval", "return redis.call('GET', KEYS[1])", 1, c.o.Key}
	for _, cmd := range append(c.o.Setup, test) {
		write(c.out, cmd)
		v, _, err := c.receive()
		if err != nil {
			return err
		}
		if e, ok := v.(Error); ok {
			return e.cause()
		}
	}
	if err := c.o.Change(ctx); err != nil {
		return err
	}
	write(c.out, beat) // the report must arrive before the reply to this command
	v, push, err := c.receive()
	if err == nil && !(push && isReport(v)) {
		return ErrSilent
	}
	if err == nil {
		_, _, err = read(c.in)
	}
	return err
}

func (c *Conn) receive() (v any, push bool, err error) {
	if err := c.out.Flush(); err != nil {
		return nil, false, err
	}
	return read(c.in)
}

// Close closes the connection.
func (c *Conn) Close() {
	c.once.Do(func() {
		close(c.closed)
		_ = c.conn.Close()
		c.mu.Lock()
		n := len(c.keys)
		c.keys = nil
		c.mu.Unlock()
		if n > 0 {
			c.o.Lost()
		}
	})
}

// Proven returns a time before which all changes of tracked keys have been reported. It returns
// false if no keys are tracked.
func (c *Conn) Proven() (at time.Time, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.proven, len(c.keys) > 0
}

// Closed reports whether the connection is closed or lost.
func (c *Conn) Closed() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.keys == nil
}

// Forget records that a key is no longer tracked, or that the command to read the key has failed.
func (c *Conn) Forget(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.keys, name)
}

// Track records that the next command reads a key. It returns false if the connection already
// tracks Most keys, or is closed.
func (c *Conn) Track(name string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.keys == nil || len(c.keys) >= Most {
		return false
	}
	if len(c.keys) == 0 {
		c.proven = time.Now()
	}
	c.keys[name] = struct{}{}
	return true
}

// Do sends commands and returns the replies. An error reply is returned as an Error.
func (c *Conn) Do(cmds ...[]any) ([]any, error) {
	c.calls.Lock()
	defer c.calls.Unlock()
	sent := time.Now()
	_ = c.conn.SetWriteDeadline(sent.Add(silence))
	for _, cmd := range cmds {
		write(c.out, cmd)
	}
	if err := c.out.Flush(); err != nil {
		c.Close()
		return nil, err
	}
	timer := time.NewTimer(silence)
	defer timer.Stop()
	replies := make([]any, len(cmds))
	for i := range cmds {
		select {
		case replies[i] = <-c.replies:
		case <-c.closed:
			return nil, net.ErrClosed
		case <-timer.C:
			c.Close()
			return nil, errTimeout
		}
	}
	c.mu.Lock()
	c.proven = sent
	c.mu.Unlock()
	c.o.Proven()
	return replies, nil
}

// read reads replies and reports until the connection is lost.
func (c *Conn) read() {
	defer c.Close()
	for {
		v, push, err := read(c.in)
		if err != nil {
			return
		}
		if push {
			c.report(v)
			continue
		}
		select {
		case c.replies <- v:
		case <-c.closed:
			return
		}
	}
}

// report handles a report of changes. Redis no longer tracks the keys in a report.
func (c *Conn) report(v any) {
	if !isReport(v) {
		return
	}
	names, ok := v.([]any)[1].([]any)
	if !ok { // no names, as after FLUSHALL
		c.mu.Lock()
		clear(c.keys)
		c.mu.Unlock()
		c.o.Changed("", true)
	}
	for _, name := range names {
		name, _ := name.(string)
		c.Forget(name)
		c.o.Changed(name, false)
	}
}

func isReport(v any) bool {
	list, _ := v.([]any)
	return len(list) == 2 && list[0] == "invalidate"
}

// beats sends the command beat periodically, to prove that all changes have been reported.
func (c *Conn) beats() {
	ticker := time.NewTicker(heartbeat)
	defer ticker.Stop()
	used := time.Now()
	for {
		select {
		case <-c.closed:
			return
		case <-ticker.C:
		}
		switch _, tracks := c.Proven(); {
		case c.o.Useless():
			c.Close()
		case tracks:
			used = time.Now()
			_, _ = c.Do(beat)
		case time.Since(used) > idle:
			c.Close()
		}
	}
}
