// Basic limits each client of a small server to 5 requests per 10 seconds.
//
//	go run -C _examples ./basic
package main

import (
	"fmt"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /", func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintln(w, "hello")
	})

	store := memstore.New(memstore.Options{})
	limit := weir.Middleware(store, "hello", weir.ByIP(), algorithms.GCRA(5, 10*time.Second))

	// demo.Run serves limit(mux) as http.ListenAndServe does, and sends it these requests.
	demo.Run("Each client has 5 requests per 10 seconds: 5 at once, then one every 2 seconds.", limit(mux),
		demo.Request{Path: "/", Times: 5, Say: "Five requests at once are allowed."},
		demo.Request{Path: "/", Want: 429, Say: "The sixth is refused. Retry-After says in how many seconds the next one is allowed."},
		demo.Request{Path: "/", Wait: true, Say: "After the wait that Retry-After names, a request is allowed."},
	)
}
