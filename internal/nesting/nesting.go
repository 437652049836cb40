// Package nesting finds YAML that is nested too deeply for its parser.
package nesting

import "github.com/goccy/go-yaml/token"

// TooDeep returns the token at which lists and mappings in one line are nested deeper than
// most, or nil. The time and the memory of the parser grow with the square of that depth.
// Nesting by indentation needs no bound, because it takes more bytes the deeper it is.
func TooDeep(tokens token.Tokens, most int) *token.Token {
	flow, entries, line := 0, 0, 0
	for _, t := range tokens {
		switch t.Type {
		case token.SequenceStartType, token.MappingStartType:
			flow++
		case token.SequenceEndType, token.MappingEndType:
			flow--
		case token.SequenceEntryType: // "- - - x" is three lists in one line
			if t.Position.Line != line {
				line, entries = t.Position.Line, 0
			}
			entries++
		}
		if flow > most || entries > most {
			return t
		}
	}
	return nil
}
