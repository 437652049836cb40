//go:build !linux

package redistest

import "syscall"

// The numbers of darwin and the BSDs. Windows has neither signal, and no
// redis-server: tests skip there before a signal is sent.
const (
	sigStop = syscall.Signal(17)
	sigCont = syscall.Signal(19)
)

// dieWithParent does nothing, because only Linux can end a process with its parent. Here
// servers end in Cleanup: also after t.Fatal and after a panic of the test, but not if the
// test binary is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
