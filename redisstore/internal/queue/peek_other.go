//go:build !(linux || darwin || dragonfly || freebsd || netbsd || openbsd)

package queue

const canPeek = false

func (*prompt) unread() bool { return false }
