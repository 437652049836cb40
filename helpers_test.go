package weir_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/weirtest"
)

type (
	storeFunc = weirtest.StoreFunc
	distant   = weirtest.Distant
)

const race = weirtest.Race

var (
	errDown    = weirtest.ErrDown
	memory     = weirtest.Memory
	take       = weirtest.Take
	together   = weirtest.Together
	failsWith  = weirtest.FailsWith
	redisAt    = weirtest.Redis
	ask        = weirtest.Ask
	do         = weirtest.Do
	must       = weirtest.New
	reserve    = weirtest.Reserve
	cancelTurn = weirtest.Cancel
	isOpen     = weirtest.IsOpen
	peek       = weirtest.Peek
)

// transport is Limiter.Transport, but fails the test after an error.
func transport(t *testing.T, l *weir.Limiter, o weir.TransportOptions) http.RoundTripper {
	t.Helper()
	rt, err := l.Transport(o)
	if err != nil {
		t.Fatal(err)
	}
	return rt
}

// noPolicy says nothing of any key. With ForKey a rule may have limits that refuse nothing.
func noPolicy(string) weir.Policy { return weir.Policy{} }

// ban bans a key of the rule api for the duration d.
func ban(t *testing.T, l *weir.Limiter, key string, d time.Duration) {
	t.Helper()
	if err := l.Ban(t.Context(), "api", key, d); err != nil {
		t.Fatal(err)
	}
}

// unban lifts the ban of a key of the rule api.
func unban(t *testing.T, l *weir.Limiter, key string) {
	t.Helper()
	if err := l.Unban(t.Context(), "api", key); err != nil {
		t.Fatal(err)
	}
}

// checkBan compares with want for how long a key of the rule api is still banned.
func checkBan(t *testing.T, l *weir.Limiter, key, when string, want time.Duration) {
	t.Helper()
	if rest, err := l.Banned(t.Context(), "api", key); err != nil || rest != want {
		t.Errorf("%s: got a ban of %v, %v, want %v", when, rest, err, want)
	}
}
