package headers

import (
	"strconv"
	"strings"
	"sync/atomic"
)

// An integerCache caches the text of integers in recent responses. How much of a quota is left and
// the Unix second of a reset are usually the same as in an earlier response, or differ by one.
type integerCache [1 << 7]struct {
	known  atomic.Pointer[decade]
	missed atomic.Int64 // the last integer that known did not contain
}

// A decade holds the field values for ten integers that differ only in their last digit. Responses
// share these values, so they must not be changed.
type decade struct {
	tens   uint64
	values [10][1]string
}

// value returns the field value for n, which must be at least 0.
func (s *integerCache) value(n int64) []string {
	tens := uint64(n) / 10
	place := &s[tens*0x9e3779b97f4a7c15>>57] // a hash, because many numbers are round and would have the same remainder
	if d := place.known.Load(); d != nil && d.tens == tens {
		return d.values[uint64(n)%10][:]
	}
	// Making a decade takes as long as formatting four integers, so a decade is made only if the
	// numbers rise or fall by one.
	if last := place.missed.Swap(n); n-last > 1 || last-n > 1 {
		return []string{strconv.FormatInt(n, 10)}
	}
	d := newDecade(tens)
	place.known.Store(d)
	return d.values[uint64(n)%10][:]
}

func newDecade(tens uint64) *decade {
	var few [20]byte
	digits := strconv.AppendUint(few[:0], tens*10, 10)
	n, text := len(digits), strings.Builder{}
	text.Grow(10 * n)
	for range 10 {
		text.Write(digits)
		digits[n-1]++
	}
	d, all := &decade{tens: tens}, text.String()
	for i := range d.values {
		d.values[i][0], all = all[:n], all[n:]
	}
	return d
}
