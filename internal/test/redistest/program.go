package redistest

import (
	"log"
	"os"
	"testing"
)

// A Program stands in for a testing.TB, so that a program that is no test can start servers.
// What would skip or fail a test ends the program, after the cleanups.
type Program struct {
	testing.TB
	cleanups []func()
}

func (p *Program) Helper()                           {}
func (p *Program) Cleanup(f func())                  { p.cleanups = append(p.cleanups, f) }
func (p *Program) Skip(args ...any)                  { p.Fatal(args...) }
func (p *Program) Fatal(args ...any)                 { p.End(); log.Fatal(args...) }
func (p *Program) Fatalf(format string, args ...any) { p.End(); log.Fatalf(format, args...) }

func (p *Program) TempDir() string {
	dir, err := os.MkdirTemp("", "redistest")
	if err != nil {
		p.Fatal(err)
	}
	p.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}

// End runs the cleanups, the last one first.
func (p *Program) End() {
	for len(p.cleanups) > 0 {
		last := len(p.cleanups) - 1
		p.cleanups[last]()
		p.cleanups = p.cleanups[:last]
	}
}
