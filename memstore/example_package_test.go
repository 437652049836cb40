package memstore_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
)

func hello(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, "hello") }

// Two routes share a store. Their rules have different names, so each has counts of its own.
func Example() {
	store := memstore.New(memstore.Options{})
	search := weir.Middleware(store, "search", weir.ByIP(), algorithms.GCRA(1, time.Hour))
	items := weir.Middleware(store, "items", weir.ByIP(), algorithms.GCRA(100, time.Hour))
	mux := http.NewServeMux()
	mux.Handle("GET /search", search(http.HandlerFunc(hello)))
	mux.Handle("GET /items", items(http.HandlerFunc(hello)))

	for _, path := range []string{"/search", "/search", "/items"} {
		w := httptest.NewRecorder()
		mux.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		fmt.Println(path, w.Code)
	}
	// Output:
	// /search 200
	// /search 429
	// /items 200
}
