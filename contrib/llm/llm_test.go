package llm_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"math"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/llm"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/quota"
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

// A usage is what a Transport has reported, and whether there may be more.
type usage struct {
	llm.Usage
	partial bool
}

// answer returns the usages that a Transport reports of an answer, after its caller has read n
// bytes of it (or all, if n is negative) and closed it, and what the Transport logs.
func answer(t *testing.T, status int, fields string, text io.Reader, n int64) (reported []usage, logged string) {
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
		Report: func(_ context.Context, u llm.Usage, report func(context.Context, string, int64)) {
			reported = append(reported, usage{u, reflect.ValueOf(report).Pointer() == reflect.ValueOf(weir.ReportAtLeast).Pointer()})
		},
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
			if len(got) != 1 || got[0] != (usage{tt.want, false}) || log != "" {
				t.Errorf("%s, %s: reported %+v, want %+v once; logged %q", tt.name, how, got, tt.want, log)
			}
		}
		// A client that stops at the end of the answer never sees io.EOF.
		if got, _ := answer(t, 200, tt.fields, strings.NewReader(tt.text+"more"), int64(len(tt.text))); len(got) != 1 || got[0] != (usage{tt.want, false}) {
			t.Errorf("%s: closed at its end: reported %+v", tt.name, got)
		}
		for n := range int64(len(tt.text) - 8) { // a client that hangs up in the middle
			if got, _ := answer(t, 200, tt.fields, iotest.OneByteReader(strings.NewReader(tt.text)), n); len(got) != 1 || !got[0].partial {
				t.Fatalf("%s: closed after %d bytes: reported %+v", tt.name, n, got)
			}
		}
		broken := io.MultiReader(strings.NewReader(tt.text[:len(tt.text)-8]), iotest.ErrReader(io.ErrUnexpectedEOF))
		if got, _ := answer(t, 200, tt.fields, broken, -1); len(got) != 1 || !got[0].partial {
			t.Errorf("%s: broken off: reported %+v", tt.name, got)
		}
	}
}

// TestCutShort: the usage of a response that ends early is incomplete, also if it ends without an
// error, as over a connection whose end is the end of the body, or after an error event.
func TestCutShort(t *testing.T) {
	const start = "data: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":50,\"output_tokens\":1}}}\n\n"
	events := strings.Repeat("data: {\"type\":\"content_block_delta\"}\n\n", 10)
	for _, tt := range []struct {
		fields, text string
		want         llm.Usage
	}{
		{sseType, start + events, llm.Usage{Input: 50, Output: 11}},
		{sseType, start + events + "data: {\"type\":\"error\",\"error\":{\"type\":\"overloaded_error\"}}\n\n", llm.Usage{Input: 50, Output: 12}},
		{jsonType, `{"usage":{"prompt_tokens":9,"completion_tokens":1`, llm.Usage{Input: 9}},
	} {
		if got, log := answer(t, 200, tt.fields, strings.NewReader(tt.text), -1); len(got) != 1 || got[0] != (usage{tt.want, true}) || log != "" {
			t.Errorf("%q: reported %+v, want %+v once, as incomplete; logged %q", tt.text, got, tt.want, log)
		}
	}
	const noDone = `data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":12}}` + "\n\n" // some servers end without [DONE]
	if got, _ := answer(t, 200, sseType, strings.NewReader(noDone), -1); len(got) != 1 || got[0] != (usage{llm.Usage{Input: 9, Output: 12}, false}) {
		t.Errorf("without [DONE]: reported %+v", got)
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
		if len(got) != 1 || !got[0].partial || strings.Count(log, "response without its usage of tokens") != 1 {
			t.Errorf("%s: reported %+v, logged %q", tt.name, got, log)
		}
	}
	for _, status := range []int{400, 429, 500, 529} {
		if got, log := answer(t, status, jsonType, strings.NewReader(`{"error":{}}`), -1); len(got) != 1 || got[0] != (usage{}) || log != "" {
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
		var got []usage
		bytes := testing.Benchmark(func(b *testing.B) {
			b.ReportAllocs()
			for range b.N {
				got, _ = answer(t, 200, jsonType, text(), -1)
			}
		}).AllocedBytesPerOp()
		if len(got) != 1 || got[0] != (usage{llm.Usage{Model: "m", Input: 2, Output: 3}, false}) {
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
		if len(got) == 1 && !got[0].partial {
			input, cached = got[0].Input, got[0].CacheRead
		}
		if input != want && input+cached != want { // OpenAI counts what was cached as a part of the input
			t.Errorf("%s: reported %+v, want an input of %d", text, got, want)
		}
	})
}

// TestMaxTokens: what the request may use at most is reserved, whatever the client writes.
func TestMaxTokens(t *testing.T) {
	cost := llm.MaxTokens(1000, 300)
	for text, want := range map[string]int64{ // if positive, without the bytes of the text
		`{"max_tokens":100}`:                     100,
		`{"max_completion_tokens":7}`:            7,
		`{"max_output_tokens":8,"stream":true}`:  8,
		`{"max_tokens":100,"n":3}`:               300,
		`{"max_tokens":1,"max_output_tokens":9}`: 9,
		`{}`:                                     300,
		`{"max_tokens":null}`:                    300,
		`{"max_tokens":0}`:                       300,
		`{"n":3}`:                                900,

		`{"max_tokens":10,"n":2,"best_of":20}`:                   200,
		`{"max_tokens":10,"prompt":["a","b"],"n":3}`:             60,
		`{"max_tokens":10,"prompt":[[1,2],[3]]}`:                 20,
		`{"max_tokens":10,"prompt":[1,2,3]}`:                     10,
		`{"max_tokens":10,"prompt":[]}`:                          10,
		`{"max_tokens":10,"prompt":"a"}`:                         10,
		`{"max_output_tokens":10,"background":false}`:            10,
		`{"max_output_tokens":10,"conversation":null}`:           10,
		`{"max_tokens":10,"tools":[{"max_tokens":5}],"input":1}`: 10,

		`{"max_tokens":100,"n":30}`:                                             -1000,
		`{"max_tokens":-4}`:                                                     -1000,
		`{"max_tokens":1e2}`:                                                    -1000,
		`{"max_tokens":5000}`:                                                   -1000,
		`{"max_tokens":"5"}`:                                                    -1000,
		`{"max_tokens":5,"n":-1}`:                                               -1000,
		`{"max_tokens":5,"best_of":1e2}`:                                        -1000,
		`{"max_tokens":99999999999999999999}`:                                   -1000,
		`{"max_tokens":5,"max_tokens":1}`:                                       -1000,
		`{"max_tokens":null,"max_tokens":1}`:                                    -1000,
		`{"MAX_TOKENS":5}`:                                                      -1000, // many servers ignore such a field
		`{"max-tokens":5}`:                                                      -1000,
		`{"max_output_tokens":5,"previous_response_id":"r"}`:                    -1000,
		`{"max_output_tokens":5,"conversation":{"id":"c"}}`:                     -1000,
		`{"max_output_tokens":5,"prompt":{"id":"p"}}`:                           -1000,
		`{"max_tokens":10,"prompt":[` + strings.Repeat(`"a",`, 200) + `"b"]}`:   -1000,
		`{"max_tokens":5,` + strings.Repeat(`"":0,`, 1000) + `"a":1}`:           -1000,
		`{"max_tokens":5`:                                                       -1000,
		`[]`:                                                                    -1000,
		`{"max_tokens":5,"messages":"` + strings.Repeat("x", 1000) + `"}`:       -1000,
		`{"max_tokens":5,"x":"` + strings.Repeat("x", 1<<20) + `"}`:             -1000,
		`{"max_output_tokens":5,"background":true}`:                             -1,
		`{"max_output_tokens":5,"background":true,"previous_response_id":"r" }`: -1,
		`{"requests":[{"params":{"max_tokens":500}}]}`:                          -1,
		`{"input_file_id":"f","endpoint":"/v1/chat/completions"}`:               -1,
		`{"max_tokens":5,"requests":null,"input_file_id":null}`:                 5,
		"": -1 + 2,
	} {
		r := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(text))
		switch {
		case text == "":
			r.Body = http.NoBody
		case want > 0:
			want += int64(len(text))
		case want < -1:
			want = -want
		}
		got := cost(r)
		if rest, err := io.ReadAll(r.Body); got != want || string(rest) != text || err != nil {
			t.Errorf("%.60s: got %d, want %d; the handler reads %d of %d bytes, error %v", text, got, want, len(rest), len(text), err)
		}
	}
	r := httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader("\x1f\x8b"))
	if r.Header.Set("Content-Encoding", "gzip"); cost(r) != -1 {
		t.Errorf("compressed: got %d, want -1", cost(r))
	}
	for _, f := range []func(){func() { llm.MaxTokens(0, 1) }, func() { llm.MaxTokens(1, 0) }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Error("MaxTokens does not panic")
				}
			}()
			f()
		}()
	}
}

func ExampleMaxTokens() {
	cost := llm.MaxTokens(4096, 1000)
	r := httptest.NewRequest(http.MethodPost, "/v1/chat/completions", strings.NewReader(`{"model":"m","max_tokens":256}`))
	fmt.Println(cost(r)) // 30 bytes, and 256 tokens of output
	// Output: 286
}

// TestIncludeUsage: a stream of Chat Completions states its usage, whatever the client wants.
func TestIncludeUsage(t *testing.T) {
	for _, c := range []struct{ path, body, want string }{
		{"/v1/chat/completions", `{"stream":true,"model":"m"}`, `{"stream_options":{"include_usage":true},"stream":true,"model":"m"}`},
		{"/v1/completions", ` { "stream" : true }`, `{"stream_options":{"include_usage":true}, "stream" : true }`},
		{"/v1/completions", `{"stream":true,"stream_options":{"include_usage":false},"n":2}`, `{"stream":true,"stream_options":{"include_usage":true},"n":2}`},
		{"/v1/completions", `{"stream":true,"stream_options":{"include_usage":false,"a":1}}`, `{"stream":true,"stream_options":{"include_usage":true,"a":1}}`},
		{"/v1/completions", `{"stream":true,"stream_options": { "a":[1]}}`, `{"stream":true,"stream_options": {"include_usage":true, "a":[1]}}`},
		{"/v1/completions", `{"stream":true,"stream_options":{"a":1,"Include_Usage" : false}}`, `{"stream":true,"stream_options":{"a":1,"include_usage":true}}`}, // which only some servers would accept
		{"/v1/completions", `{"stream":true,"stream_options":{"includeUsage":true}}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/completions", `{"stream":true,"stream_options":{ }}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/completions", `{"stream":true,"stream_options":{"include_usage":false,"include_usage":0}}`, `{"stream":true,"stream_options":{"include_usage":true}}`},
		{"/v1/completions", `{"stream_options":null,"stream":true}`, `{"stream_options":{"include_usage":true},"stream":true}`},
		{"/v1/completions", `{"stream":true,"stream_options":{"a":1,"include_usage":true}}`, ""},
		{"/v1/completions", `{"stream":true,"stream_options":{},"stream_options":{"include_usage":true}}`, ""}, // see MaxTokens
		{"/v1/completions", `{"stream":false}`, ""},
		{"/v1/completions", `{"model":"m"}`, ""},
		{"/v1/completions", `{"stream":true`, ""},
		{"/v1/completions", ``, ""},
		{"/v1/responses", `{"stream":true}`, ""},
		{"/v1/messages", `{"stream":true}`, ""},
	} {
		if c.want == "" {
			c.want = c.body
		}
		for _, chunked := range []bool{false, true} {
			r := httptest.NewRequest(http.MethodPost, c.path, strings.NewReader(c.body))
			if chunked {
				r.ContentLength = -1
			}
			_, err := (&llm.Transport{Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				got, err := io.ReadAll(r.Body)
				if strings.TrimSpace(string(got)) != c.want || err != nil || r.ContentLength >= 0 && r.ContentLength != int64(len(got)) {
					t.Errorf("%s %s: sent %s, %v, of length %d, want %s", c.path, c.body, got, err, r.ContentLength, c.want)
				}
				return nil, r.Body.Close()
			})}).RoundTrip(r)
			if err != nil {
				t.Error(err)
			}
		}
	}
}

// TestEndsEarly: an answer that ends early is charged the larger of what was reserved and what it
// has stated, or the events that have come.
func TestEndsEarly(t *testing.T) {
	const start = "event: message_start\ndata: {\"type\":\"message_start\",\"message\":{\"usage\":{\"input_tokens\":5000,\"output_tokens\":1}}}\n\n"
	const event = "data: {\"type\":\"content_block_delta\"}\n\n"
	for _, c := range []struct {
		fields, text string
		want         int64
	}{
		{sseType, start, 5001},
		{sseType, start + strings.Repeat(event, 10), 5011},
		{sseType, strings.Repeat(event, 2000), 2000},
		{sseType, event, 100 + 18}, // what was reserved
		{jsonType, `{"usage":{"prompt_tokens":700,`, 700},
		{jsonType, `{"usage":{"prompt_tokens":7,`, 118},
		{sseType, strings.Repeat(event, 2000) + "data: [DONE]\n\n", 2001}, // complete, without its usage
	} {
		store, limit := weirtest.Memory(), algorithms.FixedWindow(10_000, 1000*time.Hour)
		l, err := weir.New(store, weir.Options{Rules: []weir.Rule{{Name: "tokens", Unit: "tokens", Key: weir.Global(), Limits: []weir.Limit{limit},
			Cost: llm.MaxTokens(10_000, 1000), Settle: weir.ChargeUsed}}})
		if err != nil {
			t.Fatal(err)
		}
		name, value, _ := strings.Cut(c.fields, ": ")
		h := l.Handler(&httputil.ReverseProxy{
			Rewrite: func(*httputil.ProxyRequest) {},
			Transport: &llm.Transport{Logger: slog.New(slog.DiscardHandler), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
				body := io.MultiReader(strings.NewReader(c.text), iotest.ErrReader(io.ErrUnexpectedEOF))
				return &http.Response{StatusCode: 200, Header: http.Header{name: {value}}, Body: io.NopCloser(body), Request: r}, nil
			})},
			ErrorLog: log.New(io.Discard, "", 0),
		})
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(`{"max_tokens":100}`)))
		tx, err := quota.Peek(t.Context(), store, quota.Charge{Rule: "tokens", Limit: limit})
		if err != nil || tx.Decisions[0].Remaining != 10_000-c.want {
			t.Errorf("%.80s: %d charged, %v, want %d", c.text, 10_000-tx.Decisions[0].Remaining, err, c.want)
		}
	}
}

// TestCheapRefusal: all rules together read and parse a long body once.
func TestCheapRefusal(t *testing.T) {
	most := llm.MaxTokens(20_000, 4096)
	limits := []weir.Limit{algorithms.TokenBucket(20_000, 20_000, 1000*time.Hour)}
	l, err := weir.New(weirtest.Memory(), weir.Options{Rules: []weir.Rule{
		{Name: "tokens", Key: weir.Global(), Limits: limits, Cost: most, Settle: weir.ChargeUsed},
		{Name: "model", Key: weir.ByJSON("model", 1<<20), Limits: limits, Cost: most, Settle: weir.ChargeUsed},
		{Name: "money", Key: weir.Global(), Limits: limits, Cost: most, Settle: weir.ChargeUsed},
	}})
	if err != nil {
		t.Fatal(err)
	}
	h := l.Handler(http.NotFoundHandler())
	text := `{"model":"m","messages":[` + strings.Repeat(`[],`, 1<<20/3-20) + `0]}`
	send := func() int {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/v1/messages", strings.NewReader(text)))
		return w.Code
	}
	send()
	bytes := testing.Benchmark(func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if code := send(); code != 429 {
				b.Fatal(code)
			}
		}
	})
	if n := bytes.AllocedBytesPerOp(); n > 8<<20 {
		t.Errorf("a refused body of 1 MiB took %d bytes of memory", n)
	}
	t.Log(bytes)
}

// An idle is a RoundTripper with connections.
type idle struct {
	roundTrip
	closed *int
}

func (i idle) CloseIdleConnections() { *i.closed++ }

// TestCloseIdleConnections: an http.Client closes the connections of Base.
func TestCloseIdleConnections(t *testing.T) {
	closed := 0
	(&http.Client{Transport: &llm.Transport{Base: idle{nil, &closed}}}).CloseIdleConnections()
	if closed != 1 {
		t.Errorf("called %d times, want 1", closed)
	}
	(&http.Client{Transport: &llm.Transport{Base: roundTrip(nil)}}).CloseIdleConnections()
}

// TestModels: an answer to GET is expected to have no usage, and a sum of tokens does not overflow.
func TestModels(t *testing.T) {
	log := new(weirtest.Log)
	tr := &llm.Transport{Logger: slog.New(slog.NewTextHandler(log, nil)), Base: roundTrip(func(r *http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(`{"data":[]}`)), Request: r}, nil
	})}
	for _, method := range []string{http.MethodGet, http.MethodPost} {
		want := map[string]string{http.MethodPost: "response without its usage of tokens"}[method]
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
