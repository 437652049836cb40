// Package redistest starts real Redis servers on loopback for tests: a single server
// (Server), a master with Sentinels (Sentinel), or a Cluster (Cluster). Proxy starts a
// proxy in front of a server. The proxy delays, loses and cuts answers, as a bad network
// does.
//
// Servers persist no data, keep their files in the TempDir of the test, and end in its
// Cleanup. On Linux they also end with the test binary, even if it is killed. If
// redis-server is missing, tests are skipped, or fail if the environment variable CI is
// set.
package redistest

import (
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/rounds"
)

// readyTimeout is how long servers may take to be ready on a busy machine. They usually
// need less than 3 s.
const readyTimeout = 20 * time.Second

// Proc is one redis-server, or one Sentinel. Any goroutine may call Addr and Do. The other
// methods, which start, stop or signal the process, must be called by one goroutine.
type Proc struct {
	port int
	dir  string // the directory of this process, with its log and configuration
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended
}

// Server starts one redis-server and returns when it answers. args are appended to the
// arguments that Server passes itself.
func Server(t testing.TB, args ...string) *Proc {
	t.Helper()
	return launch(t, func(dir string, port int) []string {
		return append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", // see follow
		}, args...)
	})
}

// Addr is the address of the server, "127.0.0.1:port". It is the same after Restart.
func (p *Proc) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// String returns a text for messages. p may be nil.
func (p *Proc) String() string {
	if p == nil {
		return "no server"
	}
	return "redis-server " + p.Addr()
}

// Kill ends the process with SIGKILL, even if it is paused, and returns when it has ended.
// A second Kill does nothing.
func (p *Proc) Kill() {
	_ = p.cmd.Process.Kill() // an error means that it has ended already
	<-p.done
}

// Pause stops the process with SIGSTOP. The kernel still accepts connections for it, but
// nothing is answered.
func (p *Proc) Pause() { _ = p.cmd.Process.Signal(sigStop) }

// Resume continues a paused process, which then answers the commands that came in the
// meantime.
func (p *Proc) Resume() { _ = p.cmd.Process.Signal(sigCont) }

// Restart kills the process if it still runs, and starts it on the same port without data
// and scripts. A Cluster node and a Sentinel keep their configuration, as they would in
// production. Restart returns when the server answers. Its Cluster or its Sentinels accept
// the server again later.
func (p *Proc) Restart(t testing.TB) {
	t.Helper()
	p.Kill()
	_ = os.Remove(filepath.Join(p.dir, "dump.rdb")) // the data that a replica got from its master
	var err error
	for range 5 { // another process may have the port for a moment
		if err = p.run(); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("redistest: restart of %s: %v", p.Addr(), err)
}

// launch starts a redis-server on a free port. It tries several, because another program may
// take a port that was found free before the server binds it.
func launch(t testing.TB, args func(dir string, port int) []string) *Proc {
	t.Helper()
	require(t, "redis-server", "redis-server redis-sentinel")
	dir := t.TempDir()
	var err error
	for range 10 {
		p := &Proc{port: nextPort(), dir: dir}
		p.args = args(dir, p.port)
		if err = p.run(); err == nil {
			t.Cleanup(func() { p.Kill() })
			return p
		}
	}
	t.Fatalf("redistest: redis-server does not start: %v", err)
	return nil
}

// slow skips a test that would take seconds, unless tests run long. Programs always wait.
func slow(t testing.TB, why string) {
	t.Helper()
	if _, program := t.(*Program); !program {
		rounds.Slow(t, why)
	}
}

// require skips a test if a program is missing, or fails the test if CI is set.
func require(t testing.TB, program, packages string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	msg := "redistest: no " + program + ": apt-get install " + packages
	if os.Getenv("CI") != "" {
		t.Fatal(msg)
	}
	t.Skip(msg)
}

// ports is a block of ports of this process: 200 from 10000 to 19999, which leaves 20000 to
// 29999 for the cluster bus (port + 10000). Both ranges are below the ports that Linux and
// darwin give to outgoing connections. An outgoing connection could otherwise get the port
// of a server that is down, or even connect to itself. The process listens on the first port
// of its block, so that no other test program gets the port of a server that is down.
var ports struct {
	mu    sync.Mutex
	held  net.Listener
	first int
	last  int // the port that nextPort has returned, as a number of the block
}

func listen(port int) (net.Listener, error) {
	return net.Listen("tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
}

// nextPort returns a free port of the block. The same port comes again only after all others.
func nextPort() int {
	ports.mu.Lock()
	defer ports.mu.Unlock()
	for ports.held == nil {
		ports.first = 10000 + 200*rand.IntN(50)
		ports.held, _ = listen(ports.first)
	}
	for {
		ports.last = ports.last%199 + 1
		if ln, err := listen(ports.first + ports.last); err == nil {
			ln.Close()
			return ports.first + ports.last
		}
	}
}

// FreeAddr returns an address on which a program can listen, now or later. Nothing else gets its port
// before the other ports of the block have been used.
func FreeAddr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(nextPort())) }

// run starts the process and returns when it answers. After an error no process is left.
func (p *Proc) run() error {
	name := filepath.Join(p.dir, "log")
	log, err := os.Create(name)
	if err != nil {
		return err
	}
	defer log.Close()
	cmd, done, started := exec.Command("redis-server", p.args...), make(chan struct{}), make(chan error)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = p.dir, log, log, dieWithParent()
	go func() {
		// The server dies with the thread that started it, and the Go runtime may end
		// threads at any time. This goroutine therefore keeps its thread until the server
		// has ended.
		runtime.LockOSThread()
		err := cmd.Start()
		started <- err
		if err == nil {
			_ = cmd.Wait()
			close(done)
		}
	}()
	if err := <-started; err != nil {
		return err
	}
	p.cmd, p.done = cmd, done

	// If the server of another test has this port, our process is about to end. Only an
	// answer of our own process counts.
	own := fmt.Sprintf("process_id:%d\r\n", cmd.Process.Pid)
	err = wait(func() bool {
		select {
		case <-done:
			return true
		default:
			return strings.Contains(p.text("INFO", "server"), own)
		}
	})
	select {
	case <-done:
		err = fmt.Errorf("it ended")
	default:
		if err == nil {
			return nil
		}
	}
	p.Kill()
	text, _ := os.ReadFile(name)
	return fmt.Errorf("%w; its log:\n%s", err, text)
}

// wait polls until ok returns true, at most for readyTimeout.
func wait(ok func() bool) error {
	for end := time.Now().Add(readyTimeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not ready after %v", readyTimeout)
		}
	}
	return nil
}

// follow returns when the replicas receive what the master writes. A link that is up does
// not prove that the replicas receive the writes: the stream of writes starts with the
// first acknowledgement of the replica, up to a second later. If the master is killed
// before that, its writes are lost. The pings of the master, one a second, show that the
// stream has started.
func follow(t testing.TB, master *Proc, replicas ...*Proc) {
	t.Helper()
	all := func(ok func(p *Proc) bool) {
		for _, p := range replicas {
			if err := wait(func() bool { return ok(p) }); err != nil {
				t.Fatalf("redistest: %v does not follow %v: %v:\n%s", p, master, err, p.text("INFO", "replication"))
			}
		}
	}
	offset := func(info string) int {
		_, s, _ := strings.Cut(info, "master_repl_offset:")
		n, _ := strconv.Atoi(strings.Split(s, "\r")[0])
		return n
	}
	all(func(p *Proc) bool { return strings.Contains(p.text("INFO", "replication"), "master_link_status:up") })
	sent := offset(master.must(t, "INFO", "replication").(string))
	all(func(p *Proc) bool { return offset(p.text("INFO", "replication")) > sent })
}

// must is Do, but fails the test after an error.
func (p *Proc) must(t testing.TB, args ...string) any {
	t.Helper()
	v, err := p.Do(args...)
	if err != nil {
		t.Fatalf("%v (%s)", err, strings.Join(args, " "))
	}
	return v
}

func addrs(procs []*Proc) []string {
	list := make([]string, len(procs))
	for i, p := range procs {
		list[i] = p.Addr()
	}
	return list
}
