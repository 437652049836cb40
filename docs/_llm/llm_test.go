package gateway

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
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

// provider is a server with both APIs. Each answer has used 10 tokens of input and 20 of output, which
// a stream of Chat Completions states only if the request says so.
func provider(t *testing.T) *url.URL {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var body struct {
			Model   string
			Stream  bool
			Options struct {
				Include bool `json:"include_usage"`
			} `json:"stream_options"`
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
		usage := ""
		if body.Options.Include {
			usage = "data: {\"object\":\"chat.completion.chunk\",\"choices\":[],\"usage\":{\"prompt_tokens\":10,\"completion_tokens\":20}}\n\n"
		}
		fmt.Fprintf(w, map[string]string{
			"/v1/chat/completions": `{"object":"chat.completion","model":%q,"choices":[{"index":0,"message":{"role":"assistant","content":"hello"},"finish_reason":"stop"}],` +
				`"usage":{"prompt_tokens":10,"completion_tokens":20,"total_tokens":30}}`,
			"/v1/messages": `{"id":"m","type":"message","role":"assistant","model":%q,"content":[{"type":"text","text":"hello"}],"stop_reason":"end_turn","usage":{"input_tokens":10,"output_tokens":20}}`,
			"/v1/chat/completions stream": "data: {\"object\":\"chat.completion.chunk\",\"model\":%q,\"choices\":[{\"index\":0,\"delta\":{\"content\":\"hello\"}}]}\n\n" +
				usage + "data: [DONE]\n\n",
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
	rules []weir.Rule

	mu   sync.Mutex
	sent []http.Header
	size []int64 // of the requests, in bytes
}

func serve(t *testing.T, tenant Tenant, handler func(requests, tokens *weir.Limiter) http.Handler) *gateway {
	g := &gateway{store: memstore.New(memstore.Options{})}
	requests, tokens, err := NewLimiters(g.store, tenant)
	if err != nil {
		t.Fatal(err)
	}
	g.rules = append(requests.Rules(), tokens.Rules()...)
	next := handler(requests, tokens)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { // even if a ReverseProxy panics, because the provider or the client has hung up
			g.mu.Lock()
			defer g.mu.Unlock()
			g.sent, g.size = append(g.sent, w.Header().Clone()), append(g.size, r.ContentLength)
		}()
		next.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	g.url = server.URL
	return g
}

// forward returns a handler that forwards requests to a provider.
func forward(t *testing.T) func(requests, tokens *weir.Limiter) http.Handler {
	return func(requests, tokens *weir.Limiter) http.Handler { return NewGateway(requests, tokens, provider(t)) }
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
	for _, r := range g.rules {
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

// refilled returns how many tokens a bucket may have got since an instant, of so many a minute.
func refilled(perMinute int64, since time.Time) int64 {
	return 1 + int64(time.Since(since)*time.Duration(perMinute)/time.Minute)
}

// A call calls the gateway as an SDK does, and returns the text of the answer.
type call func(ctx context.Context, g *gateway, tenant string, stream bool) (text string, res *http.Response, err error)

func openAI(ctx context.Context, g *gateway, tenant string, stream bool) (text string, res *http.Response, err error) {
	client := openai.NewClient(openaioption.WithBaseURL(g.url+"/v1"), openaioption.WithAPIKey("k"), openaioption.WithHeader("X-Tenant", tenant))
	params := openai.ChatCompletionNewParams{Model: "gpt-5-mini", MaxTokens: openai.Int(200), Messages: []openai.ChatCompletionMessageParamUnion{openai.UserMessage("hi")}}
	if !stream {
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
			g, begun := serve(t, Tenant{Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 1_000_000}, forward(t)), time.Now()
			text, res, err := call(t.Context(), g, "acme", stream)
			if err != nil || text != "hello" {
				t.Errorf("%s, stream %v: got %q, %v", name, stream, text, err)
				continue
			}
			for i := 0; g.attempts() == 0 && i < 10_000; i++ { // the handler returns after the client has read the answer
				time.Sleep(time.Millisecond)
			}
			field := map[string]string{"openai": "x-ratelimit-remaining-tokens", "anthropic": "anthropic-ratelimit-tokens-remaining"}[name]
			if got, want := res.Header.Get(field), 5000-200-g.size[0]; got != fmt.Sprint(want) { // what is reserved, of the model
				t.Errorf("%s, stream %v: %s is %q, want %d", name, stream, field, got, want)
			}
			money := map[string]int64{"openai": 10*1 + 20*2, "anthropic": 10*1 + 20*5}[name]
			if tokens, dollars := g.remaining(t, "tokens"), g.remaining(t, "money"); tokens < 9970 || tokens > 9970+refilled(10_000, begun) || dollars != 1_000_000-money {
				t.Errorf("%s, stream %v: %d tokens and %d micro-dollars are left, want 9970 and %d", name, stream, tokens, dollars, 1_000_000-money)
			}
		}
	}
}

// TestRetries: after a short wait both SDKs try again, as late as Retry-After says, and then get
// their answer. If the wait is long, or if no wait helps, they do not try again.
func TestRetries(t *testing.T) {
	for name, call := range sdks {
		g := serve(t, Tenant{Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 1e9}, forward(t))
		charge := quota.Charge{Rule: "requests", Key: "acme", Limit: g.rules[0].Limits[0], Cost: 60}
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
		if wait := time.Since(begun); g.attempts() != 2 || err != nil || ms < 1 || ms > 1000 || wait < time.Duration(ms)*time.Millisecond || first.Get("Retry-After") != "1" {
			t.Errorf("%s: %d attempts in %v, want 2, after Retry-After-Ms %q, %q", name, g.attempts(), wait, first.Get("Retry-After-Ms"), first.Get("Retry-After"))
		}

		for limit, tenant := range map[string]Tenant{
			"money of the day":       {Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 3000}, // one answer of 200 tokens
			"more than ever is free": {Requests: 60, Tokens: 10_000, ModelTokens: 5000, MicroDollars: 1e9},
		} {
			g := serve(t, tenant, forward(t))
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
	for _, r := range g.rules {
		if r.Name == "money" {
			d, err := quota.Allow(t.Context(), g.store, quota.Charge{Rule: "money", Key: "acme", Limit: r.Limits[0], Cost: r.Limits[0].Quota})
			if !d.Allowed {
				return errors.Join(err, errors.New("not allowed"))
			}
		}
	}
	return nil
}

// TestHostile: whatever a client sends, it pays what the provider has stated, and at least what it may
// use, and what is not counted is not forwarded.
func TestHostile(t *testing.T) {
	const start = `data: {"type":"message_start","message":{"usage":{"input_tokens":15000,"output_tokens":1}}}` + "\n\n"
	for _, c := range []struct {
		path, body, answer string
		hangUp             bool
		status             int
		charged            int64
	}{
		{"/v1/messages", `{"max_tokens":1,"stream":true}`, start, true, 200, 15_001},
		{"/v1/chat/completions", `{"max_tokens":50,"n":100,"stream":true}`, "data: {}\n\n", true, 200, 5000 + 39},
		{"/v1/chat/completions", `{"messages":"` + strings.Repeat("x", 9000) + `","stream":true}`, "data: {}\n\n", true, 200, 4096 + 9030},
		{"/v1/responses", `{"previous_response_id":"r","max_output_tokens":1,"stream":true}`, "data: {}\n\n", true, 200, 20_000},
		{"/v1/responses", `{"background":true,"max_output_tokens":1}`, "", false, 429, 0},
		{"/v1/messages/batches", `{"requests":[]}`, "", false, 404, 0},
		{"/v1/messages", strings.Repeat("x", 64<<10+1), "", false, 413, 0},
	} {
		forwarded := false
		upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			forwarded = true
			w.Header().Set("Content-Type", "text/event-stream")
			w.Header().Set("x-ratelimit-remaining-tokens", "777") // of the gateway's own key
			fmt.Fprint(w, c.answer)
			http.NewResponseController(w).Flush()
			<-r.Context().Done()
		}))
		u, _ := url.Parse(upstream.URL)
		g := serve(t, Tenant{Requests: 60, Tokens: 20_000, ModelTokens: 20_000, MicroDollars: 1e9}, func(requests, tokens *weir.Limiter) http.Handler { return NewGateway(requests, tokens, u) })
		ctx, hangUp := context.WithCancel(t.Context())
		begun := time.Now()
		r, _ := http.NewRequestWithContext(ctx, "POST", g.url+c.path, strings.NewReader(c.body))
		r.Header.Set("X-Tenant", "acme")
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		if c.hangUp {
			io.ReadFull(res.Body, make([]byte, len(c.answer)))
		}
		hangUp()
		for i := 0; g.attempts() == 0 && i < 10_000; i++ {
			time.Sleep(time.Millisecond)
		}
		charged := 20_000 - g.remaining(t, "tokens")
		if res.StatusCode != c.status || charged > c.charged || charged < c.charged-refilled(20_000, begun) || forwarded != (c.status == 200) {
			t.Errorf("%s %.60s: %d, charged %d, forwarded %v, want %d and %d", c.path, c.body, res.StatusCode, charged, forwarded, c.status, c.charged)
		}
		if left := res.Header["X-Ratelimit-Remaining-Tokens"]; len(left) > 1 || len(left) == 1 && left[0] == "777" {
			t.Errorf("%s: %q tokens left, want the tenant's", c.path, left)
		}
		upstream.Close()
	}
}

// TestStreamsStop: five answers that are streamed to the SDK at once send as many tokens as the
// tenant has, and end in the way that the SDK knows.
func TestStreamsStop(t *testing.T) {
	var generated atomic.Int64
	var all sync.WaitGroup
	all.Add(5)
	g := serve(t, Tenant{Requests: 60, Tokens: 2000, ModelTokens: 2000, MicroDollars: 1e9}, func(requests, tokens *weir.Limiter) http.Handler {
		return NewModel(requests, tokens, func(*http.Request) []string {
			all.Done()
			all.Wait() // each of them has reserved 100 and its bytes
			return strings.Fields(strings.Repeat("token ", 5000))
		})
	})
	var clients sync.WaitGroup
	begun := time.Now()
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
	if n := generated.Load(); n < 2000 || n > 2000+refilled(2000, begun) {
		t.Errorf("five answers had %d tokens, want 2000", n)
	}
}

// longAnswer requests 100 tokens, which are reserved, from a model that writes more.
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

// TestPage: the page shows a function of gateway.go.
func TestPage(t *testing.T) {
	page, err := os.ReadFile("../llm.md")
	if err != nil {
		t.Fatal(err)
	}
	code, err := os.ReadFile("gateway.go")
	if err != nil {
		t.Fatal(err)
	}
	_, text, _ := strings.Cut(string(code), "\n// NewLimiters ")
	text, _, _ = strings.Cut(text, "\n}\n")
	if !strings.Contains(string(page), "```go\n// NewLimiters "+text+"\n}\n```\n") {
		t.Error("docs/llm.md does not show NewLimiters as it is")
	}
}
