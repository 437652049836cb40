package weirgrpc

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
)

// A grpc.Server does not report which interceptors it has. An interceptor for unary methods
// therefore cannot find out whether one for streaming methods is installed, and vice versa. It can
// only detect that a service has methods of the other kind and the program has created no
// interceptor for them.
var madeUnary, madeStream, warnedForgotten atomic.Bool

// checkedServices contains the services whose methods were checked, because checking four methods
// takes as long as the rest of a call.
var checkedServices sync.Map // the keys are checks

type checks struct {
	service     reflect.Type
	interceptor string
}

var (
	serverStream = reflect.TypeFor[grpc.ServerStream]()
	aContext     = reflect.TypeFor[context.Context]()
	anError      = reflect.TypeFor[error]()
)

// warnForgotten logs a warning, once per process, if a service has methods of a kind for which the
// program has not created an interceptor. The given function reports whether a method is of that
// kind, unary or streaming. The implementation of the service may be nil.
func warnForgotten(made *atomic.Bool, interceptor string, service any, ofKind func(reflect.Type) bool) {
	if made.Load() || service == nil || warnedForgotten.Load() {
		return
	}
	t := reflect.TypeOf(service)
	check := checks{t, interceptor}
	if _, known := checkedServices.Load(check); known { // LoadOrStore would allocate memory in each call
		return
	}
	checkedServices.Store(check, nil)
	for i := range t.NumMethod() {
		if m := t.Method(i); ofKind(m.Type) && warnedForgotten.CompareAndSwap(false, true) {
			slog.Warn("weirgrpc: calls of a method not limited", "method", m.Name, "likely", "weirgrpc."+interceptor+" was forgotten", "fix", "install it too")
		}
	}
}

// isStream reports whether a method of a service is a streaming method. The first parameter of m is
// the service.
func isStream(m reflect.Type) bool {
	n := m.NumIn()
	return (n == 2 || n == 3) && m.NumOut() == 1 && m.Out(0) == anError && m.In(n-1).Implements(serverStream)
}

func isUnary(m reflect.Type) bool {
	return m.NumIn() == 3 && m.In(1) == aContext && m.In(2).Kind() == reflect.Pointer && m.NumOut() == 2 && m.Out(1) == anError
}
