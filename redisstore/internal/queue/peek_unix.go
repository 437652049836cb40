//go:build linux || darwin || dragonfly || freebsd || netbsd || openbsd

package queue

import "syscall"

// canPeek reports whether the kernel can be queried for unread bytes of a socket.
const canPeek = true

// unread reports whether the kernel has received bytes that p has not read, or the end of the
// connection. It neither waits nor reads.
func (p *prompt) unread() (there bool) {
	_ = p.raw.Control(func(fd uintptr) {
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK|syscall.MSG_DONTWAIT)
		there = err != syscall.EAGAIN && err != syscall.EINTR
	})
	return there
}
