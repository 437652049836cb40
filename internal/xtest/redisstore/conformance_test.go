package redisstore_test

import (
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/storetest"
)

// newStore returns a store with a Timeout of 10 s, long enough for a busy machine.
func newStore(t testing.TB, rdb redis.UniversalClient) *redisstore.Store {
	t.Helper()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	return store
}

func client(t testing.TB, rdb redis.UniversalClient) redis.UniversalClient {
	t.Cleanup(func() { rdb.Close() })
	return rdb
}

func take(t *testing.T, store quota.Store, charges ...quota.Charge) *quota.Transaction {
	t.Helper()
	tx := &quota.Transaction{Charges: charges}
	if err := store.Take(t.Context(), tx); err != nil {
		t.Fatalf("Take: %v", err)
	}
	return tx
}

// TestConformanceMini: a store passes the tests of package storetest on miniredis, too.
// TestConformance of package redisstore runs them on a redis-server, in a tenth of the time.
func TestConformanceMini(t *testing.T) {
	if !rounds.Long() {
		t.Skip("miniredis takes ten times as long as a redis-server: WEIR_LONG is not set")
	}
	t.Parallel()
	rdb := client(t, redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()}))
	storetest.Run(t, func(t *testing.T) quota.Store { return newStore(t, rdb) })
}
