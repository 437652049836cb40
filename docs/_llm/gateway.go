// Package gateway limits the API of a language model. See docs/llm.md.
package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/llm"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/quota"
)

// A Tenant has the quotas of one customer.
type Tenant struct {
	Requests     int64 // per minute
	Tokens       int64 // per minute
	ModelTokens  int64 // per minute and model
	MicroDollars int64 // per day
}

// NewLimiters limits each tenant. Your authentication sets the header field X-Tenant. The limiter
// requests, which reads no body, belongs around the limiter tokens.
func NewLimiters(store weir.Store, t Tenant) (requests, tokens *weir.Limiter, err error) {
	tenant := weir.ByHeader("X-Tenant")
	o := weir.Options{
		Headers:   headers.OpenAI | headers.Anthropic,
		OnLimited: http.HandlerFunc(refuse),
		OnError:   weir.FailClosed,
		Rules:     []weir.Rule{{Name: "requests", Key: tenant, NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.GCRA(t.Requests, time.Minute)}}},
	}
	requests, err1 := weir.New(store, o)
	// A request reserves at most all tokens of a minute, and 4,096 of output if it does not limit its output.
	most := llm.MaxTokens(min(t.Tokens, t.ModelTokens), 4096)
	o.Rules = []weir.Rule{
		{Name: "tokens", Key: tenant, Unit: "tokens", Limits: []weir.Limit{algorithms.TokenBucket(t.Tokens, t.Tokens, time.Minute)},
			Cost: most, Settle: weir.ChargeUsed},
		{Name: "model", Key: weir.Join(tenant, weir.ByJSON("model", maxBody)), Unit: "tokens",
			Limits: []weir.Limit{algorithms.TokenBucket(t.ModelTokens, t.ModelTokens, time.Minute)}, Cost: most, Settle: weir.ChargeUsed},
		{Name: "money", Key: tenant, Unit: "micro-dollars", Limits: []weir.Limit{algorithms.Calendar(t.MicroDollars, algorithms.Day, time.UTC)},
			Cost:   func(r *http.Request) int64 { return min(t.MicroDollars, most(r)*priceOf("").output) },
			Settle: weir.ChargeUsed},
	}
	tokens, err2 := weir.New(store, o)
	return requests, tokens, errors.Join(err1, err2)
}

// maxBody is the longest body of a request, in bytes. A client that hangs up before the provider
// has stated the usage pays what was reserved, even if the provider bills more input. A token has at
// least a byte, so maxBody bounds the difference.
const maxBody = 64 << 10

// A price is in micro-dollars per token, which equals dollars per million tokens.
type price struct{ input, output int64 }

func priceOf(model string) price {
	if p, ok := map[string]price{"gpt-5-mini": {1, 2}, "claude-haiku": {1, 5}}[model]; ok {
		return p
	}
	return price{3, 15} // assume the highest price for an unknown model
}

// NewGateway forwards requests to a provider's API, and charges the usage in its answers. It forwards
// only paths whose usage llm.Transport can read.
func NewGateway(requests, tokens *weir.Limiter, provider *url.URL) http.Handler {
	gateway := requests.Handler(tokens.Handler(weir.KeepHeaders(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(provider) },
		Transport: &llm.Transport{Report: func(ctx context.Context, u llm.Usage, report func(context.Context, string, int64)) {
			p := priceOf(u.Model)
			report(ctx, "tokens", u.Total())
			report(ctx, "micro-dollars", (u.Input+u.CacheRead+u.CacheWrite)*p.input+u.Output*p.output)
		}},
	})))

	mux := http.NewServeMux()
	for _, path := range []string{"/v1/chat/completions", "/v1/responses", "/v1/embeddings", "/v1/messages"} {
		mux.HandleFunc("POST "+path, func(w http.ResponseWriter, r *http.Request) {
			if r.ContentLength < 0 || r.ContentLength > maxBody {
				http.Error(w, "the body is too long", http.StatusRequestEntityTooLarge)
				return
			}
			gateway.ServeHTTP(w, r)
		})
	}
	return mux
}

// refuse answers in the format that the OpenAI and Anthropic SDKs read.
func refuse(w http.ResponseWriter, r *http.Request) {
	a, kind := weir.FromContext(r.Context()), "rate_limit_error"
	status := a.Refusal.Status
	switch {
	case a.Refusal.Reason == weir.ReasonNoKey:
		status, kind = http.StatusUnauthorized, "authentication_error"
	case a.Refusal.Reason == weir.ReasonError:
		kind = "overloaded_error"
	case a.RetryAfter() == quota.Never || a.RetryAfter() > time.Minute:
		w.Header().Set("X-Should-Retry", "false") // or the SDKs would retry within seconds
	}
	w.Header()["Content-Type"], w.Header()["Cache-Control"] = []string{"application/json"}, []string{"no-store"}
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind, "code": kind, "message": "The quota of the tenant is used up."}})
}
