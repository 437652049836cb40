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

// health answers /readyz with 200 if this process can evaluate requests as its flags
// specify. Otherwise, and once the service shuts down, it answers with 503:
//
//   - If Redis cannot work because of its setup (a wrong password, TLS, missing permissions), the
//     process is not ready. The log contains the reason. However, if the process has reached Redis
//     before and -redis-down is memory, it stays ready. In this case, somebody has changed the setup
//     of Redis, and all processes can still count in memory. If all of them were taken out of
//     service, the proxy's default would apply.
//   - If the limits for Envoy come from a control plane (-envoy-xds), the process is not ready
//     until it has received limits.
//   - If Redis answers but the overrides in it have not been read, or if Redis does not
//     answer and -redis-down is open or closed, the process is not ready.
//   - If Redis does not answer and -redis-down is memory, the process is ready, and the body is
//     "memory". All processes share Redis, so an outage of Redis must neither take all of them
//     out of service nor block a rollout. But a process that has never reached Redis, perhaps
//     because of its own configuration, is not ready before -redis-ready-after has passed.
type health struct {
	redis   quota.Store  // nil without Redis; has no fallback
	check   func() error // returns the result of the last check of Redis
	read    func() bool  // reports whether the overrides in Redis were read
	limited func() bool  // reports whether there are limits for Envoy; nil if none are needed
	memory  bool         // -redis-down is memory
	alone   time.Time    // when the process may be ready without having reached Redis
	logger  *slog.Logger

	stopping atomic.Bool
	reached  atomic.Bool // Redis has made a decision
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

// state returns "ready" or "memory", or why the process is not ready. The texts are
// public, so they contain no address and no error.
func (h *health) state(r *http.Request) (state, why string) {
	if h.stopping.Load() {
		return "", "shutting down"
	}
	if h.limited != nil && !h.limited() {
		return "", "the control plane has sent no limits yet"
	}
	if h.redis == nil {
		return "ready", ""
	}
	err := errors.Join(h.redis.Take(r.Context(), &quota.Transaction{Charges: probe}), h.check())
	switch {
	case err == nil && !h.read(): // otherwise a new process would serve a network that operators have denied
		return "", "the overrides were not read yet"
	case err == nil:
		h.reached.Store(true)
		h.degraded.Store(false)
		return "ready", ""
	case errors.Is(err, quota.ErrUnusable) && (!h.memory || !h.reached.Load()):
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
