//go:build !linux

package redistest

import "syscall"

// The numbers of SIGSTOP and SIGCONT on darwin and the BSDs. Windows has neither, but no
// redis-server either, so tests are skipped there.
const (
	sigStop = syscall.Signal(17)
	sigCont = syscall.Signal(19)
)

// dieWithParent does nothing, because only Linux can end a process with its parent. On
// other systems servers end in the Cleanup of the test, even after t.Fatal or a panic of
// the test, but not if the test binary is killed.
func dieWithParent() *syscall.SysProcAttr { return nil }
