// Package llm lets a weir.Limiter limit the tokens that clients of a language model API use, or the
// money that they spend.
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
//		"github.com/seed83679106/weir/llm"
//		"github.com/seed83679106/weir/memstore"
//	)
//
//	func main() {
//		limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
//			Name: "tokens", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.TokenBucket(10_000, 10_000, time.Minute)},
//			Unit: "tokens", Cost: llm.MaxTokens(4096), Settle: weir.ChargeUsed,
//		}}})
//		if err != nil {
//			log.Fatal(err)
//		}
//		model := &url.URL{Scheme: "http", Host: "localhost:8000"}
//		log.Fatal(http.ListenAndServe("localhost:8080", limiter.Handler(&httputil.ReverseProxy{
//			Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(model) },
//			Transport: &llm.Transport{},
//		})))
//	}
//
// Each request first reserves the maximum number of tokens that its response may use. When the
// response is complete, the unused tokens are refunded.
//
// # APIs
//
// The package supports OpenAI's API formats (Chat Completions, Responses and Embeddings), which
// many other servers also use, and Anthropic's Messages format. The page docs/llm.md in the
// repository shows a complete gateway.
package llm

import (
	"context"
	"log/slog"
	"math"
	"mime"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/keys"
)

// Usage contains the token counts that a response reports.
type Usage struct {
	Model      string // as named in the response, at most 128 bytes
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
// The usage is reported after the last byte of a JSON response or the last event of a stream. For a
// response with status 400 or above, a zero Usage is reported. No usage is reported if the response
// ends prematurely, if its body is closed early, if it contains no usage, or if it contains a count
// that is negative or above math.MaxInt64. In these cases, weir.ChargeUsed charges the Cost of the
// request. If a complete response to a POST request contains no valid usage, the Transport logs a
// warning, but only once. Fractional counts are rounded up. A Chat Completions stream contains the
// usage only if the request has "stream_options": {"include_usage": true}.
//
// A Transport buffers less than a kilobyte of each response. It removes Accept-Encoding from
// requests, because it cannot read compressed responses. An http.Transport then requests gzip and
// decompresses the response itself.
type Transport struct {
	// Base sends requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// Report is called with the usage of a response and the context of its request. If Report is
	// nil, the Transport calls weir.ReportUsage with the unit "tokens" and Usage.Total. Report
	// may call ReportUsage for several units, such as tokens and the price in micro-dollars.
	Report func(ctx context.Context, u Usage)

	// Logger logs the warning about missing usage; nil means slog.Default().
	Logger *slog.Logger

	warned atomic.Bool
}

// RoundTrip implements http.RoundTripper.
func (t *Transport) RoundTrip(r *http.Request) (*http.Response, error) {
	base := t.Base
	if base == nil {
		base = http.DefaultTransport
	}
	if r.Header.Get("Accept-Encoding") != "" {
		r = r.Clone(r.Context())
		r.Header.Del("Accept-Encoding")
	}
	res, err := base.RoundTrip(r)
	if err != nil || res == nil || res.StatusCode < 200 { // such as a WebSocket
		return res, err
	}
	report := func(u Usage, ok bool) {
		if ok || r.Method == http.MethodPost { // a list of models uses none
			t.report(r.Context(), u, ok)
		}
	}
	if res.StatusCode >= 400 {
		report(Usage{}, true)
	} else if reader := readerOf(res.Header); reader != nil && res.Body != nil {
		res.Body = &body{ReadCloser: res.Body, reader: reader, report: report}
	} else {
		report(Usage{}, false)
	}
	return res, nil
}

func (t *Transport) report(ctx context.Context, u Usage, ok bool) {
	switch {
	case !ok && !t.warned.Swap(true):
		logger := t.Logger
		if logger == nil {
			logger = slog.Default()
		}
		logger.WarnContext(ctx, "llm: answer without its usage of tokens", "effect", "nothing is reported; later answers of this kind are not logged",
			"likely", `a stream of Chat Completions needs "stream_options": {"include_usage": true}; or the answer is compressed, or of another API`)
	case !ok:
	case t.Report != nil:
		t.Report(ctx, u)
	default:
		weir.ReportUsage(ctx, "tokens", u.Total())
	}
}

// readerOf returns a reader for an answer with these fields, or nil if there is none.
func readerOf(h http.Header) reader {
	if e := h.Get("Content-Encoding"); e != "" && e != "identity" {
		return nil
	}
	switch media, _, _ := mime.ParseMediaType(h.Get("Content-Type")); {
	case media == "text/event-stream":
		return &events{scanner: scanner{found: nothing}}
	case media == "application/json", strings.HasSuffix(media, "+json"):
		return &object{scanner{found: nothing}}
	}
	return nil
}

// maxBody is how many bytes of a request MaxTokens reads at most.
const maxBody = 1 << 20

// MaxTokens returns a function for Rule.Cost that returns the maximum number of output tokens of a
// request. The function multiplies the largest of the JSON fields max_tokens, max_completion_tokens
// and max_output_tokens by the n field, which is the number of completions. The result is never
// above the argument of MaxTokens. If the body has none of the first three fields, is longer than
// 1 MiB, or cannot be read (see keys.ByJSON), the function returns the argument of MaxTokens. If a
// request has no body, the function returns 1. MaxTokens panics if its argument is below 1.
//
// The argument should not exceed the Capacity of any limit of the rule, because a limit never allows
// a cost above its capacity.
func MaxTokens(most int64) func(r *http.Request) int64 {
	if most < 1 {
		panic("llm: MaxTokens: most is " + strconv.FormatInt(most, 10) + "; want at least 1")
	}
	var fields []weir.KeyFunc
	for _, name := range []string{"max_tokens", "max_completion_tokens", "max_output_tokens", "n"} {
		fields = append(fields, keys.ByJSON(name, maxBody))
	}
	return func(r *http.Request) int64 {
		if r.Body == nil || r.Body == http.NoBody {
			return 1
		}
		var values [4]int64
		for i, field := range fields {
			text, ok := field(r)
			n, err := strconv.ParseInt(text, 10, 64)
			if ok && (err != nil || n < 0 || n > most) {
				return most
			}
			values[i] = n
		}
		tokens, answers := max(values[0], values[1], values[2]), max(1, values[3])
		if tokens == 0 || tokens > most/answers {
			return most
		}
		return tokens * answers
	}
}
