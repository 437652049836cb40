// Package redisserver_test shows in the summary of `go test ./...` whether redis-server is
// installed. For a package that skips all of its tests, the go command prints only "ok". It
// adds "[no tests to run]" if the package says so, as this one does if its test is skipped.
package redisserver_test

import (
	"fmt"
	"os"
	"testing"

	"github.com/seed83679106/weir/internal/test/redistest"
)

var started bool

func TestMain(m *testing.M) {
	code := m.Run()
	if code == 0 && !started {
		fmt.Println("redis-server is missing: the tests that need it are skipped, here and in other packages")
		fmt.Println("testing: warning: no tests to run") // the go command looks for this line
	}
	os.Exit(code)
}

// TestRedisServer: the installed redis-server starts and answers.
func TestRedisServer(t *testing.T) {
	server := redistest.Server(t)
	started = true
	if got, err := server.Do("PING"); got != "PONG" || err != nil {
		t.Errorf("PING: got %v (%v), want PONG", got, err)
	}
}
