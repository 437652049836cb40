package stack

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
)

// TestChecksPause: requests that get an ErrUnusable, of an algorithm that only their rule has,
// do not check a Redis again and again that can decide all others, and each check that passes does not lead
// to further lines.
func TestChecksPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		checks := 0
		unusable := weirtest.StoreFunc(func(context.Context, *quota.Transaction) error { return quota.ErrUnusable })
		log := &weirtest.Log{}
		p := primary{unusable, &checker{outages: outageLog{logger: slog.New(slog.NewTextHandler(log, nil)), loud: sparse.Gate{Every: time.Minute}, effect: func() string { return "" }}, probe: func(context.Context, ...quota.Limit) error {
			checks++
			return nil
		}, eval: func(context.Context, string, []string, ...any) *redis.Cmd { return redis.NewCmd(t.Context()) },
			do: func(context.Context, ...any) *redis.Cmd { return redis.NewCmd(t.Context()) }}}
		p.checker.processes.memory = unusable
		p.checker.processes.divide(1)
		p.checker.ctx, p.checker.cancel = context.WithCancel(t.Context())
		defer p.checker.cancel()
		const seconds = 60
		for range 100*seconds - 1 {
			p.Take(t.Context(), &quota.Transaction{})
			time.Sleep(10 * time.Millisecond)
		}
		if most := int(seconds * time.Second / longestPause); checks < 2 || checks > most {
			t.Errorf("got %d checks in %d s, want at most %d", checks, seconds, most)
		}
		if n := strings.Count(log.String(), "until it is changed"); n != 1 || strings.Count(log.String(), "\n") > 2 {
			t.Errorf("got %d lines in a minute, want 1, and one about the end:\n%s", n, log)
		}
	})
}

// TestOutageKinds: an outage, an overload and a wrong setup have lines of their own. A wrong setup has
// one each minute, the others one in all.
func TestOutageKinds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		for _, test := range []struct {
			err   error
			want  string
			lines int // in 150 s
		}{
			{errors.New("connection refused"), `level=WARN msg="stack: outage of Redis began" err="connection refused" cause=error effect=e advice="check that Redis runs`, 1},
			{fmt.Errorf("redisstore: %w", redis.ErrClosed), `cause=error effect=e advice="close the Redis client only after the servers that use the store"`, 1},
			{errors.New("READONLY You can't write against a read only replica."), `cause=error effect=e advice="use the address of the master: this server is a replica"`, 1},
			{errors.New("Redis answers: ERR max number of clients reached: EOF"), `cause=error effect=e advice="raise maxclients of Redis`, 1},
			{errors.New("Redis answers: ERR max number of clients reached"), `cause=error effect=e advice="raise maxclients of Redis`, 1},
			{errors.New("ERR Error running script: -OOM command not allowed"), `cause=error effect=e advice="give Redis more memory, or set maxmemory-policy to volatile-lfu"`, 1},
			{quota.ErrBusy, `level=WARN msg="stack: overload of Redis or this process began" err="quota: the store is busy" cause=busy effect=e advice="lower the load, or add processors; if other code uses the Redis client, give`, 1},
			{quota.ErrUnusable, `level=ERROR msg="stack: setup of Redis unusable until it is changed"`, 3},
		} {
			log := &weirtest.Log{}
			o := outageLog{logger: slog.New(slog.NewTextHandler(log, nil)), loud: sparse.Gate{Every: time.Minute}, effect: func() string { return "e" }}
			for range 150 {
				o.begin(test.err)
				time.Sleep(time.Second)
			}
			if got := strings.Count(log.String(), test.want); got != test.lines || strings.Count(log.String(), "\n") != test.lines {
				t.Errorf("got %d of %d lines with %s:\n%s", got, test.lines, test.want, log)
			}
			o.end() // has no effect while Redis refuses writes
			o.recordPassed()
			o.recordPassed()
			if got := strings.Count(log.String(), `level=INFO msg="stack: use of Redis continues" after=2m30s`); got != 1 {
				t.Errorf("got %d lines about the end, want 1:\n%s", got, log)
			}
		}
	})
}

// TestForeignValueLines: a value of another program is no outage. It has one line in ten minutes, however
// often requests find it, and hides no outage.
func TestForeignValueLines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &weirtest.Log{}
		o := outageLog{logger: slog.New(slog.NewTextHandler(log, nil)), foreign: sparse.Gate{Every: slowAgain}, effect: func() string { return "e" }}
		foreign := errors.New("WRONGTYPE Operation against a key holding the wrong kind of value")
		for range slowAgain / (2 * time.Second) {
			o.begin(foreign)
			time.Sleep(2 * time.Second)
			o.end()
		}
		if !strings.Contains(log.String(), "another program") || strings.Count(log.String(), "\n") != 1 || o.ongoing() {
			t.Errorf("got\n%s", log)
		}
		o.begin(foreign)
		o.begin(errors.New("connection refused"))
		if strings.Count(log.String(), "another program") != 2 || !strings.Contains(log.String(), `outage of Redis began" err="connection refused"`) {
			t.Errorf("after ten minutes: got\n%s", log)
		}
	})
}

// TestOutageOfOneServer: if one of several servers is too slow, and the requests for the others end each of
// its outages, this has two lines in ten minutes.
func TestOutageOfOneServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := &weirtest.Log{}
		o := outageLog{logger: slog.New(slog.NewTextHandler(log, nil)), effect: func() string { return "e" }}
		for range slowAgain / (2 * time.Second) {
			o.begin(quota.ErrSlow)
			time.Sleep(2 * time.Second)
			o.end()
		}
		if strings.Count(log.String(), "too short for") != 1 || strings.Count(log.String(), "\n") != 2 {
			t.Errorf("got\n%s", log)
		}
		time.Sleep(time.Second)
		o.begin(quota.ErrSlow)
		if got := strings.Count(log.String(), "too short for"); got != 2 {
			t.Errorf("after ten minutes: got %d lines, want 2", got)
		}
	})
}
