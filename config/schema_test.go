package config

import (
	"encoding/json"
	"maps"
	"slices"
	"testing"

	"github.com/seed83679106/weir/internal/counters"
)

type schemaNode struct {
	Properties     map[string]any
	Required, Enum []string
}

type schemaRoot struct {
	schemaNode
	Defs map[string]schemaNode `json:"$defs"`
}

func readSchema(t *testing.T) (s schemaRoot) {
	if err := json.Unmarshal([]byte(Schema()), &s); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestSchemaKnows: the JSON schema and the decoder know the same fields, algorithms and
// dialects.
func TestSchemaKnows(t *testing.T) {
	s := readSchema(t)
	known := []string{}
	for _, l := range counters.All {
		known = append(known, l.Algorithm.Name())
	}
	for _, tt := range []struct {
		what         string
		schema, code []string
	}{
		{"the file", slices.Collect(maps.Keys(s.Properties)), fileFields},
		{"a rule", slices.Collect(maps.Keys(s.Defs["rule"].Properties)), ruleFields},
		{"a limit", slices.Collect(maps.Keys(s.Defs["limit"].Properties)), limitFields},
		{"a limit of an override", slices.Collect(maps.Keys(s.Defs["ownLimit"].Properties)), limitFields},
		{"an override", slices.Collect(maps.Keys(s.Defs["override"].Properties)), overrideFields},
		{"a penalty", slices.Collect(maps.Keys(s.Defs["penalty"].Properties)), penaltyFields},
		{"strikes", slices.Collect(maps.Keys(s.Defs["strikes"].Properties)), strikesFields},
		{"headers", s.Defs["dialect"].Enum, dialects},
		{"algorithm", s.Defs["algorithm"].Enum, append(known, calendar)},
	} {
		slices.Sort(tt.schema)
		if code := slices.Sorted(slices.Values(tt.code)); !slices.Equal(tt.schema, code) {
			t.Errorf("%s: the schema has %q, the decoder %q", tt.what, tt.schema, code)
		}
	}
}
