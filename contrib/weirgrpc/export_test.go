package weirgrpc

// Told is told, so that tests can be told again.
var Told = &told

// ForgetInterceptors is as if the process had made no interceptor, and had warned of none.
func ForgetInterceptors() {
	madeUnary.Store(false)
	madeStream.Store(false)
	toldForgotten.Store(false)
}
