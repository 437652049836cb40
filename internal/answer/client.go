package answer

import (
	"net/http"
	"strconv"
	"strings"
)

// A Protocol determines the form in which a client expects the answer to a request that was not
// served.
type Protocol uint8

const (
	HTTP          Protocol = iota // a status, and a body that Accept chooses
	GRPC                          // trailers, here as header fields without a body
	Web                           // gRPC-Web: trailers in the body
	WebText                       // the same, in base64
	ConnectUnary                  // a status, and an error as JSON
	ConnectStream                 // 200, and the error in the last frame of the body
)

// ProtocolOf returns the protocol that the client uses in the request r. It reads the Content-Type
// and, for Connect's GET and JSON requests, further parts that distinguish them from other
// requests. A protocol that refuses with status 200 applies only if the request has a body. In
// forward auth, a proxy sends no body, and would treat a 200 as permission to forward the request.
func ProtocolOf(r *http.Request) Protocol {
	p := named(r)
	if p == HTTP || p == ConnectUnary {
		return p
	}
	sent := r.Method == http.MethodPost && r.ContentLength != 0 && r.Body != nil && r.Body != http.NoBody
	if !sent || p == GRPC && r.ProtoMajor < 2 {
		return HTTP
	}
	return p
}

// IsRPC reports whether the header fields belong to a response to an RPC client, whose status is
// 200 even if the request was refused.
func IsRPC(h http.Header) bool {
	sent := strings.ToLower(h.Get("Content-Type"))
	return strings.HasPrefix(sent, "application/grpc") || strings.HasPrefix(sent, "application/connect+")
}

// named returns the protocol that the header fields and the query of r name.
func named(r *http.Request) Protocol {
	if len(r.Header["Content-Type"]) == 0 {
		if q := r.URL.RawQuery; q != "" && r.Method == http.MethodGet && strings.Contains("&"+q+"&", "&connect=v1&") {
			return ConnectUnary
		}
		return HTTP
	}
	media := mediaType(r)
	if len(media) > maxMedia {
		return HTTP
	}
	media, codec, _ := strings.Cut(strings.ToLower(media), "+")
	switch media {
	case "application/grpc":
		return GRPC
	case "application/grpc-web":
		return Web
	case "application/grpc-web-text":
		return WebText
	case "application/connect":
		if codec != "" {
			return ConnectStream
		}
	case "application/proto", "application/json":
		if codec == "" && (media == "application/proto" || len(r.Header["Connect-Protocol-Version"]) > 0) {
			return ConnectUnary
		}
	}
	return HTTP
}

// maxMedia is the maximum length of the media type of an RPC, because the answer repeats it.
const maxMedia = 64

// mediaType returns the Content-Type of a request without its parameters.
func mediaType(r *http.Request) string {
	media, _, _ := strings.Cut(r.Header.Get("Content-Type"), ";")
	return strings.TrimSpace(media)
}

// A Form identifies a form of an error page.
type Form int

const (
	JSON Form = iota // application/problem+json
	Text
	HTML
	forms
)

// mostAccept is the maximum number of bytes of Accept that are read. Browsers send about 150 bytes.
const mostAccept = 2048

// ranges are the media ranges that match forms, with their precision: 1 for */*, 2 for type/*, 3
// for type/subtype.
var ranges = map[string]struct {
	precision int
	forms     []Form
}{
	"*/*":                      {1, []Form{JSON, Text, HTML}},
	"application/*":            {2, []Form{JSON}},
	"text/*":                   {2, []Form{Text, HTML}},
	"application/problem+json": {3, []Form{JSON}},
	"application/json":         {3, []Form{JSON}},
	"text/plain":               {3, []Form{Text}},
	"text/html":                {3, []Form{HTML}},
}

// best returns the form that the client prefers (RFC 9110, 12.5.1): problem details
// if it has no preference, and text if it accepts none of the forms. It reads only the
// first mostAccept bytes, so that a refusal does not cost more than serving would.
func best(accept []string) Form {
	if len(accept) == 0 || len(accept) == 1 && accept[0] == "*/*" { // the usual cases, which need no parser
		return JSON
	}
	list := strings.Join(accept, ",")
	if len(list) > mostAccept {
		list = list[:max(0, strings.LastIndexByte(list[:mostAccept], ','))]
	}
	var quality, precision [forms]int // quality in thousandths, of the most precise range; precision 0: there is none
	for part := range strings.SplitSeq(list, ",") {
		media, params, _ := strings.Cut(part, ";")
		q, named := weight(params), ranges[strings.ToLower(strings.TrimSpace(media))]
		for _, f := range named.forms {
			if named.precision > precision[f] || named.precision == precision[f] && q > quality[f] {
				precision[f], quality[f] = named.precision, q
			}
		}
	}
	chosen, most := Text, 0
	for _, f := range [...]Form{JSON, Text, HTML} {
		if quality[f] > most {
			chosen, most = f, quality[f]
		}
	}
	return chosen
}

// weight returns the q of a media range in thousandths. It returns 1000 if q is missing or
// malformed, so that a malformed q does not reject the range.
func weight(params string) int {
	for param := range strings.SplitSeq(params, ";") {
		name, value, _ := strings.Cut(param, "=")
		if !strings.EqualFold(strings.TrimSpace(name), "q") {
			continue
		}
		whole, decimals, _ := strings.Cut(strings.TrimSpace(value), ".") // at most three decimals (RFC 9110, 12.4.2)
		if q, err := strconv.ParseUint(whole+(decimals + "000")[:3], 10, 16); err == nil && whole != "" && q <= 1000 {
			return int(q)
		}
	}
	return 1000
}
