package lease_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/storetest"
)

var errDown = errors.New("dial tcp 127.0.0.1:6379: connection refused")

func once(l weir.Limit) *weir.Transaction {
	return &weir.Transaction{Charges: []weir.Charge{{Rule: "api", Key: "192.0.2.1", Limit: l, Cost: 1}}}
}

// conforms runs the suite in bubbles, on a new store for each test.
func conforms(t *testing.T, open func() weir.Store) {
	for _, test := range storetest.Tests() {
		t.Run(test.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) { test.Run(t, open()) })
		})
	}
}

func memory() weir.Store { return memstore.New(memstore.Options{}) }

// A distant store takes as long as a round trip, half of it before it decides.
type distant struct {
	weir.Store
	trip  atomic.Int64 // ns
	calls atomic.Int64
}

func (d *distant) Take(ctx context.Context, t *weir.Transaction) error {
	d.calls.Add(1)
	time.Sleep(time.Duration(d.trip.Load() / 2))
	err := d.Store.Take(ctx, t)
	time.Sleep(time.Duration(d.trip.Load() / 2))
	return err
}

func take(t testing.TB, store weir.Store, within time.Duration, charges ...weir.Charge) *weir.Transaction {
	t.Helper()
	tx := &weir.Transaction{Charges: charges, Within: within}
	if err := store.Take(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	return tx
}

func redisAt(t testing.TB, addr string, timeout time.Duration) *redisstore.Store {
	t.Helper()
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(timeout, addr))
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: timeout})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func ask(path, remote string, fields ...string) *http.Request {
	r := httptest.NewRequest("GET", path, nil)
	r.RemoteAddr = remote
	for i := 0; i < len(fields); i += 2 {
		r.Header.Add(fields[i], fields[i+1])
	}
	return r
}

func do(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

func must(t *testing.T, store weir.Store, o weir.Options) *weir.Limiter {
	t.Helper()
	l, err := weir.New(store, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}
