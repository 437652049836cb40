package main

import (
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
)

// A form determines how an answer is written, because proxies accept different answers.
type form int

const (
	// asIs is the form for Caddy and Traefik: the client gets the answer unchanged.
	asIs form = iota

	// forNginx is the form for nginx, which accepts only 401 and 403 as refusals and drops the
	// body. The Weir-Status field contains the status of a refusal, and the Weir-Problem field
	// contains its problem details. From these fields, nginx.conf builds the response for the
	// client.
	forNginx

	// forEnvoy is the form for Envoy's ext_authz filter, which treats a status of 500 or
	// more as an outage of Weir and, with failure_mode_allow, forwards the request. A
	// refusal with such a status becomes a 429.
	forEnvoy
)

const problemJSON = "application/problem+json"

// maxFields is the maximum size of the header fields of an answer, in bytes. By default, nginx has
// room for 4 KiB (proxy_buffer_size). If an answer is larger, nginx treats it like an outage of
// Weir, and forwards the request even if the answer is a refusal.
const maxFields = 3 << 10

// keptFields are the header fields that an answer keeps if its fields are larger than maxFields.
var keptFields = []string{"Cache-Control", "Content-Type", "Retry-After", "Weir-Problem", "Weir-Status",
	"X-Content-Type-Options"}

// An answer is a ResponseWriter for a proxy.
type answer struct {
	http.ResponseWriter
	form    form
	log     *slog.Logger
	refused int // for nginx: the status of a refusal that is not written yet
}

func (a *answer) WriteHeader(status int) {
	switch {
	case a.form == forNginx && status >= 400:
		a.refused = status
		return // Write gets the problem details
	case a.form == forEnvoy && status >= 500:
		status = http.StatusTooManyRequests
	}
	a.bound()
	a.ResponseWriter.WriteHeader(status)
}

func (a *answer) Write(body []byte) (int, error) {
	if a.refused != 0 {
		a.refuse(string(body))
	}
	return a.ResponseWriter.Write(body)
}

// refuse writes the header of a refusal for nginx.
func (a *answer) refuse(problem string) {
	const most = 1 << 10
	problem = strings.TrimSpace(problem)
	if short, _, ok := strings.Cut(problem, `,"violated-policies":`); ok && len(problem) > most {
		problem = short + "}"
	}
	a.Header().Set("Weir-Status", strconv.Itoa(a.refused))
	a.Header().Set("Weir-Problem", problem)
	a.refused = 0
	a.bound()
	a.ResponseWriter.WriteHeader(http.StatusForbidden)
}

// end writes the header of a refusal that has no body. Call it after the handler has returned.
func (a *answer) end() {
	if a.refused != 0 {
		a.refuse("")
	}
}

// If the header fields together are larger than maxFields, bound removes all of them except
// keptFields. The client then does not learn its quota.
func (a *answer) bound() {
	size, h := 0, a.Header()
	for name, values := range h {
		for _, v := range values {
			size += len(name) + len(": \r\n") + len(v)
		}
	}
	if size <= maxFields {
		return
	}
	for name := range h {
		if !slices.Contains(keptFields, name) {
			delete(h, name)
		}
	}
	a.log.Warn("weir: fields about limits too large for a proxy", "bytes", size, "max_bytes", maxFields, "effect",
		"the answer lacks them", "fix", "have fewer rules, shorter names, or headers: none")
}
