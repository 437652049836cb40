package llm

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// A scanner finds the token counts in a JSON text while the text is being forwarded. Whatever the
// length of the text, the scanner keeps only a few names and one value. In a text that is not JSON,
// it may find anything.
type scanner struct {
	names  [4]string // of the fields around the value, from the outermost on; "" in an array
	depth  int       // how many objects and arrays are open
	state  byte      // one of the states below
	escape bool      // the next byte of a string is escaped
	long   bool      // the current value is longer than maxText bytes
	text   []byte    // the current string or number, at most maxText bytes
	name   string    // the field whose value follows
	closed bool      // the outermost value has ended
	found  scanResult
}

const (
	between  = 0
	inString = '"'
	inNumber = '0'
)

const maxText = 128 // maximum number of bytes in a name or a value; longer ones are ignored

// A scanResult contains what a scanner has found.
type scanResult struct {
	counts      map[string]int64 // the keys are from countFields
	model, kind string
	unreadable  bool // one of the counts is not between 0 and 2^63 − 1
}

// countFields lists the fields of a response's usage that contain token counts.
var countFields = []string{
	"prompt_tokens", "input_tokens", "completion_tokens", "output_tokens",
	"prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens",
	"cache_read_input_tokens", "cache_creation_input_tokens",
}

func (s *scanner) write(p []byte) {
	for _, c := range p {
		switch s.state {
		case inString:
			switch {
			case s.escape:
				s.escape = false
			case c == '\\':
				s.escape = true
			case c == '"':
				s.state = between
				s.endString()
				continue
			}
			s.keep(c)
		case inNumber:
			if c >= '0' && c <= '9' || c == '.' || c == 'e' || c == 'E' || c == '+' || c == '-' {
				s.keep(c)
				continue
			}
			s.state = between
			s.number()
			fallthrough
		default:
			s.readOther(c)
		}
	}
}

// readOther reads a byte that belongs to neither a string nor a number.
func (s *scanner) readOther(c byte) {
	switch c {
	case '{', '[':
		if s.depth < len(s.names) {
			s.names[s.depth] = s.name
		}
		s.depth++
		s.name = ""
	case '}', ']':
		s.depth = max(0, s.depth-1)
		s.closed, s.name = s.depth == 0, ""
	case ',':
		s.name = ""
	case ':':
		if s.name = string(s.text); s.long {
			s.name = ""
		}
	case '"':
		s.state, s.text, s.long = inString, s.text[:0], false
	case '-', '0', '1', '2', '3', '4', '5', '6', '7', '8', '9':
		s.state, s.text, s.long = inNumber, append(s.text[:0], c), false
	}
}

func (s *scanner) keep(c byte) {
	if s.long = s.long || len(s.text) == maxText; !s.long && s.depth <= len(s.names) {
		s.text = append(s.text, c)
	}
}

// place returns the names of the fields that enclose the current value. If an event contains a
// whole response in a field "message" or "response", that field is omitted. If values at this place
// are ignored, ok is false.
func (s *scanner) place() (fields []string, ok bool) {
	if s.name == "" || s.depth < 1 || s.depth > len(s.names) || s.long {
		return nil, false
	}
	fields = s.names[1:s.depth]
	if len(fields) > 0 && (fields[0] == "message" || fields[0] == "response") {
		fields = fields[1:]
	}
	return fields, true
}

// endString handles the end of a string, which may be a value or a name.
func (s *scanner) endString() {
	fields, ok := s.place()
	switch {
	case !ok || len(fields) > 0:
	case s.name == "model":
		s.found.model = string(s.text)
	case s.name == "type" && s.depth == 1:
		s.found.kind = string(s.text)
	}
}

// number handles the end of a number.
func (s *scanner) number() {
	n, readable := count(string(s.text))
	readable, s.long = readable && !s.long, false
	fields, ok := s.place()
	if !ok || len(fields) == 0 || fields[0] != "usage" {
		return
	}
	switch field := strings.Join(append(fields[1:len(fields):len(fields)], s.name), "."); {
	case !slices.Contains(countFields, field):
	case readable:
		s.found.counts[field] = n
	default:
		s.found.unreadable = true
	}
}

// count parses a JSON number, such as 1e3, and rounds it up.
func count(text string) (n int64, ok bool) {
	n, err := strconv.ParseInt(text, 10, 64)
	if err == nil {
		return n, n >= 0
	}
	f, err := strconv.ParseFloat(text, 64)
	if err != nil || f < 0 || f >= math.MaxInt64 {
		return 0, false
	}
	return int64(math.Ceil(f)), true
}

// largestCount returns the largest count in the given fields, because APIs use different fields for
// the same count. It returns false if none of the fields was found.
func (f *scanResult) largestCount(fields ...string) (n int64, ok bool) {
	for _, field := range fields {
		count, is := f.counts[field]
		n, ok = max(n, count), ok || is
	}
	return n, ok
}

// usage returns the usage that the response has reported so far. It returns false if the response
// has not reported its input tokens, or if a count is invalid.
func (f *scanResult) usage() (u Usage, ok bool) {
	u.Model = f.model
	u.Input, ok = f.largestCount("prompt_tokens", "input_tokens")
	u.Output, _ = f.largestCount("completion_tokens", "output_tokens")
	u.CacheRead, u.CacheWrite = f.counts["cache_read_input_tokens"], f.counts["cache_creation_input_tokens"]
	if cached, _ := f.largestCount("prompt_tokens_details.cached_tokens", "input_tokens_details.cached_tokens"); cached > 0 { // the input includes cached tokens
		u.CacheRead = min(cached, u.Input)
		u.Input -= u.CacheRead
	}
	return u, ok && !f.unreadable
}
