package remade

import (
	"fmt"
	"testing"
	"time"
)

// TestCount: ten of one name within a minute are needed, and the number of names has a bound.
func TestCount(t *testing.T) {
	now := time.Unix(0, 0)
	for _, c := range []struct {
		every time.Duration
		names int
		n     int
		want  int // the first that warns; 0: none
	}{
		{0, 1, 100, 10}, {time.Second, 1, 100, 10}, {6 * time.Second, 1, 100, 10}, {7 * time.Second, 1, 1000, 0},
		{-7 * time.Second, 1, 1000, 0}, {time.Second, 2, 100, 19}, {0, 60, 1000, 541}, {0, 1000, 100_000, 0},
	} {
		var count Count
		got := 0
		for i := range c.n {
			now = now.Add(c.every)
			if count.Again(fmt.Sprint(i%c.names), now) {
				if got > 0 {
					t.Errorf("%+v: it warns twice", c)
				}
				got = i + 1
			}
			if len(count.made) > 64 {
				t.Fatalf("%+v: %d names are kept", c, len(count.made))
			}
		}
		if got != c.want {
			t.Errorf("%+v: got a warning at %d", c, got)
		}
	}
}
