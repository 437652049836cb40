package redisstore_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/redisstore"
)

// TestTwoCalendars: in a transaction with several calendars, each decides by its own windows. The
// test counts the units of each window itself.
func TestTwoCalendars(t *testing.T) {
	t.Parallel()
	onBothLuas(t, func(t *testing.T, rdb *redis.Client, server world) {
		store, err := redisstore.New(rdb, redisstore.Options{Timeout: 10 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		const most = 4
		offsets := []time.Duration{0, 5 * time.Hour, -11 * time.Hour}
		for _, keys := range [][]string{{"k", "k", "k"}, {"a", "b", "c"}, {"a", "a", "b"}} {
			r := rand.New(rand.NewPCG(1, 2))
			rule := fmt.Sprint(keys)
			spent := map[string]int64{}
			now := time.Now().Truncate(time.Microsecond)
			for step := range 200 {
				now = now.Add(time.Duration(r.Int64N(int64(6 * time.Hour)))).Truncate(time.Microsecond)
				server.SetTime(now)
				var tx quota.Transaction
				var windows []string
				fits := true
				for i, offset := range offsets {
					limit := algorithms.Calendar(most, algorithms.Day, time.FixedZone("", int(offset.Seconds()))).Named(fmt.Sprint(i))
					tx.Charges = append(tx.Charges, quota.Charge{Rule: rule, Key: keys[i], Limit: limit, Cost: 1})
					windows = append(windows, fmt.Sprint(i, now.Add(offset).UTC().Format(time.DateOnly)))
					fits = fits && spent[windows[i]] < most
				}
				for i := range 20 * (step % 2) { // so many charges are decided by general.lua
					limit := algorithms.GCRA(1_000_000, time.Second).Named(fmt.Sprint("more", i))
					tx.Charges = append(tx.Charges, quota.Charge{Rule: rule, Key: "k", Limit: limit, Cost: 1})
				}
				if err := store.Take(context.Background(), &tx); err != nil {
					t.Fatal(err)
				}
				for i, w := range windows {
					if fits {
						spent[w]++
					}
					if d := tx.Decisions[i]; tx.Allowed() != fits || d.Remaining != most-spent[w] {
						t.Fatalf("%s, step %d, calendar %d, %v: got %t and %d left, want %t and %d", rule, step, i, now.UTC(), tx.Allowed(), d.Remaining, fits, most-spent[w])
					}
				}
			}
		}
	})
}
