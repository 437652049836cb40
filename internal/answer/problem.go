// Package answer answers requests that are not served: with problem details, with a text or an HTML
// page if the client prefers it, or, for RPC clients (Connect, gRPC and gRPC-Web), with an error in
// their protocol. RPC clients do not read problem details, so they would treat a 429 without such
// an error as an outage, and might retry at once.
package answer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"html"
	"maps"
	"net/http"
	"slices"
	"strings"
)

// A Problem is an answer to a request that was not served: problem details as in RFC 9457,
// with the types of draft-ietf-httpapi-ratelimit-headers, or a text or an HTML page if the
// client prefers it.
type Problem struct {
	Status   int
	kind     string
	title    string
	sentence string
	json     []byte
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

func newProblem(kind, title, sentence string, status int) Problem {
	json := fmt.Appendf(nil, `{"type":"%s%s","title":"%s","status":%d}`+"\n", problemTypes, kind, title, status)
	return Problem{status, kind, title, sentence, json}
}

// The problems of a limiter. MissingKey is for a request without a required key.
var (
	QuotaExceeded = newProblem("quota-exceeded", "Quota Exceeded", "Too many requests.", http.StatusTooManyRequests)
	AbnormalUsage = newProblem("abnormal-usage-detected", "Abnormal Usage Detected", "Abnormal usage was detected.",
		http.StatusTooManyRequests)
	ReducedCapacity = newProblem("temporary-reduced-capacity", "Temporary Reduced Capacity",
		"The service has less capacity for now.", http.StatusServiceUnavailable)
	MissingKey = Problem{http.StatusBadRequest, "", "Bad Request", lacksKey,
		[]byte(`{"type":"about:blank","title":"Bad Request","status":400,"detail":"` + lacksKey + `"}` + "\n")}
)

const lacksKey = "The request lacks the value by which it is limited."

// WithStatus returns a copy of the problem with the given status. If the given status is 0, the
// copy keeps the status of the problem.
func (p Problem) WithStatus(status int) Problem {
	if status == 0 {
		return p
	}
	return newProblem(p.kind, p.title, p.sentence, status)
}

// Violating returns the problem with the names of policies, in JSON.
func (p Problem) Violating(names ...[]byte) Problem {
	list := bytes.Join(names, []byte{','})
	p.json = slices.Concat(p.json[:len(p.json)-2], []byte(`,"violated-policies":[`), list, []byte("]}\n"))
	return p
}

// All answers share these values, which must not be changed.
var (
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
	problemJSON = []string{"application/problem+json"}
	plainText   = []string{"text/plain; charset=utf-8"}
	htmlText    = []string{"text/html; charset=utf-8"}
)

// Write answers with p. The names of the violated policies are in JSON. If the response has no
// fields yet except those about limits, fresh is true. The form depends on Accept, but there is no
// Vary field, because the response must not be stored.
func (p *Problem) Write(w http.ResponseWriter, r *http.Request, fresh bool, violated ...[]byte) {
	if call, ok := w.(*Call); ok {
		call.Code, call.Message = codeOf(p.rpcStatus(call.RetryAfter)).number, p.message(call.RetryAfter)
		return
	}
	h := w.Header()
	if fresh {
		h["Cache-Control"] = noStore
	} else {
		replaceBody(h)
	}
	h["X-Content-Type-Options"] = noSniff
	if rpc := ProtocolOf(r); rpc != HTTP {
		after := h.Get("Retry-After")
		rpc.write(w, r, p.rpcStatus(after), p.message(after))
		return
	}
	var body []byte
	switch best(r.Header["Accept"]) {
	case JSON:
		h["Content-Type"] = problemJSON
		if body = p.json; len(violated) > 0 {
			body = p.Violating(violated...).json
		}
	case HTML:
		h["Content-Type"] = htmlText
		body = []byte("<!doctype html>\n<meta name=viewport content=\"width=device-width\">\n<title>" +
			p.title + "</title>\n<h1>" + p.title + "</h1>\n<p>" + html.EscapeString(p.message(h.Get("Retry-After"))) + "</p>\n")
	default:
		h["Content-Type"] = plainText
		body = []byte(p.message(h.Get("Retry-After")) + "\n")
	}
	w.WriteHeader(p.Status)
	w.Write(body) // an error means that the client is gone
}

// replaceBody adapts the header fields of a response to another body, or to no body. CDNs prefer
// fields such as CDN-Cache-Control (RFC 9213) to Cache-Control. Content-Encoding stays, because
// middleware may compress the body.
func replaceBody(h http.Header) {
	maps.DeleteFunc(h, func(name string, _ []string) bool {
		switch name {
		case "Content-Length", "Surrogate-Control", "X-Accel-Expires", "Edge-Control": // of Fastly, nginx and Akamai
			return true
		}
		return strings.HasSuffix(name, "-Cache-Control")
	})
	h["Cache-Control"] = noStore
}

// WriteJSON answers with a JSON body from the program.
func WriteJSON(w http.ResponseWriter, status int, body []byte) {
	h := w.Header()
	replaceBody(h)
	h["X-Content-Type-Options"] = noSniff
	h["Content-Type"] = []string{"application/json"}
	w.WriteHeader(status)
	w.Write(body) // an error means that the client is gone
}

// rpcStatus returns the status of p for clients of RPC protocols, which do not read the kind: 403
// if the key is denied, because no wait helps.
func (p *Problem) rpcStatus(after string) int {
	if p.kind == AbnormalUsage.kind && p.Status == http.StatusTooManyRequests && after == "" {
		return http.StatusForbidden
	}
	return p.Status
}

// message returns the sentence of p and, if waiting helps, when to try again.
func (p *Problem) message(after string) string {
	switch after {
	case "":
		return p.sentence
	case "1":
		return p.sentence + " Try again in a second."
	default:
		return p.sentence + " Try again in " + after + " seconds."
	}
}

// clientClosedRequest is the status that nginx logs if a client hangs up before the answer.
const clientClosedRequest = 499

// Ended answers a request whose context ended with err before the request was served. Even if the
// client is gone, the log must not show a success, and a cache must not store the response.
func Ended(w http.ResponseWriter, r *http.Request, err error) {
	if errors.Is(err, context.DeadlineExceeded) {
		ReducedCapacity.Write(w, r, false)
		return
	}
	replaceBody(w.Header())
	w.WriteHeader(clientClosedRequest)
}
