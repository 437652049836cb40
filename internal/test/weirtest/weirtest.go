// Package weirtest has helpers that tests of several packages share.
package weirtest

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/sparse"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
	"github.com/seed83679106/weir/redisstore"
)

// A StoreFunc is a function that is used as a store.
type StoreFunc func(ctx context.Context, t *quota.Transaction) error

// Take implements weir.Store.
func (f StoreFunc) Take(ctx context.Context, t *quota.Transaction) error { return f(ctx, t) }

// ErrDown is an error that a store may return if it cannot be reached.
var ErrDown = errors.New("dial tcp 127.0.0.1:6379: connection refused")

// A Log is a log that a test reads while other goroutines write to it.
type Log struct {
	mu sync.Mutex
	b  strings.Builder
}

func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Together calls f(0) to f(n−1) at once, each on a goroutine of its own, and waits until
// all calls have returned.
func Together(n int, f func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			f(i)
		})
	}
	close(begin)
	wg.Wait()
}

// Meanwhile has n goroutines call f, each with its number, until f returns false or stop is
// called. stop waits until all calls have returned.
func Meanwhile(n int, f func(i int) bool) (stop func()) {
	var wg sync.WaitGroup
	var stopped atomic.Bool
	for i := range n {
		wg.Go(func() {
			for !stopped.Load() && f(i) {
			}
		})
	}
	return func() {
		stopped.Store(true)
		wg.Wait()
	}
}

// FailsWith reports whether the text of err contains want or, if want is "", whether err is
// nil.
func FailsWith(err error, want string) bool {
	if want == "" || err == nil {
		return want == "" && err == nil
	}
	return strings.Contains(err.Error(), want)
}

// A Distant is a store behind a slow network: each call sleeps for Trip, half of it before
// Store decides and half of it afterwards.
type Distant struct {
	weir.Store
	Trip  atomic.Int64 // ns
	Calls atomic.Int64
}

// Take implements weir.Store.
func (d *Distant) Take(ctx context.Context, t *quota.Transaction) error {
	d.Calls.Add(1)
	time.Sleep(time.Duration(d.Trip.Load() / 2))
	err := d.Store.Take(ctx, t)
	time.Sleep(time.Duration(d.Trip.Load() / 2))
	return err
}

// Memory returns a new store in memory.
func Memory() weir.Store { return memstore.New(memstore.Options{}) }

// Redis returns a store in the Redis at addr.
func Redis(t testing.TB, addr string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, addr))
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

// Conforms runs the suite of package storetest in bubbles of testing/synctest, on a new
// store for each test.
func Conforms(t *testing.T, open func() weir.Store) {
	for _, test := range storetest.Tests() {
		t.Run(test.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.Run(t, open()) })
		})
	}
}

// Once returns a transaction that spends one unit of a limit.
func Once(l weir.Limit) *quota.Transaction {
	return &quota.Transaction{Charges: []quota.Charge{{Rule: "api", Key: "192.0.2.1", Limit: l, Cost: 1}}}
}

// Take has a store decide charges, and fails the test after an error.
func Take(t testing.TB, store weir.Store, within time.Duration, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	tx := &quota.Transaction{Charges: charges, Within: within}
	if err := store.Take(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	return tx
}

// New is weir.New, but fails the test after an error. It counts as a reload of a file, so that the Logger
// gets no warning about Limiters that other tests have made.
func New(t testing.TB, store weir.Store, o weir.Options) *weir.Limiter {
	t.Helper()
	sparse.Reloads.Add(1)
	defer sparse.Reloads.Add(-1)
	l, err := weir.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// Ask returns a GET request from the address remote. fields are names of header fields,
// each followed by its value.
func Ask(path, remote string, fields ...string) *http.Request {
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr = remote
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

// Get returns a GET request from 192.0.2.1 with header fields like "Name: value".
func Get(fields ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	for _, f := range fields {
		name, value, _ := strings.Cut(f, ": ")
		r.Header.Add(name, value)
	}
	return r
}

// From returns a GET request from the address peer, with one X-Forwarded-For field for each
// of xff.
func From(peer string, xff ...string) *http.Request {
	r := httptest.NewRequest("GET", "/", nil)
	r.RemoteAddr = peer
	r.Header["X-Forwarded-For"] = xff
	return r
}

// Do returns the response of a handler.
func Do(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// Show prints the results of key for r.
func Show(key weir.KeyFunc, r *http.Request) {
	k, ok := key(r)
	fmt.Printf("%q %v\n", k, ok)
}

// IsByIP reports whether key has a form that weir.ByIP returns.
func IsByIP(key string) bool {
	if key == "unknown" {
		return true
	}
	if addr, err := netip.ParseAddr(key); err == nil {
		return addr.Is4() && addr.String() == key
	}
	p, err := netip.ParsePrefix(key)
	return err == nil && p.Addr().Is6() && !p.Addr().Is4In6() && p.Bits() == 64 && p.Masked().String() == key
}

// Reserve reserves a turn that begins within maxWait.
func Reserve(t testing.TB, store weir.Store, maxWait time.Duration, charges ...quota.Charge) *quota.Reservation {
	t.Helper()
	r, err := quota.Reserve(t.Context(), store, maxWait, charges...)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// Cancel gives a turn back.
func Cancel(t testing.TB, r *quota.Reservation) {
	t.Helper()
	if err := r.Cancel(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// Peek is quota.Peek, but fails the test after an error.
func Peek(t testing.TB, store weir.Store, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	tx, err := quota.Peek(t.Context(), store, charges...)
	if err != nil {
		t.Fatal(err)
	}
	return tx
}

// IsOpen reports whether a Breaker is open.
func IsOpen(store quota.Store) bool { return store.(*quota.BreakerStore).Stats().Open }
