package sparse_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/sparse"
)

// TestCount: ten of one name within a minute are needed, a name is reported once, and names that
// are always new take no memory for ever.
func TestCount(t *testing.T) {
	now := time.Unix(0, 0)
	for _, c := range []struct {
		every time.Duration
		names int
		n     int
		first int // the first that is reported; 0: none
		times int // how many are reported
	}{
		{0, 1, 100, 10, 1}, {time.Second, 1, 100, 10, 1}, {6 * time.Second, 1, 100, 10, 1}, {7 * time.Second, 1, 1000, 0, 0},
		{-7 * time.Second, 1, 1000, 0, 0}, {time.Second, 2, 100, 19, 2}, {0, 60, 1000, 541, 60}, {0, 1000, 100_000, 0, 0},
	} {
		var count sparse.Count
		first, times := 0, 0
		for i := range c.n {
			now = now.Add(c.every)
			if count.Add(fmt.Sprint(i%c.names), 10, now) {
				if times++; first == 0 {
					first = i + 1
				}
			}
		}
		if first != c.first || times != c.times {
			t.Errorf("%+v: got %d reported, the first at %d", c, times, first)
		}
	}
	var count sparse.Count
	if got := testing.AllocsPerRun(1000, func() { count.Add("the same name", 10, now) }); got != 0 {
		t.Errorf("got %v allocations for a known name", got)
	}
}
