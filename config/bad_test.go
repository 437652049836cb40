package config

import (
	"net/http"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/badfiles"
	"github.com/seed83679106/weir/memstore"
)

var testOptions = Options{
	Keys:  map[string]weir.KeyFunc{"user": weir.ByHeader("X-User")},
	Costs: map[string]func(*http.Request) int64{"tokens": func(*http.Request) int64 { return 1 }},
}

// open opens a file with the given text.
func open(text string, o Options) (*File, error) {
	o.FS = fstest.MapFS{"r.yaml": {Data: []byte(text)}}
	return Open("r.yaml", memstore.New(memstore.Options{}), o)
}

func TestBad(t *testing.T) {
	for _, tt := range badfiles.All {
		t.Run(tt.Name, func(t *testing.T) {
			f, err := open(tt.Text, testOptions)
			if f != nil || err == nil {
				t.Fatalf("Open of %q: got no error", tt.Text)
			}
			if got := strings.ReplaceAll(err.Error(), "r.yaml:", ""); got != tt.Want {
				t.Errorf("%s\ngot:\n%s\nwant:\n%s", tt.Text, got, tt.Want)
			}
		})
	}
}
