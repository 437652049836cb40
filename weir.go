// Package weir limits how many requests each client may make. It is middleware of the form
// func(http.Handler) http.Handler. It also limits outgoing requests.
//
// [Middleware] and [New] limit the requests to a handler. A [Rule] says which requests share
// a quota, and how large the quota is. What a [Limit] means and what a [Store] decides is in
// package quota, which also limits work that is not HTTP.
//
// Package algorithms has the algorithms, packages memstore and redisstore have stores, and
// package keys has more key functions.
package weir

import "github.com/seed83679106/weir/quota"

// Everyone who writes a rule types these two, so they have a name here as well.
type (
	Limit = quota.Limit // so many units per period
	Store = quota.Store // keeps the counts
)
