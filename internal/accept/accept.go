// Package accept chooses the form of an error page that a client prefers.
package accept

import (
	"strconv"
	"strings"
)

// A Form is a form of an error page.
type Form int

const (
	JSON Form = iota // application/problem+json
	Text
	HTML
	forms
)

// mostAccept is how many bytes of Accept are read. Browsers send about 150 bytes.
const mostAccept = 2048

// Best returns the form that the client prefers (RFC 9110, 12.5.1): problem details
// if it has no preference, and text if it accepts none of the forms. It reads only the
// first mostAccept bytes, so that a refusal does not cost more than serving would.
func Best(accept []string) Form {
	if len(accept) == 0 {
		return JSON
	}
	var quality [forms]int   // in thousandths
	var precision [forms]int // of the range that names the form: 0 none, 1 */*, 2 type/*, 3 type/subtype
	rate := func(f Form, p, q int) {
		if p > precision[f] || p == precision[f] && q > quality[f] {
			precision[f], quality[f] = p, q
		}
	}
	rest := mostAccept
	for _, line := range accept {
		if rest <= 0 {
			break
		}
		if len(line) > rest {
			line = line[:max(0, strings.LastIndexByte(line[:rest], ','))]
			rest = 0
		}
		rest -= len(line) + 1
		for line != "" {
			var media string
			media, line, _ = strings.Cut(line, ",")
			media, params, _ := strings.Cut(media, ";")
			q := weight(params)
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "*/*":
				rate(JSON, 1, q)
				rate(Text, 1, q)
				rate(HTML, 1, q)
			case "application/*":
				rate(JSON, 2, q)
			case "text/*":
				rate(Text, 2, q)
				rate(HTML, 2, q)
			case "application/problem+json", "application/json":
				rate(JSON, 3, q)
			case "text/plain":
				rate(Text, 3, q)
			case "text/html":
				rate(HTML, 3, q)
			}
		}
	}
	best := Text
	for _, f := range [...]Form{JSON, HTML} {
		if quality[f] > quality[best] || f == JSON && quality[f] == quality[best] && quality[f] > 0 {
			best = f
		}
	}
	return best
}

// weight returns the q of a media range in thousandths. It returns 1000 if q is missing or
// malformed, so that a malformed q does not reject the range.
func weight(params string) int {
	for params != "" {
		var param string
		param, params, _ = strings.Cut(params, ";")
		name, value, _ := strings.Cut(param, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		if q, err := strconv.ParseFloat(strings.TrimSpace(value), 32); err == nil && q >= 0 && q <= 1 {
			return int(q*1000 + 0.5)
		}
	}
	return 1000
}
