// Tiers gives each account the quota that it pays for, and limits strangers by their
// address.
//
//	go run -C _examples ./tiers
package main

import (
	"context"
	"fmt"
	"log"
	"net/http"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/_examples/internal/demo"
	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/headers"
	"github.com/seed83679106/weir/memstore"
)

type tier string

// strangers, and requests of a tier that is not in tiers, have these limits. Limits without names
// are counted under their period, so the units that an account has spent still count after it
// changes its tier.
var strangers = []weir.Limit{algorithms.GCRA(1, 10*time.Second)}

var tiers = map[tier]weir.Policy{
	"free": weir.Limited(algorithms.GCRA(2, 10*time.Second)),
	"pro":  weir.Limited(algorithms.GCRA(5, 10*time.Second)),
}

type account struct {
	id   int
	tier tier
}

// accounts by API key. In production they are in a database, which queryTier queries.
var accounts = map[string]account{
	"key-of-anna": {1, "free"},
	"key-of-ben":  {2, "pro"},
}

var cache = tierCache{query: queryTier}

func queryTier(_ context.Context, id int) (tier, error) {
	for _, a := range accounts {
		if a.id == id {
			return a.tier, nil
		}
	}
	return "", nil
}

func main() {
	limiter, err := weir.New(memstore.New(memstore.Options{}), weir.Options{
		Headers: headers.GitHub,
		Rules: []weir.Rule{{
			Name:   "api",
			Key:    weir.FirstOf(weir.ByContext(idKey{}), weir.ByIP()),
			Limits: strangers,
			Policy: func(r *http.Request) weir.Policy { return tiers[tierOf(r)] },
		}},
	})
	if err != nil {
		log.Fatal(err)
	}
	h := authenticate(limiter.Handler(http.HandlerFunc(serve)))

	demo.Run("Per 10 seconds: a stranger has 1 request, a free account 2, a pro account 5.", h,
		demo.Request{Path: "/", Say: "A stranger."},
		demo.Request{Path: "/", Want: 429},
		demo.Request{Path: "/", Header: apiKey("key-of-anna"), Times: 2, Say: "A free account, at the same address."},
		demo.Request{Path: "/", Header: apiKey("key-of-anna"), Want: 429},
		demo.Request{Path: "/", Header: apiKey("key-of-ben"), Times: 5, Say: "A pro account."},
		demo.Request{Path: "/", Header: apiKey("key-of-ben"), Want: 429},
		demo.Request{Path: "/", Header: apiKey("a-guess"), Want: 429, Say: "A made-up key counts as a stranger and gains no quota."},
	)
}

func apiKey(key string) map[string]string { return map[string]string{"X-API-Key": key} }

type idKey struct{}

// authenticate puts the account of the API key into the request's context, if the key has an
// account. It runs before the limiter, so that the limiter counts accounts and not made-up
// API keys.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if a, ok := accounts[r.Header.Get("X-API-Key")]; ok {
			r = r.WithContext(context.WithValue(r.Context(), idKey{}, a.id))
		}
		next.ServeHTTP(w, r)
	})
}

// tierOf returns the tier of the request's account, or "" for a stranger.
func tierOf(r *http.Request) tier {
	if id, ok := r.Context().Value(idKey{}).(int); ok {
		return cache.tierOf(r.Context(), id)
	}
	return ""
}

func serve(w http.ResponseWriter, r *http.Request) {
	if t := tierOf(r); t != "" {
		fmt.Fprintf(w, "hello, %s account\n", t)
		return
	}
	fmt.Fprintln(w, "hello, stranger")
}
