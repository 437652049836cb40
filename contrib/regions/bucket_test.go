package regions

import (
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/redistest"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/storetest"
)

// TestBucketLua: the Go and the Lua arithmetic of a bucket make the same decisions, for a past
// of one step and of many.
func TestBucketLua(t *testing.T) {
	var limits []quota.Limit
	for i, p := range []past{
		{{333, 0}},
		{{9000, 3000}, {333, 0}},
		{{7000, 100}, {5000, 2000}, {2000, 50_000}, {1000, 10_000_000}, {100, 0}},
	} {
		for j, l := range []quota.Limit{algorithms.GCRA(100, time.Second).WithBurst(30), algorithms.TokenBucket(5, 20_000, time.Hour), algorithms.GCRA(3_000_000, time.Second)} {
			b := bucket{&p, l.Quota, l.Algorithm.Name()}
			l.Quota, l.Burst, l.Algorithm = b.rate(0), max(l.Burst, 1), b
			limits = append(limits, l.Named(string(rune('a'+3*i+j))))
		}
	}
	storetest.Limits(t, weirtest.Memory(), limits...)
	storetest.Limits(t, weirtest.Redis(t, redistest.Server(t).Addr(), 5*time.Second), limits...)
	storetest.Limits(t, weirtest.Redis(t, redistest.Lua54(t).Addr(), 5*time.Second), limits...)
}
