// Package redistest starts real Redis servers on loopback for tests: one
// server, a master with Sentinels, a Cluster; and a proxy that breaks the
// connection to one in the ways a network does.
//
// Servers keep their files in the test's TempDir, keep nothing on disk, and
// end in the test's Cleanup. On Linux they also die with the test binary,
// however it ends. Where redis-server is missing, tests skip; when the
// environment variable CI is set, they fail.
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
	"testing"
	"time"
)

// readyTimeout is what a server, or a whole topology, may take to be ready on
// a busy machine. It is far above what they need.
const readyTimeout = 20 * time.Second

// Proc is one redis-server, as a server of data or as a Sentinel. Addr and Do
// may be called by many goroutines; what starts, stops or signals the process
// belongs to one.
type Proc struct {
	port int
	dir  string // the process's own: its log, its configuration
	args []string
	cmd  *exec.Cmd
	done chan struct{} // closed once the process is reaped
}

// Server starts one redis-server with the given arguments after its own, and
// returns when it answers.
func Server(t testing.TB, args ...string) *Proc {
	t.Helper()
	return launch(t, func(dir string, port int) []string {
		return append([]string{
			"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no",
			"--repl-diskless-sync-delay", "0", "--repl-ping-replica-period", "1", // see follow
		}, args...)
	})
}

// Addr is the server's "127.0.0.1:port". It survives a Restart.
func (p *Proc) Addr() string { return net.JoinHostPort("127.0.0.1", strconv.Itoa(p.port)) }

// String is for messages; a nil Proc has one too.
func (p *Proc) String() string {
	if p == nil {
		return "no server"
	}
	return "redis-server " + p.Addr()
}

// Kill ends the process with SIGKILL, paused or not, and returns when it is
// gone. A second Kill does nothing.
func (p *Proc) Kill() {
	_ = p.cmd.Process.Kill() // the error says it has ended already
	<-p.done
}

// Pause stops the process with SIGSTOP: the kernel still accepts connections
// for it and nothing is answered.
func (p *Proc) Pause() { _ = p.cmd.Process.Signal(sigStop) }

// Resume continues a paused process: it answers what has piled up.
func (p *Proc) Resume() { _ = p.cmd.Process.Signal(sigCont) }

// Restart kills the process, where it still runs, and starts it on the same
// port: no data, no scripts. A Cluster node and a Sentinel keep their
// configuration, as they would in production. It returns when the server
// answers, which is before a Cluster or a Sentinel has taken it back.
func (p *Proc) Restart(t testing.TB) {
	t.Helper()
	p.Kill()
	_ = os.Remove(filepath.Join(p.dir, "dump.rdb")) // what a replica got from its master
	var err error
	for range 5 { // the port may be lost to another process for a moment
		if err = p.run(); err == nil {
			return
		}
		time.Sleep(50 * time.Millisecond)
	}
	t.Fatalf("redistest: restart of %s: %v", p.Addr(), err)
}

// launch starts a redis-server on a free port. The port is taken by trying:
// whatever is found free by asking may be gone by the time the server binds
// it, because go test runs packages at the same time.
func launch(t testing.TB, args func(dir string, port int) []string) *Proc {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		const msg = "redistest: no redis-server: apt-get install redis-server redis-sentinel"
		if os.Getenv("CI") != "" {
			t.Fatal(msg)
		}
		t.Skip(msg)
	}
	dir := t.TempDir()
	var err error
	for range 10 {
		p := &Proc{port: randomPort(), dir: dir}
		p.args = args(dir, p.port)
		if err = p.run(); err == nil {
			t.Cleanup(func() { p.Kill() })
			return p
		}
	}
	t.Fatalf("redistest: redis-server does not start: %v", err)
	return nil
}

// randomPort is from 10000 to 19999, which leaves 20000 to 29999 to the
// cluster bus (port + 10000). Both are below the ports that Linux and darwin
// give to outgoing connections: one of those would take the port of a server
// that is down, or even connect to itself there.
func randomPort() int { return 10000 + rand.IntN(10000) }

// run starts the process and returns when it answers. After an error it is
// gone.
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
		// The server dies with the thread that started it, and the Go runtime
		// ends threads as it likes. So this goroutine keeps its thread until
		// the server is reaped; waiting would occupy one anyway.
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

	// Another test's server may answer on our port while ours is about to
	// give up: only our own process counts.
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

// wait polls until ok or readyTimeout.
func wait(ok func() bool) error {
	for end := time.Now().Add(readyTimeout); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			return fmt.Errorf("not ready after %v", readyTimeout)
		}
	}
	return nil
}

// follow returns when what the master writes from now on reaches the replicas.
// A link that is up does not say so: the stream starts with the replica's
// first acknowledgement, up to a second later, and a master killed before that
// loses all it was told. The master's pings, one a second, show it.
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

// must is Do for the steps of a setup.
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
