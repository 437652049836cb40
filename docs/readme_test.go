package docs_test

import (
	"fmt"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/internal/test/weirtest"
	"github.com/seed83679106/weir/memstore"
)

// TestReadmeChi: under two rules of one limiter, as in the README, a client that sends more
// requests than all clients may send together leaves room for a stranger. If its limiters
// were inside each other, it would not.
func TestReadmeChi(t *testing.T) {
	all := weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}}
	api := weir.Rule{Name: "api", Key: weir.ByIP(), Limits: []weir.Limit{algorithms.GCRA(100, time.Minute)}}
	for _, tt := range []struct {
		limiters [][]weir.Rule
		stranger int
	}{
		{[][]weir.Rule{{all, api}}, 200},
		{[][]weir.Rule{{all}, {api}}, 429},
	} {
		synctest.Test(t, func(t *testing.T) {
			store := memstore.New(memstore.Options{})
			r := chi.NewRouter()
			r.Route("/api", func(r chi.Router) {
				for _, rules := range tt.limiters {
					r.Use(weirtest.New(t, store, weir.Options{Rules: rules}).Handler)
				}
				r.Get("/items", func(http.ResponseWriter, *http.Request) {})
			})
			statuses := map[int]int{}
			for range 1100 {
				statuses[weirtest.Do(r, weirtest.Ask("/api/items", "192.0.2.1:4")).StatusCode]++
			}
			stranger := weirtest.Do(r, weirtest.Ask("/api/items", "198.51.100.7:4")).StatusCode
			if got := fmt.Sprint(statuses, stranger); got != fmt.Sprint(map[int]int{200: 100, 429: 1000}, tt.stranger) {
				t.Errorf("%d limiters: got %s, want 100 served, and %d for a stranger", len(tt.limiters), got, tt.stranger)
			}
		})
	}
}
