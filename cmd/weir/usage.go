package main

import (
	"log/slog"
	"net/http"
	"sync/atomic"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/contrib/llm"
)

// llmTokens is the cost that limits files can name for requests to language models. A request that
// does not limit its tokens costs more than any limit admits.
const llmTokens = "llm-tokens"

// costs contains the costs that limits files can name in addition to those of package config. For a
// request that does not limit its output, 4,096 output tokens are reserved.
var costs = map[string]func(*http.Request) int64{llmTokens: llm.MaxTokens(1<<40, 4096)}

// A usageReader is the transport of the reverse proxy. If a rule settles tokens, the usageReader
// reads their number from responses.
type usageReader struct {
	reads atomic.Bool
	llm   llm.Transport
}

// mostIdle is how many connections to the upstream are kept for later requests.
// http.DefaultTransport keeps only two for each host. With 64 concurrent requests, most requests
// would then open a new connection, and at a few thousand requests per second the local ports would
// soon be used up.
const mostIdle = 1024

// newUsageReader returns a usageReader, which reads no usage until follow is called.
func newUsageReader(logger *slog.Logger) *usageReader {
	base := http.DefaultTransport.(*http.Transport).Clone()
	base.MaxIdleConns, base.MaxIdleConnsPerHost = mostIdle, mostIdle
	base.DisableCompression = true // otherwise, a client that accepts no gzip would get no Content-Length
	return &usageReader{llm: llm.Transport{Base: base, Logger: logger}}
}

// follow makes u read the usage if one of the rules needs it.
func (u *usageReader) follow(rules []weir.Rule) {
	reads := false
	for i := range rules {
		reads = reads || rules[i].Settle != nil && rules[i].Unit == "tokens"
	}
	u.reads.Store(reads)
}

// RoundTrip implements http.RoundTripper.
func (u *usageReader) RoundTrip(r *http.Request) (*http.Response, error) {
	if u.reads.Load() {
		return u.llm.RoundTrip(r)
	}
	return u.llm.Base.RoundTrip(r)
}
