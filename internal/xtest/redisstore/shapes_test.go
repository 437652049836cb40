package redisstore_test

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/quota"
)

// TestShapes: both servers compile the scripts of many charges, spend the last unit once, and get
// it back, whether the charges are of one key or of many, and whatever their algorithms. Near
// maxDirect a script has nearly as many locals and registers as Lua allows.
func TestShapes(t *testing.T) {
	for name, addr := range map[string]string{"miniredis": miniredis.RunT(t).Addr(), "server": redistest.Server(t).Addr()} {
		store := newStore(t, client(t, redis.NewClient(&redis.Options{Addr: addr})))
		for of, limit := range map[string]func(i int) quota.Limit{
			"meters":  func(int) quota.Limit { return algorithms.GCRA(2, 10_000*time.Hour) },
			"windows": func(int) quota.Limit { return algorithms.SlidingWindow(2, 10_000*time.Hour) },
			"logs":    func(int) quota.Limit { return algorithms.SlidingLog(2, 10_000*time.Hour) },
			"all": func(i int) quota.Limit {
				return []quota.Limit{
					algorithms.GCRA(2, 10_000*time.Hour), algorithms.TokenBucket(2, 2, 10_000*time.Hour), algorithms.LeakyBucket(2, 2, 10_000*time.Hour), algorithms.FixedWindow(2, 10_000*time.Hour),
					algorithms.AnchoredWindow(2, 10_000*time.Hour), algorithms.SlidingWindow(2, 10_000*time.Hour), algorithms.Calendar(2, algorithms.Month, nil), algorithms.SlidingLog(2, 10_000*time.Hour),
				}[i%8]
			},
		} {
			for _, n := range []int{1, 2, 3, 8, 9, 10, 11, 15, 16, 19, 20, 21} {
				for _, keys := range slices.Compact([]int{1, min(2, n), n}) {
					var charges []quota.Charge
					for i := range n {
						charges = append(charges, quota.Charge{Rule: of, Key: fmt.Sprint(n, keys, i%keys), Limit: limit(i).Named(fmt.Sprint(i)), Cost: 1})
					}
					spends := func(want bool) *quota.Transaction {
						tx := take(t, store, charges...)
						if tx.Allowed() != want {
							t.Errorf("%s, %d %s of %d keys: got allowed %v, want %v", name, n, of, keys, tx.Allowed(), want)
						}
						return tx
					}
					spends(true)
					last := spends(true)
					spends(false)
					back := slices.Clone(charges)
					for i := range back {
						back[i].Cost, back[i].Spent = -1, last.Decisions[i].At
					}
					take(t, store, back...)
					spends(true)
					spends(false)
				}
			}
		}
	}
}
