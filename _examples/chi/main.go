// Chi has three kinds of limits: one for all requests together, one for each client and
// route of a group, and one for each client of an expensive route.
//
//	go run -C _examples ./chi
package main

import (
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/chi/v5/middleware"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/contrib/weirchi"
	"github.com/seed83679106/weir/memstore"
)

func main() {
	store := memstore.New(memstore.Options{})

	// A client is the address that chi's middleware found. There is no proxy here, so chi
	// takes the address of the connection. Importing chi's middleware publishes
	// net/http/pprof on http.DefaultServeMux; this program does not serve that mux.
	client := weir.FirstOf(weirchi.ClientIP(middleware.GetClientIPAddr), weir.ByIP())

	// A report is expensive. A client gets 2 fresh reports in any minute; its further
	// requests get the report of yesterday.
	reports, err := weir.New(store, weir.Options{
		Rules: []weir.Rule{{
			Name: "reports", Key: client,
			Limits: []weir.Limit{algorithms.SlidingLog(2, time.Minute)},
		}},
		OnLimited: http.HandlerFunc(oldReport),
	})
	if err != nil {
		log.Fatal(err)
	}

	// Each client has 3 requests per 10 seconds for each route: /items/1 and /items/2 are one
	// route, GET and POST are two routes. Both rules are in one Limiter, so a client that
	// exceeds its limit spends nothing of the quota that all clients share.
	api := weir.Rule{
		Name: "api", Key: weir.Join(client, weir.ByMethod(), weir.ByRoute()),
		Limits: []weir.Limit{algorithms.GCRA(3, 10*time.Second)},
	}
	all := weir.Rule{Name: "all", Key: weir.Global(), Limits: []weir.Limit{algorithms.GCRA(1000, time.Second)}, Private: true}
	limit := func(rules ...weir.Rule) func(http.Handler) http.Handler {
		l, err := weir.New(store, weir.Options{Rules: rules})
		if err != nil {
			log.Fatal(err)
		}
		return l.Handler
	}

	r := chi.NewRouter()
	r.Use(middleware.ClientIPFromRemoteAddr)
	r.With(limit(all)).Get("/", page("the front page"))
	r.Route("/api", func(r chi.Router) {
		r.Use(weirchi.FindRoute, limit(api, all))
		r.Get("/items/{id}", item)
		r.Post("/items/{id}", page("stored"))
		r.With(reports.Handler).Get("/report", page("a fresh report"))
	})

	demo.Run("All clients: 1000 requests per second. Each client and route below /api: 3 per 10 seconds. Fresh reports: 2 per minute.", r,
		demo.Request{Path: "/", Say: "The front page has one limit, which all clients share."},
		demo.Request{Path: "/api/items/1", Times: 2, Say: "Three requests to a route fit. The last of them gets a shorter answer."},
		demo.Request{Path: "/api/items/2"},
		demo.Request{Path: "/api/items/3", Want: 429},
		demo.Request{Path: "/api/items/3", Method: "POST", Say: "Another method is another route."},
		demo.Request{Path: "/api/report", Times: 3, Say: "Two fresh reports, then an old one instead of an error."},
	)
}

func page(text string) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) { fmt.Fprintln(w, text) }
}

// item reads the decision of the limiter. A client whose quota is used up gets a shorter
// answer.
func item(w http.ResponseWriter, r *http.Request) {
	fmt.Fprintf(w, "item %s", chi.URLParam(r, "id"))
	if weir.FromContext(r.Context()).Decision("api").Remaining != 0 {
		fmt.Fprint(w, ", with all its details")
	}
	fmt.Fprintln(w)
}

// oldReport answers in place of the handler of the route if the limiter refuses. The
// limiter has already set the header fields, Retry-After among them.
func oldReport(w http.ResponseWriter, r *http.Request) {
	next := weir.FromContext(r.Context()).RetryAfter()
	w.WriteHeader(http.StatusOK) // without it, the status would be that of the refusal
	fmt.Fprintf(w, "the report of yesterday; a fresh one in %v\n", next.Round(time.Second))
}
