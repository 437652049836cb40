package safe_test

import (
	"math"
	"testing"

	"github.com/seed83679106/weir/internal/safe"
)

func TestNil(t *testing.T) {
	for _, tt := range []struct {
		x    any
		want bool
	}{
		{nil, true},
		{(*int)(nil), true},
		{new(int), false},
		{struct{}{}, false},
		{0, false},
		{func() {}, false},
	} {
		if got := safe.Nil(tt.x); got != tt.want {
			t.Errorf("%#v: got %v, want %v", tt.x, got, tt.want)
		}
	}
}

func TestComparable(t *testing.T) {
	type box struct {
		n int
		v any
	}
	for _, tt := range []struct {
		x    any
		want bool
	}{
		{nil, true},
		{1, true},
		{struct{}{}, true},
		{box{1, "a"}, true},
		{&box{1, []int{1}}, true},
		{box{1, []int{1}}, false},
		{box{1, box{2, func() {}}}, false},
		{[1]any{map[int]int{}}, false},
		{[]int{1}, false},
		{func() {}, false},
		{math.NaN(), false},
	} {
		if got := safe.Comparable(tt.x); got != tt.want {
			t.Errorf("%#v: got %v, want %v", tt.x, got, tt.want)
		}
	}
	var x any = box{1, "a"}
	if n := testing.AllocsPerRun(100, func() { safe.Comparable(x) }); n > 0 {
		t.Errorf("a struct: %v allocations, want 0", n)
	}
}
