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
	"github.com/seed83679106/weir/llm"
	"github.com/seed83679106/weir/memstore"
)

// completion is what the server of a model answers.
const completion = `{"model": "m", "usage": {"prompt_tokens": 20, "completion_tokens": 180}}`

// A proxy in front of a model limits the tokens of each client. A request reserves what its answer
// may have at most, here 500, and is charged what the answer says that it has used.
func Example() {
	model := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		fmt.Fprint(w, completion)
	}))
	defer model.Close()
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{{
		Name: "tokens", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.TokenBucket(1000, 1, time.Hour)},
		Unit: "tokens", Cost: llm.MaxTokens(1000), Settle: weir.ChargeUsed,
	}}})
	if err != nil {
		fmt.Println(err)
		return
	}
	target, _ := url.Parse(model.URL)
	proxy := limiter.Handler(&httputil.ReverseProxy{
		Rewrite:   func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport: &llm.Transport{},
	})
	for range 4 {
		w := httptest.NewRecorder()
		proxy.ServeHTTP(w, httptest.NewRequest("POST", "/v1/chat/completions", strings.NewReader(`{"model": "m", "max_tokens": 500}`)))
		fmt.Println(w.Code, "after reserving 500:", w.Header().Get("X-RateLimit-Remaining"))
	}
	// Output:
	// 200 after reserving 500: 500
	// 200 after reserving 500: 300
	// 200 after reserving 500: 100
	// 429 after reserving 500: 400
}
