// Package printable tells names that a header field can carry from other names.
package printable

import "errors"

// Err is the error of a name that is not printable ASCII.
var Err = errors.New("want a name in printable ASCII, because header fields carry it")

// Is reports whether a String of a structured field can hold s (RFC 9651, 3.3.3).
//
// It checks eight bytes at a time, because it is called often: Validate checks the names of
// every charge that has no plan yet, and the charges of a new Transaction have no plans.
func Is(s string) bool {
	n := len(s)
	switch {
	case n >= 8:
		for i := 0; i+8 < n; i += 8 {
			if !eightPrintable(eight(s[i:])) {
				return false
			}
		}
		return eightPrintable(eight(s[n-8:]))
	case n >= 4:
		return eightPrintable(uint64(four(s)) | uint64(four(s[n-4:]))<<32)
	case n > 0:
		const spaces = 0x2020202020000000
		return eightPrintable(spaces | uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16)
	}
	return true
}

// eightPrintable reports whether all bytes of w are printable. It adds 1 to each byte of w, and
// subtracts 0x20 from each byte of w. If a byte is not printable, the lowest such byte has
// its highest bit set in w (the byte is above 0x7f), in the sum (it is 0x7f), or in the
// difference (it is below 0x20).
func eightPrintable(w uint64) bool {
	const each = 0x0101010101010101
	return (w|(w+each)|(w-' '*each))&(0x80*each) == 0
}

func four(s string) uint32 {
	_ = s[3]
	return uint32(s[0]) | uint32(s[1])<<8 | uint32(s[2])<<16 | uint32(s[3])<<24
}

func eight(s string) uint64 {
	_ = s[7]
	return uint64(s[0]) | uint64(s[1])<<8 | uint64(s[2])<<16 | uint64(s[3])<<24 |
		uint64(s[4])<<32 | uint64(s[5])<<40 | uint64(s[6])<<48 | uint64(s[7])<<56
}
