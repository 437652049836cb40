package redistest

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func check(t *testing.T, p *Proc, want any, args ...string) {
	t.Helper()
	if got, err := p.Do(args...); err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("%v: got %#v, %v, want %#v", args, got, err, want)
	}
}

// TestServer: a server answers, and can be paused, resumed, killed and restarted on its port.
func TestServer(t *testing.T) {
	t.Parallel()
	start := time.Now()
	p := Server(t, "--maxmemory", "100mb")
	t.Logf("ready after %v", time.Since(start))
	check(t, p, "PONG", "PING")
	check(t, p, []any{"maxmemory", "104857600"}, "CONFIG", "GET", "maxmemory")
	check(t, p, "OK", "SET", "k", "v")
	sha := p.must(t, "SCRIPT", "LOAD", "return 1").(string)
	check(t, p, int64(1), "EVALSHA", sha, "0")
	if _, err := p.Do("GET"); err == nil || !strings.Contains(err.Error(), "ERR wrong number") {
		t.Errorf("GET alone: got error %v, want the server's", err)
	}

	p.Pause()
	if v, err := p.do(pollTimeout, []string{"PING"}); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("PING of a paused server: got %v, %v, want a timeout", v, err)
	}
	p.Resume()
	check(t, p, "v", "GET", "k")

	addr := p.Addr()
	p.Pause() // Kill and Restart work for a paused server too
	p.Kill()
	p.Kill()
	if _, err := p.Do("PING"); !errors.Is(err, syscall.ECONNREFUSED) {
		t.Errorf("PING of a killed server: got %v, want connection refused", err)
	}
	p.Restart(t)
	p.Restart(t)
	if p.Addr() != addr {
		t.Errorf("restarted on %s, want %s", p.Addr(), addr)
	}
	check(t, p, nil, "GET", "k")
	check(t, p, []any{int64(0)}, "SCRIPT", "EXISTS", sha)
}

// TestServerPortTaken: a server whose port is taken does not mistake the server on that
// port for itself.
func TestServerPortTaken(t *testing.T) {
	p := Server(t)
	q := &Proc{port: p.port, dir: t.TempDir(), args: []string{"--port", strconv.Itoa(p.port), "--bind", "127.0.0.1"}}
	if err := q.run(); err == nil || !strings.Contains(err.Error(), "in use") {
		t.Errorf("run on a taken port: got %v, want address in use", err)
	}
}

// TestPorts: no other process gets the ports of this one, and this one gets the port of a server that is down
// only after all others.
func TestPorts(t *testing.T) {
	down := nextPort()
	if ln, err := listen(ports.first); err == nil {
		ln.Close()
		t.Errorf("another process gets the ports from %d", ports.first)
	}
	for range 100 {
		if port := nextPort(); port == down || port <= ports.first || port >= ports.first+200 {
			t.Errorf("got the port %d, want another one than %d, from %d to %d", port, down, ports.first+1, ports.first+199)
		}
	}
}

// TestServerDiesWithTest: a test binary that panics, fails or is killed leaves no server
// running.
func TestServerDiesWithTest(t *testing.T) {
	if how := os.Getenv("REDISTEST_END"); how != "" {
		endWithServer(t, how)
	}
	if runtime.GOOS != "linux" {
		t.Skip("servers are tied to the test binary on Linux only")
	}
	Server(t) // skips or fails if there is no redis-server
	for _, how := range []string{"fatal", "panic", "goroutine", "exit", "kill"} {
		t.Run(how, func(t *testing.T) {
			t.Parallel()
			checkNoServerLeft(t, how)
		})
	}
}

// checkNoServerLeft runs a test binary that starts a server and ends, and expects the server
// to end with it.
func checkNoServerLeft(t *testing.T, how string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestServerDiesWithTest$")
	cmd.Env = append(os.Environ(), "REDISTEST_END="+how, "TMPDIR="+t.TempDir())
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	pid := 0
	for s := bufio.NewScanner(out); pid == 0 && s.Scan(); {
		_, _ = fmt.Sscanf(s.Text(), "pid=%d", &pid)
	}
	if how == "kill" {
		_ = cmd.Process.Kill()
	}
	_, _ = io.Copy(io.Discard, out)
	if err := cmd.Wait(); err == nil || pid == 0 {
		t.Fatalf("the test binary ended with %v, server %d; want a failure and a server", err, pid)
	}
	if err := wait(func() bool { return !runs(pid) }); err != nil {
		t.Errorf("redis-server %d still runs", pid)
		if p, err := os.FindProcess(pid); err == nil {
			_ = p.Kill()
		}
	}
}

// endWithServer starts a server and ends the test binary.
func endWithServer(t *testing.T, how string) {
	p := Server(t)
	fmt.Printf("pid=%d\n", p.cmd.Process.Pid)
	p.Pause() // SIGKILL must end a paused server too
	switch how {
	case "fatal":
		t.Fatal("as asked")
	case "panic":
		panic("as asked")
	case "goroutine":
		go panic("as asked")
	case "exit":
		os.Exit(3)
	}
	select {} // until killed
}

// runs reports whether pid is a running redis-server. A zombie, which an orphan becomes if
// no process reaps it, does not count.
func runs(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	return err == nil && strings.Contains(string(stat), "(redis-server)") && !strings.Contains(string(stat), ") Z ")
}

// noServer records how a test ended.
type noServer struct {
	testing.TB
	how string
}

func (n *noServer) Helper()      {}
func (n *noServer) Skip(...any)  { n.how = "skip"; runtime.Goexit() }
func (n *noServer) Fatal(...any) { n.how = "fatal"; runtime.Goexit() }

// TestNoProgram: without redis-server a test is skipped, or fails if CI is set.
func TestNoProgram(t *testing.T) {
	t.Setenv("PATH", t.TempDir())
	for ci, want := range map[string]string{"": "skip", "true": "fatal"} {
		t.Setenv("CI", ci)
		n := &noServer{TB: t}
		var wg sync.WaitGroup
		wg.Go(func() { Server(n) })
		wg.Wait()
		if n.how != want {
			t.Errorf("CI=%q without redis-server: got %q, want %q", ci, n.how, want)
		}
	}
}

// TestServersAtOnce: many servers can start at once, and each gets a port of its own.
func TestServersAtOnce(t *testing.T) {
	seen := map[string]bool{}
	for range 8 {
		p := Server(t)
		if seen[p.Addr()] {
			t.Errorf("two servers on %s", p.Addr())
		}
		seen[p.Addr()] = true
		check(t, p, int64(0), "DBSIZE")
		check(t, p, "OK", "SET", "k", "v")
		if _, err := os.Stat(filepath.Join(p.dir, "log")); err != nil {
			t.Error(err)
		}
	}
}

// TestSentinel: the replicas follow the master, and replace it if it is killed.
func TestSentinel(t *testing.T) {
	t.Parallel()
	start := time.Now()
	s := Sentinel(t)
	t.Logf("ready after %v", time.Since(start))
	if got := s.Current(); got != s.Master || len(s.Addrs()) != 3 || len(s.Replicas) != 2 {
		t.Fatalf("got %v of %v, %v, want master %v", got, s.Addrs(), s.Replicas, s.Master)
	}
	check(t, s.Master, "OK", "SET", "k", "v")
	for _, p := range s.Replicas {
		if err := wait(func() bool { return p.text("GET", "k") == "v" }); err != nil {
			t.Fatalf("%v does not follow the master: %v", p, err)
		}
	}

	s.Master.Kill()
	start = time.Now()
	if err := wait(func() bool {
		p := s.Current()
		return p != nil && p != s.Master && p.text("SET", "k2", "v") == "OK"
	}); err != nil {
		t.Fatalf("no new master: %v", err)
	}
	t.Logf("new master after %v", time.Since(start))
	check(t, s.Current(), "v", "GET", "k")
}

// TestCluster: slots can be moved with their keys, and a replica replaces a master that is
// killed.
func TestCluster(t *testing.T) {
	t.Parallel()
	start := time.Now()
	c := Cluster(t, 3, 1)
	t.Logf("ready after %v", time.Since(start))
	if n := len(c.Addrs()); n != 6 {
		t.Fatalf("got %d nodes, want 6", n)
	}

	const key, keys = "a:{user}:", 250 // so many keys take several MIGRATE commands
	slot, from := Slot(key), c.MasterOf(key)
	check(t, from, int64(slot), "CLUSTER", "KEYSLOT", key)
	to := c.Nodes[0]
	if to == from {
		to = c.Nodes[1]
	}
	for i := range keys {
		check(t, from, "OK", "SET", key+strconv.Itoa(i), "v", "EX", "100")
	}
	c.Reshard(t, from, to, slot, (slot+1)%slots)
	check(t, from, int64(0), "CLUSTER", "COUNTKEYSINSLOT", strconv.Itoa(slot))
	check(t, to, int64(keys), "CLUSTER", "COUNTKEYSINSLOT", strconv.Itoa(slot))
	check(t, to, "v", "GET", key+"0")
	if _, err := from.Do("GET", key+"0"); err == nil || !strings.Contains(err.Error(), "MOVED") {
		t.Errorf("GET at the old master: got %v, want MOVED", err)
	}
	if got := c.MasterOf(key); got != to {
		t.Errorf("after the reshard the master is %v, want %v", got, to)
	}

	to.Kill()
	start = time.Now()
	if err := wait(func() bool {
		p := c.MasterOf(key)
		return p != nil && p != to && p.text("GET", key+"0") == "v"
	}); err != nil {
		t.Fatalf("no new master: %v", err)
	}
	t.Logf("new master after %v", time.Since(start))
	to.Restart(t) // the old master remembers its cluster, and learns that it was replaced
	if err := wait(func() bool { return strings.HasPrefix(to.text("ROLE"), "[slave ") }); err != nil {
		t.Errorf("after its restart the old master is %v, want a replica", to.text("ROLE"))
	}
}

// TestLua54: the server refuses what no script must do, and decides by the clock that SetTime sets.
func TestLua54(t *testing.T) {
	l := Lua54(t)
	call := func(args ...string) any {
		reply, err := do(l.Addr(), doTimeout, args)
		if err != nil {
			t.Fatal(err)
		}
		if e, ok := reply.(error); ok {
			return e.Error()
		}
		return reply
	}
	for _, c := range []struct {
		script string
		want   any
	}{
		{"return redis.call('SET', KEYS[1], 7, 'PX', '1500')", "OK"},
		{"return redis.call('GET', KEYS[1])", "7"},
		{"return redis.call('PTTL', KEYS[1])", int64(1500)},
		{"return redis.call('GET', 'a' .. KEYS[1])", "ERR the script has not declared a key of GET"},
		{"return redis.call('GET')", "ERR the script has not declared a key of GET"},
		{"return redis.call('HGET', KEYS[1], 'f')", "WRONGTYPE Operation against a key holding the wrong kind of value"},
		{"return redis.call('SET', KEYS[1], 1.0)", "argument 3 of redis.call is no text or integer"},
		{"return string.format('%d', 1.5)", "number has no integer representation"},
		{"return unpack({})", "nonexistent global variable 'unpack'"},
		{"x = 1", "Attempt to modify a readonly table: x"},
		{"return {1, 2.9, false, 'x'}", []any{int64(1), int64(2), nil, "x"}},
		{"return redis.call('TIME')", []any{"1700000000", "1"}},
		{"return", nil},
		{"retrn", "ERR Error compiling script"},
	} {
		l.SetTime(time.UnixMicro(1_700_000_000_000_001))
		got := call("EVAL", c.script, "1", "k")
		want, isText := c.want.(string)
		if text, _ := got.(string); isText && !strings.Contains(text, want) || !isText && !reflect.DeepEqual(got, c.want) {
			t.Errorf("%s: got %#v, want %#v", c.script, got, c.want)
		}
	}
	before := l.Dump()
	if call("PEXPIRE", "k", "1501"); l.Dump() == before {
		t.Errorf("Dump does not change with a TTL: %s", before)
	}
	sha := call("SCRIPT", "LOAD", "return 1").(string)
	if got := call("EVALSHA", sha, "0"); got != int64(1) {
		t.Errorf("EVALSHA: got %v", got)
	}
	if got := call("EVALSHA", "x", "0"); got != "NOSCRIPT No matching script. Please use EVAL." {
		t.Errorf("EVALSHA of an unknown script: got %v", got)
	}
}

// TestSlot: Slot agrees with the server, also about hash tags.
func TestSlot(t *testing.T) {
	p := Server(t, "--cluster-enabled", "yes")
	for _, key := range []string{"", "123456789", "foo{}{bar}", "foo{{bar}}zap", "foo{bar}{zap}", "{user1000}.following", "a{b", "a}b{c}", "é\x00\xff"} {
		check(t, p, int64(Slot(key)), "CLUSTER", "KEYSLOT", key)
	}
	if got := Slot("123456789"); got != 0x31C3 {
		t.Errorf("Slot(123456789): got %#x, want 0x31c3", got)
	}
}
