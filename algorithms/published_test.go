package algorithms_test

import (
	"testing"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/rounds"
	"github.com/seed83679106/weir/quota"
)

// A call is a step of a published example: n charges of one unit at one instant, and what
// the example says about them.
type call struct {
	at        time.Duration // since the hour began
	n         int
	pass      int           // how many of the charges are admitted
	remaining int64         // after the charges
	retry     time.Duration // RetryAfter of the last charge; 0 if it is admitted
}

// TestPublished decides the examples of well-known articles on the algorithms, and gets the
// results that the articles give.
func TestPublished(t *testing.T) {
	const ms = time.Millisecond
	hour := time.Date(2026, 1, 1, 12, 0, 0, 0, time.UTC)
	tests := []struct {
		name  string
		limit quota.Limit
		calls []call
	}{
		{"GCRA, 10 per 60 s: 10 at once, then one each 6 s", algorithms.GCRA(10, time.Minute), []call{
			{0, 10, 10, 0, 0},
			{0, 1, 0, 0, 6 * time.Second},
			{6*time.Second - time.Microsecond, 1, 0, 0, time.Microsecond},
			{6 * time.Second, 2, 1, 0, 6 * time.Second},
			{12 * time.Second, 2, 1, 0, 6 * time.Second},
			{42 * time.Second, 0, 0, 5, 0},
			{72 * time.Second, 11, 10, 0, 6 * time.Second},
			{1000 * time.Second, 11, 10, 0, 6 * time.Second},
		}},
		{"GCRA, 20 per 30 s: one each 1.5 s", algorithms.GCRA(20, 30*time.Second), []call{
			{0, 21, 20, 0, 1500 * ms},
			{1499 * ms, 1, 0, 0, ms},
			{1500 * ms, 2, 1, 0, 1500 * ms},
			{4500 * ms, 3, 2, 0, 1500 * ms},
			{34500 * ms, 21, 20, 0, 1500 * ms},
		}},
		{"token bucket, 10 refilled with 2 a second", algorithms.TokenBucket(10, 2, time.Second), []call{
			{0, 11, 10, 0, 500 * ms},
			{time.Second, 3, 2, 0, 500 * ms},
			{1250 * ms, 1, 0, 0, 250 * ms},
			{3 * time.Second, 1, 1, 3, 0},
			{8 * time.Second, 11, 10, 0, 500 * ms},
		}},
		{"bucket of 500, one per 10 ms", algorithms.TokenBucket(500, 1, 10*ms), []call{
			{0, 501, 500, 0, 10 * ms},
			{9 * ms, 1, 0, 0, ms},
			{10 * ms, 2, 1, 0, 10 * ms},
			{1010 * ms, 101, 100, 0, 10 * ms},
			{6010 * ms, 501, 500, 0, 10 * ms},
		}},
		{"leaky bucket as a meter, room for 3, one leaks each 4 s", algorithms.LeakyBucket(3, 1, 4*time.Second), []call{
			{0, 4, 3, 0, 4 * time.Second},
			{4 * time.Second, 2, 1, 0, 4 * time.Second},
			{16 * time.Second, 4, 3, 0, 4 * time.Second},
		}},
		{"5000 per clock hour", algorithms.FixedWindow(5000, time.Hour), []call{
			{59*time.Minute + 59*time.Second, 5001, 5000, 0, time.Second},
			{time.Hour - time.Microsecond, 1, 0, 0, time.Microsecond},
			{time.Hour, 1, 1, 4999, 0},
			{time.Hour + 15*time.Minute, 5000, 4999, 0, 45 * time.Minute},
		}},
		{"anchored window, 5 per minute since the first", algorithms.AnchoredWindow(5, time.Minute), []call{
			{17 * time.Second, 1, 1, 4, 0},
			{60 * time.Second, 5, 4, 0, 17 * time.Second},
			{77 * time.Second, 6, 5, 0, time.Minute},
		}},
		// The example of Cloudflare: 42 units in the last minute and 18 units in the first 15 s of
		// this minute count as 42 · 0.75 + 18 = 49.5.
		{"sliding window, 50 per minute", algorithms.SlidingWindow(50, time.Minute), []call{
			{30 * time.Second, 42, 42, 8, 0},
			{time.Minute, 8, 8, 0, 0},
			{75 * time.Second, 10, 10, 0, 0}, // 49.5 of 50 are spent
			{75 * time.Second, 1, 0, 0, 714286 * time.Microsecond},
		}},
		{"sliding log, 2 per minute", algorithms.SlidingLog(2, time.Minute), []call{
			{1 * time.Second, 1, 1, 1, 0},
			{30 * time.Second, 1, 1, 0, 0},
			{50 * time.Second, 1, 0, 0, 11 * time.Second},
			{61 * time.Second, 2, 1, 0, 29 * time.Second},
		}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			states := make([]quota.State, 1)
			tx := quota.Transaction{Charges: []quota.Charge{{Limit: test.limit}}}
			for _, c := range test.calls {
				now := hour.Add(c.at).UnixMicro()
				pass := 0
				tx.Charges[0].Cost = 1
				for range c.n {
					if tx.Decide(now, states) {
						pass++
					}
				}
				retry := tx.RetryAfter()
				tx.Charges[0].Cost = 0
				tx.Decide(now, states)
				if left := tx.Decisions[0].Remaining; pass != c.pass || left != c.remaining || c.n > 0 && retry != c.retry {
					t.Errorf("%d calls after %v: got %d passed, %d remaining, retry after %v; want %d, %d, %v",
						c.n, c.at, pass, left, retry, c.pass, c.remaining, c.retry)
				}
			}
		})
	}
}

// TestPublishedTwoLimits decides the published example of two limits of one key, 20 per
// minute and 5 per 3 seconds. A call that one limit refuses spends nothing under the
// other limit.
func TestPublishedTwoLimits(t *testing.T) {
	const start = 1_700_000_000_000_000
	minute := algorithms.SlidingLog(20, time.Minute).Named("1m")
	burst := algorithms.SlidingLog(5, 3*time.Second).Named("3s")
	tx := quota.Transaction{Charges: []quota.Charge{{Limit: minute, Cost: 1}, {Limit: burst, Cost: 1}}}
	states := make([]quota.State, 2)
	tests := []struct {
		at          time.Duration
		allowed     bool
		minute      int64 // remaining
		burst       int64
		retry       time.Duration
		fitsMinute  bool
		fitsSeconds bool
	}{
		{0, true, 19, 4, 0, true, true},
		{100 * time.Millisecond, true, 18, 3, 0, true, true},
		{200 * time.Millisecond, true, 17, 2, 0, true, true},
		{300 * time.Millisecond, true, 16, 1, 0, true, true},
		{400 * time.Millisecond, true, 15, 0, 0, true, true},
		{500 * time.Millisecond, false, 15, 0, 2500 * time.Millisecond, true, false},
		{600 * time.Millisecond, false, 15, 0, 2400 * time.Millisecond, true, false},
		{3 * time.Second, true, 14, 0, 0, true, true},
		{6 * time.Second, true, 13, 4, 0, true, true},
	}
	for _, test := range tests {
		got := tx.Decide(start+test.at.Microseconds(), states)
		m, b := tx.Decisions[0], tx.Decisions[1]
		if got != test.allowed || tx.Allowed() != test.allowed || m.Remaining != test.minute || b.Remaining != test.burst ||
			tx.RetryAfter() != test.retry || m.Allowed != test.fitsMinute || b.Allowed != test.fitsSeconds {
			t.Errorf("after %v: got %v, retry after %v, %+v, want %+v", test.at, got, tx.RetryAfter(), tx.Decisions, test)
		}
	}
	for range 100 { // 13 of the 20 units of the minute are left
		tx.Charges[1].Cost = 0
		tx.Decide(start+(7*time.Second).Microseconds(), states)
	}
	if got := tx.Decisions[0].Remaining; got != 0 {
		t.Errorf("100 calls under the limit of a minute alone: got %d remaining, want 0", got)
	}
	if got, want := tx.RetryAfter(), 53*time.Second; got != want { // when the first unit is a minute old
		t.Errorf("the limit of a minute is used up: got retry after %v, want %v", got, want)
	}
}

// TestRatesAreExact spends as soon as RetryAfter allows, for up to a year, and gets exactly
// the burst plus quota units per period. If 3 units per second were rounded to one per
// 333,334 µs, 189 units a year would be missing.
func TestRatesAreExact(t *testing.T) {
	tests := []struct {
		quota, burst, cost int64
		period             time.Duration
		seconds, want      int64
	}{
		{3, 2, 1, time.Second, 86_400, 3*86_400 + 2},
		{3, 1000, 997, time.Second, 31_536_000, 3*31_536_000 + 1000},
		{7, 100, 89, time.Minute, 31_536_000, 7*525_600 + 100},
		{300_000, 2, 1, time.Second, 1, 300_000 + 2},
		{7, 1, 1, time.Second, 86_400, 7*86_400 + 1},
		{7, 3, 2, time.Second, 86_400, 7*86_400 + 3},
		{300_000, 1, 1, time.Second, 1, 300_000 + 1},
		{1_000_003, 2, 1, time.Second, 1, 1_000_003 + 2},
		{3, 3, 1, time.Microsecond, 1, 3*1_000_000 + 3},
		{300_000, 300_000, 299_999, time.Second, 86_400, 300_000*86_400 + 300_000},
		{1_000_000, 2, 1, 24 * time.Hour, 21_600, 250_000 + 2},
	}
	for _, test := range tests {
		if test.period == time.Microsecond && !rounds.Long() {
			continue // 3 million charges
		}
		for _, l := range []quota.Limit{
			algorithms.GCRA(test.quota, test.period).WithBurst(test.burst),
			algorithms.TokenBucket(test.burst, test.quota, test.period),
			algorithms.LeakyBucket(test.burst, test.quota, test.period),
		} {
			const start = 1_700_000_000_000_000
			now, end := int64(start), start+test.seconds*1_000_000
			var s quota.State
			var d quota.Decision
			var got int64
			for now <= end {
				if s, d = l.Algorithm.Take(s, &l, now, test.cost); d.Allowed {
					got += test.cost
					continue
				}
				if d.RetryAfter <= 0 || d.RetryAfter == quota.Never {
					t.Fatalf("%v: a charge of %d is refused without a RetryAfter: %+v", l, test.cost, d)
				}
				now += d.RetryAfter.Microseconds()
			}
			_, d = l.Algorithm.Take(s, &l, end, 0)
			if got += d.Remaining; got != test.want {
				t.Errorf("%v, %d at a time over %d s: got %d units, want %d", l, test.cost, test.seconds, got, test.want)
			}
		}
	}
}
