package headers

import (
	"strconv"
	"sync/atomic"
	"unsafe"
)

// An integer is the value of a header field. It is shared and must not be changed.
type integer struct {
	n     int64
	value [1]string
	text  [20]byte
}

// integers remembers the integers that header fields had last. Most responses show integers
// that earlier responses have shown: how much of a small quota is left, and the Unix second
// of a reset.
type integers [1 << 10]atomic.Pointer[integer]

// find returns n as the value of a field, or nil if it is not remembered.
func (s *integers) find(n int64) []string {
	if x := s[uint64(n)%uint64(len(s))].Load(); x != nil && x.n == n {
		return x.value[:]
	}
	return nil
}

// add returns n as the value of a field, and remembers it in place of another integer.
func (s *integers) add(n int64) []string {
	x := &integer{n: n}
	text := strconv.AppendInt(x.text[:0], n, 10)
	x.value[0] = unsafe.String(unsafe.SliceData(text), len(text))
	s[uint64(n)%uint64(len(s))].Store(x)
	return x.value[:]
}
