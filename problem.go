package weir

import (
	"bytes"
	"fmt"
	"html"
	"net/http"
	"slices"

	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/internal/accept"
	"github.com/seed83679106/weir/internal/answer"
)

// A problem is an answer to a request that was not served: problem details as in RFC 9457,
// with the types of draft-ietf-httpapi-ratelimit-headers, or a text or an HTML page if the
// client prefers that.
type problem struct {
	status   int
	kind     string
	title    string
	sentence string
	json     []byte
}

const problemTypes = "https://iana.org/assignments/http-problem-types#"

func newProblem(kind, title, sentence string, status int) problem {
	return problem{status, kind, title, sentence, fmt.Appendf(nil, `{"type":"%s%s","title":"%s","status":%d}`+"\n", problemTypes, kind, title, status)}
}

var (
	quotaExceeded = newProblem("quota-exceeded", "Quota Exceeded", "Too many requests.", http.StatusTooManyRequests)
	abnormalUsage = newProblem("abnormal-usage-detected", "Abnormal Usage Detected", "Abnormal usage was detected.", http.StatusTooManyRequests)
	missingKey    = problem{http.StatusBadRequest, "", "Bad Request", "The request lacks the value by which it is limited.",
		[]byte(`{"type":"about:blank","title":"Bad Request","status":400,"detail":"The request lacks the value by which it is limited."}` + "\n")}
	reducedCapacity = newProblem("temporary-reduced-capacity", "Temporary Reduced Capacity", "The service has less capacity for now.", http.StatusServiceUnavailable)
)

// withStatus returns the problem with another status, or unchanged if that status is 0.
func (p problem) withStatus(status int) problem {
	if status == 0 {
		return p
	}
	return newProblem(p.kind, p.title, p.sentence, status)
}

// violating returns the problem with the names of policies, in JSON.
func (p problem) violating(names ...[]byte) problem {
	p.json = slices.Concat(p.json[:len(p.json)-2], []byte(`,"violated-policies":[`), bytes.Join(names, []byte{','}), []byte("]}\n"))
	return p
}

// Values that all answers share. They must not be changed.
var (
	noStore     = []string{"no-store"}
	noSniff     = []string{"nosniff"}
	varyAccept  = []string{"Accept"}
	problemJSON = []string{"application/problem+json"}
	plainText   = []string{"text/plain; charset=utf-8"}
	htmlText    = []string{"text/html; charset=utf-8"}
)

// write answers with p. fresh says that the response has no fields yet except those about limits.
func (p *problem) write(w http.ResponseWriter, r *http.Request, fresh bool) {
	h, vary := w.Header(), []string(nil)
	if !fresh {
		vary = h["Vary"]
		delete(h, "Content-Length") // net/http sets it
		delete(h, "Content-Encoding")
	}
	h["Cache-Control"] = noStore
	h["X-Content-Type-Options"] = noSniff
	if rpc := answer.For(r); rpc != answer.HTTP {
		rpc.Write(w, r, p.rpcStatus(h), p.sentence+tryAgain(h))
		return
	}
	if len(vary) == 0 {
		h["Vary"] = varyAccept
	} else if !slices.Contains(vary, "Accept") {
		h.Add("Vary", "Accept")
	}

	body := p.json
	switch accept.Best(r.Header["Accept"]) {
	case accept.JSON:
		h["Content-Type"] = problemJSON
	case accept.HTML:
		h["Content-Type"] = htmlText
		body = []byte("<!doctype html>\n<meta name=viewport content=\"width=device-width\">\n<title>" +
			p.title + "</title>\n<h1>" + p.title + "</h1>\n<p>" + p.sentence + tryAgain(h) + "</p>\n")
	default:
		h["Content-Type"] = plainText
		body = []byte(p.sentence + tryAgain(h) + "\n")
	}
	w.WriteHeader(p.status)
	w.Write(body) // an error means that the client is gone
}

// rpcStatus returns the status of p for clients of RPC protocols, which do not read the kind: 403
// if the key is denied, because no wait helps.
func (p *problem) rpcStatus(h http.Header) int {
	if p.kind == abnormalUsage.kind && p.status == http.StatusTooManyRequests && len(h[headers.RetryAfter]) == 0 {
		return http.StatusForbidden
	}
	return p.status
}

func tryAgain(h http.Header) string {
	switch after := h.Get(headers.RetryAfter); after {
	case "":
		return ""
	case "1":
		return " Try again in a second."
	default:
		return " Try again in " + html.EscapeString(after) + " seconds."
	}
}
