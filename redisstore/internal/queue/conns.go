package queue

import (
	"errors"
	"net"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"weak"
)

// A Conns value holds a client's connections to one Redis. When a budget is used up, it shows
// whether Redis or the process is late. If the process is late, the kernel has already received the
// answer. If Redis is silent, the kernel has received nothing. This is true even if the goroutine
// that checks runs late. Each new connection is added to it.
type Conns struct {
	began time.Time // the int64 times in Conns are in ns since began

	read  atomic.Int64 // when an answer was last read
	quiet atomic.Bool  // since the last answer, fault has found that Redis is silent

	mu      sync.Mutex
	all     conns // for each connection, when the command was written whose answer the kernel had at the last check
	dials   int   // attempts to connect that are in progress
	dialed  int64 // when the last attempt began
	unheard int64 // when the last command was written whose deadline has passed without an answer
	gaveUp  int64 // when the deadline of that command passed
}

// The pointers in conns are weak, because go-redis does not close connections whose handshake has
// failed, but leaves them to the garbage collector.
type conns map[weak.Pointer[prompt]]int64

// NewConns returns a Conns value without connections.
func NewConns() *Conns { return &Conns{began: time.Now(), all: conns{}} }

func (c *Conns) since(t time.Time) int64 { return int64(t.Sub(c.began)) }

// add registers conn, and returns a prompt that wraps it.
func (c *Conns) add(conn net.Conn) net.Conn {
	socket := conn
	if c, ok := conn.(interface{ NetConn() net.Conn }); ok { // a TLS connection
		socket = c.NetConn()
	}
	keepalive(socket)
	p := &prompt{Conn: conn, conns: c, raw: rawOf(socket)}
	if p.raw != nil && canPeek {
		c.mu.Lock()
		c.all[weak.Make(p)] = 0
		c.mu.Unlock()
	}
	if raw, ok := conn.(syscall.Conn); ok { // so that the client can still test the socket
		return struct {
			*prompt
			syscall.Conn
		}{p, raw}
	}
	return p
}

// Dial calls dial to make an attempt to connect, which counts as in progress until dial returns,
// and adds the connection.
func (c *Conns) Dial(dial func() (net.Conn, error)) (net.Conn, error) {
	c.mu.Lock()
	c.dials++
	c.dialed = c.since(time.Now())
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.dials--
		c.mu.Unlock()
	}()
	conn, err := dial()
	if err != nil {
		return nil, err
	}
	return c.add(conn), nil
}

// A fault is the reason why there is no answer.
type fault int

const (
	unknown     fault = iota // the kernel cannot be queried, or a connection is being opened
	neither                  // it is too early to tell, or Redis answers other calls
	tooSoon                  // Redis has been silent for most of the time within which it must answer
	processLate              // the process has not written the command, or has not read the answer
	notHeard                 // Redis has not answered: the command was written, and nothing was received
)

// fault returns the reason why n calls, the first of which began at the given time, have no
// answers. Redis counts as silent only if it has not answered for at least the duration least. The
// given function reports whether the client may use connections that are unknown to c, or has no
// connections left. It is called without the lock of c, because the client's pool acquires that
// lock while holding its own when it closes connections.
func (c *Conns) fault(n int, sent time.Time, least time.Duration, others func(known int) bool) fault {
	if c == nil {
		return unknown
	}
	f, known := c.seen(n, sent, least)
	if f == processLate && known >= 0 && others(known) {
		return unknown
	}
	return f
}

// seen returns the fault as far as it can be determined from c alone. The second result is −1, or
// the number of connections of c. In the latter case, the fault is correct only if the client uses
// no other connections.
func (c *Conns) seen(n int, sent time.Time, least time.Duration) (f fault, known int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	first, now := c.since(sent), c.since(time.Now())
	gaveUp := c.quiet.Load() || c.unheard >= first && c.gaveUp-c.unheard >= int64(least)
	waiting, longest, answered, unread := c.look(first, now)
	silence := time.Duration(now - c.read.Load())
	if answered {
		silence = 0
	} else if !gaveUp {
		silence = min(silence, longest)
	}
	switch {
	case unread: // for at least a beat
		return processLate, -1
	case silence >= least:
		c.quiet.Store(true)
		return notHeard, -1
	case n == 0:
		return unknown, -1
	case silence >= least-least/10:
		return tooSoon, -1
	case gaveUp || longest >= least || waiting >= n:
		return neither, -1
	case c.dials > 0 || c.dialed >= first:
		return unknown, -1
	}
	return processLate, len(c.all)
}

// look examines the connections that wait for an answer, including those that are still being
// opened. It returns the number of connections whose command was written at the time first or
// later, and the longest wait of a connection for which the kernel has received nothing. If the
// kernel has received an answer for one of the connections, answered is true. If it already had the
// answer at the last check, unread is also true.
func (c *Conns) look(first, now int64) (waiting int, longest time.Duration, answered, unread bool) {
	for w, before := range c.all {
		p := w.Value()
		if p == nil {
			delete(c.all, w)
			continue
		}
		wrote := p.wrote.Load()
		if rest := p.answered.Load(); wrote == 0 && rest >= first && p.reading.Load() {
			wrote = rest
		}
		if wrote == 0 || !p.reading.Load() && now-wrote > int64(mostHeld) { // the answer will not be read
			continue
		}
		if wrote >= first {
			waiting++
		}
		if before == wrote || p.unread() { // the former also after the reader has taken the answer from the kernel
			answered, unread = true, unread || before == wrote
			c.all[w] = wrote
		} else {
			longest = max(longest, time.Duration(now-wrote))
		}
	}
	return waiting, longest, answered, unread
}

// gaveUpOn records that the deadline of a command has passed without an answer.
func (c *Conns) gaveUpOn(wrote, now int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if wrote > c.unheard {
		c.unheard, c.gaveUp = wrote, now
	}
}

// drop closes the idle connections that were last used before the given time. A connection that was
// used at that time got no answer, so the network may have forgotten all these connections.
func (c *Conns) drop(before time.Time) (left int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for w := range c.all {
		p := w.Value()
		if p == nil {
			continue
		}
		if p.reading.Load() || p.answered.Load() >= c.since(before) || !p.state.CompareAndSwap(idle, dropped) {
			left++
			continue
		}
		delete(c.all, w)
		_ = p.Conn.Close()
	}
	return left
}

// errDropped is returned for a connection that drop has closed. The command was not sent.
var errDropped = errors.New("redisstore: the connection was closed, because the network seems to have forgotten it")

// rawOf returns the socket of a connection without TLS, or nil if there is none.
func rawOf(conn net.Conn) syscall.RawConn {
	if c, ok := conn.(syscall.Conn); ok {
		if raw, err := c.SyscallConn(); err == nil {
			return raw
		}
	}
	return nil
}

// keepalive turns on TCP keep-alive, which detects within half a minute that the network has
// forgotten a connection. Keep-alive packets also prevent load balancers from forgetting a
// connection, which happens after minutes without a packet.
func keepalive(conn net.Conn) {
	if c, ok := conn.(*net.TCPConn); ok {
		_ = c.SetKeepAliveConfig(net.KeepAliveConfig{
			Enable: true, Idle: 15 * time.Second, Interval: 5 * time.Second, Count: 3,
		})
	}
}
