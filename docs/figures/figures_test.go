// Package figures_test draws the figures of the documentation from the real
// algorithms and stores:
//
//	go test -C docs/figures . -update
//
// Tests draw the figures, because drawing needs the clock of testing/synctest. Without
// -update the tests check that the files are current.
package figures_test

import (
	"flag"
	"os"
	"testing"
)

var update = flag.Bool("update", false, "write the figures")

// current checks that a file has this text. With -update it writes the text into the file.
func current(t *testing.T, name, text string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(name)
	if err != nil || string(got) != text {
		t.Errorf("%s is not current (%v): run go test -C docs/figures . -update, and look at the change", name, err)
	}
}
