package weir

import (
	"encoding/json"
	"html"
	"net/http"
	"strconv"
	"strings"
)

// A problem is an answer to a request that was not served: problem details as in
// RFC 9457, with the types of draft-ietf-httpapi-ratelimit-headers, or the same
// as text or HTML where the client prefers that.
type problem struct {
	Type     string   `json:"type"`
	Title    string   `json:"title"`
	Status   int      `json:"status"`
	Violated []string `json:"violated-policies,omitempty"`

	sentence string
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

func quotaExceeded(violated []string) problem {
	return problem{problemTypes + "quota-exceeded", "Quota Exceeded", http.StatusTooManyRequests, violated,
		"Too many requests."}
}

func reducedCapacity() problem {
	return problem{problemTypes + "temporary-reduced-capacity", "Temporary Reduced Capacity", http.StatusServiceUnavailable, nil,
		"The service has less capacity for now."}
}

func (p problem) write(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Add("Vary", "Accept")
	h.Del("Content-Length")
	h.Del("Content-Encoding")

	sentence := p.sentence
	if after := h.Get(retryAfter); after == "1" {
		sentence += " Try again in a second."
	} else if after != "" {
		sentence += " Try again in " + after + " seconds."
	}
	var body []byte
	switch negotiate(r.Header["Accept"]) {
	case asJSON:
		h.Set("Content-Type", "application/problem+json")
		body, _ = json.Marshal(p) // strings and an int: it can't fail
		body = append(body, '\n')
	case asHTML:
		h.Set("Content-Type", "text/html; charset=utf-8")
		body = []byte("<!doctype html>\n<meta name=viewport content=\"width=device-width\">\n<title>" +
			html.EscapeString(p.Title) + "</title>\n<h1>" + html.EscapeString(p.Title) + "</h1>\n<p>" +
			html.EscapeString(sentence) + "</p>\n")
	default:
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = []byte(sentence + "\n")
	}
	h["Content-Length"] = []string{strconv.Itoa(len(body))}
	w.WriteHeader(p.Status)
	w.Write(body) // to a client that may be gone
}

type form int

const (
	asJSON form = iota
	asText
	asHTML
	forms
)

// negotiate returns the form that the client likes best (RFC 9110, 12.5.1). It
// gets problem details where it has no preference, and text where it accepts
// none of the forms.
func negotiate(accept []string) form {
	if len(accept) == 0 {
		return asJSON
	}
	var quality, precision [forms]int // in thousandths; 0 nothing said, 1 */*, 2 type/*, 3 in full
	rate := func(f form, p, q int) {
		if p > precision[f] || p == precision[f] && q > quality[f] {
			precision[f], quality[f] = p, q
		}
	}
	for _, line := range accept {
		for line != "" {
			var media string
			media, line, _ = strings.Cut(line, ",")
			media, params, _ := strings.Cut(media, ";")
			q := weight(params)
			switch strings.ToLower(strings.TrimSpace(media)) {
			case "*/*":
				rate(asJSON, 1, q)
				rate(asText, 1, q)
				rate(asHTML, 1, q)
			case "application/*":
				rate(asJSON, 2, q)
			case "text/*":
				rate(asText, 2, q)
				rate(asHTML, 2, q)
			case "application/problem+json", "application/json":
				rate(asJSON, 3, q)
			case "text/plain":
				rate(asText, 3, q)
			case "text/html":
				rate(asHTML, 3, q)
			}
		}
	}
	best := asText
	for _, f := range [...]form{asJSON, asHTML} {
		if quality[f] > quality[best] || f == asJSON && quality[f] == quality[best] && quality[f] > 0 {
			best = f
		}
	}
	return best
}

// weight returns the q of a media range in thousandths: 1000 if there is none
// or it can't be read, for a client that asks badly still asks.
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
