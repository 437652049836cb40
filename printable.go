package weir

import "errors"

// printable reports whether a String of a structured field can hold s
// (RFC 9651, 3.3.3).
//
// Stores ask for every name of every charge, so it looks at eight bytes at a time.
func printable(s string) bool {
	n := len(s)
	switch {
	case n >= 8:
		for i := 0; i+8 < n; i += 8 {
			if !printable8(eight(s[i:])) {
				return false
			}
		}
		return printable8(eight(s[n-8:]))
	case n >= 4:
		return printable8(uint64(four(s)) | uint64(four(s[n-4:]))<<32)
	case n > 0:
		const spaces = 0x2020202020000000
		return printable8(spaces | uint64(s[0]) | uint64(s[n/2])<<8 | uint64(s[n-1])<<16)
	}
	return true
}

// printable8 reports whether all bytes of w are. The lowest that is not sets its
// highest bit in one of three: it is set already, or when 1 is added to 0x7f, or
// when 0x20 is subtracted from less.
func printable8(w uint64) bool {
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

var errNotPrintable = errors.New("a header field can carry printable ASCII only")
