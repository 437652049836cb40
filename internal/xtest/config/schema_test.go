package config_test

import (
	"bytes"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/test/badfiles"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/config"
)

// TestSchema: the JSON Schema of package config accepts every file that loads, and rejects
// every file whose structure is wrong.
func TestSchema(t *testing.T) {
	options := config.Options{
		Keys:  map[string]weir.KeyFunc{"user": weir.ByHeader("X-User")},
		Costs: map[string]func(*http.Request) int64{"tokens": func(*http.Request) int64 { return 1 }},
	}
	s := compileSchema(t)
	valid := func(text []byte) error {
		j, err := yaml.YAMLToJSON(text)
		if err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		v, err := jsonschema.UnmarshalJSON(bytes.NewReader(j))
		if err != nil {
			t.Fatalf("%s: %v", j, err)
		}
		return s.Validate(v)
	}

	files, _ := filepath.Glob("../../../ops/config/testdata/good/*.yaml")
	if len(files) < 2 {
		t.Fatalf("good files: %q", files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := config.Open(file, memstore.New(memstore.Options{}), options); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if err := valid(text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	n := 0
	for _, tt := range badfiles.All {
		if tt.Structural {
			n++
			if valid([]byte(tt.Text)) == nil {
				t.Errorf("%s: the schema accepts:\n%s", tt.Name, tt.Text)
			}
		}
	}
	if n < 40 {
		t.Errorf("%d structural mistakes", n)
	}
}

func compileSchema(t *testing.T) *jsonschema.Schema {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(config.Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("schema.json", parsed); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("schema.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}
