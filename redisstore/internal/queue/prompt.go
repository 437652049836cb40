package queue

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
)

// A prompt is a connection that reads an answer soon after it has come, even if the process
// has too much to do. Such a process learns late which connections have data, because the
// runtime asks the kernel only when no goroutine can run, and then thousands of other
// connections may come first. Timers of the runtime stay prompt. So a prompt also looks for
// the answer by a timer: a deadline ends the call of Read, which then begins again.
//
// Only the goroutine that reads may set deadlines. go-redis keeps to this.
type prompt struct {
	net.Conn
	deadline time.Time // that the client has set
}

// firstLook is the time from the call of Read to the first look, and also the shortest time
// between two looks. An unhurried process has most answers earlier.
const firstLook = time.Millisecond

// promptly returns a prompt. The client can test the socket of the prompt if it can test the
// socket of conn.
func Promptly(conn net.Conn) net.Conn {
	p := &prompt{Conn: conn}
	if raw, ok := conn.(syscall.Conn); ok {
		return struct {
			*prompt
			syscall.Conn
		}{p, raw}
	}
	return p
}

func (p *prompt) SetDeadline(t time.Time) error {
	p.deadline = t
	return p.Conn.SetDeadline(t)
}

func (p *prompt) SetReadDeadline(t time.Time) error {
	p.deadline = t
	return nil
}

// Read looks again after a quarter of the time that has passed. An answer that has come in
// time is read even if the process is stopped until after the deadline.
func (p *prompt) Read(b []byte) (int, error) {
	begin := time.Now()
	for now := begin; ; now = time.Now() {
		look := now.Add(max(firstLook, now.Sub(begin)/4))
		last := !p.deadline.IsZero() && !look.Before(p.deadline)
		if last {
			look = now.Add(max(firstLook, p.deadline.Sub(now)))
		}
		if p.Conn.SetReadDeadline(look) != nil { // conn has no deadlines
			return p.Conn.Read(b)
		}
		if n, err := p.Conn.Read(b); n > 0 || last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}
