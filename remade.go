package weir

import (
	"log/slog"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"time"
)

// A remade has counted how often handlers made a Limiter of a rule since a time. It keeps
// few rules: names that change with each request would fill the memory.
type remade struct {
	mu     sync.Mutex
	warned bool
	rules  map[string]*making
}

type making struct {
	since time.Time
	n     int
}

// madeByHandlers is of the process, because a Limiter that is made with each request has
// nothing else in which a count could last.
var madeByHandlers remade

const (
	mostMakings = 10 // in a minute
	mostRemade  = 64 // rules
)

// again counts a Limiter that a handler has made. It returns true once: if the handler seems
// to make one for each request.
func (m *remade) again(rule string, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.warned {
		return false
	}
	k := m.rules[rule]
	if k == nil || now.Sub(k.since) > time.Minute {
		if k == nil && len(m.rules) >= mostRemade {
			m.rules = nil
		}
		if m.rules == nil {
			m.rules = map[string]*making{}
		}
		k = &making{since: now}
		m.rules[strings.Clone(rule)] = k
	}
	k.n++
	if m.warned = k.n == mostMakings; m.warned {
		m.rules = nil
	}
	return m.warned
}

// warnIfRemade warns if handlers make a Limiter of a rule again and again. Each would begin
// without the bans and the waiting requests that the one before knew of, and limit nothing
// if its store is as new.
func warnIfRemade(rule string, logger *slog.Logger) {
	if servesRequest() && madeByHandlers.again(rule, time.Now()) {
		loggerOr(logger).Warn("weir: a handler makes Limiters of one rule again and again; make one, and its store, before the server starts", "rule", rule)
	}
}

// servesRequest reports whether the caller of New serves a request of net/http, in a
// server and not in a test of a handler, and does not reload a file.
func servesRequest() bool {
	var pcs [256]uintptr
	frames := runtime.CallersFrames(pcs[:runtime.Callers(2, pcs[:])])
	for {
		f, more := frames.Next()
		if f.Function == "net/http.serverHandler.ServeHTTP" {
			return true
		}
		if !more || strings.HasPrefix(f.Function, configPackage) {
			return false
		}
	}
}

var configPackage = reflect.TypeFor[Limiter]().PkgPath() + "/config."
