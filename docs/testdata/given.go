// Package given declares what the fragments of the documentation take as given:
// each is checked as if it stood in a package with these names.
package given

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/ops/overrides"
	"github.com/seed83679106/weir/redisstore"
)

var (
	ctx     context.Context
	store   weir.Store
	memory  weir.Store
	local   weir.Store
	central weir.Store
	hybrid  weir.Store
	breaker weir.Store
	shared  *redisstore.Store
	rdb     redis.UniversalClient
	rules   []weir.Rule
	limit   weir.Limit
	limiter *weir.Limiter
	live    *overrides.Live
	mux     *http.ServeMux
	r       chi.Router
	secret  []byte
	user    string

	checkPassword http.Handler
	operators     http.Handler
)

type accountKey struct{}

func api(http.ResponseWriter, *http.Request)         {}
func createToken(http.ResponseWriter, *http.Request) {}
func search(http.ResponseWriter, *http.Request)      {}
func files(http.ResponseWriter, *http.Request)       {}
func items(http.ResponseWriter, *http.Request)       {}
func isPro(*http.Request) bool                       { return false }
func requireOperator(next http.Handler) http.Handler { return next }
func authenticate(next http.Handler) http.Handler    { return next }
