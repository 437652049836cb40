package redisstore_test

import (
	"context"
	"errors"
	"net"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/redistest"
	"github.com/seed83679106/weir/redisstore"
)

// TestCorrupt: the error of a value that can't be read names rule and limit, and
// neither the key nor what the value holds.
func TestCorrupt(t *testing.T) {
	server := redistest.Server(t)
	rdb := redis.NewClient(&redis.Options{Addr: server.Addr()})
	t.Cleanup(func() { rdb.Close() })
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	const key, secret = "alice@example.com", "hunter2"
	now := time.Now().UnixMicro()
	for _, limit := range []weir.Limit{
		algorithms.GCRA(5, time.Minute).Named("few"), algorithms.AnchoredWindow(5, time.Minute).Named("few"),
		algorithms.SlidingLog(5, time.Minute).Named("few"), algorithms.Calendar(5, algorithms.Day, nil).Named("few"),
	} {
		for _, cost := range []int64{0, 1, 2} {
			charge := weir.Charge{Rule: "login", Key: key, Limit: limit, Cost: cost}
			name := store.Key(&charge)
			id := "few/" + limit.Algorithm.Name()
			state := strings.Repeat("\x00", 32)
			nan := strings.Repeat("\xff", 32)
			for _, write := range []func() error{
				func() error { return rdb.Set(t.Context(), name, secret, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, "", time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, ";", time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, secret+";", time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+secret, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+state[1:], time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+state+secret, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+",other;"+state, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, id+";"+nan, time.Minute).Err() },
				func() error { return rdb.Set(t.Context(), name, "other;"+nan, time.Minute).Err() },
				func() error {
					return rdb.Set(t.Context(), name, id+";"+strings.Repeat(secret+"  ", 4)[:32], time.Minute).Err()
				},
				func() error { return rdb.RPush(t.Context(), name, secret).Err() },
				func() error { return rdb.RPush(t.Context(), name, now, secret).Err() },
				func() error { return rdb.RPush(t.Context(), name, secret, "="+id+"#"+secret).Err() },
				func() error { return rdb.HSet(t.Context(), name, secret, secret).Err() },
			} {
				rdb.Del(t.Context(), name)
				if err := write(); err != nil {
					t.Fatal(err)
				}
				err := store.Take(t.Context(), &weir.Transaction{Charges: []weir.Charge{charge}})
				if err == nil {
					if limit.Algorithm.Name() != "sliding-log" {
						dump, _ := rdb.Dump(t.Context(), name).Result()
						t.Errorf("%v, cost %d: got no error of %q", limit, cost, dump)
					}
					continue // it reads as nothing
				}
				text := err.Error()
				if strings.Contains(text, key) || strings.Contains(text, secret) || strings.Contains(text, "9999") {
					t.Errorf("%v, cost %d: the error has the key or the value: %s", limit, cost, text)
				}
				if answer := redis.Error(nil); !errors.As(err, &answer) && !strings.HasPrefix(text, `redisstore: rule "login": limit "few"`) {
					t.Errorf("%v, cost %d: the error names neither rule nor limit: %s", limit, cost, text)
				}
			}
		}
	}
}

// TestConnectionRefused: whatever the client, an error says that the connection was
// refused, and not just that there was no answer in time.
func TestConnectionRefused(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	addr := listener.Addr().String()
	listener.Close()
	for name, rdb := range map[string]redis.UniversalClient{
		"default": redis.NewClient(&redis.Options{Addr: addr}),
		"cluster": redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}}),
		"tuned":   redis.NewUniversalClient(redisstore.ClientOptions(0, addr)),
	} {
		t.Run(name, func(t *testing.T) {
			defer rdb.Close()
			store, err := redisstore.New(rdb, redisstore.Options{Timeout: 500 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			tx := func() *weir.Transaction {
				return &weir.Transaction{Charges: []weir.Charge{{Rule: "r", Key: "k", Limit: algorithms.GCRA(5, time.Minute), Cost: 1}}}
			}
			for range 2 {
				errs := []error{store.Take(context.Background(), tx())}
				errs = append(errs, store.TakeEach(context.Background(), []*weir.Transaction{tx(), tx()})...)
				for _, err := range errs {
					if !errors.Is(err, syscall.ECONNREFUSED) || !strings.Contains(err.Error(), "connection refused") {
						t.Errorf("got %v, want a connection refused", err)
					}
				}
			}
		})
	}
}
