package weir_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// failsUntil returns a store that fails with err for the given time from now on.
func failsUntil(d time.Duration, err error) weir.Store {
	start, next := time.Now(), memory()
	return storeFunc(func(ctx context.Context, tx *quota.Transaction) error {
		if time.Since(start) < d {
			return err
		}
		return next.Take(ctx, tx)
	})
}

// TestTransportOutage: a request waits for a store that is busy or down, for up to MaxWait.
// Then OnError decides. By default an outage sends the request, and the log says so. Nothing
// else sends a request that was not decided.
func TestTransportOutage(t *testing.T) {
	failsClosed := func(_ *http.Request, err error) error { return err }
	failsOpen := func(*http.Request, error) error { return nil }
	errOwn := errors.New("not now")
	unusable := fmt.Errorf("wrong password: %w", quota.ErrUnusable)
	type outcome struct {
		err          error
		at, atLatest time.Duration
		unlimited    bool
	}
	const s, forever = time.Second, time.Hour
	for _, c := range []struct {
		name    string
		err     error
		until   time.Duration
		maxWait time.Duration
		onError func(*http.Request, error) error
		want    outcome
	}{
		{"down", errDown, forever, 0, nil, outcome{nil, 0, 0, true}},
		{"down, fails closed", errDown, forever, 0, failsClosed, outcome{errDown, 0, 0, false}},
		{"busy", quota.ErrBusy, forever, 0, nil, outcome{quota.ErrBusy, 0, 0, false}},
		{"busy, fails open", quota.ErrBusy, forever, 0, failsOpen, outcome{nil, 0, 0, true}},
		{"another error", errDown, forever, 0, func(*http.Request, error) error { return errOwn }, outcome{errOwn, 0, 0, false}},
		{"unusable", unusable, forever, 10 * s, nil, outcome{quota.ErrUnusable, 0, 0, false}},
		{"unusable, fails open", unusable, forever, 10 * s, failsOpen, outcome{nil, 0, 0, true}},
		{"busy for a moment", quota.ErrBusy, 3 * s, 10 * s, nil, outcome{nil, 3 * s, 5 * s, false}},
		{"down for a moment", errDown, 3 * s, 10 * s, nil, outcome{nil, 3 * s, 5 * s, false}},
		{"down for a moment, fails closed", errDown, 3 * s, 10 * s, failsClosed, outcome{nil, 3 * s, 5 * s, false}},
		{"down until MaxWait is over", errDown, 10 * s, 10 * s, failsClosed, outcome{nil, 10 * s, 10 * s, false}},
		{"down for longer", errDown, forever, 10 * s, nil, outcome{nil, 10 * s, 10 * s, true}},
		{"down for longer, fails closed", errDown, forever, 10 * s, failsClosed, outcome{errDown, 10 * s, 10 * s, false}},
		{"busy for longer", quota.ErrBusy, forever, 10 * s, nil, outcome{quota.ErrBusy, 10 * s, 10 * s, false}},
		{"the caller gives up", errDown, forever, forever, failsClosed, outcome{context.Canceled, 20 * s, 20 * s, false}},
	} {
		synctest.Test(t, func(t *testing.T) {
			var log bytes.Buffer
			p := &partner{start: time.Now()}
			client := outboundWith(t, failsUntil(c.until, c.err), weir.TransportOptions{Base: p, OnError: c.onError},
				weir.Options{MaxWait: c.maxWait, Logger: slog.New(slog.NewTextHandler(&log, nil))}, algorithms.GCRA(1, time.Minute))
			ctx, cancel := context.WithCancel(t.Context())
			defer time.AfterFunc(20*s, cancel).Stop()
			body := &closing{make(chan bool, 1)}
			r, _ := http.NewRequestWithContext(ctx, "POST", "http://example.com/", body)
			_, err := client.Do(r)
			if took := time.Since(p.start); !errors.Is(err, c.want.err) || took < c.want.at || took > c.want.atLatest {
				t.Errorf("%s: got %v after %v, want %+v", c.name, err, took, c.want)
			}
			if sent := len(p.arrivals) == 1; sent != (c.want.err == nil) {
				t.Errorf("%s: sent %v, error %v", c.name, sent, err)
			}
			if !<-body.closed {
				t.Errorf("%s: the body was not closed", c.name)
			}
			if strings.Contains(log.String(), "passed=true") != c.want.unlimited || !strings.Contains(log.String(), `msg="weir: request not decided" rule=partner err=`) {
				t.Errorf("%s: got the log %q, want a request without a limit: %v", c.name, &log, c.want.unlimited)
			}
		})
	}
}

// TestTransportAfterOutage: requests that have waited for the store together are sent as the
// limit allows, and not as a burst, even in the last moment of MaxWait.
func TestTransportAfterOutage(t *testing.T) {
	for _, c := range []struct {
		until, maxWait time.Duration
		want           int // requests that are sent
	}{
		{time.Second, time.Minute, 5},
		{time.Second, time.Second, 1},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := &partner{start: time.Now()}
			client := outbound(t, failsUntil(c.until, quota.ErrBusy), p, weir.Options{MaxWait: c.maxWait, Logger: slog.New(slog.DiscardHandler)}, algorithms.LeakyBucket(5, 1, time.Second))
			var wg sync.WaitGroup
			for range 5 {
				wg.Go(func() {
					if _, err := client.Get("http://example.com/"); err != nil && !errors.As(err, new(*weir.RefusedError)) {
						t.Error(err)
					}
				})
			}
			wg.Wait()
			if len(p.arrivals) != c.want {
				t.Errorf("%v: arrivals at %v, want %d", c, p.arrivals, c.want)
			}
			for i := 1; i < len(p.arrivals); i++ {
				a, _ := time.ParseDuration(p.arrivals[i-1])
				b, _ := time.ParseDuration(p.arrivals[i])
				if b-a < time.Second-time.Microsecond { // stores count in whole microseconds
					t.Errorf("%v: arrivals at %v, want a second apart", c, p.arrivals)
				}
			}
		})
	}
}

// TestTransportWaitingForTheStore: a request that waits for the store is one of MaxWaiting,
// and a store that is away is asked seldom.
func TestTransportWaitingForTheStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		var mu sync.Mutex
		store := storeFunc(func(context.Context, *quota.Transaction) error {
			mu.Lock()
			defer mu.Unlock()
			asked++
			return errDown
		})
		p := &partner{start: time.Now()}
		client := outbound(t, store, p, weir.Options{MaxWait: time.Minute, MaxWaiting: 3, Logger: slog.New(slog.DiscardHandler)}, algorithms.GCRA(1, time.Second))
		var wg sync.WaitGroup
		for range 5 {
			wg.Go(func() { checkGet(t, client, algorithms.GCRA(1, time.Second)) })
		}
		wg.Wait()
		if want := []string{"0s", "0s", "1m0s", "1m0s", "1m0s"}; !slices.Equal(p.arrivals, want) {
			t.Errorf("arrivals at %v, want %v", p.arrivals, want)
		}
		if asked < 5+3*30 || asked > 5+3*66 { // a pause is 1 to 2 s long, the first five are shorter
			t.Errorf("the store was asked %d times", asked)
		}
	})
}

// TestTransportOptions: Transport refuses invalid options, and names them.
func TestTransportOptions(t *testing.T) {
	l := must(t, memory(), weir.Options{Rules: []weir.Rule{{Name: "partner", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1_000_000, 24*time.Hour)}}}})
	for _, c := range []struct {
		o    weir.TransportOptions
		want string
	}{
		{weir.TransportOptions{}, "<nil>"},
		{weir.TransportOptions{Buffer: time.Second}, "<nil>"},
		{weir.TransportOptions{Buffer: -time.Second}, "weir: Buffer is -1s; want whole microseconds, at least 0"},
		{weir.TransportOptions{Buffer: time.Nanosecond}, "weir: Buffer is 1ns; want whole microseconds, at least 0"},
		{weir.TransportOptions{MaxPause: -1}, "weir: MaxPause is -1ns; want at least 0"},
		{weir.TransportOptions{Buffer: 7 * time.Microsecond}, `weir: rule "partner": limit "1d" with a buffer of 7µs: `},
	} {
		rt, err := l.Transport(c.o)
		if !strings.HasPrefix(fmt.Sprint(err), c.want) || (rt == nil) != (err != nil) {
			t.Errorf("%+v: got %v, %v, want %s", c.o, rt, err, c.want)
		}
	}
}
