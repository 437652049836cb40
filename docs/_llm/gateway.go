// Package gateway limits the API of a language model. See docs/llm.md.
package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/llm"
	"github.com/seed83679106/weir/quota"
)

// A Tenant has the quotas of one customer.
type Tenant struct {
	Requests     int64 // per minute
	Tokens       int64 // per minute
	ModelTokens  int64 // per minute and model
	MicroDollars int64 // per day
}

// NewLimiter limits each tenant. Your authentication sets the header field X-Tenant.
func NewLimiter(store weir.Store, t Tenant) (*weir.Limiter, error) {
	tenant := weir.ByHeader("X-Tenant")
	most := llm.MaxTokens(min(t.Tokens, t.ModelTokens, 4096)) // the most that an answer may use
	return weir.New(store, weir.Options{
		Headers:   headers.OpenAI | headers.Anthropic,
		OnLimited: http.HandlerFunc(refuse),
		OnError:   weir.FailClosed,
		Rules: []weir.Rule{
			{Name: "requests", Key: tenant, NoKey: weir.NoKeyRefuse, Limits: []weir.Limit{algorithms.GCRA(t.Requests, time.Minute)}},
			{Name: "tokens", Key: tenant, Unit: "tokens", Limits: []weir.Limit{algorithms.TokenBucket(t.Tokens, t.Tokens, time.Minute)},
				Cost: most, Settle: weir.ChargeUsed},
			{Name: "model", Key: weir.Join(tenant, keys.ByJSON("model", 1<<20)), Unit: "tokens",
				Limits: []weir.Limit{algorithms.TokenBucket(t.ModelTokens, t.ModelTokens, time.Minute)}, Cost: most, Settle: weir.ChargeUsed},
			{Name: "money", Key: tenant, Unit: "micro-dollars", Limits: []weir.Limit{algorithms.Calendar(t.MicroDollars, algorithms.Day, time.UTC)},
				Cost:   func(r *http.Request) int64 { return min(t.MicroDollars, most(r)*priceOf("").output) },
				Settle: weir.ChargeUsed},
		},
	})
}

// A price is in micro-dollars per token, which equals dollars per million tokens.
type price struct{ input, output int64 }

func priceOf(model string) price {
	if p, ok := map[string]price{"gpt-5-mini": {1, 2}, "claude-haiku": {1, 5}}[model]; ok {
		return p
	}
	return price{3, 15} // assume the highest price for an unknown model
}

// NewGateway forwards requests to a provider's API, and charges the usage in its answers.
func NewGateway(l *weir.Limiter, provider *url.URL) http.Handler {
	return l.Handler(&httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(provider) },
		Transport: &llm.Transport{Report: func(ctx context.Context, u llm.Usage) {
			p := priceOf(u.Model)
			weir.ReportUsage(ctx, "tokens", u.Total())
			weir.ReportUsage(ctx, "micro-dollars", (u.Input+u.CacheRead+u.CacheWrite)*p.input+u.Output*p.output)
		}},
	})
}

// NewModel streams the answers of your own model, and stops when the tokens are used up.
func NewModel(l *weir.Limiter, generate func(r *http.Request) []string) http.Handler {
	return l.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		send := func(text string, finish any) {
			chunk, _ := json.Marshal(map[string]any{"object": "chat.completion.chunk", "choices": []any{
				map[string]any{"index": 0, "delta": map[string]string{"content": text}, "finish_reason": finish},
			}})
			fmt.Fprintf(w, "data: %s\n\n", chunk)
			_ = http.NewResponseController(w).Flush()
		}
		sent, finish := int64(0), "stop"
		defer func() { weir.ReportUsage(r.Context(), "micro-dollars", sent*priceOf("").output) }() // also after a panic
		for _, token := range generate(r) {
			if n, _ := weir.Draw(r.Context(), "tokens", 1); n == 0 {
				finish = "length"
				break
			}
			sent++
			send(token, nil)
		}
		send("", finish)
		fmt.Fprint(w, "data: [DONE]\n\n")
	}))
}

// refuse answers in the format that the OpenAI and Anthropic SDKs read.
func refuse(w http.ResponseWriter, r *http.Request) {
	status, kind := http.StatusTooManyRequests, "rate_limit_error"
	switch a := weir.FromContext(r.Context()); {
	case a.Refusal.Reason == weir.ReasonNoKey:
		status, kind = http.StatusUnauthorized, "authentication_error"
	case a.Refusal.Reason == weir.ReasonError:
		status, kind = http.StatusServiceUnavailable, "overloaded_error"
	case a.RetryAfter() == quota.Never || a.RetryAfter() > time.Minute:
		w.Header().Set("X-Should-Retry", "false") // or the SDKs would retry within seconds
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]any{"type": "error", "error": map[string]string{"type": kind, "code": kind, "message": "The quota of the tenant is used up."}})
}
