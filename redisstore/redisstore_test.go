package redisstore_test

import (
	"testing"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
	"github.com/seed83679106/weir/storetest"
)

func TestConformance(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	storetest.Run(t, func(t *testing.T) weir.Store {
		s, err := redisstore.New(rdb, redisstore.Options{Timeout: 1e9})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}

func TestConformanceMini(t *testing.T) {
	server := miniredis.RunT(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer rdb.Close()
	storetest.Run(t, func(t *testing.T) weir.Store {
		s, err := redisstore.New(rdb, redisstore.Options{Timeout: 1e9})
		if err != nil {
			t.Fatal(err)
		}
		return s
	})
}
