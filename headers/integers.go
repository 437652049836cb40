package headers

import (
	"strconv"
	"sync/atomic"
)

// An integer is the value of a header field. It is shared and must not be changed.
type integer struct {
	n     int64
	value [1]string
}

// integers remembers the integers that were most recently written to header fields. Most responses
// show integers that earlier responses have shown: how much of a small quota is left, and the Unix
// second of a reset.
type integers [1 << 10]atomic.Pointer[integer]

// value returns n as the value of a field.
func (s *integers) value(n int64) []string {
	place := &s[uint64(n)%uint64(len(s))]
	x := place.Load()
	if x == nil || x.n != n {
		x = &integer{n, [1]string{strconv.FormatInt(n, 10)}}
		place.Store(x)
	}
	return x.value[:]
}
