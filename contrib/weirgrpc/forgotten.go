package weirgrpc

import (
	"context"
	"log/slog"
	"reflect"
	"sync/atomic"

	"google.golang.org/grpc"
)

// A grpc.Server does not say which interceptors it has, so an interceptor cannot know whether the
// other kind is installed. What can be known is that the program has never made one, although a
// service that gets calls has methods of that kind.
var madeUnary, madeStream, toldForgotten atomic.Bool

var (
	serverStream = reflect.TypeFor[grpc.ServerStream]()
	aContext     = reflect.TypeFor[context.Context]()
	anError      = reflect.TypeFor[error]()
)

// forgotten warns once in a process of methods of a service that no interceptor limits, because the
// program has made none of their kind. service is the implementation, which may be nil.
func forgotten(made *atomic.Bool, interceptor string, service any, is func(reflect.Type) bool) {
	if made.Load() || service == nil || toldForgotten.Load() {
		return
	}
	t := reflect.TypeOf(service)
	for i := range t.NumMethod() {
		if m := t.Method(i); is(m.Type) && toldForgotten.CompareAndSwap(false, true) {
			slog.Warn("weirgrpc: calls of a method not limited", "method", m.Name, "likely", "weirgrpc."+interceptor+" was forgotten", "fix", "install it too")
		}
	}
}

// isStream reports whether a method of a service, whose first argument is the service, has a stream.
func isStream(m reflect.Type) bool {
	n := m.NumIn()
	return (n == 2 || n == 3) && m.NumOut() == 1 && m.Out(0) == anError && m.In(n-1).Implements(serverStream)
}

func isUnary(m reflect.Type) bool {
	return m.NumIn() == 3 && m.In(1) == aContext && m.In(2).Kind() == reflect.Pointer && m.NumOut() == 2 && m.Out(1) == anError
}
