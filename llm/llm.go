// Package llm reads how many tokens a request to the API of a language model may use, and how
// many its answer has used, so that a weir.Limiter can limit tokens and money.
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
// A request reserves what its answer may use, and its answer charges what it has used.
//
// # APIs
//
// The package knows the forms of OpenAI (Chat Completions, Responses, Embeddings), which many
// other servers have too, and of Anthropic (Messages). docs/llm.md in the repository is a
// gateway with tenants, models, and money.
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

// Usage is how many tokens an answer says that it has used.
type Usage struct {
	Model      string // as the answer names it, at most 128 bytes
	Input      int64  // tokens that the model has read, without those of a cache
	CacheRead  int64  // tokens that the model has read from a cache
	CacheWrite int64  // tokens that were written into a cache
	Output     int64  // tokens that the model has written
}

// Total returns the sum of all tokens. Counts below 0 are 0, and a sum above math.MaxInt64 is that.
func (u Usage) Total() (sum int64) {
	for _, n := range []int64{u.Input, u.CacheRead, u.CacheWrite, u.Output} {
		sum += min(max(0, n), math.MaxInt64-sum)
	}
	return sum
}

// A Transport is an http.RoundTripper that reports the usage of answers. It works in both
// directions. As TransportOptions.Base it reports to the rules of a weir.Transport. As
// httputil.ReverseProxy.Transport it reports to the rules of the Limiter around the proxy.
//
// The usage is reported once an answer is complete: its JSON object or its last event has come. If
// the answer is never complete, because the connection broke or the caller has closed the body,
// nothing is reported, and weir.ChargeUsed charges the Cost of the request. A response with a
// status of 400 or above has used nothing: its Usage is zero. If a complete answer has no usage, or
// one of its counts is negative or above math.MaxInt64, nothing is reported either, and the Logger
// gets a warning once if the request was a POST. A fraction is rounded up. Chat Completions send
// the usage of a stream only if the request has "stream_options": {"include_usage": true}.
//
// A Transport keeps less than a kilobyte of an answer, however long it is. It removes
// Accept-Encoding from requests, because it cannot read an answer that it does not decompress
// itself; http.Transport then asks for gzip and decompresses.
type Transport struct {
	// Base sends the requests; nil means http.DefaultTransport.
	Base http.RoundTripper

	// Report is called with the usage of an answer, and with the context of its request; nil
	// calls weir.ReportUsage with the unit "tokens" and Usage.Total. It may call ReportUsage for
	// several units, such as the price of the answer in micro-dollars.
	Report func(ctx context.Context, u Usage)

	// Logger gets the warning; nil means slog.Default().
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

// MaxTokens returns a function for Rule.Cost: how many tokens the answer to a request may have at
// most, which is then reserved until Settle knows how many it has had. That is the largest of the
// fields max_tokens, max_completion_tokens and max_output_tokens of its JSON body, times the field
// n, the number of answers. It is most if the body has none of the first three fields, if the
// number is above most, or if the body is longer than 1 MiB or otherwise not readable: see
// keys.ByJSON. A request without a body costs 1. MaxTokens panics if most is below 1.
//
// Let most be at most what the limits of the rule hold, because a request that costs more is never
// admitted.
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
