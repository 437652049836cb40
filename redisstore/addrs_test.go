package redisstore_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/redisstore"
)

// TestAddrs: the addresses of each kind of client, and never its password.
func TestAddrs(t *testing.T) {
	for want, rdb := range map[string]redis.UniversalClient{
		"[10.0.0.1:6379]":               redis.NewClient(&redis.Options{Addr: "10.0.0.1:6379", Username: "u", Password: "secret"}),
		"[10.0.0.1:6379 10.0.0.2:6379]": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{"10.0.0.2:6379", "10.0.0.1:6379"}, Password: "secret"}),
		"[10.0.0.3:6379 10.0.0.4:6379]": redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"b": "10.0.0.3:6379", "a": "10.0.0.4:6379"}, Password: "secret"}),
		"[FailoverClient]":              redis.NewFailoverClient(&redis.FailoverOptions{MasterName: "m", SentinelAddrs: []string{"10.0.0.5:26379"}, Password: "secret"}),
	} {
		store, err := redisstore.New(rdb, redisstore.Options{})
		if err != nil {
			t.Fatal(err)
		}
		if got := fmt.Sprint(store.Addrs()); got != want {
			t.Errorf("%T: got %s, want %s", rdb, got, want)
		}
		rdb.Close()
	}
}
