package algorithms_test

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
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
		{algorithms.GCRA(gib, time.Hour), "quota 1073741824 in a period of 1h0m0s cannot be counted exactly: their product in µs exceeds 2^50, and no common divisor makes it small enough; quota 1073741250 can be counted"},
		{algorithms.GCRA(gib, 24*time.Hour), "; quota 1073737728 can be counted"},
		{algorithms.GCRA(100*gib, 24*time.Hour), "; quota 107373600000 can be counted"},
		{algorithms.GCRA(1_000_000_007, 24*time.Hour), "; quota 1000000000 can be counted"},
		{algorithms.GCRA(math.MaxInt64, time.Hour), "; quota 1125896400000000 can be counted"},
		{algorithms.GCRA(gib, time.Hour).WithBurst(1 << 20), ""},
		{algorithms.GCRA(gib+1, time.Hour).WithBurst(gib), "; quota 1073741250 can be counted"},
		{algorithms.GCRA(1, time.Second).WithBurst(math.MaxInt64), "; burst 1125899906 can be counted"},
		{algorithms.GCRA(3_000_000, time.Second).WithBurst(3), ""},
		{algorithms.GCRA(3_000_000, time.Second).WithBurst(2), "quota 3000000 in a period of 1s cannot be counted exactly: a burst of 2 is less than what becomes free in each µs; quota 2000000 can be counted"},
		{algorithms.TokenBucket(2, 3, time.Microsecond), "; quota 2 can be counted"},
		{algorithms.GCRA(1, math.MaxInt64/1000*1000), "no common divisor makes it small enough"},
		{algorithms.FixedWindow(math.MaxInt64, time.Hour), "quota 9223372036854775807 exceeds 2^50; quota 1125899906842624 can be counted"},
	} {
		err := c.limit.Validate()
		if (err == nil) != (c.want == "") || err != nil && !strings.HasSuffix(err.Error(), c.want) {
			t.Errorf("%v: got %v, want %q", c.limit, err, c.want)
		}
	}
}

// TestNearestIsNearest: the quota that the error names can be counted, and no higher quota,
// up to the quota of the limit, can be counted. The test tries the 10,002 highest of these
// quotas.
func TestNearestIsNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	periods := []time.Duration{time.Hour, 7 * time.Hour, 24 * time.Hour, 30 * 24 * time.Hour, 365 * 24 * time.Hour, 999_983 * time.Second, 1<<42*time.Microsecond + time.Second}
	named := 0
	for range 1000 {
		l := algorithms.GCRA(1+r.Int64N(2_000_000), periods[r.IntN(len(periods))])
		if r.IntN(2) == 0 {
			l.Burst = 1 + r.Int64N(2_000_000)
		}
		err := l.Validate()
		if err == nil {
			continue
		}
		_, text, _ := strings.Cut(err.Error(), "; quota ")
		var near int64
		if _, scanErr := fmt.Sscan(text, &near); scanErr != nil || near < 1 {
			t.Fatalf("%v: got %v, want an error that names a quota", l, err)
		}
		named++
		at := l
		for ; at.Quota > max(near, l.Quota-10_002); at.Quota-- {
			if at.Algorithm.(quota.Validator).Validate(&at) == nil { // Limit.Validate writes the text of the error
				t.Fatalf("%v: the quota %d can be counted, but the error names the lower quota %d", l, at.Quota, near)
			}
		}
		if at.Quota = near; at.Validate() != nil {
			t.Fatalf("%v: the error names the quota %d, which cannot be counted", l, near)
		}
	}
	if named < 200 {
		t.Errorf("the test has tried only %d limits that cannot be counted and whose error names a quota, want at least 200", named)
	}
}
