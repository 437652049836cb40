package main

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// health answers /readyz. A service is ready as long as its store decides. With
// -redis-down=memory that is always so: Redis is one for all replicas, and if its outage
// made them unready, no request would be served at all. Otherwise a replica is not ready
// while Redis does not decide. It is not ready, too, once it shuts down.
type health struct {
	store    weir.Store
	stopping atomic.Bool
}

// probe is a charge that spends nothing.
var probe = []weir.Charge{{Rule: "weir-readyz", Limit: algorithms.FixedWindow(1, time.Second)}}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case h.stopping.Load():
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
	case h.store.Take(r.Context(), &weir.Transaction{Charges: probe}) != nil:
		http.Error(w, "the store does not decide", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ready")
	}
}
