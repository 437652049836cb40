package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/llm"
)

const (
	chat = `{"id":"chatcmpl-1","object":"chat.completion","created":1,"model":"gpt-5-mini","choices":[{"index":0,"message":{"role":"assistant",` +
		`"content":"{\"usage\":{\"prompt_tokens\":0}}"},"finish_reason":"stop"}],"usage":{"prompt_tokens":1300,"completion_tokens":20,"total_tokens":1320,` +
		`"prompt_tokens_details":{"cached_tokens":1000,"audio_tokens":0},"completion_tokens_details":{"reasoning_tokens":5}}}`
	responses = `{"id":"resp_1","object":"response","model":"gpt-5","output":[{"type":"message","content":[{"type":"output_text","text":"hi"}]}],` +
		`"usage":{"input_tokens":30,"input_tokens_details":{"cached_tokens":0},"output_tokens":7,"output_tokens_details":{"reasoning_tokens":0},"total_tokens":37}}`
	embeddings = `{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3,3]}],"model":"embed","usage":{"prompt_tokens":8,"total_tokens":8}}`
	message    = `{"id":"msg_1","type":"message","role":"assistant","model":"claude-x","usage":{"input_tokens":10,"cache_creation_input_tokens":5,` +
		`"cache_read_input_tokens":100,"output_tokens":25},"content":[{"type":"tool_use","id":"t","name":"f","input":{"usage":{"input_tokens":0,"output_tokens":0}}}]}`

	chatStream = `data: {"object":"chat.completion.chunk","model":"gpt-5-mini","choices":[{"delta":{"content":"a"}}],"usage":null}` + "\n\n" +
		`data: {"object":"chat.completion.chunk","model":"gpt-5-mini","choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12,"total_tokens":21}}` + "\n\n" +
		"data: [DONE]\n\n"
	messageStream = "event: message_start\r\n" +
		`data: {"type":"message_start","message":{"id":"m","type":"message","model":"claude-x","content":[],"usage":{"input_tokens":25,"output_tokens":1}}}` + "\r\n\r\n" +
		"event: ping\r\ndata: {\"type\": \"ping\"}\r\n\r\n: a comment\r\n\r\n" +
		"event: content_block_delta\r\n" + `data: {"type":"content_block_delta","delta":{"text":"data: {\"usage\":{\"output_tokens\":0}}"}}` + "\r\n\r\n" +
		"event: message_delta\r\n" + `data: {"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":15}}` + "\r\n\r\n" +
		"event: message_stop\r\n" + `data: {"type":"message_stop"}` + "\r\n\r\n"
	responseStream = "event: response.created\n" + `data: {"type":"response.created","response":{"model":"gpt-5","usage":null}}` + "\n\n" +
		"event: response.completed\n" + `data: {"type":"response.completed",` + "\n" + `data: "response":{"model":"gpt-5","usage":{"input_tokens":3,"output_tokens":4,` +
		`"input_tokens_details":{"cached_tokens":2}}}}` + "\n\n"
)

// roundTrip is a RoundTripper.
type roundTrip func(r *http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// answer returns the usages that a Transport reports of an answer, after its caller has read n
// bytes of it (or all, if n is negative) and closed it, and what the Transport logs.
func answer(t *testing.T, status int, fields string, text io.Reader, n int64) (reported []llm.Usage, logged string) {
	t.Helper()
	h := http.Header{}
	for field := range strings.SplitSeq(fields, "\n") {
		name, value, _ := strings.Cut(field, ": ")
		h.Set(name, value)
	}
	log := new(weirtest.Log)
	tr := &llm.Transport{
		Base: roundTrip(func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: status, Header: h, Body: io.NopCloser(text), Request: r}, nil
		}),
		Report: func(_ context.Context, u llm.Usage) { reported = append(reported, u) },
		Logger: slog.New(slog.NewTextHandler(log, nil)),
	}
	res, err := tr.RoundTrip(httptest.NewRequest(http.MethodPost, "/", nil))
	if err != nil {
		t.Fatal(err)
	}
	if n < 0 {
		_, _ = io.Copy(io.Discard, res.Body)
	} else if _, err := io.CopyN(io.Discard, res.Body, n); err != nil {
		t.Fatal(err)
	}
	if err := res.Body.Close(); err != nil {
		t.Fatal(err)
	}
	return reported, log.String()
}

const (
	jsonType = "Content-Type: application/json; charset=utf-8"
	sseType  = "Content-Type: text/event-stream"
)

// TestUsage: the usage of an answer is reported once, however its bytes arrive.
func TestUsage(t *testing.T) {
	for _, tt := range []struct {
		name, fields, text string
		want               llm.Usage
	}{
		{"chat", jsonType, chat, llm.Usage{Model: "gpt-5-mini", Input: 300, CacheRead: 1000, Output: 20}},
		{"responses", jsonType, responses, llm.Usage{Model: "gpt-5", Input: 30, Output: 7}},
		{"embeddings", jsonType, embeddings, llm.Usage{Model: "embed", Input: 8}},
		{"messages", jsonType, message, llm.Usage{Model: "claude-x", Input: 10, CacheRead: 100, CacheWrite: 5, Output: 25}},
		{"chat, streamed", sseType, chatStream, llm.Usage{Model: "gpt-5-mini", Input: 9, Output: 12}},
		{"messages, streamed", sseType, messageStream, llm.Usage{Model: "claude-x", Input: 25, Output: 15}},
		{"an exponent and fractions", jsonType, `{"model":"m","usage":{"prompt_tokens":1e3,"completion_tokens":12.0,"prompt_tokens_details":{"cached_tokens":0.5}}}`, llm.Usage{Model: "m", Input: 999, CacheRead: 1, Output: 12}},
		{"a fraction, rounded up", jsonType, `{"usage":{"input_tokens":5.5,"output_tokens":1.2e1,"other":-1}}`, llm.Usage{Input: 6, Output: 12}},
		{"responses, streamed", sseType, responseStream, llm.Usage{Model: "gpt-5", Input: 1, CacheRead: 2, Output: 4}},
	} {
		for how, text := range map[string]io.Reader{
			"whole":          strings.NewReader(tt.text),
			"byte by byte":   iotest.OneByteReader(strings.NewReader(tt.text)),
			"in halves":      iotest.HalfReader(strings.NewReader(tt.text)),
			"with its error": iotest.DataErrReader(strings.NewReader(tt.text)),
		} {
			got, log := answer(t, 200, tt.fields, text, -1)
			if len(got) != 1 || got[0] != tt.want || log != "" {
				t.Errorf("%s, %s: reported %+v, want %+v once; logged %q", tt.name, how, got, tt.want, log)
			}
		}
		// A client that stops at the end of the answer never sees io.EOF.
		if got, _ := answer(t, 200, tt.fields, strings.NewReader(tt.text+"more"), int64(len(tt.text))); len(got) != 1 || got[0] != tt.want {
			t.Errorf("%s: closed at its end: reported %+v", tt.name, got)
		}
		for n := range int64(len(tt.text) - 8) { // a client that hangs up in the middle
			if got, _ := answer(t, 200, tt.fields, iotest.OneByteReader(strings.NewReader(tt.text)), n); len(got) != 0 {
				t.Fatalf("%s: closed after %d bytes: reported %+v", tt.name, n, got)
			}
		}
		broken := io.MultiReader(strings.NewReader(tt.text[:len(tt.text)-8]), iotest.ErrReader(io.ErrUnexpectedEOF))
		if got, _ := answer(t, 200, tt.fields, broken, -1); len(got) != 0 {
			t.Errorf("%s: broken off: reported %+v", tt.name, got)
		}
	}
}

// TestNoUsage: what says nothing credible is not reported, and said once.
func TestNoUsage(t *testing.T) {
	for _, tt := range []struct{ name, fields, text string }{
		{"no usage", jsonType, `{"model":"m"}`},
		{"a stream without include_usage", sseType, "data: {\"choices\":[]}\n\ndata: [DONE]\n\n"},
		{"another type", "Content-Type: audio/mpeg", `{"usage":{"input_tokens":1}}`},
		{"compressed", jsonType + "\nContent-Encoding: gzip", `{"usage":{"input_tokens":1}}`},
		{"negative", jsonType, `{"usage":{"input_tokens":-5}}`},
		{"a negative fraction", jsonType, `{"usage":{"input_tokens":5,"output_tokens":-0.5}}`},
		{"a negative output", jsonType, `{"usage":{"input_tokens":5,"output_tokens":-1}}`},
		{"a huge output", jsonType, `{"usage":{"input_tokens":5,"output_tokens":1e19}}`},
		{"an endless output", jsonType, `{"usage":{"input_tokens":5,"output_tokens":` + strings.Repeat("1", 500) + `}}`},
		{"beyond a float", jsonType, `{"usage":{"input_tokens":5,"output_tokens":1e999}}`},
		{"huge", jsonType, `{"usage":{"input_tokens":99999999999999999999}}`},
		{"endless digits", jsonType, `{"usage":{"input_tokens":` + strings.Repeat("1", 500) + `}}`},
		{"text", jsonType, `{"usage":{"input_tokens":"5"}}`},
		{"only its output", sseType, `data: {"type":"message_delta","usage":{"output_tokens":5}}` + "\n\n" + `data: {"type":"message_stop"}` + "\n\n"},
		{"in an array", jsonType, `[{"usage":{"input_tokens":5}}]`},
		{"in a choice", jsonType, `{"choices":[{"usage":{"input_tokens":5}}]}`},
		{"deep", jsonType, `{"a":{"usage":{"input_tokens":5}}}`},
		{"an array of usages", jsonType, `{"usage":[{"input_tokens":5}]}`},
		{"in a comment", sseType, `: data: {"usage":{"input_tokens":5}}` + "\n\ndata: [DONE]\n\n"},
		{"in another field", sseType, `dato: {"usage":{"input_tokens":5}}` + "\n\ndata: [DONE]\n\n"},
	} {
		got, log := answer(t, 200, tt.fields, strings.NewReader(tt.text), -1)
		if len(got) != 0 || strings.Count(log, "answer without its usage of tokens") != 1 {
			t.Errorf("%s: reported %+v, logged %q", tt.name, got, log)
		}
	}
	for _, status := range []int{400, 429, 500, 529} {
		if got, log := answer(t, status, jsonType, strings.NewReader(`{"error":{}}`), -1); len(got) != 1 || got[0] != (llm.Usage{}) || log != "" {
			t.Errorf("status %d: reported %+v, want nothing used once; logged %q", status, got, log)
		}
	}
}

// TestLongAnswer: an answer of many megabytes takes no memory.
func TestLongAnswer(t *testing.T) {
	for name, middle := range map[string]string{"a text": "lorem ipsum ", "escapes": `\"\\`} {
		text := func() io.Reader {
			return io.MultiReader(strings.NewReader(`{"model":"m","choices":[{"message":{"content":"`),
				io.LimitReader(&repeat{text: middle}, int64(len(middle))<<19), strings.NewReader(`"}}],"usage":{"prompt_tokens":2,"completion_tokens":3}}`))
		}
		var got []llm.Usage
		bytes := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				got, _ = answer(t, 200, jsonType, text(), -1)
			}
		}).AllocedBytesPerOp()
		if len(got) != 1 || got[0] != (llm.Usage{Model: "m", Input: 2, Output: 3}) {
			t.Errorf("%s: reported %+v", name, got)
		}
		if bytes > 64<<10 { // of which 32 KiB are the buffer of io.Copy
			t.Errorf("%s: an answer took %d bytes of memory", name, bytes)
		}
	}
}

// A repeat is an endless text.
type repeat struct {
	text string
	at   int
}

func (r *repeat) Read(p []byte) (n int, _ error) {
	for n < len(p) {
		k := copy(p[n:], r.text[r.at:])
		n, r.at = n+k, (r.at+k)%len(r.text)
	}
	return n, nil
}

// inputOf returns the input that a JSON text names, as encoding/json reads it; -1 if it names none,
// or if a count is not readable.
func inputOf(text string) int64 {
	input, unreadable := map[string]int64{"prompt_tokens": -1, "input_tokens": -1}, false
	counts := []string{"usage prompt_tokens", "usage input_tokens", "usage completion_tokens", "usage output_tokens", "usage cache_read_input_tokens",
		"usage cache_creation_input_tokens", "usage prompt_tokens_details cached_tokens", "usage input_tokens_details cached_tokens"}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var read func(path []string)
	read = func(path []string) {
		switch v, _ := d.Token(); v := v.(type) {
		case json.Delim:
			for d.More() {
				name := ""
				if v == '{' {
					field, _ := d.Token()
					name = field.(string)
				}
				read(append(slices.Clone(path), name))
			}
			_, _ = d.Token()
		case json.Number:
			if len(path) > 1 && (path[0] == "message" || path[0] == "response") {
				path = path[1:]
			}
			if !slices.Contains(counts, strings.Join(path, " ")) {
				return
			}
			n, err := strconv.ParseInt(string(v), 10, 64)
			if f, e := v.Float64(); err != nil && e == nil && f >= 0 && f < math.MaxInt64 {
				n, err = int64(math.Ceil(f)), nil
			}
			unreadable = unreadable || err != nil || n < 0 || len(v) > 128
			input[path[1]] = n
		}
	}
	read(nil)
	if unreadable {
		return -1
	}
	return max(input["prompt_tokens"], input["input_tokens"])
}

// FuzzUsage: of any JSON text the same input is read as encoding/json reads, and any other text
// does no harm. A name with an escape is no name.
func FuzzUsage(f *testing.F) {
	for _, text := range []string{chat, responses, embeddings, message, `{"usage":{"input_tokens":1,"input_tokens":2},"usage":{}}`, `{"usage":{"input_tokens":1}} {`, `{"usage":{"input_tokens":1.5e1,"output_tokens":-1}}`, `{"message":{"usage":{"input_tokens":1E+2}}}`, `{"a":[{}]}`,
		`{"usage":[{"input_tokens":1}]}`, `{"response":{"usage":{"prompt_tokens":-0}}}`, `{"message":{"message":{"usage":{"prompt_tokens":1}}}}`, `[{"usage":{"input_tokens":1}}]`, `{"":{"usage":{"input_tokens":1}}}`} {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		_, _ = answer(t, 200, sseType, strings.NewReader(text), -1)
		got, _ := answer(t, 200, jsonType, iotest.HalfReader(strings.NewReader(text)), -1)
		if !json.Valid([]byte(text)) || strings.Contains(text, `\`) {
			return
		}
		want, input, cached := inputOf(text), int64(-1), int64(0)
		if len(got) == 1 {
			input, cached = got[0].Input, got[0].CacheRead
		}
		if input != want && input+cached != want { // OpenAI counts what was cached as a part of the input
			t.Errorf("%s: reported %+v, want an input of %d", text, got, want)
		}
	})
}

// TestMaxTokens: what the answer may have at most is reserved, whatever the client writes.
func TestMaxTokens(t *testing.T) {
	cost := llm.MaxTokens(1000)
	for text, want := range map[string]int64{
		`{"max_tokens":100}`:                     100,
		`{"max_completion_tokens":7}`:            7,
		`{"max_output_tokens":8,"stream":true}`:  8,
		`{"max_tokens":100,"n":3}`:               300,
		`{"max_tokens":100,"n":30}`:              1000,
		`{"max_tokens":1,"max_output_tokens":9}`: 9,
		`{}`:                                     1000,
		`{"max_tokens":null}`:                    1000,
		`{"max_tokens":0}`:                       1000,
		`{"max_tokens":-4}`:                      1000,
		`{"max_tokens":1e2}`:                     1000,
		`{"max_tokens":5000}`:                    1000,
		`{"max_tokens":5,"n":-1}`:                1000,
		`{"max_tokens":99999999999999999999}`:    1000,
		`{"max_tokens":5,"max_tokens":1}`:        1000,
		`{"max_tokens":5`:                        1000,
		`[]`:                                     1000,
		`{"max_tokens":5,"x":"` + strings.Repeat("x", 1<<20) + `"}`: 1000,
		"": 1,
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(text))
		if text == "" {
			r.Body = http.NoBody
		}
		got := cost(r)
		if rest, err := io.ReadAll(r.Body); got != want || string(rest) != text || err != nil {
			t.Errorf("%.60s: got %d, want %d; the handler reads %d of %d bytes, error %v", text, got, want, len(rest), len(text), err)
		}
	}
	defer func() {
		if recover() == nil {
			t.Error("MaxTokens(0) does not panic")
		}
	}()
	llm.MaxTokens(0)
}

func ExampleMaxTokens() {
	cost := llm.MaxTokens(4096)
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model":"m","max_tokens":256}`))
	fmt.Println(cost(r))
	// Output: 256
}

// TestModels: an answer to GET is expected to have no usage, and a sum of tokens does not overflow.
func TestModels(t *testing.T) {
	log := new(weirtest.Log)
	tr := &llm.Transport{Logger: slog.New(slog.NewTextHandler(log, nil)), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"data":[]}`)), Request: r}, nil
	})}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		want := map[string]string{http.MethodPost: "answer without its usage of tokens"}[method]
		res, err := tr.RoundTrip(httptest.NewRequest(method, "/v1/models", nil))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.Copy(io.Discard, res.Body)
		if method == http.MethodGet && log.String() != want || !strings.Contains(log.String(), want) {
			t.Errorf("%s: logged %q, want %q", method, log, want)
		}
	}
	if got := (llm.Usage{Input: math.MaxInt64, CacheRead: -1, Output: math.MaxInt64}).Total(); got != math.MaxInt64 {
		t.Errorf("the sum is %d", got)
	}
}
