package redistest

import (
	"bufio"
	"bytes"
	"crypto/sha1"
	_ "embed"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
	"testing"
	"time"
)

//go:embed lua54.lua
var lua54 string

// A Lua is a server that runs scripts on Lua 5.4, as Dragonfly and Garnet do. It has the commands
// that redisstore needs. It refuses what a script must not do on any server: see lua54.lua. For
// example, a script may use only the keys that it declares. Any goroutine may call its methods.
type Lua struct {
	addr string

	mu     sync.Mutex
	in     io.Writer
	out    *bufio.Reader
	now    time.Time // zero for the time of this machine
	around func(args []string, run func() string) string
}

// Lua54 starts a Lua, which ends in the Cleanup of the test.
func Lua54(t testing.TB) *Lua {
	t.Helper()
	require(t, "lua5.4", "lua5.4")
	cmd := exec.Command("lua5.4", "-e"+lua54)
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		in.Close() // it ends when there is nothing to read
		if err := cmd.Wait(); err != nil {
			t.Errorf("redistest: lua5.4: %v: %s", err, stderr.String())
		}
	})
	l := &Lua{in: in, out: bufio.NewReader(out)}
	l.addr = Fake(t, func(args []string) string {
		l.mu.Lock()
		around := l.around
		l.mu.Unlock()
		if around == nil {
			return l.answer(args)
		}
		return around(args, func() string { return l.answer(args) })
	})
	return l
}

// Addr is the address of the server.
func (l *Lua) Addr() string { return l.addr }

// SetTime stops the clock of the server at an instant. From then on no value expires, because
// the clock may step back. A value that should have expired has a TTL of 1 ms.
func (l *Lua) SetTime(now time.Time) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.now = now
}

// Around makes f answer each command. f calls run, which returns the reply of the server.
func (l *Lua) Around(f func(args []string, run func() string) (reply string)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.around = f
}

// RefuseTime makes scripts fail that call TIME, as on ElastiCache Serverless.
func (l *Lua) RefuseTime() *Lua {
	l.answer([]string{"REFUSETIME"})
	return l
}

// Dump returns a text that changes if, and only if, a value or its TTL changes.
func (l *Lua) Dump() string {
	_, text, _ := strings.Cut(l.answer([]string{"DUMP"}), "\r\n")
	return text
}

// answer returns the reply to a command, or "" if the process has ended.
func (l *Lua) answer(args []string) string {
	var line, text strings.Builder
	l.mu.Lock()
	defer l.mu.Unlock()
	now, expire := l.now, 0
	if now.IsZero() {
		now, expire = time.Now(), 1
	}
	fmt.Fprintf(&line, "%d %d %x", now.UnixMicro(), expire, sha1.Sum([]byte(scriptIn(args))))
	for _, arg := range args {
		fmt.Fprintf(&line, " %d", len(arg))
		text.WriteString(arg)
	}
	if _, err := io.WriteString(l.in, line.String()+"\n"+text.String()); err != nil {
		return ""
	}
	var n int
	if _, err := fmt.Fscanf(l.out, "%d\n", &n); err != nil {
		return ""
	}
	reply := make([]byte, n)
	if _, err := io.ReadFull(l.out, reply); err != nil {
		return ""
	}
	return string(reply)
}

// scriptIn returns the text of the script in a command, or "".
func scriptIn(args []string) string {
	switch {
	case len(args) > 1 && strings.EqualFold(args[0], "EVAL"):
		return args[1]
	case len(args) > 2 && strings.EqualFold(args[0], "SCRIPT"):
		return args[2]
	}
	return ""
}
