// Package given declares what the fragments of the page on migration take as
// given.
package given

import (
	"context"
	"net/http"

	"github.com/go-chi/chi/v5"
	"github.com/redis/go-redis/v9"

	"github.com/seed83679106/weir/quota"
)

var (
	store quota.Store
	mux   *http.ServeMux
	r     chi.Router
	api   http.Handler
	rdb   redis.UniversalClient
	ctx   context.Context
)
