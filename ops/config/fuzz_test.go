package config

import (
	"os"
	"testing"
	"time"

	"github.com/seed83679106/weir/internal/test/badfiles"
)

// FuzzOpen: no text makes Open panic, and each error has a place in the text.
func FuzzOpen(f *testing.F) {
	for _, tt := range badfiles.All {
		f.Add(tt.Text)
	}
	for _, name := range []string{"testdata/good/published.yaml", "testdata/good/everything.yaml"} {
		text, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(text))
	}
	f.Fuzz(func(t *testing.T, text string) {
		file, err := open(text, testOptions)
		if err == nil {
			useFile(t, file)
			return
		}
		if file != nil {
			t.Error("Open returned a File and an error")
		}
		mistakes, ok := err.(interface{ Unwrap() []error })
		if !ok {
			t.Fatalf("the error is no list of mistakes: %v", err)
		}
		for _, err := range mistakes.Unwrap() {
			if e, ok := err.(*Error); !ok || e.Line < 1 || e.Column < 1 || e.Text == "" {
				t.Errorf("a mistake without a place: %#v", err)
			}
		}
	})
}

// useFile makes a handler of every rule of a file.
func useFile(t *testing.T, file *File) {
	t.Helper()
	if len(file.Rules()) == 0 {
		t.Error("Open returned a File without rules")
	}
	for _, r := range file.Rules() {
		file.Handler(r.Name)
	}
}

func FuzzParseDuration(f *testing.F) {
	for _, s := range []string{"60", "0.5", "1w2d3h", "1d", "-1d", "106751d", "15250w2d", "9223372036s", "1d-1h", "1d1d", ".s", "d"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		d, ok := parseDuration(s)
		if want, err := time.ParseDuration(s); err == nil && (!ok || d != want) {
			t.Errorf("parseDuration(%q) is %v, %v, and time.ParseDuration says %v", s, d, ok, want)
		}
	})
}
