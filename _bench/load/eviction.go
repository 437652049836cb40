package main

import (
	"context"
	"fmt"
	"log"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// eviction measures how much a limited key is admitted under several eviction policies, if
// made-up keys fill Redis. Each time Redis evicts the limited key, the key gets a new quota.
func eviction(plain, _ string) {
	rdb := redis.NewClient(&redis.Options{Addr: plain})
	defer rdb.Close()
	ctx := context.Background()
	set := func(name, value string) {
		if err := rdb.ConfigSet(ctx, name, value).Err(); err != nil {
			log.Fatal(err)
		}
	}
	d := 4 * time.Second
	if *quick {
		d = time.Second
	}
	fmt.Printf("A key with 10 units a minute is charged 200 times a second for %v. Meanwhile made-up keys with a period of an hour fill a Redis of 5 MB.\n", d)
	fmt.Println("| maxmemory-policy | admitted in three runs | keys evicted | errors for made-up keys |\n| --- | --- | --- | --- |")
	for _, policy := range []string{"noeviction", "volatile-lfu", "volatile-lru", "allkeys-lru", "volatile-ttl"} {
		set("maxmemory-policy", policy)
		var admitted []int64
		var errs atomic.Int64
		before := evicted(rdb)
		for range 3 {
			rdb.FlushAll(ctx)
			set("maxmemory", "5mb")
			admitted = append(admitted, flooded(plain, d, &errs))
			set("maxmemory", "0")
		}
		fmt.Printf("| %s | %v | %d | %d |\n", policy, admitted, evicted(rdb)-before, errs.Load())
	}
	rdb.FlushAll(ctx)
}

func evicted(rdb *redis.Client) (n int64) {
	fmt.Sscan(rdb.InfoMap(context.Background(), "stats").Item("Stats", "evicted_keys"), &n)
	return n
}

func flooded(addr string, d time.Duration, errs *atomic.Int64) (admitted int64) {
	rdb := redis.NewUniversalClient(redisstore.ClientOptions(0, addr))
	defer rdb.Close()
	store, err := redisstore.New(rdb, redisstore.Options{Timeout: time.Second})
	if err != nil {
		log.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), d)
	defer cancel()
	var wg sync.WaitGroup
	var made atomic.Int64
	for range 64 {
		wg.Go(func() {
			var tx quota.Transaction
			for ctx.Err() == nil {
				tx.Charges = append(tx.Charges[:0], quota.Charge{Rule: "r", Key: fmt.Sprint("made up ", made.Add(1)), Limit: algorithms.AnchoredWindow(100, time.Hour), Cost: 1})
				if store.Take(context.Background(), &tx) != nil {
					errs.Add(1)
				}
			}
		})
	}
	hot := quota.Transaction{Charges: []quota.Charge{{Rule: "r", Key: "hot", Limit: algorithms.AnchoredWindow(10, time.Minute), Cost: 1}}}
	for ; ctx.Err() == nil; time.Sleep(5 * time.Millisecond) {
		if store.Take(context.Background(), &hot) == nil && hot.Allowed() {
			admitted++
		}
	}
	wg.Wait()
	return admitted
}
