package answer

import (
	"encoding/base64"
	"encoding/binary"
	"net/http"
	"strconv"
)

// A code holds an error code of gRPC, its name in Connect, and the status of Connect's answer.
type code struct {
	number int
	name   string
	status int
}

// codeOf returns the code that corresponds to an HTTP status. For a status that package weir does
// not use itself, the code is resource_exhausted, because a limit refuses the request.
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

// A Call is the answer to a gRPC call that is not served over HTTP. It records the status code and
// the message instead of sending a response.
type Call struct {
	RetryAfter string // the field, or ""
	Code       int
	Message    string
}

// Header implements http.ResponseWriter.
func (*Call) Header() http.Header { return nil }

// Write implements http.ResponseWriter.
func (*Call) Write(b []byte) (int, error) { return len(b), nil }

// WriteHeader implements http.ResponseWriter.
func (*Call) WriteHeader(int) {}

// write answers in the protocol, which must not be HTTP, with the code for a status and a sentence,
// which must be printable ASCII without percent signs. A Retry-After in the fields of w becomes a
// google.rpc.RetryInfo. For gRPC, it also becomes grpc-retry-pushback-ms, which gRPC clients with a
// retry policy obey. If the wait is more than a minute, this field instructs these clients not to
// retry.
func (p Protocol) write(w http.ResponseWriter, r *http.Request, status int, sentence string) {
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

// connectError returns an error in the format of Connect.
func connectError(c code, sentence string, seconds uint64) string {
	details := ""
	if seconds > 0 {
		info := base64.RawStdEncoding.EncodeToString(retryInfo(seconds))
		details = `,"details":[{"type":"google.rpc.RetryInfo","value":"` + info + `"}]`
	}
	return `{"code":"` + c.name + `","message":` + strconv.Quote(sentence) + details + `}`
}

// maxPushback is the longest wait, in seconds, that is sent to retry policies. A longer wait could
// hold a call without a deadline for a day.
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

// retryInfo returns a google.rpc.RetryInfo in protobuf, with a Duration of whole seconds.
func retryInfo(seconds uint64) []byte {
	return field(nil, 1, binary.AppendUvarint([]byte{1 << 3}, seconds))
}

// field appends a length-delimited protobuf field.
func field(b []byte, number byte, value []byte) []byte {
	return append(binary.AppendUvarint(append(b, number<<3|2), uint64(len(value))), value...)
}

// frame returns a gRPC-Web or Connect frame.
func frame(flags byte, data []byte) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{flags}, uint32(len(data))), data...)
}
