package main

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/seed83679106/weir/algorithms"
	"github.com/seed83679106/weir/quota"
)

// health answers /readyz with 200 if this process can decide requests as its flags say, and
// with 503 otherwise and once the service shuts down:
//
//   - If Redis can never work as it is set up (a wrong password, TLS, missing rights), the
//     process is not ready. The log has the reason.
//   - If Redis does not answer and -redis-down is open or closed, the process is not ready.
//   - If Redis does not answer and -redis-down is memory, the process is ready, because all
//     processes share Redis, and its outage must take out neither all of them nor a rollout. The
//     body is then "memory". Only a process that has never reached Redis, perhaps because of its
//     own configuration, is not ready for the time of -redis-ready-after.
type health struct {
	redis  quota.Store  // nil without Redis; has no fallback
	check  func() error // what the last check of Redis has found
	read   func() bool  // whether the overrides in Redis were read
	memory bool         // -redis-down is memory
	alone  time.Time    // when the process may be ready without having reached Redis
	logger *slog.Logger

	stopping atomic.Bool
	reached  atomic.Bool // Redis has decided
	degraded atomic.Bool // the last answer was "memory"
	inMemory prometheus.Counter
}

func newHealth(logger *slog.Logger) health {
	return health{logger: logger, inMemory: prometheus.NewCounter(prometheus.CounterOpts{
		Name: "weir_ready_memory_total", Help: "Answers of /readyz that were ready although Redis did not answer, so that requests are counted in memory.",
	})}
}

// probe is a charge of cost 0, which spends nothing.
var probe = []quota.Charge{{Rule: "weir-readyz", Limit: algorithms.FixedWindow(1, time.Second)}}

func (h *health) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Cache-Control", "no-store")
	state, why := h.state(r)
	if state == "" {
		http.Error(w, why, http.StatusServiceUnavailable)
		return
	}
	fmt.Fprintln(w, state)
}

// state returns "ready" or "memory", or why the process is not ready. The texts are for
// everybody, so they name no address and no error.
func (h *health) state(r *http.Request) (state, why string) {
	if h.stopping.Load() {
		return "", "shutting down"
	}
	if h.redis == nil {
		return "ready", ""
	}
	err := errors.Join(h.redis.Take(r.Context(), &quota.Transaction{Charges: probe}), h.check())
	switch {
	case err == nil && !h.read(): // a fresh process would serve a network that operators have denied
		return "", "the overrides were not read yet"
	case err == nil:
		h.reached.Store(true)
		h.degraded.Store(false)
		return "ready", ""
	case errors.Is(err, quota.ErrUnusable):
		return "", "the store of the counts cannot work as it is set up; the log has the reason"
	case !h.memory || !h.reached.Load() && time.Now().Before(h.alone):
		return "", "the store of the counts is unavailable"
	}
	h.inMemory.Inc()
	if !h.degraded.Swap(true) {
		h.logger.Warn("weir: ready without Redis", "err", err, "effect", "requests are counted in memory")
	}
	return "memory", ""
}
