// Package given declares what the fragments of the page on migration take as
// given.
package given

import (
	"net/http"

	"github.com/go-chi/chi/v5"

	"github.com/seed83679106/weir/quota"
)

var (
	store quota.Store
	mux   *http.ServeMux
	r     chi.Router
	api   http.Handler
)
