package envoy

import (
	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
)

// These types describe a file as Envoy's service reads it.
type (
	fileYAML struct {
		Domain      text
		Descriptors []descriptorYAML
	}
	descriptorYAML struct {
		Key            text
		Value          text
		RateLimit      *limitYAML `yaml:"rate_limit"`
		Descriptors    []descriptorYAML
		ShadowMode     bool `yaml:"shadow_mode"`
		QuotaMode      bool `yaml:"quota_mode"`
		ShareThreshold bool `yaml:"share_threshold"`
		Metadata       map[string]any

		// DetailedMetric and ValueToMetric would add values of requests to the labels of
		// metrics. They only cause a warning: a client must not choose labels.
		DetailedMetric bool `yaml:"detailed_metric"`
		ValueToMetric  bool `yaml:"value_to_metric"`
	}
	limitYAML struct {
		RequestsPerUnit uint32 `yaml:"requests_per_unit"`
		Unit            text
		Unlimited       bool
		Name            text
		Replaces        []struct{ Name text }
	}
)

// A text is a YAML scalar as it is written in the file: 0443 does not become a number, and true
// does not become a boolean.
type text string

func (t *text) UnmarshalYAML(n ast.Node) error {
	switch n := n.(type) {
	case *ast.TagNode:
		return t.UnmarshalYAML(n.Value)
	case *ast.LiteralNode:
		*t = text(n.Value.Value)
	case *ast.StringNode, *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode, *ast.InfinityNode, *ast.NanNode:
		*t = text(n.GetToken().Value)
	default:
		return &yaml.SyntaxError{Message: "want a text or a number here", Token: n.GetToken()}
	}
	return nil
}
