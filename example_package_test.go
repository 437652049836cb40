package weir_test

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/keys"
	"github.com/seed83679106/weir/memstore"
)

type account struct{}

// authenticate finds the account of a request. In a program it checks the password, too.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		name, _, _ := r.BasicAuth()
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), account{}, name)))
	})
}

// Every account may send two requests an hour, and all accounts together 1000 a second. A request
// that the limit of an account refuses spends nothing of what all accounts share.
func Example() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{Rules: []weir.Rule{
		{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}},
		{Name: "account", Key: keys.ByContext(account{}), Limits: []weir.Limit{algorithms.GCRA(2, time.Hour)}},
	}})
	if err != nil {
		log.Fatal(err)
	}
	items := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		decisions := weir.FromContext(r.Context()).Decisions // one for each limit, in the order of the rules
		fmt.Fprintln(w, decisions[1].Remaining, "requests left")
	})
	handler := authenticate(limiter.Handler(items)) // with chi: r.Use(authenticate, limiter.Handler)

	for _, name := range []string{"ada", "ada", "ada", "bob"} {
		r, w := httptest.NewRequest("GET", "/items", nil), httptest.NewRecorder()
		r.SetBasicAuth(name, "secret")
		handler.ServeHTTP(w, r)
		if w.Code == http.StatusTooManyRequests {
			fmt.Println(name, "is refused")
			continue
		}
		fmt.Print(name, ": ", w.Body)
	}
	// Output:
	// ada: 1 requests left
	// ada: 0 requests left
	// ada is refused
	// bob: 1 requests left
}
