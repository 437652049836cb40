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
//     process is not ready, unless it has reached Redis before and -redis-down is memory: then
//     somebody has changed Redis under a fleet that decides correctly in memory, and taking all of
//     it out would make the proxy's default decide. The log has the reason.
//   - If a control plane has the limits of Envoy (-envoy-xds), the process is not ready before it has got
//     some.
//   - If Redis does not answer and -redis-down is open or closed, the process is not ready.
//   - If Redis does not answer and -redis-down is memory, the process is ready, because all
//     processes share Redis, and its outage must take out neither all of them nor a rollout. The
//     body is then "memory". Only a process that has never reached Redis, perhaps because of its
//     own configuration, is not ready for the time of -redis-ready-after.
type health struct {
	redis   quota.Store  // nil without Redis; has no fallback
	check   func() error // what the last check of Redis has found
	read    func() bool  // whether the overrides in Redis were read
	limited func() bool  // whether there are limits for Envoy; nil if there need not be
	memory  bool         // -redis-down is memory
	alone   time.Time    // when the process may be ready without having reached Redis
	logger  *slog.Logger

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
	if h.limited != nil && !h.limited() {
		return "", "the control plane has sent no limits yet"
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
