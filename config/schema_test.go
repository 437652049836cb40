package config

import (
	"bytes"
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/santhosh-tekuri/jsonschema/v6"
)

// What loads is valid, and what has the wrong structure is neither.
func TestSchema(t *testing.T) {
	parsed, err := jsonschema.UnmarshalJSON(strings.NewReader(Schema()))
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

	files, _ := filepath.Glob("testdata/good/*.yaml")
	if len(files) < 2 {
		t.Fatalf("good files: %q", files)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := open(string(text), testOptions); err != nil {
			t.Errorf("%s: %v", file, err)
		}
		if err := valid(text); err != nil {
			t.Errorf("%s: %v", file, err)
		}
	}
	n := 0
	for _, tt := range bad {
		if tt.structural {
			n++
			if valid([]byte(tt.text)) == nil {
				t.Errorf("%s: valid by the schema:\n%s", tt.name, tt.text)
			}
		}
	}
	if n < 40 {
		t.Errorf("%d structural mistakes", n)
	}
}

// Schema and loader know the same fields and the same names.
func TestSchemaKnows(t *testing.T) {
	type node struct {
		Properties map[string]any
		Enum       []string
	}
	var s struct {
		node
		Defs map[string]node `json:"$defs"`
	}
	if err := json.Unmarshal([]byte(Schema()), &s); err != nil {
		t.Fatal(err)
	}
	known := []string{}
	for _, l := range counters {
		known = append(known, l.Algorithm.Name())
	}
	for _, tt := range []struct {
		what         string
		schema, code []string
	}{
		{"the file", slices.Collect(maps.Keys(s.Properties)), fileFields},
		{"a rule", slices.Collect(maps.Keys(s.Defs["rule"].Properties)), ruleFields},
		{"a limit", slices.Collect(maps.Keys(s.Defs["limit"].Properties)), limitFields},
		{"a penalty", slices.Collect(maps.Keys(s.Defs["penalty"].Properties)), penaltyFields},
		{"strikes", slices.Collect(maps.Keys(s.Defs["strikes"].Properties)), strikesFields},
		{"headers", s.Defs["dialect"].Enum, dialects},
		{"algorithm", s.Defs["algorithm"].Enum, append(known, calendar)},
	} {
		slices.Sort(tt.schema)
		if code := slices.Sorted(slices.Values(tt.code)); !slices.Equal(tt.schema, code) {
			t.Errorf("%s: the schema has %q, the loader %q", tt.what, tt.schema, code)
		}
	}
}
