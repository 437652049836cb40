package admin_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/ops/admin"
)

// handlers returns the handler for everybody and the handler for operators, who need an address
// of their own or a login.
func handlers() (public, operators http.Handler, err error) {
	store := memstore.New(memstore.Options{})
	limiter, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(1, time.Hour)},
	}}})
	if err != nil {
		return nil, nil, err
	}
	h, err := admin.New(store, admin.Options{Limiters: func() []*weir.Limiter { return []*weir.Limiter{limiter} }})
	return limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})), h, err
}

// An operator gives a client its quota back.
func Example() {
	public, operators, err := handlers()
	if err != nil {
		fmt.Println(err)
		return
	}
	for _, c := range []struct {
		handler      http.Handler
		method, path string
	}{
		{public, "GET", "/"},
		{public, "GET", "/"},
		{operators, "POST", "/reset?rule=api&key=192.0.2.1"},
		{public, "GET", "/"},
	} {
		w := httptest.NewRecorder()
		c.handler.ServeHTTP(w, httptest.NewRequest(c.method, c.path, nil)) // from 192.0.2.1
		fmt.Println(c.method, c.path, w.Code)
	}
	// Output:
	// GET / 200
	// GET / 429
	// POST /reset?rule=api&key=192.0.2.1 200
	// GET / 200
}
