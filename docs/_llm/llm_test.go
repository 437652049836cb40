package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anthropics/anthropic-sdk-go"
	anthropicoption "github.com/anthropics/anthropic-sdk-go/option"
	"github.com/openai/openai-go/v3"
	openaioption "github.com/openai/openai-go/v3/option"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

// provider is a server with both APIs. Each answer has used 10 tokens of input and 20 of output.
func provider(t *testing.T) *url.URL {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Model  string
			Stream bool
		}
		if err := json.NewDecoder(r.Body).Decode(&body); err != nil {
			t.Error(err)
		}
		kind := r.URL.Path
		if body.Stream {
			kind += " stream"
		}
		w.Header().Set("Content-Type", "application/json")
		if body.Stream {
			w.Header().Set("Content-Type", "text/event-stream")
		}
		fmt.Fprintf(w, map[string]string{
			"/v1/chat/completions": `{"object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],` +
				`"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}`,
			"/v1/messages": `{"id":"m","type":"message","role":"assistant","model":%q,"content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":20}}`,
			"/v1/chat/completions stream": "data: {\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n" +
				"data: {\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20}}\n\ndata: [DONE]\n\n",
			"/v1/messages stream": "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"type\":\"message\",\"model\":%q,\"usage\":{\"input_tokens\":10,\"output_tokens\":1}}}\n\n" +
				"event: content_block_start\ndata: {\"type\":\"content_block_start\",\"index\":0,\"content_block\":{\"type\":\"text\",\"text\":\"\"}}\n\n" +
				"event: content_block_delta\ndata: {\"type\":\"content_block_delta\",\"index\":0,\"delta\":{\"type\":\"text_delta\",\"text\":\"hello\"}}\n\n" +
				"event: message_delta\ndata: {\"type\":\"message_delta\",\"delta\":{\"stop_reason\":\"end_turn\"},\"usage\":{\"output_tokens\":20}}\n\n" +
				"event: message_stop\ndata: {\"type\":\"message_stop\"}\n\n",
		}[kind], body.Model)
	}))
	t.Cleanup(server.Close)
	u, err := url.Parse(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A gateway is one that runs, and what its clients were sent.
type gateway struct {
	url   string
	store weir.Store
	l     *weir.Limiter

	mu   sync.Mutex
	sent []http.Header
}

func serve(t *testing.T, tenant Tenant, handler func(*weir.Limiter) http.Handler) *gateway {
	g := &gateway{store: memstore.New(memstore.Options{})}
	var err error
	if g.l, err = NewLimiter(g.store, tenant); err != nil {
		t.Fatal(err)
	}
	next := handler(g.l)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r)
		g.mu.Lock()
		defer g.mu.Unlock()
		g.sent = append(g.sent, w.Header().Clone())
	}))
	t.Cleanup(server.Close)
	g.url = server.URL
	return g
}

// attempts returns how many requests have come, of which all are over.
func (g *gateway) attempts() int {
	g.mu.Lock()
	defer g.mu.Unlock()
	return len(g.sent)
}

// remaining returns what the tenant acme has left of a rule.
func (g *gateway) remaining(t *testing.T, rule string) int64 {
	t.Helper()
	for _, r := range g.l.Rules() {
		if r.Name == rule {
			tx, err := quota.Peek(t.Context(), g.store, quota.Charge{Rule: rule, Key: "acme", Limit: r.Limits[0]})
			if err != nil {
				t.Fatal(err)
			}
			return tx.Decisions[0].Remaining
		}
	}
	return -1
}

// A call calls the gateway as an SDK does, and returns the text of the answer.
type call func(ctx context.Context, g *gateway, tenant string, stream bool) (text string, res *http.Response, err error)

func openAI(ctx context.Context, g *gateway, tenant string, stream bool) (text string, res *http.Response, err error) {
	client := openai.NewClient(openaioption.WithBaseURL(g.url+"/v1"), openaioption.WithAPIKey("k"), openaioption.WithHeader("X-Tenant", tenant))
	params := openai.ChatCompletionNewParams{Model: "gpt-5-mini", MaxTokens: openai.Int(200), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")},
		StreamOptions: openai.ChatCompletionStreamOptionsParam{IncludeUsage: openai.Bool(stream)}}
	if !stream {
		params.StreamOptions = openai.ChatCompletionStreamOptionsParam{}
		c, err := client.Chat.Completions.New(ctx, params, openaioption.WithResponseInto(&res))
		if err != nil {
			return "", res, err
		}
		return c.Choices[0].Message.Content, res, nil
	}
	s := client.Chat.Completions.NewStreaming(ctx, params, openaioption.WithResponseInto(&res))
	defer s.Close()
	for s.Next() {
		for _, c := range s.Current().Choices {
			text += c.Delta.Content
			if c.FinishReason == "length" {
				text += "[length]"
			}
		}
	}
	return text, res, s.Err()
}

func claude(ctx context.Context, g *gateway, tenant string, stream bool) (text string, res *http.Response, err error) {
	client := anthropic.NewClient(anthropicoption.WithBaseURL(g.url), anthropicoption.WithAPIKey("k"), anthropicoption.WithHeader("X-Tenant", tenant))
	params := anthropic.MessageNewParams{Model: "claude-haiku", MaxTokens: 200, Messages: []anthropic.MessageParam{anthropic.NewUserMessage(anthropic.NewTextBlock("hi"))}}
	if !stream {
		m, err := client.Messages.New(ctx, params, anthropicoption.WithResponseInto(&res))
		if err != nil {
			return "", res, err
		}
		return m.Content[0].Text, res, nil
	}
	s := client.Messages.NewStreaming(ctx, params, anthropicoption.WithResponseInto(&res))
	defer s.Close()
	var m anthropic.Message
	for s.Next() {
		if err := m.Accumulate(s.Current()); err != nil {
			return "", res, err
		}
	}
	if s.Err() != nil {
		return "", res, s.Err()
	}
	return m.Content[0].Text, res, nil
}

var sdks = map[string]call{"openai": openAI, "anthropic": claude}

// status returns the status of an error of an SDK, and the kind in its body.
func status(err error) (int, string) {
	if e := new(openai.Error); errors.As(err, &e) {
		return e.StatusCode, e.Code
	}
	if e := new(anthropic.Error); errors.As(err, &e) {
		return e.StatusCode, string(e.Type())
	}
	return 0, ""
}

// TestCharged: through both SDKs, streamed or not, a tenant is charged what the answer says, and
// reads what is left in the fields of its SDK.
func TestCharged(t *testing.T) {
	for name, call := range sdks {
		for _, stream := range []bool{false, true} {
			g := serve(t, Tenant{Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 1_000_000}, func(l *weir.Limiter) http.Handler { return NewGateway(l, provider(t)) })
			text, res, err := call(t.Context(), g, "acme", stream)
			if err != nil || text != "hello" {
				t.Errorf("%s, stream %v: got %q, %v", name, stream, text, err)
				continue
			}
			field := map[string]string{"openai": "x-ratelimit-remaining-tokens", "anthropic": "anthropic-ratelimit-tokens-remaining"}[name]
			if got := res.Header.Get(field); got != "4800" { // 200 are reserved, of the model
				t.Errorf("%s, stream %v: %s is %q, want 4800", name, stream, field, got)
			}
			for i := 0; g.attempts() == 0 && i < 1000; i++ { // the handler returns after the client has read the answer
				time.Sleep(time.Millisecond)
			}
			money := map[string]int64{"openai": 10*1 + 20*2, "anthropic": 10*1 + 20*5}[name]
			if tokens, dollars := g.remaining(t, "tokens"), g.remaining(t, "money"); tokens < 9970 || tokens > 9980 || dollars != 1_000_000-money {
				t.Errorf("%s, stream %v: %d tokens and %d micro-dollars are left, want 9970 and %d", name, stream, tokens, dollars, 1_000_000-money)
			}
		}
	}
}

// TestRetries: after a short wait both SDKs try again, as late as Retry-After says, and then get
// their answer. If the wait is long, or if no wait helps, they do not try again.
func TestRetries(t *testing.T) {
	for name, call := range sdks {
		g := serve(t, Tenant{Requests: 120, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 1e9}, func(l *weir.Limiter) http.Handler { return NewGateway(l, provider(t)) })
		charge := quota.Charge{Rule: "requests", Key: "acme", Limit: g.l.Rules()[0].Limits[0], Cost: 120}
		if d, err := quota.Allow(t.Context(), g.store, charge); err != nil || !d.Allowed {
			t.Fatal(d, err)
		}
		begun := time.Now()
		text, _, err := call(t.Context(), g, "acme", false)
		if err != nil || text != "hello" {
			t.Errorf("%s: got %q, %v", name, text, err)
		}
		g.mu.Lock()
		first := g.sent[0]
		g.mu.Unlock()
		ms, err := strconv.Atoi(first.Get("Retry-After-Ms"))
		if wait := time.Since(begun); g.attempts() != 2 || err != nil || ms < 1 || ms > 500 || wait < time.Duration(ms)*time.Millisecond || first.Get("Retry-After") != "1" {
			t.Errorf("%s: %d attempts in %v, want 2, after Retry-After-Ms %q, %q", name, g.attempts(), wait, first.Get("Retry-After-Ms"), first.Get("Retry-After"))
		}

		for limit, tenant := range map[string]Tenant{
			"money of the day":       {Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 3000}, // one answer of 200 tokens
			"more than ever is free": {Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 1e9},
		} {
			g := serve(t, tenant, func(l *weir.Limiter) http.Handler { return NewGateway(l, provider(t)) })
			if limit == "money of the day" {
				if _, _, err := call(t.Context(), g, "acme", false); err != nil {
					t.Errorf("%s: %s: %v", name, limit, err)
				}
			} else if err := spendAll(t, g); err != nil {
				t.Fatal(err)
			}
			before := g.attempts()
			_, _, err := call(t.Context(), g, "acme", false)
			if code, kind := status(err); code != 429 || kind != "rate_limit_error" || g.attempts() != before+1 {
				t.Errorf("%s: %s: got %d %q after %d attempts, want 429 at once: %v", name, limit, code, kind, g.attempts()-before, err)
			}
		}
		if _, _, err := call(t.Context(), g, "", false); err == nil {
			t.Errorf("%s: no tenant: got no error", name)
		} else if code, _ := status(err); code != 401 {
			t.Errorf("%s: no tenant: got %v, want 401", name, err)
		}
	}
}

// spendAll spends what a day of the tenant holds.
func spendAll(t *testing.T, g *gateway) error {
	for _, r := range g.l.Rules() {
		if r.Name == "money" {
			d, err := quota.Allow(t.Context(), g.store, quota.Charge{Rule: "money", Key: "acme", Limit: r.Limits[0], Cost: r.Limits[0].Quota})
			if !d.Allowed {
				return errors.Join(err, errors.New("not allowed"))
			}
		}
	}
	return nil
}

// TestStreamsStop: five answers that are streamed to the SDK at once send as many tokens as the
// tenant has, and end in the way that the SDK knows.
func TestStreamsStop(t *testing.T) {
	var generated atomic.Int64
	var all sync.WaitGroup
	all.Add(5)
	g := serve(t, Tenant{Requests: 60, Tokens: 500, ModelTokens: 500, MicroDollars: 1e9}, func(l *weir.Limiter) http.Handler {
		return NewModel(l, func(*http.Request) []string {
			all.Done()
			all.Wait() // each of them has reserved 100
			return strings.Fields(strings.Repeat("token ", 1000))
		})
	})
	var clients sync.WaitGroup
	for range 5 {
		clients.Go(func() {
			text, err := longAnswer(t.Context(), g)
			generated.Add(int64(strings.Count(text, "token")))
			if err != nil || !strings.HasSuffix(text, "[length]") {
				t.Errorf("an answer ends with %q, %v", text[max(0, len(text)-20):], err)
			}
		})
	}
	clients.Wait()
	if n := generated.Load(); n < 500 || n > 520 { // some refill while the test runs
		t.Errorf("five answers had %d tokens, want 500", n)
	}
}

// longAnswer asks for 100 tokens, which are reserved, of a model that writes more.
func longAnswer(ctx context.Context, g *gateway) (text string, err error) {
	client := openai.NewClient(openaioption.WithBaseURL(g.url+"/v1"), openaioption.WithAPIKey("k"), openaioption.WithHeader("X-Tenant", "acme"))
	s := client.Chat.Completions.NewStreaming(ctx, openai.ChatCompletionNewParams{Model: "gpt-5-mini", MaxTokens: openai.Int(100),
		Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}})
	defer s.Close()
	for s.Next() {
		for _, c := range s.Current().Choices {
			text += c.Delta.Content
			if c.FinishReason == "length" {
				text += "[length]"
			}
		}
	}
	return text, s.Err()
}

// TestPage: the page shows this code.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../llm.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("gateway.go")
	if err != nil {
		t.Fatal(err)
	}
	_, shown, _ := strings.Cut(string(page), "```go\n")
	if shown, _, _ = strings.Cut(shown, "```\n"); shown != string(code) {
		t.Error("the first block of docs/llm.md is not gateway.go")
	}
}
