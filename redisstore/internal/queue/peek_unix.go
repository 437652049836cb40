//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package queue

import "syscall"

// canPeek says that the kernel can be asked whether a socket has unread bytes.
const canPeek = true

// unread reports whether the kernel has bytes that p has not read, or knows that the
// connection has ended. It does not wait, and reads nothing.
func (p *prompt) unread() (there bool) {
	_ = p.raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		there = err != syscall.EAGAIN && err != syscall.EINTR
	})
	return there
}
