package queue

import (
	"bufio"
	"context"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"path/filepath"
	"runtime"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// A pair is a connection of Conns, and its other end.
type pair struct {
	*Conns
	here, there net.Conn
}

func newPair(t *testing.T, network, addr string, config *tls.Config) *pair {
	t.Helper()
	ln, err := net.Listen(network, addr)
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	p := &pair{Conns: NewConns()}
	accepted := make(chan net.Conn, 1)
	go func() {
		conn, _ := ln.Accept()
		if config != nil {
			secure := tls.Server(conn, config)
			_ = secure.Handshake()
			conn = secure
		}
		accepted <- conn
	}()
	p.here, err = p.Dial(func() (net.Conn, error) {
		if config != nil {
			return tls.Dial(network, ln.Addr().String(), &tls.Config{InsecureSkipVerify: true})
		}
		return net.Dial(network, ln.Addr().String())
	})
	if err != nil {
		t.Fatal(err)
	}
	p.there = <-accepted
	t.Cleanup(func() {
		if p.here != nil {
			p.here.Close()
		}
		p.there.Close()
	})
	return p
}

func (p *pair) write(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := io.WriteString(conn, "x\n"); err != nil {
		t.Fatal(err)
	}
}

func (p *pair) read(t *testing.T, conn net.Conn) {
	t.Helper()
	if _, err := bufio.NewReader(conn).ReadString('\n'); err != nil {
		t.Fatal(err)
	}
}

// until waits until the kernel has what was sent. Before that, the first look may still find nothing.
func (p *pair) until(t *testing.T, want fault, sent time.Time, least time.Duration) {
	t.Helper()
	for begin := time.Now(); ; time.Sleep(time.Millisecond) {
		got := p.fault(1, sent, least, func(int) bool { return false })
		if got == want {
			return
		}
		if time.Since(begin) > time.Minute {
			t.Fatalf("got the fault %d for a minute, want %d", got, want)
		}
	}
}

// TestFault: at the end of a budget the kernel says who is late, also below TLS.
func TestFault(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "cert"), filepath.Join(dir, "key")
	redistest.Certificate(t, cert, key)
	own, err := tls.LoadX509KeyPair(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name, network, addr string
		config              *tls.Config
	}{
		{"TCP", "tcp", "127.0.0.1:0", nil},
		{"TLS", "tcp", "127.0.0.1:0", &tls.Config{Certificates: []tls.Certificate{own}}},
		{"socket", "unix", filepath.Join(dir, "s"), nil},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := newPair(t, c.network, c.addr, c.config)
			sent := time.Now()
			check := func(when string, want fault, least time.Duration, others bool) {
				t.Helper()
				if got := p.fault(1, sent, least, func(int) bool { return others }); got != want {
					t.Errorf("%s: got the fault %d, want %d", when, got, want)
				}
			}
			check("not written", processLate, 1, false)
			check("not written, because others use all connections", unknown, 1, true)
			p.write(t, p.here)
			check("written just now", neither, time.Hour, false)
			check("written, and nothing has come", notHeard, 1, false)
			p.read(t, p.there)
			p.write(t, p.there)
			p.until(t, processLate, sent, 1) // nobody reads the answer
			p.read(t, p.here)
			check("read, and the call is not over", processLate, 1, false)

			sent = time.Now()
			p.write(t, p.here)
			_ = p.here.SetReadDeadline(time.Now())
			if _, err := p.here.Read(make([]byte, 1)); err == nil {
				t.Error("got an answer, want a timeout")
			}
			p.here.Close()
			check("closed after its deadline", notHeard, 1, false)
			sent = time.Now()
			check("a later call, before the next answer", notHeard, 1, false)
		})
	}
}

// TestFaultOfOthers: while the kernel has an answer for any connection, Redis is not silent.
func TestFaultOfOthers(t *testing.T) {
	p, other := newPair(t, "tcp", "127.0.0.1:0", nil), newPair(t, "tcp", "127.0.0.1:0", nil)
	sent := time.Now()
	p.write(t, p.here)
	p.write(t, p.add(other.here))
	check := func(want fault) {
		t.Helper()
		if got := p.fault(2, sent, 1, func(int) bool { return false }); got != want {
			t.Errorf("got the fault %d, want %d", got, want)
		}
	}
	check(notHeard)
	p.write(t, other.there)
	for there := false; !there; time.Sleep(time.Millisecond) {
		for c := range p.all {
			there = there || c.Value().unread()
		}
	}
	check(neither) // at the first look
	check(processLate)
}

// TestFaultOfReader: if an answer has left the kernel, and the goroutine that reads it has not noted that yet,
// the process is late, and Redis is not silent.
func TestFaultOfReader(t *testing.T) {
	p := newPair(t, "tcp", "127.0.0.1:0", nil)
	sent := time.Now()
	p.write(t, p.here)
	p.write(t, p.there)
	p.until(t, processLate, sent, time.Hour)
	for conn := range p.all {
		p.read(t, conn.Value().Conn)
	}
	if got := p.fault(1, sent, 1, func(int) bool { return false }); got != processLate {
		t.Errorf("got the fault %d, want %d", got, processLate)
	}
}

// TestFaultOfHandshake: if a call has no connection because Redis does not answer on one that is being
// made, Redis is silent, and not the process late. A connection that listens waits for no answer.
func TestFaultOfHandshake(t *testing.T) {
	for _, written := range []bool{true, false} {
		p := newPair(t, "tcp", "127.0.0.1:0", nil)
		want := processLate
		p.write(t, p.here)
		p.read(t, p.there)
		p.write(t, p.there)
		p.read(t, p.here)
		if written {
			p.write(t, p.here)
			want = notHeard
		}
		reads := make(chan error)
		go func() { _, err := p.here.Read(make([]byte, 1)); reads <- err }()
		for conn := range p.all {
			for !conn.Value().reading.Load() {
				time.Sleep(time.Millisecond)
			}
		}
		if got := p.fault(1, time.Now(), 1, func(int) bool { return false }); got != want {
			t.Errorf("a command was written %v: got the fault %d, want %d", written, got, want)
		}
		p.here.Close()
		<-reads
	}
}

// TestAbandoned: a connection that its user has neither closed nor kept is closed. Until then, an answer
// that nobody reads does not make the process late for ever.
func TestAbandoned(t *testing.T) {
	p, other := newPair(t, "tcp", "127.0.0.1:0", nil), newPair(t, "tcp", "127.0.0.1:0", nil)
	p.write(t, p.here)
	p.write(t, p.there)
	p.until(t, processLate, time.Now().Add(-time.Hour), time.Hour)
	for conn := range p.all {
		conn.Value().wrote.Store(p.since(time.Now().Add(-2 * mostHeld)))
	}
	if _, _, answered, _ := p.look(0, p.since(time.Now())); answered {
		t.Error("got an answer that nobody reads, want none")
	}
	other.here = nil
	_ = other.there.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
	for begin := time.Now(); ; {
		runtime.GC()
		if _, err := other.there.Read(make([]byte, 1)); errors.Is(err, io.EOF) {
			break
		}
		if time.Since(begin) > 10*time.Second {
			t.Fatal("the connection is still open after 10 s")
		}
		_ = other.there.SetReadDeadline(time.Now().Add(10 * time.Millisecond))
	}
}

// TestFaultOfSilence: a request whose time is over ends once Redis has been silent for the whole
// timeout, and not before.
func TestFaultOfSilence(t *testing.T) {
	p := newPair(t, "tcp", "127.0.0.1:0", nil)
	p.write(t, p.here)
	q := p.over(func() {})
	q.timeout, q.timer = time.Hour, time.AfterFunc(time.Hour, func() {}) // no tick but those below
	for _, c := range []struct {
		silent time.Duration
		fault  fault
		err    error
	}{
		{50 * time.Minute, neither, ErrLate},
		{57 * time.Minute, tooSoon, nil},
		{70 * time.Minute, notHeard, ErrTimeout},
	} {
		for conn := range p.all {
			conn.Value().wrote.Store(p.since(time.Now().Add(-c.silent)))
			conn.Value().reading.Store(true)
		}
		p.Conns.read.Store(p.since(time.Now().Add(-c.silent)))
		q.sent = []*batch{{sent: time.Now().Add(-2 * time.Hour)}}
		a := &request{end: time.Now().Add(-time.Minute), done: make(chan struct{})}
		q.requests, q.due = []*request{a}, time.Now()
		q.tick()
		if q.fault != c.fault || a.over.Load() != (c.err != nil) || a.err != c.err {
			t.Errorf("silent for %v: got the fault %d and %v, want %d and %v", c.silent, q.fault, a.err, c.fault, c.err)
		}
	}
}

// TestFaultOfClose: a pool closes connections under the lock that it needs to say how many it has.
func TestFaultOfClose(t *testing.T) {
	p := newPair(t, "tcp", "127.0.0.1:0", nil)
	if got := p.fault(1, time.Now(), 1, func(int) bool { p.here.Close(); return false }); got != processLate {
		t.Errorf("got the fault %d, want %d", got, processLate)
	}
}

// TestFaultOfDial: nobody is late while a connection is being made, and nobody can say who is late
// without connections.
func TestFaultOfDial(t *testing.T) {
	var none *Conns
	check := func(c *Conns) {
		t.Helper()
		if got := c.fault(1, time.Now(), 1, func(int) bool { return false }); got != unknown {
			t.Errorf("got the fault %d, want %d", got, unknown)
		}
	}
	check(none)
	c := NewConns()
	_, _ = c.Dial(func() (net.Conn, error) { check(c); return nil, errors.New("refused") })
}

// TestDrop: drop closes the idle connections that were last used before an instant. A Write on one of
// them fails at once.
func TestDrop(t *testing.T) {
	p := newPair(t, "tcp", "127.0.0.1:0", nil)
	serve := func() {
		t.Helper()
		p.write(t, p.here)
		p.read(t, p.there)
		p.write(t, p.there)
		p.read(t, p.here)
	}
	serve()
	if left := p.drop(time.Now().Add(-time.Hour)); left != 1 {
		t.Errorf("used since then: got %d left, want 1", left)
	}
	p.write(t, p.here)
	if left := p.drop(time.Now().Add(time.Hour)); left != 1 {
		t.Errorf("in use: got %d left, want 1", left)
	}
	p.read(t, p.there)
	p.write(t, p.there)
	p.read(t, p.here)
	if left := p.drop(time.Now().Add(time.Hour)); left != 0 {
		t.Errorf("idle: got %d left, want 0", left)
	}
	if _, err := p.here.Write([]byte("x")); !errors.Is(err, errDropped) {
		t.Errorf("got %v, want %v", err, errDropped)
	}
}

// TestDropOfDial: if an attempt to connect has used an idle connection that the network has forgotten,
// the other connections of its age are closed. Otherwise each attempt would use another of them.
func TestDropOfDial(t *testing.T) {
	p, other := newPair(t, "tcp", "127.0.0.1:0", nil), newPair(t, "tcp", "127.0.0.1:0", nil)
	q, conn := p.over(func() {}), p.add(other.here)
	q.send = func(context.Context, []Cmd) error {
		p.write(t, p.here)
		_ = p.here.SetReadDeadline(time.Now().Add(q.timeout))
		_, err := p.here.Read(make([]byte, 1))
		return err
	}
	q.open, q.opening = 0, 1
	q.dial()
	if _, err := conn.Write([]byte("x")); !errors.Is(err, errDropped) {
		t.Errorf("got %v, want %v", err, errDropped)
	}
}

// over makes a queue send its commands on the connection of p.
func (p *pair) over(read func()) *Queue {
	q := (&far{}).queue(50 * time.Millisecond)
	q.conns, q.open, q.others = p.Conns, 1, func(int) bool { return false }
	q.send = func(ctx context.Context, cmds []Cmd) error {
		_, err := io.WriteString(p.here, "x\n")
		if err == nil {
			read()
			end, _ := ctx.Deadline()
			_ = p.here.SetReadDeadline(end)
			_, err = bufio.NewReader(p.here).ReadString('\n')
		}
		for _, cmd := range cmds {
			cmd.SetErr(err)
		}
		return err
	}
	return q
}

// TestReaderLate: an answer that the kernel has counts, although it is read long after the timeout.
func TestReaderLate(t *testing.T) {
	p := newPair(t, "tcp", "127.0.0.1:0", nil)
	p.write(t, p.there) // before the question, so that the other end is not late
	for conn := range p.all {
		for !conn.Value().unread() {
			time.Sleep(time.Millisecond)
		}
	}
	q := p.over(func() { time.Sleep(100 * time.Millisecond) })
	if err := q.request(); err != nil {
		t.Errorf("got %v, want a decision", err)
	}
}

// TestSilent: if Redis is silent, this is an outage, however late the process is. It need not be one if the
// process has written its command late.
func TestSilent(t *testing.T) {
	silent := func() error {
		p := newPair(t, "tcp", "127.0.0.1:0", nil)
		q := p.over(func() {})
		q.most = 1 // no further connection can help
		time.AfterFunc(10*time.Millisecond, func() {
			q.mu.Lock()
			defer q.mu.Unlock()
			q.lost += time.Hour
		})
		err := q.request()
		if err != nil && !errors.Is(err, quota.ErrBusy) {
			err = q.request()
		}
		return err
	}
	for begin, err := time.Now(), quota.ErrBusy; errors.Is(err, quota.ErrBusy); {
		if err = silent(); err == nil || time.Since(begin) > 10*time.Second {
			t.Fatalf("got %v, want a timeout that counts as an outage", err)
		}
	}
}
