package algorithms_test

import (
	"errors"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
	"github.com/seed83679106/weir/quota/optional"
)

// TestNearest: the error of a limit that cannot be counted exactly names the nearest quota
// or burst that can be counted.
func TestNearest(t *testing.T) {
	const gib = 1 << 30
	for _, c := range []struct {
		limit quota.Limit
		want  string // how the error ends; "" if the limit can be counted
	}{
		{algorithms.GCRA(gib, time.Minute), ""},
		{algorithms.GCRA(1_000_000_007, 24*time.Hour), ""},
		{algorithms.GCRA(1<<50, 365*24*time.Hour), ""},
		{algorithms.GCRA(1<<50+1, time.Hour), "quota 1125899906842625 exceeds 2^50; quota 1125899906842624 can be counted"},
		{algorithms.GCRA(gib, time.Hour).WithBurst(math.MaxInt64), "burst 9223372036854775807 exceeds 2^50 or what becomes free in 2^50 µs (35 years); burst 335812727670730 can be counted"},
		{algorithms.GCRA(1, time.Second).WithBurst(math.MaxInt64), "burst 9223372036854775807 exceeds 2^50 or what becomes free in 2^50 µs (35 years); burst 1125899906 can be counted"},
		{algorithms.GCRA(1, time.Second).WithBurst(1125899906), ""},
		{algorithms.GCRA(3_000_000, time.Second).WithBurst(3), ""},
		{algorithms.GCRA(3_000_000, time.Second).WithBurst(2), "quota 3000000 is too large for a burst of 2, which is less than what becomes free in each µs; quota 2000000 can be counted"},
		{algorithms.TokenBucket(2, 3, time.Microsecond), "; quota 2 can be counted"},
		{algorithms.GCRA(1, (1<<50+1)*time.Microsecond), "want at most 2^50 µs"},
		{algorithms.GCRA(5, 1<<50*time.Microsecond), ""},
		{algorithms.FixedWindow(math.MaxInt64, time.Hour), "quota 9223372036854775807 exceeds 2^50; quota 1125899906842624 can be counted"},
	} {
		err := c.limit.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.limit, err, c.want)
		}
	}
}

// TestNearestIsNearest: the limit that the error names can be counted, and a limit whose quota or
// burst is higher by 1 cannot.
func TestNearestIsNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for range 10_000 {
		any := func(bits int) int64 { return 1 + r.Int64N(1<<(1+r.IntN(bits))) }
		l := algorithms.GCRA(any(61), time.Duration(any(50))*time.Microsecond)
		if r.IntN(2) == 0 {
			l.Burst = any(61)
		}
		var uncountable optional.Uncountable
		if !errors.As(l.Validate(), &uncountable) {
			continue
		}
		near := uncountable.Nearest()
		more := near
		if near.Burst != l.Burst {
			more.Burst++
		} else {
			more.Quota++
		}
		if near.Validate() != nil || more.Validate() == nil || near.Quota > l.Quota || near.Burst > l.Burst || near.Period != l.Period {
			t.Fatalf("%v: the nearest is %v (%v), and %v: %v", l, near, near.Validate(), more, more.Validate())
		}
	}
}
