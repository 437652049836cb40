package quota_test

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

type queueCase struct {
	queued int64 // units in the queue; one unit leaves each second, the first unit at once
	cost   int64
	within time.Duration
	other  *quota.Limit // another limit, which is used up
	want   []time.Duration
}

// TestQueueRetryAfter: if the queue of a leaky bucket refuses a charge, it admits the charge
// when RetryAfter is over, and not a microsecond before. This holds for refusals from the
// store and from the memory of Hybrid. Another limit of the transaction does not change the
// RetryAfter of the queue.
func TestQueueRetryAfter(t *testing.T) {
	leaky := algorithms.LeakyBucket(10, 1, time.Second)
	for _, test := range []queueCase{
		{10, 1, 5 * time.Second, nil, []time.Duration{5 * time.Second}},                                          // there is room after 1 s, and the turn is 10 s away
		{10, 1, 9 * time.Second, nil, []time.Duration{time.Second}},                                              // after 1 s there is room, and the turn is 9 s away
		{10, 1, 9500 * time.Millisecond, nil, []time.Duration{time.Second}},                                      // the turn is near enough after 0.5 s, but room comes after 1 s
		{10, 4, 5 * time.Second, nil, []time.Duration{5 * time.Second}},                                          // room comes after 4 s, but the turn is near enough only after 5 s
		{10, 7, 5 * time.Second, nil, []time.Duration{7 * time.Second}},                                          // the turn is near enough after 5 s, but room comes after 7 s
		{4, 1, time.Second, nil, []time.Duration{3 * time.Second}},                                               // there is room, but the turn is too far away
		{4, 11, time.Second, nil, []time.Duration{quota.Never}},                                                  // the cost exceeds the queue
		{4, 1, time.Second, ptr(algorithms.GCRA(1, time.Minute)), []time.Duration{3 * time.Second, time.Minute}}, // each limit has its own wait
		{1, 1, time.Second, ptr(algorithms.GCRA(1, time.Minute)), []time.Duration{0, time.Minute}},               // the queue alone would admit the charge
	} {
		synctest.Test(t, func(t *testing.T) {
			checkQueue(t, leaky, test)
		})
	}
}

// checkQueue fills the queue of leaky, and checks that a charge is refused and then
// admitted after RetryAfter.
func checkQueue(t *testing.T, leaky quota.Limit, test queueCase) {
	store, start := quota.Hybrid(memstore.New(memstore.Options{}), quota.HybridOptions{}), time.Now()
	charges := []quota.Charge{{Key: "k", Limit: leaky, Cost: 1}}
	for range test.queued {
		if tx := take(t, store, time.Hour, charges...); !tx.Allowed() {
			t.Fatalf("%+v: got %+v", test, tx.Decisions)
		}
	}
	if test.other != nil {
		other := quota.Charge{Key: "k", Limit: *test.other, Cost: 1}
		take(t, store, 0, other)
		charges = append(charges, other)
	}
	charges[0].Cost = test.cost
	ask := func() []time.Duration {
		tx := take(t, store, test.within, charges...)
		if tx.Allowed() {
			return nil
		}
		var got []time.Duration
		for _, d := range tx.Decisions {
			if d.Allowed != (d.RetryAfter == 0) {
				t.Errorf("%+v: got %+v", test, d)
			}
			got = append(got, d.RetryAfter)
		}
		return got
	}
	if got := ask(); !slices.Equal(got, test.want) {
		t.Errorf("%+v: got RetryAfter %v, want %v", test, got, test.want)
	}
	if test.want[0] == quota.Never {
		return
	}
	admitted := test.want[0]
	if test.other != nil {
		time.Sleep(test.want[0])
		if got, want := ask(), []time.Duration{0, test.want[1] - test.want[0]}; !slices.Equal(got, want) {
			t.Errorf("%+v: got RetryAfter %v after %v, want %v", test, got, test.want[0], want)
		}
		admitted = test.want[1] - test.within // the charges then wait for the other limit
	}
	time.Sleep(time.Until(start.Add(admitted - time.Microsecond)))
	if ask() == nil {
		t.Errorf("%+v: let in a microsecond before %v", test, admitted)
	}
	time.Sleep(time.Microsecond)
	if got := ask(); got != nil {
		t.Errorf("%+v: refused after %v, for %v more", test, admitted, got)
	}
}

func ptr[T any](x T) *T { return &x }
