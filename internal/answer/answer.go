// Package answer refuses requests of RPC clients in the words of their protocol: Connect, gRPC
// and gRPC-Web. Such a client does not read problem details, and takes a 429 without these words
// for an outage, after which it may come again at once.
package answer

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/json"
	"net/http"
	"strconv"
	"strings"
)

// A Protocol is how a client expects the answer to a request that was not served.
type Protocol uint8

const (
	HTTP          Protocol = iota // a status, and a body that Accept chooses
	GRPC                          // trailers, here as header fields without a body
	Web                           // gRPC-Web: trailers in the body
	WebText                       // the same, in base64
	ConnectUnary                  // a status, and an error as JSON
	ConnectStream                 // 200, and the error in the last frame of the body
)

// For returns the protocol of the client of r. It reads the Content-Type, and for Connect's GET
// and JSON what else tells them apart from other requests. A protocol that refuses with the status
// 200 needs the request itself: the question of a proxy about it (forward auth) has no body, and to
// the proxy a 200 would mean that the request may pass.
func For(r *http.Request) Protocol {
	p := named(r)
	if p == HTTP || p == ConnectUnary {
		return p
	}
	if sent := r.Method == http.MethodPost && r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody; !sent || p == GRPC && r.ProtoMajor < 2 {
		return HTTP
	}
	return p
}

// named returns the protocol that the header fields and the query of r name.
func named(r *http.Request) Protocol {
	if len(r.Header["Content-Type"]) == 0 {
		if r.Method == http.MethodGet && hasParameter(r.URL.RawQuery, "connect=v1") {
			return ConnectUnary
		}
		return HTTP
	}
	const prefix = "application/"
	media := mediaType(r)
	if len(media) < len(prefix) || len(media) > maxMedia || !strings.EqualFold(media[:len(prefix)], prefix) {
		return HTTP
	}
	media, codec, _ := strings.Cut(media[len(prefix):], "+")
	switch {
	case strings.EqualFold(media, "grpc"):
		return GRPC
	case strings.EqualFold(media, "grpc-web"):
		return Web
	case strings.EqualFold(media, "grpc-web-text"):
		return WebText
	case strings.EqualFold(media, "connect") && codec != "":
		return ConnectStream
	case codec == "" && strings.EqualFold(media, "proto"),
		codec == "" && strings.EqualFold(media, "json") && len(r.Header["Connect-Protocol-Version"]) > 0:
		return ConnectUnary
	}
	return HTTP
}

// maxMedia is how long the media type of an RPC is at most, because the answer repeats it.
const maxMedia = 64

// mediaType returns the Content-Type of a request without its parameters.
func mediaType(r *http.Request) string {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(media)
}

// hasParameter reports whether a query has a parameter, which needs no escaping.
func hasParameter(query, parameter string) bool {
	for query != "" {
		var p string
		if p, query, _ = strings.Cut(query, "&"); p == parameter {
			return true
		}
	}
	return false
}

// A code is an error code of gRPC, its name in Connect, and the status of Connect's answer.
type code struct {
	number int
	name   string
	status int
}

// codeOf returns the code of an answer that would have the given HTTP status: that of the answers
// of package weir, and otherwise resource_exhausted, because a limit refuses.
func codeOf(status int) code {
	switch status {
	case http.StatusBadRequest:
		return code{3, "invalid_argument", status}
	case http.StatusUnauthorized:
		return code{16, "unauthenticated", status}
	case http.StatusForbidden:
		return code{7, "permission_denied", status}
	case http.StatusNotFound:
		return code{5, "not_found", status}
	case http.StatusServiceUnavailable:
		return code{14, "unavailable", status}
	}
	return code{8, "resource_exhausted", http.StatusTooManyRequests}
}

// Write answers in the protocol, which must not be HTTP, with the code for a status and a
// sentence, which must be printable ASCII without percent signs. A Retry-After in the fields of w
// becomes a google.rpc.RetryInfo and, for gRPC, grpc-retry-pushback-ms, which gRPC clients with a
// retry policy obey: after a wait of more than a minute they do not retry.
func (p Protocol) Write(w http.ResponseWriter, r *http.Request, status int, sentence string) {
	h, c := w.Header(), codeOf(status)
	seconds, _ := strconv.ParseUint(h.Get("Retry-After"), 10, 32)
	h["Content-Type"] = []string{mediaType(r)}
	status = http.StatusOK
	var body []byte
	switch p {
	case GRPC:
		for _, t := range trailers(c, sentence, seconds) {
			h.Set(t[0], t[1])
		}
	case Web, WebText: // not in header fields, which CORS would hide from scripts
		for _, t := range trailers(c, sentence, seconds) {
			body = append(body, t[0]+": "+t[1]+"\r\n"...)
		}
		if body = frame(0x80, body); p == WebText {
			body = []byte(base64.StdEncoding.EncodeToString(body))
		}
	case ConnectStream:
		body = frame(0x02, []byte(`{"error":`+connectError(c, sentence, seconds)+`}`))
	case ConnectUnary:
		h["Content-Type"] = []string{"application/json"}
		status, body = c.status, []byte(connectError(c, sentence, seconds))
	}
	w.WriteHeader(status)
	w.Write(body) // an error means that the client is gone
}

// connectError returns an error as Connect spells it.
func connectError(c code, sentence string, seconds uint64) string {
	message, _ := json.Marshal(sentence) // a string can always be marshalled
	details := ""
	if seconds > 0 {
		details = `,"details":[{"type":"google.rpc.RetryInfo","value":"` + base64.RawStdEncoding.EncodeToString(retryInfo(seconds)) + `"}]`
	}
	return `{"code":"` + c.name + `","message":` + string(message) + details + `}`
}

// maxPushback is the longest wait, in seconds, that a retry policy obeys, which would otherwise hold
// a call without a deadline for a day.
const maxPushback = 60

// trailers returns the trailers of a gRPC answer, in lower case.
func trailers(c code, sentence string, seconds uint64) [][2]string {
	all := [][2]string{{"grpc-status", strconv.Itoa(c.number)}, {"grpc-message", sentence}}
	if seconds == 0 {
		return all
	}
	pushback := "-1" // do not retry
	if seconds <= maxPushback {
		pushback = strconv.FormatUint(1000*seconds, 10)
	}
	status := field(binary.AppendUvarint([]byte{1 << 3}, uint64(c.number)), 2, []byte(sentence)) // google.rpc.Status
	detail := field(field(nil, 1, []byte("type.googleapis.com/google.rpc.RetryInfo")), 2, retryInfo(seconds))
	return append(all,
		[2]string{"grpc-status-details-bin", base64.RawStdEncoding.EncodeToString(field(status, 3, detail))},
		[2]string{"grpc-retry-pushback-ms", pushback})
}

// retryInfo returns a google.rpc.RetryInfo in protobuf: a Duration of whole seconds.
func retryInfo(seconds uint64) []byte {
	return field(nil, 1, binary.AppendUvarint([]byte{1 << 3}, seconds))
}

// field appends a field of protobuf that has a length.
func field(b []byte, number byte, value []byte) []byte {
	return append(binary.AppendUvarint(append(b, number<<3|2), uint64(len(value))), value...)
}

// frame returns a frame of gRPC-Web or Connect.
func frame(flags byte, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...)
}
