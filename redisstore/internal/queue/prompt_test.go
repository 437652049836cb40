package queue

import (
	"errors"
	"net"
	"os"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// TestPromptDeadlines: a prompt returns data when they come, and keeps the deadline to a
// millisecond.
func TestPromptDeadlines(t *testing.T) {
	const ms = time.Millisecond
	for _, c := range []struct {
		comes, deadline, want time.Duration // 0: never, none
	}{
		{300 * time.Microsecond, 50 * ms, 300 * time.Microsecond},
		{33 * ms, 50 * ms, 33 * ms},
		{0, 50 * ms, 50 * ms},
		{0, 500 * time.Microsecond, ms},
		{10 * time.Minute, 0, 10 * time.Minute},
	} {
		synctest.Test(t, func(t *testing.T) {
			here, there := net.Pipe()
			defer here.Close()
			if c.comes > 0 {
				go func() {
					time.Sleep(c.comes)
					_, _ = there.Write([]byte("x"))
				}()
			}
			p := Promptly(here)
			if c.deadline > 0 {
				_ = p.SetReadDeadline(time.Now().Add(c.deadline))
			}
			begin := time.Now()
			n, err := p.Read(make([]byte, 1))
			if took := time.Since(begin); took != c.want || (n == 1) != (c.comes > 0) || n == 0 && !errors.Is(err, os.ErrDeadlineExceeded) {
				t.Errorf("%+v: got %d bytes, error %v after %v", c, n, err, took)
			}
		})
	}
}

// A stopped is a connection whose process is stopped for a second in the first call of Read.
type stopped struct {
	net.Conn
	reads    int
	deadline time.Time
}

func (s *stopped) SetReadDeadline(t time.Time) error { s.deadline = t; return nil }

func (s *stopped) Read(b []byte) (int, error) {
	if s.reads++; s.reads == 1 {
		time.Sleep(time.Second)
	}
	if !time.Now().Before(s.deadline) {
		return 0, os.ErrDeadlineExceeded
	}
	return len(b), nil
}

// TestPromptReadsWhatIsThere: an answer in the socket is read although the process was stopped
// until after the deadline.
func TestPromptReadsWhatIsThere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p := Promptly(&stopped{})
		_ = p.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		if n, err := p.Read(make([]byte, 1)); n != 1 || err != nil {
			t.Errorf("got %d bytes, error %v; want the answer", n, err)
		}
	})
}

// A plainConn has no deadlines, as a channel of SSH.
type plainConn struct{ net.Conn }

func (plainConn) SetReadDeadline(time.Time) error { return errors.ErrUnsupported }
func (plainConn) Read(b []byte) (int, error)      { return len(b), nil }

// TestPromptKinds: a prompt reads from connections without deadlines too, and lets the client
// test the sockets that it could test before.
func TestPromptKinds(t *testing.T) {
	if n, err := Promptly(plainConn{}).Read(make([]byte, 1)); n != 1 || err != nil {
		t.Errorf("without deadlines: got %d bytes, error %v", n, err)
	}
	for _, c := range []struct {
		conn net.Conn
		want bool
	}{{plainConn{}, false}, {&net.TCPConn{}, true}, {&net.UnixConn{}, true}} {
		if _, got := Promptly(c.conn).(syscall.Conn); got != c.want {
			t.Errorf("%T: got %v for whether the socket can be tested, want %v", c.conn, got, c.want)
		}
	}
}
