package weirgrpc

import (
	"context"
	"log/slog"
	"reflect"
	"sync"
	"sync/atomic"

	"google.golang.org/grpc"
)

// A grpc.Server does not report which interceptors it has, so an interceptor cannot find out
// whether one for the other kind of methods, unary or streaming, is installed. All that it can
// detect is that a service has methods of that kind and the program has created no such
// interceptor.
var madeUnary, madeStream, warnedForgotten atomic.Bool

// checked contains the services whose methods were checked, because a check of four methods takes
// as long as the rest of a call.
var checked sync.Map // of checks

type checks struct {
	service     reflect.Type
	interceptor string
}

var (
	serverStream = reflect.TypeFor[grpc.ServerStream]()
	aContext     = reflect.TypeFor[context.Context]()
	anError      = reflect.TypeFor[error]()
)

// forgotten warns, once per process, if a service has methods of a kind (unary or streaming, see
// is) for which the program has not created an interceptor. service is the implementation, which
// may be nil.
func forgotten(made *atomic.Bool, interceptor string, service any, is func(reflect.Type) bool) {
	if made.Load() || service == nil || warnedForgotten.Load() {
		return
	}
	t := reflect.TypeOf(service)
	check := checks{t, interceptor}
	if _, known := checked.Load(check); known { // LoadOrStore would allocate in each call
		return
	}
	checked.Store(check, nil)
	for i := range t.NumMethod() {
		if m := t.Method(i); is(m.Type) && warnedForgotten.CompareAndSwap(false, true) {
			slog.Warn("weirgrpc: calls of a method not limited", "method", m.Name, "likely", "weirgrpc."+interceptor+" was forgotten", "fix", "install it too")
		}
	}
}

// isStream reports whether a method of a service is a streaming method. Its first argument is the
// service.
func isStream(m reflect.Type) bool {
	n := m.NumIn()
	return (n == 2 || n == 3) && m.NumOut() == 1 && m.Out(0) == anError && m.In(n-1).Implements(serverStream)
}

func isUnary(m reflect.Type) bool {
	return m.NumIn() == 3 && m.In(1) == aContext && m.In(2).Kind() == reflect.Pointer && m.NumOut() == 2 && m.Out(1) == anError
}
