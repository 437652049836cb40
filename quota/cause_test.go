package quota_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestCause: the class of an error is the most telling of the classes that it wraps.
func TestCause(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNREFUSED)}
	unusable := fmt.Errorf("%w: WRONGPASS", quota.ErrUnusable)
	for _, c := range []struct {
		err  error
		want string
	}{
		{nil, ""},
		{quota.ErrUnusable, "unusable"},
		{fmt.Errorf("%w: %w", quota.ErrOpen, unusable), "unusable"},
		{errors.Join(unusable, quota.ErrFull), "unusable"},
		{quota.ErrBusy, "busy"},
		{quota.ErrFull, "full"},
		{errors.Join(redisstore.ErrTimeout, quota.ErrFull), "full"},
		{fmt.Errorf("%w: %w", quota.ErrOpen, redisstore.ErrTimeout), "open"},
		{redisstore.ErrTimeout, "timeout"},
		{fmt.Errorf("%w: %w", redisstore.ErrTimeout, refused), "timeout"},
		{context.DeadlineExceeded, "timeout"},
		{&net.OpError{Op: "read", Err: os.ErrDeadlineExceeded}, "timeout"},
		{refused, "error"},
		{io.EOF, "error"},
	} {
		if got := quota.Cause(c.err); got != c.want {
			t.Errorf("%v: got %q, want %q", c.err, got, c.want)
		}
	}
	if errors.Is(redisstore.ErrTimeout, context.DeadlineExceeded) {
		t.Error("redisstore.ErrTimeout is the error of a caller whose deadline has passed")
	}
}

// TestFallbackStats: a FallbackStore counts what the secondary store is used, by cause, and says
// whether it decides now. What the secondary does not decide is not counted.
func TestFallbackStats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var err, second error
		store := quota.Fallback(
			storeFunc(func(context.Context, *quota.Transaction) error { return err }),
			storeFunc(func(context.Context, *quota.Transaction) error { return second }),
			quota.FallbackOptions{Logger: slog.New(slog.DiscardHandler)})
		want := map[string]int64{"unusable": 0, "full": 0, "busy": 0, "slow": 0, "open": 0, "timeout": 0, "error": 0}
		check := func(active bool) {
			t.Helper()
			if got := store.Stats(); got.Active != active || !maps.Equal(got.Decided, want) {
				t.Fatalf("got %+v, want %v and %v", got, active, want)
			}
		}
		ask := func(e, s error) {
			err, second = e, s
			store.Take(t.Context(), once(algorithms.GCRA(10, time.Second)))
		}
		check(false)
		if s := store.Stats(); !s.Since.IsZero() || !s.Last.IsZero() || s.Cause != "" {
			t.Errorf("before: got %+v", s)
		}
		for i, c := range []struct {
			err  error
			name string
		}{{quota.ErrUnusable, "unusable"}, {quota.ErrFull, "full"}, {quota.ErrBusy, "busy"}, {quota.ErrSlow, "slow"}, {quota.ErrOpen, "open"}, {redisstore.ErrTimeout, "timeout"}, {errDown, "error"}} {
			for range i + 1 {
				ask(c.err, nil)
			}
			want[c.name] = int64(i + 1)
			check(true)
		}
		began := time.Now()
		if s := store.Stats(); !s.Since.Equal(began) || !s.Last.Equal(began) {
			t.Errorf("got since %v and last %v, want %v", s.Since, s.Last, began)
		}
		time.Sleep(time.Second / 2)
		ask(errDown, quota.ErrFull) // nobody decides
		check(true)
		failed := time.Now()
		ask(quota.ErrOpen, nil) // an open breaker is no cause
		want["open"]++
		if s := store.Stats(); !s.Since.Equal(began) || !s.Last.Equal(failed) || s.Cause != "error" {
			t.Errorf("got since %v, last %v and cause %q, want %v, %v and error", s.Since, s.Last, s.Cause, began, failed)
		}
		ask(nil, nil)
		check(true) // primary has not yet decided for a second
		time.Sleep(time.Second)
		check(true)
		ask(nil, nil)
		check(false)
		if s := store.Stats(); !s.Since.Equal(began) || !s.Last.Equal(failed) {
			t.Errorf("got since %v and last %v, want %v and %v", s.Since, s.Last, began, failed)
		}
	})
}

// TestFallbackLog: the line that begins an outage names its cause, and the line that ends it
// says how much the secondary has decided. A primary that can never work is logged as an
// error, and again every minute.
func TestFallbackLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		var err error
		store := quota.Fallback(storeFunc(func(context.Context, *quota.Transaction) error { return err }), memory(),
			quota.FallbackOptions{Logger: slog.New(slog.NewTextHandler(&out, nil))})
		ask := func(e error, d time.Duration) (lines []string) {
			out.Reset()
			err = e
			for start := time.Now(); time.Since(start) < d; time.Sleep(100 * time.Millisecond) {
				if err := store.Take(t.Context(), once(algorithms.GCRA(10, time.Second))); err != nil {
					t.Fatal(err)
				}
			}
			for line := range strings.Lines(out.String()) {
				_, line, _ = strings.Cut(line, " ")
				lines = append(lines, strings.TrimSpace(line))
			}
			return lines
		}
		const begins, effect = `msg="quota: primary store failed" err=`, ` effect="the secondary store is used"`
		const loud = `level=ERROR msg="quota: primary store unusable until its setup is changed" err="quota: the store cannot work as it is set up" cause=unusable` + effect
		for _, c := range []struct {
			err  error
			d    time.Duration
			want []string
		}{
			{nil, time.Second, nil},
			{quota.ErrBusy, 5 * time.Minute, []string{"level=WARN " + begins + `"quota: the store is busy" cause=busy` + effect}},
			{nil, 2 * time.Second, []string{`level=INFO msg="quota: primary store works again" after=5m1s decided=3000`}},
			{redisstore.ErrTimeout, time.Second, []string{"level=WARN " + begins + `"redisstore: no answer in time" cause=timeout` + effect}},
			{quota.ErrUnusable, 150 * time.Second, []string{loud, loud, loud}}, // in the same outage
			{nil, 2 * time.Second, []string{`level=INFO msg="quota: primary store works again" after=2m32s decided=1510`}},
			{quota.ErrUnusable, time.Second, []string{loud}}, // a new outage says so at once
			{nil, 2 * time.Second, []string{`level=INFO msg="quota: primary store works again" after=1.9s decided=10`}},
			{redisstore.ErrTimeout, 100 * time.Millisecond, []string{"level=WARN " + begins + `"redisstore: no answer in time" cause=timeout` + effect}},
			{nil, 2 * time.Second, []string{`level=INFO msg="quota: primary store works again" after=1s decided=1`}}, // each outage has an end
		} {
			if got := ask(c.err, c.d); strings.Join(got, "\n") != strings.Join(c.want, "\n") {
				t.Errorf("%v for %v: got\n%s\nwant\n%s", c.err, c.d, strings.Join(got, "\n"), strings.Join(c.want, "\n"))
			}
		}
	})
}
