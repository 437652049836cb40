package llm_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/llm"
	"github.com/seed83679106/weir/memstore"
)

// completion is what the server of a model answers.
const completion = `{"model": "m", "usage": {"prompt_tokens": 20, "completion_tokens": 180}}`

// A proxy in front of a model limits the tokens of each client. A request reserves what it may use at
// most, here 33 bytes of input and 500 tokens of output, and is charged what the answer states.
func Example() {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, completion)
	}))
	defer model.Close()
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "tokens", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.TokenBucket(1000, 1, time.Hour)},
		Unit: "tokens", Cost: llm.MaxTokens(1000, 500), Settle: weir.ChargeUsed,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	target, _ := url.Parse(model.URL)
	proxy := limiter.Handler(weir.KeepHeaders(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &llm.Transport{},
	}))
	for range 4 {
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{"model": "m", "max_tokens": 500}`)))
		fmt.Println(w.Code, "remaining:", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 remaining: 467
	// 200 remaining: 267
	// 200 remaining: 67
	// 429 remaining: 400
}

// The tokens of a response are those of its input, read from a cache or not, and of its output.
func ExampleUsage_Total() {
	u := llm.Usage{Model: "m", Input: 20, CacheRead: 100, Output: 180}
	fmt.Println(u.Total())
	// Output:
	// 300
}
