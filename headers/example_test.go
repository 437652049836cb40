package headers_test

import (
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
)

// newServer returns a server that tells its clients of two limits.
func newServer() *httptest.Server {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Headers: headers.IETF,
		Rules: []weir.Rule{{Name: "search", Key: weir.ByIP(), Limits: []weir.Limit{
			algorithms.GCRA(30, time.Hour), algorithms.GCRA(1, time.Minute),
		}}},
	})
	if err != nil {
		log.Fatal(err)
	}
	return httptest.NewServer(limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})))
}

// A client reads what it has left, and how long it must wait.
func Example() {
	server := newServer()
	defer server.Close()
	for range 2 {
		resp, err := http.Get(server.URL)
		if err != nil {
			log.Fatal(err)
		}
		resp.Body.Close()
		limits, retryAfter := headers.Parse(resp.Header, time.Now())
		if retryAfter > 0 {
			fmt.Println("refused; wait up to a minute:", retryAfter <= time.Minute)
			return
		}
		for _, l := range limits {
			fmt.Printf("%s: %d of %d %s left\n", l.Name, l.Remaining, l.Limit, l.Unit)
		}
	}
	// Output:
	// search/1h: 29 of 30 requests left
	// search/1m: 0 of 1 requests left
	// refused; wait up to a minute: true
}

// A client's own proxy does not show others what a server has left for it.
func ExampleDelete() {
	h := http.Header{"Content-Type": {"text/plain"}, "X-Ratelimit-Limit": {"100"}, "Anthropic-Ratelimit-Tokens-Remaining": {"7"}}
	fmt.Println(headers.Delete(h))
	fmt.Println(h)
	// Output:
	// map[Anthropic-Ratelimit-Tokens-Remaining:[7] X-Ratelimit-Limit:[100]]
	// map[Content-Type:[text/plain]]
}
