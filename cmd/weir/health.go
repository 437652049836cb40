package main

import (
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/seed83679106/weir"
	"github.com/seed83679106/weir/algorithms"
)

// health answers /readyz with 200 while the store works, and with 503 while the store fails
// and once the service shuts down. All replicas share Redis, and an outage of Redis must not make
// all of them unready. So with -redis-down=memory the replicas stay ready and count in memory.
// With -redis-down=open or closed a replica is unready while Redis is down.
type health struct {
	store    weir.Store
	stopping atomic.Bool
}

// probe is a charge of cost 0, which spends nothing.
var probe = []weir.Charge{{Rule: "weir-readyz", Limit: algorithms.FixedWindow(1, time.Second)}}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	switch {
	case h.stopping.Load():
		http.Error(w, "shutting down", http.StatusServiceUnavailable)
	case h.store.Take(r.Context(), &weir.Transaction{Charges: probe}) != nil:
		http.Error(w, "the store of the counts is unavailable", http.StatusServiceUnavailable)
	default:
		fmt.Fprintln(w, "ready")
	}
}
