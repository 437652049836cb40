// Package llm allows a weir.Limiter to limit how many tokens clients of a language model API use,
// or how much money they spend.
//
//	package main
//
//	import (
//		"log"
//		"net/http"
//		"net/http/httputil"
//		"net/url"
//		"time"
//
//		"github.com/seed83679106/weir"
//		"github.com/seed83679106/weir/algorithms"
//		"github.com/seed83679106/weir/contrib/llm"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
//			Name: "tokens", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.TokenBucket(10_000, 10_000, time.Minute)},
//			Unit: "tokens", Cost: llm.MaxTokens(10_000, 1000), Settle: weir.ChargeUsed,
//		}}})
//		if err != nil {
//			log.Fatal(err)
//		}
//		model := &url.URL{Scheme: "http", Host: "localhost:8000"}
//		log.Fatal(http.ListenAndServe("localhost:8080", limiter.Handler(weir.KeepHeaders(&httputil.ReverseProxy{
//			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(model) },
//			Transport: &llm.Transport{},
//		}))))
//	}
//
// Each request first reserves the tokens of its input, and as many tokens as the response may use.
// When the response is complete, the unused tokens are refunded. If the response ends early, the
// request is charged the reserved tokens or the usage stated so far, whichever is more.
//
// # APIs
//
// The package supports OpenAI's API formats (Chat Completions, Responses and Embeddings), which
// many other servers also use, and Anthropic's Messages format. The page docs/llm.md shows a
// complete gateway.
package llm

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"math"
	"mime"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/internal/jsonbody"
)

// Usage contains the token counts that a response reports.
type Usage struct {
	Model      string // the name in the response, at most 128 bytes
	Input      int64  // input tokens, excluding those read from or written to a cache
	CacheRead  int64  // input tokens read from a cache
	CacheWrite int64  // input tokens written to a cache
	Output     int64  // output tokens
}

// Total returns the sum of all four counts. Negative counts are treated as 0, and the sum is at
// most math.MaxInt64.
func (u Usage) Total() (sum int64) {
	for _, n := range []int64{u.Input, u.CacheRead, u.CacheWrite, u.Output} {
		sum += min(max(0, n), math.MaxInt64-sum)
	}
	return sum
}

// A Transport is an http.RoundTripper that reports how many tokens responses use. If it is the
// TransportOptions.Base of a weir.Transport, the tokens count under the rules of that
// weir.Transport. If it is the Transport of an httputil.ReverseProxy, they count under the rules of
// the Limiter that wraps the proxy.
//
// Only responses to POST requests are expected to use tokens. The Transport reports the usage after
// the last byte of a JSON response or the last event of a stream. For a response with status 400 or
// above, it reports a zero Usage. Fractional counts are rounded up.
//
// The usage is incomplete if the response ends prematurely, if its body is closed early, if it
// contains no usage, or if it contains a count that is negative or above math.MaxInt64. The
// Transport then reports the usage known so far with weir.ReportAtLeast, so that no reserved units
// are refunded. It counts each event of a stream as at least one output token. The first time that
// a complete response contains no valid usage, the Transport also logs a warning.
//
// A stream of Chat Completions or Completions contains its usage only if the request has
// "stream_options": {"include_usage": true}. The Transport therefore sets this field in requests
// whose path ends with /completions and whose body is at most 1 MiB. The client then gets an
// additional event, which contains the usage and no choices.
//
// A Transport buffers at most 1 MiB of such a request, and less than a kilobyte of each response. It
// removes Accept-Encoding from requests, because it cannot read compressed responses. An
// http.Transport then requests gzip and decompresses the response itself.
type Transport struct {
	// Base sends requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// Report is called with the usage of a response and the context of its request. It must call
	// its last argument for each unit, such as tokens and the price in micro-dollars. This function
	// is weir.ReportUsage or, if the usage may be incomplete, weir.ReportAtLeast. If Report is nil,
	// the Transport calls report with the unit "tokens" and Usage.Total.
	Report func(ctx context.Context, u Usage, report func(ctx context.Context, unit string, used int64))

	// Logger logs the warning about missing usage; nil means slog.Default().
	Logger *slog.Logger

	warned atomic.Bool
}

func (t *Transport) base() http.RoundTripper { return cmp.Or(t.Base, http.DefaultTransport) }

// CloseIdleConnections closes the idle connections of Base. http.Client.CloseIdleConnections calls it.
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base().(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodPost {
		return t.base().RoundTrip(r)
	}
	r = r.WithContext(r.Context())
	if r.Header.Get("Accept-Encoding") != "" {
		r.Header = r.Header.Clone()
		r.Header.Del("Accept-Encoding")
	}
	if strings.HasSuffix(r.URL.Path, "/completions") {
		includeUsage(r)
	}
	res, err := t.base().RoundTrip(r)
	if err != nil || res == nil || res.StatusCode < 200 { // a status below 200, as for a WebSocket, has no body with usage
		return res, err
	}
	report := func(u Usage, whole bool) { t.report(r.Context(), u, whole) }
	if res.StatusCode >= 400 {
		report(Usage{}, true)
	} else if reader := readerOf(res.Header); reader != nil && res.Body != nil {
		res.Body = &body{ReadCloser: res.Body, reader: reader, report: report, missing: func() { t.warn(r.Context()) }}
	} else {
		t.warn(r.Context())
		report(Usage{}, false)
	}
	return res, nil
}

func (t *Transport) report(ctx context.Context, u Usage, whole bool) {
	report := weir.ReportUsage
	if !whole {
		report = weir.ReportAtLeast
	}
	if t.Report != nil {
		t.Report(ctx, u, report)
	} else {
		report(ctx, "tokens", u.Total())
	}
}

// warn logs that a complete response has no usage.
func (t *Transport) warn(ctx context.Context) {
	if t.warned.Swap(true) {
		return
	}
	cmp.Or(t.Logger, slog.Default()).WarnContext(ctx, "llm: response without its usage of tokens", "effect", "it costs what was reserved; later responses of this kind are not logged",
		"likely", "the server does not report usage, the response is compressed, or it is of another API")
}

// includeUsage changes a request so that the stream in the response states its usage. The request r
// is a copy whose body may be replaced.
func includeUsage(r *http.Request) {
	object, ok := jsonbody.Peek(r, maxBody).Value()
	if !ok || len(object) == 0 || object[0] != '{' {
		return
	}
	stream, _ := jsonbody.Member(object, "stream")
	options, ok := jsonbody.Member(object, "stream_options")
	if !ok || string(stream) != "true" {
		return
	}
	begin, end, insert := 1, 1, `"stream_options":{"include_usage":true},`
	if options != nil {
		place := func(part []byte) int { return cap(object) - cap(part) } // part is a subslice of object
		begin = place(options)
		end, insert = begin+len(options), `{"include_usage":true}`
		if options[0] == '{' { // keep the other options
			switch name, value, n := jsonbody.Find(options, "include_usage"); {
			case n == 1 && string(name) == `"include_usage"` && string(value) == "true":
				return
			case n == 1: // also replace a name that only some servers accept
				begin, end, insert = place(name), place(value)+len(value), `"include_usage":true`
			case n == 0 && bytes.TrimSpace(options[1:])[0] != '}':
				end, insert = begin+1, `{"include_usage":true,`
			}
		}
	}
	text := slices.Concat(object[:begin], []byte(insert), object[end:])
	r.Body = struct {
		io.Reader
		io.Closer
	}{bytes.NewReader(text), r.Body}
	r.GetBody = func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(text)), nil }
	r.ContentLength, r.TransferEncoding = int64(len(text)), nil
}

// readerOf returns a reader for a response with the given header, or nil if such a response cannot
// contain usage.
func readerOf(h http.Header) *reader {
	if e := h.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil
	}
	media, _, _ := mime.ParseMediaType(h.Get("Content-Type"))
	stream := media == "text/event-stream"
	if !stream && media != "application/json" && !strings.HasSuffix(media, "+json") {
		return nil
	}
	return &reader{scanner: scanner{found: scanResult{counts: map[string]int64{}}}, stream: stream}
}

// maxBody is the maximum number of bytes that are read from a request body.
const maxBody = 1 << 20

// MaxTokens returns a function for Rule.Cost that returns the maximum number of tokens that a
// request may use: one for each byte of its body, plus the tokens of the output. The latter are the
// largest of the JSON fields max_tokens, max_completion_tokens and max_output_tokens, or the given
// output if the request has none of these. They are multiplied by the number of completions, which
// is the larger of n and best_of, and by the number of prompts if the prompt field is an array of
// prompts.
//
// The returned number is at most the given maximum, which should not exceed the Capacity of any
// limit of the rule, because a limit never allows a cost above its capacity. The maximum itself is
// returned if the body is longer than 1 MiB or is not a JSON object, if servers may interpret one
// of these fields differently (because it appears twice, or its name has a different letter case),
// or if the request continues a response, a conversation or a prompt that the server has stored.
// The function refuses a request with a Content-Encoding. It also refuses requests that run in the
// background, and batches (requests with the field "requests" or "input_file_id"), because the
// responses to these do not state the usage. If a request has no body, the result is 1. MaxTokens
// panics if an argument is below 1.
//
// Images, files and web pages that a body only refers to, and the results of a server's own tools,
// are not counted. Their tokens are charged when the response states its usage.
func MaxTokens(most, output int64) func(r *http.Request) int64 {
	if most < 1 || output < 1 {
		panic(fmt.Sprintf("llm: MaxTokens: most is %d and output is %d; want at least 1", most, output))
	}
	return func(r *http.Request) int64 {
		switch {
		case r.Body == nil || r.Body == http.NoBody:
			return 1
		case len(r.Header["Content-Encoding"]) > 0:
			return -1
		}
		text := jsonbody.Peek(r, maxBody)
		found, ok := fieldsOf(text)
		if string(found["background"]) == "true" || found["requests"] != nil || found["input_file_id"] != nil {
			return -1
		}
		produced, known := produces(found, most, output)
		if !ok || !known {
			return most
		}
		return min(most, int64(len(text.Head))+produced)
	}
}

// produces returns how many tokens the answers to a request may have. It returns false if that is
// not known, or is more than most.
func produces(found map[string][]byte, most, output int64) (_ int64, ok bool) {
	tokens, valid := largest(found, 0, "max_tokens", "max_completion_tokens", "max_output_tokens")
	tokens = cmp.Or(tokens, output)
	answers, countable := largest(found, 1, "n", "best_of")
	prompts, known := promptsOf(found["prompt"])
	ok = valid && countable && known && found["previous_response_id"] == nil && found["conversation"] == nil
	if !ok || answers > most/prompts || tokens > most/(answers*prompts) {
		return 0, false
	}
	return tokens * answers * prompts, true
}

// largest returns the largest of n and the values of the given fields. It returns false if a value
// is negative or not an integer.
func largest(found map[string][]byte, n int64, fields ...string) (_ int64, ok bool) {
	ok = true
	for _, field := range fields {
		if value := found[field]; value != nil {
			v, err := strconv.ParseInt(string(value), 10, 64)
			n, ok = max(n, v), ok && err == nil && v >= 0
		}
	}
	return n, ok
}

var fields = []string{
	"max_tokens", "max_completion_tokens", "max_output_tokens", "n", "best_of", "prompt",
	"previous_response_id", "conversation", "background", "requests", "input_file_id",
}

// fieldsOf returns the values of the fields in a body, except those that are null. It returns false
// if a server may read different values from the body.
func fieldsOf(text *jsonbody.Text) (found map[string][]byte, ok bool) {
	object, ok := text.Value()
	if !ok || len(object) == 0 || object[0] != '{' {
		return nil, false
	}
	found = map[string][]byte{}
	members := 0
	for name, value := range jsonbody.Members(object) {
		if members++; members > 1000 {
			return nil, false
		}
		for _, field := range fields {
			if !jsonbody.Matches(name, field) {
				continue
			}
			if found[field] != nil || string(name[1:len(name)-1]) != field {
				return nil, false
			}
			found[field] = value
		}
	}
	maps.DeleteFunc(found, func(_ string, value []byte) bool { return string(value) == "null" })
	return found, true
}

// promptsOf returns the number of prompts in the value of the prompt field, which is at least 1. A
// text or a list of tokens is one prompt. If the server has stored the prompt, known is false.
func promptsOf(value []byte) (n int64, known bool) {
	if len(value) == 0 || value[0] != '[' {
		return 1, len(value) == 0 || value[0] != '{'
	}
	for prompt := range jsonbody.Elements(value) {
		if prompt[0] != '"' && prompt[0] != '[' {
			return 1, true
		}
		n++
	}
	return max(1, n), true
}
