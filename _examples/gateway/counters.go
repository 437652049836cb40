package main

import (
	"fmt"
	"net/http"
	"sync"

	"github.com/seed83679106/weir"
)

// counters are the metrics of a program that needs no more than one.
type counters struct {
	mu     sync.Mutex
	counts map[string]int64
}

func newCounters() *counters { return &counters{counts: map[string]int64{}} }

func (c *counters) Observe(e weir.Event) {
	outcome := "allowed"
	switch {
	case e.Err != nil:
		outcome = "error"
	case e.Transaction == nil || e.Ban > 0 || !e.Transaction.Allowed():
		outcome = "refused"
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.counts[outcome]++
}

// ServeHTTP writes the text format of Prometheus.
func (c *counters) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/plain; version=0.0.4")
	fmt.Fprintln(w, "# TYPE weir_decisions_total counter")
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, outcome := range []string{"allowed", "refused", "error"} {
		fmt.Fprintf(w, "weir_decisions_total{outcome=%q} %d\n", outcome, c.counts[outcome])
	}
}
