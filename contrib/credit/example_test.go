package credit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/credit"
	"github.com/seed83679106/weir/memstore"
	"github.com/seed83679106/weir/quota"
)

func Example() {
	ctx := context.Background()
	store := credit.New(memstore.New(memstore.Options{}), credit.Options{Rules: []string{"api"}})
	limiter, err := weir.New(store, weir.Options{Rules: []weir.Rule{{
		Name: "api", Key: weir.ByHeader("Api-Key"), Limits: []quota.Limit{algorithms.FixedWindow(1, 1000*time.Hour)},
	}}})
	if err != nil {
		panic(err)
	}
	h := limiter.Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	request := func() {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil)
		r.Header.Set("Api-Key", "acme")
		h.ServeHTTP(w, r)
		fmt.Println(w.Code)
	}
	request()
	request()
	err = credit.Grant(ctx, store, "api", "acme", 100, 24*time.Hour) // acme has just paid
	if errors.Is(err, quota.ErrFellBack) {
		fmt.Println("grant them again when Redis works")
	}
	request()
	units, _, _ := credit.Left(ctx, store, "api", "acme")
	fmt.Println(units, "left")
	limits := store.Unpaid() // without granted units, the limits refuse acme
	alone, _ := quota.Peek(ctx, limits, quota.Charge{Rule: "api", Key: "acme", Limit: algorithms.FixedWindow(1, 1000*time.Hour), Cost: 1})
	fmt.Println(alone.Decisions[0].Allowed)
	credit.Revoke(ctx, store, "api", "acme")
	request()
	// Output:
	// 200
	// 429
	// 200
	// 99 left
	// false
	// 429
}
