package queue

import (
	"errors"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"weak"
)

// A prompt is a connection that reads an answer soon after it has arrived, even if the process is
// overloaded. An overloaded process learns late which connections have data, because the runtime
// polls the kernel only when no goroutine can run, and then thousands of other connections may come
// first. Timers of the runtime remain punctual. A prompt therefore also uses timers to check for
// the answer: a deadline ends a call to Read, which the prompt then repeats.
//
// Only the goroutine that reads may set deadlines, as go-redis does.
type prompt struct {
	net.Conn
	conns    *Conns
	raw      syscall.RawConn // the connection's socket; nil if there is none
	deadline time.Time       // the deadline that the client has set

	state    atomic.Int32
	reading  atomic.Bool
	wrote    atomic.Int64 // when the last command was written (see Conns.since); 0 after the answer
	answered atomic.Int64 // when the last answer was read
}

// These are the states of a prompt. A goroutine that changes the state from idle may use or close
// the connection.
const (
	idle int32 = iota
	used
	dropped
)

// firstLook is the time from a call to Read to the first check, and also the shortest time between
// two checks. A process that is not busy gets most answers before the first check.
const firstLook = time.Millisecond

func (p *prompt) SetDeadline(t time.Time) error {
	p.deadline = t
	return p.Conn.SetDeadline(t)
}

func (p *prompt) SetReadDeadline(t time.Time) error {
	p.deadline = t
	return nil
}

// Write fails immediately if drop has closed the connection.
func (p *prompt) Write(b []byte) (int, error) {
	if !p.state.CompareAndSwap(idle, used) && p.state.Load() == dropped {
		return 0, errDropped
	}
	n, err := p.Conn.Write(b)
	p.wrote.Store(p.conns.since(time.Now()))
	return n, err
}

// After each check, Read waits for a quarter of the time that has passed since the call began, and
// checks again. An answer that has arrived in time is read even if the process is suspended until
// after the deadline.
func (p *prompt) Read(b []byte) (int, error) {
	p.reading.Store(true)
	defer p.reading.Store(false)
	n, err := p.read(b)
	switch now := p.conns.since(time.Now()); {
	case n > 0:
		p.answered.Store(now)
		p.conns.read.Store(now)
		if p.conns.quiet.Load() {
			p.conns.quiet.Store(false)
		}
		p.wrote.Store(0)
		p.state.CompareAndSwap(used, idle)
	case errors.Is(err, os.ErrDeadlineExceeded):
		p.conns.gaveUpOn(p.wrote.Load(), now)
	}
	return n, err
}

func (p *prompt) read(b []byte) (int, error) {
	begin := time.Now()
	for now := begin; ; now = time.Now() {
		look := now.Add(max(firstLook, now.Sub(begin)/4))
		last := !p.deadline.IsZero() && !look.Before(p.deadline)
		if last {
			look = now.Add(max(firstLook, p.deadline.Sub(now)))
		}
		if p.Conn.SetReadDeadline(look) != nil { // conn does not support deadlines
			return p.Conn.Read(b)
		}
		if n, err := p.Conn.Read(b); n > 0 || last || !errors.Is(err, os.ErrDeadlineExceeded) {
			return n, err
		}
	}
}

func (p *prompt) Close() error {
	p.conns.mu.Lock()
	delete(p.conns.all, weak.Make(p))
	p.conns.mu.Unlock()
	return p.Conn.Close()
}
